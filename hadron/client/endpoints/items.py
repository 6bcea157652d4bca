"""What goes over the streams of callers and servers: values, headers and errors, both ways."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio

from hadron.model.call_shapes import header_bytes
from hadron.model.errors import (
    CallFailedError,
    FrameError,
    HadronError,
    InvalidRecordError,
    RecordTooLargeError,
    RequestError,
)
from hadron.model.limits import (
    CALL_VALUE_BYTES,
    CALL_WINDOW_BYTES,
    MAX_CALL_HEADER_BYTES,
    MAX_CALL_MESSAGE_BYTES,
)
from hadron.model.problems import shorten
from hadron.model.record import encode_value
from hadron.model.words import said_by, with_article
from hadron.wire.call_items import CallItems, Item
from hadron.wire.calling import OpenedCall
from hadron.wire.messages import error_from_message, error_to_message, text_to

Packed = tuple[int, bytes | memoryview]
"""A value's encoding, and its bytes."""

RECONNECT_CAP_S: Final = 0.5
"""Between two tries to reach a leader: it waits a second for its servers to come back."""

_CREDIT_STEP: Final = CALL_WINDOW_BYTES // 4


def pack(value: Any) -> Packed:
    """Raises `InvalidRecordError` for what is no JSON, `RecordTooLargeError`."""
    try:
        packed = encode_value(value)
    except InvalidRecordError as error:
        raise InvalidRecordError(error.message, "send bytes, str, or anything JSON") from error
    if len(packed[1]) > MAX_CALL_MESSAGE_BYTES:
        raise RecordTooLargeError(
            f"a value of {len(packed[1])} bytes is over the limit of {MAX_CALL_MESSAGE_BYTES}",
            "send it in pieces, over an endpoint with a streamed input or output",
        )
    return packed


def headers_of(headers: Mapping[str, str] | None) -> dict[str, str]:
    """As they are sent. Raises `RequestError`."""
    found: dict[str, str] = {}
    given: Any = headers or {}
    if not isinstance(given, Mapping):
        raise RequestError(
            f"headers are {with_article(type(given).__name__)}", "give a dict of texts by name"
        )
    for name, text in given.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise RequestError(f"the header {name!r}: {text!r} is no text", "give str for both")
        if not (_is_unicode(name) and _is_unicode(text)):
            raise RequestError(
                f"the header {name!r}: {text!r} has half of a character (a lone surrogate)",
                "send bytes that are no text as the value, or in base64",
            )
        if not name:
            raise RequestError(f"the header with the text {shorten(text)} has no name", "name it")
        found[name] = text
    if (size := header_bytes(found)) > MAX_CALL_HEADER_BYTES:
        raise RequestError(
            f"headers of {size} bytes are over the limit of {MAX_CALL_HEADER_BYTES}",
            "send what is long as the value, or a part of it",
        )
    return found


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def error_of(item: Item, endpoint: str) -> HadronError:
    """What ended a call of this endpoint."""
    error = error_from_message(item.error)
    if isinstance(error, CallFailedError):
        error.type, error.endpoint = item.error_type, endpoint
    return error


def set_error(item: Item, error: BaseException) -> None:
    """What a caller is told of what a handler has raised."""
    if isinstance(error, HadronError):
        item.error.CopyFrom(error_to_message(error))
        kind = error.type if isinstance(error, CallFailedError) else error.code
        item.error_type = text_to(kind)
    else:
        told = HadronError(said_by(error) or type(error).__name__)
        item.error.CopyFrom(error_to_message(told))
        item.error_type = type(error).__name__


class Outbox:
    """What waits to be said on a stream, in order, until there is credit for it (CLIENTS K4).

    Args:
        message: makes an empty one.
    """

    def __init__(self, message: Callable[[], Any]) -> None:
        self._items = CallItems(message)
        self._call: OpenedCall | None = None
        self._wanted = anyio.Event()
        self._said = anyio.Event()

    def open(self, call: OpenedCall) -> None:
        """From here on say it there."""
        self._call = call
        self._items.clear()
        call.on_writable = self.flush

    def close(self) -> None:
        """What was not said is not said any more."""
        self._call = None
        self.flush()

    def item(self, number: int, kind: int) -> Item:
        return self._items.add(number, kind)

    def put(self, item: Item, packed: Packed, *, end: bool) -> None:
        self._items.put(item, *packed, is_last=end)

    def head(self, item: Item, headers: Mapping[str, str] | None) -> None:
        self._items.head(item, headers)

    def weigh(self, item: Item) -> None:
        """It was given more than numbers, a value and headers."""
        self._items.weigh(item)

    def flush(self) -> None:
        """Say it now, as far as the leader takes it."""
        if self._call is not None:
            self._items.send(self._call)
        else:
            self._items.clear()
        if not self._items:
            self._said.set()

    def flush_soon(self) -> None:
        """Say it with what others have to say in this turn of the loop."""
        self._wanted.set()

    async def wait_said(self) -> None:
        """Until nothing waits any more, or nobody is there to hear it."""
        self.flush()
        while self._items:
            if self._said.is_set():
                # Others may be waiting with the one that is not set yet.
                self._said = anyio.Event()
            await self._said.wait()

    async def run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            self.flush()


class Values:
    """The values of a message, one after the other in its attachment."""

    __slots__ = ("_at", "_attachment")

    def __init__(self, attachment: memoryview) -> None:
        self._attachment = attachment
        self._at = 0

    def take(self, item: Item) -> Packed:
        """Raises `FrameError` where less has come than was said."""
        size = item.length
        if not size:
            return item.encoding, b""
        begin = self._at
        end = self._at = begin + size
        data = self._attachment[begin:end]
        if len(data) < size:
            raise FrameError(f"a value of {size} bytes was announced, {len(data)} have come")
        # Not to keep all of the message for the sake of one value; and users want bytes.
        return item.encoding, bytes(data)


class Inflow:
    """Values of a stream that have come and were not taken yet, and their end.

    Args:
        grant: tells the other side that so many bytes were taken.
    """

    def __init__(self, grant: Callable[[int], None]) -> None:
        self._grant = grant
        self._values: deque[Packed] = deque()
        self._owed = 0
        self._has_ended = False
        self._error: HadronError | None = None
        self._arrival = anyio.Event()

    def put(self, packed: Packed, *, end: bool) -> None:
        self._values.append(packed)
        self._has_ended |= end
        self._arrival.set()

    def end(self, error: HadronError | None = None) -> None:
        if not self._has_ended:
            self._has_ended, self._error = True, error
            self._arrival.set()

    @property
    def has_ended(self) -> bool:
        """Nothing more comes than what is here."""
        return self._has_ended

    async def take(self) -> Packed | None:
        """The next value; None at the end. Raises what ended it, behind all values."""
        while not self._values:
            if self._error is not None:
                raise self._error
            if self._has_ended:
                return None
            if self._arrival.is_set():
                # Others who take from it may be waiting with the one that is not set yet.
                self._arrival = anyio.Event()
            await self._arrival.wait()
        return self._pop()

    def with_rest(self, packed: Packed, max_bytes: int) -> list[Packed]:
        """What was taken, and those behind it that are here, up to so many bytes."""
        found, size = [packed], len(packed[1])
        while self._values and size < max_bytes:
            found.append(self._pop())
            size += len(found[-1][1])
        return found

    def _pop(self) -> Packed:
        packed = self._values.popleft()
        if not self._has_ended:
            self._owed += len(packed[1]) + CALL_VALUE_BYTES
            if self._owed >= _CREDIT_STEP:
                owed, self._owed = self._owed, 0
                self._grant(owed)
        return packed


class Outflow:
    """What may be sent of a stream: as much as the other side has room for."""

    def __init__(self) -> None:
        self._window = CALL_WINDOW_BYTES
        self._error: HadronError | None = None
        self._is_over = False
        self._room = anyio.Event()

    def granted(self, size: int) -> None:
        self._window += size
        self._room.set()

    def end(self, error: HadronError | None = None) -> None:
        """Nobody takes anything any more."""
        self._is_over, self._error = True, error
        self._room.set()

    def spend(self, size: int) -> None:
        self._window -= size + CALL_VALUE_BYTES

    async def wait(self) -> bool:
        """Until a value may be sent; whether somebody takes it. Raises what ended it."""
        while self._window <= 0 and not self._is_over:
            if self._room.is_set():
                # Others who send may be waiting with the one that is not set yet.
                self._room = anyio.Event()
            await self._room.wait()
        if self._error is not None:
            raise self._error
        return not self._is_over
