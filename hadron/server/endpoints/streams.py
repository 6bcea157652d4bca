"""The streams of callers and servers, as the broker of a leadership tells them of calls.

What is to be said in one turn gathers. Values go on as they came; only small ones are copied, which
costs less than to pass on the pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from hadron.endpoints.driver import Endpoints
from hadron.endpoints.port import Headers, Opening, Value
from hadron.model.call_shapes import header_bytes
from hadron.model.errors import (
    CallFailedError,
    FrameError,
    HadronError,
    RequestError,
    error_from_code,
)
from hadron.model.limits import MAX_CALL_HEADER_BYTES, MAX_CALL_MS, MAX_NAME_LENGTH
from hadron.model.principals import claimed
from hadron.wire.call_items import (
    CANCEL,
    CREDIT,
    END,
    ERROR,
    OPEN,
    SMALL_BYTES,
    VALUE,
    CallItems,
    Item,
)
from hadron.wire.calls import Call
from hadron.wire.messages import common_pb2, endpoints_pb2, error_to_message

_MAX_TYPE: Final = 1_000
"""Characters of the name of what a handler has raised."""

_NONE: Final[Headers] = {}


class _Stream:
    """What waits to be said on a call.

    Args:
        message: makes an empty one.
    """

    def __init__(self, driver: Endpoints, call: Call[Any, Any], message: Callable[[], Any]) -> None:
        self._driver = driver
        self._call = call
        self._items = CallItems(message)
        driver.attach(self)

    def _item(self, number: int, kind: int) -> Item:
        if not self._items:
            self._driver.touch(self)
        return self._items.add(number, kind)

    def _put(self, item: Item, value: Value) -> None:
        self._items.put(item, value.encoding, value.data, is_last=value.is_last)

    def flush(self) -> None:
        for message, chunks in self._items.take():
            self._call.send(message, chunks)

    def close(self, error: HadronError) -> None:
        self._driver.detach(self)
        self._items.clear()
        self._call.fail(error)


class CallerStream(_Stream):
    """`port.CallerSink`."""

    def __init__(self, driver: Endpoints, call: Call[Any, Any]) -> None:
        super().__init__(driver, call, endpoints_pb2.CallResponse)
        self._own = f"{call.principal.name} at {call.peer}"

    def has_room(self, size: int) -> bool:
        return self._call.has_room(self._items.size + size)

    def who(self, said: str) -> str:
        """Who calls, in words: the sender of the stream, or whom that says to call for."""
        if not said:
            return self._own
        # Its own address stands behind it, so that what was made up is seen to be.
        return f"a client at {claimed(said)} through {self._call.peer}"

    def value(self, number: int, value: Value, headers: Headers) -> None:
        item = self._item(number, VALUE)
        self._put(item, value)
        self._items.head(item, headers)

    def end(self, number: int, headers: Headers) -> None:
        self._items.head(self._item(number, END), headers)

    def error(self, number: int, error: HadronError, headers: Headers) -> None:
        item = self._item(number, ERROR)
        item.error.CopyFrom(error_to_message(error))
        if isinstance(error, CallFailedError):
            item.error_type = error.type
        item.headers.update(headers)
        self._items.weigh(item)

    def credit(self, number: int, size: int) -> None:
        self._item(number, CREDIT).credit = size


class ServerStream(_Stream):
    """`port.ServerSink`. What there is no credit for waits here: `flush` again once there is."""

    def __init__(self, driver: Endpoints, call: Call[Any, Any]) -> None:
        super().__init__(driver, call, endpoints_pb2.ServeResponse)
        self.on_writable: Callable[[], None] = lambda: None
        """What was gathered is sent, and there may be more: else that is heard of the call."""

    @property
    def writable(self) -> bool:
        return self._call.writable and not self._items.is_full

    @property
    def deaf_s(self) -> float:
        return self._call.origin.deaf_s

    def flush(self) -> None:
        was_full = self._items.is_full
        self._items.send(self._call)
        if was_full and self.writable:
            self.on_writable()

    def welcome(self) -> None:
        """It was attached: an empty message."""
        self._call.send(endpoints_pb2.ServeResponse())

    def open(
        self, number: int, opening: Opening, attempt: int, left_s: float, value: Value | None
    ) -> None:
        item = self._item(number, OPEN)
        told = item.open
        told.timeout_ms = max(1, int(left_s * 1_000))
        told.caller = opening.caller
        told.attempt = attempt
        told.headers.update(opening.headers)
        if value is not None:
            self._put(item, value)
            # That there is one: an empty one has no length.
            told.has_value = True
        self._items.weigh(item)

    def value(self, number: int, value: Value) -> None:
        self._put(self._item(number, VALUE), value)

    def end(self, number: int) -> None:
        self._item(number, END)

    def cancel(self, number: int) -> None:
        self._item(number, CANCEL)

    def credit(self, number: int, size: int) -> None:
        self._item(number, CREDIT).credit = size

    def fail(self, error: HadronError) -> None:
        self.close(error)


class Values:
    """The values of a message, one after the other in its attachment."""

    __slots__ = ("_at", "_attachment")

    def __init__(self, attachment: memoryview) -> None:
        self._attachment = attachment
        self._at = 0

    def take(self, item: Item) -> Value:
        """Raises `FrameError` where less has come than was said."""
        size = item.length
        if not size:
            return Value(item.encoding, b"", item.end)
        begin = self._at
        end = self._at = begin + size
        data: bytes | memoryview = self._attachment[begin:end]
        if len(data) < size:
            raise FrameError(f"a value of {size} bytes was announced, {len(data)} have come")
        if size <= SMALL_BYTES:
            data = bytes(data)
        return Value(item.encoding, data, item.end)

    def check_end(self) -> None:
        if self._at != len(self._attachment):
            raise FrameError(
                f"{len(self._attachment) - self._at} bytes came with calls, and belong to none"
            )


def opening_of(told: endpoints_pb2.CallOpening, caller: str) -> Opening:
    """Raises `FrameError` for headers that are too large, `RequestError` for such a region."""
    return Opening(
        min(told.timeout_ms or MAX_CALL_MS, MAX_CALL_MS) / 1_000,
        checked_name("caller's region", told.region),
        headers_of(told.headers) if told.headers else _NONE,
        caller,
        told.is_single,
    )


def checked_name(what: str, name: str) -> str:
    """As it was said: it stays as long as the call or the server does, and is in errors' texts.
    Raises `RequestError`."""
    if len(name) > MAX_NAME_LENGTH:
        raise RequestError(
            f"a {what} {name[:MAX_NAME_LENGTH]!r}... has {len(name)} characters",
            f"at most {MAX_NAME_LENGTH}",
        )
    return name


def headers_of(told: Mapping[str, str]) -> Headers:
    """Raises `FrameError` for more than may be sent."""
    headers = dict(told)
    if (size := header_bytes(headers)) > MAX_CALL_HEADER_BYTES:
        raise FrameError(f"headers of {size} bytes, the limit is {MAX_CALL_HEADER_BYTES}")
    return headers


def error_of(item: Item) -> HadronError:
    """What a server says of a call that has failed: always a `CallFailedError`, whose text is what
    its handler has raised."""
    told: common_pb2.Error = item.error
    error = error_from_code("CallFailedError", told.message, told.hint, told.retryable)
    assert isinstance(error, CallFailedError)
    error.type = (item.error_type or told.code or "Exception")[:_MAX_TYPE]
    return error
