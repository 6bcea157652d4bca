"""Batches whose checksum is right and whose content is not, by what is wrong with them.

Those that a leader can tell are refused by it (`AT_THE_DOOR`); the rest (`INSIDE`) is logged, and
readers have to get past it.
"""

from __future__ import annotations

import struct
from array import array
from typing import Any, Final

import msgspec
import xxhash
import zstandard

from hadron.model.batch import BatchHead
from hadron.model.bodies import BatchBody
from hadron.model.record import BYTES, JSON, TEXT


def ints(*numbers: int) -> memoryview:
    return memoryview(array("i", numbers)).cast("B")


def joined(head: BatchHead, packed: bytes, codec: int = 0) -> bytes:
    """A batch of these parts, whatever they are, with a right checksum."""
    packed_head = msgspec.msgpack.encode(head)
    data = bytearray(
        struct.pack("<4sQB3xII", b"HRB1", 0, codec, len(packed_head), len(packed))
        + packed_head
        + packed
    )
    struct.pack_into("<Q", data, 4, xxhash.xxh3_64_intdigest(memoryview(data)[12:]))
    return bytes(data)


def batch(
    *, body: Any = None, packed: bytes | None = None, zstd: bool = False, **head: Any
) -> bytes:
    """Three records, "aa", "bb" and "cc", but for what is given."""
    if packed is None:
        packed = msgspec.msgpack.encode(BODY if body is None else body)
    raw = head.pop("raw", len(packed))
    if zstd:
        packed = zstandard.ZstdCompressor().compress(packed)
    fields = {"n": 3, "ts": memoryview(bytes(8)), **head}
    return joined(BatchHead(raw=raw, **fields), packed, 1 if zstd else 0)


def values(**fields: Any) -> BatchBody:
    return BatchBody(
        **{"v": b"aabbcc", "vo": ints(0, 2, 4, 6), "ve": memoryview(bytes([BYTES])), **fields}
    )


BODY: Final = values()
KEYED: Final = memoryview(b"\1" * 24)


def _frame(data: bytes, **options: Any) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)


PACKED: Final = msgspec.msgpack.encode(BODY)

AT_THE_DOOR: Final[dict[str, bytes]] = {
    "zstd that is none": joined(
        BatchHead(n=3, ts=memoryview(bytes(8)), raw=len(PACKED)), PACKED, codec=1
    ),
    "a zstd frame of another size": joined(
        BatchHead(n=3, ts=memoryview(bytes(8)), raw=len(PACKED)), _frame(PACKED * 2), codec=1
    ),
    "a zstd frame that does not say its size": joined(
        BatchHead(n=3, ts=memoryview(bytes(8)), raw=len(PACKED)),
        _frame(PACKED, write_content_size=False),
        codec=1,
    ),
    "a bomb": joined(
        BatchHead(n=3, ts=memoryview(bytes(8)), raw=16 << 20), _frame(bytes(1 << 30)), codec=1
    ),
    "a head of five, a body of three": batch(n=5, packed=PACKED + bytes(20)),
    "a head of five": batch(n=5),
    "more records than bytes": batch(n=65_536, packed=b"\x80" * 100),
    "garbage": batch(packed=b"\xc1" * 100),
    "nothing that a body has": batch(packed=msgspec.msgpack.encode({"x": bytes(100)})),
    "another length": batch(raw=len(PACKED) + 1),
    "offsets that go back": batch(body=values(vo=ints(0, 4, 2, 6))),
    "offsets below zero": batch(body=values(vo=ints(0, -2, 4, 6))),
    "offsets beyond the values": batch(body=values(vo=ints(0, 2, 4, 7))),
    "offsets that begin later": batch(body=values(vo=ints(2, 2, 4, 6))),
    "too few offsets": batch(body=values(vo=ints(0, 2, 6))),
    "an encoding that nobody knows": batch(body=values(ve=memoryview(b"\x09"))),
    "too few encodings": batch(body=values(ve=memoryview(b"\0\0"))),
    "keys that are not there": batch(kh=KEYED),
    "key offsets that go back": batch(
        kh=KEYED, body=values(k=b"kkkkkk", ko=ints(0, 4, 2, 6), ke=memoryview(b"\1"))
    ),
    "more headers than records": batch(body=values(h=[(0, {})] * 1_000)),
}

INSIDE: Final[dict[str, bytes]] = {
    "garbage in zstd": batch(packed=b"\xc1" * 100, zstd=True),
    "offsets that go back in zstd": batch(body=values(vo=ints(0, 4, 2, 6)), zstd=True),
    "a damaged zstd frame": joined(
        BatchHead(n=3, ts=memoryview(bytes(8)), raw=len(PACKED)),
        _frame(PACKED)[:-4] + b"\xff" * 4,
        codec=1,
    ),
    "a zstd frame and more": joined(
        BatchHead(n=3, ts=memoryview(bytes(8)), raw=len(PACKED)), _frame(PACKED) + b"x", codec=1
    ),
    "headers of a record that is not there": batch(body=values(h=[(7, {"a": "b"})])),
    "headers out of order": batch(body=values(h=[(2, {}), (1, {})])),
    "headers that are none": batch(
        packed=msgspec.msgpack.encode({**msgspec.structs.asdict(BODY), "h": [1, 2]})
    ),
    "ids below zero": batch(body=values(ids=[(-1, "x")])),
}
"""All three records of these."""

SINGLE: Final[dict[str, bytes]] = {
    "JSON that is none": batch(body=values(ve=memoryview(bytes([BYTES, JSON, BYTES])))),
    "text that is none": batch(
        body=values(v=b"aa\xff\xfecc", ve=memoryview(bytes([BYTES, TEXT, BYTES])))
    ),
    "a key that is no text": batch(
        kh=KEYED, body=values(k=b"k\xffk", ko=ints(0, 1, 2, 3), ke=memoryview(bytes([TEXT])))
    ),
}
"""The second of three."""
