"""The body of a record batch: what only edges decode, and what can be wrong in it. Pure.

A checksum says that bytes arrived as they were sent, not that their sender was sane. So every body
is judged before anybody trusts it: at the leader's door as far as that is possible without opening
what is compressed (`judge`), and by readers to the end (`open_body`). What passes neither raises
`BadBodyError`; readers make records of it that say so (`record_batch.decode_batch`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import msgspec
import zstandard

from hadron.model.columns import view
from hadron.model.limits import MAX_RAW_BODY_BYTES
from hadron.model.record import JSON, TEXT

_FEW: Final = 16
"""Offsets that are compared one by one; above it long integers are faster."""

_ENCODINGS: Final = bytes(range(JSON + 1))
_KEY_ENCODINGS: Final = bytes(range(TEXT + 1))


class BadBodyError(Exception):
    """A body that is none; the text says why."""


class BatchBody(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What only edges decode: values, keys, headers, ids."""

    v: bytes = b""
    """Value bytes, back to back."""
    vo: memoryview
    """int32 * (n + 1) offsets into `v`."""
    ve: memoryview
    """uint8 value encodings (0 bytes, 1 text, 2 JSON); one when all are equal."""
    k: bytes = b""
    ko: memoryview = memoryview(b"")
    """int32 * (n + 1) offsets into `k`; empty when no record has a key."""
    ke: memoryview = memoryview(b"")
    """uint8 key encodings (0 bytes, 1 text); one when all are equal."""
    h: list[tuple[int, dict[str, str]]] = []
    """(record index, headers), only for records that have any, ascending."""
    ids: list[tuple[int, str]] = []
    """(record index, id), only for records that were given one, ascending."""


_NONE: Final = msgspec.Raw(b"\x90")
"""No pairs."""


class _SkimmedBody(msgspec.Struct):
    """The same, of which nothing is copied."""

    vo: memoryview
    ve: memoryview
    v: memoryview = memoryview(b"")
    k: memoryview = memoryview(b"")
    ko: memoryview = memoryview(b"")
    ke: memoryview = memoryview(b"")
    h: msgspec.Raw = _NONE
    ids: msgspec.Raw = _NONE


_decode_body = msgspec.msgpack.Decoder(BatchBody).decode
_skim_body = msgspec.msgpack.Decoder(_SkimmedBody).decode


def judge(codec: str, packed: memoryview, *, count: int, keyed: bool, raw: int) -> None:
    """What a leader looks at before it logs a batch: everything of a body that is not compressed
    but its headers, ids and what values and keys mean; of a compressed one its frame.

    Args:
        keyed: whether the head has key hashes.
        raw: the length before compression, as the head says it.

    Raises `BadBodyError`.
    """
    if raw < 4 * (count + 1):
        raise BadBodyError(f"{raw} bytes cannot hold {count} records")
    if codec == "zstd":
        _check_frame(packed, raw)
        return
    if len(packed) != raw:
        raise BadBodyError(f"it has {len(packed)} bytes, its head says {raw}")
    try:
        _check_columns(_skim_body(packed), count, keyed)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadBodyError(f"it does not decode: {error}") from None


def open_body(codec: str, packed: memoryview, *, count: int, keyed: bool, raw: int) -> BatchBody:
    """Decompress, decode and check a body. Raises `BadBodyError`, whatever the bytes."""
    if codec == "zstd":
        packed = _inflate(packed, raw)
    judge("none", packed, count=count, keyed=keyed, raw=raw)
    try:
        body = _decode_body(packed)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadBodyError(f"it does not decode: {error}") from None
    _check_indexes(body.h, count, "headers")
    _check_indexes(body.ids, count, "ids")
    return body


def _check_frame(packed: memoryview, raw: int) -> None:
    """That a zstd frame says of itself what the head says: before anybody makes room for it."""
    try:
        frame = zstandard.get_frame_parameters(packed)
    except zstandard.ZstdError as error:
        raise BadBodyError(f"it is no zstd frame: {error}") from None
    if frame.content_size != raw:
        raise BadBodyError(
            f"its zstd frame holds {frame.content_size} bytes, its head says {raw}"
            if frame.content_size < zstandard.CONTENTSIZE_ERROR
            else "its zstd frame does not say how much it holds"
        )
    if frame.window_size > MAX_RAW_BODY_BYTES or frame.dict_id:
        raise BadBodyError(
            f"its zstd frame wants a window of {frame.window_size} bytes and the dictionary "
            f"{frame.dict_id}"
        )


def _inflate(packed: memoryview, raw: int) -> memoryview:
    _check_frame(packed, raw)
    try:
        return memoryview(zstandard.ZstdDecompressor().decompress(packed, allow_extra_data=False))
    except zstandard.ZstdError as error:
        raise BadBodyError(f"it does not decompress: {error}") from None


def _check_columns(body: _SkimmedBody, count: int, keyed: bool) -> None:
    _check_column("value", body.vo, body.ve, len(body.v), count, _ENCODINGS)
    if keyed:
        _check_column("key", body.ko, body.ke, len(body.k), count, _KEY_ENCODINGS)
    # Each of them becomes an object, of which a few bytes can make many.
    if body.h is not _NONE and _array_length(body.h) > count:
        raise BadBodyError("it has more headers than records")
    if body.ids is not _NONE and _array_length(body.ids) > count:
        raise BadBodyError("it has more ids than records")


def _check_column(
    what: str, offsets: memoryview, encodings: memoryview, length: int, count: int, known: bytes
) -> None:
    if len(offsets) != 4 * (count + 1):
        raise BadBodyError(f"its {what} column is not of {count} records")
    if len(encodings) not in (1, count) or bytes(encodings).translate(None, known):
        raise BadBodyError(f"its {what} column has unknown encodings")
    if not _spans(offsets, count, length):
        raise BadBodyError(f"its {what} offsets do not span its {length} bytes in order")


def _spans(offsets: memoryview, count: int, length: int) -> bool:
    """Whether `count + 1` int32 go from 0 to `length` without ever going back."""
    numbers = view("i", offsets)
    if numbers[0] != 0 or numbers[count] != length:
        return False
    if count < _FEW:
        each: list[int] = numbers.tolist()
        return count == 1 or each == sorted(each)
    # All at once, as one long integer with 32 bits for each: 6 ns a record, a loop takes 60. Where
    # the highest bits are free, setting them keeps each difference from borrowing of the next.
    whole = int.from_bytes(offsets, "little")
    if whole & _high_bits(count + 1):
        return False
    high = _high_bits(count)
    before = whole & ((1 << 32 * count) - 1)
    return (((whole >> 32) | high) - before) & high == high


@lru_cache(maxsize=32)
def _high_bits(count: int) -> int:
    """The highest bit of each of `count` 32 bits."""
    return int.from_bytes(b"\0\0\0\x80" * count, "little")


def _array_length(raw: msgspec.Raw) -> int:
    """Of a MessagePack array; 0 for anything else, which does not decode into one either."""
    data = memoryview(raw)
    kind = data[0] if data else 0
    if 0x90 <= kind <= 0x9F:
        return kind & 0xF
    width = {0xDC: 2, 0xDD: 4}.get(kind, 0)
    return int.from_bytes(data[1 : 1 + width], "big")


def _check_indexes(pairs: list[Any], count: int, what: str) -> None:
    if pairs:
        indexes = [index for index, _ in pairs]
        if indexes[0] < 0 or indexes[-1] >= count or indexes != sorted(set(indexes)):
            raise BadBodyError(f"its {what} are of records that it does not have, or out of order")
