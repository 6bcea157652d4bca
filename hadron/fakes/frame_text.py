"""Frames in what was sent on a wire: named for people, and without what differs between runs."""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from hadron.wire.frames import HEADER, MAGIC, Kind
from hadron.wire.messages import METHODS, common_pb2

_CHECKSUM_BYTES: Final = 8
"""Of a frame, at the end of its header."""


def describe_frames(data: bytes) -> str:
    """The frames that begin in `data`, for people."""
    described, position = [], 0
    while position + HEADER.size <= len(data):
        magic, _, kind, number, _, call, message, attachment, _ = HEADER.unpack_from(data, position)
        if magic != MAGIC:
            break
        method = METHODS.get(number)
        name = f" {method}" if method is not None else ""
        start = position + HEADER.size
        what = _error_text(data[start : start + message]) if kind == Kind.ERROR else ""
        described.append(f"{Kind(kind).name}{name} call {call} ({message}+{attachment} B){what}")
        position = start + message + attachment
    if position != len(data):
        described.append(f"… {len(data)} bytes")
    return ", ".join(described)


def without_checksums(data: bytes) -> bytes:
    """`data` with zeros for the checksums of the frames that begin in it."""
    cleaned, position = bytearray(data), 0
    while position + HEADER.size <= len(data) and data.startswith(MAGIC, position):
        message, attachment = HEADER.unpack_from(data, position)[6:8]
        end = position + HEADER.size
        cleaned[end - _CHECKSUM_BYTES : end] = bytes(_CHECKSUM_BYTES)
        position = end + message + attachment
    return bytes(cleaned)


def _error_text(message: bytes) -> str:
    try:
        return f": {common_pb2.Error.FromString(message).message}"
    except DecodeError:
        return ""
