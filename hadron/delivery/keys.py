"""Order by key: one record of a key at a time, and those behind it in line. Pure.

A key is busy from the delivery of one of its records until the acknowledgement of that is
committed; records that come up meanwhile stand in line behind it, everybody else's pass. Who had
one of these under an earlier leader may acknowledge it while it stands there (PROTOCOL D2). Safety
rule: the next of a key is let out by `finish` alone, so what is given back holds its key, and so
does what is acknowledged and not committed (GROUPS G3).

All groups of a leader have room for so many records in their lines together (GROUPS G17).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from hadron.model.ranges import Range, runs

MAX_ORDERED: Final = 1 << 19
"""Records that make a key busy, or stand in line, of all groups of a leader: 150 to 210 bytes each
(`tracemalloc`), 100 MB in all."""

LEAST_ORDERED: Final = 64
"""So many a group may have whatever the others do: its members have work, and 8,192 groups have as
many again that way."""

_PARKED_PER_STEP: Final = 4_096
"""Records put into line in one go: a millisecond or two."""

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


class KeyRoom:
    """What all groups of a leader have in their lines. Who is held back is told once there is room,
    one after the other: a thousand that look at once would find what the first one leaves."""

    def __init__(self) -> None:
        self.records = 0
        self._waiting: OrderedDict[KeyLines, Callable[[], None]] = OrderedDict()

    def note(self, more: int) -> None:
        self.records += more
        if more < 0:
            self.wake()

    def wait(self, lines: KeyLines, wake: Callable[[], None]) -> None:
        self._waiting.setdefault(lines, wake)

    def forget(self, lines: KeyLines) -> None:
        self._waiting.pop(lines, None)

    def wake(self) -> None:
        """Tell who has waited longest, if there is room. Once that one has taken what it wants this
        is called again, for the next."""
        if self._waiting and self.records < MAX_ORDERED:
            _, wake = self._waiting.popitem(last=False)
            wake()


@dataclass(slots=True, eq=False)
class KeyLines:
    """The keys of a group that are busy."""

    room: KeyRoom
    _noted: int = 0
    """Records that `room` knows of."""
    _lines: dict[int, OrderedDict[int, int] | None] = field(default_factory=dict)
    """By key: those behind, by offset, and which attempt it will be. None where nobody ever was:
    most keys, and an empty one is half of what a key costs."""
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

    # --- room -----------------------------------------------------------------------------------

    @property
    def left(self) -> int:
        """So many more records this group may have here."""
        return max(MAX_ORDERED - self.room.records, LEAST_ORDERED - self._noted)

    def wait_for_room(self, wake: Callable[[], None]) -> None:
        """Call `wake` once there is some, if there is none."""
        if self.left <= 0:
            self.room.wait(self, wake)

    def _note(self) -> None:
        records = len(self._current) + len(self._parked)
        more, self._noted = records - self._noted, records
        self.room.note(more)

    def clear(self) -> None:
        """Nobody serves the group from here any more."""
        self.room.forget(self)
        for each in (self._lines, self._current, self._parked, self._settling, self._ascending):
            each.clear()
        self._note()

    # --- lines ----------------------------------------------------------------------------------

    def advance(self, offset: int, end: int, attempt: int, keys: BatchKeys) -> tuple[int, int]:
        """Put records whose keys are busy into line, then make busy the keys of those that follow,
        up to the next busy one, as far as there is room; returns the offsets from and to which
        those are."""
        limit = min(end, offset + min(_PARKED_PER_STEP, self.left))
        while offset < limit and self.is_busy(key := keys.of(offset)):
            self.park(offset, key, attempt)
            offset += 1
        first = offset
        while offset < limit and not self.is_busy(key := keys.of(offset)):
            self.begin(offset, key)
            offset += 1
        self._note()
        return first, offset

    def begin(self, offset: int, key: int) -> None:
        """A record of a key that is not busy is delivered."""
        if key != NO_KEY:
            assert key not in self._lines
            self._lines[key] = None
            self._current[offset] = key

    def park(self, offset: int, key: int, attempt: int) -> None:
        """Offsets come ascending."""
        assert attempt != _ACKNOWLEDGED
        line = self._lines[key]
        if line is None:
            line = self._lines[key] = OrderedDict()
        line[offset] = attempt
        self._parked[offset] = key
        if len(self._ascending) > 2 * len(self._parked) + _STALE:
            self._ascending = [each for each in self._ascending if each in self._parked]
        self._ascending.append(offset)

    def acknowledge(self, first: int, last: int) -> list[Range]:
        """A late acknowledgement, of whom had them under an earlier leader: those in line count,
        and hold their key's turn until `finish`. Returns those that were not acknowledged."""
        fresh = self._open(first, last)
        start, stop = bisect_left(self._ascending, first), bisect_right(self._ascending, last)
        del self._ascending[start:stop]
        for offset in fresh:
            key = self._parked[offset]
            self._line(key)[offset] = _ACKNOWLEDGED
            self._settling[offset] = key
        return runs(fresh)

    def unacknowledged(self, first: int, last: int) -> list[Range]:
        """What of these stands in line, and is not acknowledged."""
        return runs(self._open(first, last))

    def _open(self, first: int, last: int) -> list[int]:
        start, stop = bisect_left(self._ascending, first), bisect_right(self._ascending, last)
        return [each for each in self._ascending[start:stop] if each in self._parked]

    def finish(self, ranges: Sequence[Range], *, above: int) -> list[Parked]:
        """These records are out of the way, acknowledged or dropped; returns those whose turn has
        come. Parked ones below `above` were dropped meanwhile."""
        for first, last in ranges if self._settling else ():
            for offset in _named(self._settling, first, last):
                # Committed before its turn: it is passed over.
                key = self._settling.pop(offset)
                if self._parked.pop(offset, NO_KEY) != NO_KEY:
                    del self._line(key)[offset]
        free: list[Parked] = []
        for first, last in ranges:
            for offset in _named(self._current, first, last):
                key = self._current.pop(offset)
                following = self._next(key, above)
                if following is not None:
                    self._current[following.offset] = key
                    if following.attempt != _ACKNOWLEDGED:
                        free.append(following)
        self._note()
        return free

    def _line(self, key: int) -> OrderedDict[int, int]:
        """In which somebody stands."""
        line = self._lines[key]
        assert line is not None, key
        return line

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
