"""What follows when members have copies of a leader's state that were not committed yet."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from hadron.client.client import nodes_of
from hadron.model.errors import HadronError, NotReadyError
from hadron.model.ids import NO_BALLOT
from hadron.node.backup import backup_directory, backup_live
from hadron.node.tests.support import chains, fetch, is_member, make_stream, produce
from hadron.node.tests.test_resync import (
    SETTINGS,
    assert_equal,
    generation,
    hold_at,
    load,
    promoted,
    without_n3,
)
from hadron.node.verification import verify_database
from hadron.node.world import SystemDisk
from hadron.replication import fetching, resync, snapshots
from hadron.storage import writer as module
from hadron.storage.database import open_reader, open_writer
from hadron.storage.log import get_meta
from hadron.storage.snapshot import Manifest
from hadron.testing.nodes import Nodes, running_nodes
from hadron.wire.messages import method, snapshots_pb2
from hadron.wire.system import SystemClock

ORIGINAL = fetching._read_chunk


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fetching, "CHUNK_BYTES", 16 << 10)
    monkeypatch.setattr(snapshots, "_IDLE_S", 2.0)
    original = fetching._read_chunk
    yield
    fetching._read_chunk = original


def known(nodes: Nodes, name: str) -> tuple[int, int]:
    """(applied, committed) in a node's file."""
    with closing(open_reader(nodes.data(name) / "hadron.db")) as database:
        return get_meta(database, "applied_lsn"), get_meta(database, "committed_lsn")


@pytest.mark.long
@pytest.mark.parametrize("leader", ["n1", "n3"])
async def test_two_members_were_given_such_copies_and_then_the_leaders_disk_is_lost(
    tmp_path: Path, clock: MockClock, leader: str
) -> None:
    """One disk after the other, each after the one before was in step again; n1 leads on with its
    new disk, or n3 is promoted."""
    async with without_n3(tmp_path) as nodes:
        await nodes.crash("n2")
        nodes.wipe("n2")
        await nodes.crash("n1")
        await nodes.start("n1", "n2", "n3")
        await nodes.wait_serving()
        await nodes.wait_in_step()
        await nodes.wait_for("a member", lambda: is_member(nodes, "n2"))
        await nodes.crash()
        nodes.wipe("n1")
        if leader != "n1":
            promoted(nodes, leader)
        await nodes.start()
        await nodes.wait_serving()
        await load(nodes, 5)
        await nodes.wait_in_step()
        await assert_equal(nodes)


@pytest.mark.long
async def test_a_member_whose_file_is_older_gets_one_too(tmp_path: Path, clock: MockClock) -> None:
    """n1's disk is lost, n2 is promoted, and n3, which is behind, still has the old file: it may
    follow a higher epoch (PROTOCOL B1), and without it there is no majority."""
    async with without_n3(tmp_path) as nodes:
        await nodes.wait_in_step("n2")
        await nodes.crash()
        nodes.wipe("n1")
        nodes.configs["n3"] = nodes.config
        promoted(nodes, "n2")
        await nodes.start()
        await nodes.wait_serving()
        await load(nodes, 5)
        await nodes.wait_in_step()
        await assert_equal(nodes)


@pytest.mark.long
@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_backup_of_a_deposed_leader_holds_nothing_that_was_withdrawn(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    """The leader is cut off before its copy is begun, and that is being made while another leader's
    entries take the place of its end; the backup goes on once they are committed, also while the
    COMMIT that brings them is under way."""
    alone, go, over = trio.Event(), trio.Event(), threading.Event()
    confirmed, made = trio.Event(), trio.Event()
    confirm = snapshots.SnapshotService._confirm_leads
    original = snapshots.SnapshotService._check

    async def confirm_leads(self: snapshots.SnapshotService) -> None:
        await confirm(self)
        if self._membership.node == "n1":
            confirmed.set()
            await alone.wait()

    async def check(self: snapshots.SnapshotService, path: Path) -> None:
        if self._membership.node == "n1":
            made.set()
            await go.wait()
        await original(self, path)

    monkeypatch.setattr(snapshots.SnapshotService, "_confirm_leads", confirm_leads)
    monkeypatch.setattr(snapshots.SnapshotService, "_check", check)
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await load(nodes, 5)
        await nodes.wait_in_step()
        manifests: list[Manifest] = []
        async with nodes.client() as client, trio.open_nursery() as nursery:

            async def back_up() -> None:
                address = nodes.config.node("n1").address
                with suppress(HadronError):
                    manifests.append(
                        await backup_live(
                            client, address, tmp_path / "backup", SystemDisk(), lambda _a, _b: None
                        )
                    )
                over.set()

            nursery.start_soon(back_up)
            await confirmed.wait()
            nodes.network.isolate("n1", "n2", "n3")
            async with nodes.connection("n1") as connection:
                for number in range(3):
                    with pytest.raises(HadronError):
                        await produce(connection, b"withdrawn %d" % number, timeout_s=1)
            alone.set()
            await made.wait()
            if not is_stored:
                hold_commit(nodes, monkeypatch, over)
            old = nodes.config
            await nodes.crash("n2", "n3")
            nodes.configs["n1"] = old
            promoted(nodes, "n2")
            hold_at(nodes, "n1", half=True)  # its own resync takes as long as the backup
            await nodes.start("n2", "n3")
            await nodes.wait_serving()
            await load(nodes, 20)
            nodes.network.heal_all()
            await nodes.wait_for("following", lambda: nodes.status("n1").committed_lsn > 25)
            fetching._read_chunk = ORIGINAL
            go.set()
        if manifests:
            with closing(open_reader(tmp_path / "backup" / "hadron.db")) as database:
                bodies = [row[0] for row in database.execute("SELECT bytes FROM hadron_body")]
            assert not [body for body in bodies if b"withdrawn" in body]


def hold_commit(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, over: threading.Event) -> None:
    """n1's COMMIT of what another leader has committed takes until then, or two seconds."""
    member = nodes.node("n1").member
    writer, commit = member._store.writer, member._store.writer._execute_commit
    held: list[bool] = []

    def execute(small: bool) -> None:
        if member._follower.committed_lsn > 25 and not held:
            held.append(over.wait(2.0))
        commit(small)

    monkeypatch.setattr(writer, "_execute_commit", execute)
    # On its thread, as on a slow disk.
    monkeypatch.setattr(module, "_FAST_COMMIT_S", 0.0)


@asynccontextmanager
async def without(tmp_path: Path, count: int, *away: str) -> AsyncIterator[Nodes]:
    async with running_nodes(tmp_path, count, settings=SETTINGS) as nodes:
        await make_stream(nodes)
        await load(nodes, 10)
        await nodes.wait_in_step()
        await nodes.crash(*away)
        await load(nodes, 100)
        last = chains(nodes, away[0])[-1][0]
        await nodes.wait_for("trimmed", lambda: nodes.status("n1").first_lsn > last + 1)
        await nodes.wait_in_step()
        yield nodes


def split(nodes: Nodes, *sides: tuple[str, ...]) -> None:
    for number, side in enumerate(sides):
        for other in sides[number + 1 :]:
            for one in side:
                nodes.network.isolate(one, *other)


@pytest.mark.long
@pytest.mark.parametrize("held", ["no", "fetch", "tail"])
@pytest.mark.parametrize("restart", [False, True])
async def test_another_leader_takes_over_after_or_while_such_a_copy_is_fetched(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch, held: str, restart: bool
) -> None:
    async with without(tmp_path, 5, "n3") as nodes:
        split(nodes, ("n1", "n3"), ("n2", "n4", "n5"))
        async with nodes.connection("n1") as connection:
            for number in range(3):
                with pytest.raises(HadronError):
                    await produce(connection, b"withdrawn %d" % number, timeout_s=1)
        go, there = trio.Event(), trio.Event()
        resume = go.set
        original = resync.Resync._bring_tail

        async def bring_tail(self: Any, generation: Path, manifest: Any) -> None:
            await original(self, generation, manifest)
            if self._membership.node == "n3" and manifest.committed_lsn < manifest.lsn:
                there.set()
                if held == "tail":
                    await go.wait()

        monkeypatch.setattr(resync.Resync, "_bring_tail", bring_tail)
        if held == "fetch":
            resume = hold_at(nodes, "n3", half=True)
        await nodes.start("n3")
        if held == "fetch":
            await nodes.wait_for("fetching", lambda: "fetching" in nodes.status("n3").trouble)
        elif held == "tail":
            await there.wait()
        else:
            await nodes.wait_for("installed", lambda: generation(nodes, "n3") == 1)
            await nodes.wait_for(
                "ahead",
                lambda: nodes.status("n3").applied_lsn > nodes.status("n3").committed_lsn > 12,
            )
        old = nodes.config
        await nodes.crash("n2", "n4", "n5")
        nodes.configs["n1"] = nodes.configs["n3"] = old
        promoted(nodes, "n2")
        await nodes.start("n2", "n4", "n5")
        await nodes.wait_serving()
        await load(nodes, 10)
        nodes.network.heal("n3", "n2")
        if held != "no":
            await nodes.wait_for(
                "promised", lambda: nodes.node("n3").member.identity.promised.epoch == 2
            )
        if restart:
            await nodes.crash("n3")
            nodes.configs.pop("n3")
        resume()
        if restart:
            await nodes.start("n3")
        await nodes.wait_in_step("n2", "n3", "n4", "n5")
        nodes.network.heal_all()
        await nodes.wait_in_step()
        await assert_equal(nodes)
        async with nodes.connection("n2") as connection:
            assert not [value for value in await fetch(connection) if b"withdrawn" in value]


@pytest.mark.long
@pytest.mark.parametrize("leader", ["n1", "n2", "n3"])
async def test_the_leader_and_its_disk_go_before_it_has_said_that_it_is_committed(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch, leader: str
) -> None:
    original = resync.Resync._bring_tail
    async with without(tmp_path, 3, "n3") as nodes:

        async def bring_tail(self: Any, generation: Path, manifest: Any) -> None:
            await original(self, generation, manifest)
            nodes.network.cut("n1", "n3")

        monkeypatch.setattr(resync.Resync, "_bring_tail", bring_tail)
        await nodes.crash("n1", "n2")
        with closing(open_writer(nodes.data("n1") / "hadron.db", sync="FULL")) as database:
            # A trim may just have noted more.
            database.execute("UPDATE hadron_meta SET value = value - 1 WHERE key = 'committed_lsn'")
        # n3 reaches n1, and nobody n3 any more once it has its copy.
        await nodes.start("n1", "n3")
        await nodes.wait_for("installed", lambda: generation(nodes, "n3") == 1)
        await nodes.crash("n1", "n3")
        nodes.network.heal_all()
        monkeypatch.undo()
        applied, committed = known(nodes, "n3")
        assert applied > committed
        nodes.wipe("n1")
        if leader != "n1":
            promoted(nodes, leader)
        await nodes.start()
        await nodes.wait_serving()
        await load(nodes, 5)
        await nodes.wait_in_step()
        await assert_equal(nodes)
        async with nodes.connection(leader) as connection:
            assert len(await fetch(connection)) == 115


@pytest.mark.long
@pytest.mark.parametrize(
    ("count", "behind", "wiped", "gone"),
    [
        (2, ("n2",), (), ()),
        (2, (), ("n2",), ()),
        (4, ("n4",), ("n2",), ("n3",)),
        (5, ("n4", "n5"), ("n2",), ("n3",)),
        (5, ("n5", "n4"), ("n2", "n3"), ()),
    ],
)
async def test_sets_of_other_sizes(
    tmp_path: Path,
    clock: MockClock,
    count: int,
    behind: tuple[str, ...],
    wiped: tuple[str, ...],
    gone: tuple[str, ...],
) -> None:
    away = behind or wiped
    async with running_nodes(tmp_path, count, settings=SETTINGS) as nodes:
        await make_stream(nodes)
        await load(nodes, 10)
        await nodes.wait_in_step()
        if count > 2:
            await nodes.crash(*away)
        await load(nodes, 100)
        last = 12
        await nodes.wait_for("trimmed", lambda: nodes.status("n1").first_lsn > last + 1)
        await nodes.crash()
        for name in wiped or (("n2",) if count == 2 else ()):
            nodes.wipe(name)
        present = [name for name in nodes.names if name not in gone]
        await nodes.start(*present)
        await nodes.wait_serving()
        await load(nodes, 5)
        await nodes.wait_in_step(*present)
        if gone:
            await nodes.start(*gone)
        await nodes.wait_in_step()
        await assert_equal(nodes)


@pytest.mark.long
async def test_a_member_without_memory_does_not_count_by_such_a_copy(
    tmp_path: Path, clock: MockClock
) -> None:
    async with without_n3(tmp_path) as nodes:
        nodes.wipe("n3")
        await nodes.restart("n1")
        await nodes.wait_serving()
        await nodes.wait_in_step("n2")
        await nodes.crash("n2")
        async with nodes.connection("n1") as connection:
            with pytest.raises(HadronError):
                await produce(connection, b"on n1 alone", timeout_s=1)
        await nodes.start("n3")
        await nodes.wait_for("installed", lambda: generation(nodes, "n3") == 1)
        end = nodes.status("n1").last_lsn
        await nodes.wait_for("there", lambda: nodes.status("n3").applied_lsn == end)
        assert nodes.status("n3").committed_lsn < end == nodes.status("n3").applied_lsn
        async with nodes.connection("n1") as connection:
            with pytest.raises(HadronError):
                await produce(connection, b"on n1 and n3", timeout_s=3)
        assert not is_member(nodes, "n3")
        # Nor does it help n1, or n2 with a new epoch, to win anything.
        await nodes.restart("n1", "n3")
        with trio.move_on_after(5):
            await nodes.wait_serving()
            raise AssertionError
        await nodes.crash("n1", "n3")
        promoted(nodes, "n2")
        await nodes.start("n2", "n3")
        with trio.move_on_after(5):
            await nodes.wait_serving()
            raise AssertionError
        assert not is_member(nodes, "n3")
        await nodes.start("n1")
        await nodes.wait_serving()
        await load(nodes, 5)
        await nodes.wait_in_step()
        await nodes.wait_for("a member", lambda: is_member(nodes, "n3"))
        await assert_equal(nodes)


@pytest.mark.long
async def test_a_resync_from_a_deposed_leader_brings_nothing_that_was_withdrawn(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the backup; here a member would hold it for committed."""
    go, made = trio.Event(), trio.Event()
    original = snapshots.SnapshotService._check

    async def check(self: snapshots.SnapshotService, path: Path) -> None:
        if self._membership.node == "n1" and not made.is_set():
            made.set()
            await go.wait()
        await original(self, path)

    async def read(connection: Any, manifest: Any, offset: int) -> Any:
        if manifest.node == "n2":
            await go_on.wait()
        return await ORIGINAL(connection, manifest, offset)

    go_on = trio.Event()
    async with without(tmp_path, 5, "n3") as nodes:
        split(nodes, ("n1", "n3"), ("n2", "n4", "n5"))
        async with nodes.connection("n1") as connection:
            for number in range(3):
                with pytest.raises(HadronError):
                    await produce(connection, b"withdrawn %d" % number, timeout_s=1)
        monkeypatch.setattr(snapshots.SnapshotService, "_check", check)
        await nodes.start("n3")
        await made.wait()
        old = nodes.config
        await nodes.crash("n2", "n4", "n5")
        nodes.configs["n1"] = nodes.configs["n3"] = old
        promoted(nodes, "n2")
        fetching._read_chunk = read
        await nodes.start("n2", "n4", "n5")
        await nodes.wait_serving()
        await load(nodes, 20)
        nodes.network.heal("n1", "n2")
        end = nodes.status("n2").committed_lsn
        await nodes.wait_for("following", lambda: nodes.status("n1").committed_lsn == end)
        go.set()
        with trio.move_on_after(20):
            await nodes.wait_for("installed", lambda: generation(nodes, "n3") == 1)
        go_on.set()
        nodes.network.heal_all()
        await nodes.wait_in_step()
        await assert_equal(nodes)


async def test_a_backup_that_waits_for_a_majority_makes_way_for_a_member(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader was followed when it was asked; the member may be the one that it lacks since."""

    async def confirmed(_self: snapshots.SnapshotService) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(snapshots.SnapshotService, "_confirm_leads", confirmed)
    monkeypatch.setattr(snapshots, "_WATERMARK_PATIENCE_S", 10_000.0)
    refused: list[str] = []
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        await nodes.crash("n2", "n3")
        async with nodes.connection("n1") as connection, trio.open_nursery() as nursery:
            with pytest.raises(HadronError):
                await produce(connection, b"alone", timeout_s=1)
            service = nodes.node("n1").member._snapshots

            async def back_up() -> None:
                request = snapshots_pb2.OpenSnapshotRequest()
                with pytest.raises(HadronError) as raised:
                    await connection.request(method("OpenSnapshot"), request, timeout_s=10_000)
                refused.append(raised.value.message)

            nursery.start_soon(back_up)
            await nodes.wait_for("the backup's turn", lambda: service._making.locked())
            member = snapshots._Asker(nodes.node("n1").member.identity.promised, leads=False)
            async with service._turn(member):
                pass
        assert "within 1 s" in refused[0]


async def test_a_member_waits_behind_one_backup_at_most(tmp_path: Path, clock: MockClock) -> None:
    """A copy may take minutes, and any number of backups may be asked for at a time."""
    refused: list[str] = []
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        service = nodes.node("n1").member._snapshots
        member = snapshots._Asker(nodes.node("n1").member.identity.promised, leads=False)
        async with nodes.connection("n1") as connection, trio.open_nursery() as nursery:

            async def back_up() -> None:
                try:
                    await connection.request(
                        method("OpenSnapshot"), snapshots_pb2.OpenSnapshotRequest()
                    )
                except NotReadyError as error:
                    refused.append(error.message)

            async def fetch_as_member() -> None:
                async with service._turn(member):
                    assert not service._made

            async with service._turn(snapshots._Asker(NO_BALLOT, leads=False)):
                for _ in range(3):
                    nursery.start_soon(back_up)
                await nodes.wait_for(
                    "three backups",
                    lambda: (
                        service._making.statistics().tasks_waiting == 1
                        and service._line.statistics().tasks_waiting == 2
                    ),
                )
                nursery.start_soon(fetch_as_member)
                await nodes.wait_for("the member", lambda: bool(service._members_waiting))
            await nodes.wait_for("the first backup's answer", lambda: bool(refused))
            nursery.cancel_scope.cancel()
        assert "a member of the replica set" in refused[0]


@pytest.mark.long
async def test_backups_that_cannot_be_had_do_not_keep_a_member_from_its_copy(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody backs up the leader again and again, and a copy takes three seconds to fetch."""

    async def slow(connection: Any, manifest: Any, offset: int) -> Any:
        if manifest.committed_lsn < manifest.lsn:
            await trio.sleep(3 * (16 << 10) / manifest.size)
        return await ORIGINAL(connection, manifest, offset)

    async with without_n3(tmp_path) as nodes:
        await nodes.crash()
        nodes.wipe("n2")
        fetching._read_chunk = slow
        await nodes.start("n1")
        async with nodes.client() as client, trio.open_nursery() as nursery:

            async def back_up() -> None:
                address = nodes.config.node("n1").address
                while True:
                    try:
                        connection = await nodes_of(client).connect(address)
                        await fetching.fetch(
                            connection,
                            tmp_path / "backup",
                            SystemDisk(),
                            min_lsn=0,
                            accept=lambda _: None,
                            on_progress=lambda _a, _b: None,
                        )
                    except HadronError:
                        pass
                    await trio.sleep(1)

            await nodes.start("n3", "n2")
            nursery.start_soon(back_up)
            await nodes.wait_serving()
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def ahead(tmp_path: Path) -> AsyncIterator[Nodes]:
    """n3 has such a copy, was not told that it is committed, and everybody is stopped."""
    async with without(tmp_path, 3, "n3") as nodes:
        await nodes.crash("n1", "n2")
        await nodes.start("n1", "n3")
        while not generation(nodes, "n3"):
            # Closer than `wait_for` looks: before n1 tells it.
            await trio.lowlevel.checkpoint()
        await nodes.crash()
        applied, committed = known(nodes, "n3")
        assert applied > committed
        yield nodes


@pytest.mark.long
async def test_such_a_file_is_sound(tmp_path: Path, clock: MockClock) -> None:
    async with ahead(tmp_path) as nodes:
        applied, committed = known(nodes, "n3")
        report = verify_database(nodes.data("n3") / "hadron.db", "local/p0")
        assert report.ok, report.problems
        manifest = backup_directory(
            nodes.data("n3"), tmp_path / "backup", SystemDisk(), SystemClock()
        )
        assert (manifest.lsn, manifest.committed_lsn) == (applied, committed)
        await nodes.start("n3")
        live = await nodes.node("n3").member._scrubber.check(bytes_per_s=1 << 30)
        assert live.ok, live.problems
        async with nodes.client() as client:
            with trio.move_on_after(60), pytest.raises(HadronError):
                await backup_live(
                    client,
                    nodes.config.node("n3").address,
                    tmp_path / "other",
                    SystemDisk(),
                    lambda _a, _b: None,
                )
        assert not (tmp_path / "other").exists()
        await nodes.start("n1", "n2")
        await nodes.wait_serving()
        await load(nodes, 1)
        await nodes.wait_in_step()
        await assert_equal(nodes)


@pytest.mark.long
@pytest.mark.parametrize("withdrawn", [False, True])
async def test_a_diverged_member_with_a_longer_log(
    tmp_path: Path, clock: MockClock, withdrawn: bool
) -> None:
    """n3's tables are wrong, its log is the leader's, and the leader has no majority."""
    async with running_nodes(tmp_path, 5, settings=SETTINGS) as nodes:
        await make_stream(nodes)
        await load(nodes, 20)
        await nodes.wait_in_step()
        await nodes.crash("n3")
        with closing(open_writer(nodes.data("n3") / "hadron.db", sync="FULL")) as database:
            database.execute("DELETE FROM hadron_stream_partition")
            database.execute("INSERT INTO hadron_meta VALUES('diverged', 'made so')")
        split(nodes, ("n1", "n3"), ("n2", "n4", "n5"))
        go, there = trio.Event(), trio.Event()

        async def read(connection: Any, manifest: Any, offset: int) -> Any:
            there.set()
            await go.wait()
            return await ORIGINAL(connection, manifest, offset)

        fetching._read_chunk = read
        async with nodes.connection("n1") as connection:
            with pytest.raises(HadronError):
                await produce(connection, b"tail 0", timeout_s=1)
            await nodes.start("n3")
            await there.wait()
            for number in range(1, 4):
                with pytest.raises(HadronError):
                    await produce(connection, b"tail %d" % number, timeout_s=1)
        end = nodes.status("n1").last_lsn
        await nodes.wait_for("fed", lambda: nodes.status("n3").last_lsn == end)
        go.set()
        await nodes.wait_for("installed", lambda: generation(nodes, "n3") == 1)
        await nodes.wait_for("there", lambda: nodes.status("n3").last_lsn == end)
        if withdrawn:
            old = nodes.config
            await nodes.crash("n2", "n4", "n5")
            nodes.configs["n1"] = nodes.configs["n3"] = old
            promoted(nodes, "n2")
            await nodes.start("n2", "n4", "n5")
            await nodes.wait_serving()
            await load(nodes, 2)
            fetching._read_chunk = ORIGINAL
        nodes.network.heal_all()
        await nodes.wait_in_step()
        await load(nodes, 2)
        await assert_equal(nodes)
        async with nodes.connection(nodes.config.leader.name) as connection:
            found = [value for value in await fetch(connection) if b"tail" in value]
            assert len(found) == (0 if withdrawn else 4)


@pytest.mark.long
async def test_an_idle_majority_does_not_keep_giving_out_the_uncommitted_one(
    tmp_path: Path, clock: MockClock
) -> None:
    """n3 has the file of the epoch before, and n2 comes back before it has its copy."""
    async with without(tmp_path, 3, "n3") as nodes:
        await nodes.crash()
        nodes.configs["n3"] = nodes.config
        promoted(nodes, "n2")
        nodes.network.isolate("n1", "n2", "n3")
        await nodes.start()
        await nodes.wait_for("asked", lambda: bool(nodes.status("n3").trouble))
        await trio.sleep(5)
        nodes.network.heal_all()
        await nodes.wait_serving()
        await nodes.wait_for("copied", lambda: generation(nodes, "n3") == 1)
        await nodes.wait_in_step()


async def test_a_client_gets_no_uncommitted_copy_by_naming_a_ballot(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await load(nodes, 3)
        await nodes.crash("n2", "n3")
        async with nodes.connection("n1") as connection:
            with pytest.raises(HadronError):
                await produce(connection, b"not committed", timeout_s=1)
            promised = nodes.node("n1").member._store.identity.current.promised
            with pytest.raises(HadronError):
                await fetching.fetch(
                    connection,
                    tmp_path / "copy",
                    SystemDisk(),
                    min_lsn=0,
                    accept=lambda _: None,
                    on_progress=lambda _a, _b: None,
                    promised=promised,
                )
