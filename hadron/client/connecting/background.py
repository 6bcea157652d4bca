"""Tasks that live as long as a client: dialing, reading connections, recovering.

A task group of its own kind, for two reasons. What the user's block raises must come out as it
is, not wrapped in an exception group; and a background task that fails by a bug must end the
client with that error instead of cancelling the user's task without a word.

Safety rule: a task ends with the client in the middle of whatever it does, and behind that none is
begun. Who waits for what one sets does so by `Session.wait` (CLIENTS K15).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import anyio
import anyio.abc

from hadron.model.errors import HadronError

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Background:
    """A place for tasks; leaving its block cancels them and waits for them."""

    def __init__(self) -> None:
        self._group: anyio.abc.TaskGroup | None = None
        self.on_crash: Callable[[HadronError], None] | None = None

    async def __aenter__(self) -> Background:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        # The group is told nothing of the block's exception: it would wrap it.
        group, self._group = self._group, None
        assert group is not None
        group.cancel_scope.cancel()
        await group.__aexit__(None, None, None)

    def start(self, function: Callable[..., Awaitable[None]], *args: Any) -> anyio.CancelScope:
        """Run `function(*args)` as a task; cancelling the returned scope ends it. Where the block
        was left nothing is run, and the scope is cancelled."""
        scope = anyio.CancelScope()
        if self._group is None:
            scope.cancel()
        else:
            self._group.start_soon(self._run, scope, function, args)
        return scope

    async def _run(
        self, scope: anyio.CancelScope, function: Callable[..., Awaitable[None]], args: Any
    ) -> None:
        try:
            with scope:
                await function(*args)
        except Exception as error:
            _log.exception("a background task of the client failed")
            if self.on_crash is not None:
                trouble = f"a background task of the client failed: {error!r}"
                self.on_crash(HadronError(trouble, "this is a bug; the log has more"))


class _Flight(Generic[T]):
    __slots__ = ("done", "error", "result")

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.error: HadronError | None = None
        self.result: T | None = None


class SingleFlight(Generic[T]):
    """Many tasks may ask for the same thing; it is fetched once, and no asker owns the fetch.

    The function runs as a background task, so an asker that is cancelled does not take the
    result from the others. It reports failure by a `HadronError`, which every asker gets.
    """

    def __init__(
        self, background: Background, function: Callable[[], Awaitable[T]], closed: HadronError
    ) -> None:
        self._background = background
        self._function = function
        self._closed = closed
        self._flight: _Flight[T] | None = None

    async def get(self) -> T:
        """The result of the fetch under way, or of a new one."""
        flight = self._flight
        if flight is None:
            flight = self._flight = _Flight()
            scope = self._background.start(self._fetch, flight)
            if scope.cancel_called:
                self._flight = None
                raise self._closed
        await flight.done.wait()
        if flight.error is not None:
            raise type(flight.error)(
                flight.error.message, flight.error.hint, retryable=flight.error.retryable
            ) from flight.error
        assert flight.result is not None
        return flight.result

    async def _fetch(self, flight: _Flight[T]) -> None:
        flight.error = self._closed
        try:
            flight.result = await self._function()
            flight.error = None
        except HadronError as error:
            flight.error = error
        finally:
            self._flight = None
            flight.done.set()
