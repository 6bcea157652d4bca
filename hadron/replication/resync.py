"""A node's own way back into step when the log cannot bring it there: a snapshot (PROTOCOL A1, B6).

Told by the leader (what this node lacks was trimmed, or its log parted before what is retained), or
found out here (its tables are not what the log makes of them), it fetches a copy from a peer beside
everything else, and then has itself reopened on it. It goes on promising and acknowledging entries
meanwhile: its log is sound, and others may need it for a majority.

Safety rule: nothing that this disk holds and others may count on is lost by an installation. So a
copy is refused when it ends below what is committed here, unless this log goes on from its end:
then that tail comes along. One that is not committed may contradict entries that are, or will be:
of them only those are taken that a leader would take instead of this node's log, or send it, and
only in the ballot in which they were asked for.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import trio

from hadron.model.backoff import Backoff
from hadron.model.errors import CorruptionError, HadronError, PeerError
from hadron.model.ids import NO_BALLOT, Ballot, LogPosition
from hadron.model.ports import Disk, Random
from hadron.replication.fetching import SnapshotRefusedError, fetch
from hadron.replication.follower import FollowerLog
from hadron.replication.membership import Membership
from hadron.replication.peers import PeerLink, PeerLinks
from hadron.storage.database import open_reader, translated_errors, translated_os_errors
from hadron.storage.generations import DATABASE, MANIFEST, next_generation, switch_to
from hadron.storage.log import position_at, read_anchor
from hadron.storage.snapshot import Manifest, copy_tail, head_of, note_committed
from hadron.storage.store import Store

_log = logging.getLogger(__name__)

_PAUSE_S: Final = 0.5
_MAX_PAUSE_S: Final = 5.0

_LOYAL_ATTEMPTS: Final = 4
"""Before others are asked than the one who was named: about 4 s."""

_UNREADABLE_TIMES: Final = 3
"""A tail that cannot be read so often is not just about to be repaired."""

_FEW_ROWS: Final = 1_000
"""A tail this short is copied while nothing else is done; longer ones first beside the writer."""

_ROUNDS: Final = 8


@dataclass(frozen=True, slots=True)
class Installation:
    """A verified copy, ready to become this node's database once its files are closed."""

    generation: Path
    position: LogPosition
    reason: str
    is_committed: bool = True
    asked_in: Ballot = NO_BALLOT
    """What this node had promised when it asked."""
    leads: bool = False
    """Whether that was its own ballot, and the copy is a member's."""

    def finish(self, directory: Path, old: Path, disk: Disk, promised: Ballot) -> None:
        """Blocking. Everything in `directory` is closed; `promised` is the last ballot that this
        node has promised. Raises `StorageError`.

        The old file need not have been closed in order: who reads it keeps its log beside it. The
        tail is taken from both, the copy gets a log of its own, and then the link moves; so at any
        crash `node.db`, which is not written here, is as right of the one as of the other.
        """
        with translated_os_errors(directory):
            kept, trouble = 0, ""
            if old.exists():
                if not self.is_committed:
                    trouble = self._trouble(old, disk, promised)
                if not trouble:
                    kept = copy_tail(old, self.generation / DATABASE, self.position, disk)
                    trouble = self._gap(old, disk)
            if trouble:
                _log.warning(
                    "a snapshot as of entry %d is not installed: %s", self.position.lsn, trouble
                )
                return
            switch_to(directory, self.generation, disk)
        _log.warning(
            "installed a snapshot as of entry %d and kept %d entries after it: %s",
            self.position.lsn,
            kept,
            self.reason,
        )

    def _trouble(self, old: Path, disk: Disk, promised: Ballot) -> str:
        """Why a copy that is not committed must not take the old file's place any more."""
        # A leader may have tried another ballot since: nobody else has any in its epoch.
        since = promised.epoch != self.asked_in.epoch if self.leads else promised != self.asked_in
        if since:
            return f"it was for ballot {self.asked_in}, this node has promised {promised} since"
        with translated_errors(old), contextlib.closing(open_reader(old, vfs=disk.vfs)) as reader:
            return _contradiction(
                self.position, position_at(reader, self.position.lsn), head_of(reader)
            )

    def _gap(self, old: Path, disk: Disk) -> str:
        """Why what follows the copy in the old log cannot have come along: it was trimmed beyond
        the copy's end since that was asked for."""
        with (
            translated_errors(old),
            contextlib.closing(open_reader(old, vfs=disk.vfs)) as reader,
            contextlib.closing(open_reader(self.generation / DATABASE, vfs=disk.vfs)) as copy,
        ):
            begins, end = read_anchor(reader).lsn, head_of(copy).lsn
        return f"this node's log begins behind {begins} by now" if end < begins else ""


def _contradiction(end: LogPosition, here: LogPosition | None, head: LogPosition) -> str:
    """Why the log that ends at `head`, with `here` at the same lsn, may hold what a majority counts
    on and a copy that ends at `end` lacks; "" when it cannot (PROTOCOL B2)."""
    if here == end or (head.ballot, head.lsn) < (end.ballot, end.lsn):
        return ""
    return f"this node's log ends at entry {head.lsn} of ballot {head.ballot}"


@dataclass(frozen=True, slots=True)
class _Wanted:
    reason: str
    min_lsn: int
    source: str
    """The node to ask first; "" for no preference."""


class Resync:
    """Gets a snapshot when one is wanted. `run` must be running."""

    def __init__(
        self,
        membership: Membership,
        store: Store,
        follower: FollowerLog,
        links: PeerLinks,
        disk: Disk,
        random: Random,
        *,
        on_ready: Callable[[Installation], None],
        on_unreadable: Callable[[CorruptionError], None],
    ) -> None:
        """
        Args:
            on_ready: closes the store, has the installation finished, and opens it again.
            on_unreadable: told when not even what must be kept of this node's file can be read.
        """
        self._on_unreadable = on_unreadable
        self._membership = membership
        self._store = store
        self._follower = follower
        self._links = links
        self._disk = disk
        self._random = random
        self._on_ready = on_ready
        self._wanted: _Wanted | None = None
        self._asked = trio.Event()
        self.progress = ""
        """For people; "" while no snapshot is wanted."""

    def want(self, reason: str, *, min_lsn: int = 0, source: str = "") -> None:
        """Have this node's state replaced by a copy that holds every entry up to `min_lsn`."""
        before = self._wanted
        if before is not None and before.min_lsn >= min_lsn and source in ("", before.source):
            return
        if before is None:
            _log.warning("this node resyncs by a snapshot: %s", reason)
            self.progress = f"waiting for a snapshot: {reason}"
        self._wanted = _Wanted(
            reason,
            max(min_lsn, before.min_lsn if before else 0),
            source or (before.source if before else ""),
        )
        self._asked.set()

    async def run(self) -> None:
        """Wait until a snapshot is wanted, fetch it, say that it is ready; then return."""
        if self._follower.diverged:
            self.want(self._follower.diverged)
        await self._asked.wait()
        backoff = Backoff(self._random, _PAUSE_S, _MAX_PAUSE_S)
        unreadable = 0
        for attempt in itertools.count():
            changed = self._links.changed
            for link in self._sources(only_first=attempt < _LOYAL_ATTEMPTS):
                wanted = self._wanted
                assert wanted is not None
                try:
                    installation = await self._fetch(link, wanted)
                except HadronError as error:
                    _log.info("no snapshot from %s: %s", link.name, error)
                    self.progress = f"waiting for a snapshot ({wanted.reason}): {error}"
                    # What a peer sends raises other errors: this node's own file is meant.
                    if isinstance(error, CorruptionError):
                        unreadable += 1
                        if unreadable == _UNREADABLE_TIMES:
                            self._on_unreadable(error)
                else:
                    self._on_ready(installation)
                    return
            with trio.move_on_after(backoff.next_s()):
                await changed.wait()

    def _sources(self, *, only_first: bool) -> list[PeerLink]:
        """Who is connected, the one who was named first; what has arrived in part came from
        there."""
        assert self._wanted is not None
        first = self._wanted.source
        if not first and not self._membership.is_leader:
            first = self._membership.leader
        links = [link for link in self._links.connected() if link.connection is not None]
        if only_first and first:
            return [link for link in links if link.name == first]
        # What a peer had when it shook hands says who is likely to have state; a young replica set
        # may have been empty then.
        return sorted(
            links,
            key=lambda link: (link.name != first, link.answer is None or not link.answer.last.lsn),
        )

    async def _fetch(self, link: PeerLink, wanted: _Wanted) -> Installation:
        connection = link.connection
        if connection is None:
            raise PeerError(f"{link.name} went away")
        generation = next_generation(self._store.directory)

        def show(have: int, size: int) -> None:
            self.progress = (
                f"fetching a snapshot from {link.name}, {have >> 20} of {size >> 20} MiB: "
                f"{wanted.reason}"
            )

        promised, leads = self._store.identity.current.promised, self._leads
        manifest = await fetch(
            connection,
            generation,
            self._disk,
            # Where this log begins, so that what follows the copy can be kept.
            min_lsn=max(wanted.min_lsn, self._follower.anchor.lsn, 1),
            accept=self._check_origin,
            on_progress=show,
            promised=promised,
            leads=leads,
            spare_bytes=self._store.space.spare_bytes,
        )
        # What is committed here may have moved on while it came.
        await self._check_position(manifest)
        await self._check_history(generation, manifest)
        await self._bring_tail(generation, manifest)
        return Installation(
            generation,
            manifest.position,
            wanted.reason,
            is_committed=manifest.is_committed,
            asked_in=promised,
            leads=leads,
        )

    @property
    def _leads(self) -> bool:
        """Whether this node's last promise is its own: nobody else leads in its epoch."""
        own = self._membership
        return own.is_leader and self._store.identity.current.promised.epoch == own.epoch

    def _check_origin(self, manifest: Manifest) -> None:
        """Raises `SnapshotRefusedError` for another replica set's, or a ballot that this node has
        not promised: entries of an older one could follow it then."""
        own = self._store.identity.current
        for what, ours, theirs in (
            ("cluster", self._membership.cluster, manifest.cluster),
            ("replica set", self._membership.replica_set, manifest.replica_set),
            ("uuid", own.uuid.hex() or manifest.uuid, manifest.uuid),
        ):
            if ours != theirs:
                raise SnapshotRefusedError(
                    f"the snapshot of {manifest.node} is of {what} {theirs}, ours is {ours}"
                )
        # Who leads a later epoch than this node's file has, the file does not tell.
        is_leader = (
            own.promised.epoch > self._membership.epoch or manifest.node == self._membership.leader
        )
        follows = is_leader and manifest.position.ballot == own.promised
        if not (manifest.is_committed or follows or self._leads):
            raise SnapshotRefusedError(f"the snapshot of {manifest.node} is not committed")
        if manifest.position.ballot > own.promised:
            raise SnapshotRefusedError(
                f"the snapshot of {manifest.node} has ballot {manifest.position.ballot}, this node "
                f"has promised {own.promised}"
            )

    async def _check_position(self, manifest: Manifest) -> None:
        """Raises `SnapshotRefusedError` when installing it would lose what is here."""
        end = manifest.position
        here = await self._store.readers.run(lambda db: position_at(db, end.lsn))
        if here == end:
            return
        if not manifest.is_committed and (
            trouble := _contradiction(end, here, self._follower.head)
        ):
            raise SnapshotRefusedError(
                f"the snapshot of {manifest.node} is not committed, {trouble}"
            )
        head, committed = self._follower.head.lsn, self._follower.committed_lsn
        if end.lsn < max(committed, self._follower.anchor.lsn):
            raise SnapshotRefusedError(
                f"the snapshot of {manifest.node} ends at entry {end.lsn}, this node knows that "
                f"{committed} is committed"
            )
        if here is None and end.lsn < head:
            raise SnapshotRefusedError(f"this node's log lacks entry {end.lsn}")

    async def _check_history(self, generation: Path, manifest: Manifest) -> None:
        """Raises `SnapshotRefusedError` when the copy's log contradicts what is committed here."""
        lsn = min(self._follower.committed_lsn, manifest.lsn)
        here = await self._store.readers.run(lambda db: position_at(db, lsn))
        path = generation / DATABASE

        def look() -> LogPosition | None:
            with contextlib.closing(open_reader(path, vfs=self._disk.vfs)) as copy:
                return position_at(copy, lsn)

        there = await self._disk.do(look)
        if here is not None and there is not None and here != there:
            raise SnapshotRefusedError(
                f"entry {lsn} is committed here, and another one in the snapshot of "
                f"{manifest.node}",
                "one of the two has data of another history; find out which before removing any",
            )

    async def _bring_tail(self, generation: Path, manifest: Manifest) -> None:
        """Copy most of what follows the snapshot in this log while the writer goes on."""
        # From here on the file is not the one of the manifest: no attempt may resume it.
        await self._disk.do(partial(self._seal, generation))
        known = self._follower.committed_lsn
        if manifest.committed_lsn < known:
            # A leader that has just begun may know less than its members do.
            await self._disk.do(
                partial(note_committed, generation / DATABASE, min(known, manifest.lsn), self._disk)
            )
        for _ in range(_ROUNDS):
            copied = await self._disk.do(
                partial(
                    copy_tail,
                    self._store.path,
                    generation / DATABASE,
                    manifest.position,
                    self._disk,
                )
            )
            if copied < _FEW_ROWS:
                break

    def _seal(self, generation: Path) -> None:
        with translated_os_errors(generation):
            self._disk.remove(generation / MANIFEST)
            self._disk.sync(generation)
