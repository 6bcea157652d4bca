"""Values of ranges of integers. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from hadron.model.ranges import Range

T = TypeVar("T")


class RangeMap(Generic[T]):
    """Ranges that do not overlap, each with a value; where a part is taken, what is left of the
    range keeps its value. Ranges that touch stay apart."""

    __slots__ = ("_firsts", "_items")

    def __init__(self, items: Iterable[tuple[int, int, T]] = ()) -> None:
        """`items`: (first, last, value), which do not overlap."""
        self._items = {first: (last, value) for first, last, value in items}
        """By the first integer: the last one, and the value."""
        self._firsts = sorted(self._items)

    def __len__(self) -> int:
        """How many ranges."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int, T]]:
        """Ascending."""
        for first in self._firsts:
            yield (first, *self._items[first])

    def add(self, first: int, last: int, value: T) -> None:
        """None of first … last may be here."""
        assert (known := self.next(first)) is None or known[0] > last, (first, last, known)
        insort(self._firsts, first)
        self._items[first] = last, value

    def lowest(self) -> int | None:
        return self._firsts[0] if self._firsts else None

    def next(self, number: int) -> Range | None:
        """The range that has `number`, or the next one above."""
        index = self._at(number)
        if index == len(self._firsts):
            return None
        first = self._firsts[index]
        return first, self._items[first][0]

    def within(self, first: int, last: int) -> list[tuple[int, int, T]]:
        """What is here of first … last, ascending; cut to that."""
        start, stop = self._at(first), bisect_right(self._firsts, last)
        return [
            (max(first, known), min(last, self._items[known][0]), self._items[known][1])
            for known in self._firsts[start:stop]
        ]

    def gaps(self, first: int, last: int) -> list[Range]:
        """What is not."""
        found: list[Range] = []
        for a, b, _ in self.within(first, last):
            if first < a:
                found.append((first, a - 1))
            first = b + 1
        return [*found, (first, last)] if first <= last else found

    def take(self, first: int, last: int) -> list[tuple[int, int, T]]:
        """Take out what is here of first … last; returns it as `within` does."""
        taken = self.within(first, last)
        if taken:
            start, stop = self._at(first), bisect_right(self._firsts, last)
            known = self._firsts[start:stop]
            items = [self._items.pop(each) for each in known]
            kept = known[:1] if known[0] < first else []
            if kept:
                self._items[known[0]] = first - 1, items[0][1]
            if items[-1][0] > last:
                kept.append(last + 1)
                self._items[last + 1] = items[-1]
            self._firsts[start:stop] = kept
        return taken

    def _at(self, number: int) -> int:
        """The index of the range that has `number`, or of the next one."""
        index = bisect_left(self._firsts, number)
        if index and self._items[self._firsts[index - 1]][0] >= number:
            return index - 1
        return index
