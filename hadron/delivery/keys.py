"""Order by key: one record of a key at a time, and those behind it in line. Pure.

A key is busy from the delivery of one of its records until the acknowledgement of that is
committed; records that come up meanwhile stand in line behind it, everybody else's pass. Who had
one of these under an earlier leader may acknowledge it while it stands there (PROTOCOL D2). Safety
rule: the next of a key is let out by `finish` alone, so what is given back holds its key, and so
does what is acknowledged and not committed (GROUPS G3).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from hadron.model.ranges import Range, runs

NO_KEY: Final = 0
"""The hash of records without a key: they are not ordered."""


@dataclass(frozen=True, slots=True)
class BatchKeys:
    """Key hashes of a batch, as its index section has them; none when no record has a key."""

    base_offset: int
    hashes: Sequence[int]

    def of(self, offset: int) -> int:
        return self.hashes[offset - self.base_offset] if len(self.hashes) else NO_KEY


@dataclass(frozen=True, slots=True)
class Parked:
    """A record behind an earlier one of its key."""

    offset: int
    attempt: int


_ACKNOWLEDGED: Final = 0
"""Instead of an attempt, which begin at 1."""

_STALE: Final = 64
"""Offsets that stand in line no more, beyond as many as do, before they are tidied up."""


@dataclass(slots=True)
class KeyLines:
    """The keys of a group that are busy."""

    _lines: dict[int, OrderedDict[int, int]] = field(default_factory=dict)
    """By key: those behind, by offset, and which attempt it will be."""
    _current: dict[int, int] = field(default_factory=dict)
    """The key of each record that makes it busy, by offset."""
    _parked: dict[int, int] = field(default_factory=dict)
    """The key of each record that stands in line."""
    _settling: dict[int, int] = field(default_factory=dict)
    """Of those in line: acknowledged late, and it is not committed yet."""
    _ascending: list[int] = field(default_factory=list)
    """The offsets of those in line that may be acknowledged late, and of some that left it."""

    @property
    def behind(self) -> int:
        """Records that stand in line."""
        return len(self._parked)

    def is_busy(self, key: int) -> bool:
        return key in self._lines

    def begin(self, offset: int, key: int) -> None:
        """A record of a key that is not busy is delivered."""
        if key != NO_KEY:
            assert key not in self._lines
            self._lines[key] = OrderedDict()
            self._current[offset] = key

    def park(self, offset: int, key: int, attempt: int) -> None:
        """Offsets come ascending."""
        assert attempt != _ACKNOWLEDGED
        self._lines[key][offset] = attempt
        self._parked[offset] = key
        if len(self._ascending) > 2 * len(self._parked) + _STALE:
            self._ascending = [each for each in self._ascending if each in self._parked]
        self._ascending.append(offset)

    def acknowledge(self, first: int, last: int) -> list[Range]:
        """A late acknowledgement, of whom had them under an earlier leader: those in line count,
        and hold their key's turn until `finish`. Returns those that were not acknowledged."""
        start, stop = bisect_left(self._ascending, first), bisect_right(self._ascending, last)
        fresh = [each for each in self._ascending[start:stop] if each in self._parked]
        del self._ascending[start:stop]
        for offset in fresh:
            key = self._parked[offset]
            self._lines[key][offset] = _ACKNOWLEDGED
            self._settling[offset] = key
        return runs(fresh)

    def finish(self, ranges: Sequence[Range], *, above: int) -> list[Parked]:
        """These records are out of the way, acknowledged or dropped; returns those whose turn has
        come. Parked ones below `above` were dropped meanwhile."""
        for first, last in ranges if self._settling else ():
            for offset in _named(self._settling, first, last):
                # Committed before its turn: it is passed over.
                key = self._settling.pop(offset)
                if self._parked.pop(offset, NO_KEY) != NO_KEY:
                    del self._lines[key][offset]
        free: list[Parked] = []
        for first, last in ranges:
            for offset in _named(self._current, first, last):
                key = self._current.pop(offset)
                following = self._next(key, above)
                if following is not None:
                    self._current[following.offset] = key
                    if following.attempt != _ACKNOWLEDGED:
                        free.append(following)
        return free

    def _next(self, key: int, above: int) -> Parked | None:
        line = self._lines[key]
        while line:
            offset, attempt = line.popitem(last=False)
            del self._parked[offset]
            self._settling.pop(offset, None)
            if offset >= above:
                return Parked(offset, attempt)
        del self._lines[key]
        return None


def _named(offsets: dict[int, int], first: int, last: int) -> list[int]:
    """Those of first … last. A late acknowledgement may name more than was ever delivered."""
    if len(offsets) <= last - first:
        return sorted(each for each in offsets if first <= each <= last)
    return [each for each in range(first, last + 1) if each in offsets]
