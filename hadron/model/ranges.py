"""Offsets as ranges: small while records are acknowledged roughly in order. Pure.

The one arithmetic of both ends of a delivery: what a member acknowledges or does not hand out, what
its group's leader has on its way, and what commands carry. Tables keep theirs in SQL
(`state.groups.progress`); what ranges have with them beside their ends is up to `delivery.waiting`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

Range = tuple[int, int]
"""Both ends inclusive."""


def size(ranges: Sequence[Range]) -> int:
    """How many integers; the ranges do not overlap."""
    if len(ranges) == 1:
        first, last = ranges[0]
        return last - first + 1
    return sum(last - first + 1 for first, last in ranges)


def runs(numbers: Iterable[int]) -> list[Range]:
    """As few ranges as hold all of them, which ascend."""
    found: list[Range] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def melted(ranges: list[Range]) -> list[Range]:
    """As few ranges as hold what these do, in whatever order they are; ascending."""
    if len(ranges) < 2:
        return ranges
    found: list[Range] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found


class RangeSet:
    """A set of integers, stored as ranges that neither overlap nor touch."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in ranges:
            self.add(first, last)

    @classmethod
    def of(cls, first: int, last: int) -> RangeSet:
        """All of first … last."""
        new = cls()
        new._firsts.append(first)
        new._lasts.append(last)
        return new

    def __len__(self) -> int:
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def __bool__(self) -> bool:
        return bool(self._firsts)

    @property
    def fragments(self) -> int:
        """How many ranges."""
        return len(self._firsts)

    def ranges(self) -> list[Range]:
        return list(zip(self._firsts, self._lasts, strict=True))

    def add(self, first: int, last: int) -> None:
        """Add all of first … last."""
        firsts, lasts = self._firsts, self._lasts
        if not lasts or first > lasts[-1] + 1:
            # Mostly they come in their order.
            firsts.append(first)
            lasts.append(last)
            return
        start = bisect_left(self._lasts, first - 1)
        stop = bisect_right(self._firsts, last + 1)
        if start < stop:
            first = min(first, self._firsts[start])
            last = max(last, self._lasts[stop - 1])
        self._firsts[start:stop] = [first]
        self._lasts[start:stop] = [last]

    def remove(self, first: int, last: int) -> list[Range]:
        """Remove all of first … last; return the ranges that were there."""
        firsts, lasts = self._firsts, self._lasts
        if len(firsts) == 1 and first <= firsts[0] and lasts[0] <= last:
            # Most deliveries are settled as they were made: as a whole.
            return [(firsts.pop(), lasts.pop())]
        start = bisect_left(self._lasts, first)
        stop = bisect_right(self._firsts, last)
        if start >= stop:
            return []
        removed = self.within(first, last)
        left = [(self._firsts[start], first - 1)] if self._firsts[start] < first else []
        right = [(last + 1, self._lasts[stop - 1])] if self._lasts[stop - 1] > last else []
        kept = left + right
        self._firsts[start:stop] = [a for a, _ in kept]
        self._lasts[start:stop] = [b for _, b in kept]
        return removed

    def take(self, count: int) -> list[Range]:
        """Remove the lowest ranges, `count` at most; return them."""
        taken = list(zip(self._firsts[:count], self._lasts[:count], strict=True))
        del self._firsts[:count]
        del self._lasts[:count]
        return taken

    def remove_below(self, bound: int) -> None:
        """Remove everything below `bound`."""
        if self._firsts and self._firsts[0] < bound:
            self.remove(self._firsts[0], bound - 1)

    def __contains__(self, value: int) -> bool:
        index = bisect_left(self._lasts, value)
        return index < len(self._firsts) and self._firsts[index] <= value

    def next_gap(self, value: int) -> int:
        """The lowest integer at or above `value` that is not in the set."""
        index = bisect_left(self._lasts, value)
        if index < len(self._firsts) and self._firsts[index] <= value:
            return self._lasts[index] + 1
        return value

    def within(self, first: int, last: int) -> list[Range]:
        """The parts of first … last that are in the set."""
        start, stop = bisect_left(self._lasts, first), bisect_right(self._firsts, last)
        return [
            (max(first, a), min(last, b))
            for a, b in zip(self._firsts[start:stop], self._lasts[start:stop], strict=True)
        ]

    def gaps(self, first: int, last: int) -> list[Range]:
        """The parts of first … last that are not in the set."""
        found: list[Range] = []
        while first <= last:
            gap = self.next_gap(first)
            if gap > last:
                break
            member = self.next_member(gap)
            end = last if member is None else min(last, member - 1)
            found.append((gap, end))
            first = end + 1
        return found

    def next_member(self, value: int) -> int | None:
        """The lowest integer at or above `value` that is in the set."""
        index = bisect_left(self._lasts, value)
        if index == len(self._firsts):
            return None
        return max(value, self._firsts[index])
