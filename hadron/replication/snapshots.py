"""Gives copies of this node's state to peers and to backups (PROTOCOL B6).

One copy at a time lies in `outgoing/`, and everybody for whom it will do reads from it, in chunks,
each on its own: nothing here remembers who has read how far. It goes when it was not read for a
while, or when a newer one is wanted. Two backups would take it away from each other, and begin
anew, for ever: they stand in line.

Safety rule: a copy is given out only once the watermark covers its last entry, as this node's log
still has it: a leader's tables are ahead of the watermark, and what it had applied may be replaced
by another leader's entries.

Leader and member of one ballot do not wait for that among themselves when the watermark does not
move: the one that asks may be the very one that a majority lacks. With n2 behind the log's
beginning and n3's disk lost, n1 and n2 are the majority, and n2 can store nothing before it has a
copy; with n1's disk lost next, the tables that n1 needs are n2's. Such a copy says that it is not
committed, and is worth as much as entries that are sent ahead of the watermark, or copied by a
leader before it serves: if another leader's take their place, these tables have diverged, as an old
leader's have.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import trio
import xxhash

from hadron.model.errors import (
    CorruptionError,
    NotFoundError,
    NotReadyError,
    OverloadedError,
    RequestError,
)
from hadron.model.ids import NO_BALLOT, Ballot, LogPosition
from hadron.model.ports import Clock, Disk
from hadron.replication.ballot import run_on_writer
from hadron.replication.follower import FollowerLog
from hadron.replication.membership import Membership
from hadron.replication.verification import KeptBodiesCheck
from hadron.state.leadership import latest_uuid
from hadron.storage.bodies import damaged_entry
from hadron.storage.database import open_reader, translated_os_errors
from hadron.storage.generations import OUTGOING
from hadron.storage.log import position_at
from hadron.storage.report import Check, Report
from hadron.storage.snapshot import CHUNK_BYTES, Copying, Manifest, note_committed
from hadron.storage.store import Store
from hadron.storage.verify import LogCheck, read_slice
from hadron.wire.calls import AnyCall, Call
from hadron.wire.messages import ballot_from, check_number, snapshots_pb2
from hadron.wire.services import Served, served

_log = logging.getLogger(__name__)

_WATERMARK_PATIENCE_S: Final = 20.0
"""How long a copy may wait for the watermark. Without a majority it does not move at all."""

_LINE_PATIENCE_S: Final = 300.0
"""How long a backup waits for those before it: half of the time for which it asks for its copy."""

_LINE_POLL_S: Final = 0.1

_BALLOT_PATIENCE_S: Final = 1.0
"""The same between leader and member of one ballot: a majority moves it within milliseconds."""

_WATERMARK_POLL_S: Final = 0.01

_READ_S: Final = 5.0
"""Who fetches a copy reads again within that time, or has gone."""

_IDLE_S: Final = 30.0
"""How long a copy that nobody reads is kept, and the log's rows from its end on: for one who lost
the connection and comes back, and for its first entries after the installation. Their bodies the
leader keeps for a member (`Feeding.droppable_lsn`)."""


_Open: TypeAlias = Call[snapshots_pb2.OpenSnapshotRequest, snapshots_pb2.OpenSnapshotResponse]
_Read: TypeAlias = Call[snapshots_pb2.ReadSnapshotRequest, snapshots_pb2.ReadSnapshotResponse]


class _Asker(NamedTuple):
    """Who asks for a copy.

    Attributes:
        promised: the ballot that it has promised last.
        leads: whether that is its own.
    """

    promised: Ballot
    leads: bool

    @property
    def is_member(self) -> bool:
        return self.promised != NO_BALLOT


class _Outgoing:
    """A copy that is being fetched."""

    def __init__(self, path: Path, manifest: Manifest, chunks: list[bytes]) -> None:
        self.path = path
        self.manifest = manifest
        self._chunks = chunks
        """Hash of every `CHUNK_BYTES`: whoever fetches a copy that this disk has damaged since
        would find out at its end, and fetch the same one again."""
        self.unpin: Callable[[], None] = lambda: None
        self.read_s = 0.0
        """When it was last read, on the monotonic clock."""
        self.is_for_member = False
        self.is_fetched = False
        """Whether its end was read last: who fetched it is done."""

    def read(self, offset: int, size: int, disk: Disk) -> bytes:
        """Blocking. `size` bytes at most. Raises `CorruptionError`."""
        first = offset // CHUNK_BYTES
        pieces: list[bytes] = []
        with translated_os_errors(self.path):
            for index in range(first, -(-(offset + size) // CHUNK_BYTES)):
                data = disk.read_at(self.path, index * CHUNK_BYTES, CHUNK_BYTES)
                if [xxhash.xxh3_128_digest(data)] != self._chunks[index : index + 1]:
                    raise CorruptionError(
                        f"{self.path} is damaged near byte {index * CHUNK_BYTES}",
                        "a new copy is made when it is asked for",
                    )
                pieces.append(data)
        start = offset - first * CHUNK_BYTES
        return b"".join(pieces)[start : start + size]


class SnapshotService:
    """Serves `hadron.v1.Snapshots`. `run` must be running."""

    def __init__(
        self,
        membership: Membership,
        store: Store,
        follower: FollowerLog,
        disk: Disk,
        clock: Clock,
        *,
        version: str,
        pin: Callable[[int], Callable[[], None]],
        found: Callable[[CorruptionError], object],
        search: Callable[[CorruptionError], None],
        require_member: Callable[[AnyCall], None],
        confirm: Callable[[], Awaitable[None]],
    ) -> None:
        """
        Args:
            pin: keeps the log from an lsn on until what it returns is called.
            found: told of a damaged entry that a copy has brought to light.
            search: told of a page that nobody can read; which one, SQLite does not say.
            require_member: raises unless a call comes from a member of this replica set.
            confirm: raises `NotReadyError`, `FencedError` when this node thinks that it leads, and
                no majority follows it now.
        """
        self._confirm = confirm
        self._require_member = require_member
        self._found = found
        self._search = search
        self._pin = pin
        self._membership = membership
        self._store = store
        self._follower = follower
        self._disk = disk
        self._clock = clock
        self._version = version
        self._making = trio.Lock()
        self._line = trio.Lock()
        """Of backups: it wakes them in the order in which they came."""
        self._members_waiting = 0
        self._made = 0
        self._current: _Outgoing | None = None

    def methods(self) -> tuple[Served, ...]:
        pb = snapshots_pb2
        return (
            served("OpenSnapshot", pb.OpenSnapshotRequest, pb.OpenSnapshotResponse, self._open),
            served("ReadSnapshot", pb.ReadSnapshotRequest, pb.ReadSnapshotResponse, self._read),
        )

    async def run(self) -> None:
        """Remove copies that nobody reads any more, for ever."""
        while True:
            await trio.sleep(_IDLE_S / 4)
            current = self._current
            if current and self._clock.monotonic_s() - current.read_s > _IDLE_S:
                await self._drop_current()

    async def _drop_current(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            current.unpin()
            await self._disk.do(partial(self._disk.remove, current.path))

    # --- opening --------------------------------------------------------------------------------

    def _open(
        self, call: _Open, request: snapshots_pb2.OpenSnapshotRequest, _attachment: memoryview
    ) -> None:
        min_lsn = check_number("lsn", request.min_lsn)
        asker = _Asker(ballot_from(request.promised), request.leads)
        if asker.is_member:
            # Only a member knows what it must not believe of a copy that is not committed.
            self._require_member(call)

        async def answer() -> None:
            if asker.is_member or self._find(min_lsn, request.hash, asker) is not None:
                manifest = await self._copy(min_lsn, request.hash, asker)
            else:
                async with self._behind_other_backups():
                    # Before it is anybody's turn: without a majority it takes seconds, and the
                    # member that comes next may be the very one that a majority lacks.
                    await self._confirm_leads()
                    manifest = await self._copy(min_lsn, request.hash, asker)
            call.send(snapshots_pb2.OpenSnapshotResponse(manifest=manifest.encode()), end=True)

        call.spawn(answer)

    async def _copy(self, min_lsn: int, digest: str, asker: _Asker) -> Manifest:
        """The copy that there is, if it will do; else a new one."""
        async with self._turn(asker):
            manifest = self._find(min_lsn, digest, asker)
            if manifest is None:
                self._leave_to_member(asker)
                manifest = await self._make(min_lsn, asker)
            assert self._current is not None
            self._current.is_for_member |= asker.is_member
            return manifest

    @contextlib.asynccontextmanager
    async def _behind_other_backups(self) -> AsyncIterator[None]:
        """Once nobody fetches a copy for a backup, and those who came before have theirs. Raises
        `NotReadyError` when that takes too long."""
        begun_s = self._clock.monotonic_s()
        async with self._line:
            while self._is_fetched_for_backup():
                if self._clock.monotonic_s() >= begun_s + _LINE_PATIENCE_S:
                    raise NotReadyError(
                        f"another backup is fetched from {self._membership.node} for longer than "
                        f"{_LINE_PATIENCE_S:g} s",
                        "a backup can be made as soon as that is done, or of another node now",
                    )
                await trio.sleep(_LINE_POLL_S)
            yield

    def _is_fetched_for_backup(self) -> bool:
        current = self._current
        return (
            current is not None
            and not (current.is_for_member or current.is_fetched)
            and self._clock.monotonic_s() - current.read_s <= _READ_S
        )

    @contextlib.asynccontextmanager
    async def _turn(self, asker: _Asker) -> AsyncIterator[None]:
        self._members_waiting += asker.is_member
        try:
            await self._making.acquire()
        finally:
            self._members_waiting -= asker.is_member
        try:
            yield
        finally:
            self._making.release()

    def _leave_to_member(self, asker: _Asker) -> None:
        """Raises `NotReadyError` for a backup that would take the copy away which a member fetches,
        or be made while one waits for its turn: that one counts in no majority before it has its
        copy, and a backup can wait."""
        if asker.is_member:
            return
        current = self._current
        fetches = (
            current is not None
            and current.is_for_member
            and self._clock.monotonic_s() - current.read_s <= _READ_S
        )
        if fetches or self._members_waiting:
            raise NotReadyError(
                f"a member of the replica set fetches its copy from {self._membership.node}",
                "a backup can be made as soon as that is done, or of another node now",
            )

    async def _confirm_leads(self) -> None:
        """A backup of a leader has what was acknowledged when it was asked for. One that was
        deposed, and does not know, has not, nor has one whose disk has forgotten something
        (PROTOCOL B3); a member's ballot is compared by itself."""
        if self._membership.is_leader and not self._store.identity.current.is_member:
            raise NotReadyError(
                f"the disk of {self._membership.node} may lack what was acknowledged: the others "
                "have not taught it yet",
                "make the backup of another node",
            )
        try:
            await self._confirm()
        except NotReadyError as error:
            raise NotReadyError(
                f"{self._membership.node} leads, and cannot tell whether it still does: "
                f"{error.message}",
                "start one of the nodes that are away (`hadron status` names them), or make the "
                "backup of another that is up (`--node`); or stop this one and make it of its "
                "files: `hadron backup DEST --data DIR`",
            ) from error

    def _find(self, min_lsn: int, digest: str, asker: _Asker) -> Manifest | None:
        current = self._current
        if current is None:
            return None
        manifest = current.manifest
        if not manifest.is_committed and not self._shares_ballot(manifest.position, asker):
            is_read = self._clock.monotonic_s() - current.read_s < _READ_S
            if self._follower.committed_lsn < manifest.lsn and is_read:
                # Dropping it for one that has to wait for that very member would keep it away.
                raise NotReadyError(
                    f"no majority has confirmed entry {manifest.lsn}, a member without which there "
                    "is none fetches its copy first",
                    "see `hadron status` for the nodes that are away",
                )
            return None
        if manifest.hash == digest or 0 < min_lsn <= manifest.lsn:
            current.read_s = self._clock.monotonic_s()
            return manifest
        return None

    def _shares_ballot(self, position: LogPosition, asker: _Asker) -> bool:
        """Whether the asker may have tables above the watermark: this node leads it, and made the
        entry at `position` itself; or has promised to follow it."""
        promised = self._store.identity.current.promised
        if asker.leads:
            # Nobody else leads in its epoch; it may have tried another ballot since it asked.
            return promised.epoch == asker.promised.epoch
        return self._membership.is_leader and position.ballot == promised == asker.promised

    async def _make(self, min_lsn: int, asker: _Asker) -> Manifest:
        """Raises `NotReadyError` when no majority confirms it, or this node is behind."""
        if self._follower.stored_applied_lsn < min_lsn:
            raise NotReadyError(
                f"{self._membership.node} has applied entry {self._follower.stored_applied_lsn}, "
                f"the copy must hold entry {min_lsn}"
            )
        await self._drop_current()
        self._made += 1
        path = self._store.directory / OUTGOING / f"{self._made}.db"
        # Whoever installs the copy goes on from its end.
        unpin = self._pin(self._follower.stored_applied_lsn + 1)
        try:
            with contextlib.closing(await self._prepare(path)) as copying:
                while (position := await self._disk.do(copying.step)) is None:
                    pass
            await self._check(path)
            committed_lsn = await self._wait_committed(position, asker)
            if committed_lsn < position.lsn:
                await self._disk.do(partial(note_committed, path, committed_lsn, self._disk))
            manifest, chunks = await self._describe(path, position, committed_lsn)
        except BaseException as error:
            unpin()
            with trio.CancelScope(shield=True):
                await self._disk.do(partial(self._disk.remove, path))
            if isinstance(error, CorruptionError):
                raise self._damaged(error) from None
            raise
        self._current = _Outgoing(path, manifest, chunks)
        self._current.unpin = unpin
        self._current.read_s = self._clock.monotonic_s()
        _log.info("made a snapshot of %d bytes as of entry %d", manifest.size, manifest.lsn)
        return manifest

    def _damaged(self, error: CorruptionError) -> NotReadyError:
        """This node's own file cannot be copied: have it repaired; returns what to tell the asker,
        whose disk is not meant."""
        _log.error("no copy of this node's file can be made: %s", error.message)
        if error.lsn:
            self._found(error)
        else:
            self._search(error)
        return NotReadyError(
            f"{self._membership.node} has found damage on its own disk and repairs it first: "
            f"{error.message}",
            "fetch from another member meanwhile",
        )

    async def _prepare(self, path: Path) -> Copying:
        def prepare() -> None:
            with translated_os_errors(path):
                self._disk.make_directory(path.parent)
                spare = self._store.space.spare_bytes
                needed = self._store.path.stat().st_size + spare
                free = self._disk.free_bytes(path.parent)
            if free < needed:
                raise OverloadedError(
                    f"a copy of {self._store.path} needs {needed} bytes, {spare} of them for the "
                    f"log to go on, and {free} are free",
                    "make room on that disk, or fetch from another node",
                )

        await self._disk.do(prepare)
        return Copying(self._store.path, path, self._disk)

    async def _check(self, path: Path) -> None:
        """Look for damaged entries in a copy before it is given out: its receiver would refuse it,
        and could not tell whose disk it was. Raises `NotReadyError` while they are repaired."""
        report = Report()
        checks: list[Check] = [LogCheck(report, lambda _entry: ""), KeptBodiesCheck(report)]
        copy = await self._disk.do(partial(open_reader, path, vfs=self._disk.vfs))
        try:
            for check in checks:
                while not await self._disk.do(partial(read_slice, copy, check)):
                    pass
        finally:
            copy.close()
        for problem in report.problems:
            self._found(damaged_entry(problem.lsn, problem.text))
        if report.problems:
            raise NotReadyError(
                f"{self._membership.node} repairs its own log first: {report.problems[0].text}"
            )

    async def _wait_committed(self, position: LogPosition, asker: _Asker) -> int:
        """Returns `position.lsn` once it is committed, and for who may have it earlier the
        watermark when that does not move."""
        begun_s = trio.current_time()
        early = self._shares_ballot(position, asker)
        patience_s = _BALLOT_PATIENCE_S if early else _WATERMARK_PATIENCE_S
        # The watermark of a leader moves in callbacks, a replica's with what its leader says.
        while self._follower.committed_lsn < position.lsn:
            if not asker.is_member and self._members_waiting:
                # It may be the one that a majority lacks, and a backup can wait.
                patience_s = _BALLOT_PATIENCE_S
            if trio.current_time() >= begun_s + patience_s:
                break
            await trio.sleep(_WATERMARK_POLL_S)
        # On the writer, after the commit that is under way: the watermark moves before it, and
        # until then the file still has the entries that it drops.
        now, committed_lsn = await run_on_writer(
            self._store, lambda db: (position_at(db, position.lsn), self._follower.committed_lsn)
        )
        is_committed = committed_lsn >= position.lsn
        if not is_committed and not self._shares_ballot(position, asker):
            raise NotReadyError(
                f"no majority has confirmed entry {position.lsn} within {patience_s:g} s",
                "see `hadron status` for the nodes that are away",
            )
        if now != position:
            raise NotReadyError(f"entry {position.lsn} was replaced by another leader's")
        return position.lsn if is_committed else committed_lsn

    async def _describe(
        self, path: Path, position: LogPosition, committed_lsn: int
    ) -> tuple[Manifest, list[bytes]]:
        hasher = xxhash.xxh3_128()
        chunks: list[bytes] = []
        size = 0

        def read() -> bytes:
            with translated_os_errors(path):
                return self._disk.read_at(path, size, CHUNK_BYTES)

        while data := await self._disk.do(read):
            hasher.update(data)
            chunks.append(xxhash.xxh3_128_digest(data))
            size += len(data)
        # One that is being taught has a history before it is granted its membership.
        uuid = self._store.identity.current.uuid or await self._store.readers.run(latest_uuid)
        manifest = Manifest(
            cluster=self._membership.cluster,
            replica_set=self._membership.replica_set,
            node=self._membership.node,
            uuid=uuid.hex(),
            lsn=position.lsn,
            epoch=position.ballot.epoch,
            incarnation=position.ballot.incarnation,
            chain=position.chain.hex(),
            committed_lsn=committed_lsn,
            size=size,
            hash=hasher.hexdigest(),
            created_ms=self._clock.now_ms(),
            version=self._version,
        )
        return manifest, chunks

    # --- reading --------------------------------------------------------------------------------

    def _read(
        self, call: _Read, request: snapshots_pb2.ReadSnapshotRequest, _attachment: memoryview
    ) -> None:
        current = self._current
        if current is None or current.manifest.hash != request.hash:
            raise NotFoundError(
                f"snapshot {request.hash!r} is not on {self._membership.node} any more",
                "open another one",
                retryable=True,
            )
        current.read_s = self._clock.monotonic_s()
        offset = check_number("offset", request.offset)
        size = min(request.max_bytes or CHUNK_BYTES, CHUNK_BYTES, current.manifest.size - offset)
        if size < 0:
            raise RequestError(f"a snapshot of {current.manifest.size} bytes has none at {offset}")
        current.is_fetched = offset + size == current.manifest.size
        call.spawn_within(size, self._answer_read, call, current, offset, size)

    async def _answer_read(self, call: _Read, current: _Outgoing, offset: int, size: int) -> None:
        try:
            data = await self._disk.do(partial(current.read, offset, size, self._disk))
        except CorruptionError:
            if self._current is current:
                await self._drop_current()
            raise
        call.send(
            snapshots_pb2.ReadSnapshotResponse(hash=xxhash.xxh3_128_digest(data)), (data,), end=True
        )
