"""Producers of a stream's partition: how far each has come, and its last batches (PROTOCOL D1).

Safety rule: a batch is logged once. It follows what its producer has logged, or it is one of the
last few, which gets the first answer again, or it is refused.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from hadron.model.batch import NO_SEQUENCE
from hadron.model.errors import SequenceError
from hadron.model.limits import PRODUCER_IDLE_MS, PRODUCER_WINDOW
from hadron.model.tables import PREFIX
from hadron.state import slices
from hadron.state.machine import Context, Feature, NoChange

PRODUCER: Final = PREFIX + "producer"

_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {PRODUCER}(
    stream_id INTEGER NOT NULL,
    producer_id BLOB NOT NULL,
    producer_epoch INTEGER NOT NULL,
    next_sequence INTEGER NOT NULL,
    last_ms INTEGER NOT NULL,
    recent BLOB NOT NULL,               -- MessagePack: the last batches, see Appended
    PRIMARY KEY (stream_id, producer_id)
) STRICT, WITHOUT ROWID;
"""

_SET: Final = (
    f"INSERT INTO {PRODUCER} VALUES(?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
    " producer_epoch = excluded.producer_epoch, next_sequence = excluded.next_sequence,"
    " last_ms = excluded.last_ms, recent = excluded.recent"
)
_GET: Final = (
    f"SELECT producer_epoch, next_sequence, recent FROM {PRODUCER}"
    " WHERE stream_id = ? AND producer_id = ?"
)
_EVICT: Final = f"DELETE FROM {PRODUCER} WHERE stream_id = ? AND last_ms < ?"
_OWNED: Final = slices.Owned(PRODUCER, "stream_id, producer_id", "stream_id = ?")

_EVICTS: Final = 0
"""Idle producers are looked for by new ones whose id begins with this byte, which is one of 256:
the table grows by new producers only, so the scan is noise and cannot be outrun. (The lsn would be
a bad die: commands of two kinds that take turns have one parity each.)"""

_MAX_PRODUCER_EPOCH: Final = (1 << 63) - 1
"""SQLite's largest integer."""


class Appended(msgspec.Struct, frozen=True, array_like=True):
    """Where a batch went: the result of `AppendBatch`, and what dedupe remembers of it."""

    base_offset: int
    count: int
    append_ms: int
    sequence: int = NO_SEQUENCE
    duplicate: bool = False


class Numbered(Protocol):
    """A batch that its producer has numbered, as its command tells of it."""

    @property
    def stream_id(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def producer_id(self) -> bytes: ...

    @property
    def producer_epoch(self) -> int: ...

    @property
    def sequence(self) -> int: ...


_encode_recent = msgspec.msgpack.Encoder().encode
_decode_recent = msgspec.msgpack.Decoder(list[Appended]).decode


def check(context: Context, batch: Numbered) -> list[Appended]:
    """Return the producer's recent batches, or say that this one is known or does not follow."""
    if batch.producer_epoch > _MAX_PRODUCER_EPOCH:
        raise SequenceError(
            f"producer epoch {batch.producer_epoch} is over the limit of {_MAX_PRODUCER_EPOCH}"
        )
    row = context.db.execute(_GET, (batch.stream_id, batch.producer_id)).fetchone()
    name = batch.producer_id.hex()
    if row is None or batch.producer_epoch > row[0]:
        if batch.sequence != 0:
            raise SequenceError(
                f"producer {name} is not known here but continues at sequence {batch.sequence}",
                "its state was evicted or lost; start a new producer",
            )
        return []
    epoch, next_sequence, packed = row
    if batch.producer_epoch < epoch:
        raise SequenceError(
            f"producer {name} has epoch {batch.producer_epoch}, a newer one has {epoch}",
            "another process took over this producer's name",
        )
    recent = _decode_recent(packed)
    if batch.sequence == next_sequence:
        return recent
    for known in recent:
        if known.sequence == batch.sequence and known.count == batch.count:
            raise NoChange(msgspec.structs.replace(known, duplicate=True))
    raise SequenceError(
        f"producer {name} sent sequence {batch.sequence}, expected {next_sequence}",
        "a batch before it was refused or lost; start a new producer",
    )


def note(context: Context, batch: Numbered, recent: list[Appended], appended: Appended) -> None:
    """Remember a batch behind those that `check` has returned."""
    recent.append(appended)
    context.db.execute(
        _SET,
        (
            batch.stream_id,
            batch.producer_id,
            batch.producer_epoch,
            batch.sequence + batch.count,
            context.now_ms,
            _encode_recent(recent[-PRODUCER_WINDOW:]),
        ),
    )
    if batch.sequence == 0 and batch.producer_id[0] == _EVICTS:
        context.db.execute(_EVICT, (batch.stream_id, context.now_ms - PRODUCER_IDLE_MS))


def _close(context: Context, stream_id: int) -> bool:
    left = context.db.execute(f"SELECT 1 FROM {PRODUCER} WHERE stream_id = ? LIMIT 1", (stream_id,))
    return left.fetchone() is not None


def _drop_some(context: Context, stream_id: int, portion: slices.Portion) -> slices.Dropped:
    rows = slices.delete_some(context.db, [_OWNED], stream_id, portion.rows)
    return slices.Dropped(rows, is_done=rows < portion.rows)


FEATURE: Final = Feature(
    name="producers", tables=_TABLES, deleted={"Stream": _close}, leftovers={"Stream": _drop_some}
)
