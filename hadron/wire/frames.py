"""Frames: the bytes on a connection, without any I/O.

A frame (a promise; integers little-endian):

    offset  size  field
    0       2     magic "HD"
    2       1     version, 1
    3       1     kind (`Kind`)
    4       2     method number; 0 except in the frame that opens a call
    6       2     flags: bit 0 END, the sender says nothing more on this call; bit 1 NO_MESSAGE, the
                  frame only ends (an empty message is a message)
    8       4     call id, chosen by the side that opens the call, never 0 for a call
    12      4     length of the message
    16      4     length of the attachment
    20      8     xxh3-64 of bytes 0 to 20, the message and the attachment
    28      …     message: protobuf
    …       …     attachment: record bytes, outside protobuf so that nobody copies them

A peer that sends anything else gets one ERROR frame on call 0 that says what was wrong, and the
connection is closed: after damaged bytes no boundary can be trusted.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import xxhash

from hadron.model.errors import FrameError
from hadron.model.limits import MAX_ATTACHMENT_BYTES, MAX_MESSAGE_BYTES
from hadron.wire.strangers import stranger

MAGIC: Final = b"HD"
VERSION: Final = 1
HEADER: Final = struct.Struct("<2sBBHHIIIQ")
_UNCHECKED: Final = struct.Struct("<2sBBHHIII")
_CHECKSUM: Final = struct.Struct("<Q")

END: Final = 1
NO_MESSAGE: Final = 2
_RECEIVE_BYTES: Final = 64 << 10
"""How much is read at once when the next frame's size is not known; 256 kB is no faster."""

_FIRST_BYTES: Final = 2 << 10
"""The same until so much has come at once. Most connections are idle: with the larger one a member
that waits took 79 to 92 kB on its leader, with this 25 to 28."""

_AT_ONCE_BYTES: Final = _RECEIVE_BYTES
"""Memory that is taken for a frame when it is announced; more once so much of it has come."""

_GROWTH: Final = 4

_JOINED_BYTES: Final = 4 << 10
"""A frame that is no larger is copied into one chunk: that costs less than to gather several."""

_LOOKED_AT_BYTES: Final = 9
"""Of what comes first: it tells other protocols from frames."""

_PINNED_BYTES: Final = 1 << 10
"""Of a message that may stay in memory with the attachment beside it."""

Bytes = bytes | bytearray | memoryview


class Kind(enum.IntEnum):
    OPEN = 1
    """Opens a call; carries its first message."""
    MESSAGE = 2
    """A further message, or an answer."""
    ERROR = 3
    """Ends the call both ways; the message is `hadron.v1.Error`."""
    CANCEL = 4
    """The opener has lost interest; ends the call both ways."""
    CREDIT = 5
    """Lets the peer send more on this call: the message is a 4-byte count of bytes."""
    PING = 6
    PONG = 7


class Frame(NamedTuple):
    kind: Kind
    method: int
    flags: int
    call: int
    message: memoryview
    attachment: memoryview


_KINDS: Final = {int(kind): kind for kind in Kind}


def encode(
    kind: Kind,
    call: int,
    message: Bytes = b"",
    attachments: Sequence[Bytes] = (),
    *,
    method: int = 0,
    flags: int = 0,
) -> list[Bytes]:
    """A frame as chunks for a gathering write; large attachments are not copied.

    Raises `FrameError` when it would be over the limits that the other side enforces.
    """
    attachment_bytes = 0
    for chunk in attachments:
        attachment_bytes += len(chunk)
    if len(message) > MAX_MESSAGE_BYTES or attachment_bytes > MAX_ATTACHMENT_BYTES:
        raise FrameError(
            f"a frame with {len(message)} bytes of message and {attachment_bytes} of attachment "
            f"is over the limits of {MAX_MESSAGE_BYTES} and {MAX_ATTACHMENT_BYTES}"
        )
    head = _UNCHECKED.pack(
        MAGIC, VERSION, kind, method, flags, call, len(message), attachment_bytes
    )
    if len(message) + attachment_bytes <= _JOINED_BYTES:
        rest = b"".join((message, *attachments))
        return [head + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(head + rest)) + rest]
    digest = xxhash.xxh3_64(head)
    digest.update(message)
    for chunk in attachments:
        digest.update(chunk)
    first = head + _CHECKSUM.pack(digest.intdigest())
    if len(message) <= _JOINED_BYTES:
        return [first + message, *attachments]
    return [first, message, *attachments]


class FrameDecoder:
    """Turns received bytes into frames.

    The caller asks where to put bytes (`buffer`), says how many came (`received`), then takes
    `frames()`. A large frame is received into memory of its own, which grows with what comes: to
    announce many bytes costs nothing.
    """

    __slots__ = ("_frame", "_frame_filled", "_frame_size", "_is_first", "_small", "_start", "_stop")

    def __init__(self) -> None:
        self._is_first = True
        self._small = bytearray(_FIRST_BYTES)
        self._start = 0
        self._stop = 0
        self._frame: bytearray | None = None
        self._frame_filled = 0
        self._frame_size = 0

    def buffer(self) -> memoryview:
        """Where the next bytes belong; never empty."""
        if self._frame is not None:
            return memoryview(self._frame)[self._frame_filled :]
        return memoryview(self._small)[self._stop :]

    def received(self, count: int) -> list[Frame]:
        """Take `count` bytes put into `buffer()`; return the frames they complete.

        Raises `FrameError`; the connection must then be closed.
        """
        if self._frame is not None:
            self._frame_filled += count
            if self._frame_filled < self._frame_size:
                if self._frame_filled == len(self._frame):
                    self._grow(self._frame)
                return []
            frame, self._frame = self._frame, None
            return [_decode(memoryview(frame))]
        self._stop += count
        frames: list[Frame] = []
        if self._is_first and self._stop >= _LOOKED_AT_BYTES:
            self._is_first = False
            if not self._small.startswith(MAGIC) and (found := stranger(bytes(self._small[:24]))):
                raise found
        while self._stop - self._start >= HEADER.size:
            size = _frame_size(self._small, self._start)
            available = self._stop - self._start
            if size <= available:
                # One copy out of the shared buffer, which is about to be overwritten.
                data = bytes(memoryview(self._small)[self._start : self._start + size])
                self._start += size
                frames.append(_decode(memoryview(data)))
            elif size > len(self._small) // 2:
                self._frame = bytearray(min(size, max(_AT_ONCE_BYTES, 2 * available)))
                self._frame[:available] = memoryview(self._small)[self._start : self._stop]
                self._frame_filled = available
                self._frame_size = size
                self._start = self._stop
            else:
                break
        self._compact()
        return frames

    def _grow(self, filled: bytearray) -> None:
        self._frame = bytearray(min(self._frame_size, _GROWTH * len(filled)))
        self._frame[: len(filled)] = filled

    def _compact(self) -> None:
        """Keep at least half of the small buffer free for the next receive; have a large one once
        it was full."""
        if self._stop == len(self._small) < _RECEIVE_BYTES:
            rest = self._small[self._start :]
            self._small = bytearray(_RECEIVE_BYTES)
            self._small[: len(rest)] = rest
            self._start, self._stop = 0, len(rest)
        elif self._start == self._stop:
            self._start = self._stop = 0
        elif self._start > 0 and self._stop > len(self._small) // 2:
            rest = self._small[self._start : self._stop]
            self._small[: len(rest)] = rest
            self._start, self._stop = 0, len(rest)

    @property
    def held_bytes(self) -> int:
        """Memory taken for a large frame that is still coming."""
        return 0 if self._frame is None else len(self._frame)

    @property
    def mid_frame(self) -> bool:
        """Whether the stream ended inside a frame, if it ended now."""
        return self._frame is not None or self._stop > self._start


def _frame_size(data: bytearray, start: int) -> int:
    magic, version, _, _, _, _, message, attachment, _ = HEADER.unpack_from(data, start)
    if magic != MAGIC:
        raise FrameError(
            f"a frame starts with {magic!r}, not {MAGIC!r}",
            "this port speaks Hadron's native protocol",
        )
    if version != VERSION:
        raise FrameError(f"a frame has version {version}, this side speaks {VERSION}")
    if message > MAX_MESSAGE_BYTES or attachment > MAX_ATTACHMENT_BYTES:
        raise FrameError(
            f"a frame announces {message} bytes of message and {attachment} of attachment, "
            f"the limits are {MAX_MESSAGE_BYTES} and {MAX_ATTACHMENT_BYTES}"
        )
    size: int = HEADER.size + message + attachment
    return size


def _decode(data: memoryview) -> Frame:
    _, _, kind, method, flags, call, message, _, checksum = HEADER.unpack_from(data)
    digest = xxhash.xxh3_64(data[: _UNCHECKED.size])
    digest.update(data[HEADER.size :])
    if digest.intdigest() != checksum:
        raise FrameError(f"a frame of {len(data)} bytes does not match its checksum")
    known = _KINDS.get(kind)
    if known is None:
        raise FrameError(f"a frame has the unknown kind {kind}")
    split = HEADER.size + message
    attachment = data[split:]
    if message > _PINNED_BYTES + len(attachment) and attachment:
        # Whoever keeps it, and counts its bytes, would keep the message as well.
        attachment = memoryview(bytes(attachment))
    return Frame(known, method, flags, call, data[HEADER.size : split], attachment)
