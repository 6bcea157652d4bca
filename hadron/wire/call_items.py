"""What waits to be said on a stream of callers or servers, gathered into messages.

A message costs more than ten items: what is to be said in one turn of the loop goes together. To
gather never sends, so that nothing is heard of a connection that breaks while somebody is not yet
done with what it has to say.

Safety rule: `send` says no more than there is credit for (`calls`); the rest waits here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from hadron.model.limits import MAX_CALL_ITEMS
from hadron.wire.calls import Exchange
from hadron.wire.frames import Bytes
from hadron.wire.messages import endpoints_pb2

Item = endpoints_pb2.CallItem
OPEN: Final = int(Item.OPEN)
VALUE: Final = int(Item.VALUE)
END: Final = int(Item.END)
ERROR: Final = int(Item.ERROR)
CANCEL: Final = int(Item.CANCEL)
CREDIT: Final = int(Item.CREDIT)
REFUSE: Final = int(Item.REFUSE)

_MESSAGE_BYTES: Final = 1 << 20
"""Of one message, with the last item over it: an error's text, at most, is half as much. A frame
has room for four times that, beside its values."""

SMALL_BYTES: Final = 4 << 10
"""Values of this size are copied, out of the message that they came in as well: to pass on the
pieces costs more."""

Gathered = tuple[Any, list[Bytes]]
"""A message, and the values of its items."""


class CallItems:
    """
    Args:
        message: makes an empty one.

    Attributes:
        size: bytes that wait, without what every item has.
    """

    __slots__ = ("_bytes", "_chunks", "_full", "_make", "_message", "size")

    def __init__(self, message: Callable[[], Any]) -> None:
        self._make = message
        self._full: deque[tuple[Gathered, int]] = deque()
        """Each with what it counts in `size`."""
        self.clear()

    def clear(self) -> None:
        """What was not said is not said any more."""
        self._full.clear()
        self.size = 0
        self._begin()

    def _begin(self) -> None:
        self._message = self._make()
        self._chunks: list[Bytes] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._message.items)

    @property
    def is_full(self) -> bool:
        """Whether a message's worth waits: what can wait elsewhere should."""
        return self.size >= _MESSAGE_BYTES

    def add(self, number: int, kind: int) -> Item:
        """An item, to be filled before the next one is added; `weigh` it where it was given more
        than numbers, a value and headers."""
        items = self._message.items
        if self._bytes >= _MESSAGE_BYTES or len(items) >= MAX_CALL_ITEMS:
            self._full.append((self._gathered(), self._bytes))
            self._begin()
            items = self._message.items
        item: Item = items.add(number=number, kind=kind)
        return item

    def put(self, item: Item, encoding: int, data: Bytes, *, is_last: bool) -> None:
        """The item's value."""
        size = len(data)
        if size:
            item.length = size
            self._chunks.append(data)
            self._bytes += size
            self.size += size
        if encoding:
            item.encoding = encoding
        if is_last:
            item.end = True

    def head(self, item: Item, headers: Mapping[str, str] | None) -> None:
        if headers:
            item.headers.update(headers)
            self.weigh(item)

    def weigh(self, item: Item) -> None:
        """What else it was given counts as well."""
        size = item.ByteSize()
        self._bytes += size
        self.size += size

    def send(self, call: Exchange[Any, Any]) -> None:
        """Say on `call`, in order, as much as it takes: again when it is writable."""
        while self._message.items and call.writable:
            message, chunks = self._next()
            call.send(message, chunks)

    def take(self) -> list[Gathered]:
        """All that waits, in order, to be sent now."""
        gathered = []
        while self._message.items:
            gathered.append(self._next())
        return gathered

    def _next(self) -> Gathered:
        """The first message of those that wait."""
        if self._full:
            gathered, size = self._full.popleft()
        else:
            gathered, size = self._gathered(), self._bytes
            self._begin()
        self.size -= size
        return gathered

    def _gathered(self) -> Gathered:
        chunks = self._chunks
        if len(chunks) > 1 and self._bytes <= SMALL_BYTES * len(chunks):
            chunks = [b"".join(chunks)]
        return self._message, chunks
