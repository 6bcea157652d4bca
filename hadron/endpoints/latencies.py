"""How long the latest calls took, and how many there were. Pure."""

from __future__ import annotations

from typing import Final

_KEPT: Final = 1_024
"""Enough for a 99th percentile that ten calls stand behind."""


class Latencies:
    """Of one server, or of one endpoint."""

    __slots__ = ("_latest_s", "answered", "failed")

    def __init__(self) -> None:
        self.answered = 0
        self.failed = 0
        self._latest_s: list[float] = []

    def add(self, took_s: float) -> None:
        """A call was answered."""
        if self.answered < _KEPT:
            self._latest_s.append(took_s)
        else:
            self._latest_s[self.answered % _KEPT] = took_s
        self.answered += 1

    def percentiles_us(self) -> tuple[int, int]:
        """The 50th and the 99th; 0 when nothing is known."""
        ordered = sorted(self._latest_s)
        if not ordered:
            return 0, 0
        last = len(ordered) - 1
        return int(ordered[last // 2] * 1e6), int(ordered[int(last * 0.99)] * 1e6)
