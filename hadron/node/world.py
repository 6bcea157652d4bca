"""The real world behind the ports: this machine's clock and randomness."""

from __future__ import annotations

import random
import secrets
import time


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()


class SystemRandom:
    def __init__(self) -> None:
        self._jitter = random.SystemRandom()

    def token_bytes(self, count: int) -> bytes:
        return secrets.token_bytes(count)

    def uniform(self, low: float, high: float) -> float:
        return self._jitter.uniform(low, high)
