"""Calls in memory, without frames: for handlers in the program that calls them, and for tests.

What one side sends is copied, as if it had gone over a wire, and the other side hears of it in its
turn, never within `send`: `LocalConnection.run` hands over what waits, in order. Nothing is lost on
the way, so nothing but a stream's credit bounds what may wait.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final

import anyio
import anyio.abc
import anyio.lowlevel

from hadron.model.errors import ConnectionLostError, HadronError
from hadron.model.principals import ANONYMOUS, Principal
from hadron.wire.budget import Budget
from hadron.wire.calling import Caller
from hadron.wire.calls import (
    Handler,
    Origin,
    ignore_end,
    ignore_message,
    ignore_writable,
    refuse_message,
)
from hadron.wire.failures import failure_of, not_served
from hadron.wire.framed_calls import WINDOW_BYTES
from hadron.wire.frames import Bytes
from hadron.wire.messages import Method

_HANDED_OVER_PER_TURN: Final = 16
"""Then others have theirs, as with connections."""


class LocalCall:
    """`calls.Call` in memory; two of them are an exchange."""

    def __init__(self, connection: LocalConnection, method: Method, *, opener: bool) -> None:
        self._connection = connection
        self.method = method
        self._parse = (method.request if opener else method.response).FromString
        """What the other side makes of what this one sends."""
        self.other: LocalCall
        self._window = WINDOW_BYTES
        self._ended_here = False
        self._ended_there = False
        self._scope: anyio.CancelScope | None = None
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
        return self._window > 0 and not self._ended_here

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
        attachment = memoryview(b"".join(attachments))
        self._window -= len(data) + len(attachment)
        self._post(self.other.receive, self._parse(data), attachment)
        if end:
            self.end()

    def end(self) -> None:
        if not self._ended_here:
            self._ended_here = True
            self._post(self.other.ended, None)
            self._forget_if_over()

    def fail(self, error: HadronError) -> None:
        if not self._ended_here:
            self._ended_here = self._ended_there = True
            self._post(self.other.lose, error)
            self._forget_if_over()

    def cancel(self) -> None:
        if not self.is_open:
            return
        self.on_end = ignore_end
        self._ended_here = self._ended_there = True
        self._post(self.other.lose, ConnectionLostError("the caller cancelled the call"))
        self._forget_if_over()

    def consumed(self, size: int) -> None:
        self._post(self.other.granted, size)

    def has_room(self, size: int) -> bool:  # noqa: ARG002 - memory has no bound of its own
        return True

    @contextlib.asynccontextmanager
    async def _room(self, size: int) -> AsyncIterator[int]:
        yield size

    def room(self, size: int) -> AbstractAsyncContextManager[int]:
        return self._room(size)

    def spawn(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        self._scope = anyio.CancelScope()
        self._connection.start(self._task, self._scope, partial(function, *args))

    def spawn_within(self, size: int, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        async def task() -> None:
            async with self.room(size):
                await function(*args)

        self.spawn(task)

    async def _task(
        self, scope: anyio.CancelScope, function: Callable[[], Awaitable[None]]
    ) -> None:
        try:
            with scope:
                await function()
        except Exception as error:
            self.fail(failure_of(self.method, error))

    # --- from the other side --------------------------------------------------------------------

    def hear(self, what: Callable[..., None], *args: Any) -> None:
        """Whatever goes wrong inside one call ends that call and nothing else."""
        try:
            what(*args)
        except Exception as error:
            failure, has_heard = failure_of(self.method, error), self._ended_there
            self.fail(failure)
            if not has_heard:
                self.on_end(failure)

    def receive(self, message: Any, attachment: memoryview) -> None:
        if not self._ended_there:
            self.on_message(message, attachment)

    def granted(self, size: int) -> None:
        was_writable = self._window > 0
        self._window = min(self._window + size, WINDOW_BYTES)
        if not was_writable and self._window > 0:
            self.on_writable()

    def lose(self, error: HadronError) -> None:
        """The other side has failed or cancelled, or the connection has ended."""
        self._ended_here = True
        if self._scope is not None:
            self._scope.cancel()
        self.ended(error)
        self._forget_if_over()

    def ended(self, error: HadronError | None) -> None:
        if not self._ended_there:
            self._ended_there = True
            self._forget_if_over()
            self.on_end(error)

    def _post(self, what: Callable[..., None], *args: Any) -> None:
        self._connection.post(partial(self.other.hear, what, *args))

    def _forget_if_over(self) -> None:
        if not self.is_open:
            self._connection.forget(self)


class LocalConnection(Caller):
    """Both ends of a connection within a program. `run` must be running.

    Attributes:
        principal: who calls here.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        *,
        principal: Principal = ANONYMOUS,
        name: str = "this program",
    ) -> None:
        self.principal = principal
        self._handlers = handlers
        self._name = name
        self.deaf_s = 0.0
        self._waiting: deque[Callable[[], None]] = deque()
        self._arrival = anyio.Event()
        self._calls: dict[LocalCall, None] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._closed: HadronError | None = None

    @property
    def peer(self) -> str:
        return self._name

    @property
    def is_closed(self) -> bool:
        return self._closed is not None

    def share(self, budget: Budget) -> None:
        """There is nothing to divide."""

    def call(
        self,
        method: Method,
        message: Any,
        attachments: Sequence[Bytes] = (),
        *,
        on_message: Callable[[Any, memoryview], None],
        on_end: Callable[[HadronError | None], None] = ignore_end,
        end: bool = True,
    ) -> LocalCall:
        if self._closed is not None:
            raise ConnectionLostError(self._closed.message, self._closed.hint)
        opened = LocalCall(self, method, opener=True)
        answering = LocalCall(self, method, opener=False)
        opened.other, answering.other = answering, opened
        opened.on_message, opened.on_end = on_message, on_end
        self._calls |= {opened: None, answering: None}
        handler = self._handlers.get(method.number)

        def opening(message: Any, attachment: memoryview) -> None:
            if handler is None:
                raise not_served(method)
            answering.on_message = refuse_message
            handler(answering, message, attachment)

        answering.on_message = opening
        opened.send(message, attachments, end=end)
        return opened

    async def run(self) -> None:
        """Hand over what is said, until it is closed or cancelled."""
        lost = ConnectionLostError(f"the connection to {self.peer} ended")
        try:
            async with anyio.create_task_group() as self._tasks:
                while self._closed is None:
                    self._arrival = anyio.Event()
                    for _ in range(min(len(self._waiting), _HANDED_OVER_PER_TURN)):
                        self._waiting.popleft()()
                        self.heard += 1
                    if self._waiting:
                        await anyio.lowlevel.checkpoint()
                    else:
                        await self._arrival.wait()
                self._tasks.cancel_scope.cancel()
        finally:
            self.close(lost)

    def close(self, reason: HadronError | None = None) -> None:
        if self._closed is None:
            self._closed = reason or ConnectionLostError(
                f"the connection to {self.peer} was closed"
            )
            self._waiting.clear()
            for call in list(self._calls):
                call.hear(call.lose, self._closed)
            self._arrival.set()

    def start(self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(function, *args)

    def post(self, what: Callable[[], None]) -> None:
        if self._closed is None:
            self._waiting.append(what)
            self._arrival.set()

    def forget(self, call: LocalCall) -> None:
        self._calls.pop(call, None)
