"""Parts of a record batch, as batches of their own. Pure.

Readers start at an offset that may lie inside a batch, and stop at a limit; those who read whole
batches must not see the records outside. Rare (the ends of a read only), so columns are copied.
"""

from __future__ import annotations

from hadron.model.batch import BatchHead
from hadron.model.bodies import BatchBody
from hadron.model.record_batch import RecordBatch


def slice_batch(batch: RecordBatch, start: int, stop: int) -> RecordBatch:
    """Records `start` to `stop` (indexes, exclusive) as a batch; the batch itself when whole."""
    if start <= 0 and stop >= batch.count:
        return batch
    part = _cut_out(batch, start, stop)
    part.record_type = batch.record_type
    return part


def _cut_out(batch: RecordBatch, start: int, stop: int) -> RecordBatch:
    head, body = batch.head, batch.body
    values, value_offsets = _cut(body.v, body.vo, start, stop)
    keys, key_offsets = _cut(body.k, body.ko, start, stop)
    return RecordBatch(
        BatchHead(
            n=stop - start,
            ts=_column(head.ts, 8, start, stop),
            t=head.t,
            tc=_column(head.tc, 2, start, stop),
            kh=_column(head.kh, 8, start, stop),
            raw=head.raw,
        ),
        BatchBody(
            v=values,
            vo=value_offsets,
            ve=_column(body.ve, 1, start, stop),
            k=keys,
            ko=key_offsets,
            ke=_column(body.ke, 1, start, stop),
            h=[(index - start, headers) for index, headers in body.h if start <= index < stop],
            ids=[(index - start, name) for index, name in body.ids if start <= index < stop],
        ),
        batch.base_offset + start,
        batch.stream,
        batch.partition,
        damage=batch.damage,
        raw=batch.raw,
    )


def _column(column: memoryview, width: int, start: int, stop: int) -> memoryview:
    """A column's part; empty and single-valued columns stand for all records and stay."""
    if len(column) <= width:
        return column
    return column[start * width : stop * width]


def _cut(data: bytes, offsets: memoryview, start: int, stop: int) -> tuple[bytes, memoryview]:
    if not len(offsets):
        return data, offsets
    numbers = [
        int.from_bytes(offsets[4 * index : 4 * index + 4], "little")
        for index in range(start, stop + 1)
    ]
    first = numbers[0]
    moved = b"".join((number - first).to_bytes(4, "little") for number in numbers)
    return data[first : numbers[-1]], memoryview(moved)
