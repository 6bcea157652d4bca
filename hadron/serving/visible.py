"""The visible end of each stream here, its latest batches, and who wants to know when it moves.

Everything that reads a stream reads through this: nothing above the watermark is ever returned
(PROTOCOL A2). The latest batches are kept in memory, so that a record which has just been written
is delivered without going to the disk for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from typing import Final

import trio

from hadron.model.batch import StampedBatch
from hadron.model.errors import (
    CorruptionError,
    HadronError,
    LogTruncatedError,
    NotFoundError,
    NotReadyError,
    OffsetOutOfRangeError,
)
from hadron.model.ids import Ballot
from hadron.partition.observers import Observers, Order
from hadron.serving.catalog import Catalog
from hadron.state.events import BatchAppended, PartitionClosed, PartitionOpened, PartitionTrimmed
from hadron.state.streams import partitions as streams
from hadron.state.streams.ballots import ballot_at, ballot_ends
from hadron.state.streams.partitions import PartitionBounds
from hadron.storage.store import Store

_RECENT_BYTES: Final = 8 << 20
"""Of all streams together; the delivery of fresh records needs far less."""

STAMPED_BATCH_BYTES: Final = 512
"""Memory of a batch that is kept, beside its data: objects and what holds them, measured. Counted,
because batches of one small record would otherwise take five times their share."""

_BALLOTS: Final = 64
"""Ballots of which it is known where a stream ended: each takes some forty rows to find out. A
member whose acknowledgements are older has been away for as many changes of leaders."""

Watcher = Callable[[], None]


class VisibleStreams:
    """One per leadership."""

    def __init__(
        self,
        store: Store,
        ballot: Ballot,
        bounds: Mapping[int, PartitionBounds],
        replica_set: str,
        catalog: Catalog,
    ) -> None:
        self._store = store
        self._ballot = ballot
        self._replica_set = replica_set
        self._catalog = catalog
        self._first = {stream_id: known.first_offset for stream_id, known in bounds.items()}
        self._next = {stream_id: known.next_offset for stream_id, known in bounds.items()}
        self._begun = dict(bounds)
        self._ends: dict[int, list[tuple[Ballot, int]]] = {}
        self._watchers: dict[int, dict[Watcher, None]] = {}
        self._waiting: set[trio.Event] = set()
        self._ended: HadronError | None = None
        self._on_opened: list[Callable[[int], None]] = []
        self._on_gone: list[Callable[[Collection[int]], None]] = []
        self._recent: dict[int, deque[StampedBatch]] = {}
        self._order: deque[tuple[int, int]] = deque()
        self._recent_bytes = 0

    def bounds(self, stream_id: int) -> PartitionBounds:
        """Raises `NotFoundError` when the stream was deleted, or has no partition here."""
        following = self._next.get(stream_id)
        if following is None:
            label = self._catalog.by_id(stream_id).label
            raise NotFoundError(f"{label} has no partition on {self._replica_set}")
        return PartitionBounds(self._first[stream_id], following)

    async def learn_ends(self, stream_id: int) -> None:
        """Find out what `ended_at` tells of a stream; until then it tells nothing."""
        begun = self._begun.get(stream_id)
        if begun is not None and stream_id not in self._ends:
            ends = await self._store.readers.run(
                lambda db: ballot_ends(db, stream_id, begun, _BALLOTS)
            )
            if self._begun.get(stream_id) is begun:
                self._ends[stream_id] = ends

    def ended_at(self, stream_id: int, ballot: Ballot) -> int:
        """Where a stream ended when `ballot`, an earlier one, was over: what lies behind has come
        since. 0 where that is not known."""
        for known, end in self._ends.get(stream_id, ()):
            if known <= ballot:
                return end
        return 0

    def watch(self, stream_id: int, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` when the visible end, or the first kept offset, moves; returns how to
        stop that. It costs the same beside however many others: each long poll is one."""
        watchers = self._watchers.setdefault(stream_id, {})
        watchers[watcher] = None

        def stop() -> None:
            del watchers[watcher]
            # Streams come and go, and each was watched once.
            if not watchers and self._watchers.get(stream_id) is watchers:
                del self._watchers[stream_id]

        return stop

    async def wait_beyond(self, stream_id: int, offset: int) -> None:
        """Until the visible end lies behind `offset`. Raises `NotFoundError` once the stream is
        deleted, and the reason when leading ends (PROTOCOL A2)."""
        moved = trio.Event()

        def woken() -> None:
            moved.set()

        self._waiting.add(moved)
        unwatch = self.watch(stream_id, woken)
        try:
            while self.bounds(stream_id).next_offset <= offset:
                self._check_leads()
                await moved.wait()
                # A new one: retention moves the bounds too, and nothing has arrived by that.
                self._waiting.remove(moved)
                moved = trio.Event()
                self._waiting.add(moved)
        finally:
            unwatch()
            self._waiting.remove(moved)
        self._check_leads()

    def end(self, reason: HadronError) -> None:
        """Leading has ended: nothing is read here any more, and nobody waits."""
        self._ended = reason
        for moved in self._waiting:
            moved.set()

    def _check_leads(self) -> None:
        if self._ended is not None:
            raise self._ended

    def on_opened(self, listener: Callable[[int], None]) -> None:
        """Call `listener` with the id of each stream that has a partition here from now on."""
        self._on_opened.append(listener)

    def on_gone(self, listener: Callable[[Collection[int]], None]) -> None:
        """Call `listener` with the ids of streams that are deleted together, right before nothing
        of them can be read any more; it ends whatever it serves from there."""
        self._on_gone.append(listener)

    def observe(self, observers: Observers) -> None:
        """Keep in step with what becomes visible."""
        observers.add(
            Order.STREAMS,
            [BatchAppended, PartitionTrimmed, PartitionOpened, PartitionClosed],
            self._on_visible,
        )

    def _on_visible(
        self, events: Sequence[BatchAppended | PartitionTrimmed | PartitionOpened | PartitionClosed]
    ) -> None:
        # Those that a deletion closes follow each other: what is kept is looked through once.
        for is_closing, alike in groupby(events, lambda each: isinstance(each, PartitionClosed)):
            if is_closing:
                self._give_up(dict.fromkeys(each.stream_id for each in alike))
                continue
            for event in alike:
                self._move(event)
        for stream_id in dict.fromkeys(event.stream_id for event in events):
            for watcher in tuple(self._watchers.get(stream_id, ())):
                watcher()

    def _move(
        self, event: BatchAppended | PartitionTrimmed | PartitionOpened | PartitionClosed
    ) -> None:
        stream_id = event.stream_id
        if isinstance(event, BatchAppended):
            self._advance(event)
        elif isinstance(event, PartitionTrimmed):
            self._trimmed(stream_id, event.first_offset)
        else:
            self._first[stream_id] = self._next[stream_id] = 0
            for listener in self._on_opened:
                listener(stream_id)

    def _trimmed(self, stream_id: int, first_offset: int) -> None:
        limits = self.bounds(stream_id)
        assert limits.first_offset <= first_offset <= limits.next_offset, (first_offset, limits)
        self._first[stream_id] = first_offset

    def _give_up(self, stream_ids: Collection[int]) -> None:
        for listener in self._on_gone:
            listener(stream_ids)
        for stream_id in stream_ids:
            del self._next[stream_id], self._first[stream_id]
            self._recent.pop(stream_id, None)
            # One of the same id may be opened here again, from its beginning.
            self._begun.pop(stream_id, None)
            self._ends.pop(stream_id, None)
        kept = deque(each for each in self._order if each[0] not in stream_ids)
        self._recent_bytes = sum(size for _, size in kept)
        self._order = kept

    def _advance(self, event: BatchAppended) -> None:
        stream_id = event.stream_id
        assert event.base_offset == self._next[stream_id], (event.base_offset, stream_id)
        self._next[stream_id] = event.base_offset + event.count
        self._recent.setdefault(stream_id, deque()).append(
            StampedBatch(event.base_offset, event.count, event.append_ms, *self._ballot, event.data)
        )
        size = len(event.data) + STAMPED_BATCH_BYTES
        self._order.append((stream_id, size))
        self._recent_bytes += size
        while self._recent_bytes > _RECENT_BYTES and len(self._order) > 1:
            oldest, size = self._order.popleft()
            self._recent[oldest].popleft()
            self._recent_bytes -= size

    def recent(self, stream_id: int, offset: int, max_bytes: int) -> list[StampedBatch] | None:
        """Batches from the one that holds `offset` on, if they are in memory; [] at the end. They
        end before one whose bytes came with an earlier entry, and are read from the disk."""
        if offset >= self.bounds(stream_id).next_offset:
            return []
        known = self._recent.get(stream_id)
        if not known or offset < known[0].base_offset:
            return None
        start = bisect_right(known, offset, key=lambda batch: batch.base_offset) - 1
        found: list[StampedBatch] = []
        size = 0
        for index in range(start, len(known)):
            data = known[index].data
            if not len(data):
                return found or None
            found.append(known[index])
            size += len(data)
            if size >= max_bytes:
                break
        return found

    def ends_before(self, stream_id: int, offset: int, *, exists: bool = False) -> bool:
        """Whether `offset` is beyond the next to come, or, where a record `exists` there, is it."""
        return offset > self.bounds(stream_id).next_offset - exists

    def check(self, stream_id: int, offset: int, *, exists: bool = False) -> None:
        """Raises `OffsetOutOfRangeError` unless `offset` is kept, or the next to come."""
        limits = self.bounds(stream_id)
        if offset < limits.first_offset or self.ends_before(stream_id, offset, exists=exists):
            raise OffsetOutOfRangeError(
                f"offset {offset} was dropped by retention, the first kept offset is "
                f"{limits.first_offset}"
                if offset < limits.first_offset
                else f"offset {offset} is out of range, the partition has {limits.first_offset} "
                f"to {limits.next_offset}",
                "start at `earliest`, at `latest`, or at an offset in between",
            )

    async def read(self, stream_id: int, offset: int, max_bytes: int) -> list[StampedBatch]:
        """Visible batches from the one that holds `offset` on; [] at the visible end.

        Raises `OffsetOutOfRangeError`, and the reason when leading has ended meanwhile.
        """
        self._check_leads()
        self.check(stream_id, offset)
        found = self.recent(stream_id, offset, max_bytes)
        if found is not None:
            return found
        below = self.bounds(stream_id).next_offset
        try:
            found = await self._store.readers.run(
                lambda db: streams.read_batches(
                    db, stream_id, offset, below=below, max_bytes=max_bytes
                )
            )
        except CorruptionError as error:
            found = [await self._copied(stream_id, offset, error)]
        except (OffsetOutOfRangeError, NotFoundError):
            self.check(stream_id, offset)
            raise _not_committed(f"offset {offset} is just being dropped") from None
        assert all(batch.next_offset <= below for batch in found), (stream_id, offset, below)
        self._check_leads()
        return found

    async def _copied(self, stream_id: int, offset: int, error: CorruptionError) -> StampedBatch:
        """A batch that this disk has lost as another member has it. Raises `error` if none has
        given it to this node."""
        readers = self._store.readers
        if error.lsn not in readers.copies:
            raise error
        found = await readers.run_once(lambda db: streams.batch_at(db, stream_id, offset))
        data = readers.copies.get(error.lsn)
        if found is None or found.body_lsn != error.lsn or data is None:
            raise error
        return StampedBatch(
            found.base_offset, found.count, found.append_ms, *found.ballot, found.bytes_in(data)
        )

    def recent_ballot(self, stream_id: int, offset: int) -> Ballot | None:
        """Of the batch that holds a record, if it is in memory."""
        known = self._recent.get(stream_id)
        if not known or not known[0].base_offset <= offset < known[-1].next_offset:
            return None
        batch = known[bisect_right(known, offset, key=lambda batch: batch.base_offset) - 1]
        return Ballot(batch.epoch, batch.incarnation)

    async def ballot_before(self, stream_id: int, offset: int) -> Ballot | None:
        """Of the batch with the record before `offset`; None where no such record is kept. Raises
        the reason when leading has ended meanwhile."""
        limits = self.bounds(stream_id)
        if not limits.first_offset < offset <= limits.next_offset:
            return None
        known = self.recent_ballot(stream_id, offset - 1)
        if known is not None:
            return known
        found = await self._store.readers.run(lambda db: ballot_at(db, stream_id, offset - 1))
        self._check_leads()
        return found

    async def check_after(self, stream_id: int, offset: int, ballot: Ballot) -> None:
        """Raises `LogTruncatedError` unless the record before `offset` came under `ballot`, as far
        as can be told: retention may have dropped it (PROTOCOL D4)."""
        following = self.bounds(stream_id).next_offset
        if offset > following:
            found = f"it ends at offset {following}"
        else:
            has = await self.ballot_before(stream_id, offset)
            if has in (None, ballot):
                return
            found = f"it has another one there, of {has}"
        raise LogTruncatedError(
            f"the log at {self._replica_set} does not have the record before offset {offset} that "
            f"was read under ballot {ballot}: {found}",
            "it lost records by a recovery or a restored backup: read again from an offset that "
            "you trust",
        )

    async def offset_at(self, stream_id: int, at_ms: int) -> int:
        """The first visible offset appended at or after `at_ms`. Raises the reason when leading
        has ended meanwhile."""
        try:
            found, first = await self._store.readers.run(
                lambda db: (
                    streams.offset_at(db, stream_id, at_ms),
                    streams.bounds(db, stream_id).first_offset,
                )
            )
        except NotFoundError:
            self.bounds(stream_id)
            raise _not_committed("the stream is just being deleted") from None
        self._check_leads()
        limits = self.bounds(stream_id)
        if first > limits.first_offset:
            raise _not_committed(f"offset {limits.first_offset} is just being dropped")
        return min(found, limits.next_offset)


def _not_committed(what: str) -> NotReadyError:
    """Of what an entry has done that no majority has yet: it may still come back (PROTOCOL A2)."""
    return NotReadyError(what, "ask again")
