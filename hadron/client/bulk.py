"""`send_many`: slices a long sequence into batches, plain bytes without touching each record.

A module of its own because its two ways through (whole slices of bytes, and record by record)
are tuned by themselves; measured per record, encoding included: 0.2 µs against 2.6 µs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import anyio.lowlevel
import msgspec

from hadron.client.outgoing import OutgoingBatch
from hadron.client.records import Serializer, serialized_whole, whole_record
from hadron.client.results import BatchReceipt
from hadron.model.batch import too_large
from hadron.model.errors import RequestError
from hadron.model.limits import MAX_BATCH_RECORDS, MAX_RECORD_BYTES

if TYPE_CHECKING:
    from hadron.client.publishing import Publisher

_RECORDS_PER_CHECKPOINT: Final = 128

_OFFSET_BYTES: Final = 4
"""What a plain value costs in a batch besides its bytes."""


class Segment(msgspec.Struct):
    """Consecutive records of one batch that one `send_many` gave."""

    batch: OutgoingBatch
    first: int
    count: int

    def receipt(self) -> BatchReceipt:
        batch = self.batch
        return BatchReceipt(
            batch.stream,
            batch.partition,
            batch.base_offset + self.first,
            self.count,
            batch.append_ms,
            batch.duplicate,
        )


async def send_bulk(publisher: Publisher, values: Iterable[Any], segments: list[Segment]) -> None:
    """Buffer all of `values`, waiting while the buffer is full; fills `segments`.

    Raises at the first value that cannot be sent; those before it are on their way.
    """
    if isinstance(values, (str, bytes, bytearray, memoryview, Mapping)):
        raise RequestError(
            f"send_many of a {type(values).__name__} would send its parts one by one",
            "give a list of values; `send` takes one",
        )
    records: Sequence[Any] = values if isinstance(values, (list, tuple)) else list(values)
    refused: RequestError | None = None
    if publisher.serializer is not None:
        records, refused = _serialize(publisher.serializer, records)
    guess = MAX_BATCH_RECORDS
    start = 0
    while start < len(records):
        chunk: Sequence[Any] = records[start : start + guess]
        if set(map(type, chunk)) == {bytes}:
            chunk, size = _cut(chunk, publisher.batch_bytes)
            guess = max(1, min(MAX_BATCH_RECORDS, publisher.batch_bytes * len(chunk) // size))
            sender = await publisher.wait_room()
            batch = publisher.add_values(chunk, size, sender)
            segments.append(Segment(batch, 0, len(chunk)))
            await anyio.lowlevel.checkpoint()
        else:
            chunk = chunk[:_RECORDS_PER_CHECKPOINT]
            guess = _RECORDS_PER_CHECKPOINT
            await _add_each(publisher, chunk, segments)
            await anyio.lowlevel.checkpoint()
        start += len(chunk)
    if refused is not None:
        raise refused


def _serialize(
    serializer: Serializer, values: Sequence[Any]
) -> tuple[list[Any], RequestError | None]:
    """The values as they are sent, up to the first that the serializer refuses, and why it did."""
    done: list[Any] = []
    for value in values:
        try:
            done.append(serialized_whole(serializer, value))
        except RequestError as error:
            return done, error
    return done, None


def _cut(values: Sequence[bytes], batch_bytes: int) -> tuple[Sequence[bytes], int]:
    """As many of the first values as make about a batch, and their size."""
    while True:
        size = sum(map(len, values)) + _OFFSET_BYTES * len(values)
        if size <= batch_bytes + batch_bytes // 8 or len(values) == 1:
            break
        values = values[: max(1, len(values) * batch_bytes // size)]
    if size > MAX_RECORD_BYTES and max(map(len, values)) > MAX_RECORD_BYTES - 16:
        raise too_large(max(map(len, values)))
    return values, size


async def _add_each(publisher: Publisher, values: Sequence[Any], segments: list[Segment]) -> None:
    current: dict[OutgoingBatch, Segment] = {
        segment.batch: segment for segment in segments[-8:]
    }
    for value in values:
        record = whole_record(value)
        sender = await publisher.wait_room(record.key, record.partition)
        batch, index = publisher.add(record, sender)
        segment = current.get(batch)
        if segment is not None and segment.first + segment.count == index:
            segment.count += 1
        else:
            segment = current[batch] = Segment(batch, index, 1)
            segments.append(segment)
