"""PROTOCOL A7, B6: who lacks what was trimmed, and what copies bring."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import apsw
import trio

from hadron.fakes.disk import FAST, SLOW, Speed
from hadron.sim.scenarios.play import Play, scenario
from hadron.sim.world.replica_set import SETTINGS
from hadron.storage.generations import DATABASE, MANIFEST, current_number

_SHORT_LOG: Final = replace(SETTINGS, log_keep_bytes=64 << 10, log_max_lag_bytes=256 << 10)
"""A member that is away for a few records needs a snapshot."""


_BIG: Final = 700_000


@scenario("A7: what is trimmed comes by snapshot", settings=_SHORT_LOG)
async def trimmed_while_one_lags(play: Play) -> None:
    """n3 is away while more is written than the log keeps for it; it comes back, and later leads
    nobody astray: the disks of the other two are lost, one after the other."""
    world = play.world
    for name in ("n3", "n2"):
        await world.crash(name, power=True)
        for _ in range(8):
            await play.fill(10, 6_000)
        await world.start(name)
        await world.wait_in_step()
    for name in ("n1", "n2"):
        await play.lose(name)
        await world.start(name)
        await world.wait_serving()
        await world.wait_in_step()


@scenario("B6: a member without whom there is no majority", settings=_SHORT_LOG)
async def no_majority_without_the_one_that_lags(play: Play) -> None:
    """n3 is beyond what n1 keeps of the log, and n2's disk is lost while n1 has written what nobody
    else has. n1 and n3 are the only majority, and n3 can store nothing before it has a copy."""
    world = play.world
    await world.wait_in_step()
    await world.crash("n3", power=True)
    for _ in range(8):
        await play.fill(10, 6_000)
    await play.lose("n2")
    await play.produce("on n1 alone", timeout_s=1.0)
    await world.start("n2", "n3")
    await world.wait_in_step()
    await play.publish("Y")


@scenario("B6: a leader takes the tables of the one that has them", settings=_SHORT_LOG)
async def tables_above_the_watermark_are_the_only_ones(play: Play) -> None:
    """The same, but n2 is only cut off, and n1's disk is lost at the moment at which n3 has its
    tables. n3's log is the most advanced one, n1 needs a copy of it to lead, and nothing can be
    committed before it leads."""
    world = play.world
    await world.wait_in_step()
    await world.crash("n3", power=True)
    for _ in range(8):
        await play.fill(10, 6_000)
    play.part("n2")
    await play.produce("on n1 alone", timeout_s=1.0)
    await world.start("n3")
    await world.wait_for("n3 taking n1's tables", lambda: bool(play.history.events("ahead")))
    await play.lose("n1")
    await world.crash("n3", power=False)
    world.network.heal_all()
    await world.start("n1", "n3")
    await world.wait_serving()
    await world.wait_in_step()
    await play.read()


@scenario("B6: a copy is verified before it is installed", settings=_SHORT_LOG)
async def copy_damaged_half_way(play: Play) -> None:
    """n3 needs a snapshot, and is killed when it has half of it; a byte of that half changes; it
    goes on fetching where it was, and must notice."""
    world = play.world
    await world.wait_in_step()
    await world.crash("n3", power=False)
    for _ in range(6):
        await play.fill(1, _BIG)
    world.network.slow("n1", "n3", 1e6, 1 << 20)
    world.network.slow("n2", "n3", 1e6, 1 << 20)
    await world.start("n3")
    await world.wait_for("half a copy", lambda: _copied_bytes(play, "n3") >= 2 << 20)
    await world.crash("n3", power=False)
    _change_a_byte(_copy(play, "n3"))
    world.network.heal_all()
    await world.start("n3")
    await world.wait_in_step()
    await play.read()


@scenario("B6: what others may count on comes along with a copy")
async def copy_without_the_latest_entry(play: Play) -> None:
    """n1, which led, has applied what nobody else has, and fetches a copy from n3, which leads now.
    While it comes X is acknowledged by n1 and n3; n2 is away. n1 has just installed the copy, which
    ends before X, when n3's disk is lost: n1 and n2 must have X."""
    world, network = play.world, play.world.network
    for _ in range(4):
        await play.fill(1, _BIG)
    await world.wait_in_step()
    play.part("n1")
    await play.produce("on n1 alone", timeout_s=0.5)
    await play.promote("n3", ("n1", "n2", "n3"), "n3", "n2")
    await world.crash("n1", power=False)
    play.join("n1")
    network.slow("n3", "n1", 1e6, 1 << 20)
    await play.hand_out("n1")
    await world.wait_for("a part of a copy", lambda: _copied_bytes(play, "n1") >= 1 << 20)
    play.part("n2")
    await play.publish("X")
    network.delay("n3", "n1", 0.3)
    await world.wait_for("the copy", lambda: current_number(world.data("n1")) == 1)
    await play.lose("n3")
    play.join("n2")
    await world.start("n3")
    await world.wait_serving()
    await world.wait_in_step()


@scenario("B6: what is stored up to the last moment comes along with a copy")
async def records_stored_while_a_copy_is_installed(play: Play) -> None:
    """n1, which led, takes a copy from n3, which leads now, onto a slow disk; n2 is away, and
    record after record is acknowledged by n1 and n3, also while n1 puts the end of its own log
    behind the copy. n3's disk is lost as soon as the copy is installed."""
    world, network = play.world, play.world.network
    await play.fill(3)
    await world.wait_in_step()
    play.part("n1")
    await play.produce("on n1 alone", timeout_s=0.5)
    await play.promote("n3", ("n1", "n2", "n3"), "n3", "n2")
    await world.crash("n1", power=False)
    play.join("n1")
    network.slow("n3", "n1", 1e5, 1 << 16)
    world.disks["n1"].speed = SLOW
    await play.hand_out("n1")
    play.part("n2")
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(_publish_for_ever, play, f"c{number}")
        await world.wait_for("the copy", lambda: current_number(world.data("n1")) == 1)
        await play.lose("n3")
        nursery.cancel_scope.cancel()
    world.disks["n1"].heal()
    play.join("n2")
    await world.start("n3")
    await world.wait_serving()
    await world.wait_in_step()


@scenario("B6: who reads a node's file meanwhile costs it neither its copy nor its vote")
async def file_that_is_read_while_a_copy_is_installed(play: Play) -> None:
    """n1, which led, takes a copy from n3, which leads now; n2 is away, and record after record is
    acknowledged by n1 and n3. Somebody has a transaction open on n1's file, so that its log cannot
    be moved into it when it is closed. n3's disk is lost as soon as the copy is installed: n1 and
    n2 have to remember."""
    world, network = play.world, play.world.network
    await play.fill(3)
    await world.wait_in_step()
    play.part("n1")
    await play.produce("on n1 alone", timeout_s=0.5)
    await play.promote("n3", ("n1", "n2", "n3"), "n3", "n2")
    await world.crash("n1", power=False)
    play.join("n1")
    network.slow("n3", "n1", 1e5, 1 << 16)
    await play.hand_out("n1")
    play.part("n2")
    with _reading(world.data("n1") / DATABASE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_publish_for_ever, play, "c0")
            await world.wait_for("the copy", lambda: current_number(world.data("n1")) == 1)
            await play.lose("n3")
            nursery.cancel_scope.cancel()
    play.join("n2")
    await world.start("n3")
    await world.wait_serving()
    await world.wait_in_step()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Another program has a transaction open on a node's database."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs="unix")) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        yield


@scenario("B6: the end of its own log that a node keeps is what it has acknowledged last", nodes=5)
async def tail_replaced_beside_a_copy(play: Play) -> None:
    """n1, which led, takes a copy from n5, which leads now; both have entries that no majority has,
    and n1, whose disk is slow, puts them behind the copy. Meanwhile n5 is gone, and n2 leads: its
    entries take the place of those, n1 acknowledges them, and they are committed. Whatever becomes
    of the copy, n1 has them."""
    world, members = play.world, ("n1", "n2", "n3", "n4", "n5")
    await play.fill(3)
    await world.wait_in_step()
    play.part("n1")
    await play.produce("on n1 alone", timeout_s=0.5)
    await play.promote("n5", members, "n2", "n3", "n4", "n5")
    await world.crash("n1", power=False)
    play.join("n1")
    disk = world.disks["n1"]
    disk.speed = Speed(hop_s=(1.0, 1.0), stall_share=0.0)
    await play.hand_out("n1")
    copy = world.data("n1") / "gen-1" / DATABASE
    await world.wait_for("a part of the copy", copy.exists)
    for name in ("n1", "n5"):
        for other in ("n2", "n3", "n4"):
            world.network.isolate(name, other)
    last = play.last_lsn("n5")
    for number in range(2):
        await play.produce(f"on n1 and n5 {number}", node="n5", timeout_s=0.5)
    await play.wait_holds("n1", last + 2)
    await world.wait_for("all of the copy", lambda: not (copy.parent / MANIFEST).exists())
    # Until the tail that is copied now is flushed, n1 goes on for a while.
    disk.speed = Speed(sync_s=(5.0, 5.0), stall_share=0.0)
    await world.wait_for("a tail behind the copy", lambda: _end_of(copy) == last + 2)
    disk.speed = FAST
    await world.crash("n5", power=False)
    await play.promote("n2", members, "n2", "n3", "n4")
    await play.publish("X")
    play.join("n1", "n5")
    await world.wait_for("the copy", lambda: current_number(world.data("n1")) == 1)
    world.hand_out("n5")
    await world.start("n5")
    await play.hand_out("n1")
    await world.wait_serving()
    await world.wait_in_step()


def _end_of(path: Path) -> int:
    """Where the log of a database ends that somebody works on; 0 when that cannot be seen."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs="unix")) as copy:
        try:
            return int(copy.execute("SELECT max(lsn) FROM hadron_log").get or 0)
        except apsw.Error:
            return 0


async def _publish_for_ever(play: Play, host: str) -> None:
    while True:
        await play.publish(play.value(), timeout_s=5.0, host=host)


@scenario("B6: a copy ends at its position, with its bodies", nodes=5)
async def backup_of_a_node_with_a_tail(play: Play) -> None:
    """n2 has records that no majority has when a backup of it is taken. n1, who had them as well,
    loses its disk, and others get their numbers; n4, restored from the backup, must take those, and
    so must n2."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    play.part("n1", "n2")
    await play.tail_on("n2", play.value(), play.value(6_000), play.value())
    backup = await play.back_up("n2")
    await play.lose("n1")
    play.join("n1")
    play.part("n2")
    await world.start("n1")
    await world.wait_serving()
    await play.publish("X")
    await play.restore("n4", backup)
    await play.publish("Y")
    await world.wait_in_step("n1", "n3", "n4", "n5")
    play.join("n2")
    await world.wait_in_step()


def _copy(play: Play, name: str) -> Path | None:
    """The database that a node is fetching."""
    directory = play.world.data(name)
    found = sorted(
        path
        for path in directory.glob("gen-*/hadron.db")
        if path.resolve() != (directory / "hadron.db").resolve()
    )
    return found[-1] if found else None


def _copied_bytes(play: Play, name: str) -> int:
    path = _copy(play, name)
    return path.stat().st_size if path is not None else 0


def _change_a_byte(path: Path | None) -> None:
    """In the body of a record, in the midst of a page: SQLite's own structure stays whole."""
    assert path is not None
    content = bytearray(path.read_bytes())
    content[len(content) // 2 + 2_000] ^= 1
    path.write_bytes(content)


@scenario("A7: who has given out a copy lets go of its log again", settings=_SHORT_LOG)
async def log_goes_on_after_a_backup(play: Play) -> None:
    """n3 is backed up, and nobody reads that copy any more; what is written after that goes up."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    await play.back_up("n3")
    member = world.node("n3").member
    await world.wait_for(
        "the copy removed", lambda: member._snapshots._current is None, 60.0, poll_s=1.0
    )
    await play.fill(3)
