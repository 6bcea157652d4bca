"""A call whose messages are frames of a connection that carries many calls.

Safety rule: a streaming call sends no more than its peer has given credit for, and its opener takes
no more than it has given.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

from hadron.model.errors import ConnectionLostError, FrameError, HadronError
from hadron.model.limits import MAX_ATTACHMENT_BYTES, MAX_MESSAGE_BYTES
from hadron.model.principals import Principal
from hadron.wire import frames
from hadron.wire.calls import Origin, ignore_end, ignore_message, ignore_writable
from hadron.wire.failures import heard
from hadron.wire.frames import END, NO_MESSAGE, Bytes, Frame, Kind
from hadron.wire.messages import Method, common_pb2, error_from_message, error_to_message

WINDOW_BYTES: Final = 1 << 20
"""What a stream may send before its peer grants more; twice a 256 kB message in flight suffices."""

_OVERDRAFT_BYTES: Final = MAX_MESSAGE_BYTES + MAX_ATTACHMENT_BYTES + 4 * WINDOW_BYTES
"""How far beyond the window its answers may go: the last message that is sent within it may be a
largest one, and small ones that only say something do not wait for credit."""

MAX_OWED_BYTES: Final = WINDOW_BYTES + _OVERDRAFT_BYTES
"""What a peer that goes by its credit may have sent on a call, and nobody has taken yet: with room
to spare."""

_CREDIT_STEP: Final = WINDOW_BYTES // 4
_WITH_MESSAGE: Final = Kind.MESSAGE, Kind.OPEN
"""Here, because to look two members of an enum up takes longer than to compare them."""

_CREDIT: Final = struct.Struct("<I")


class Carrier(Origin, Protocol):
    """What a call needs of its connection."""

    def write(self, chunks: list[Bytes]) -> None:
        """Send a frame as soon as the socket takes it."""
        ...

    def spawn(
        self, call: FramedCall, function: Callable[..., Awaitable[None]], args: tuple[Any, ...]
    ) -> None:
        """Run a task that ends with the call."""
        ...

    def cancel_task(self, call: FramedCall) -> None: ...

    @property
    def takes_more(self) -> bool:
        """Whether a stream may send, as far as it is up to the connection."""
        ...

    def room(self, size: int) -> AbstractAsyncContextManager[int]:
        """Wait until an answer of `size` bytes, or of as many as it yields, may be made."""
        ...

    def has_room(self, size: int) -> bool:
        """Whether so many bytes may wait to be sent beside those that do already."""
        ...

    def forget(self, call: FramedCall) -> None:
        """Both sides have ended it."""
        ...


class FramedCall:
    """`calls.Call`, as frames of a connection. The same class serves the opener and the answering
    side."""

    __slots__ = (
        "_allowance",
        "_connection",
        "_consumed",
        "_ended_here",
        "_ended_there",
        "_parse",
        "_window",
        "id",
        "method",
        "on_end",
        "on_message",
        "on_writable",
    )

    def __init__(
        self,
        connection: Carrier,
        call_id: int,
        method: Method,
        *,
        opener: bool,
        ended: bool = False,
    ) -> None:
        """`ended`: this side says nothing after the opening message."""
        self._connection = connection
        self.id = call_id
        self.method = method
        self._parse = (method.response if opener else method.request).FromString
        self._window = WINDOW_BYTES
        self._consumed = 0
        self._allowance = WINDOW_BYTES if opener else None
        """What the peer may still send; None where it is the one that asks."""
        self._ended_here = ended
        self._ended_there = False
        self.on_message: Callable[[Any, memoryview], None] = ignore_message
        self.on_end: Callable[[HadronError | None], None] = ignore_end
        self.on_writable: Callable[[], None] = ignore_writable

    @property
    def origin(self) -> Origin:
        return self._connection

    @property
    def principal(self) -> Principal:
        return self._connection.principal

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def writable(self) -> bool:
        return self._window > 0 and not self._ended_here and self._connection.takes_more

    @property
    def ahead(self) -> int:
        return max(0, -self._window)

    @property
    def is_open(self) -> bool:
        return not (self._ended_here and self._ended_there)

    @property
    def peer_ended(self) -> bool:
        return self._ended_there

    def send(self, message: Any, attachments: Sequence[Bytes] = (), *, end: bool = False) -> None:
        if self._ended_here:
            return
        data = message.SerializeToString()
        # What is over a frame's limits raises, and takes nothing of the window.
        chunks = frames.encode(Kind.MESSAGE, self.id, data, attachments, flags=END if end else 0)
        self._window -= len(data) + sum(map(len, attachments))
        self._connection.write(chunks)
        if end:
            self._end_here()

    def end(self) -> None:
        if not self._ended_here:
            self._connection.write(frames.encode(Kind.MESSAGE, self.id, flags=END | NO_MESSAGE))
            self._end_here()

    def fail(self, error: HadronError) -> None:
        if self._ended_here:
            return
        data = error_to_message(error).SerializeToString()
        self._connection.write(frames.encode(Kind.ERROR, self.id, data))
        self._ended_there = True
        self._end_here()

    def abort(self, error: HadronError) -> None:
        """Handling a message failed: both sides are told, the handler's own state through
        `on_end`."""
        if self._ended_there:
            self.fail(error)
            return
        self.fail(error)
        self.on_end(error)

    def cancel(self) -> None:
        if not self.is_open:
            return
        self.on_end = ignore_end
        self._connection.write(frames.encode(Kind.CANCEL, self.id))
        self._ended_there = True
        self._end_here()

    def consumed(self, size: int) -> None:
        self._consumed += size
        if self._allowance is not None:
            self._allowance += size
        if self._consumed >= _CREDIT_STEP and not self._ended_there:
            credit, self._consumed = self._consumed, 0
            self._connection.write(frames.encode(Kind.CREDIT, self.id, _CREDIT.pack(credit)))

    def room(self, size: int) -> AbstractAsyncContextManager[int]:
        return self._connection.room(size)

    def has_room(self, size: int) -> bool:
        return self._connection.has_room(size)

    def spawn_within(self, size: int, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        async def task() -> None:
            async with self.room(size):
                await function(*args)

        self.spawn(task)

    def spawn(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        self._connection.spawn(self, function, args)

    def receive(self, frame: Frame) -> None:
        """Deal with a frame of this call."""
        if frame.kind in _WITH_MESSAGE:
            if self._allowance is not None:
                self._allowance -= len(frame.message) + len(frame.attachment)
                if self._allowance < -_OVERDRAFT_BYTES:
                    raise FrameError(
                        f"{self._connection.peer} sends {WINDOW_BYTES - self._allowance} bytes on "
                        f"{self.method} that nobody has room for"
                    )
            if not frame.flags & NO_MESSAGE:
                self.on_message(self._parse(bytes(frame.message)), frame.attachment)
            if frame.flags & END:
                self._end_there(None)
        elif frame.kind is Kind.ERROR:
            error = heard(error_from_message(common_pb2.Error.FromString(bytes(frame.message))))
            self._ended_here = True
            self._end_there(error)
        elif frame.kind is Kind.CANCEL:
            self._cancelled()
        elif frame.kind is Kind.CREDIT:
            was_writable = self._window > 0
            if len(frame.message) != _CREDIT.size:
                raise FrameError(f"a credit of {len(frame.message)} bytes has no meaning")
            # Nobody grants more than was sent; a peer that says so would get all there is at once.
            credit: int = _CREDIT.unpack(frame.message)[0]
            self._window = min(self._window + credit, WINDOW_BYTES)
            if not was_writable and self._window > 0:
                self.on_writable()

    def _cancelled(self) -> None:
        self._ended_here = True
        if self._ended_there:
            # It had said END, and `on_end` was told so; what still works on the answer is not.
            self._connection.forget(self)
            self._connection.cancel_task(self)
        else:
            self._end_there(ConnectionLostError("the caller cancelled the call"))

    def lose(self, error: HadronError) -> None:
        """The connection ended, and the call with it."""
        self._ended_here = True
        self._end_there(error)

    def _end_here(self) -> None:
        self._ended_here = True
        if self._ended_there:
            self._connection.forget(self)

    def _end_there(self, error: HadronError | None) -> None:
        if self._ended_there:
            return
        self._ended_there = True
        if self._ended_here:
            self._connection.forget(self)
        self.on_end(error)
