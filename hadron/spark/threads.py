"""Threads that run what users wrote. One that hangs cannot be ended: it is left behind.

Safety rule: nobody waits for a thread, so that a time limit around a call is its own. With trio's
limit, 40 that hang would have what comes after them wait for ever, and be taken for late.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

import trio

from hadron.model.errors import ConfigurationError
from hadron.model.pipelines import StageSpec
from hadron.model.words import counted

_MOST: Final = 1_000
"""Calls at a time: all but some of them hang. Each has a thread here, one in Java, and what its
function holds."""

_T = TypeVar("_T")


class Threads:
    """Of one runner, for all of its stages."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._unbounded = trio.CapacityLimiter(math.inf)
        self._running: dict[object, str] = {}
        """The stage of each call that has not returned."""

    async def run(self, stage: StageSpec, function: Callable[[], _T]) -> _T:
        """What `function` returns. Cancelled, it is left behind. Raises `ConfigurationError` when
        so many are that there is no room for another."""
        if len(self._running) >= self._most:
            raise self._full("there is no room for another call")
        call, begun = object(), False

        def run() -> _T:
            nonlocal begun
            begun = True
            self._running[call] = stage.name
            try:
                return function()
            finally:
                del self._running[call]

        try:
            return await trio.to_thread.run_sync(
                run, abandon_on_cancel=True, limiter=self._unbounded
            )
        except RuntimeError as error:
            if begun:
                raise
            raise self._full(f"the system gives no thread for another call: {error}") from error

    async def ask(self, function: Callable[[], _T]) -> _T:
        """What `function` of ours returns, which asks Spark. Cancelled, it is left behind."""
        return await trio.to_thread.run_sync(
            function, abandon_on_cancel=True, limiter=self._unbounded
        )

    def _full(self, what: str) -> ConfigurationError:
        stages = Counter(list(self._running.values()))
        whose = ", ".join(f"{count} of stage {name!r}" for name, count in stages.most_common())
        return ConfigurationError(
            f"{counted(stages.total(), 'call')} of functions did not return in time and cannot be "
            f"ended ({whose}): {what}",
            "let the function raise before its stage's timeout is over, such as by timeouts of "
            "what it waits for; then start the stage runner again, which goes on where it was",
        )
