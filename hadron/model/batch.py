"""The bytes of a record batch, the unit that producers, disks, replicas and readers share, and what
is known of one from its head alone. `batch_building` makes batches of records, `record_batch` has
the records of one.

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
never decompresses it, but for dead letters (`delivery/letters`). Offsets are not part of the bytes:
the leader stamps `base_offset` and the time beside them.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec
import xxhash
import zstandard

from hadron.model import columns
from hadron.model.bodies import BadBodyError, BatchBody, judge
from hadron.model.errors import CorruptionError, InvalidRecordError, RecordTooLargeError
from hadron.model.ids import EVENT_TYPE_FORM, is_event_type
from hadron.model.limits import (
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    MAX_RAW_BODY_BYTES,
    MAX_TYPES_PER_BATCH,
)

MAGIC: Final = b"HRB1"
CODECS: Final = ("none", "zstd")
NO_SEQUENCE: Final = -1
_PREFIX: Final = struct.Struct("<4sQB3xII")
_CHECKED_FROM: Final = 12


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


def bytes_of(key: bytes | str) -> bytes:
    """A key as it is hashed and compared: text as UTF-8."""
    return key.encode() if isinstance(key, str) else bytes(key)


def partition_of(key: bytes | str, partitions: Sequence[str]) -> str:
    """Where records with this key are, of a stream's partitions as they are declared, while keys
    choose and none was away."""
    return partitions[key_hash(bytes_of(key)) % len(partitions)]


def producer_id_of(name: str) -> bytes:
    """Of a producer with a name: nobody has to look it up."""
    return hashlib.blake2b(name.encode(), digest_size=16, person=b"hadron producer").digest()


ONCE: Final = b"once"
"""What ids of producers begin with that are one sending each, made of the key that it was given."""


def once_id_of(key: str) -> bytes:
    """Of all that is sent under a key (PROTOCOL D7)."""
    digest = hashlib.blake2b(key.encode(), digest_size=16 - len(ONCE), person=b"hadron once")
    return ONCE + digest.digest()


# --- writing ------------------------------------------------------------------------------------


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


# --- reading ------------------------------------------------------------------------------------


def read_head(data: bytes | memoryview) -> BatchHead:
    """Verify a batch's checksum and limits and return its index section.

    This is what a leader does with a batch on arrival. Raises `CorruptionError` naming what is
    wrong; it never raises anything else, whatever the bytes.
    """
    return open_batch(data)[0]


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
    head, codec, packed = open_batch(data)
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


def open_batch(data: bytes | memoryview) -> tuple[BatchHead, str, memoryview]:
    """The head, the codec and the packed body of a batch; `read_head` says what is verified."""
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


def matching_indexes(head: BatchHead, accepts: Callable[[str], bool]) -> Iterable[int]:
    """Indexes of the records whose event type `accepts`, from the index section alone."""
    if not head.t:
        return range(head.n) if accepts("") else range(0)
    if not len(head.tc):
        return range(head.n) if accepts(head.t[0]) else range(0)
    wanted = {code for code, name in enumerate(head.t) if accepts(name)}
    return [index for index, code in enumerate(columns.view("H", head.tc)) if code in wanted]
