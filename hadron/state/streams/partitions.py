"""Streams: the partition of each stream that lives on this replica set.

A replica set holds at most one partition of a stream, so a stream's id names the partition here.
Safety rule: offsets are assigned by `apply` alone, from `next_offset`, so an offset means the same
record on every replica; what a producer sends again is known by its sequence (`producers`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from hadron.model.batch import NO_SEQUENCE, BatchHead, StampedBatch, check_batch
from hadron.model.errors import (
    CorruptionError,
    NotFoundError,
    OffsetMismatchError,
    OffsetOutOfRangeError,
)
from hadron.model.ids import Ballot
from hadron.model.ports import Database
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.state import bodies, slices
from hadron.state.bodies import KnownBody, Place
from hadron.state.events import BatchAppended, PartitionClosed, PartitionOpened
from hadron.state.machine import BatchShape, Command, Context, Feature
from hadron.state.names import label_of, no_partition
from hadron.state.streams import keys as stream_keys
from hadron.state.streams import producers
from hadron.state.streams.appends import move_end
from hadron.state.streams.keys import NO_OFFSET
from hadron.state.streams.producers import Appended
from hadron.state.streams.tables import STREAM_BATCH, STREAM_PARTITION, TABLES
from hadron.state.transactions import key_locks
from hadron.storage.bodies import BODY, damaged_entry, reading_entry

_KEPT: Final = "base_offset, count, bytes, append_ms, epoch, incarnation, lsn, body_lsn, start"
"""Of a batch, as `KeptBatch` has it."""

_INSERT_BATCH: Final = f"INSERT INTO {STREAM_BATCH} VALUES(?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL)"
_INSERT_PART: Final = f"INSERT INTO {STREAM_BATCH} VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_GET_BOUNDS: Final = f"SELECT first_offset, next_offset FROM {STREAM_PARTITION} WHERE stream_id = ?"
_BATCH_AT: Final = (
    f"SELECT {_KEPT}"
    f" FROM {STREAM_BATCH} WHERE stream_id = ? AND base_offset <= ? AND base_offset + count > ?"
    " ORDER BY base_offset DESC LIMIT 1"
)
_BATCH_BEFORE: Final = (
    f"SELECT max(base_offset) FROM {STREAM_BATCH} WHERE stream_id = ? AND base_offset <= ?"
)
_BATCHES: Final = (
    "SELECT s.lsn, s.base_offset, s.count, s.append_ms, s.epoch, s.incarnation,"
    f" s.bytes, b.bytes, s.body_lsn, s.start FROM {STREAM_BATCH} s"
    f" LEFT JOIN {BODY} b ON s.body_lsn IS NULL AND b.lsn = s.lsn"
    " WHERE s.stream_id = ? AND s.base_offset >= ? AND s.base_offset < ?"
    " ORDER BY s.base_offset"
)
_GET_BODY: Final = f"SELECT bytes FROM {BODY} WHERE lsn = ?"
_SET_PLACE: Final = (
    f"UPDATE {STREAM_BATCH} SET body_lsn = ?, start = ? WHERE stream_id = ? AND base_offset = ?"
)
_STAMPS: Final = (
    f"SELECT base_offset, count, append_ms FROM {STREAM_BATCH}"
    " WHERE stream_id = ? AND base_offset <= ? ORDER BY base_offset DESC LIMIT 1"
)


class AppendBatch(Command[Appended], frozen=True, array_like=True, tag=2):
    """Append a record batch, the entry's body or a part of it, to a stream's partition here."""

    stream_id: int
    count: int
    size: int
    """Bytes of the batch."""
    producer_id: bytes
    producer_epoch: int
    sequence: int

    is_joinable: ClassVar[bool] = True

    @property
    def batches(self) -> tuple[BatchShape, ...]:
        return (BatchShape(self.count, self.size),)

    @classmethod
    def of(cls, stream_id: int, head: BatchHead, size: int) -> AppendBatch:
        return cls(stream_id, head.n, size, head.pid, head.pep, head.seq)


class AppendGuarded(AppendBatch, frozen=True, array_like=True, tag=40):
    """An `AppendBatch` with more to it, of which plain ones pay nothing.

    Attributes:
        expect_offset: the first record gets this offset, or nothing is appended.
        expect_key_offset: the latest record with the first record's key has this one, or nothing is
            appended; -1: there is none.
        key_hashes: of the records, 8 bytes each, little-endian, 0 for none: of a stream whose keys
            are indexed. Empty where no record has a key.
        last_sequence: that the program of a named producer has given the last record; -1: none.
    """

    expect_offset: int | None = None
    expect_key_offset: int | None = None
    key_hashes: bytes = b""
    last_sequence: int = NO_SEQUENCE

    @property
    def rows(self) -> int:
        return 1 + len(self.key_hashes) // 8


class PartitionBounds(NamedTuple):
    """Offsets of a stream's partition here; `next_offset` is the next to be assigned."""

    first_offset: int
    next_offset: int


def apply_append_batch(context: Context, command: AppendBatch) -> Appended:
    if not command.producer_id or command.sequence == NO_SEQUENCE:
        return append(context, command.stream_id, command.count, command.size)
    recent = producers.check(context, command)
    appended = append(
        context, command.stream_id, command.count, command.size, sequence=command.sequence
    )
    producers.note(context, command, recent, appended)
    return appended


def apply_append_guarded(context: Context, command: AppendGuarded) -> Appended:
    """Raises `OffsetMismatchError` when a condition is not met, `ConflictError` while a transaction
    that is prepared here relies on one of the keys. What is known by its sequence was appended
    then, and its conditions are of the past."""
    recent: list[Appended] | None = None
    if command.producer_id and command.sequence != NO_SEQUENCE:
        recent = producers.check(context, command)
    key_locks.check_free(context, command.stream_id, command.key_hashes)
    check_conditions(context, command)
    if command.last_sequence != NO_SEQUENCE:
        producers.note_last(context, command, command.last_sequence)
    appended = append(
        context, command.stream_id, command.count, command.size, sequence=command.sequence
    )
    if recent is not None:
        producers.note(context, command, recent, appended)
    if command.key_hashes:
        stream_keys.note(context, command.stream_id, appended.base_offset, command.key_hashes)
    return appended


def check_conditions(context: Context, command: AppendGuarded) -> None:
    """Raises `OffsetMismatchError` when one is not met now."""
    db, stream_id = context.db, command.stream_id
    if (expected := command.expect_offset) is not None:
        actual = bounds(db, stream_id).next_offset
        if actual != expected:
            raise OffsetMismatchError(
                f"the next offset of {label_of(db, stream_id)} {context.place} is {actual}, not "
                f"{expected}: the record was not logged",
                "read what has come before it, and decide anew",
                expected=expected,
                actual=actual,
            )
    if (expected := command.expect_key_offset) is not None:
        key_hash = next(iter(stream_keys.hashes_of(command.key_hashes)), 0)
        actual = stream_keys.latest(db, stream_id, key_hash)
        if actual != expected:
            where = f"in {label_of(db, stream_id)} {context.place}"
            if actual == NO_OFFSET:
                found = (
                    f"there is no record of this key {where}, or it is dropped, none at {expected}"
                )
            else:
                not_at = (
                    f"not at {expected}" if expected != NO_OFFSET else "and there should be none"
                )
                found = f"the latest record of this key {where} is at offset {actual}, {not_at}"
            raise OffsetMismatchError(
                f"{found}: the record was not logged",
                "read the key's latest record, and decide anew",
                expected=expected,
                actual=actual,
            )


def append(
    context: Context,
    stream_id: int,
    count: int,
    size: int,
    *,
    sequence: int = NO_SEQUENCE,
    place: Place | None = None,
) -> Appended:
    """Give a batch the next `count` offsets of a stream.

    Args:
        place: where its bytes are: in a counted body of this or of an earlier entry. Without it
            they are this entry's body, or the part of it that is the command's.

    Raises `NotFoundError` when the stream has no partition here, or the bytes are not there.
    """
    base_offset = move_end(context, stream_id, count, size)
    assert base_offset >= 0 < count, (stream_id, base_offset, count)
    data = context.body
    batch = stream_id, base_offset, count, context.lsn, context.now_ms, size, *context.ballot
    if place is None and context.start is not None:
        place = Place(context.body_lsn or context.lsn, context.start)
    if place is None:
        context.db.execute(_INSERT_BATCH, batch)
    else:
        bodies.take(context, place, size)
        context.db.execute(_INSERT_PART, (*batch, *place))
        is_own = place.lsn == context.lsn
        data = memoryview(data)[place.start : place.start + size] if is_own else b""
    context.emit(BatchAppended(stream_id, base_offset, count, context.now_ms, size, data))
    return Appended(base_offset, count, context.now_ms, sequence)


def _open(context: Context, item: SchemaObject) -> None:
    """Make a stream's partition here, empty, unless it exists."""
    assert isinstance(item.spec, StreamSpec)
    if context.is_here(*item.spec.partitions):
        context.db.execute(
            f"INSERT INTO {STREAM_PARTITION} VALUES(?, 0, 0, 0) ON CONFLICT DO NOTHING", (item.id,)
        )
        if context.db.changes():
            context.emit(PartitionOpened(item.id))
            context.machine.open(context, item)


def _close(context: Context, stream_id: int) -> bool:
    """Nobody reads a deleted stream's partition or writes to it from here on."""
    db = context.db
    db.execute(f"DELETE FROM {STREAM_PARTITION} WHERE stream_id = ?", (stream_id,))
    if db.changes():
        context.emit(PartitionClosed(stream_id))
    left = db.execute(f"SELECT 1 FROM {STREAM_BATCH} WHERE stream_id = ? LIMIT 1", (stream_id,))
    return left.fetchone() is not None


def share(context: Context, stream_id: int, offset: int) -> tuple[Place, KeptBatch]:
    """The batch that holds an offset, and where its bytes are, which other batches may have as well
    from here on (`append`).

    Raises `NotFoundError` when there is no such batch.
    """
    found = batch_at(context.db, stream_id, offset)
    if found is None:
        raise NotFoundError(f"{label_of(context.db, stream_id)} has no offset {offset} here")
    if found.place is None:
        place = Place(found.lsn, 0)
        known = KnownBody(found.size, found.append_ms, found.ballot)
        bodies.count_batch(context, known, found.lsn)
        context.db.execute(_SET_PLACE, (*place, stream_id, found.base_offset))
        return place, found
    return found.place, found


@dataclass(frozen=True, slots=True)
class Slice:
    """Batches by their bodies: those that are whole, and the counted ones of the others. `end` is
    the offset behind them, `bytes` their size."""

    lsns: list[int]
    counted: list[int]
    end: int
    bytes: int

    @property
    def count(self) -> int:
        return len(self.lsns) + len(self.counted)


def oldest(db: Database, stream_id: int, may_go: Callable[[int, int], bool]) -> Slice:
    """The oldest batches, up to one of which `may_go(lsn, offset behind it)` does not hold."""
    lsns: list[int] = []
    counted: list[int] = []
    behind = size = 0
    for lsn, body_lsn, end, batch_bytes in db.execute(
        f"SELECT lsn, body_lsn, base_offset + count, bytes FROM {STREAM_BATCH} WHERE stream_id = ?"
        " ORDER BY base_offset LIMIT ?",
        (stream_id, slices.SLICE_BATCHES),
    ):
        if size >= slices.SLICE_BYTES or not may_go(lsn, end):
            break
        if body_lsn is None:
            lsns.append(lsn)
        else:
            counted.append(body_lsn)
        behind, size = end, size + batch_bytes
    return Slice(lsns, counted, behind, size)


def drop(context: Context, stream_id: int, batches: Slice) -> None:
    """The stream's bounds are the caller's."""
    context.drop_bodies(context.db, batches.lsns)
    if batches.counted:
        bodies.let_go(context, batches.counted)
    context.db.execute(
        f"DELETE FROM {STREAM_BATCH} WHERE stream_id = ? AND base_offset < ?",
        (stream_id, batches.end),
    )


def _drop_some(context: Context, stream_id: int, portion: slices.Portion) -> slices.Dropped:
    """Batches, as far as no member needs them."""
    db = context.db
    batches = oldest(db, stream_id, lambda lsn, _end: lsn <= portion.until_lsn)
    if batches.count:
        drop(context, stream_id, batches)
        return slices.Dropped(batches.count, batches.bytes)
    left = db.execute(f"SELECT 1 FROM {STREAM_BATCH} WHERE stream_id = ?", (stream_id,)).fetchone()
    return slices.Dropped(0, is_done=left is None)


FEATURE: Final = Feature(
    name="streams",
    tables=TABLES,
    commands={AppendBatch: apply_append_batch, AppendGuarded: apply_append_guarded},
    declared={"Stream": _open},
    deleted={"Stream": _close},
    leftovers={"Stream": _drop_some},
)


# --- reading ------------------------------------------------------------------------------------


def bounds(db: Database, stream_id: int) -> PartitionBounds:
    """Raises `NotFoundError` when the stream has no partition here."""
    row = db.execute(_GET_BOUNDS, (stream_id,)).fetchone()
    if row is None:
        raise no_partition(db, stream_id)
    return PartitionBounds(*row)


def is_open(db: Database, stream_id: int) -> bool:
    """Whether a stream has a partition here."""
    row = db.execute(
        f"SELECT 1 FROM {STREAM_PARTITION} WHERE stream_id = ?", (stream_id,)
    ).fetchone()
    return row is not None


def all_bounds(db: Database) -> dict[int, PartitionBounds]:
    rows = db.execute(f"SELECT stream_id, first_offset, next_offset FROM {STREAM_PARTITION}")
    return {stream_id: PartitionBounds(first, following) for stream_id, first, following in rows}


def read_batches(
    db: Database, stream_id: int, offset: int, *, below: int, max_bytes: int
) -> list[StampedBatch]:
    """Whole batches from the one that holds `offset` on, up to `max_bytes` but at least one.

    Args:
        below: offsets from here on are not visible (the high watermark).

    They end before what is damaged or missing: what comes before it is good, and who goes on there
    is told.

    Raises `OffsetOutOfRangeError` when retention has dropped `offset`, `CorruptionError` when the
    batch that holds it is damaged or missing.
    """
    if offset >= below:
        return []
    batches: list[StampedBatch] = []
    parts = _Bodies(db)
    size = 0

    def reached() -> int:
        return batches[-1].next_offset if batches else offset

    try:
        with _naming_damage(db, stream_id, reached):
            for (
                lsn,
                base_offset,
                count,
                append_ms,
                epoch,
                incarnation,
                length,
                data,
                body_lsn,
                start,
            ) in _rows(db, stream_id, offset, below):
                if batches and base_offset != reached():
                    raise CorruptionError(f"offset {base_offset} comes next")
                if not batches and not base_offset <= offset < base_offset + count:
                    break
                if body_lsn is not None:
                    lsn = body_lsn
                    data = parts.part(body_lsn, start, length)
                if type(data) is not bytes:
                    raise damaged_entry(lsn, f"the body of entry {lsn} is missing")
                if len(data) != length:
                    raise CorruptionError(
                        f"entry {lsn} has a body of {len(data)} bytes, not {length}"
                    )
                check_batch(data)
                batches.append(
                    StampedBatch(base_offset, count, append_ms, epoch, incarnation, data)
                )
                size += len(data)
                if size >= max_bytes:
                    break
    except CorruptionError:
        if not batches:
            raise
    if not batches:
        first = bounds(db, stream_id).first_offset
        if offset >= first:
            raise _damaged(db, stream_id, offset, "it is missing")
        raise OffsetOutOfRangeError(
            f"offset {offset} was dropped by retention, the first kept offset is {first}",
            "start at `earliest`",
        )
    return batches


@dataclass(frozen=True, slots=True)
class KeptBatch:
    """What a stream knows of a batch beside its bytes. `lsn` is of the entry that has appended it;
    without a `place` all of that one's body is the batch."""

    base_offset: int
    count: int
    size: int
    append_ms: int
    ballot: Ballot
    lsn: int
    place: Place | None

    @property
    def body_lsn(self) -> int:
        return self.lsn if self.place is None else self.place.lsn

    def bytes_in(self, body: bytes | memoryview) -> bytes | memoryview:
        """Its bytes, which are a part of the body or all of it."""
        if self.place is None:
            return body
        return body[self.place.start : self.place.start + self.size]


def _kept(row: Sequence[Any]) -> KeptBatch:
    base_offset, count, size, append_ms, epoch, incarnation, lsn, body_lsn, start = row
    place = Place(body_lsn, start) if body_lsn is not None else None
    return KeptBatch(base_offset, count, size, append_ms, Ballot(epoch, incarnation), lsn, place)


def batch_at(db: Database, stream_id: int, offset: int) -> KeptBatch | None:
    """The batch that holds an offset, without its bytes; None when there is none.

    Raises `CorruptionError` when that cannot be read either.
    """
    with reading_entry(lambda: 0):
        row = db.execute(_BATCH_AT, (stream_id, offset, offset)).fetchone()
    return _kept(row) if row is not None else None


def _rows(db: Database, stream_id: int, offset: int, below: int) -> Iterator[tuple[Any, ...]]:
    start = db.execute(_BATCH_BEFORE, (stream_id, offset)).fetchone()
    if start is None or start[0] is None:
        return
    yield from db.execute(_BATCHES, (stream_id, start[0], below))


class _Bodies:
    """Bodies that batches are parts of. Neighbours mostly share one: it is not read for each."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._lsn = 0
        self._body: Any = None

    def part(self, lsn: int, start: int, size: int) -> bytes | None:
        """None where the body is not."""
        if lsn != self._lsn:
            row = self._db.execute(_GET_BODY, (lsn,)).fetchone()
            self._lsn, self._body = lsn, row[0] if row is not None else None
        return self._body[start : start + size] if type(self._body) is bytes else None


@contextlib.contextmanager
def _naming_damage(db: Database, stream_id: int, offset: Callable[[], int]) -> Iterator[None]:
    """Say of damage which record it has hit, and which entry can repair it."""
    try:
        with reading_entry(lambda: 0):
            yield
    except CorruptionError as error:
        raise _damaged(db, stream_id, offset(), error.message) from None


def _damaged(db: Database, stream_id: int, offset: int, what: str) -> CorruptionError:
    row = db.execute(
        f"SELECT coalesce(body_lsn, lsn) FROM {STREAM_BATCH} WHERE stream_id = ?"
        " AND base_offset <= ? AND base_offset + count > ? ORDER BY base_offset DESC LIMIT 1",
        (stream_id, offset, offset),
    ).fetchone()
    lsn = row[0] if row is not None else 0
    return damaged_entry(
        lsn,
        f"the batch at offset {offset} of {label_of(db, stream_id)} (entry {lsn or 'unknown'}) "
        f"is damaged: {what}",
        "it is not served until another member has given this node a good copy; "
        "`hadron verify` shows all that is damaged",
    )


@dataclass(frozen=True, slots=True)
class NamedBody:
    """What is known of a body that somebody needs, and of the batches that are parts of it."""

    known: KnownBody
    batches: list[KeptBatch]


def body_of(db: Database, lsn: int) -> NamedBody | None:
    """The body of entry `lsn`; None when nobody needs it. Looks at every batch for one that is not
    counted: for repairs."""
    known = bodies.find(db, lsn)
    if known is not None:
        rows = db.execute(f"SELECT {_KEPT} FROM {STREAM_BATCH} WHERE body_lsn = ?", (lsn,))
        return NamedBody(known, [_kept(row) for row in rows])
    row = db.execute(
        f"SELECT {_KEPT} FROM {STREAM_BATCH} WHERE lsn = ? AND body_lsn IS NULL", (lsn,)
    ).fetchone()
    if row is None:
        return None
    batch = _kept(row)
    return NamedBody(KnownBody(batch.size, batch.append_ms, batch.ballot), [batch])


def offset_at(db: Database, stream_id: int, at_ms: int) -> int:
    """The first offset appended at or after `at_ms`; the next offset when there is none.

    Append times never go back (PROTOCOL B8), so they are searched like a sorted list.
    """
    limits = bounds(db, stream_id)
    low, high = limits.first_offset, limits.next_offset
    while low < high:
        middle = (low + high) // 2
        row = db.execute(_STAMPS, (stream_id, middle)).fetchone()
        if row is None:
            return low
        base, count, append_ms = row
        if append_ms >= at_ms:
            high = base
        else:
            low = base + count
    return max(low, limits.first_offset)
