"""Acknowledgements on their way to a partition's leader, coalesced into ranges. Pure."""

from __future__ import annotations

from typing import NamedTuple


class AckRange(NamedTuple):
    """Offsets of one delivery, both ends inclusive."""

    delivery: int
    first: int
    last: int


class AckBuffer:
    """Collects acknowledged offsets; consecutive ones of a delivery become one range."""

    __slots__ = ("_delivery", "_first", "_last", "_ranges", "count")

    def __init__(self) -> None:
        self.count = 0
        """Records acknowledged since the last `take`."""
        self._ranges: list[AckRange] = []
        self._delivery = -1
        self._first = 0
        self._last = 0

    def add(self, delivery: int, first: int, last: int) -> None:
        """Acknowledge offsets `first` to `last` of a delivery."""
        self.count += last - first + 1
        if delivery == self._delivery and first == self._last + 1:
            self._last = last
            return
        self._close_range()
        self._delivery, self._first, self._last = delivery, first, last

    def take(self) -> list[AckRange]:
        """Everything since the last `take`, merged where acks came out of order."""
        self._close_range()
        ranges, self._ranges = self._ranges, []
        self.count = 0
        return _merge(ranges) if len(ranges) > 1 else ranges

    def _close_range(self) -> None:
        if self._delivery >= 0:
            self._ranges.append(AckRange(self._delivery, self._first, self._last))
            self._delivery = -1


def _merge(ranges: list[AckRange]) -> list[AckRange]:
    ranges.sort()
    merged = [ranges[0]]
    for entry in ranges[1:]:
        previous = merged[-1]
        if entry.delivery == previous.delivery and entry.first <= previous.last + 1:
            last = max(previous.last, entry.last)
            merged[-1] = AckRange(previous.delivery, previous.first, last)
        else:
            merged.append(entry)
    return merged
