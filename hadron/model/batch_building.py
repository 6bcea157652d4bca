"""From records to the bytes of a batch, as producers send them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from hadron.model import columns
from hadron.model.batch import NO_SEQUENCE, BatchHead, bytes_of, encode_batch, key_hash
from hadron.model.bodies import BatchBody
from hadron.model.errors import RecordTooLargeError
from hadron.model.limits import (
    MAX_BATCH_RECORDS,
    MAX_RECORD_BYTES,
    MAX_TYPES_PER_BATCH,
    MAX_VALUE_BYTES,
    RECORD_OVERHEAD_BYTES,
)
from hadron.model.problems import shorten
from hadron.model.record import BYTES, TEXT, NewRecord, encode_value


class BatchBuilder:
    """Collects records and encodes them as one batch.

    `size` estimates the encoded size; the producer closes a batch by it. A record that is too
    large is refused before it is added.
    """

    __slots__ = (
        "_encodings",
        "_headers",
        "_ids",
        "_key_encodings",
        "_keys",
        "_timestamps",
        "_types",
        "_values",
        "size",
    )

    def __init__(self) -> None:
        self._values: list[bytes] = []
        self._encodings = bytearray()
        self._timestamps: list[int] = []
        self._types: dict[str, array[int]] = {}
        self._keys: dict[int, tuple[int, bytes]] = {}
        self._headers: list[tuple[int, dict[str, str]]] = []
        self._ids: list[tuple[int, str]] = []
        self.size = 0

    def __len__(self) -> int:
        return len(self._values)

    def add(
        self,
        record: NewRecord,
        now_ms: int,
        *,
        encoded: tuple[int, bytes] | None = None,
        max_bytes: int = MAX_RECORD_BYTES,
    ) -> int:
        """Append one record and return its index in the batch. `encoded` stands for its value:
        encoding and bytes as another batch has them."""
        encoding, data = encode_value(record.value) if encoded is None else encoded
        size = len(data) + RECORD_OVERHEAD_BYTES
        index = len(self._values)
        key = record.key
        if key is not None:
            coded = (TEXT, key.encode()) if isinstance(key, str) else (BYTES, bytes(key))
            size += len(coded[1]) + 12
        if record.headers:
            size += sum(len(k.encode()) + len(v.encode()) + 8 for k, v in record.headers.items())
        if record.id:
            size += len(record.id.encode()) + 8
        if record.type and record.type not in self._types:
            size += len(record.type.encode())
        if size > max_bytes:
            raise too_large(size, key)
        if key is not None:
            self._keys[index] = coded
        if record.headers:
            self._headers.append((index, dict(record.headers)))
        if record.id:
            self._ids.append((index, record.id))
        if record.type or self._types:
            self._add_type(record.type, index)
        self._values.append(data)
        self._encodings.append(encoding)
        self._timestamps.append(now_ms if record.timestamp_ms is None else record.timestamp_ms)
        self.size += size
        return index

    def extend(self, other: BatchBuilder) -> int:
        """Append all records of another one; returns the index of the first."""
        start = len(self._values)
        self._values += other._values
        self._encodings += other._encodings
        self._timestamps += other._timestamps
        self._keys.update({start + index: key for index, key in other._keys.items()})
        self._headers += [(start + index, headers) for index, headers in other._headers]
        self._ids += [(start + index, own) for index, own in other._ids]
        if self._types or other._types:
            self._extend_types(other, start)
        self.size += other.size
        return start

    def _extend_types(self, other: BatchBuilder, start: int) -> None:
        if not self._types and start:
            self._types[""] = array("I", range(start))
        types = other._types or {"": array("I", range(len(other._values)))}
        for name, indexes in types.items():
            of_type = self._types.setdefault(name, array("I"))
            of_type.extend([start + index for index in indexes])

    def _add_type(self, name: str, index: int) -> None:
        if not self._types and index:
            self._types[""] = array("I", range(index))
        of_type = self._types.get(name)
        if of_type is None:
            of_type = self._types[name] = array("I")
        of_type.append(index)

    @property
    def full(self) -> bool:
        """Whether a batch-wide limit is reached, whatever the size."""
        return len(self._values) >= MAX_BATCH_RECORDS or len(self._types) >= MAX_TYPES_PER_BATCH

    def build(
        self,
        *,
        producer_id: bytes = b"",
        producer_epoch: int = 0,
        sequence: int = NO_SEQUENCE,
        codec: str = "none",
    ) -> bytes:
        """Encode. Raises `InvalidRecordError` for an empty batch or an unknown codec."""
        count = len(self._values)
        head = BatchHead(
            n=count,
            pid=producer_id,
            pep=producer_epoch,
            seq=sequence,
            ts=columns.pack("q", columns.uniform(self._timestamps)),
        )
        body = BatchBody(
            v=b"".join(self._values),
            vo=columns.offsets(self._values),
            ve=memoryview(bytes(columns.uniform(self._encodings))),
        )
        if self._keys:
            self._build_keys(count, head, body)
        self._build_types(count, head)
        if self._headers:
            body.h = self._headers
        if self._ids:
            body.ids = self._ids
        return encode_batch(head, body, codec)

    def _build_keys(self, count: int, head: BatchHead, body: BatchBody) -> None:
        none = (BYTES, b"")
        coded = [self._keys.get(index, none) for index in range(count)]
        keys = [key for _, key in coded]
        hashes = [key_hash(key) if index in self._keys else 0 for index, key in enumerate(keys)]
        head.kh = columns.pack("Q", hashes)
        body.k = b"".join(keys)
        body.ko = columns.offsets(keys)
        body.ke = memoryview(bytes(columns.uniform([encoding for encoding, _ in coded])))

    def _build_types(self, count: int, head: BatchHead) -> None:
        if not self._types:
            return
        head.t = list(self._types)
        if len(head.t) == 1 and len(self._types[head.t[0]]) == count:
            return
        codes = array("H", bytes(2 * count))
        for code, indexes in enumerate(self._types.values()):
            for index in indexes:
                codes[index] = code
        head.tc = columns.pack("H", codes)


def encode_values(
    values: Sequence[bytes],
    now_ms: int,
    *,
    producer_id: bytes = b"",
    producer_epoch: int = 0,
    sequence: int = NO_SEQUENCE,
    codec: str = "none",
    encoding: int = BYTES,
) -> bytes:
    """Encode plain values of one encoding, all stamped `now_ms`: the fast way for bulk producers.

    Raises `RecordTooLargeError` when a value is over the limit.
    """
    check_values(values)
    head = BatchHead(
        n=len(values),
        pid=producer_id,
        pep=producer_epoch,
        seq=sequence,
        ts=columns.pack("q", [now_ms]),
    )
    body = BatchBody(
        v=b"".join(values), vo=columns.offsets(values), ve=memoryview(bytes([encoding]))
    )
    return encode_batch(head, body, codec)


def check_values(values: Sequence[bytes]) -> None:
    """Raises `RecordTooLargeError` when one of them alone is over the limit of a record."""
    largest = max(map(len, values), default=0)
    if largest > MAX_VALUE_BYTES:
        raise too_large(largest + RECORD_OVERHEAD_BYTES)


def too_large(size: int, key: bytes | str | None = None) -> RecordTooLargeError:
    """The error for a record of `size` bytes, which its key tells from others."""
    found = f"a record of {size} bytes is over the limit of {MAX_RECORD_BYTES}"
    hint = "store large objects elsewhere and send a reference"
    if key is not None:
        found += f"; its key is {shorten(key)}"
        if len(bytes_of(key)) > size // 2:
            found += f", of {len(bytes_of(key))} bytes"
            hint = "give a shorter key, such as a hash of it"
    return RecordTooLargeError(found, hint)
