"""PROTOCOL B: ballots, the most advanced log, nodes without memory, damaged disks."""

from __future__ import annotations

import trio

from hadron.sim.scenarios.play import Play, scenario


@scenario("B3: amnesia")
async def wiped_leader_meets_the_one_that_lags(play: Play) -> None:
    """X is on n1 and n2, n3 lags; n1 is wiped; {n1 empty, n3} is a majority without X. It must not
    lead before n2 is back."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    play.part("n3")
    await play.publish("X")
    await world.crash(power=False)
    world.wipe("n1")
    world.network.heal_all()
    await world.start("n1", "n3")
    with trio.move_on_after(20.0):
        await world.wait_serving()
    await play.publish("Y", timeout_s=1.0)
    await world.start("n2")
    await world.wait_serving()


@scenario("B3: amnesia")
async def wiped_replica_meets_the_one_that_lags(play: Play) -> None:
    """X is on n1 and n2, n3 lags; n2 is wiped and n1 starts again: {n1, n2 empty} must not go on
    without n3, whose promise may be higher."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    play.part("n3")
    await play.publish("X")
    await world.crash("n2", power=False)
    world.wipe("n2")
    await world.start("n2")
    await play.publish("Y", timeout_s=1.0)
    await world.crash("n1", power=True)
    await world.start("n1")
    await play.publish("Z", timeout_s=1.0)


@scenario("B2: most advanced by ballot, then by length", nodes=5)
async def long_tail_of_an_old_ballot(play: Play) -> None:
    """n2 has a long tail of ballot 1 that no majority has. n1 loses its disk, and with n3, n4 and
    n5 commits one record in a higher ballot. n1 loses its disk again and finds n2 with the longer
    log: the shorter one of the higher ballot is the most advanced."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    play.part("n1", "n2")
    before = play.last_lsn("n2")
    for number in range(6):
        await play.produce(f"tail {number}", timeout_s=0.5)
    await play.wait_holds("n2", before + 6)
    await world.crash("n1", power=False)
    world.wipe("n1")
    play.join("n1", "n2")
    play.part("n2")
    await world.start("n1")
    await world.wait_serving()
    await play.publish("committed in a higher ballot")
    await world.wait_in_step("n1", "n3", "n4", "n5")
    await world.crash("n1", power=False)
    world.wipe("n1")
    # n5 is away: who remembers are n2, n3 and n4.
    await world.crash("n5", power=False)
    play.join("n2")
    await world.start("n1")
    await world.wait_serving()
    await world.start("n5")


@scenario("B2: the watermark waits for this ballot's first entry (Figure 8)", nodes=5)
async def figure_8(play: Play) -> None:
    """Entries of an old ballot reach a majority only in a later one, whose own first entry does
    not; the leader loses its disk. What was not committed in the new ballot was not committed."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    play.part("n1", "n2")
    before = play.last_lsn("n2")
    await play.produce("old ballot", timeout_s=0.5)
    await play.wait_holds("n2", before + 1)
    await world.crash("n1", power=False)
    world.network.heal_all()
    play.part("n4", "n5")
    await world.start("n1")
    with trio.move_on_after(10.0):
        await world.wait_serving()
    await play.read(timeout_s=1.0)
    await world.crash("n1", power=False)
    world.wipe("n1")
    world.network.heal_all()
    await world.start("n1")
    await world.wait_serving()
    await world.wait_in_step()


@scenario("B2: acknowledge what is verified equal, never one's own last lsn")
async def divergent_tail_counts_for_nothing(play: Play) -> None:
    """n1 and n3 hold different entries at the same lsns: n1's were lost with its disk after n3 had
    them alone. n3's are dropped, and never counted for n1's new ones."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    play.part("n2")
    await play.publish("on n1 and n3")
    await world.crash("n3", power=False)
    await play.publish("on n1 alone", timeout_s=1.0)
    await world.crash("n1", power=False)
    world.wipe("n1")
    world.network.heal_all()
    await world.start("n1")
    with trio.move_on_after(5.0):
        await world.wait_serving()
    await world.start("n3")
    await world.wait_serving()
    await play.publish("after")


@scenario("B3: a tail that replicas have and not yet applied")
async def wiped_leader_under_load(play: Play) -> None:
    """The leader's disk is lost right after an acknowledgement, before the replicas have been told
    that the entry is committed: it is in their logs and not in their tables."""
    world = play.world
    for number in range(3):
        await play.fill(3)
        await play.publish(f"the last one of n1's disk {number}")
        world.crash_now("n1", power=False)
        await world.crash("n1")
        world.wipe("n1")
        await world.start("n1")
        await world.wait_serving()
        await world.wait_in_step()


@scenario("B4: a damaged disk", nodes=5)
async def single_bit_errors_on_one_node_of_five(play: Play) -> None:
    """One node of five suffers bit flips again and again while records are written: nothing is
    lost, and nothing damaged is served or copied."""
    world = play.world
    for round_number in range(6):
        await play.fill(20, size=400)
        await world.crash("n4", power=False)
        flipped = world.disks["n4"].flip_bits(1 + round_number * 3)
        world.trace.log(f"n4: bits flipped: {', '.join(flipped)}")
        await play.fill(5)
        await _start_or_wipe(play, "n4")
        await play.read()


@scenario("B4: a damaged disk of the leader")
async def single_bit_errors_on_the_leader(play: Play) -> None:
    """The same on the leader of three: it serves the truth, or says why it does not."""
    world = play.world
    for round_number in range(5):
        await play.fill(20, size=400)
        await world.crash("n1", power=False)
        world.disks["n1"].flip_bits(1 + round_number * 3)
        await _start_or_wipe(play, "n1")
        with trio.move_on_after(10.0):
            await world.wait_serving()
        await play.read()
        await play.fill(5)
        if not world.running("n1"):
            await _start_or_wipe(play, "n1")


async def _start_or_wipe(play: Play, name: str) -> None:
    """Start a node; an operator gives it an empty disk when it says that its own is damaged."""
    world = play.world
    try:
        await world.start(name)
    except Exception as error:
        world.trace.log(f"{name} does not start: {error}")
    await trio.sleep(1.0)
    if not world.running(name):
        world.wipe(name)
        await world.start(name)
