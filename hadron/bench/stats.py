"""Percentiles, and what processes have used."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import Final

import psutil

_CPUCLOCK_SCHED: Final = 2


def percentile(values: Sequence[float], share: float) -> float:
    """The least of `values` that is not exceeded by `share` (0 to 1) of them; nearest rank."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    # A product like 100 * 0.07 may be a little more than it is.
    return ordered[max(0, math.ceil(len(ordered) * share - 1e-9) - 1)]


class ProcessUse:
    """CPU time and memory of one other process."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)

    def cpu_s(self) -> float:
        """User and system seconds so far, of all its threads."""
        if sys.platform.startswith("linux"):
            # What clock_getcpuclockid(3) gives; /proc counts in steps of 10 ms.
            return time.clock_gettime(~self._process.pid << 3 | _CPUCLOCK_SCHED)
        return float(sum(self._process.cpu_times()[:2]))

    def rss_bytes(self) -> int:
        """Resident memory."""
        return int(self._process.memory_info().rss)


class Processes:
    """CPU time and memory of some processes together with this one."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._others = [psutil.Process(pid) for pid in pids]
        self._own = psutil.Process()

    def cpu_s(self) -> float:
        """User and system seconds of all of them so far."""
        return sum(sum(process.cpu_times()[:2]) for process in (*self._others, self._own))

    def rss_mb_max(self) -> float:
        """Resident memory of the largest of the others, in megabytes (10^6 bytes)."""
        return max(process.memory_info().rss for process in self._others) / 1e6

    def idle_cpu_percent(self, seconds: float) -> float:
        """Per cent of one core that the busiest of the others uses while nobody asks anything."""
        before = [sum(process.cpu_times()[:2]) for process in self._others]
        started = time.monotonic()
        time.sleep(seconds)
        elapsed = time.monotonic() - started
        after = [sum(process.cpu_times()[:2]) for process in self._others]
        return max(b - a for a, b in zip(before, after, strict=True)) / elapsed * 100
