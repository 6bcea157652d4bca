"""PROTOCOL A7, B6, B7 and F: what is trimmed, copied, full, and how long files get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import apsw
import trio

from hadron.model.errors import CorruptionError
from hadron.model.schema import Retention, SchemaObject, StreamSpec
from hadron.node.member import Member
from hadron.replication.follower import FollowerLog
from hadron.replication.trimming import LogTrimmer
from hadron.sim.disk import SLOW
from hadron.sim.scenarios.play import Play, scenario
from hadron.sim.world import SETTINGS
from hadron.sim.wrapping import wrapped
from hadron.storage.bodies import damaged_entry
from hadron.storage.checksums import with_checksums
from hadron.storage.generations import current_number

_SHORT_LOG: Final = replace(SETTINGS, log_keep_bytes=64 << 10, log_max_lag_bytes=256 << 10)
"""A member that is away for a few records needs a snapshot."""

_SMALL_CHECKPOINTS: Final = replace(SETTINGS, checkpoint_bytes=64 << 10)
_MAX_WAL_BYTES: Final = 64 * _SMALL_CHECKPOINTS.checkpoint_bytes

_NO_SCRUBS: Final = replace(SETTINGS, scrub_interval_s=86_400.0)
"""Damage is found by whoever reads it."""

_NOTHING_BESIDE: Final = replace(_NO_SCRUBS, state_digest_interval_s=86_400.0)
"""Logs end with what the story has put there."""

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
        path for path in directory.glob("gen-*/hadron.db")
        if path.resolve() != (directory / "hadron.db").resolve()
    )
    return found[-1] if found else None


def _copied_bytes(play: Play, name: str) -> int:
    path = _copy(play, name)
    return path.stat().st_size if path is not None else 0


def _change_a_byte(path: Path | None) -> None:
    """In the body of a record: SQLite's own structure stays whole."""
    assert path is not None
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@scenario("A6: what leaves a disk is compared with its hash", settings=_NO_SCRUBS)
async def body_changed_by_somebody(play: Play) -> None:
    """Somebody changes a record on n1, with valid page checksums, while it is stopped and n3 away:
    whoever reads it, a client or n3, which lacks it, gets what n2 has."""
    world = play.world
    for is_read_first in (True, False):
        await play.fill(3)
        await world.wait_in_step()
        await world.stop("n3")
        await play.publish(f"X, {is_read_first=}")
        await world.wait_in_step("n1", "n2")
        await _damage_last_body(play)
        if is_read_first and (await play.read()).outcome != "ok":
            raise AssertionError("a reader is not given what n2 has")
        await world.start("n3")
        await world.wait_in_step()


@scenario("A8: batches of one entry stand or fall together", settings=_NO_SCRUBS)
async def batches_of_one_entry(play: Play) -> None:
    """Three batches are one entry, again and again: its body is damaged on n1, with valid page
    checksums, where it was logged and nobody has read it; then nodes lose their power while the
    next one is under way."""
    world = play.world
    for number in range(3):
        await play.fill(2)
        values = [f"{number}: {each} of one entry" for each in ("first", "second", "last")]
        published = await play.together(*values)
        if published.outcome != "ok":
            raise AssertionError("one entry cannot have several batches")
        await world.wait_in_step()
        await _damage_last_body(play)
        # Up to the damage first, which is in the last one.
        first, last = published.runs[0][0], published.runs[-1][0]
        seen = [(await play.read(offset=offset)).values for offset in (first, last, first)]
        if seen != [values[:2], values[2:], values]:
            raise AssertionError(f"readers are given {seen} of {values}")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(play.together, *(f"{value}, in the dark" for value in values))
            await trio.sleep(world.random.uniform(0, 0.002))
            await world.crash(power=True)
            nursery.cancel_scope.cancel()
        await world.start()
        await world.wait_serving()
        await world.wait_in_step()
        shown = set((await play.read()).values)
        if 0 < len(shown & {f"{value}, in the dark" for value in values}) < len(values):
            raise AssertionError("a part of an entry is there without the others")


async def _damage_last_body(play: Play) -> None:
    """Of n1, while it is stopped."""
    world, lsn = play.world, play.last_lsn("n1")
    await world.stop("n1")
    _change_a_body(world.data("n1"), lsn)
    play.history.event("damage", "n1", f"the body of entry {lsn}")
    world.faults["row changed"] += 1
    await world.start("n1")
    await world.wait_serving()


def _change_a_body(directory: Path, lsn: int) -> None:
    with closing(apsw.Connection(str(directory / "hadron.db"), vfs=with_checksums("unix"))) as db:
        body = bytearray(db.execute("SELECT bytes FROM hadron_body WHERE lsn = ?", (lsn,)).get)
        body[-1] ^= 1
        db.execute("UPDATE hadron_body SET bytes = ? WHERE lsn = ?", (bytes(body), lsn))


@scenario("B4: what was repaired is on the disk", settings=_NO_SCRUBS)
async def same_record_on_one_running_disk_after_the_other(play: Play) -> None:
    """Bits flip beneath running nodes, first in their write-ahead logs and then in their files: the
    same record on n1, on n2 once n1 has said that it is repaired, then on n3. All lose their power
    after that. Whoever repairs what it has in its caches has repaired nothing."""
    world = play.world
    for where in ("log", "file"):
        needle = f"X in the {where}"
        # On pages of its own, which nobody writes again.
        value = play.value(6_000) + needle
        await play.fill(3)
        await play.publish(value)
        await play.fill(3)
        await world.wait_in_step()
        for name in world.names:
            if where == "file":
                connection = world.node(name).member._store.writer.connection
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        for name in world.names:
            member = world.node(name).member
            before = member._repairer.repaired
            in_log = where == "log"
            assert world.disks[name].flip_live(needle=needle.encode(), in_log=in_log)
            member._scrubber.hurry(CorruptionError("somebody has `hadron verify` look"))
            await world.wait_for(
                f"{name} repaired", partial(_has_repaired, member, before), 60.0
            )
        await world.crash(power=True)
        await world.start()
        await world.wait_serving()
        await world.wait_in_step()
        seen = await play.read()
        if value not in seen.values:
            raise AssertionError(f"{needle!r} is gone, and every node had said it was repaired")


@scenario("A6: a repair never mixes two leaders' entries", settings=_NOTHING_BESIDE)
async def damaged_tail_beside_another_leaders_log(play: Play) -> None:
    """n1 has written what nobody else has, and somebody has changed the first and the last of these
    records. n3 leads; n2, which n1 can reach, has other entries in these places, with a sound
    chain: they are not what n1 has lost, and its log must not become a mixture of both."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    end = play.last_lsn("n1")
    lost = end + 1, end + 3
    play.part("n1")
    for number in range(3):
        await play.produce(f"on n1 alone {number}", timeout_s=0.3)
        await play.wait_holds("n1", end + 1 + number)
    await world.stop("n1")
    for lsn in lost:
        _change_a_body(world.data("n1"), lsn)
        play.history.event("damage", "n1", f"the body of entry {lsn}")
        world.faults["row changed"] += 1
    await play.promote("n3", ("n1", "n2", "n3"), "n3", "n2")
    await play.publish("X")
    await play.publish("Y")
    await world.wait_in_step("n2", "n3")
    play.join("n1")
    world.network.isolate("n1", "n3")
    world.hand_out("n1")
    await world.start("n1")
    repairer = world.node("n1").member._repairer
    for lsn in lost:
        repairer.found(damaged_entry(lsn, f"the body of entry {lsn} does not match its hash"))
    await world.wait_for(
        "n2 asked for its copies",
        lambda: all("n2: " in repairer._hopeless.get(lsn, "") for lsn in lost)
        or bool(repairer.repaired),
    )
    world.network.heal_all()
    await world.wait_in_step()


def _has_repaired(member: Member, before: int) -> bool:
    return member._repairer.repaired > before and not member._repairer.trouble


@scenario("C: a disk that is not there any more acknowledges nothing")
async def directory_deleted_beneath_a_node(play: Play) -> None:
    """The data directory of n3 is deleted while it runs. It could go on reading and writing files
    that its next start would not find; so from a moment later on nothing is on every disk."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    play.history.event("wipe", "n3", "its directory was deleted")
    world.disks["n3"].lose_directory()
    await trio.sleep(1.5)
    late = await play.publish("on every disk", acks="all", timeout_s=2.0)
    if late.outcome == "ok":
        raise AssertionError("acknowledged by a disk that is gone")
    await world.crash("n3", power=False)
    await world.start("n3")
    await world.wait_serving()
    await world.wait_in_step()


@scenario("B3: a database that goes back in time alone")
async def older_database_beside_its_identity(play: Play) -> None:
    """X is on n1 and n2 while n3 lags. n1 is stopped in order, its `hadron.db` is replaced by an
    earlier copy and its `node.db` stays: n1 and n3, without X, must not be a majority."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    await world.stop("n1")
    earlier = (world.data("n1") / "hadron.db").read_bytes()
    await world.start("n1")
    await world.wait_serving()
    await world.wait_in_step()
    play.part("n3")
    await play.publish("X")
    await world.stop("n1")
    play.history.event("restore", "n1", "an earlier hadron.db")
    (world.data("n1") / "hadron.db").write_bytes(earlier)
    # It did not go through this disk: it is read from the file again.
    world.disks["n1"].volume.files.clear()
    await world.crash("n2", power=True)
    play.join("n3")
    await world.start("n1")
    with trio.move_on_after(10.0):
        await world.wait_serving()
    await play.publish("Y", timeout_s=1.0)
    await world.start("n2")
    await world.wait_serving()
    await world.wait_in_step()


@scenario("B3: a write-ahead log that is gone may have had what was acknowledged")
async def log_removed_after_a_kill(play: Play) -> None:
    """X is on n1 and n2 while n3 lags. n2 is killed, and its `hadron.db-wal`, in which X is, does
    not come along to its new disk: n2 must not count before it is taught again."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    play.part("n3")
    await play.publish("X")
    await world.crash("n2", power=False)
    play.history.event("damage", "n2", "its write-ahead log is gone")
    (world.data("n2") / "hadron.db-wal").resolve().unlink()
    world.disks["n2"].volume.files.clear()
    await world.start("n2")
    await world.wait_serving()
    await play.publish("Y")
    play.join("n3")
    await world.wait_in_step()


@scenario("A3: what follows an append that was rolled back does not fit")
async def append_that_is_rolled_back_while_others_come(play: Play) -> None:
    """n2 stores a batch and reads an entry that is to be applied, from a page that for once cannot
    be read: the batch is rolled back. Others are under way already and must find no place; else
    they are stored behind a hole, and acknowledged with all before them."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    play.part("n3")
    world.disks["n2"].speed = SLOW
    follower, failed = world.node("n2").member._follower, 0

    def fails_at_times(original: Callable[..., None]) -> Callable[..., None]:
        def apply_until(log: FollowerLog, connection: apsw.Connection, committed: int) -> None:
            nonlocal failed
            original(log, connection, committed)
            has_more = log._log.head.lsn > committed
            if log is follower and has_more and failed < 5 and world.random.random() < 0.2:
                failed += 1
                raise damaged_entry(committed, f"entry {committed} cannot be read this time")

        return apply_until

    with wrapped(FollowerLog, _apply_until=fails_at_times):
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(_publish_some, play, f"c{number}")
    world.disks["n2"].heal()
    assert failed
    play.join("n3")
    await world.wait_in_step()


async def _publish_some(play: Play, host: str) -> None:
    for _ in range(10):
        await play.publish(play.value(), timeout_s=20.0, host=host)


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


@scenario("D3: what is deleted is dropped")
async def streams_deleted_while_others_are_dropped(play: Play) -> None:
    """Four streams are deleted while n3, which is cut off without a word, still needs their
    records; then, on a slow disk, four more at once, so that the last is deleted while others are
    being dropped."""
    world = play.world
    first, second = ([f"passing-{kind}-{number}" for number in range(4)] for kind in (1, 2))
    spec = StreamSpec(partitions=(world.config.name,))
    await play.declare_objects([
        SchemaObject(kind="Stream", name=name, spec=spec) for name in (*first, *second)
    ])
    await _send_to(play, second)
    await world.wait_in_step()
    play.part("n3")
    await _send_to(play, first)
    for name in first:
        await _delete_stream(play, name)
    play.join("n3")
    await world.wait_in_step()
    world.disks["n1"].speed = SLOW
    async with trio.open_nursery() as nursery:
        for name in second:
            nursery.start_soon(_delete_stream, play, name)


async def _send_to(play: Play, names: Sequence[str]) -> None:
    async with play.world.client("c1") as client:
        for name in names:
            async with client.producer(name) as producer:
                for _ in range(5):
                    await producer.send(play.value())


async def _delete_stream(play: Play, name: str) -> None:
    noted = play.history.apply(name, [("Stream", name)], deletes=True)
    async with play.world.client(name) as client:
        gone = await client.delete([("Stream", "default", name)], allow_destructive=True)
    noted.ids = [item.id for item in gone]
    play.history.ok(noted)


@scenario("D2: retention's clock starts with the first batch")
async def burst_after_silence(play: Play) -> None:
    """A stream keeps two seconds, and is empty when a burst comes; so twice, under two ballots."""
    world = play.world
    play.retention = Retention(max_age_ms=2_000)
    await play.declare()
    for _ in range(2):
        await world.restart("n1")
        await world.wait_serving()
        await play.fill(3)
        await trio.sleep(8.0)
        await play.fill(3)


@scenario("D3: a replica shows the schema that it has")
async def objects_declared_one_after_the_other(play: Play) -> None:
    """n2's disk takes long for a COMMIT, and streams are declared one right after the other: it
    looks at its tables while the next one is being stored, which may be the last for a while."""
    world = play.world
    world.disks["n2"].speed = SLOW
    spec = StreamSpec(partitions=(world.config.name,))

    def all_show_the_same() -> bool:
        copies = [world.node(name).member._schema_copy for name in world.names]
        return len({copy.index for copy in copies if copy.is_known}) == 1

    for number in range(36):
        await play.declare_objects([
            SchemaObject(kind="Stream", name=f"added-{number}", spec=spec)
        ])
        if number % 3 == 2:
            await world.wait_for("the same schema on all", all_show_the_same, 20.0)
    await play.publish("X")


@scenario("B7: a full disk loses nothing")
async def disk_without_room(play: Play) -> None:
    """The disk of one node after the other has no room left, the leader's last; with room again all
    go on."""
    world = play.world
    for name in ("n2", "n3", "n1"):
        disk = world.disks[name]
        disk.broken.capacity_bytes = disk.volume.used_bytes() + (20 << 10)
        for number in range(6):
            await play.publish(play.value(9_000), timeout_s=1.0, host=f"c{number}")
        disk.heal()
        if not world.running(name):
            await world.start(name)
        await world.wait_serving()
        await play.fill(3)
        await world.wait_in_step()


@scenario("B4: a power loss is not taken for damage", settings=_SHORT_LOG)
async def power_loss_of_all_while_they_trim(play: Play) -> None:
    """Both replicas have trimmed their logs, and lose their power while they write the next commit;
    of what was not flushed each disk lacks one write. The leader's power goes as well. All must
    count when they are back: two who are taught first would have nobody to teach them."""
    world = play.world
    replicas = play.others(world.config.leader.name)

    def trims(original: Callable[..., None]) -> Callable[..., None]:
        def trim(trimmer: LogTrimmer, connection: apsw.Connection) -> None:
            original(trimmer, connection)
            for name in replicas:
                if world.data(name) == trimmer._store.directory:
                    # The first page of the next commit is written then, and no more than that.
                    world.disks[name].broken.crash_at_write_in = 4

        return trim

    for _ in range(3):
        for name in replicas:
            world.disks[name].on_crash = partial(world.crash_now, name, power=True, style="gap")
        with wrapped(LogTrimmer, _trim=trims):
            while any(map(world.running, replicas)):
                await play.publish(play.value(6_000), timeout_s=3.0)
        await world.crash(power=True)
        await world.start()
        for name in world.names:
            if forgotten := world.node(name).member._forgotten:
                raise AssertionError(f"{name} has forgotten: {forgotten}")
        await world.wait_serving()
        await world.wait_in_step()
        await play.read()


@scenario("F: the write-ahead log stays short", settings=_SMALL_CHECKPOINTS)
async def constant_writing_while_somebody_reads(play: Play) -> None:
    """Writers without a pause, and readers who always ask for everything."""
    world = play.world
    async with trio.open_nursery() as nursery:

        async def read_on(host: str) -> None:
            while True:
                await play.read(host=host)
                await trio.sleep(0.05)

        for number in range(3):
            nursery.start_soon(read_on, f"r{number}")
        for _ in range(20):
            await play.fill(30, 4_000)
            for name in world.names:
                wal = world.data(name) / "hadron.db-wal"
                if wal.exists() and wal.stat().st_size > _MAX_WAL_BYTES:
                    raise AssertionError(f"{name}'s WAL has {wal.stat().st_size} bytes")
        nursery.cancel_scope.cancel()
