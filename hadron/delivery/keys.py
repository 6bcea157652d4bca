"""Order by key: one record of a key at a time, and those behind it in line. Pure.

A key is busy from the delivery of one of its records until the acknowledgement of that is
committed; records that come up meanwhile stand in line behind it, everybody else's pass. Safety
rule: the next of a key is let out by `finish` alone, so what is given back holds its key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from hadron.model.ranges import Range

NO_KEY: Final = 0
"""The hash of records without a key: they are not ordered."""


@dataclass(frozen=True, slots=True)
class BatchKeys:
    """Key hashes of a batch, as its index section has them; none when no record has a key."""

    base_offset: int
    hashes: Sequence[int]

    def of(self, offset: int) -> int:
        return self.hashes[offset - self.base_offset] if len(self.hashes) else NO_KEY


@dataclass(slots=True)
class Parked:
    """A record behind an earlier one of its key."""

    offset: int
    attempt: int


@dataclass(slots=True)
class KeyLines:
    """The keys of a group that are busy."""

    behind: int = 0
    """Records that stand in line."""
    _lines: dict[int, deque[Parked]] = field(default_factory=dict)
    _current: dict[int, int] = field(default_factory=dict)
    """The key of each record that makes it busy, by offset."""

    def is_busy(self, key: int) -> bool:
        return key in self._lines

    def begin(self, offset: int, key: int) -> None:
        """A record of a key that is not busy is delivered."""
        if key != NO_KEY:
            assert key not in self._lines
            self._lines[key] = deque()
            self._current[offset] = key

    def park(self, offset: int, key: int, attempt: int) -> None:
        self._lines[key].append(Parked(offset, attempt))
        self.behind += 1

    def finish(self, ranges: Iterable[Range], *, above: int) -> list[Parked]:
        """These records are out of the way, acknowledged or dropped; returns those whose turn has
        come. Parked ones below `above` were dropped meanwhile."""
        free: list[Parked] = []
        for first, last in ranges:
            # A late acknowledgement may name more than was ever delivered.
            named: Iterable[int] = range(first, last + 1)
            if len(self._current) <= last - first:
                named = sorted(each for each in self._current if first <= each <= last)
            for offset in named:
                key = self._current.pop(offset, NO_KEY)
                if key == NO_KEY:
                    continue
                following = self._next(key, above)
                if following is not None:
                    self._current[following.offset] = key
                    free.append(following)
        return free

    def _next(self, key: int, above: int) -> Parked | None:
        line = self._lines[key]
        while line:
            parked = line.popleft()
            self.behind -= 1
            if parked.offset >= above:
                return parked
        del self._lines[key]
        return None
