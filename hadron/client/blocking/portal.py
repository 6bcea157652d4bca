"""An event loop in a thread of its own, for the blocking client.

One task owns the client: it opens it, waits until it is told to stop, and closes it. Everything
else comes as a call from some thread.

Rule: nobody waits for what cannot come. A call is refused, or it stands among those that wait; when
the loop ends, for whatever reason, all of these are answered with what `refusal` says, and from
then on every call is refused.
*(With anyio's portal, a thread asks just when another one stops it: its task is accepted and never
begun, or a block that it has opened cannot be left any more, and both threads wait for ever.)*

Rule: no locks. A signal's handler may call and stop it, whatever it has interrupted, and would wait
for a lock that its own thread holds. So whoever waits says so before he looks whether the loop
ends, and it says that it ends before it looks who waits: one of the two always sees the other.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from inspect import isawaitable
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar, cast

from hadron.client.connecting import forks
from hadron.model.errors import ClosedError, HadronError, RequestError

_log = logging.getLogger(__name__)

T = TypeVar("T")

_PATIENCE_S: Final = 5.0
"""For calls that were cancelled, which end at once unless there is a bug."""

program_ends = threading.Event()


def refuse(error: HadronError) -> NoReturn:
    """Raises it, unless the program ends: nobody waits for a daemon thread then, or hears of its
    errors, and Python would print this one with its traceback. It ends without a word."""
    if program_ends.is_set() and threading.current_thread().daemon:
        raise SystemExit from error
    raise error


class Owned(Protocol):
    """What lives in the loop."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *exc_info: object) -> None: ...


class Answer(Generic[T]):
    """What comes of something in the loop: given there, once, and waited for by any threads.

    *(A `concurrent.futures.Future` has a lock, which a thread may hold when a handler interrupts
    it; the loop then stands at that while the handler waits for the loop.)*
    """

    __slots__ = ("_gates", "error", "is_given", "task", "value")

    def __init__(self) -> None:
        self.is_given = False
        self.task: asyncio.Task[None] | None = None
        self.value: T | None = None
        """None before, and when it is an error."""
        self.error: BaseException | None = None
        self._gates: list[threading.Lock] = []

    def give(self, value: T | None, error: BaseException | None = None) -> None:
        """In the loop's thread."""
        self.value, self.error = value, error
        self.is_given = True
        for gate in self._gates:
            gate.release()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it is given, within `timeout_s` seconds unless that is None."""
        if not self.is_given:
            gate = threading.Lock()
            gate.acquire()
            self._gates.append(gate)
            if not self.is_given:
                longest_s = min(max(0.0, timeout_s or 0.0), threading.TIMEOUT_MAX)
                gate.acquire(timeout=-1 if timeout_s is None else longest_s)
        return self.is_given

    def result(self) -> T:
        """Once it is given. Raises what came of it."""
        if self.error is not None:
            raise self.error
        return cast(T, self.value)


class Portal:
    """The loop, its thread, and what lives there; begun once, and stopped once, by anybody.

    Args:
        owned: opened first, closed by `stop`.
        refusal: what calls are told once it has stopped.
    """

    def __init__(self, owned: Owned, refusal: Callable[[], HadronError]) -> None:
        self.opened: Answer[None] = Answer()
        """Once what lives here is open; the error that it ended with else."""
        self._owned = owned
        self._refusal = refusal
        self._is_ending = False
        self._waiting: set[Answer[Any]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owner: asyncio.Task[None] | None = None
        # A context of its own: what the caller's says of event loops does not hold in the thread.
        self._thread = threading.Thread(
            target=Context().run, args=(self._run,), name="hadron-client", daemon=True
        )
        forks.watch(self)

    # --- from any thread ------------------------------------------------------------------------

    def begin(self) -> None:
        """Open what lives here; see `opened`."""
        if self._is_ending:
            self._end(None, None)
        else:
            self._thread.start()

    @property
    def is_open(self) -> bool:
        """Whether what lives here is open, or was."""
        return self.opened.is_given and self.opened.error is None

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """What `function(*args)` gives in the loop, awaited there when it is to be.

        Raises what it raises, and the refusal when the loop has ended or ends meanwhile.
        """
        answer = self.submit(function, *args)
        try:
            answer.wait()
        finally:
            if not answer.is_given:
                # After Ctrl-C nobody wants it any more.
                self.withdraw(answer)
        try:
            return answer.result()
        except ClosedError as error:
            refuse(error)

    def submit(self, function: Callable[..., Any], *args: Any) -> Answer[Any]:
        """The same without waiting for it. Raises the refusal."""
        answer: Answer[Any] = Answer()
        self._waiting.add(answer)
        try:
            self._hand_over(function, args, answer)
        except BaseException:
            self._waiting.discard(answer)
            raise
        return answer

    def post(self, function: Callable[..., Any], *args: Any) -> None:
        """The same where nobody wants to know what comes of it. Raises the refusal."""
        self._hand_over(function, args, None)

    def start(self, function: Callable[..., Any]) -> None:
        """The same from any thread, also the loop's; nothing when that has ended."""
        self._schedule(self._begin, function, (), None)

    def withdraw(self, answer: Answer[Any]) -> None:
        """Give a call up; its answer is the refusal then, unless it was ready before."""
        self._schedule(lambda: answer.task.cancel() if answer.task is not None else None)

    def stop(self) -> None:
        """Close what lives here and end the thread; a second time does nothing but wait for that.

        What is under way is given up, so this takes no longer than closing connections does.
        """
        self._is_ending = True
        self._schedule(self._halt)
        if threading.current_thread() is not self._thread and self._thread.ident is not None:
            # The thread that a handler interrupts may be just about to begin this one.
            with suppress(RuntimeError):
                self._thread.join()

    def forked(self) -> None:
        """In a child process, where the thread does not run."""
        self._is_ending = True
        self._loop = None
        self._refusal = lambda: forks.error("client")

    def check_thread(self) -> None:
        """Raises `RequestError` in the loop's own thread, which would wait for itself."""
        if threading.current_thread() is self._thread:
            raise RequestError(
                "a blocking client was called from within itself",
                "serializers and logging handlers run in its thread: hand the call to another one",
            )

    def _hand_over(
        self, function: Callable[..., Any], args: Any, answer: Answer[Any] | None
    ) -> None:
        self.check_thread()
        if self._is_ending or not self._schedule(self._begin, function, args, answer):
            refuse(self._refusal())

    def _schedule(self, function: Callable[..., Any], *args: Any) -> bool:
        """Have it called in the loop; False when there is none."""
        if self._loop is None:
            return False
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            # It is closed.
            return False
        return True

    # --- in the loop's thread -------------------------------------------------------------------

    def _run(self) -> None:
        error: BaseException | None = None
        loop: asyncio.AbstractEventLoop | None = None
        try:
            self._loop = loop = asyncio.new_event_loop()
            if not self._is_ending:
                self._owner = loop.create_task(self._own())
                loop.run_until_complete(self._owner)
        except BaseException as trouble:
            error = trouble
        finally:
            self._end(loop, error)

    async def _own(self) -> None:
        async with self._owned:
            self.opened.give(None)
            await self._stopped.wait()
        # Who waited for something of the client's has its answer now, unless it waits for more.
        await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_PATIENCE_S)

    def _halt(self) -> None:
        self._stopped.set()
        if self._owner is not None and not self.opened.is_given:
            # It is looking for nodes, perhaps for as long as there is patience for that.
            self._owner.cancel()

    def _begin(self, function: Callable[..., Any], args: Any, answer: Answer[Any] | None) -> None:
        task = asyncio.get_running_loop().create_task(self._perform(function, args, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if answer is not None:
            answer.task = task
            task.add_done_callback(lambda _: self._give(answer, None, self._refusal()))

    def _give(self, answer: Answer[Any], value: Any, error: BaseException | None) -> None:
        """Unless it is given already: a task that is withdrawn at once never began."""
        self._waiting.discard(answer)
        if not answer.is_given:
            answer.give(value, error)

    async def _perform(
        self, function: Callable[..., Any], args: Any, answer: Answer[Any] | None
    ) -> None:
        error: BaseException | None = None
        result = None
        try:
            called = function(*args)
            result = await called if isawaitable(called) else called
        except asyncio.CancelledError:
            error = self._refusal()
        except ClosedError as trouble:
            # The client's own hint is for the async one.
            error = self._refusal() if self._is_ending else trouble
        except BaseException as trouble:
            error = trouble
        if answer is not None:
            self._give(answer, result, error)
        elif error is not None and not isinstance(error, ClosedError):
            _log.error("a task of the client failed", exc_info=error)

    def _end(self, loop: asyncio.AbstractEventLoop | None, error: BaseException | None) -> None:
        self._is_ending = True
        if not self.opened.is_given:
            is_told = error is None or isinstance(error, asyncio.CancelledError)
            self.opened.give(None, self._refusal() if is_told else error)
        elif error is not None:
            _log.error("the client's event loop ended", exc_info=error)
        for answer in list(self._waiting):
            self._give(answer, None, self._refusal())
        if loop is not None:
            loop.close()
