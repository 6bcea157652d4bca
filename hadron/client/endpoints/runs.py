"""Runs handlers: one for each call that a server was given, and the last word on each.

Rule: whatever a handler does, its call gets one last word (ENDPOINTS N3): its slot is given back
then, and not before it has really ended.

Rule: a server that stops waits for no thread (CLIENTS K6): that may be the one that closes it.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread

from hadron.client.connecting.background import Background
from hadron.client.endpoints.handlers import Handler
from hadron.client.endpoints.incoming import CURRENT, IncomingCall
from hadron.client.endpoints.items import (
    Inflow,
    Outbox,
    Outflow,
    Packed,
    headers_of,
    pack,
    set_error,
)
from hadron.client.terms.cancelling import is_stray
from hadron.model.errors import CallFailedError, RequestError
from hadron.model.words import with_article
from hadron.wire.call_items import CREDIT, END, ERROR, REFUSE, VALUE, Item

_log: Final = logging.getLogger(__name__)

T = TypeVar("T")

_GONE: Final = object()
"""No value."""


class Run:
    """A call, from when it was given to this server."""

    __slots__ = ("call", "first", "inflow", "is_over", "number", "outflow", "worker")

    def __init__(
        self, number: int, call: IncomingCall, first: Packed | None, inflow: Inflow | None
    ) -> None:
        self.number = number
        self.call = call
        self.first = first
        self.inflow = inflow
        self.outflow: Outflow | None = None
        self.worker: _Worker | None = None
        self.is_over = False

    def cancel(self) -> None:
        self.call._is_cancelled = True
        if self.worker is not None:
            self.worker.cancel()
        if self.inflow is not None:
            # A handler in a thread is not cancelled: it may be waiting for a value.
            self.inflow.end(CallFailedError("the call was cancelled", type="Cancelled"))


class Runs:
    """Those of one server, by the numbers that the leader has given them."""

    def __init__(
        self,
        endpoint: str,
        handler: Handler,
        background: Background,
        outbox: Outbox,
        most: int,
        clock_s: Callable[[], float],
    ) -> None:
        """
        Args:
            most: calls at a time.
            clock_s: of any thread.
        """
        self._clock_s = clock_s
        self._endpoint = endpoint
        self._handler = handler
        self._background = background
        self._outbox = outbox
        self._limiter = anyio.CapacityLimiter(most)
        self._threads = anyio.CapacityLimiter(math.inf)
        """What bounds them is `_limiter`."""
        self._shields: set[anyio.CancelScope] = set()
        """Of those that wait for a thread."""
        self._open: dict[int, Run] = {}
        self._idle: list[_Worker] = []
        self._rest = anyio.Event()
        self.is_leaving = False
        """Takes no more calls."""

    @property
    def count(self) -> int:
        return len(self._open)

    # --- what the leader says ---------------------------------------------------------------------

    def begin(self, item: Item, packed: Packed | None) -> None:
        number, told = item.number, item.open
        if self.is_leaving:
            self._outbox.item(number, REFUSE)
            self._outbox.flush_soon()
            return
        call = IncomingCall(
            self._endpoint,
            dict(told.headers),
            told.caller,
            told.attempt,
            told.timeout_ms / 1_000,
            self._clock_s,
        )
        inflow = None
        if self._handler.takes_stream:
            inflow = Inflow(lambda size: self._grant(number, size))
            if packed is not None:
                inflow.put(packed, end=item.end)
        run = self._open[number] = Run(number, call, packed, inflow)
        if self._handler.gives_stream:
            run.outflow = Outflow()
        if self._idle:
            self._idle.pop().give(run)
        else:
            worker = _Worker(self)
            worker.give(run)
            self._background.start(worker.work)

    def value(self, number: int, packed: Packed, *, end: bool) -> None:
        run = self._open.get(number)
        if run is not None and run.inflow is not None:
            run.inflow.put(packed, end=end)

    def end(self, number: int) -> None:
        run = self._open.get(number)
        if run is not None and run.inflow is not None:
            run.inflow.end()

    def credit(self, number: int, size: int) -> None:
        run = self._open.get(number)
        if run is not None and run.outflow is not None:
            run.outflow.granted(size)

    def cancel(self, number: int) -> None:
        run = self._open.get(number)
        if run is not None:
            run.cancel()

    def lose(self) -> None:
        """The stream is lost: nobody hears of any of them any more."""
        runs, self._open = list(self._open.values()), {}
        for run in runs:
            run.is_over = True
            run.cancel()
        self._check_rest()

    def stop(self) -> None:
        """Nothing is run any more."""
        self.lose()
        for shield in self._shields:
            shield.shield = False
        for worker in self._idle:
            worker.stop()
        self._idle.clear()

    async def wait_done(self) -> None:
        """Until all that have begun have ended."""
        while self._open:
            if self._rest.is_set():
                # Others may be waiting with the one that is not set yet.
                self._rest = anyio.Event()
            await self._rest.wait()

    def _check_rest(self) -> None:
        if not self._open:
            self._rest.set()

    def _grant(self, number: int, size: int) -> None:
        if number in self._open:
            self._outbox.item(number, CREDIT).credit = size
            self._outbox.flush_soon()

    # --- one of them ------------------------------------------------------------------------------

    async def handle(self, run: Run) -> None:
        """Run the handler, and say the last word."""
        token = CURRENT.set(run.call)
        try:
            if not run.call.is_cancelled:
                if run.outflow is None:
                    await self._answer(run)
                else:
                    await self._answer_all(run)
        except BaseException as error:
            # A library's `sys.exit` is one call's failure: it would end all that the client does.
            if not isinstance(error, (Exception, SystemExit)) and not is_stray(error):
                raise
            self._failed(run, error)
        finally:
            CURRENT.reset(token)
            run.call._has_ended = True
            if not run.is_over:
                # It was cancelled, or the client is closed.
                self._last(run, END)
                self._flush()

    def _failed(self, run: Run, error: BaseException) -> None:
        if not isinstance(error, CallFailedError):
            _log.error(
                "a call of endpoint %r by %s failed",
                self._endpoint,
                run.call.caller,
                exc_info=error,
            )
        if run.is_over:
            return
        headers = None
        with contextlib.suppress(RequestError):
            headers = self._headers(run)
        item = self._last(run, ERROR)
        set_error(item, error)
        self._outbox.weigh(item)
        self._outbox.head(item, headers)
        self._flush()

    def _last(self, run: Run, kind: int) -> Item:
        """From here on nothing is said of it."""
        run.is_over = True
        del self._open[run.number]
        self._check_rest()
        return self._outbox.item(run.number, kind)

    @staticmethod
    def _headers(run: Run) -> dict[str, str] | None:
        """What the handler has said, once. Raises `RequestError` for what cannot be sent."""
        headers = run.call.answer_headers
        if not headers:
            return None
        run.call.answer_headers = {}
        return headers_of(headers)

    def _flush(self) -> None:
        if self._open:
            self._outbox.flush_soon()
        else:
            # Nobody else is about to say something: to wake a task would take longer.
            self._outbox.flush()

    async def _answer(self, run: Run) -> None:
        value = await self._result(run)
        packed, headers = pack(value), self._headers(run)
        if not run.is_over:
            item = self._last(run, VALUE)
            self._outbox.put(item, packed, end=True)
            self._outbox.head(item, headers)
            self._flush()

    async def _result(self, run: Run) -> Any:
        handler = self._handler
        arguments = self._arguments(run)
        if handler.is_async:
            return await handler.function(*arguments)
        value = await self._in_thread(lambda: handler.function(*arguments))
        # A function that is none itself may return what is awaited.
        return await value if inspect.isawaitable(value) else value

    async def _in_thread(self, function: Callable[[], T]) -> T:
        """What it gives in a thread; also of a call that is cancelled, until the server stops."""
        # Outside of the shield: who is cancelled while it waits for its turn begins no more.
        async with self._limiter:
            with anyio.CancelScope(shield=True) as shield:
                self._shields.add(shield)
                try:
                    value = await anyio.to_thread.run_sync(
                        function, limiter=self._threads, abandon_on_cancel=True
                    )
                finally:
                    self._shields.discard(shield)
            return value

    def _arguments(self, run: Run) -> tuple[Any, ...]:
        handler = self._handler
        if handler.takes == 0:
            return ()
        value: Any
        if run.inflow is not None:
            inflow = run.inflow
            value = self._values(inflow) if handler.is_async else _blocking(inflow, handler.decode)
        else:
            value = handler.decode(run.first) if run.first is not None else None
        return (value, run.call) if handler.takes == 2 else (value,)

    async def _values(self, inflow: Inflow) -> AsyncIterator[Any]:
        while (packed := await inflow.take()) is not None:
            yield self._handler.decode(packed)

    async def _answer_all(self, run: Run) -> None:
        """What a handler yields, or what the iterable has that it returns."""
        handler, arguments = self._handler, self._arguments(run)
        made = handler.function(*arguments) if handler.is_async else await self._result(run)
        if inspect.isawaitable(made):
            made = await made
        if hasattr(made, "__aiter__"):
            async with contextlib.AsyncExitStack() as stack:
                if hasattr(made, "aclose"):
                    # Also of one that is cancelled in between: here, and not by the collector.
                    stack.push_async_callback(made.aclose)
                async for value in made:
                    await self._send(run, value)
        elif hasattr(made, "__iter__") and not isinstance(made, (str, bytes, dict)):
            iterator = iter(made)
            while True:
                value = await self._in_thread(lambda: next(iterator, _GONE))
                if value is _GONE:
                    break
                await self._send(run, value)
        else:
            raise CallFailedError(
                f"the handler returned {with_article(type(made).__name__)}, and the endpoint "
                "answers with a stream",
                "yield values, or return an iterable of them",
                type="BadAnswer",
            )
        headers = self._headers(run)
        if not run.is_over:
            item = self._last(run, END)
            self._outbox.head(item, headers)
            self._flush()

    async def _send(self, run: Run, value: Any) -> None:
        packed, headers = pack(value), self._headers(run)
        assert run.outflow is not None
        await run.outflow.wait()
        if run.is_over:
            # Nobody hears of it any more, and it was cancelled: a handler that never waits would
            # not notice.
            await anyio.lowlevel.checkpoint()
        else:
            run.outflow.spend(len(packed[1]))
            item = self._outbox.item(run.number, VALUE)
            self._outbox.put(item, packed, end=False)
            self._outbox.head(item, headers)
            self._outbox.flush_soon()

    # --- workers ----------------------------------------------------------------------------------

    def rest(self, worker: _Worker) -> bool:
        """Whether `worker` is to wait for another call."""
        if self.is_leaving:
            return False
        self._idle.append(worker)
        return True


def _blocking(inflow: Inflow, decode: Callable[[Packed], Any]) -> Iterator[Any]:
    """The values of a stream, for a handler that runs in a thread."""
    while (packed := anyio.from_thread.run(inflow.take)) is not None:
        yield decode(packed)


class _Worker:
    """A task that runs one call after the other: to start one for each would take twice as long, as
    would a cancel scope for each."""

    __slots__ = ("_given", "_run", "_runs", "_scope")

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._run: Run | None = None
        self._given = anyio.Event()
        self._scope = anyio.CancelScope()

    def give(self, run: Run) -> None:
        run.worker = self
        self._run = run
        self._given.set()

    def cancel(self) -> None:
        """What it runs; then it goes on with the next one."""
        self._scope.cancel()

    def stop(self) -> None:
        self._given.set()

    async def work(self) -> None:
        goes_on = True
        while goes_on:
            with anyio.CancelScope() as self._scope:
                goes_on = await self._work()
            if self._runs.is_leaving and self._run is None:
                return

    async def _work(self) -> bool:
        """Until it is stopped, or what it runs is cancelled: then it is to go on."""
        runs = self._runs
        while True:
            await self._given.wait()
            self._given = anyio.Event()
            run, self._run = self._run, None
            if run is None:
                return False
            try:
                await runs.handle(run)
            finally:
                run.worker = None
                is_waiting = runs.rest(self)
            if not is_waiting:
                return False
