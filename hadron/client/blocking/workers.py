"""Threads that call a program's handler with one invocation of a stage after the other.

A call that hangs cannot be ended. Once its stage's timeout is over it is left behind, and another
thread takes its place; nobody waits for it, so the threads are daemons.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from hadron.client.handling.invocation import Given
from hadron.model.errors import ClosedError, ConfigurationError

if TYPE_CHECKING:
    from hadron.client.blocking.faces.invocation import SyncStageInvocation

MOST_THREADS: Final = 1_000
"""That work, and that are left behind, as on Spark: each has what its handler holds."""

_LOOK_EVERY_S: Final = 0.5
"""Whether who works has time left, once no more is taken: nothing else tells."""


class _Worker:
    """One thread.

    Attributes:
        given: what it works on.
        ends_at: when its time is over, of the monotonic clock.
        is_left: its time was over: it is not waited for, and takes nothing more.
    """

    def __init__(self) -> None:
        self.given: Given | None = None
        self.ends_at = 0.0
        self.is_left = False

    @property
    def is_overdue(self) -> bool:
        """Whether nothing that it says would be heard."""
        given = self.given
        return given is not None and (given.is_closed or time.monotonic() > self.ends_at)


class Workers:
    """Of one `run`.

    Args:
        handler: called with each invocation; what it returns is the output.
        invocations: those of one thread, until no more are taken.
        close: take no more.
        is_closed: whether no more are taken.
    """

    def __init__(
        self,
        handler: Callable[[SyncStageInvocation], Any],
        invocations: Callable[[], Iterator[SyncStageInvocation]],
        close: Callable[[], None],
        is_closed: Callable[[], bool],
        most_left: int = MOST_THREADS,
    ) -> None:
        self._handler = handler
        self._invocations = invocations
        self._close = close
        self._is_closed = is_closed
        self._most_left = most_left
        self._workers: set[_Worker] = set()
        self._failure: BaseException | None = None
        self._changed = threading.Condition()

    def run(self, threads: int) -> None:
        """Work in so many threads, until no more is taken. Raises what ends one of them, and
        `ConfigurationError` when too many calls hang."""
        try:
            with self._changed:
                for _ in range(threads):
                    self._begin()
            self._wait(lambda: self._failure is not None)
        finally:
            # Ctrl-C comes here: the threads end with what they have; at a second one nobody waits.
            self._close()
            self._wait(lambda: False)
        if self._failure is not None:
            raise self._failure

    def _wait(self, is_enough: Callable[[], bool]) -> None:
        """For all but those that are left behind."""
        with self._changed:
            while not is_enough() and (
                busy := [each for each in self._workers if not each.is_left]
            ):
                self._changed.wait(_LOOK_EVERY_S)
                for each in busy:
                    each.is_left = each.is_left or (each.is_overdue and self._is_closed())

    def _begin(self) -> None:
        """For who holds the lock. Raises `RuntimeError` where the system gives no thread."""
        worker = _Worker()
        threading.Thread(
            target=self._work, args=(worker,), name="hadron-stage", daemon=True
        ).start()
        # Not before it is there: nobody would take it away again.
        self._workers.add(worker)

    def _work(self, worker: _Worker) -> None:
        failure: BaseException | None = None
        try:
            for invocation in self._invocations():
                self._call(worker, invocation)
                if worker.is_left:
                    break
        except ClosedError:
            # The client is.
            pass
        except BaseException as error:
            failure = error
        with self._changed:
            self._workers.discard(worker)
            if self._failure is None:
                self._failure = failure
            self._changed.notify_all()

    def _call(self, worker: _Worker, invocation: SyncStageInvocation) -> None:
        given = invocation._given
        worker.ends_at = time.monotonic() + given.stage.timeout_ms / 1_000
        worker.given = given
        given.on_late = lambda: self._leave(worker, given)
        if given.is_late:
            self._leave(worker, given)
        with invocation:
            value = self._handler(invocation)
            if not invocation.is_ended:
                invocation.complete(value)
        worker.given = None

    def _leave(self, worker: _Worker, given: Given) -> None:
        """In the client's loop: its time is over, and another thread takes its place."""
        with self._changed:
            if worker.given is not given or worker.is_left:
                return
            worker.is_left = True
            left = sum(each.is_left for each in self._workers)
            if self._failure is None and not self._is_closed():
                try:
                    if left >= self._most_left:
                        raise RuntimeError("there is no room for another thread")
                    self._begin()
                except RuntimeError as error:
                    self._failure = ConfigurationError(
                        f"{left} calls of the handler of stage {given.stage.name!r} did not return "
                        f"in time and cannot be ended: {error}",
                        "let it raise before the stage's timeout is over, such as by timeouts of "
                        "what it waits for; then start the program again",
                    )
            self._changed.notify_all()
