"""Many batches appended by one entry, at the cost of few statements: what they are parts of is
counted once, each stream's end is moved once. A module of its own beside `streams.append`, which
does it for one.

Safety rule: batches of a stream get their offsets in the order in which they are given, and nobody
else's come between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from hadron.state.bodies import Place
from hadron.state.events import BatchAppended
from hadron.state.machine import Context
from hadron.state.names import no_partition
from hadron.state.streams.tables import STREAM_BATCH, STREAM_PARTITION

_MOVE_END: Final = (
    f"UPDATE {STREAM_PARTITION} SET next_offset = next_offset + ?, bytes = bytes + ?"
    " WHERE stream_id = ? RETURNING next_offset"
)
_INSERT: Final = f"INSERT INTO {STREAM_BATCH} VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


class Append(NamedTuple):
    """A batch: `place` is in a body that is counted, with this batch."""

    stream_id: int
    records: int
    size: int
    place: Place


def move_end(context: Context, stream_id: int, records: int, size: int) -> int:
    """A stream gets so many records more here; returns the offset of the first of them. Raises
    `NotFoundError` when it has no partition here."""
    row = context.db.execute(_MOVE_END, (records, size, stream_id)).fetchone()
    if row is None:
        raise no_partition(context.db, stream_id, context.place)
    base_offset: int = row[0] - records
    return base_offset


def append_all(context: Context, batches: Sequence[Append]) -> list[int]:
    """Append them, in order; returns the base offset of each.

    Raises `NotFoundError` when a stream has no partition here.
    """
    grown: dict[int, tuple[int, int]] = {}
    for stream_id, records, size, _ in batches:
        before, before_bytes = grown.get(stream_id, (0, 0))
        grown[stream_id] = before + records, before_bytes + size
    following: dict[int, int] = {}
    for stream_id, (records, size) in grown.items():
        following[stream_id] = move_end(context, stream_id, records, size)
    lsn, now_ms, ballot = context.lsn, context.now_ms, context.ballot
    body = memoryview(context.body)
    bases: list[int] = []
    rows = []
    for stream_id, records, size, place in batches:
        base = following[stream_id]
        following[stream_id] = base + records
        bases.append(base)
        rows.append((stream_id, base, records, lsn, now_ms, size, *ballot, *place))
        data = body[place.start : place.start + size] if place.lsn == lsn else b""
        context.emit(BatchAppended(stream_id, base, records, now_ms, size, data))
    context.db.executemany(_INSERT, rows)
    return bases
