"""The record batch: the unit that producers build and that disks, replicas and readers share.

Bytes of a batch (a promise; all integers little-endian):

    offset  size  field
    0       4     magic "HRB1"
    4       8     xxh3-64 of everything from byte 12 on
    12      1     codec of the body: 0 none, 1 zstd
    13      3     reserved, zero
    16      4     length of the head
    20      4     length of the body
    24      …     head: a MessagePack map (`BatchHead`), never compressed: what the leader needs
    …       …     body: a MessagePack map (`BatchBody`), compressed as a whole: what edges need

Columns inside the maps are byte strings in Arrow's layout, so a Spark source wraps them without a
copy. The leader reads the head, refuses a body that is none as far as that shows without
decompressing it (`bodies.judge`; so a zstd frame says how much it holds), and stores the bytes: it
never opens the body. Offsets are not part of the bytes: the leader stamps `base_offset`
and the time beside them.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, repeat
from typing import Final

import msgspec
import xxhash
import zstandard

from hadron.model import columns
from hadron.model.bodies import BadBodyError, BatchBody, judge, open_body
from hadron.model.errors import (
    CorruptionError,
    DamagedRecordError,
    InvalidRecordError,
    RecordTooLargeError,
)
from hadron.model.ids import EVENT_TYPE_FORM, is_event_type
from hadron.model.limits import (
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    MAX_RAW_BODY_BYTES,
    MAX_RECORD_BYTES,
    MAX_TYPES_PER_BATCH,
)
from hadron.model.record import BYTES, TEXT, NewRecord, Record, encode_value

MAGIC: Final = b"HRB1"
CODECS: Final = ("none", "zstd")
NO_SEQUENCE: Final = -1
_PREFIX: Final = struct.Struct("<4sQB3xII")
_CHECKED_FROM: Final = 12
_NO_HEADERS: Final[Mapping[str, str]] = {}


class BatchHead(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The index section: everything that a leader or a filter needs, without the body."""

    n: int
    """How many records."""
    pid: bytes = b""
    """Producer id, 16 random bytes; empty when the producer is not idempotent."""
    pep: int = 0
    """Producer epoch."""
    seq: int = NO_SEQUENCE
    """Sequence of the first record, per producer and partition."""
    ts: memoryview = memoryview(b"")
    """Event times, int64 milliseconds; one when all are equal."""
    t: list[str] = []
    """Dictionary of event types; empty when no record has one."""
    tc: memoryview = memoryview(b"")
    """uint16 index into `t` per record; empty when all records have the one type in `t`."""
    kh: memoryview = memoryview(b"")
    """uint64 hash of each key, 0 for none; empty when no record has a key."""
    raw: int = 0
    """Body length before compression."""


_decode_head = msgspec.msgpack.Decoder(BatchHead).decode
_encode = msgspec.msgpack.Encoder().encode


class StampedBatch(msgspec.Struct, frozen=True):
    """A batch as it stands in a partition: the producer's bytes and what the leader stamped."""

    base_offset: int
    count: int
    append_ms: int
    epoch: int
    incarnation: int
    data: bytes | memoryview

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.count


def key_hash(key: bytes) -> int:
    """xxh3-64 of the key, with 0 moved to 1 because 0 says "no key"."""
    return xxhash.xxh3_64_intdigest(key) or 1


# --- writing ------------------------------------------------------------------------------------


class BatchBuilder:
    """Collects records and encodes them as one batch.

    `size` estimates the encoded size; the producer closes a batch by it. A record that is too
    large is refused before it is added.
    """

    __slots__ = (
        "_encodings", "_headers", "_ids", "_key_encodings", "_keys",
        "_timestamps", "_types", "_values", "size",
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
        size = len(data) + 16
        index = len(self._values)
        key = record.key
        if key is not None:
            coded = (TEXT, key.encode()) if isinstance(key, str) else (BYTES, bytes(key))
            size += len(coded[1]) + 12
        if record.headers:
            size += sum(len(k) + len(v) + 8 for k, v in record.headers.items())
        if size > max_bytes:
            raise too_large(size)
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
            n=count, pid=producer_id, pep=producer_epoch, seq=sequence,
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
        hashes = [
            key_hash(key) if index in self._keys else 0 for index, key in enumerate(keys)
        ]
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
) -> bytes:
    """Encode plain byte values, all stamped `now_ms`: the fast way for bulk producers.

    Raises `RecordTooLargeError` when a value is over the limit.
    """
    if values and max(map(len, values)) > MAX_RECORD_BYTES - 16:
        raise too_large(max(map(len, values)))
    head = BatchHead(
        n=len(values), pid=producer_id, pep=producer_epoch, seq=sequence,
        ts=columns.pack("q", [now_ms]),
    )
    body = BatchBody(v=b"".join(values), vo=columns.offsets(values), ve=memoryview(b"\x00"))
    return encode_batch(head, body, codec)


def encode_batch(head: BatchHead, body: BatchBody, codec: str) -> bytes:
    """Put head and body together: compress, measure, checksum."""
    if head.n < 1:
        raise InvalidRecordError("a batch needs at least one record")
    if head.n > MAX_BATCH_RECORDS:
        raise RecordTooLargeError(
            f"a batch of {head.n} records is over the limit of {MAX_BATCH_RECORDS}"
        )
    if codec not in CODECS:
        raise InvalidRecordError(f"unknown codec {codec!r}", f"use one of {', '.join(CODECS)}")
    packed = _encode(body)
    head.raw = len(packed)
    if codec == "zstd":
        packed = zstandard.ZstdCompressor(level=1).compress(packed)
    packed_head = _encode(head)
    data = bytearray(_PREFIX.size + len(packed_head) + len(packed))
    _PREFIX.pack_into(data, 0, MAGIC, 0, CODECS.index(codec), len(packed_head), len(packed))
    data[_PREFIX.size : _PREFIX.size + len(packed_head)] = packed_head
    data[_PREFIX.size + len(packed_head) :] = packed
    if len(data) > MAX_BATCH_BYTES:
        raise RecordTooLargeError(
            f"a batch of {len(data)} bytes is over the limit of {MAX_BATCH_BYTES}",
            "send fewer or smaller records per batch",
        )
    checksum = xxhash.xxh3_64_intdigest(memoryview(data)[_CHECKED_FROM:])
    struct.pack_into("<Q", data, 4, checksum)
    return bytes(data)


def too_large(size: int) -> RecordTooLargeError:
    """The error for a record of `size` bytes."""
    return RecordTooLargeError(
        f"a record of {size} bytes is over the limit of {MAX_RECORD_BYTES}",
        "store large objects elsewhere and send a reference",
    )


# --- reading ------------------------------------------------------------------------------------


def read_head(data: bytes | memoryview) -> BatchHead:
    """Verify a batch's checksum and limits and return its index section.

    This is what a leader does with a batch on arrival. Raises `CorruptionError` naming what is
    wrong; it never raises anything else, whatever the bytes.
    """
    return _open(data)[0]


def key_hashes(data: bytes | memoryview) -> Sequence[int]:
    """The hash of each record's key, 0 for none; empty when no record has a key. For batches whose
    checksum was verified before."""
    view = memoryview(data)
    head_size = _PREFIX.unpack_from(view)[3]
    head = _decode_head(view[_PREFIX.size : _PREFIX.size + head_size])
    hashes: Sequence[int] = columns.view("Q", head.kh)
    return hashes


_SHOWN: Final = 60
"""Characters of what is refused."""


def judge_batch(data: bytes | memoryview) -> BatchHead:
    """`read_head` for a batch that is about to be logged: also what can be told of its body without
    decompressing it or looking at what values mean (`bodies.judge`).

    Raises `CorruptionError`, and `InvalidRecordError` for a body that no reader could open, and for
    types that no pattern could speak of.
    """
    head, codec, packed = _open(data)
    for name in head.t:
        if name and not is_event_type(name):
            raise InvalidRecordError(
                f"a batch of {head.n} records is refused: {name[:_SHOWN]!r} is not a type",
                EVENT_TYPE_FORM,
            )
    try:
        judge(codec, packed, count=head.n, keyed=len(head.kh) > 0, raw=head.raw)
    except BadBodyError as error:
        raise InvalidRecordError(
            f"a batch of {head.n} records is refused, its body is none: {error}",
            "whatever has built it is at fault, not the way here: its checksum is right",
        ) from None
    return head


def decode_batch(
    data: bytes | memoryview, *, base_offset: int = 0, stream: str = "", partition: str = ""
) -> RecordBatch:
    """Verify and decode a batch. A body that cannot be opened although the checksum is right was
    damaged at its source, and then so are its records (`RecordBatch.damage`): sending or repairing
    it again would not help.

    Raises `CorruptionError` for anything else that is wrong.
    """
    head, codec, packed = _open(data)
    try:
        body = open_body(codec, packed, count=head.n, keyed=len(head.kh) > 0, raw=head.raw)
    except BadBodyError as error:
        return RecordBatch(
            head, _no_body(head.n), base_offset, stream, partition,
            damage=f"the body of its batch is none: {error}", raw=bytes(packed),
        )
    return RecordBatch(head, body, base_offset, stream, partition)


def _no_body(count: int) -> BatchBody:
    """Stands where a body cannot be opened: so many values without a byte."""
    return BatchBody(vo=memoryview(bytes(4 * (count + 1))), ve=memoryview(b"\0"))


def check_batch(data: bytes | memoryview) -> None:
    """Verify a batch's checksum, and nothing else: for every place where stored bytes are served.

    Raises `CorruptionError`.
    """
    _checked(memoryview(data))


def split_batches(data: bytes | memoryview) -> Iterator[memoryview]:
    """The batches that bytes are made of, one after the other, each as long as it says; nothing
    else is looked at. What cannot be one, and all that follows it, comes last."""
    view = memoryview(data)
    while len(view) > _PREFIX.size:
        *_, head_size, body_size = _PREFIX.unpack_from(view)
        size = _PREFIX.size + head_size + body_size
        if size >= len(view):
            break
        yield view[:size]
        view = view[size:]
    yield view


def check_body(data: bytes | memoryview) -> int:
    """`check_batch` of each batch of an entry's body; returns how many there are, at least one."""
    count = 0
    for batch in split_batches(data):
        _checked(batch)
        count += 1
    return count


def _checked(view: memoryview) -> tuple[int, int]:
    """The codec and the length of the head, of a batch whose checksum is right."""
    if len(view) < _PREFIX.size:
        raise CorruptionError(f"a batch of {len(view)} bytes is shorter than its prefix")
    magic, checksum, codec, head_size, body_size = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise CorruptionError(f"a batch starts with {magic!r}, not {MAGIC!r}")
    if _PREFIX.size + head_size + body_size != len(view):
        raise CorruptionError(
            f"a batch of {len(view)} bytes says it has {_PREFIX.size + head_size + body_size}"
        )
    actual = xxhash.xxh3_64_intdigest(view[_CHECKED_FROM:])
    if actual != checksum:
        raise CorruptionError(f"a batch's checksum is {actual:016x}, it says {checksum:016x}")
    return codec, head_size


def _open(data: bytes | memoryview) -> tuple[BatchHead, str, memoryview]:
    view = memoryview(data)
    codec, head_size = _checked(view)
    if codec >= len(CODECS):
        raise CorruptionError(f"a batch has the unknown codec {codec}")
    try:
        head = _decode_head(view[_PREFIX.size : _PREFIX.size + head_size])
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptionError(f"a batch head does not decode: {error}") from error
    _check_head(head)
    return head, CODECS[codec], view[_PREFIX.size + head_size :]


def _check_head(head: BatchHead) -> None:
    n = head.n
    sizes = (
        (1 <= n <= MAX_BATCH_RECORDS, "count"),
        (len(head.pid) in (0, 16), "producer id"),
        (NO_SEQUENCE <= head.seq < 1 << 62 and 0 <= head.pep < 1 << 62, "sequence"),
        (len(head.ts) in (8, 8 * n), "timestamps"),
        (len(head.kh) in (0, 8 * n), "key hashes"),
        (len(head.t) <= MAX_TYPES_PER_BATCH, "types"),
        (len(head.tc) == 2 * n if len(head.t) > 1 else not len(head.tc), "type codes"),
        (0 < head.raw <= MAX_RAW_BODY_BYTES, "body length"),
    )
    for good, what in sizes:
        if not good:
            raise CorruptionError(f"a batch of {n} records has a malformed {what} column")
    if len(head.tc) and max(columns.view("H", head.tc)) >= len(head.t):
        raise CorruptionError("a batch has a type code outside its dictionary")


class RecordBatch:
    """A decoded batch: columns, and records as views of them.

    Attributes:
        damage: why its records cannot be read, although the batch is as its producer sent it; ""
            when they can. Of such ones only the head is known: offsets, types, times.
        raw: the body of such a batch, as it is stored.
    """

    __slots__ = (
        "_headers", "_ids", "_key_hashes", "_key_offsets", "_timestamps",
        "_type_codes", "base_offset", "body", "count", "damage", "head", "partition", "raw",
        "record_type", "stream", "value_encodings", "value_offsets", "values",
    )

    def __init__(
        self, head: BatchHead, body: BatchBody, base_offset: int, stream: str, partition: str,
        *, damage: str = "", raw: bytes = b"",
    ) -> None:
        """`body` was checked before (`open_body`), or stands for one that is damaged."""
        self.damage = damage
        self.raw = raw
        self.head = head
        self.body = body
        self.base_offset = base_offset
        self.stream = stream
        self.partition = partition
        self.count = head.n
        self.record_type = Record
        self.values = body.v
        self.value_encodings = body.ve
        self.value_offsets = columns.view("i", body.vo)
        self._key_hashes = columns.view("Q", head.kh)
        self._key_offsets = columns.view("i", body.ko)
        self._timestamps = columns.view("q", head.ts)
        self._type_codes = columns.view("H", head.tc)
        self._headers: dict[int, dict[str, str]] | None = None
        self._ids: dict[int, str] | None = None
        if damage:
            self.value_offsets = self._key_hashes = _Unreadable(self)

    def __len__(self) -> int:
        return self.count

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.count

    def records(self, start: int = 0, stop: int | None = None) -> list[Record]:
        """Records by their index in the batch, `start` inclusive to `stop` exclusive."""
        indexes = range(start, self.count if stop is None else stop)
        return list(map(self.record_type, repeat(self), indexes))

    def from_offset(self, offset: int) -> list[Record]:
        """Records at or after `offset`."""
        return self.records(max(0, offset - self.base_offset))

    def reduce(self, index: int) -> tuple[Callable[..., Record], tuple[bytes, int, str, str]]:
        """For pickling one of its records. Raises `DamagedRecordError`."""
        start, stop = self.value_offsets[index], self.value_offsets[index + 1]
        builder = BatchBuilder()
        builder.add(
            NewRecord(
                value=None, key=self.key(index), type=self.type(index), id=self.id(index),
                timestamp_ms=self.timestamp_ms(index), headers=self.headers(index),
            ),
            0, encoded=(self.value_encoding(index), self.values[start:stop]),
        )
        place = self.base_offset + index, self.stream, self.partition
        return _alone, (builder.build(), *place)

    def value_encoding(self, index: int) -> int:
        encodings = self.value_encodings
        return encodings[0] if len(encodings) == 1 else encodings[index]

    def value_bytes(self) -> list[bytes]:
        """All values as they are stored."""
        values = self.values
        return [values[a:b] for a, b in pairwise(self.value_offsets.tolist())]

    def key(self, index: int) -> bytes | str | None:
        if not len(self._key_hashes) or self._key_hashes[index] == 0:
            return None
        data = self.body.k[self._key_offsets[index] : self._key_offsets[index + 1]]
        encodings = self.body.ke
        text = (encodings[0] if len(encodings) == 1 else encodings[index]) == TEXT
        try:
            return data.decode() if text else data
        except UnicodeDecodeError as error:
            raise self.damaged(index, f"its key is said to be text, and is not: {error}") from None

    def key_bytes(self, index: int) -> bytes | None:
        """The key as it is stored, None where there is none or none can be had."""
        if self.damage or not len(self._key_hashes) or self._key_hashes[index] == 0:
            return None
        return self.body.k[self._key_offsets[index] : self._key_offsets[index + 1]]

    def type(self, index: int) -> str:
        types = self.head.t
        if not types:
            return ""
        return types[self._type_codes[index]] if len(self._type_codes) else types[0]

    def damaged(self, index: int, why: str) -> DamagedRecordError:
        """The error for a record that cannot be read."""
        offset = self.base_offset + index
        return DamagedRecordError(
            f"record {self.stream}/{self.partition}/{offset} is damaged at its source: {why}",
            "whatever has produced it is at fault; `record.raw` has its bytes, and it can be "
            "acknowledged like any other", reason=why,
        )

    def timestamp_ms(self, index: int) -> int:
        stamps = self._timestamps
        stamp: int = stamps[0] if len(stamps) == 1 else stamps[index]
        return stamp

    def headers(self, index: int) -> Mapping[str, str]:
        if not self.body.h:
            return _NO_HEADERS
        if self._headers is None:
            self._headers = dict(self.body.h)
        return self._headers.get(index, _NO_HEADERS)

    def id(self, index: int) -> str:
        if not self.body.ids:
            return ""
        if self._ids is None:
            self._ids = dict(self.body.ids)
        return self._ids.get(index, "")


def _alone(data: bytes, offset: int, stream: str, partition: str) -> Record:
    return decode_batch(data, base_offset=offset, stream=stream, partition=partition).records()[0]


class _Unreadable:
    """A column of a damaged batch: raises for every record."""

    __slots__ = ("_batch",)

    def __init__(self, batch: RecordBatch) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return self._batch.count

    def __getitem__(self, index: int) -> int:
        raise self._batch.damaged(index, self._batch.damage)

    def tolist(self) -> list[int]:
        raise self._batch.damaged(0, self._batch.damage)


def matching_indexes(head: BatchHead, accepts: Callable[[str], bool]) -> Iterable[int]:
    """Indexes of the records whose event type `accepts`, from the index section alone."""
    if not head.t:
        return range(head.n) if accepts("") else range(0)
    if not len(head.tc):
        return range(head.n) if accepts(head.t[0]) else range(0)
    wanted = {code for code, name in enumerate(head.t) if accepts(name)}
    return [index for index, code in enumerate(columns.view("H", head.tc)) if code in wanted]
