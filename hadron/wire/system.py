"""This machine's clock and randomness, behind the ports; `sockets` has its network.

Both nodes and clients use them, so they stand in the lowest room that touches the machine.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import Final

_AWAKE_OR_NOT: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that goes on while the machine is suspended: on Linux the monotonic one does not, and a
laptop that wakes up would think that its leases are as fresh as before, and that its wall clock has
been set wrong."""


class SystemClock:
    """`ports.Clock` of this machine. Its seconds pass while the machine is suspended, too.

    Attributes:
        monotonic_s: as a method it would take three times as long, and members look at the clock
            for each record.
    """

    monotonic_s: Callable[[], float]

    def __init__(self) -> None:
        self.monotonic_s = partial(time.clock_gettime, _AWAKE_OR_NOT)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class SystemRandom:
    """`ports.Random` of this machine. A program that seeds `random` in each of its processes does
    not have all of them come back to a leader at the same moment."""

    def __init__(self) -> None:
        self._jitter = random.SystemRandom()

    def token_bytes(self, count: int) -> bytes:
        return secrets.token_bytes(count)

    def uniform(self, low: float, high: float) -> float:
        return self._jitter.uniform(low, high)
