"""Retention: what a stream does not keep any longer, and whom that overtakes.

The leader decides when something is due, with the clock of the log; the command names an offset
and `apply` drops the whole batches below it, so that all replicas drop the same. Safety rule:
nobody is moved silently (PROTOCOL D2): a group or a pipeline that had not reached the dropped
records is moved over them in the same entry, and how many they were is counted.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from hadron.model.ports import Database
from hadron.state import slices
from hadron.state.events import PartitionTrimmed, RecordsSkipped
from hadron.state.machine import Command, Context, Feature, NoChange
from hadron.state.streams import partitions as streams
from hadron.state.streams.tables import STREAM_BATCH, STREAM_PARTITION


class TrimStream(Command["Trimmed"], frozen=True, array_like=True, tag=10):
    """Drop whole batches that lie below `first_offset`: the oldest, one slice of them."""

    uses_reserve: ClassVar[bool] = True

    stream_id: int
    first_offset: int


class Trimmed(msgspec.Struct, frozen=True):
    """What a slice did. `first_offset` is the stream's first kept offset now."""

    first_offset: int
    batches: int = 0
    bytes: int = 0
    skipped: tuple[RecordsSkipped, ...] = ()


def apply_trim_stream(context: Context, command: TrimStream) -> Trimmed:
    """Raises `NotFoundError` when the stream has no partition here."""
    db, stream_id = context.db, command.stream_id
    before, following = streams.bounds(db, stream_id)
    batches = _slice(db, stream_id, command.first_offset)
    if not batches.count:
        raise NoChange(Trimmed(before))
    first_offset = batches.end
    assert before < first_offset <= following, (before, first_offset, following)
    db.execute(
        f"UPDATE {STREAM_PARTITION} SET first_offset = ?, bytes = bytes - ? WHERE stream_id = ?",
        (first_offset, batches.bytes, stream_id),
    )
    streams.drop(context, stream_id, batches)
    context.machine.trim(context, stream_id, first_offset)
    context.emit(PartitionTrimmed(stream_id, first_offset))
    skipped = tuple(event for event in context.events if isinstance(event, RecordsSkipped))
    return Trimmed(first_offset, batches.count, batches.bytes, skipped)


def _slice(db: Database, stream_id: int, below: int) -> streams.Slice:
    """The oldest batches that end at or below `below`."""
    return streams.oldest(db, stream_id, lambda _lsn, end: end <= below)


FEATURE: Final = Feature(name="retention", commands={TrimStream: apply_trim_stream})


# --- reading ------------------------------------------------------------------------------------


class Due(msgspec.Struct, frozen=True):
    """What retention asks of a stream's partition now.

    Attributes:
        first_offset: batches below it are due; None when nothing is.
        held_back: more is due, but above the lsn that may be dropped.
        oldest_ms: when the oldest batch that is left was appended; None when none is.
        bytes: of all kept batches, those that are due included.
    """

    first_offset: int | None
    held_back: bool
    oldest_ms: int | None
    bytes: int


def due(db: Database, stream_id: int, *, older_than_ms: int, max_bytes: int, until_lsn: int) -> Due:
    """Look at the oldest batches of a stream, one slice of them.

    Args:
        older_than_ms: batches appended before are due; 0 for no limit of age.
        max_bytes: the oldest batches beyond it are due, but never the newest one; 0 for no limit.
        until_lsn: entries above it may not be dropped yet.
    """
    total = kept_bytes(db, stream_id)
    left, first_offset = total, None
    rows = db.execute(
        f"SELECT lsn, base_offset + count, append_ms, bytes FROM {STREAM_BATCH}"
        " WHERE stream_id = ? ORDER BY base_offset LIMIT ?",
        (stream_id, slices.SLICE_BATCHES + 1),
    ).fetchall()
    for lsn, end, append_ms, size in rows:
        over = 0 < max_bytes < left and left > size
        if not over and append_ms >= older_than_ms:
            return Due(first_offset, False, append_ms, total)
        if lsn > until_lsn:
            return Due(first_offset, True, append_ms, total)
        left -= size
        first_offset = end
    return Due(first_offset, False, None, total)


class Kept(msgspec.Struct, frozen=True):
    """What a stream's partition holds, and how many of the records were appended before a time."""

    records: int
    older: int
    bytes: int


def kept(db: Database, stream_id: int, before_ms: int) -> Kept:
    """Nothing where the stream has never had a partition; what one has that was taken from it."""
    if not streams.is_open(db, stream_id):
        return Kept(0, 0, 0)
    limits = streams.bounds(db, stream_id)
    newer = streams.offset_at(db, stream_id, before_ms)
    return Kept(
        limits.next_offset - limits.first_offset,
        newer - limits.first_offset,
        kept_bytes(db, stream_id),
    )


def kept_bytes(db: Database, stream_id: int) -> int:
    """Of all kept batches."""
    row = db.execute(
        f"SELECT bytes FROM {STREAM_PARTITION} WHERE stream_id = ?", (stream_id,)
    ).fetchone()
    return int(row[0]) if row is not None else 0
