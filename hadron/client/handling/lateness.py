"""Invocations that a program works on for longer than their stage may take: their attempts fail.

Safety rule: what came with a call that was lost is somebody else's by now, under the same attempt.
Nothing is said of that any more. A program that was frozen wakes with both, its times that are over
and the end of its call: it reads first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import takewhile
from typing import Final

import anyio

from hadron.client.connecting.session import Session
from hadron.client.handling.invocation import Given

_AGAIN_MS: Final = 500
"""When that is looked at again whose end is on its way at the end of its time: should it not be
taken, the program may never say it again."""

_FROZEN_S: Final = 1.0
"""Who looks so long after a time is over was frozen, or busy."""

_READS_S: Final = 0.5
"""Then it reads what has come meanwhile."""


class Lateness:
    """Of a program's invocations of one stage. `run` must be running."""

    def __init__(self, session: Session, is_ours: Callable[[Given], bool]) -> None:
        """`is_ours`: whether its call is still there."""
        self._session = session
        self._is_ours = is_ours
        # What has the same time stands in the order in which that ends, and there are as many of
        # them as definitions that instances live with.
        self._open: dict[int, dict[Given, float]] = {}
        self._keys: dict[Given, int] = {}
        self._looks_at = math.inf
        self._news = anyio.Event()

    def add(self, given: Given) -> None:
        """From here on it has the time that its stage may take."""
        self._add(given, given.stage.timeout_ms)

    def resume(self, given: Given) -> None:
        """It has what is left of that time."""
        passed_ms = int((anyio.current_time() - given.began_s) * 1_000)
        self._add(given, max(_AGAIN_MS, given.stage.timeout_ms - passed_ms))

    def _add(self, given: Given, in_ms: int) -> None:
        # It stands in one place: of two one was never left.
        self.discard(given)
        ends_at = anyio.current_time() + in_ms / 1_000
        self._open.setdefault(in_ms, {})[given] = ends_at
        self._keys[given] = in_ms
        if ends_at < self._looks_at:
            self._news.set()

    def discard(self, given: Given) -> None:
        """It is over."""
        key = self._keys.pop(given, None)
        if key is not None:
            same = self._open[key]
            del same[given]
            if not same:
                del self._open[key]

    async def run(self) -> None:
        while True:
            ends = [next(iter(same.values())) for same in self._open.values()]
            self._looks_at = min(ends, default=math.inf)
            with anyio.CancelScope(deadline=self._looks_at):
                await self._news.wait()
            if self._news.is_set():
                self._news = anyio.Event()
            if anyio.current_time() - self._looks_at > _FROZEN_S:
                await anyio.sleep(_READS_S)
            for given in self._late():
                self.discard(given)
                if given.is_ended:
                    self._add(given, _AGAIN_MS)
                else:
                    self._session.background.start(given.expire, self._is_ours(given))

    def _late(self) -> list[Given]:
        now_s = anyio.current_time()
        return [
            given
            for same in self._open.values()
            for given, _ in takewhile(lambda item: item[1] <= now_s, same.items())
        ]
