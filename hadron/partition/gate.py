"""Backpressure: a bounded amount of commands may wait; beyond it connections are not read."""

from __future__ import annotations

from typing import Final

import trio

_STEPS: Final = 4
"""That everybody else may take between two turns of one who has much to say: a request on its way
to its answer takes three. A turn is about a millisecond, so where all are busy such a connection
has a fifth of the loop."""


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
        assert self._bytes >= 0, (self._bytes, size)
        if not was_open and self.is_open:
            self._opened.set()
            self._opened = trio.Event()

    async def wait_open(self) -> None:
        while not self.is_open:
            await self._opened.wait()

    async def wait_turn(self) -> None:
        """Until all others that have something to do have done some of it."""
        for _ in range(_STEPS):
            await trio.lowlevel.checkpoint()
