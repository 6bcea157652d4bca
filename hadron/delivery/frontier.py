"""How far a group has come in the log, and what is known of the offsets that lie ahead. Pure.

Ahead of the cursor there are only acknowledgements and attempts that an earlier leader logged. They
are read a window at a time (`state.groups.progress.window`), so that neither their number nor the
length of the log costs memory. Safety rule: the cursor passes what is acknowledged or delivered,
and nothing of which nothing is known; where a window ends, it waits for the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from hadron.model.ranges import Range, RangeSet
from hadron.state.groups.attempts import Attempts

_FOR_EVER: Final = 1 << 63
"""Behind every offset."""


class Frontier:
    """
    Attributes:
        cursor: everything below it was delivered, or acknowledged before.
        ahead: acknowledged offsets above the cursor, below `window_end`.
        window_end: the first offset of which nothing is known.
    """

    def __init__(
        self,
        floor: int,
        acknowledged: Iterable[Range],
        attempts: Iterable[Attempts],
        window_end: int | None,
    ) -> None:
        self.cursor = floor
        self.ahead = RangeSet()
        self.window_end = floor
        self._beyond = RangeSet()
        """Late acknowledgements above the window: what is read next may not have them."""
        self._tried: deque[Attempts] = deque()
        self.resume(acknowledged, attempts, window_end)

    def resume(
        self, acknowledged: Iterable[Range], attempts: Iterable[Attempts], end: int | None
    ) -> None:
        """Go on with what is known of the offsets from the cursor up to `end` (None: of all). The
        cursor passes what is acknowledged, and nothing else: not even where more is above it."""
        for first, last in acknowledged:
            self.ahead.add(first, last)
        self._tried = deque(attempts)
        self.window_end = end if end is not None else _FOR_EVER
        for first, last in self._beyond.remove(0, self.window_end - 1):
            self.ahead.add(first, last)
        self.move(self.cursor)

    @property
    def needs_window(self) -> bool:
        """Nothing is known of the offset at the cursor: read on, and `resume`."""
        return self.cursor >= self.window_end

    def move(self, offset: int) -> None:
        """The cursor moves to `offset`, and over what is acknowledged there."""
        assert offset >= self.cursor, (offset, self.cursor)
        self.cursor = offset
        if self.ahead:
            self.cursor = self.ahead.next_gap(offset)
            self.ahead.remove_below(self.cursor)
        while self._tried and self._tried[0][1] < self.cursor:
            self._tried.popleft()

    def run(self, end: int) -> tuple[int, int]:
        """What can be delivered in one go from the cursor on, below `end`: where that ends, and
        which attempt it is."""
        first = self.cursor
        end = min(end, self.window_end)
        if self.ahead:
            blocked = self.ahead.next_member(first)
            end = end if blocked is None else min(end, blocked)
        if not self._tried:
            return end, 1
        known, last, ended = self._tried[0]
        return (min(end, known), 1) if known > first else (min(end, last + 1), ended + 1)

    def unacknowledged(self, first: int, last: int) -> list[Range]:
        """What of these is above the cursor, and not known to be acknowledged."""
        gaps = self.ahead.gaps(max(first, self.cursor), last)
        return [part for gap in gaps for part in self._beyond.gaps(*gap)]

    def acknowledge(self, first: int, last: int) -> list[Range]:
        """Offsets above the cursor are acknowledged after all; returns those that were not."""
        fresh = list(self.ahead.gaps(max(first, self.cursor), last))
        for a, b in fresh:
            if a < self.window_end:
                self.ahead.add(a, min(b, self.window_end - 1))
            if b >= self.window_end:
                # Until a window has it. It was delivered once, so there are not many.
                self._beyond.add(max(a, self.window_end), b)
        self.move(self.cursor)
        return fresh
