"""Records that wait to be delivered again: found by offset, and by when they are due. Pure.

An acknowledgement that comes late, retention, and the end of a delay each look at a few of them,
so none of these costs more where more are waiting; only the memory grows, and `Group` bounds that.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, replace
from typing import Final

from hadron.delivery.tries import Tries
from hadron.model.ranges import Range

_STALE: Final = 64
"""Entries of a heap that stand for nothing any more, beyond as many as there are items."""


@dataclass(slots=True)
class Again:
    """Offsets to be delivered again, not before a time and rather not to one member."""

    first: int
    last: int
    tries: Tries
    not_before: float
    avoid: int


_Due = tuple[int, int, int, Again]
"""How often it was delivered, its first offset, and the number of its entry, before itself."""


class Waiting:
    """All of a group. Times are seconds on the monotonic clock."""

    def __init__(self) -> None:
        self.records = 0
        self._items: dict[int, Again] = {}
        """By their first offset."""
        self._firsts: list[int] = []
        self._delayed: list[tuple[float, int, Again]] = []
        self._due: list[_Due] = []
        self._due_apart: list[_Due] = []
        self._apart = 0
        """Items that are to be delivered apart."""
        self._entries = 0
        """Tells entries of the heaps apart, so that items are never compared."""

    def __bool__(self) -> bool:
        return bool(self._firsts)

    @property
    def fragments(self) -> int:
        return len(self._firsts)

    def ranges(self) -> list[Range]:
        """All of them, ascending."""
        return [(first, self._items[first].last) for first in self._firsts]

    def delayed(self, now: float) -> int:
        """Records that are not due yet; looks at all items."""
        return sum(
            item.last - item.first + 1 for item in self._items.values() if item.not_before > now
        )

    @property
    def any_apart(self) -> bool:
        """Whether something is to be delivered apart."""
        return self._apart > 0

    def lowest(self) -> Again | None:
        return self._items[self._firsts[0]] if self._firsts else None

    # --- coming ---------------------------------------------------------------------------------

    def put(self, item: Again) -> None:
        """None of its offsets may be here already."""
        self._index(item)
        self._entries += 1
        heapq.heappush(self._delayed, (item.not_before, self._entries, item))
        if len(self._delayed) > 2 * len(self._firsts) + _STALE:
            self._delayed = [entry for entry in self._delayed if self._is_current(entry[2])]
            heapq.heapify(self._delayed)

    def _index(self, item: Again) -> None:
        insort(self._firsts, item.first)
        self._items[item.first] = item
        self.records += item.last - item.first + 1
        self._apart += item.tries.is_apart

    def _gone(self, item: Again) -> None:
        self.records -= item.last - item.first + 1
        self._apart -= item.tries.is_apart

    def _is_current(self, item: Again) -> bool:
        return self._items.get(item.first) is item

    # --- going ----------------------------------------------------------------------------------

    def due(self, now: float, *, beside_others: bool = False) -> Again | None:
        """Of those that are due, the one that was delivered least often, and of these the one with
        the lowest offsets: what nobody can deal with holds up nothing else. What is to be delivered
        apart counts as delivered once more, and is none of those that may be `beside_others`."""
        while self._delayed and self._delayed[0][0] <= now:
            item = heapq.heappop(self._delayed)[2]
            if self._is_current(item):
                self._entries += 1
                often = item.tries.attempt + item.tries.is_apart
                heap = self._due_apart if item.tries.is_apart else self._due
                heapq.heappush(heap, (often, item.first, self._entries, item))
        heaps = (self._due,) if beside_others else (self._due, self._due_apart)
        firsts = [heap[0] for heap in heaps if self._has_current(heap)]
        return min(firsts)[3] if firsts else None

    def _has_current(self, heap: list[_Due]) -> bool:
        """Whether there is anything; then its first entry stands for something."""
        while heap and not self._is_current(heap[0][3]):
            heapq.heappop(heap)
        return bool(heap)

    def next_due(self, now: float) -> float | None:
        """When the next delay is over, of those that are not."""
        self.due(now)
        while self._delayed and not self._is_current(self._delayed[0][2]):
            heapq.heappop(self._delayed)
        return self._delayed[0][0] if self._delayed else None

    def pop(self, first: int, now: float, *, below: int, count: int) -> tuple[int, Tries]:
        """Take the item that begins at `first`, which is due, and what follows it that was
        delivered as often and is due as well: offsets below `below`, `count` at most. Returns the
        last offset, and what is known of all."""
        item: Again | None = self._items[first]
        tries = self._items[first].tries
        end, last = min(below, first + count), first - 1
        while (
            item is not None and item.first < end and item.tries == tries and item.not_before <= now
        ):
            last = min(item.last, end - 1)
            self._cut(item, item.first, last)
            item = self._items.get(last + 1)
        return last, tries

    def take(self, first: int, last: int) -> list[Range]:
        """Take out what is here of first … last; returns the ranges."""
        return [(item.first, item.last) for item in self.take_items(first, last)]

    def take_items(self, first: int, last: int) -> list[Again]:
        """The same, with what is known of them."""
        start = max(bisect_right(self._firsts, first) - 1, 0)
        if start < len(self._firsts) and self._items[self._firsts[start]].last < first:
            start += 1
        stop = bisect_right(self._firsts, last)
        items = [self._items.pop(known) for known in self._firsts[start:stop]]
        del self._firsts[start:stop]
        taken = [
            replace(item, first=max(first, item.first), last=min(last, item.last)) for item in items
        ]
        for item in items:
            self._gone(item)
        for item in items[:1] + items[1:][-1:]:
            self._keep_outside(item, first, last)
        return taken

    def take_below(self, offset: int) -> list[Range]:
        """Take out what lies below `offset`."""
        return self.take(0, offset - 1) if self._firsts and self._firsts[0] < offset else []

    def _cut(self, item: Again, first: int, last: int) -> None:
        """first … last, which are of this item, go; what is left of it waits on."""
        del self._items[item.first]
        del self._firsts[bisect_left(self._firsts, item.first)]
        self._gone(item)
        self._keep_outside(item, first, last)

    def _keep_outside(self, item: Again, first: int, last: int) -> None:
        for a, b in ((item.first, first - 1), (last + 1, item.last)):
            if a <= b:
                self.put(replace(item, first=a, last=b))
