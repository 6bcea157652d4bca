"""How long to wait before the next try: exponential, capped, with jitter.

Jitter, because after a leader restarts all its clients come back at once; the wait is drawn from
the upper half of the interval, so that it also grows for the unlucky ones ("equal jitter").
"""

from __future__ import annotations

from typing import Final

from hadron.model.ports import Random

FIRST_S: Final = 0.02
"""A leader that only dropped the connection is back within a round trip or two."""

CAP_S: Final = 1.0
"""A user who starts a node again sees the client follow within a second."""


class Backoff:
    """Delays in seconds for one thing that is tried again and again."""

    __slots__ = ("_next_s", "_random")

    def __init__(self, random: Random) -> None:
        self._random = random
        self._next_s = FIRST_S

    def next_s(self) -> float:
        """The next delay; the one after may be up to twice as long."""
        delay_s = self._next_s
        self._next_s = min(CAP_S, delay_s * 2)
        return self._random.uniform(delay_s / 2, delay_s)

    def reset(self) -> None:
        """Start from the shortest delay again: something worked."""
        self._next_s = FIRST_S
