"""Backups and what is made of them: equal to the state at their entry, and never too much."""
# ruff: noqa: ARG001, ARG002 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from hadron.model.errors import (
    ConfigurationError,
    CorruptionError,
    DataDirectoryError,
    HadronError,
    LogTruncatedError,
    NotFoundError,
    PeerError,
    StorageError,
)
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node.backup import backup_directory, backup_live, find_node, open_backup, sole
from hadron.node.recovery import recover
from hadron.node.restore import restore_node, restore_set
from hadron.node.tests.support import STREAM, chains, fetch, is_member, make_stream, produce
from hadron.node.verification import verify_paths
from hadron.node.world import SystemDisk
from hadron.replication import fetching, snapshots
from hadron.replication.fetching import SnapshotRefusedError
from hadron.replication.follower import LostEntriesError
from hadron.storage import generations
from hadron.storage.database import PAGE_BYTES, connect, open_reader
from hadron.storage.identity import IdentityFile
from hadron.storage.snapshot import Manifest
from hadron.testing.nodes import Nodes, SeededRandom, running_nodes
from hadron.wire.system import SystemClock

DISK = SystemDisk()


async def load(nodes: Nodes, first: int, count: int) -> None:
    async with nodes.connection(nodes.config.leader.name) as connection:
        for number in range(first, first + count):
            await produce(connection, b"%d" % number, timeout_s=60)


async def values(nodes: Nodes) -> list[bytes]:
    async with nodes.connection(nodes.config.leader.name) as connection:
        return await fetch(connection)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


class FullDisk(SystemDisk):
    """One with so little room."""

    def __init__(self, free: int) -> None:
        super().__init__()
        self._free = free

    def free_bytes(self, path: Path) -> int:
        return self._free


async def take_backup(
    nodes: Nodes, name: str, destination: Path, disk: SystemDisk = DISK
) -> Manifest:
    async with nodes.client() as client:
        node = await find_node(client, name)
        return await backup_live(client, node.address, destination, disk, lambda _a, _b: None)


def rows(path: Path, table: str) -> list[Any]:
    with closing(open_reader(path)) as database:
        found: list[Any] = database.execute(f"SELECT * FROM {table}").fetchall()
        return found


class TestTaking:
    @pytest.mark.parametrize("name", ["n1", "n2"])
    async def test_under_load_it_is_the_state_at_its_entry(
        self, tmp_path: Path, clock: MockClock, name: str
    ) -> None:
        async with running_nodes(tmp_path, 3) as nodes:
            await make_stream(nodes)
            await load(nodes, 0, 20)
            await nodes.wait_in_step()
            acknowledged = 20
            done = trio.Event()

            async def write() -> None:
                nonlocal acknowledged
                while not done.is_set():
                    await load(nodes, acknowledged, 1)
                    acknowledged += 1

            async with trio.open_nursery() as nursery:
                nursery.start_soon(write)
                manifest = await take_backup(nodes, name, tmp_path / "backup")
                done.set()
            await nodes.wait_in_step()
            assert open_backup(tmp_path / "backup", DISK) == manifest
            assert not (tmp_path / "backup.part").exists()
            log = dict(chains(nodes, "n1"))
            assert log[manifest.lsn] == bytes.fromhex(manifest.chain)
            batches = rows(tmp_path / "backup" / "hadron.db", "hadron_stream_batch")
            live = rows(nodes.data("n1") / "hadron.db", "hadron_stream_batch")
            assert batches == live[: len(batches)]
            assert 20 <= len(batches) <= acknowledged
            assert manifest.committed_lsn == manifest.lsn <= nodes.status("n1").committed_lsn

    @pytest.mark.long
    async def test_what_is_not_committed_is_not_in_it(
        self, tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(snapshots, "_WATERMARK_PATIENCE_S", 2.0)
        async with running_nodes(tmp_path, 3) as nodes:
            await make_stream(nodes)
            await nodes.wait_in_step()
            await nodes.crash("n2", "n3")
            async with nodes.connection("n1") as connection:
                with pytest.raises(HadronError):
                    await produce(connection, b"alone", timeout_s=1)
            told: list[str] = []
            async with nodes.client() as client:
                with pytest.raises(
                    HadronError, match=r"whether it still does.*start one of the nodes that are"
                ):
                    await backup_live(
                        client,
                        nodes.config.leader.address,
                        tmp_path / "backup",
                        DISK,
                        lambda _a, _b: None,
                        lambda error: told.append(error.message),
                    )
            assert len(told) == 4
            assert not (tmp_path / "backup").exists()
            await nodes.start("n2")
            manifest = await take_backup(nodes, "n1", tmp_path / "backup")
            assert manifest.lsn == nodes.status("n1").committed_lsn

    async def test_it_needs_room_for_itself_and_not_for_a_log(
        self, tmp_path: Path, clock: MockClock
    ) -> None:
        async with running_nodes(tmp_path, 1) as nodes:
            await make_stream(nodes)
            size = (await take_backup(nodes, "n1", tmp_path / "first")).size
            free = size - 4096
            with pytest.raises(
                SnapshotRefusedError, match=rf": {size} bytes are needed, and {free} are free"
            ):
                await take_backup(nodes, "n1", tmp_path / "second", FullDisk(free))
            again = await take_backup(nodes, "n1", tmp_path / "second", FullDisk(size))
            assert again.size == size

    async def test_two_at_once_do_not_write_into_one_place(
        self, tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        original = fetching._read_chunk
        reads, may_read = trio.Event(), trio.Event()

        async def read(*given: Any) -> memoryview:
            reads.set()
            await may_read.wait()
            return await original(*given)

        monkeypatch.setattr(fetching, "_read_chunk", read)
        destination, part = tmp_path / "backup", tmp_path / "backup.part"
        async with running_nodes(tmp_path, 1) as nodes, trio.open_nursery() as nursery:
            await make_stream(nodes)
            nursery.start_soon(take_backup, nodes, "n1", destination)
            await reads.wait()
            with pytest.raises(DataDirectoryError, match=f"is being put together in {part}"):
                await take_backup(nodes, "n1", destination)
            may_read.set()
        open_backup(destination, DISK)
        # Who has found no backup, and comes when there is one.
        with pytest.raises(DataDirectoryError, match=f"{destination} exists"), sole(part, DISK):
            pass
        assert not part.exists()

    async def test_what_was_not_begun_leaves_nothing(
        self, tmp_path: Path, clock: MockClock
    ) -> None:
        async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
            address = nodes.config.leader.address
            await nodes.crash("n1")
            with pytest.raises(PeerError):
                await backup_live(client, address, tmp_path / "b", DISK, lambda _a, _b: None)
        assert not (tmp_path / "b.part").exists()

    async def test_it_goes_on_after_an_interruption(
        self, tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fetching, "CHUNK_BYTES", 16 << 10)
        original, reads = fetching._read_chunk, list[int]()

        async def read(connection: Any, manifest: Manifest, offset: int) -> memoryview:
            reads.append(offset)
            if len(reads) in (3, 5):
                connection.close()
            return await original(connection, manifest, offset)

        monkeypatch.setattr(fetching, "_read_chunk", read)
        async with running_nodes(tmp_path, 1) as nodes:
            await make_stream(nodes)
            await load(nodes, 0, 5)
            manifest = await take_backup(nodes, "n1", tmp_path / "backup")
            assert reads.count(0) == 1
            assert len(reads) == -(-manifest.size // (16 << 10)) + 2
            open_backup(tmp_path / "backup", DISK)

    @pytest.mark.long
    async def test_two_at_a_time_take_no_copies_from_each_other(
        self, tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fetching, "CHUNK_BYTES", 16 << 10)
        original, reads = fetching._read_chunk, list[int]()

        async def read(connection: Any, manifest: Manifest, offset: int) -> memoryview:
            if not reads:
                # No two copies are the same.
                await load(nodes, 5, 1)
                nursery.start_soon(take_backup, nodes, "n1", tmp_path / "second")
            reads.append(offset)
            await trio.sleep(1)
            return await original(connection, manifest, offset)

        monkeypatch.setattr(fetching, "_read_chunk", read)
        async with running_nodes(tmp_path, 1) as nodes:
            await make_stream(nodes)
            await load(nodes, 0, 5)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(take_backup, nodes, "n1", tmp_path / "first")
        assert reads.count(0) == 2
        first, second = (open_backup(tmp_path / name, DISK) for name in ("first", "second"))
        assert first.lsn < second.lsn

    async def test_nothing_is_overwritten(self, tmp_path: Path, clock: MockClock) -> None:
        (tmp_path / "backup").mkdir()
        (tmp_path / "backup" / "precious").touch()
        (tmp_path / "other.part").mkdir()
        (tmp_path / "other.part" / "precious").touch()
        async with running_nodes(tmp_path, 1) as nodes:
            for name in ("backup", "other"):
                with pytest.raises(DataDirectoryError, match="exists"):
                    await take_backup(nodes, "n1", tmp_path / name)
            async with nodes.client() as client:
                with pytest.raises(NotFoundError, match="no node 'n9'"):
                    await find_node(client, "n9")
        assert (tmp_path / "other.part" / "precious").exists()

    async def test_into_the_empty_directory_where_one_stands(
        self, tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`.` has no name that another could be made of."""
        for name in ("live", "stopped"):
            (tmp_path / name).mkdir()
        async with running_nodes(tmp_path / "nodes", 1) as nodes:
            monkeypatch.chdir(tmp_path / "live")
            await take_backup(nodes, "n1", Path())
        monkeypatch.chdir(tmp_path / "stopped")
        backup_directory(nodes.data("n1"), Path(), DISK, SystemClock())
        for name in ("live", "stopped"):
            open_backup(tmp_path / name, DISK)

    async def test_of_a_stopped_node(self, tmp_path: Path, clock: MockClock) -> None:
        async with running_nodes(tmp_path, 3) as nodes:
            await make_stream(nodes)
            await load(nodes, 0, 5)
            await nodes.wait_in_step()
            with pytest.raises(DataDirectoryError, match="is in use"):
                backup_directory(nodes.data("n2"), tmp_path / "backup", DISK, SystemClock())
            last = nodes.status("n2").last_lsn
        manifest = backup_directory(nodes.data("n2"), tmp_path / "backup", DISK, SystemClock())
        assert (manifest.lsn, manifest.committed_lsn, manifest.node) == (last, last, "n2")
        assert open_backup(tmp_path / "backup", DISK) == manifest
        with pytest.raises(DataDirectoryError, match="is not the data directory"):
            backup_directory(tmp_path, tmp_path / "other", DISK, SystemClock())


@pytest.fixture
async def backed_up(tmp_path: Path, clock: MockClock) -> Nodes:
    """Three stopped nodes with 20 records, and a backup of 10 of them."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await load(nodes, 0, 10)
        await nodes.wait_in_step()
        await take_backup(nodes, "n2", tmp_path / "backup")
        await load(nodes, 10, 10)
        await nodes.wait_in_step()
    return nodes


def with_epoch(nodes: Nodes, epoch: int) -> Any:
    return replace(nodes.config, epoch=epoch)


@asynccontextmanager
async def running_again(nodes: Nodes, *names: str) -> AsyncIterator[Nodes]:
    """The same directories under the current configuration."""
    async with trio.open_nursery() as nursery:
        again = Nodes(nodes.config.leader.data.parent, 3, nursery)
        again.config = nodes.config
        await again.start(*names)
        yield again
        await again.crash()
        nursery.cancel_scope.cancel()


class TestRestoringANode:
    async def test_it_learns_what_it_lacks_before_it_counts(
        self, tmp_path: Path, backed_up: Nodes
    ) -> None:
        shutil.rmtree(backed_up.data("n2"))
        restore_node(tmp_path / "backup", backed_up.config, "n2", DISK, overwrite=False)
        assert not is_member(backed_up, "n2")
        async with running_again(backed_up, "n1", "n2") as nodes:
            # n1 and the restored node are two of three, and must not be enough: of what n3 and a
            # lost n2 had acknowledged they know nothing.
            await nodes.wait_for("waiting", lambda: "remember" in nodes.status("n1").trouble)
            assert nodes.status("n1").state == "waiting for a majority"
            await nodes.start("n3")
            await nodes.wait_serving()
            assert await values(nodes) == numbers(20)
            await nodes.wait_for("a member", lambda: is_member(nodes, "n2"))
            await nodes.wait_in_step()
            assert chains(nodes, "n2") == chains(nodes, "n3")

    async def test_a_restored_leader_copies_first(self, tmp_path: Path, backed_up: Nodes) -> None:
        with pytest.raises(DataDirectoryError, match="--overwrite"):
            restore_node(tmp_path / "backup", backed_up.config, "n1", DISK, overwrite=False)
        restore_node(tmp_path / "backup", backed_up.config, "n1", DISK, overwrite=True)
        async with running_again(backed_up) as nodes:
            await nodes.wait_serving()
            assert await values(nodes) == numbers(20)

    async def test_over_what_a_killed_node_left(
        self, tmp_path: Path, backed_up: Nodes, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The restored file has no write-ahead log, and that must not count against it."""
        caplog.set_level(logging.INFO)
        mark_unclean(backed_up, "n3")
        manifest = restore_node(tmp_path / "backup", backed_up.config, "n3", DISK, overwrite=True)
        async with running_again(backed_up, "n3") as nodes:
            assert chains(nodes, "n3")[-1][0] == manifest.lsn
            assert f"its disk has the log up to entry {manifest.lsn}" in caplog.text
            assert "lost" not in nodes.status("n3").trouble

    async def test_what_it_promised_stays_promised(self, tmp_path: Path, backed_up: Nodes) -> None:
        before = identity(backed_up, "n3").promised
        restore_node(tmp_path / "backup", backed_up.config, "n3", DISK, overwrite=True)
        assert identity(backed_up, "n3").promised == before

    async def test_what_does_not_fit_changes_nothing(
        self, tmp_path: Path, backed_up: Nodes
    ) -> None:
        config = backed_up.config
        with pytest.raises(ConfigurationError, match="no node 'n7'"):
            restore_node(tmp_path / "backup", config, "n7", DISK, overwrite=True)
        with pytest.raises(ConfigurationError, match="the backup is of replica set local/p0"):
            restore_node(
                tmp_path / "backup", replace(config, cluster="other"), "n2", DISK, overwrite=True
            )
        with pytest.raises(StorageError, match="is not a complete backup"):
            restore_node(tmp_path, config, "n2", DISK, overwrite=True)
        alone = replace(config, nodes=config.nodes[:1])
        with pytest.raises(ConfigurationError, match="the only member"):
            restore_node(tmp_path / "backup", alone, "n1", DISK, overwrite=True)
        assert is_member(backed_up, "n2")
        assert generations.current_number(backed_up.data("n2")) == 0

    async def test_a_backup_of_before_a_restore_is_refused_into_an_empty_directory(
        self, tmp_path: Path, backed_up: Nodes
    ) -> None:
        """It would be refused by all its peers; on this machine their directories know."""
        founded = restore_set(
            tmp_path / "backup",
            with_epoch(backed_up, 2),
            DISK,
            SeededRandom("restore"),
            SystemClock(),
            overwrite=True,
        )
        config = with_epoch(backed_up, 2)
        shutil.rmtree(backed_up.data("n3"))
        # As if it had been left out of that: the latest history counts.
        shutil.rmtree(backed_up.data("n2"))
        backed_up.data("n2").mkdir()
        with closing(IdentityFile(backed_up.data("n2"), "test", "local/p0", "n2", DISK)) as old:
            old.adopt(
                bytes.fromhex(founded.manifest.uuid),
                is_member=True,
                promised=founded.manifest.position.ballot,
                config_digest=b"",
            )
        with pytest.raises(
            DataDirectoryError, match=f"{backed_up.data('n1')} belongs to replica set"
        ) as refused:
            restore_node(tmp_path / "backup", config, "n3", DISK, overwrite=False)
        assert "or start n3 with an empty directory" in refused.value.hint
        assert not backed_up.data("n3").exists()
        shutil.rmtree(backed_up.data("n1"))
        restore_node(tmp_path / "backup", config, "n3", DISK, overwrite=False)

    async def test_damage_anywhere_is_refused_and_changes_nothing(
        self, tmp_path: Path, backed_up: Nodes
    ) -> None:
        database = tmp_path / "backup" / "hadron.db"
        data = database.read_bytes()
        pages = len(data) // PAGE_BYTES
        assert pages > 20
        before = sorted(backed_up.data("n2").rglob("*"))
        for page in range(pages):
            damaged = bytearray(data)
            damaged[page * PAGE_BYTES + page * 97 % PAGE_BYTES] ^= 1 << page % 8
            for content in (bytes(damaged), data[: page * PAGE_BYTES]):
                database.write_bytes(content)
                with pytest.raises(CorruptionError, match="its manifest says"):
                    restore_node(tmp_path / "backup", backed_up.config, "n2", DISK, overwrite=True)
        assert is_member(backed_up, "n2")
        assert sorted(backed_up.data("n2").rglob("*")) == before
        database.write_bytes(data)
        restore_node(tmp_path / "backup", backed_up.config, "n2", DISK, overwrite=True)


def mark_unclean(nodes: Nodes, name: str) -> None:
    """As if it had been killed, and its write-ahead log removed since."""
    with closing(connect(nodes.data(name) / "node.db")) as database:
        database.execute("UPDATE identity SET clean = 0")


def identity(nodes: Nodes, name: str) -> Any:
    file = IdentityFile(nodes.data(name), "test", "local/p0", name, DISK)
    file.close()
    return file.current


class TestRestoringAll:
    async def test_a_member_that_was_left_out_is_of_another_history(
        self, tmp_path: Path, backed_up: Nodes
    ) -> None:
        paths = {name: backed_up.data(name) for name in ("n1", "n2", "n3")}
        remaining = tuple(node for node in backed_up.config.nodes if node.name != "n2")
        backed_up.config = replace(backed_up.config, nodes=remaining, epoch=2)
        founded = self.found(tmp_path, backed_up, overwrite=True)
        verified = verify_paths([*paths.values()])
        (agreement,) = verified.agreements
        assert (agreement.names, agreement.lsn) == (["n1", "n3"], founded.first.lsn)
        (apart,) = verified.apart
        assert apart.names == ["n2"]
        assert apart.why.startswith(
            "it is of another history, with epoch 1, than n1 and n3, with epoch 2, as after a "
            f"restore of the whole set: only entries up to {founded.first.lsn - 1} are the same"
        )
        assert apart.is_problem
        assert (verified.ok, verified.problem_count) == (False, 1)
        (apart,) = verify_paths([paths["n1"], paths["n2"]]).apart
        assert apart.is_problem
        # What was made before the restore is what it was made for.
        before = verify_paths([paths["n1"], tmp_path / "backup"])
        assert [each.names for each in before.apart] == [["the backup of n2"]]
        assert before.ok

    def found(self, tmp_path: Path, nodes: Nodes, *, overwrite: bool = False, seed: int = 1) -> Any:
        return restore_set(
            tmp_path / "backup",
            nodes.config,
            DISK,
            SeededRandom(seed),
            SystemClock(),
            overwrite=overwrite,
        )

    async def test_a_new_history_begins_where_the_backup_ends(
        self, tmp_path: Path, backed_up: Nodes
    ) -> None:
        old = identity(backed_up, "n3").uuid
        for name in backed_up.names:
            shutil.rmtree(backed_up.data(name))
        backed_up.config = with_epoch(backed_up, 2)
        founded = self.found(tmp_path, backed_up)
        assert founded.uuid != old
        async with running_again(backed_up) as nodes:
            await nodes.wait_serving()
            assert await values(nodes) == numbers(10)
            await load(nodes, 10, 5)
            await nodes.wait_in_step()
            assert await values(nodes) == numbers(15)
            assert chains(nodes, "n1") == chains(nodes, "n2") == chains(nodes, "n3")
            assert dict(chains(nodes, "n1"))[founded.first.lsn] == founded.first.chain
            assert nodes.status("n1").ballot.epoch == 2
            assert nodes.status("n1").ballot.incarnation > founded.first.ballot.incarnation

    async def test_an_id_from_behind_the_backup_is_of_no_other_stream(
        self, tmp_path: Path, backed_up: Nodes
    ) -> None:
        """A producer of a stream that the backup does not have is told so: it must not write into
        the next one that is made (PROTOCOL D3)."""
        spec = StreamSpec(partitions=("local/p0",))
        async with running_again(backed_up) as nodes:
            await nodes.wait_serving()
            async with nodes.client() as client:
                await client.apply([SchemaObject(kind="Stream", name="x", spec=spec)])
                (x,) = await client.objects("Stream", name="x")
        backed_up.config = with_epoch(backed_up, 2)
        self.found(tmp_path, backed_up, overwrite=True)
        async with running_again(backed_up) as nodes:
            await nodes.wait_serving()
            async with nodes.client() as client:
                await client.apply([SchemaObject(kind="Stream", name="y", spec=spec)])
                (y,) = await client.objects("Stream", name="y")
                assert y.id > x.metadata_index
                with pytest.raises(NotFoundError):
                    await client.fetch("x", "local/p0", 0, stream_id=x.id)
                assert await values(nodes) == numbers(10)

    async def test_cursors_from_behind_the_backup_are_refused(
        self, tmp_path: Path, backed_up: Nodes
    ) -> None:
        """Also where there are as many records again (PROTOCOL D4)."""
        async with running_again(backed_up) as nodes:
            await nodes.wait_serving()
            async with nodes.client() as client:
                (good,) = await client.offsets(STREAM, before=10)
                (lost,) = await client.offsets(STREAM)
            assert lost.next_offset > 10
        backed_up.config = with_epoch(backed_up, 2)
        self.found(tmp_path, backed_up, overwrite=True)
        async with running_again(backed_up) as nodes:
            await nodes.wait_serving()
            async with nodes.client() as client:
                for again in (0, lost.next_offset):
                    await load(nodes, 10, again)
                    with pytest.raises(LogTruncatedError, match=f"under ballot {lost.ballot}"):
                        await client.fetch(
                            STREAM,
                            "local/p0",
                            lost.next_offset,
                            stream_id=lost.stream_id,
                            after=lost.ballot,
                        )
                fetched = await client.fetch(
                    STREAM, "local/p0", 10, stream_id=good.stream_id, after=good.ballot
                )
                assert fetched.batches[0].epoch == 2

    @pytest.mark.parametrize("names", [("n1",), ("n4", "n5", "n6")])
    async def test_other_members_need_none_of_the_old_ones(
        self, tmp_path: Path, backed_up: Nodes, names: tuple[str, ...]
    ) -> None:
        for name in backed_up.names:
            shutil.rmtree(backed_up.data(name))
        template = backed_up.config.nodes[0]
        members = tuple(
            replace(
                template,
                name=name,
                address=f"{name}:7000",
                data=tmp_path / name,
                role="leader" if name == names[0] else "replica",
            )
            for name in names
        )
        backed_up.config = replace(backed_up.config, epoch=2, nodes=members)
        self.found(tmp_path, backed_up)
        async with running_again(backed_up) as nodes:
            await nodes.wait_serving()
            assert await values(nodes) == numbers(10)
            await load(nodes, 10, 2)

    async def test_a_member_of_the_old_history_is_refused(
        self, tmp_path: Path, backed_up: Nodes
    ) -> None:
        """It was forgotten on some machine, and has more entries than the others."""
        shutil.copytree(backed_up.data("n3"), tmp_path / "forgotten")
        backed_up.config = with_epoch(backed_up, 2)
        self.found(tmp_path, backed_up, overwrite=True)
        shutil.rmtree(backed_up.data("n3"))
        shutil.copytree(tmp_path / "forgotten", backed_up.data("n3"))
        async with running_again(backed_up) as nodes:
            await nodes.wait_serving()
            await nodes.wait_for(
                "refused", lambda: any("uuid" in peer.trouble for peer in nodes.status("n1").peers)
            )
            await load(nodes, 10, 3)
            assert await values(nodes) == numbers(13)

    async def test_the_epoch_must_be_raised_and_data_may_not_be_there(
        self, tmp_path: Path, backed_up: Nodes
    ) -> None:
        with pytest.raises(ConfigurationError, match="epoch 1, the backup knows epoch 1"):
            self.found(tmp_path, backed_up, overwrite=True)
        backed_up.config = with_epoch(backed_up, 2)
        with pytest.raises(DataDirectoryError, match="--overwrite"):
            self.found(tmp_path, backed_up)
        first = self.found(tmp_path, backed_up, overwrite=True)
        with pytest.raises(ConfigurationError, match="knows epoch 2"):
            self.found(tmp_path, backed_up, overwrite=True, seed=2)
        backed_up.config = with_epoch(backed_up, 3)
        second = self.found(tmp_path, backed_up, overwrite=True, seed=2)
        assert first.uuid != second.uuid


class TestRecovering:
    async def test_disks_that_forgot_go_on_with_what_they_have(
        self, tmp_path: Path, backed_up: Nodes
    ) -> None:
        for name in ("n1", "n2"):
            shutil.rmtree(backed_up.data(name))
            restore_node(tmp_path / "backup", backed_up.config, name, DISK, overwrite=False)
        async with running_again(backed_up, "n1", "n2") as nodes:
            await nodes.wait_for("waiting", lambda: "remember" in nodes.status("n1").trouble)
            with pytest.raises(DataDirectoryError, match="in use"):
                recover(backed_up.config, "n1", DISK)
        for name in ("n1", "n2"):
            end = recover(backed_up.config, name, DISK).end
            assert is_member(backed_up, name)
            assert end.chain == chains(backed_up, name)[-1][1]
        async with running_again(backed_up, "n1", "n2") as nodes:
            await nodes.wait_serving()
            # What n3 still has was acknowledged: that is the loss that was accepted.
            assert await values(nodes) == numbers(10)
            await load(nodes, 10, 2)
            kept = chains(nodes, "n3")
            await nodes.start("n3")
            error = await nodes.wait_stopped("n3")
            assert isinstance(error, LostEntriesError)
            assert chains(nodes, "n3") == kept
            assert await values(nodes) == numbers(12)

    async def test_a_lost_write_ahead_log(self, tmp_path: Path, backed_up: Nodes) -> None:
        """Alone a node refuses to go on by itself, and goes on when it is told to."""
        config = backed_up.config = replace(backed_up.config, nodes=backed_up.config.nodes[:1])
        mark_unclean(backed_up, "n1")
        with pytest.RaisesGroup(CorruptionError, flatten_subgroups=True, allow_unwrapped=True) as (
            caught
        ):
            async with running_again(backed_up):
                pass
        assert "hadron recover" in str(caught.value.exceptions[0])
        recover(config, "n1", DISK)
        store_identity = identity(backed_up, "n1")
        assert store_identity.is_member

    async def test_an_empty_disk_has_nothing_to_go_on_with(
        self, tmp_path: Path, backed_up: Nodes
    ) -> None:
        shutil.rmtree(backed_up.data("n1"))
        with pytest.raises(DataDirectoryError, match="no log to go on with"):
            recover(backed_up.config, "n1", DISK)
