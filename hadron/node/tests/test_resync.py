"""Nodes that the log cannot bring back into step: they take a snapshot, and nobody else notices."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from hadron.model.batch_building import encode_values
from hadron.model.errors import HadronError
from hadron.model.ids import Ballot
from hadron.node.tests.support import (
    assert_no_traceback,
    chains,
    fetch,
    is_member,
    make_stream,
    produce,
)
from hadron.node.world import SystemDisk
from hadron.replication import fetching, follower, resync, snapshots
from hadron.replication.follower import FollowerLog
from hadron.state import machine
from hadron.state.features import MACHINE
from hadron.state.streams.partitions import AppendBatch
from hadron.storage import generations, snapshot
from hadron.storage.database import open_reader, open_writer, transaction
from hadron.storage.log import Log, drop_bodies, get_meta, last_lsn, set_meta
from hadron.testing.nodes import Nodes, running_nodes
from hadron.testing.nodes import replica_set as default_set
from hadron.wire.messages import method, snapshots_pb2

SETTINGS = replace(
    default_set(Path(), 1).settings, log_keep_bytes=64 << 10, log_max_lag_bytes=64 << 10
)
VALUE = b"x" * 2_000


async def load(nodes: Nodes, count: int, value: bytes = VALUE) -> None:
    async with nodes.connection(nodes.config.leader.name) as connection:
        for number in range(count):
            await produce(connection, b"%d " % number + value, timeout_s=60)


def tables(nodes: Nodes, name: str) -> dict[str, list[Any]]:
    """Everything that the log has made on a node's disk."""
    with closing(open_reader(nodes.data(name) / "hadron.db")) as database:
        names = [
            table
            for (table,) in database.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
            )
            if table not in ("hadron_log", "hadron_anchor", "hadron_meta", "hadron_body")
        ]
        assert "hadron_stream_batch" in names
        return {
            table: sorted(database.execute(f"SELECT * FROM {table}").fetchall(), key=repr)
            for table in names
        }


async def assert_equal(nodes: Nodes) -> None:
    """Chains as far as each still has them, and all tables, once nothing is on its way."""
    while True:
        await nodes.wait_in_step()
        ends = {applied_and_last(nodes, name) for name in nodes.names}
        if len(ends) == 1 and len(set(ends.pop())) == 1:
            break
        await trio.sleep(0.05)  # A leader logs a digest of its state every now and then.
    everyone = [dict(chains(nodes, name)) for name in nodes.names]
    shared = set.intersection(*(set(chain) for chain in everyone))
    assert shared
    assert all(chain[lsn] == everyone[0][lsn] for chain in everyone for lsn in shared)
    first = tables(nodes, nodes.names[0])
    assert first["hadron_stream_batch"]
    for name in nodes.names[1:]:
        assert tables(nodes, name) == first


def applied_and_last(nodes: Nodes, name: str) -> tuple[int, int]:
    """As they stand in a node's file."""
    with closing(open_reader(nodes.data(name) / "hadron.db")) as database:
        return get_meta(database, "applied_lsn"), last_lsn(database)


def generation(nodes: Nodes, name: str) -> int:
    return generations.current_number(nodes.data(name))


@asynccontextmanager
async def without_n3(tmp_path: Path) -> AsyncIterator[Nodes]:
    """Three nodes, of which n3 was away for so long that the log has no place for it."""
    async with running_nodes(tmp_path, 3, settings=SETTINGS) as nodes:
        await make_stream(nodes)
        await load(nodes, 10)
        await nodes.wait_in_step()
        await nodes.crash("n3")
        await load(nodes, 100)
        last = chains(nodes, "n3")[-1][0]
        await nodes.wait_for("trimmed", lambda: nodes.status("n1").first_lsn > last + 1)
        yield nodes


async def test_a_replica_whose_generation_is_gone_is_taught_again(
    tmp_path: Path, clock: MockClock
) -> None:
    """The link leads to nothing, not even a directory."""
    async with without_n3(tmp_path) as nodes:
        await nodes.start("n3")
        await nodes.wait_in_step()
        await nodes.crash("n3")
        shutil.rmtree(nodes.data("n3") / f"gen-{generation(nodes, 'n3')}")
        await nodes.start("n3")
        await nodes.wait_for("a member", lambda: is_member(nodes, "n3"))
        await assert_equal(nodes)


async def test_a_replica_for_which_the_log_was_trimmed(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with without_n3(tmp_path) as nodes:
        await nodes.start("n3")
        await nodes.wait_in_step()
        assert generation(nodes, "n3") == 1
        assert (nodes.data("n3") / "hadron.db").is_symlink()
        await assert_equal(nodes)
        # It counts: with n2 away, n3 is the majority.
        await nodes.crash("n2")
        await load(nodes, 5)
        await nodes.wait_in_step("n3")
        # And starts again on what it has.
        await nodes.crash("n3")
        await nodes.start("n2", "n3")
        await load(nodes, 5)
        await nodes.wait_in_step()
        assert generation(nodes, "n3") == 1
        await assert_equal(nodes)
        assert sorted(path.name for path in nodes.data("n3").iterdir()) == [
            "gen-1",
            "hadron.db",
            "node.db",
            "node.lock",
        ]
    assert_no_traceback(caplog)


@pytest.mark.long
async def test_a_second_absence_makes_a_second_generation(tmp_path: Path, clock: MockClock) -> None:
    async with without_n3(tmp_path) as nodes:
        await nodes.start("n3")
        await nodes.wait_in_step()
        await nodes.crash("n3")
        last = chains(nodes, "n3")[-1][0]
        await load(nodes, 100)
        await nodes.wait_for("trimmed", lambda: nodes.status("n1").first_lsn > last + 1)
        await nodes.start("n3")
        await nodes.wait_in_step()
        assert generation(nodes, "n3") == 2
        assert not (nodes.data("n3") / "gen-1").exists()
        await assert_equal(nodes)


async def wipe_n3(nodes: Nodes) -> None:
    """With a leader that has nothing in memory either of what was trimmed."""
    nodes.wipe("n3")
    await nodes.restart("n1")
    await nodes.wait_serving()


async def test_a_wiped_replica_gets_a_snapshot_and_counts_once_it_is_taught(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with without_n3(tmp_path) as nodes:
        await wipe_n3(nodes)
        await nodes.start("n3")
        await nodes.wait_in_step()
        await nodes.wait_for("a member", lambda: is_member(nodes, "n3"))
        assert generation(nodes, "n3") == 1
        await assert_equal(nodes)
    assert_no_traceback(caplog)


@pytest.mark.long
async def test_a_wiped_replica_makes_no_majority_by_its_snapshot_alone(
    tmp_path: Path, clock: MockClock
) -> None:
    """n1 and n3 hold everything then; but n2 may have promised somebody else what n3 forgot."""
    async with without_n3(tmp_path) as nodes:
        await wipe_n3(nodes)
        # A copy needs the watermark, so it is made while n2 is there, and fetched while it is not.
        resume = hold_at(nodes, "n3", half=True)
        await nodes.start("n3")
        await nodes.wait_for("fetching", lambda: "fetching" in nodes.status("n3").trouble)
        await nodes.crash("n2")
        resume()
        await nodes.wait_for("installed", lambda: generation(nodes, "n3") == 1)
        end = nodes.status("n1").last_lsn
        await nodes.wait_for("fed", lambda: nodes.status("n3").last_lsn == end)
        async with nodes.connection("n1") as connection:
            with pytest.raises(HadronError):
                await produce(connection, b"alone", timeout_s=3)
        assert not is_member(nodes, "n3")
        await nodes.start("n2")
        await nodes.wait_in_step()
        await nodes.wait_for("a member", lambda: is_member(nodes, "n3"))


class _Held:
    """`fetching._read_chunk`, held at a chunk for one node until told."""

    def __init__(self, original: Callable[..., Any], at: float) -> None:
        self._original = original
        self._at = at
        self.go = trio.Event()
        self.reads: list[int] = []

    async def __call__(self, connection: Any, manifest: Any, offset: int) -> Any:
        if offset >= self._at * manifest.size:
            await self.go.wait()
        self.reads.append(offset)
        return await self._original(connection, manifest, offset)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that small files are made of many; and copies that do not stay for long."""
    monkeypatch.setattr(fetching, "CHUNK_BYTES", 16 << 10)
    monkeypatch.setattr(snapshots, "_IDLE_S", 2.0)
    original = fetching._read_chunk
    yield
    fetching._read_chunk = original


def hold_at(nodes: Nodes, name: str, *, half: bool = True) -> Callable[[], None]:
    """Stop fetching at half of the file, until the returned function is called."""
    held = _Held(fetching._read_chunk, 0.5 if half else 0.0)
    fetching._read_chunk = held
    return held.go.set


async def half_way(nodes: Nodes) -> _Held:
    """Start n3, which has half of a copy on return, and waits."""
    held = _Held(fetching._read_chunk, 0.5)
    fetching._read_chunk = held
    await nodes.start("n3")
    await nodes.wait_for("half way", lambda: len(held.reads) > 2)
    return held


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_member_without_whom_there_is_no_majority_gets_what_is_not_committed(
    tmp_path: Path, clock: MockClock, restarted: bool
) -> None:
    """n3 is behind the log's beginning and n2's disk is lost: n1 and n3 are the only majority, and
    n3 can store nothing before it has a copy. Waiting for the watermark would be for ever."""
    async with without_n3(tmp_path) as nodes:
        await nodes.crash("n2")
        nodes.wipe("n2")
        if restarted:
            await nodes.crash("n1")
            await nodes.start("n1", "n2", "n3")
            await nodes.wait_serving()
        else:
            async with nodes.connection("n1") as connection:
                with pytest.raises(HadronError):
                    await produce(connection, b"on n1 alone", timeout_s=1)
            await nodes.start("n2", "n3")
        await load(nodes, 5)
        await nodes.wait_in_step()
        assert generation(nodes, "n3") == 1
        await assert_equal(nodes)


async def test_a_transfer_goes_on_where_the_connection_broke(
    tmp_path: Path, clock: MockClock
) -> None:
    async with without_n3(tmp_path) as nodes:
        held = await half_way(nodes)
        nodes.network.break_connections("n3")
        held.go.set()
        await nodes.wait_in_step()
        assert generation(nodes, "n3") == 1
        assert held.reads.count(0) == 1
        await assert_equal(nodes)


async def test_who_reads_the_file_meanwhile_costs_nobody_his_vote(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its log cannot be moved into it then, and the stop is not in order."""
    async with without_n3(tmp_path) as nodes:
        with closing(open_reader(nodes.data("n3") / "hadron.db")) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM hadron_log").fetchone()
            await nodes.start("n3")
            await nodes.wait_in_step()
            assert generation(nodes, "n3") == 1
            assert is_member(nodes, "n3")
            await assert_equal(nodes)
        assert "counts in no majority" not in caplog.text
    assert_no_traceback(caplog)


@pytest.mark.long
async def test_who_opens_copies_all_the_time_takes_none_from_a_member(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = fetching._read_chunk

    async def slow(*given: Any) -> Any:
        await trio.sleep(0.3)
        return await original(*given)

    monkeypatch.setattr(fetching, "CHUNK_BYTES", 16 << 10)
    monkeypatch.setattr(fetching, "_read_chunk", slow)
    async with without_n3(tmp_path) as nodes, trio.open_nursery() as nursery:

        async def open_copies(name: str) -> None:
            request = snapshots_pb2.OpenSnapshotRequest(hash="x")
            async with nodes.connection(name) as connection:
                while True:
                    with suppress(HadronError):
                        await connection.request(method("OpenSnapshot"), request)
                    await trio.sleep(0.1)

        nursery.start_soon(open_copies, "n1")
        nursery.start_soon(open_copies, "n2")
        await nodes.start("n3")
        await nodes.wait_in_step()
        assert generation(nodes, "n3") == 1
        nursery.cancel_scope.cancel()


@pytest.mark.long
async def test_a_transfer_goes_on_after_a_crash(tmp_path: Path, clock: MockClock) -> None:
    async with without_n3(tmp_path) as nodes:
        held = await half_way(nodes)
        await nodes.crash("n3")
        manifest = generations.read_manifest(nodes.data("n3") / "gen-1")
        assert manifest is not None
        held.go.set()
        await nodes.start("n3")
        await nodes.wait_in_step()
        assert generation(nodes, "n3") == 1
        assert held.reads.count(0) == 1
        await assert_equal(nodes)


@pytest.mark.long
async def test_a_part_that_was_torn_by_a_crash_is_fetched_again(
    tmp_path: Path, clock: MockClock
) -> None:
    async with without_n3(tmp_path) as nodes:
        held = await half_way(nodes)
        await nodes.crash("n3")
        part = nodes.data("n3") / "gen-1" / "hadron.db"
        data = bytearray(part.read_bytes())
        data[20_000] ^= 1
        part.write_bytes(data)
        held.go.set()
        await nodes.start("n3")
        await nodes.wait_in_step()
        assert held.reads.count(0) == 2
        await assert_equal(nodes)


async def test_a_copy_that_is_damaged_where_it_was_made_is_made_again(
    tmp_path: Path, clock: MockClock
) -> None:
    async with without_n3(tmp_path) as nodes:
        held = await half_way(nodes)
        (copy,) = (nodes.data("n1") / "outgoing").iterdir()
        data = bytearray(copy.read_bytes())
        data[-1] ^= 1
        copy.write_bytes(data)
        held.go.set()
        await nodes.wait_in_step()
        assert not copy.exists()
        assert len(held.reads) > len(set(held.reads))
        await assert_equal(nodes)


@pytest.mark.parametrize("at", [0.0, 0.5, 0.95])
async def test_a_chunk_that_is_damaged_on_its_way_is_asked_for_again(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch, at: float
) -> None:
    original, damaged = fetching._ask, list[int]()

    async def ask(connection: Any, what: Any, message: Any, timeout_s: float) -> Any:
        answer, data = await original(connection, what, message, timeout_s)
        if what is fetching._READ and not damaged and message.offset >= at * (150 << 10):
            damaged.append(message.offset)
            data = memoryview(bytes([data[0] ^ 1]) + bytes(data[1:]))
        return answer, data

    monkeypatch.setattr(fetching, "_ask", ask)
    async with without_n3(tmp_path) as nodes:
        await nodes.start("n3")
        await nodes.wait_in_step()
        assert damaged
        assert generation(nodes, "n3") == 1
        await assert_equal(nodes)


class CrashError(Exception):
    pass


class InstallCrashes(SystemDisk):
    """A disk whose node dies at the `n`-th sync or switch once an installation has begun."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.armed = False

    def _step(self) -> None:
        if self.armed:
            self.left -= 1
            if self.left < 0:
                raise CrashError

    def sync(self, path: Path) -> None:
        self._step()
        super().sync(path)

    def switch(self, link: Path, target: str) -> None:
        self._step()
        super().switch(link, target)
        self._step()


@pytest.mark.long
@pytest.mark.parametrize("steps", range(6))
async def test_a_crash_during_the_installation_is_made_up_for(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    disk = InstallCrashes(steps)
    original = resync.Installation.finish

    def finish(
        self: resync.Installation, directory: Path, old: Path, _disk: Any, promised: Ballot
    ) -> None:
        disk.armed = True
        original(self, directory, old, disk, promised)

    monkeypatch.setattr(resync.Installation, "finish", finish)
    async with without_n3(tmp_path) as nodes:
        await nodes.start("n3")
        if steps < 6:
            with trio.move_on_after(60):
                error = await nodes.wait_stopped("n3")
                assert isinstance(error, CrashError)
        monkeypatch.setattr(resync.Installation, "finish", original)
        assert generation(nodes, "n3") == (steps >= 4)
        await nodes.start("n3")
        await nodes.wait_in_step()
        assert generation(nodes, "n3") == 1
        await assert_equal(nodes)


def make_divergent_tail(path: Path, ballot: Ballot, count: int) -> None:
    """What a leader leaves behind that wrote and applied entries which nobody else has."""
    with closing(open_writer(path / "hadron.db", sync="FULL")) as database:
        log = Log(database)
        with transaction(database):
            for _ in range(count):
                body = encode_values([b"divergent"], 1)
                row: Any = database.execute(
                    "SELECT id FROM hadron_schema_object LIMIT 1"
                ).fetchone()
                command = AppendBatch(row[0], 1, len(body), b"", 0, -1)
                context = machine.Context(
                    machine=MACHINE,
                    db=database,
                    lsn=log.head.lsn + 1,
                    now_ms=log.last_ms,
                    drop_bodies=drop_bodies,
                    replica_set="local/p0",
                    ballot=ballot,
                )
                MACHINE.apply(context, command)
                log.append(ballot, log.last_ms, machine.encode(command), body)
                set_meta(database, "applied_lsn", log.head.lsn)


async def test_a_tail_that_parted_from_the_log_before_what_is_kept_of_it(
    tmp_path: Path, clock: MockClock
) -> None:
    """n3 holds entries of an older ballot that nobody else has, where the log was trimmed since."""
    async with running_nodes(tmp_path, 3, settings=SETTINGS) as nodes:
        await make_stream(nodes)
        await load(nodes, 10)
        await nodes.wait_in_step()
        await nodes.crash("n3")
        with closing(open_writer(nodes.data("n3") / "hadron.db", sync="FULL")) as database:
            log = Log(database)
            with transaction(database):
                for _ in range(3):
                    log.append(Ballot(1, 1), log.last_ms, b"divergent", b"")
            tail = log.head
        await nodes.restart("n1")
        await nodes.wait_serving()
        await load(nodes, 100)
        await nodes.wait_for("trimmed", lambda: nodes.status("n1").first_lsn > tail.lsn + 1)
        await nodes.start("n3")
        await nodes.wait_in_step()
        assert generation(nodes, "n3") == 1
        assert tail.chain not in dict(chains(nodes, "n3")).values()
        await assert_equal(nodes)


def promoted(nodes: Nodes, leader: str) -> None:
    """Every node gets a configuration of the next epoch, in which `leader` leads."""
    members = tuple(
        replace(node, role="leader" if node.name == leader else "replica")
        for node in nodes.config.nodes
    )
    nodes.config = replace(nodes.config, epoch=nodes.config.epoch + 1, nodes=members)


@pytest.mark.parametrize("away", [(), ("n3",)])
async def test_an_ex_leader_that_applied_what_nobody_else_has(
    tmp_path: Path, clock: MockClock, away: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the new leader has no majority without it: its log counts before its tables do."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await load(nodes, 10)
        await nodes.wait_in_step()
        await nodes.crash()
        make_divergent_tail(nodes.data("n1"), Ballot(1, 1), 5)
        promoted(nodes, "n2")
        present = [name for name in nodes.names if name not in away]
        if not away:
            await nodes.start("n2", "n3")
            await nodes.wait_serving()
            await load(nodes, 10)
            await nodes.start("n1")
        else:
            # With an epoch of which n1 knows nothing yet, its longer log is of a lower ballot.
            isolate_old_log(nodes)
            await nodes.start(*present)
        await nodes.wait_serving()
        await load(nodes, 10)
        await nodes.wait_for("reopened", lambda: generation(nodes, "n1") == 1)
        if away:
            await nodes.start(*away)
        await nodes.wait_in_step()
        await assert_equal(nodes)
        async with nodes.connection("n2") as connection:
            assert b"divergent" not in await fetch(connection)
    assert "went another way" in caplog.text
    assert_no_traceback(caplog)


def isolate_old_log(nodes: Nodes) -> None:
    """Give n2 and n3 an entry of a higher ballot, so that theirs is the chosen log."""
    for name in ("n2", "n3"):
        with closing(open_writer(nodes.data(name) / "hadron.db", sync="FULL")) as database:
            log = Log(database)
            started: Any = database.execute(
                "SELECT command, now_ms FROM hadron_log ORDER BY lsn LIMIT 1"
            ).fetchone()
            with transaction(database):
                log.append(Ballot(1, 2), log.last_ms, started[0], b"")


async def test_a_tail_that_a_copy_has_brought_along_is_applied_in_slices(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large copy takes minutes, and the log goes on: a replica that applies that in one go is
    silent for so long that it is cut off. Nobody writes anything more here."""
    slices: list[int] = []
    apply_some = FollowerLog._apply_some

    def counted(self: FollowerLog, *given: Any, **named: Any) -> None:
        before = self.applied_lsn
        apply_some(self, *given, **named)
        slices.append(self.applied_lsn - before)

    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        path, copy = nodes.data("n2") / "hadron.db", tmp_path / "copy.db"
        await nodes.wait_in_step()
        base = snapshot.take(path, copy, SystemDisk())
        await load(nodes, 300, b"x")
        await nodes.wait_in_step()
        await nodes.crash("n2")
        assert snapshot.copy_tail(path, copy, base, SystemDisk()) >= 300
        copy.replace(path)
        monkeypatch.setattr(follower, "_APPLIED_AT_ONCE", 80)
        monkeypatch.setattr(FollowerLog, "_apply_some", counted)
        await nodes.start("n2")
        await nodes.wait_in_step()
        await assert_equal(nodes)
    assert sum(slices) >= 300
    assert max(slices) <= 40


async def test_tables_that_refuse_an_entry_are_replaced(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A flipped bit that no checksum saw, or a defect: the leader's log is right."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await load(nodes, 3)
        await nodes.wait_in_step()
        await nodes.crash("n2")
        with closing(open_writer(nodes.data("n2") / "hadron.db", sync="FULL")) as database:
            database.execute("DELETE FROM hadron_stream_partition")
        await nodes.start("n2")
        await load(nodes, 3)
        await nodes.wait_for("reopened", lambda: generation(nodes, "n2") == 1)
        await nodes.wait_in_step()
        await assert_equal(nodes)
    assert "refused here" in caplog.text
    assert_no_traceback(caplog)


async def test_a_leader_whose_log_is_behind_what_its_peers_keep(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """n1 comes back with an old disk, and leads again."""
    async with running_nodes(tmp_path, 3, settings=SETTINGS) as nodes:
        await make_stream(nodes)
        await load(nodes, 10)
        await nodes.wait_in_step()
        await nodes.crash("n1")
        old = {path.name: path.read_bytes() for path in nodes.data("n1").glob("hadron.db*")}
        await nodes.start("n1")
        await nodes.wait_serving()
        await load(nodes, 100)
        await nodes.wait_in_step()
        await nodes.wait_for("trimmed", lambda: nodes.status("n2").first_lsn > 30)
        await nodes.crash("n1")
        for path in nodes.data("n1").glob("hadron.db*"):
            path.unlink()
        for name, data in old.items():
            (nodes.data("n1") / name).write_bytes(data)
        await nodes.start("n1")
        await nodes.wait_serving()
        assert generation(nodes, "n1") == 1
        await load(nodes, 10)
        await nodes.wait_in_step()
        await assert_equal(nodes)
        with closing(open_reader(nodes.data("n1") / "hadron.db")) as database:
            batches: Any = database.execute("SELECT sum(count) FROM hadron_stream_batch").fetchone()
            assert batches[0] == 120
            assert get_meta(database, "applied_lsn") == nodes.status("n1").last_lsn
    assert "hadron.db is an older copy" in caplog.text
    assert not [each for each in caplog.records if each.exc_info]


async def test_a_wiped_leader_whose_peers_have_trimmed(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_nodes(tmp_path, 3, settings=SETTINGS) as nodes:
        await make_stream(nodes)
        await load(nodes, 110)
        await nodes.wait_in_step()
        await nodes.wait_for("trimmed", lambda: nodes.status("n2").first_lsn > 1)
        await nodes.wait_for("trimmed", lambda: nodes.status("n3").first_lsn > 1)
        await nodes.crash("n1")
        nodes.wipe("n1")
        await nodes.start("n1")
        await nodes.wait_serving()
        await load(nodes, 10)
        await nodes.wait_in_step()
        assert generation(nodes, "n1") == 1
        await assert_equal(nodes)
    assert_no_traceback(caplog)
