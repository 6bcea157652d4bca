"""An event loop in a thread of its own, for the blocking client.

One task owns the client: it opens it, waits until it is told to stop, and closes it. Everything
else comes as a call from some thread.

Rule: nobody waits for what cannot come. A call is refused, or it stands among those that wait; when
the loop ends, for whatever reason, all of these are answered with what `refusal` says, and from
then on every call is refused. Both happen under one lock, so there is nothing in between.
*(With anyio's portal, a thread asks just when another one stops it: its task is accepted and never
begun, or a block that it has opened cannot be left any more, and both threads wait for ever.)*
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context
from inspect import isawaitable
from typing import Any, Final, Protocol, TypeVar

from hadron.client import forks
from hadron.model.errors import ClosedError, HadronError, RequestError

_log = logging.getLogger(__name__)

T = TypeVar("T")

_PATIENCE_S: Final = 5.0
"""For calls that were cancelled, which end at once unless there is a bug."""


class Owned(Protocol):
    """What lives in the loop."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *exc_info: object) -> None: ...


class Portal:
    """The loop, its thread, and what lives there; started once, and stopped once, by anybody.

    Args:
        owned: opened by `start`, closed by `stop`.
        refusal: what calls are told once it has stopped.
    """

    def __init__(self, owned: Owned, refusal: Callable[[], HadronError]) -> None:
        self._owned = owned
        self._refusal = refusal
        self._lock = threading.Lock()
        self._accepts = False
        self._waiting: set[Future[Any]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = asyncio.Event()
        self._began: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owner: asyncio.Task[None] | None = None
        # A context of its own: what the caller's says of event loops does not hold in the thread.
        self._thread = threading.Thread(
            target=Context().run, args=(self._run,), name="hadron-client", daemon=True
        )
        forks.watch(self)

    # --- from any thread ------------------------------------------------------------------------

    def start(self) -> None:
        """Until what lives here is open. Raises what opening it raises, and has ended then."""
        try:
            self._thread.start()
            self._began.result()
        except BaseException:
            # Also Ctrl-C, at any point.
            self.stop()
            raise

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """What `function(*args)` gives in the loop, awaited there when it is to be.

        Raises what it raises, and the refusal when the loop has ended or ends meanwhile.
        """
        future: Future[Any] = Future()
        self._submit(function, args, future)
        try:
            return future.result()
        finally:
            # After Ctrl-C nobody wants it any more.
            future.cancel()
            self._waiting.discard(future)

    def post(self, function: Callable[..., Any], *args: Any) -> None:
        """The same without waiting for it. Raises the refusal."""
        self._submit(function, args, None)

    def stop(self) -> None:
        """Close what lives here and end the thread; a second time does nothing but wait for that.

        What is under way is given up, so this takes no longer than closing connections does.
        """
        with self._lock:
            self._accepts = False
            if self._loop is None:
                self._stopped.set()
            elif not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._halt)
        if threading.current_thread() is not self._thread and self._thread.ident is not None:
            self._thread.join()

    def forked(self) -> None:
        """In a child process, where the thread does not run."""
        self._lock = threading.Lock()
        self._accepts = False
        self._loop = None
        self._refusal = lambda: forks.error("client")

    def _submit(
        self, function: Callable[..., Any], args: Any, future: Future[Any] | None
    ) -> None:
        if threading.current_thread() is self._thread:
            raise RequestError(
                "a blocking client was called from within itself",
                "serializers and logging handlers run in its thread: hand the call to another one",
            )
        with self._lock:
            if not self._accepts:
                raise self._refusal()
            assert self._loop is not None
            if future is not None:
                self._waiting.add(future)
            self._loop.call_soon_threadsafe(self._begin, function, args, future)

    # --- in the loop's thread -------------------------------------------------------------------

    def _run(self) -> None:
        error: BaseException | None = None
        loop: asyncio.AbstractEventLoop | None = None
        try:
            loop = asyncio.new_event_loop()
            with self._lock:
                self._loop = loop
                if self._stopped.is_set():
                    return
                self._owner = loop.create_task(self._own())
            loop.run_until_complete(self._owner)
        except BaseException as trouble:
            error = trouble
        finally:
            self._end(loop, error)

    async def _own(self) -> None:
        async with self._owned:
            with self._lock:
                self._accepts = not self._stopped.is_set()
            self._began.set_result(None)
            await self._stopped.wait()
        # Who waited for something of the client's has its answer now, unless it waits for more.
        await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_PATIENCE_S)

    def _halt(self) -> None:
        self._stopped.set()
        if self._owner is not None and not self._began.done():
            # It is looking for nodes, perhaps for as long as there is patience for that.
            self._owner.cancel()

    def _begin(
        self, function: Callable[..., Any], args: Any, future: Future[Any] | None
    ) -> None:
        task = asyncio.get_running_loop().create_task(self._perform(function, args, future))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if future is not None:
            future.add_done_callback(
                lambda done: self._withdraw(task) if done.cancelled() else None
            )

    def _withdraw(self, task: asyncio.Task[None]) -> None:
        """Its caller has gone: in the caller's thread."""
        with self._lock:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(task.cancel)

    async def _perform(
        self, function: Callable[..., Any], args: Any, future: Future[Any] | None
    ) -> None:
        error: BaseException | None = None
        result = None
        try:
            result = function(*args)
            if isawaitable(result):
                result = await result
        except asyncio.CancelledError:
            error = self._refusal()
        except ClosedError as trouble:
            # The client's own hint is for the async one.
            error = trouble if self._accepts else self._refusal()
        except BaseException as trouble:
            error = trouble
        if future is not None and future.set_running_or_notify_cancel():
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)
        elif error is not None and not isinstance(error, ClosedError):
            _log.error("a task of the client failed", exc_info=error)

    def _end(self, loop: asyncio.AbstractEventLoop | None, error: BaseException | None) -> None:
        with self._lock:
            self._accepts = False
            waiting, self._waiting = self._waiting, set()
        if not self._began.done():
            is_told = error is None or isinstance(error, asyncio.CancelledError)
            self._began.set_exception(self._refusal() if is_told else error)
        elif error is not None:
            _log.error("the client's event loop ended", exc_info=error)
        for future in waiting:
            # Done: its caller has yet to wake up.
            with suppress(Exception):
                future.set_exception(self._refusal())
        if loop is not None:
            loop.close()
