"""PROTOCOL B: ballots, the most advanced log, nodes without memory, damaged disks."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

import apsw
import trio

from hadron.sim.scenarios.play import Play, scenario
from hadron.sim.world.replica_set import SETTINGS

_BIG: Final = 700_000
"""A record of this size; two of them fill a feed's chunk."""

NARROW: Final = replace(SETTINGS, replication_window_bytes=1 << 20)


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


@scenario("B3: a member restored over its old directory")
async def restored_member_meets_the_one_that_lags(play: Play) -> None:
    """X is on n1 and n2 while n3 lags; n1 is restored from a backup that was taken before, over the
    directory that it had. n1 and n3 must not be a majority without X; with n2 n1 is taught, and
    counts again."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    backup = await play.back_up("n1")
    play.part("n3")
    await play.publish("X")
    await world.crash("n2", power=True)
    play.join("n3")
    await play.restore("n1", backup)
    with trio.move_on_after(10.0):
        await world.wait_serving()
    await play.publish("Y", timeout_s=1.0)
    await world.start("n2")
    await world.wait_serving()
    await world.wait_in_step()
    await world.crash("n2", power=True)
    await play.publish("Z")


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


@scenario(
    "B2: the watermark waits for this ballot's first entry (Figure 8)", nodes=5, settings=NARROW
)
async def figure_8(play: Play) -> None:
    """n2 has two entries of ballot 1, n5 the first one of ballot 2, each from a leader whose disk
    is lost. The leader of ballot 3 copies n2's entries to a majority, but its own first entry gets
    to n2 alone before its disk is lost too: nothing was committed, and n5's log is chosen."""
    world, network = play.world, play.world.network
    await play.fill(3)
    await world.wait_in_step()
    play.part("n1", "n2")
    old = await play.tail_on("n2", play.value(_BIG), play.value(_BIG))
    await play.lose("n1")
    play.join("n1")
    play.part("n2")
    for slow in ("n3", "n4"):
        network.delay(slow, "n1", 0.5)
    await world.start("n1")
    await play.wait_holds("n5", old - 1)
    await play.lose("n1")
    for slow in ("n3", "n4"):
        network.delay(slow, "n1", 0.001)
        network.delay("n1", slow, 0.3)
    play.join("n2")
    play.part("n5")
    await world.start("n1")
    await play.wait_holds("n3", old)
    await trio.sleep(0.05)
    for slow in ("n3", "n4"):
        network.cut_one_way("n1", slow)
    # With the next connection n2 is told what is committed.
    network.break_connections("n1", "n2")
    await trio.sleep(1.0)
    await play.lose("n1")
    network.heal_all()
    play.part("n2")
    await world.start("n1")
    await world.wait_serving()
    play.join("n2")
    await world.wait_in_step()


@scenario("B2: acknowledge what is verified equal, never one's own last lsn", nodes=5)
async def divergent_tail_counts_for_nothing(play: Play) -> None:
    """n5 comes back with a long tail of an old ballot while n3 and n4 are away: until it has been
    sent the new ballot's entries, which takes its time, they are on n1 and n2 alone, and what these
    two acknowledge must not be lost with their disks."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    play.part("n1", "n5")
    await play.tail_on("n5", *(f"tail {number}" for number in range(25)))
    await play.lose("n1")
    play.join("n1")
    play.part("n5")
    await world.start("n1")
    await world.wait_serving()
    for _ in range(3):
        await play.fill(1, _BIG)
    await world.wait_in_step("n1", "n2", "n3", "n4")
    await world.crash("n3", "n4", power=False)
    world.network.delay("n1", "n5", 0.2)
    play.join("n5")
    await play.wait_promised("n5")
    await play.publish("on n1 and n2", timeout_s=3.0)
    await world.crash("n2", power=False)
    world.wipe("n2")
    await play.lose("n1")
    world.network.heal_all()
    await world.start("n1", "n2", "n3", "n4")
    await world.wait_serving()
    await world.wait_in_step()


@scenario("B1: promises are on disk before the leader sends", nodes=5)
async def long_tail_and_a_restart_of_all(play: Play) -> None:
    """n2 has a long tail that no majority has; n1 loses its disk and all the others are killed:
    whoever forgets what was promised lets the next ballot be the same, and n2's tail be the most
    advanced log of it, when n1's disk is lost again."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    play.part("n1", "n2")
    await play.tail_on("n2", *(f"tail {number}" for number in range(6)))
    await play.lose("n1")
    await world.crash(power=True)
    play.join("n1")
    await world.start()
    await world.wait_serving()
    await play.publish("committed in a higher ballot")
    await world.wait_in_step("n1", "n3", "n4", "n5")
    await play.lose("n1")
    await world.crash("n5", power=False)
    play.join("n2")
    await world.start("n1")
    await world.wait_serving()
    await world.start("n5")


@scenario("B3: a learner counts once it has caught up", nodes=5, settings=NARROW)
async def learner_that_has_not_caught_up(play: Play) -> None:
    """X is on n1, n2 and n3. n2 loses its disk and is still being sent the log, slowly, when n1
    loses its own; n2, n4 and n5 must not make a majority without X."""
    world, network = play.world, play.world.network
    for _ in range(5):
        await play.fill(1, _BIG)
    await world.wait_in_step()
    play.part("n4", "n5")
    await play.publish("X")
    await world.crash("n2", power=False)
    world.wipe("n2")
    network.slow("n1", "n2", 1e6)
    await world.start("n2")
    await play.wait_holds("n2", 4)
    await trio.sleep(0.1)
    play.part("n3")
    await play.lose("n1")
    network.heal("n1", "n2")
    for name in ("n4", "n5"):
        play.join(name)
        network.cut(name, "n3")
    await world.start("n1")
    with trio.move_on_after(10.0):
        await world.wait_serving()
    await play.publish("Y", timeout_s=1.0)
    play.join("n3", "n4", "n5")
    await world.wait_serving()


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


@scenario("B4: a damaged WAL is not a torn one")
async def damaged_wal_meets_the_one_that_lags(play: Play) -> None:
    """X is on n1 and n2, n3 lags; n1 is killed, and one bit flips in the middle of its write-ahead
    log: SQLite would leave out all that comes after, and say nothing. n1 and n3 must not be a
    majority without X."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    play.part("n3")
    await play.publish("X")
    await world.crash("n1", power=False)
    _damage_log(play, "n1")
    await world.crash("n2", power=False)
    play.join("n3")
    await _start_or_wipe(play, "n1")
    with trio.move_on_after(10.0):
        await world.wait_serving()
    await play.publish("Y", timeout_s=1.0)
    await world.start("n2")
    await world.wait_serving()


def _damage_log(play: Play, name: str, at: float = 0.5) -> None:
    """Flip a bit in a stopped node's write-ahead log, in the middle or `at` another share of it."""
    wal = play.world.data(name) / "hadron.db-wal"
    content = bytearray(wal.read_bytes())
    content[int(len(content) * at)] ^= 1
    wal.write_bytes(content)
    play.world.faults["bit flip"] += 1
    play.history.event("damage", name, f"its WAL, at {at}")


@scenario("B4: what a start has set aside can be recovered")
async def damaged_wals_that_are_set_aside_and_recovered(play: Play) -> None:
    """n1 and n2 are killed, their write-ahead logs are damaged, and n3's disk is lost. All are
    started, to see who remembers; that sets the damaged files aside. Nobody does, and an operator
    takes what is left."""
    world = play.world
    for _ in range(5):
        await play.fill(4)
    await world.wait_in_step()
    await world.crash(power=False)
    for name in ("n1", "n2"):
        _damage_log(play, name, 0.9)
    world.wipe("n3")
    await world.start()
    await world.wait_for("n1 waiting", lambda: "that remember" in world.status("n1").trouble)
    await world.crash(power=False)
    for name in ("n1", "n2"):
        world.recover(name)
    play.history.event("reconfigure", detail="loss")
    await world.start()
    await world.wait_serving()
    await world.wait_in_step()
    await play.publish("Y")


@scenario("B4: pages of tables have checksums too")
async def one_bit_in_a_table(play: Play) -> None:
    """While n1 is stopped one bit flips in the row that knows a producer's sequence, which no chain
    covers. The producer sends its batch again: it must not be logged twice."""
    world = play.world
    producer = b"a producer's id."
    first = await play.produce("X", producer=producer, sequence=0)
    await world.wait_in_step()
    await world.stop("n1")
    _flip_in_table(world.data("n1") / "hadron.db", "hadron_producer", producer)
    world.faults["bit flip"] += 1
    play.history.event("damage", "n1", "the table of producers")
    await _start_or_wipe(play, "n1")
    for _ in range(2):
        with trio.move_on_after(10.0):
            await world.wait_serving()
        await play.produce("X", producer=producer, sequence=0, again=first)
        if not world.running("n1"):
            await _start_or_wipe(play, "n1")
    await world.wait_serving()


def _flip_in_table(path: Path, table: str, content: bytes) -> None:
    """Flip a bit of `content` in the only page of a small table."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs="unix")) as db:
        page_bytes = db.pragma("page_size")
        root = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).get
    data = bytearray(path.read_bytes())
    start = (root - 1) * page_bytes
    data[data.index(content, start, start + page_bytes)] ^= 1
    path.write_bytes(data)


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
