"""Backpressure: a bounded amount of commands may wait; beyond it connections are not read."""

from __future__ import annotations

from typing import Final

import trio
import trio.testing

_TURN_S: Final = 0.004
"""After that long it is one's turn again, however busy the others are. A turn is about a
millisecond, so who has much to say gets a fifth of the loop at least, and no more while others
keep it busy."""


class ByteGate:
    """Counts bytes that wait; `wire.connection.Gate`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._opened = trio.Event()

    @property
    def is_open(self) -> bool:
        return self._bytes < self._max_bytes

    def add(self, size: int) -> None:
        self._bytes += size

    def remove(self, size: int) -> None:
        was_open = self.is_open
        self._bytes -= size
        if not was_open and self.is_open:
            self._opened.set()
            self._opened = trio.Event()

    async def wait_open(self) -> None:
        while not self.is_open:
            await self._opened.wait()

    async def wait_turn(self) -> None:
        """Until nobody else has anything to do right now, or `_TURN_S`."""
        with trio.move_on_after(_TURN_S):
            await trio.testing.wait_all_tasks_blocked()
