"""Others go on while much is done for one request, or answered to it (BOUNDS W1)."""

from __future__ import annotations

from typing import Final

import trio

_TURN_BYTES: Final = 64 << 10
_STEP_BYTES: Final = 512
"""What a step counts beside its bytes: 128 of the smallest are a turn, some 10 µs each."""


class Turns:
    """Of one task."""

    def __init__(self) -> None:
        self._done = 0

    async def step(self, size: int) -> None:
        """Before one more is done, which is of so many bytes."""
        if self._done >= _TURN_BYTES:
            self._done = 0
            await trio.lowlevel.checkpoint()
        self._done += _STEP_BYTES + size
