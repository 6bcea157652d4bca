"""PROTOCOL A: who applies when, and what may be told before it is committed."""

from __future__ import annotations

import trio

from hadron.sim.scenarios.play import Play, scenario

_PRODUCER = b"a producer's id."


@scenario("A1: replicas apply at commit", nodes=5)
async def replica_with_a_lost_claim(play: Play) -> None:
    """An entry is on n1 and n2, which is no majority of five; n1 loses its disk; the others go on
    without the entry. n2 must not have applied it, for there is no undo."""
    world = play.world
    await play.fill(5)
    await world.wait_in_step()
    play.part("n1", "n2")
    before = play.last_lsn("n2")
    await play.produce("on n1 and n2", timeout_s=1.0)
    await play.wait_holds("n2", before + 1)
    await world.crash("n1", power=False)
    world.wipe("n1")
    play.join("n1", "n2")
    play.part("n2")
    await world.start("n1")
    await world.wait_serving()
    await play.publish("without n2")
    play.join("n2")
    await world.wait_in_step()


@scenario("A2: nothing derived from an uncommitted entry leaves")
async def retry_of_an_uncommitted_batch(play: Play) -> None:
    """A batch is applied on n1 and not committed; the connection drops; the retry finds it in the
    dedupe table. Then n1 loses its disk, and the batch with it: nobody may have been told "ok"."""
    await play.fill(3)
    await play.world.wait_in_step()
    play.part("n1")
    first = await play.produce("X", producer=_PRODUCER, sequence=0, timeout_s=1.0)
    await play.produce("X", producer=_PRODUCER, sequence=0, timeout_s=1.0, again=first)
    await _lose_the_leaders_disk(play)


@scenario("A2: readers see committed records only")
async def read_of_an_uncommitted_record(play: Play) -> None:
    """A record is on n1's disk alone while readers, old and new, ask for all there is. Then n1
    loses its disk: nobody may have seen the record."""
    await play.fill(3)
    await play.world.wait_in_step()
    play.part("n1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: play.produce("X", timeout_s=2.0))
        await trio.sleep(0.5)
        for number in range(3):
            await play.read(host=f"r{number}", timeout_s=1.0)
    await _lose_the_leaders_disk(play)


@scenario("A3: committed is what the leader and a majority have persisted")
async def leader_dies_before_its_own_sync(play: Play) -> None:
    """The leader sends entries while its own fsync runs, and loses power before it is done, again
    and again, while one replica or the other is away."""
    world = play.world
    for round_number in range(8):
        away = play.others("n1")[round_number % 2]
        play.part(away)
        world.disks["n1"].broken.crash_at_sync_in = 1 + round_number % 3
        await play.publish(*(f"{round_number}/{n}" for n in range(20)), timeout_s=1.0)
        await world.crash("n1", power=True, style="dropped")
        world.disks["n1"].heal()
        play.join(away)
        play.part(play.others("n1", away)[0])
        await world.start("n1")
        with trio.move_on_after(5.0):
            await world.wait_serving()
        await play.publish(f"after {round_number}", timeout_s=2.0)
        play.join(play.others("n1", away)[0])
        await world.wait_in_step()


async def _lose_the_leaders_disk(play: Play) -> None:
    world = play.world
    await world.crash("n1", power=False)
    world.wipe("n1")
    play.join("n1")
    await world.start("n1")
    await world.wait_serving()
    await world.wait_in_step()
