"""The port of calls: one exchange of messages, as its two sides see it, whatever carries it.

`FramedCall` is carried by a connection with many of them, `LocalCall` by memory; both pass the same
tests (`hadron/wire/tests/test_call_contract.py`). The core is made of callbacks, not tasks.

Safety rule: a streaming call sends no more than its peer has given credit for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeAlias, TypeVar

from hadron.model.errors import FrameError, HadronError
from hadron.model.principals import Principal
from hadron.wire.budget import Budget
from hadron.wire.frames import Bytes

_Said = TypeVar("_Said", contravariant=True)
"""What this side says."""

_Heard = TypeVar("_Heard")
"""What it hears."""

_Request = TypeVar("_Request")
_Response = TypeVar("_Response", contravariant=True)


class Exchange(Protocol[_Said, _Heard]):
    """One exchange of messages, for either side.

    `on_message(message, attachment)`, `on_end(error | None)` and `on_writable()` are called from
    the task that reads and must not block. `on_end` is called exactly once: with None after the
    peer said END, with the error otherwise. The attachment is valid for as long as it is
    referenced.
    """

    on_message: Callable[[_Heard, memoryview], None]
    on_end: Callable[[HadronError | None], None]
    on_writable: Callable[[], None]

    @property
    def writable(self) -> bool:
        """Whether the peer's credit and the way there allow another message of a stream."""
        ...

    @property
    def is_open(self) -> bool: ...

    @property
    def peer_ended(self) -> bool:
        """Whether the peer has said END, cancelled, or gone: `on_end` was called."""
        ...

    def send(self, message: _Said, attachments: Sequence[Bytes] = (), *, end: bool = False) -> None:
        """Send one message; with `end`, the last one. Never blocks; see `writable`. Whoever sent it
        may fill it anew at once.

        After the call has ended, for whatever reason, nothing happens: the peer is not listening.
        """
        ...

    def end(self) -> None:
        """Say that nothing more follows, without a message."""
        ...

    def cancel(self) -> None:
        """End the call without an answer; `on_end` is not called."""
        ...

    def consumed(self, size: int) -> None:
        """Tell the peer that `size` bytes of a stream have been dealt with."""
        ...


class Origin(Protocol):
    """Where calls come from: the same object for all of a connection.

    Attributes:
        principal: who has introduced itself there; a handler that hears who it is writes it down.
    """

    principal: Principal

    @property
    def peer(self) -> str:
        """Who is at the other end, in words."""
        ...

    @property
    def deaf_s(self) -> float:
        """Seconds, in all, for which nothing that comes from there was read: it was not silent."""
        ...

    def share(self, budget: Budget) -> None:
        """Belong to another budget from here on."""
        ...

    def close(self, reason: HadronError | None = None) -> None:
        """Close it at once, and end every call that came from there."""
        ...


class Call(Exchange[_Response, _Request], Protocol[_Request, _Response]):
    """One exchange, as its handler sees it."""

    @property
    def principal(self) -> Principal:
        """Who calls."""
        ...

    @property
    def peer(self) -> str:
        """Who calls, in words, with the address."""
        ...

    @property
    def origin(self) -> Origin: ...

    @property
    def ahead(self) -> int:
        """Bytes that were sent beyond the peer's credit."""
        ...

    def fail(self, error: HadronError) -> None:
        """End the call with an error."""
        ...

    def has_room(self, size: int) -> bool:
        """Whether so many bytes may wait to be sent beside those that do already."""
        ...

    def room(self, size: int) -> AbstractAsyncContextManager[int]:
        """`async with call.room(size) as size: …`: wait until an answer of so many bytes may be
        made, or of fewer; read it and send it inside. For whatever may be large."""
        ...

    def spawn(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Run what has to wait as a task, which ends with the call."""
        ...

    def spawn_within(self, size: int, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        """`spawn` once there is room for an answer of `size` bytes."""
        ...


AnyCall: TypeAlias = Call[Any, Any]
"""For who deals with calls of all methods."""

Handler = Callable[[AnyCall, Any, memoryview], None]
"""Serves the opening message of a call; sets `call.on_message` when more may follow."""


def ignore_message(message: Any, attachment: memoryview) -> None:
    pass


def refuse_message(_message: Any, _attachment: memoryview) -> None:
    raise FrameError("nothing may follow the first message of this call")


def ignore_end(error: HadronError | None) -> None:
    pass


def ignore_writable() -> None:
    pass
