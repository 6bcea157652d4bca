"""Wires of the logs' room: messages arrive late, in order, or not at all, and nothing is framed."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import trio

from hadron.fakes.clocks import SimRandom
from hadron.model.errors import ConnectionLostError, HadronError
from hadron.model.principals import ANONYMOUS, Principal
from hadron.wire.budget import Budget
from hadron.wire.calling import Caller
from hadron.wire.calls import Handler, ignore_end
from hadron.wire.frames import Bytes
from hadron.wire.messages import Method

Handlers = Mapping[str, Handler]

_USUAL_S: Final = 0.0005


class Origin:
    """A connection, as the one who serves it sees it."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.principal: Principal = ANONYMOUS
        self.peer = wire.source

    def share(self, budget: Budget) -> None:
        """There is room for everything."""

    def close(self, reason: HadronError | None = None) -> None:
        self._wire.close(reason)


class Call:
    """One exchange, for both of its sides."""

    def __init__(
        self,
        wire: Wire,
        on_message: Callable[[Any, memoryview], None],
        on_end: Callable[[HadronError | None], None],
    ) -> None:
        self._wire = wire
        self._on_message, self._on_end = on_message, on_end
        self.peer_ended = False
        self.origin = wire.origin
        self.peer = wire.source

    @property
    def principal(self) -> Principal:
        return self.origin.principal

    def send(self, message: Any, attachments: Sequence[Bytes] = (), *, end: bool = False) -> None:
        said = type(message).FromString(message.SerializeToString())
        body = memoryview(b"".join(attachments))
        self._wire.answer(lambda: self._heard(said, body, end=end))

    def _heard(self, message: Any, body: memoryview, *, end: bool) -> None:
        if not self.peer_ended:
            self._on_message(message, body)
            if end:
                self.finish(None)

    def fail(self, error: HadronError) -> None:
        self._wire.answer(lambda: self.finish(error))

    def finish(self, error: HadronError | None) -> None:
        """It ends, once."""
        self._wire.open.pop(self, None)
        if not self.peer_ended:
            self.peer_ended = True
            self._on_end(error)

    def cancel(self) -> None:
        self._wire.open.pop(self, None)
        self.peer_ended = True

    def spawn(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        self._wire.spawn(self._served, function, *args)

    def spawn_within(self, _size: int, function: Callable[..., Awaitable[None]], *a: Any) -> None:
        self.spawn(function, *a)

    async def _served(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        try:
            await function(*args)
        except HadronError as error:
            self.fail(error)


class Wire(Caller):
    """A connection, as the one who has dialed sees it. `run` must be running."""

    def __init__(
        self, source: str, target: str, handlers: Handlers, chance: SimRandom, check: Any
    ) -> None:
        """`check` raises for a call that may not come in."""
        self.source, self.target = source, target
        self.open: dict[Call, None] = {}
        self.slow_s = _USUAL_S
        self.origin = Origin(self)
        self._handlers, self._check = handlers, check
        self._chance = chance
        self._there = trio.open_memory_channel[Callable[[], None]](math.inf)
        self._back = trio.open_memory_channel[Callable[[], None]](math.inf)
        self._nursery: trio.Nursery | None = None
        self._closed = trio.Event()
        self._reason: HadronError | None = None

    @property
    def peer(self) -> str:
        return self.target

    @property
    def is_closed(self) -> bool:
        return self._reason is not None

    def call(
        self,
        method: Method,
        message: Any,
        attachments: Sequence[Bytes] = (),
        *,
        on_message: Callable[[Any, memoryview], None],
        on_end: Callable[[HadronError | None], None] = ignore_end,
        end: bool = True,  # noqa: ARG002 - there are no streams
    ) -> Any:
        if self._reason is not None:
            raise ConnectionLostError(self._reason.message)
        call = Call(self, on_message, on_end)
        self.open[call] = None
        said = method.request.FromString(message.SerializeToString())
        body = memoryview(b"".join(attachments))
        self._there[0].send_nowait(lambda: self._serve(call, method.name, said, body))
        return call

    def _serve(self, call: Call, name: str, message: Any, body: memoryview) -> None:
        try:
            if name != "Handshake":
                self._check(call)
            self._handlers[name](call, message, body)  # type: ignore[arg-type]
        except HadronError as error:
            call.fail(error)

    def answer(self, arrives: Callable[[], None]) -> None:
        if self._reason is None:
            self._back[0].send_nowait(arrives)

    def spawn(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        if self._nursery is not None and self._reason is None:
            self._nursery.start_soon(function, *args)

    async def run(self) -> None:
        """Carry what is said until it is closed."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._carry, self._there[1])
                nursery.start_soon(self._carry, self._back[1])
                await self._closed.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.close()

    async def _carry(self, channel: trio.MemoryReceiveChannel[Callable[[], None]]) -> None:
        async for arrives in channel:
            await trio.sleep(self._chance.uniform(0.0, 2 * self.slow_s))
            arrives()

    def close(self, reason: HadronError | None = None) -> None:
        if self._reason is not None:
            return
        error = reason or ConnectionLostError(f"the connection to {self.target} broke")
        self._reason = error
        self._closed.set()
        for call in list(self.open):
            call.finish(error)

    async def wait_closed(self) -> HadronError:
        await self._closed.wait()
        assert self._reason is not None
        return self._reason
