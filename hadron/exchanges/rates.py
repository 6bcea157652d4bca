"""How often something happens, per second, over the last few. Pure."""

from __future__ import annotations

from typing import Final

_SECONDS: Final = 5
"""Whole ones that are looked back on: long enough to be read, short enough to be of now."""


class Rate:
    __slots__ = ("_counts", "_second")

    def __init__(self) -> None:
        self._counts = [0] * (_SECONDS + 1)
        self._second = 0

    def add(self, count: int, now: float) -> None:
        self._counts[self._roll(now)] += count

    def per_s(self, now: float) -> float:
        """Of the whole seconds before this one."""
        at = self._roll(now)
        return (sum(self._counts) - self._counts[at]) / _SECONDS

    def _roll(self, now: float) -> int:
        second = int(now)
        for each in range(max(self._second + 1, second - _SECONDS), second + 1):
            self._counts[each % (_SECONDS + 1)] = 0
        self._second = max(second, self._second)
        return self._second % (_SECONDS + 1)
