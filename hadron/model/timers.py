"""Things that are due at some time, of which nearly all are given up before that. Pure.

A heap would keep each call until its deadline, long after its answer. Here they lie in buckets of
ten milliseconds, out of which each is taken at once; a thing is due up to one bucket late, never
early.
"""

from __future__ import annotations

import heapq
import math
from typing import Final, Generic, TypeVar

_PER_SECOND: Final = 100

_SPARE_KEYS: Final = 64
"""Of emptied buckets, beside as many as there are others: then they are dropped. Their times may be
hours away."""

T = TypeVar("T")


class Timers(Generic[T]):
    """Of one clock's seconds."""

    def __init__(self) -> None:
        self._buckets: dict[int, dict[T, None]] = {}
        self._order: list[int] = []
        """A heap of the buckets' keys; those of emptied ones are in it for a while."""

    def add(self, due_s: float, item: T) -> int:
        """Returns what `discard` needs to know."""
        key = math.ceil(due_s * _PER_SECOND)
        bucket = self._buckets.get(key)
        if bucket is None:
            self._buckets[key] = {item: None}
            if len(self._order) > 2 * len(self._buckets) + _SPARE_KEYS:
                self._order = sorted(self._buckets)
            else:
                heapq.heappush(self._order, key)
        else:
            bucket[item] = None
        return key

    def discard(self, key: int, item: T) -> None:
        """It is not due any more; it may have been taken before."""
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.pop(item, None)
            if not bucket:
                del self._buckets[key]

    @property
    def next_s(self) -> float:
        """When something may be due; infinity for never."""
        order = self._order
        while order and order[0] not in self._buckets:
            heapq.heappop(order)
        return order[0] / _PER_SECOND if order else math.inf

    def take(self, now_s: float) -> list[T]:
        """What is due by now."""
        found: list[T] = []
        while self.next_s <= now_s:
            found += self._buckets.pop(heapq.heappop(self._order))
        return found
