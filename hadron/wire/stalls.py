"""Whether what is under way on a connection moves. Pure.

A ping every few seconds keeps a connection from being silent, and would hold memory for ever.
"""

from __future__ import annotations

from typing import Final

STALL_LIMIT_S: Final = 15.0
STALL_BYTES: Final = 64 << 10
"""What waits to be sent, or a frame that is coming in, must move by so much within that time, or
end."""


class Progress:
    """Of bytes that are under way in one direction."""

    def __init__(self) -> None:
        self._mark = 0
        self.stalled_s = 0.0

    def tick(self, waits: bool, moved: int, seconds: float) -> bool:
        """Whether it stands still.

        Args:
            waits: whether anything is under way.
            moved: bytes so far, ever.
            seconds: since the last tick.
        """
        if not waits or moved - self._mark >= STALL_BYTES:
            self._mark, self.stalled_s = moved, 0.0
        else:
            self.stalled_s += seconds
        return self.stalled_s >= STALL_LIMIT_S
