"""What is behind the stages that a blocking program runs: the async ones, in the loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from hadron.client.blocking.bases import OpenedBase
from hadron.client.blocking.portal import Portal
from hadron.client.blocking.taking import Taking
from hadron.client.blocking.workers import MOST_THREADS, Workers
from hadron.client.handling.invocation import AnyInvocation, Given, StageInvocation, settle
from hadron.client.handling.stage import AN_INVOCATION, StageInvocations
from hadron.client.terms.arguments import check_handler, whole_of
from hadron.client.terms.ending import Ending
from hadron.model.errors import ClosedError, ForkedError

if TYPE_CHECKING:
    from hadron.client.blocking.faces.invocation import SyncStageInvocation

DEFAULT_THREADS: Final = 16

T = TypeVar("T")


class StageInvocationBase(AnyInvocation):
    """An instance's turn at a stage, given to this program, by any thread: end it with `complete`
    or `fail`.
    """

    __slots__ = ("_portal",)

    def __init__(self, portal: Portal, given: Given) -> None:
        super().__init__(given)
        self._portal = portal

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if error is not None and not isinstance(error, Exception):
            return False
        return self._portal.call(settle, self._given, error)  # type: ignore[no-any-return]

    def _call(self, function: Callable[[StageInvocation], Awaitable[T]]) -> T:
        return self._portal.call(function, StageInvocation(self._given))  # type: ignore[no-any-return]


class Handling:
    """What is open of a blocking stage."""

    def __init__(self, portal: Portal, stage: StageInvocations) -> None:
        self._portal = portal
        self._stage = stage
        self._turns = Taking(portal, stage._next)

    def __str__(self) -> str:
        return str(self._stage)

    def next(self) -> SyncStageInvocation | None:
        from hadron.client.blocking.faces.invocation import SyncStageInvocation

        try:
            given = self._turns.take()
        except ForkedError:
            raise
        except ClosedError:
            return None
        return None if given is None else SyncStageInvocation(self._portal, given)

    def leave(self) -> None:
        """Without waiting: it may be the collector that calls."""
        with suppress(ClosedError):
            self._portal.post(self._stage.close)

    def finish(self, _ending: Ending) -> None:
        with suppress(ClosedError):
            self._portal.call(self._stage.close)

    def forked(self) -> None:
        """In a child process: the calls refuse by themselves."""


class _Loop:
    """A loop without a block: what it has not ended it gives back when it is left."""

    def __init__(self, core: Handling) -> None:
        self._core = core

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SyncStageInvocation:
        found = self._core.next()
        if found is None:
            raise StopIteration
        return found

    def __del__(self) -> None:
        self._core.leave()


class StageInvocationsBase(OpenedBase[Handling]):
    """Invocations of a stage. Made by `SyncClient.stage`; loop over it, in a `with` block or
    without one. Several threads may loop over one in a block.
    """

    _core = Handling
    _is_in_block = False

    def __enter__(self) -> Self:
        self._is_in_block = True
        return super().__enter__()

    def close(self) -> None:
        """Take no more; what has not ended goes to other runners. Loops over it end."""
        self._lazy.close()

    def __iter__(self) -> Iterator[SyncStageInvocation]:
        return self._each() if self._is_in_block else _Loop(self._lazy.get())

    def _each(self) -> Iterator[SyncStageInvocation]:
        while not self._lazy.is_closed and (found := self._lazy.get().next()) is not None:
            yield found

    def run(
        self, handler: Callable[[SyncStageInvocation], Any], *, threads: int = DEFAULT_THREADS
    ) -> None:
        """Call `handler` with each invocation, in so many threads: what it returns is the output,
        unless it has ended the invocation itself. What it raises fails the attempt: the traceback
        goes to the log, and one line of it to the instance. Where it takes longer than the stage's
        timeout, another thread takes the place of its own, which is not waited for; 1,000 that
        hang end it, with `ConfigurationError`. Returns when the stage or the client is closed.
        Raises `RequestError` where it returns something, and the stage declares no output, and for
        what cannot be called: no attempt is used up; and what is no `Exception`, `SystemExit` for
        one, as it is."""
        check_handler(handler, AN_INVOCATION)
        whole_of("threads", threads, 1, MOST_THREADS)
        with self:
            Workers(handler, self._each, self.close, lambda: self._lazy.is_closed).run(threads)
