"""Which copies a node takes, and which it must not: every refusal of PROTOCOL B6, one by one."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import xxhash
from msgspec.structs import replace

from hadron.model.errors import PeerError
from hadron.model.ids import EMPTY_LOG, Ballot, LogPosition
from hadron.node.world import SystemDisk
from hadron.replication import fetching
from hadron.replication.fetching import SnapshotRefusedError, fetch
from hadron.replication.peers import PeerLink
from hadron.replication.resync import Installation, Resync, _Wanted
from hadron.replication.tests.support import (
    FIRST,
    UUID,
    Follower,
    follower,
    make_entries,
    membership,
    namespace_command,
)
from hadron.storage import snapshot
from hadron.storage.database import open_reader, transaction
from hadron.storage.generations import read_manifest
from hadron.storage.log import Entry, get_meta, position_at
from hadron.storage.snapshot import Manifest
from hadron.storage.space import SPARE_BYTES
from hadron.testing.nodes import SeededRandom
from hadron.wire.messages import snapshots_pb2

DISK = SystemDisk()
SECOND = Ballot(1, 2)


def entries(count: int, *, ballot: Ballot = FIRST, others_from: int = 99) -> list[Entry]:
    """The first `count` of one history; from `others_from` on, those of another one."""
    commands = [namespace_command(index) for index in range(count)]
    first = make_entries(EMPTY_LOG, FIRST, commands[:others_from])
    after = first[-1].position if first else EMPTY_LOG
    return first + make_entries(after, ballot, commands[others_from:], body=b"")


def hold(one: Follower, log: Sequence[Entry], committed: int, promised: Ballot = FIRST) -> None:
    one.promise(promised)
    one.append(promised, list(log), committed=committed, member_of=UUID)


class Source:
    """The other side of a connection: a node that has a copy, told to lie or to break."""

    peer = "n1"

    def __init__(self, directory: Path, log: Sequence[Entry]) -> None:
        self.path = directory / "copy.db"
        with follower(directory / "source", "n1") as one:
            hold(one, log, len(log), max(entry.ballot for entry in log))
            position = snapshot.take(one.store.path, self.path, DISK)
        self.manifest = self.describe(position)
        self.damaged = -1
        """Offset of a bit that is flipped on its way; -1 for none."""
        self.offsets: list[int] = []

    def is_committed_up_to(self, lsn: int) -> None:
        """From here on the copy is one that its leader gives out above the watermark."""
        snapshot.note_committed(self.path, lsn, DISK)
        self.manifest = replace(self.describe(self.manifest.position), committed_lsn=lsn)

    def describe(self, position: LogPosition) -> Manifest:
        size, digest = snapshot.measure(self.path, DISK)
        return Manifest(
            cluster="test",
            replica_set="local/p0",
            node="n1",
            uuid=UUID.hex(),
            lsn=position.lsn,
            epoch=position.ballot.epoch,
            incarnation=position.ballot.incarnation,
            chain=position.chain.hex(),
            committed_lsn=position.lsn,
            size=size,
            hash=digest,
            created_ms=1,
            version="0",
        )

    async def request(self, what: Any, message: Any, *, timeout_s: float) -> tuple[Any, memoryview]:
        assert timeout_s > 0
        if what is fetching._OPEN:
            answer = snapshots_pb2.OpenSnapshotResponse(manifest=self.manifest.encode())
            return answer, memoryview(b"")
        self.offsets.append(message.offset)
        data = DISK.read_at(self.path, message.offset, message.max_bytes)
        digest = xxhash.xxh3_128_digest(data)
        if message.offset <= self.damaged < message.offset + len(data):
            at = self.damaged - message.offset
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        return snapshots_pb2.ReadSnapshotResponse(hash=digest), memoryview(data)

    async def fetch(self, directory: Path) -> Manifest:
        return await fetch(
            self,  # type: ignore[arg-type]
            directory,
            DISK,
            min_lsn=1,
            accept=lambda _: None,
            on_progress=lambda _have, _size: None,
        )


async def resync(
    one: Follower, source: Source, node: str = "n2", disk: SystemDisk = DISK
) -> Installation:
    """What a node makes of a source's copy."""
    link = PeerLink("n1", "leader", "n1:7000")
    link.connection = source  # type: ignore[assignment]
    machinery = Resync(
        membership(3, node),
        one.store,
        one.log,
        None,  # type: ignore[arg-type]
        disk,
        SeededRandom(1),
        on_ready=lambda _: None,
        on_unreadable=lambda _: None,
    )
    return await machinery._fetch(link, _Wanted("for a test", 1, "n1"))


class SmallDisk(SystemDisk):
    """With so much room."""

    def __init__(self, free: int) -> None:
        self.free = free

    def free_bytes(self, path: Path) -> int:
        del path
        return self.free


class TestFetching:
    @pytest.fixture(autouse=True)
    def small_chunks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fetching, "CHUNK_BYTES", 8 << 10)

    async def test_what_does_not_fit_is_refused_with_what_it_needs(self, tmp_path: Path) -> None:
        source = Source(tmp_path, entries(20))
        size = source.manifest.size
        for spare in (0, 4 << 20, SPARE_BYTES):
            disk = SmallDisk(size + spare - 1)

            async def attempt(disk: SmallDisk = disk, spare: int = spare) -> Manifest:
                return await fetch(
                    source,  # type: ignore[arg-type]
                    tmp_path / "here",
                    disk,
                    min_lsn=1,
                    accept=lambda _: None,
                    on_progress=lambda _have, _size: None,
                    spare_bytes=spare,
                )

            with pytest.raises(
                SnapshotRefusedError,
                match=f"{size + spare} bytes are needed.*, and {disk.free} are free",
            ):
                await attempt()
            disk.free += 1
            assert await attempt() == source.manifest
            shutil.rmtree(tmp_path / "here")

    async def test_a_small_disk_is_rebuilt_with_the_reserve_that_it_has(
        self, tmp_path: Path
    ) -> None:
        source = Source(tmp_path, entries(20))
        with follower(tmp_path / "here") as one:
            hold(one, entries(10), 6)
            assert one.store.space.spare_bytes == 0
            installation = await resync(one, source, disk=SmallDisk(source.manifest.size))
            assert installation.position == source.manifest.position

    async def test_every_chunk_is_compared_with_its_hash_and_the_rest_is_kept(
        self, tmp_path: Path
    ) -> None:
        source = Source(tmp_path, entries(20))
        count = -(-source.manifest.size // (8 << 10))
        assert count > 5
        for chunk in range(count):
            source.damaged = chunk * (8 << 10) + chunk
            with pytest.raises(PeerError, match="do not match their hash"):
                await source.fetch(tmp_path / "here")
            part = tmp_path / "here" / "hadron.db"
            assert (part.stat().st_size if chunk else part.exists()) == chunk * (8 << 10)
        source.damaged = -1
        assert await source.fetch(tmp_path / "here") == source.manifest
        assert source.offsets.count(0) == 2

    async def test_a_copy_that_is_not_the_one_of_its_manifest_is_removed(
        self, tmp_path: Path
    ) -> None:
        source = Source(tmp_path, entries(20))
        for lie in (
            {"hash": "00" * 16},
            {"chain": "00" * 16},
            {"lsn": 19},
            {"incarnation": 7},
            {"committed_lsn": 19},
        ):
            true, source.manifest = source.manifest, replace(source.manifest, **lie)
            with pytest.raises(PeerError, match="a snapshot arrived damaged"):
                await source.fetch(tmp_path / "here")
            assert not any((tmp_path / "here").iterdir())
            source.manifest = true
        await source.fetch(tmp_path / "here")

    async def test_what_is_no_manifest_or_a_newer_one_touches_nothing(self, tmp_path: Path) -> None:
        source = Source(tmp_path, entries(20))
        source.manifest = replace(source.manifest, format=2)
        with pytest.raises(PeerError, match="has format 2, this Hadron knows 1"):
            await source.fetch(tmp_path / "here")
        source.manifest = replace(source.manifest, format=1, lsn=0)
        with pytest.raises(PeerError, match="what n1 sent was damaged"):
            await source.fetch(tmp_path / "here")
        assert not (tmp_path / "here").exists()


class TestRefusals:
    """This node holds 10 entries of ballot 1.1, of which 6 are committed."""

    @pytest.mark.parametrize(
        ("lie", "told"),
        [
            ({"cluster": "prod"}, "is of cluster prod, ours is test"),
            ({"replica_set": "eu/p1"}, "is of replica set eu/p1, ours is local/p0"),
            ({"uuid": "ff" * 16}, f"is of uuid {'ff' * 16}, ours is {UUID.hex()}"),
            ({"committed_lsn": 7, "node": "n3"}, "is not committed"),
            ({"incarnation": 2}, r"has ballot 1\.2, this node has promised 1\.1"),
        ],
    )
    async def test_before_any_of_it_is_fetched(
        self, tmp_path: Path, lie: dict[str, Any], told: str
    ) -> None:
        source = Source(tmp_path, entries(8))
        source.manifest = replace(source.manifest, **lie)
        with follower(tmp_path / "here") as one:
            hold(one, entries(10), 6)
            with pytest.raises(SnapshotRefusedError, match=told):
                await resync(one, source)
        assert source.offsets == []

    async def test_one_that_ends_before_what_is_committed_on_another_way(
        self, tmp_path: Path
    ) -> None:
        source = Source(tmp_path, entries(5, others_from=3, ballot=SECOND))
        with follower(tmp_path / "here") as one:
            hold(one, entries(10), 6)
            one.promise(SECOND)
            with pytest.raises(SnapshotRefusedError, match="ends at entry 5, this node knows"):
                await resync(one, source)
            assert one.stored_lsns() == list(range(1, 11))

    async def test_one_that_contradicts_what_is_committed(self, tmp_path: Path) -> None:
        """Two histories under one uuid: nobody can know which of them is the right one."""
        source = Source(tmp_path, entries(12, others_from=3, ballot=SECOND))
        with follower(tmp_path / "here") as one:
            hold(one, entries(10), 6)
            one.promise(SECOND)
            with pytest.raises(SnapshotRefusedError, match="entry 6 is committed here, and an"):
                await resync(one, source)
            assert one.stored_lsns() == list(range(1, 11))


class TestTrimmedMeanwhile:
    async def test_what_follows_a_copy_that_this_log_was_trimmed_beyond(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The copy ends at entry 8. While it is on its way, this node acknowledges up to 12, and
        trims its log: what it still has cannot come along, and must not go with the old file."""
        source = Source(tmp_path, entries(8))
        with follower(tmp_path / "here") as one:
            hold(one, entries(8), 8)
            installation = await resync(one, source)
            hold(one, entries(12), 12)
            with transaction(one.store.writer.connection):
                one.store.log.trim(10, max_rows=100)
            assert one.stored_lsns() == [11, 12]
        before = one.store.path.resolve()
        installation.finish(one.store.directory, before, DISK, FIRST)
        assert "as of entry 8 is not installed: this node's log begins behind 10" in caplog.text
        assert one.store.path.resolve() == before


class TestUncommitted:
    """Copies above the watermark, which the leader of the ballot that this node follows gives to a
    member without whom there is no majority. This node holds 10 entries, of which 6 are committed.
    """

    @pytest.mark.parametrize("leader_knows", [4, 7])
    async def test_one_of_the_leader_that_is_followed(
        self, tmp_path: Path, leader_knows: int
    ) -> None:
        source = Source(tmp_path, entries(8))
        source.is_committed_up_to(leader_knows)
        with follower(tmp_path / "here") as one:
            hold(one, entries(10), 6)
            installation = await resync(one, source)
            assert not installation.is_committed
        installation.finish(one.store.directory, one.store.path.resolve(), DISK, FIRST)
        assert one.store.path.resolve().parent == installation.generation
        with closing(open_reader(one.store.path)) as copy:
            assert get_meta(copy, "committed_lsn") == max(6, leader_knows)
            assert get_meta(copy, "applied_lsn") == 8
            assert position_at(copy, 10) == entries(10)[-1].position

    async def test_one_of_a_leader_that_was_followed(self, tmp_path: Path) -> None:
        source = Source(tmp_path, entries(8))
        source.is_committed_up_to(7)
        with follower(tmp_path / "here") as one:
            hold(one, entries(10), 6, SECOND)
            with pytest.raises(SnapshotRefusedError, match="is not committed"):
                await resync(one, source)
        assert source.offsets == []

    async def test_what_happened_after_it_was_fetched(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Entry 11 of ballot 1.2 was acknowledged to the next leader; it is in the file that would
        be replaced."""
        source = Source(tmp_path, entries(8))
        source.is_committed_up_to(7)
        with follower(tmp_path / "here") as one:
            hold(one, entries(7), 6)
            installation = await resync(one, source)
            hold(one, entries(8, others_from=7, ballot=SECOND), 6, SECOND)
        before = one.store.path.resolve()
        installation.finish(one.store.directory, before, DISK, SECOND)
        assert "not installed: it was for ballot 1.1, this node has promised 1.2" in caplog.text
        # And should a leader, which has raised its ballot since, have led with it meanwhile:
        replaced = dataclasses.replace(installation, leads=True)
        replaced.finish(one.store.directory, before, DISK, SECOND)
        assert "is not installed: this node's log ends at entry 8 of ballot 1.2" in caplog.text
        assert one.store.path.resolve() == before

    async def test_one_of_a_member_for_its_leader(self, tmp_path: Path) -> None:
        """As n1 stands with ballot 1.2 it takes n2's tables: the most advanced log there is."""
        source = Source(tmp_path, entries(8))
        source.is_committed_up_to(7)
        with follower(tmp_path / "here", "n1") as one:
            hold(one, entries(3), 2, SECOND)
            installation = await resync(one, source, "n1")
            assert installation.leads
        # It has tried another ballot meanwhile.
        third = Ballot(1, 3)
        installation.finish(one.store.directory, one.store.path.resolve(), DISK, third)
        assert one.store.path.resolve().parent == installation.generation

    async def test_one_of_a_member_whose_log_is_less_advanced(self, tmp_path: Path) -> None:
        """This log's entry 8 may be on a majority; nobody needs what contradicts it."""
        source = Source(tmp_path, entries(9))
        source.is_committed_up_to(6)
        with follower(tmp_path / "here", "n1") as one:
            hold(one, entries(8, others_from=6, ballot=SECOND), 6, SECOND)
            with pytest.raises(SnapshotRefusedError, match="not committed, this node's log ends"):
                await resync(one, source, "n1")


class TestTails:
    async def test_what_follows_the_copy_comes_along(self, tmp_path: Path) -> None:
        """This disk has acknowledged entries 9 and 10; a majority may count on that."""
        source = Source(tmp_path, entries(8))
        with follower(tmp_path / "here") as one:
            hold(one, entries(10), 6)
            installation = await resync(one, source)
            assert installation.position.lsn == 8
        with closing(open_reader(installation.generation / "hadron.db")) as copy:
            assert position_at(copy, 10) == entries(10)[-1].position

    async def test_an_uncommitted_tail_of_another_way_stays_behind(self, tmp_path: Path) -> None:
        source = Source(tmp_path, entries(8, others_from=6, ballot=SECOND))
        with follower(tmp_path / "here") as one:
            hold(one, entries(10), 6)
            one.promise(SECOND)
            installation = await resync(one, source)
        with closing(open_reader(installation.generation / "hadron.db")) as copy:
            assert position_at(copy, 8) == source.manifest.position
            assert position_at(copy, 9) is None

    async def test_a_copy_that_has_a_tail_is_never_taken_for_the_one_of_its_manifest(
        self, tmp_path: Path
    ) -> None:
        source = Source(tmp_path, entries(8))
        with follower(tmp_path / "here") as one:
            hold(one, entries(10), 6)
            installation = await resync(one, source)
            assert read_manifest(installation.generation) is None
