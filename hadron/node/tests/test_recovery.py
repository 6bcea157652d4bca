"""`recover` on damaged write-ahead logs: it takes what is left, and never makes it less."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import apsw
import pytest
import trio
from trio.testing import MockClock

from hadron.model.errors import CorruptionError, DataDirectoryError, StorageError
from hadron.model.ids import EMPTY_LOG, MAX_RECOVERIES, Ballot, LogPosition
from hadron.node.recovery import recover
from hadron.node.replica_set import ReplicaSetConfig
from hadron.node.tests.support import STREAM, make_stream, produce
from hadron.node.tests.test_restore_crashes import crashes, look
from hadron.node.verification import verify_database
from hadron.node.world import SystemDisk
from hadron.state.features import MACHINE
from hadron.storage import report
from hadron.storage.aftermath import ASIDE
from hadron.storage.bodies import BODY
from hadron.storage.database import PAGE_BYTES, connect, open_reader, open_writer
from hadron.storage.generations import DATABASE
from hadron.storage.identity import IdentityFile, read_membership
from hadron.storage.log import Log, last_lsn
from hadron.storage.store import Store
from hadron.storage.tests.test_aftermath import read_pair
from hadron.testing.nodes import replica_set, running_nodes
from hadron.wire.system import SystemClock

DISK = SystemDisk()
FRAME_BYTES = 24 + PAGE_BYTES


class Killed(NamedTuple):
    """A node whose last entries stand in the write-ahead log only."""

    config: ReplicaSetConfig
    data: Path
    last_lsn: int

    @property
    def log(self) -> Path:
        return self.data / f"{DATABASE}-wal"

    def damage(self, frame: int) -> None:
        """Flip a bit of a frame of the write-ahead log, the first of which is 0."""
        content = bytearray(self.log.read_bytes())
        count = (len(content) - 32) // FRAME_BYTES
        content[32 + (frame % count) * FRAME_BYTES + 100] ^= 1
        self.log.write_bytes(content)

    def content(self) -> dict[str, bytes]:
        names = (DATABASE, f"{DATABASE}-wal", "node.db")
        return {name: (self.data / name).read_bytes() for name in names}


@pytest.fixture
def killed(tmp_path: Path) -> Killed:
    async def run() -> int:
        async with running_nodes(tmp_path / "run", 1) as nodes:
            await make_stream(nodes)
            async with nodes.connection("n1") as connection:
                for number in range(20):
                    await produce(connection, b"%d" % number)
            shutil.copytree(nodes.data("n1"), tmp_path / "n1")
            return nodes.status("n1").last_lsn

    last = trio.run(run, clock=MockClock(rate=5))
    return Killed(replica_set(tmp_path, 1), tmp_path / "n1", last)


def test_what_precedes_the_damage_counts_and_all_of_it_is_kept(killed: Killed) -> None:
    killed.damage(-30)
    before = killed.content()
    recovered = recover(killed.config, "n1", DISK)
    assert 0 < recovered.end.lsn < killed.last_lsn
    assert recovered.aside == killed.data / ASIDE
    assert recovered.aside.read_bytes() == before[DATABASE]
    assert (killed.data / f"{ASIDE}-wal").read_bytes() == before[f"{DATABASE}-wal"]
    state = look(killed.data)
    assert (state.is_member, state.last) == (True, recovered.end.chain)
    assert verify_database(killed.data / DATABASE, "local/p0").ok


@pytest.fixture
def copied(tmp_path: Path) -> Killed:
    """A group has acknowledged what was published, and all frames of the write-ahead log are in
    the database as well: the process was killed before that began anew."""

    async def run() -> int:
        async with running_nodes(tmp_path / "run", 1) as nodes:
            await make_stream(nodes)
            async with nodes.client() as client:
                for number in range(40):
                    await client.send(STREAM, b"%d" % number)
                async with client.subscribe(STREAM, group="g") as consumer:
                    for _ in range(40):
                        await (await anext(consumer)).ack()
            shutil.copytree(nodes.data("n1"), tmp_path / "n1")
            return nodes.status("n1").last_lsn

    last = trio.run(run, clock=MockClock(rate=5))
    killed = Killed(replica_set(tmp_path, 1), tmp_path / "n1", last)
    with closing(connect(killed.data / DATABASE)) as database:
        database.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        database.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        total, moved = database.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        assert total == moved > 60
    return killed


@pytest.mark.parametrize("frame", [0, 10, 60, -30])
def test_older_frames_do_not_take_back_what_the_file_has_already(
    copied: Killed, frame: int
) -> None:
    """Some of its pages, and not others: a group's floor is beyond what its stream has, and what
    comes next is delivered to nobody."""
    copied.damage(frame)
    recovered = recover(copied.config, "n1", DISK)
    assert recovered.end.lsn == copied.last_lsn
    assert verify_database(copied.data / DATABASE, "local/p0").ok


def test_where_neither_is_sound_nothing_is_changed(copied: Killed) -> None:
    copied.damage(60)
    path = copied.data / DATABASE
    content = bytearray(path.read_bytes())
    for page in range(1, len(content) // PAGE_BYTES):
        content[page * PAGE_BYTES + 2_000] ^= 1
    path.write_bytes(content)
    before = copied.content()
    with pytest.raises(CorruptionError):
        recover(copied.config, "n1", DISK)
    assert copied.content() == before
    assert not (copied.data / "gen-1").exists()


def test_where_nothing_is_left_nothing_is_changed(killed: Killed) -> None:
    killed.damage(0)
    before = killed.content()
    with pytest.raises(DataDirectoryError, match="has no log to go on with"):
        recover(killed.config, "n1", DISK)
    assert killed.content() == before
    assert sorted(path.name for path in killed.data.iterdir()) == [
        DATABASE,
        f"{DATABASE}-shm",
        f"{DATABASE}-wal",
        "node.db",
        "node.lock",
    ]


def test_a_damaged_file_is_refused(killed: Killed) -> None:
    with closing(open_reader(killed.data / DATABASE)) as database:
        assert last_lsn(database) == killed.last_lsn
    killed.damage(-30)
    recover(killed.config, "n1", DISK)
    path = (killed.data / DATABASE).resolve()
    content = bytearray(path.read_bytes())
    content[PAGE_BYTES * 6 + 2_000] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptionError):
        recover(killed.config, "n1", DISK)


def test_a_damaged_body_below_the_log_is_no_reason_to_give_up_all_others(
    killed: Killed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads it is told. But of what is not named nobody knows that it is no more."""
    killed.damage(-30)
    end = recover(killed.config, "n1", DISK).end
    with closing(open_writer(killed.data / DATABASE, sync="FULL")) as database:
        Log(database).trim(8, max_rows=100)
        database.execute(f"UPDATE {BODY} SET bytes = zeroblob(length(bytes)) WHERE lsn = 7")
        assert database.changes() == 1
    assert not verify_database(killed.data / DATABASE, "local/p0").ok
    assert recover(killed.config, "n1", DISK).end == end
    monkeypatch.setattr(report, "NAMED_PROBLEMS", 0)
    with pytest.raises(CorruptionError, match=r"damaged in \d+ places"):
        recover(killed.config, "n1", DISK)


def test_where_nothing_is_lost_nothing_is_done(killed: Killed) -> None:
    before = killed.content()
    recovered = recover(killed.config, "n1", DISK)
    assert recovered.was_whole
    assert (recovered.end.lsn, recovered.aside) == (killed.last_lsn, None)
    assert killed.content() == before
    killed.damage(-30)
    assert not recover(killed.config, "n1", DISK).was_whole


def start(killed: Killed, *, to_kill: bool = False) -> None:
    """As a member of a set of several does, up to where it would learn from the others."""

    async def run() -> None:
        store = Store(
            killed.data,
            cluster=killed.config.cluster,
            replica_set=killed.config.name,
            node="n1",
            tables=MACHINE.tables,
            durability="fsync",
            checkpoint_bytes=1 << 20,
            reader_threads=1,
            disk=DISK,
            clock=SystemClock(),
            post=lambda _: None,
            on_fatal=lambda _: None,
        )
        if to_kill:
            store.writer.failure = StorageError("killed")
        store.close()

    trio.run(run)


@pytest.mark.parametrize("started", [0, 1, 3])
def test_what_a_start_has_set_aside_counts(killed: Killed, started: int) -> None:
    """Start every node and wait, before you decide: that moves what is left out of the way."""
    killed.damage(-30)
    before = killed.content()
    original = killed.data.parent / "original"
    shutil.copytree(killed.data, original)
    ends: list[LogPosition] = []
    for starts in (0, started):
        shutil.rmtree(killed.data)
        shutil.copytree(original, killed.data)
        for _ in range(starts):
            start(killed)
        recovered = recover(killed.config, "n1", DISK)
        ends.append(recovered.end)
        assert recovered.aside == killed.data / ASIDE
        assert recovered.aside.read_bytes() == before[DATABASE]
        assert (killed.data / f"{ASIDE}-wal").read_bytes() == before[f"{DATABASE}-wal"]
        start(killed)
        assert look(killed.data).is_member
    assert ends[0] == ends[1] > EMPTY_LOG
    assert verify_database(killed.data / DATABASE, "local/p0").ok


async def test_what_goes_further_counts_and_not_what_stands_aside_from_before(
    killed: Killed, clock: MockClock
) -> None:
    killed.damage(-30)
    end = recover(killed.config, "n1", DISK).end
    assert (killed.data / ASIDE).exists()
    async with running_nodes(killed.data.parent, 1) as nodes:
        last = nodes.status("n1").last_lsn
    identity = IdentityFile(killed.data, killed.config.cluster, killed.config.name, "n1", DISK)
    with closing(identity):
        identity.forget_membership("")
    again = recover(killed.config, "n1", DISK)
    assert again.end.lsn == last > end.lsn


@pytest.mark.parametrize("is_empty", [False, True])
def test_what_a_start_that_was_killed_has_begun_is_no_log(killed: Killed, is_empty: bool) -> None:
    killed.damage(-30)
    start(killed, to_kill=True)
    assert killed.log.stat().st_size
    if is_empty:
        killed.log.unlink()
        (killed.data / DATABASE).write_bytes(b"")
    assert recover(killed.config, "n1", DISK).end.lsn > 0


def test_what_is_aside_of_another_history_is_not_taken(killed: Killed) -> None:
    killed.damage(-30)
    start(killed)
    with closing(connect(killed.data / "node.db")) as database:
        database.execute("UPDATE identity SET uuid = x'00'")
    with pytest.raises(DataDirectoryError, match="has no log to go on with"):
        recover(killed.config, "n1", DISK)


def test_a_move_aside_that_was_cut_short_is_ended_first(killed: Killed) -> None:
    killed.damage(-30)
    shutil.copytree(killed.data, killed.data.parent / "original")
    end = recover(killed.config, "n1", DISK).end
    shutil.rmtree(killed.data)
    shutil.copytree(killed.data.parent / "original", killed.data)
    killed.log.rename(killed.data / f"{ASIDE}-wal")
    with closing(connect(killed.data / "node.db")) as database:
        database.execute("UPDATE identity SET is_member = 0, suspect = 'damaged'")
    assert recover(killed.config, "n1", DISK).end == end


@pytest.mark.parametrize(
    ("was_aside", "starts"),
    [(False, True), *(pytest.param(each, False, marks=pytest.mark.long) for each in (False, True))],
)
def test_a_crash_at_any_step_loses_nothing_that_was_left(
    killed: Killed, was_aside: bool, starts: bool
) -> None:
    """Whether it is tried again, or the node is started first: that sets aside nothing whole."""
    killed.damage(-30)
    left = read_pair(killed.data / DATABASE)
    if was_aside:
        start(killed)
    shutil.copytree(killed.data, killed.data.parent / "original")
    ends: list[LogPosition] = []

    def act(disk: SystemDisk) -> None:
        shutil.rmtree(killed.data)
        shutil.copytree(killed.data.parent / "original", killed.data)
        ends.append(recover(killed.config, "n1", disk).end)

    crashed = 0
    for _ in crashes(act):
        crashed += 1
        if starts:
            start(killed)
            assert not read_membership(killed.data, DISK)
            assert read_pair(killed.data / ASIDE) == left
        ends.append(recover(killed.config, "n1", DISK).end)
        with closing(open_reader(killed.data / DATABASE)) as database:
            assert last_lsn(database) == ends[-1].lsn
    assert crashed > 5
    assert len(set(ends)) == 1


def test_what_is_left_of_the_log_is_promised_where_nothing_else_remembers(killed: Killed) -> None:
    """node.db is gone, and with it every promise: the ballots that the log has seen are used up."""
    (killed.data / "node.db").unlink()
    end = recover(killed.config, "n1", DISK).end
    identity = IdentityFile(killed.data, killed.config.cluster, killed.config.name, "n1", DISK)
    with closing(identity):
        assert identity.current.promised == end.ballot.recovered() > end.ballot


async def test_it_starts_with_what_is_left(killed: Killed, clock: MockClock) -> None:
    killed.damage(-30)
    end = recover(killed.config, "n1", DISK).end
    async with running_nodes(killed.data.parent, 1) as nodes:
        assert nodes.status("n1").last_lsn > end.lsn
        async with nodes.connection("n1") as connection:
            await produce(connection, b"more")


async def test_the_schema_goes_on_above_what_may_be_lost_and_once(
    killed: Killed, clock: MockClock
) -> None:
    killed.damage(-30)
    before = recover(killed.config, "n1", DISK).end.ballot
    first = before.recovered().first_index
    for epoch, starts in ((1, 1), (1, 2), (2, 3)):
        async with running_nodes(killed.data.parent, 1, start=False) as nodes:
            nodes.config = replace(nodes.config, epoch=epoch)
            await nodes.start()
            await nodes.wait_serving()
            status = nodes.status("n1")
            assert status.ballot.epoch == epoch
            assert status.ballot.incarnation == before.recovered().incarnation + starts
            assert status.metadata_index == first


def test_after_too_many_recoveries_ids_are_not_risked(killed: Killed) -> None:
    killed.damage(-30)
    identity = IdentityFile(killed.data, killed.config.cluster, killed.config.name, "n1", DISK)
    with closing(identity):
        identity.promise(Ballot(1, MAX_RECOVERIES * 1_000_000), killed.config.digest)
    with pytest.raises(DataDirectoryError, match="was recovered 1023 times"):
        recover(killed.config, "n1", DISK)
    ordinary = replace(killed.config, metadata="another/p0")
    assert recover(ordinary, "n1", DISK).end.lsn > 0, "which gives no ids of the schema"
