"""Record batches as Arrow: what the connector and the stage runner hand to Spark.

Values and keys are wrapped where they lie (a batch's columns have Arrow's layout already), so a
batch costs the same however many records it holds, apart from types and headers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from hadron.model.record_batch import RecordBatch

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
"""Spark's TIMESTAMP in Arrow."""

HEADERS: Final = pa.map_(pa.string(), pa.string())

SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("stream", pa.string()),
        ("partition", pa.string()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("type", pa.string()),
        ("headers", HEADERS),
    ]
)
"""Every column there is. `key` is null without a key, `type` is "" without one."""

_REPEATED: Final = 8_192
_SHORT: Final = 64
"""Names and types are; what is longer is not kept so often."""

_MAX_MS: Final = (2**63 - 1) // 1000
"""Times beyond it do not fit into Spark's microseconds and are held at the limit."""


def to_arrow(
    batch: RecordBatch,
    columns: Sequence[str] | None = None,
    start: int = 0,
    stop: int | None = None,
) -> pa.RecordBatch:
    """Records `start` to `stop` (indexes in the batch) as Arrow, with `columns` in their order.

    All columns but `headers` when `columns` is None. The result keeps the batch's memory alive.
    """
    names = SCHEMA.names[:-1] if columns is None else columns
    length = (batch.count if stop is None else stop) - start
    arrays = [_column(batch, name, start, length) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(names))


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of these columns, in this order."""
    return pa.schema([SCHEMA.field(name) for name in columns])


def _column(batch: RecordBatch, name: str, start: int, length: int) -> pa.Array:
    if name == "value":
        return values(batch).slice(start, length)
    if name == "key":
        return keys(batch).slice(start, length)
    if name == "offset":
        first = batch.base_offset + start
        return pa.array(np.arange(first, first + length, dtype=np.int64))
    if name == "timestamp":
        return timestamps(batch).slice(start, length)
    if name == "type":
        return types(batch).slice(start, length)
    if name == "headers":
        return headers(batch, start, length)
    return repeated(batch.stream if name == "stream" else batch.partition, length)


def values(batch: RecordBatch) -> pa.Array:
    """The values as they are stored: binary, without a copy; null where they are damaged at their
    source."""
    if batch.damage:
        return pa.nulls(batch.count, pa.binary())
    return _binary(batch.count, batch.body.v, batch.body.vo)


def keys(batch: RecordBatch) -> pa.Array:
    """The keys as they are stored, null where a record has none."""
    hashes = np.frombuffer(batch.head.kh, "<u8")
    if not hashes.size or batch.damage:
        return pa.nulls(batch.count, pa.binary())
    present = hashes != 0
    validity = None
    if not present.all():
        validity = pa.py_buffer(np.packbits(present, bitorder="little").tobytes())
    return _binary(batch.count, batch.body.k, batch.body.ko, validity)


def timestamps(batch: RecordBatch) -> pa.Array:
    """Event times, in microseconds."""
    stamps = np.clip(np.frombuffer(batch.head.ts, "<i8"), -_MAX_MS, _MAX_MS) * 1000
    if stamps.size == 1:
        stamps = np.repeat(stamps, batch.count)
    return pa.array(stamps).view(TIMESTAMP)


def types(batch: RecordBatch) -> pa.Array:
    """Event types, "" where a record has none."""
    names = batch.head.t
    if len(names) > 1:
        return pa.array(names, pa.string()).take(pa.array(np.frombuffer(batch.head.tc, "<u2")))
    return repeated(names[0] if names else "", batch.count)


def repeated(text: str, count: int) -> pa.Array:
    """The same `count` times. What was made for one batch serves the next ones: a stream and a
    partition have one name, and types are few."""
    made = _repeated(text)
    return made.slice(0, count) if count <= len(made) else pa.repeat(text, count)


@lru_cache(maxsize=64)
def _repeated(text: str) -> pa.Array:
    return pa.repeat(text, _REPEATED if len(text) <= _SHORT else 0)


def headers(batch: RecordBatch, start: int, length: int) -> pa.Array:
    """The records' headers; an empty map where a record has none."""
    counts = np.zeros(length + 1, np.int32)
    names: list[str] = []
    contents: list[str] = []
    for index, pairs in batch.body.h:
        if start <= index < start + length:
            counts[index - start + 1] = len(pairs)
            names += pairs.keys()
            contents += pairs.values()
    return pa.MapArray.from_arrays(
        pa.array(np.cumsum(counts, dtype=np.int32)),
        pa.array(names, pa.string()),
        pa.array(contents, pa.string()),
    )


def _binary(
    count: int, data: bytes, offsets: memoryview, validity: pa.Buffer | None = None
) -> pa.Array:
    # Arrow trusts offsets blindly; that they span the data in order was found as it was opened.
    wrapped = pa.py_buffer(offsets)
    if wrapped.address % 4:
        # Arrow reads offsets as int32 and wants them aligned; inside a packed batch they may
        # stand anywhere. Four bytes a record; the data itself is never copied.
        wrapped = pa.py_buffer(bytes(offsets))
    buffers = [validity, wrapped, pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def coalesced(
    batches: Iterator[pa.RecordBatch],
    rows: int = 8_192,
    max_bytes: int = 4 << 20,
    alone: int = 1_024,
) -> Iterator[pa.RecordBatch]:
    """The same records with small batches joined: each one sent to Spark costs about 0.1 ms.
    Joining copies, so large ones stay as they are.

    Args:
        rows: how many are enough.
        alone: a batch of so many is not copied.
    """
    waiting: list[pa.RecordBatch] = []
    waiting_rows = waiting_bytes = 0
    for batch in batches:
        if batch.num_rows >= alone:
            yield from _joined(waiting)
            yield batch
        else:
            waiting.append(batch)
            waiting_rows += batch.num_rows
            waiting_bytes += batch.nbytes
            if waiting_rows < rows and waiting_bytes < max_bytes:
                continue
            yield from _joined(waiting)
        waiting, waiting_rows, waiting_bytes = [], 0, 0
    yield from _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """One, or none of none."""
    if len(batches) < 2:
        return batches
    table: Any = pa.Table.from_batches(batches).combine_chunks()
    return table.to_batches()[:1]  # type: ignore[no-any-return]
