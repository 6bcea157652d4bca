"""PROTOCOL A3, A7, B7, D2, D3 and F: what is dropped, rolled back, full, and how long files get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import apsw
import trio

from hadron.fakes.disk import SLOW
from hadron.model.schema import Retention, SchemaObject, StreamSpec
from hadron.replication.feed import Feed, Packed
from hadron.replication.follower import FollowerLog
from hadron.replication.trimming import LogTrimmer
from hadron.sim.notes.wrapping import wrapped
from hadron.sim.scenarios.play import Play, scenario
from hadron.sim.world.replica_set import SETTINGS
from hadron.storage.bodies import damaged_entry

_SHORT_LOG: Final = replace(SETTINGS, log_keep_bytes=64 << 10, log_max_lag_bytes=256 << 10)
"""A member that is away for a few records needs a snapshot."""

_SMALL_CHECKPOINTS: Final = replace(SETTINGS, checkpoint_bytes=64 << 10)
_MAX_WAL_BYTES: Final = 64 * _SMALL_CHECKPOINTS.checkpoint_bytes


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
        def apply_some(
            log: FollowerLog, connection: apsw.Connection, committed: int, *, at_least: int
        ) -> None:
            nonlocal failed
            original(log, connection, committed, at_least=at_least)
            has_more = log._log.head.lsn > committed
            if log is follower and has_more and failed < 5 and world.random.random() < 0.2:
                failed += 1
                raise damaged_entry(committed, f"entry {committed} cannot be read this time")

        return apply_some

    with wrapped(FollowerLog, _apply_some=fails_at_times):
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


@scenario("D3: what is deleted is dropped")
async def streams_deleted_while_others_are_dropped(play: Play) -> None:
    """Four streams are deleted while n3, which is cut off without a word, still needs their
    records; then, on a slow disk, four more at once, so that the last is deleted while others are
    being dropped."""
    world = play.world
    first, second = ([f"passing-{kind}-{number}" for number in range(4)] for kind in (1, 2))
    spec = StreamSpec(partitions=(world.config.name,))
    await play.declare_objects(
        [SchemaObject(kind="Stream", name=name, spec=spec) for name in (*first, *second)]
    )
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
        await play.declare_objects([SchemaObject(kind="Stream", name=f"added-{number}", spec=spec)])
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


@scenario("B7: who stores nothing for want of room is sent nothing, and stays known as such")
async def replicas_that_store_nothing(play: Play) -> None:
    """n2 has no room for anything, then n3 neither. Their feeds end and begin anew while the
    connections stay: what they lack is not sent again and again, and the leader, which has heard
    that a majority is full, takes nothing more that it could not have stored."""
    world, sent = play.world, list[str]()
    reserve = world.config.settings.disk_reserve_bytes
    leadership = world.node("n1").member._leadership
    assert leadership is not None
    room = leadership.controller._room

    def noted(original: Callable[..., None]) -> Callable[..., None]:
        def send(feed: Feed, packed: Packed) -> None:
            sent.append(feed.name)
            original(feed, packed)

        return send

    async def fill_up(name: str) -> None:
        disk, space = world.disks[name], world.node(name).member._store.space
        disk.broken.capacity_bytes = disk.volume.used_bytes() + reserve // 32
        await world.wait_for("a full disk", lambda: space.is_exhausted)

    with wrapped(Feed, _send_packed=noted):
        await fill_up("n2")
        for number in range(4):
            await play.publish(play.value(), host=f"c{number}")
        await world.wait_for("word of n2", lambda: "n2" in room._low)
        await trio.sleep(1.0)
        sent.clear()
        await trio.sleep(10.0)
        assert "n2" not in sent, f"n2 stores nothing, and was sent entries {sent.count('n2')} times"
    await fill_up("n3")
    await play.publish(play.value(), timeout_s=2.0)
    await world.wait_for("word of n3", lambda: room.is_low)
    end = play.last_lsn("n1")
    for _ in range(3):
        await play.publish(play.value(), timeout_s=1.0)
    assert play.last_lsn("n1") == end, "records were appended that nobody has room for"
    for name in ("n2", "n3"):
        world.disks[name].heal()
    await world.wait_for("room", lambda: not room.is_low)
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
