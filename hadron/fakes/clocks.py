"""Clocks and random numbers of simulated hosts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import trio

_EPOCH_MS: Final = 1_750_000_000_000
"""Wall time at the start of a simulated world: June 2025."""


def wall_ms(local_s: float) -> int:
    """The wall time at a simulated moment, as a clock without error shows it."""
    return _EPOCH_MS + int(local_s * 1000)


class SimClock:
    """`ports.Clock` of one host, with an error that faults may set.

    Args:
        local_s: the simulated time at the host, in seconds.

    Attributes:
        offset_s: how far the wall clock is off.
        calendar_s: how far the date has been turned, for everybody: no error.
        drift: how much faster both clocks run; 1e-4 is a bad crystal.
        suspended_s: how long the machine has been suspended: no timer has run meanwhile.
    """

    def __init__(self, local_s: Callable[[], float] = trio.current_time) -> None:
        self._local_s = local_s
        self.offset_s = 0.0
        self.calendar_s = 0.0
        self.drift = 0.0
        self.suspended_s = 0.0
        self._latest_s = 0.0

    def now_ms(self) -> int:
        local_s = self._local_s() * (1 + self.drift) + self.offset_s + self.calendar_s
        return wall_ms(local_s)

    def monotonic_s(self) -> float:
        local_s = self._local_s() * (1 + self.drift) + self.suspended_s
        self._latest_s = max(self._latest_s, local_s)
        return self._latest_s


class SimRandom:
    """`ports.Random` that a seed decides."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def token_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)
