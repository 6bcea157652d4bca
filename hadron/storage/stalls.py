"""Noticing that writing stands still: a disk that hangs fails nothing, it only does not answer.

Whoever waits for a commit is told nothing then, and each node is well as far as it can tell. So it
is looked now and then how long the work under way has taken, which costs commits nothing. What has
stood still may at once do so again, and a disk that takes seconds for each commit is between two
of them as often as in one: the trouble is over once there was none for a while.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Final

import trio

from hadron.model.ports import Clock
from hadron.storage.writer import Writer

_log = logging.getLogger(__name__)

STALLED_S: Final = 3.0
"""What takes longer is told. Slow disks need some 100 ms, and a crowded one may stall for a second
or two; nobody wants to wait for longer than this without being told for what."""

LOOK_EVERY_S: Final = 1.0

_OVER_AFTER_S: Final = 10.0
"""Without another one a stall is over."""


class Stall:
    """What is told of one thing that may stand still: in the log once, until it is over."""

    def __init__(self, over: str) -> None:
        """`over`: what the log is told when it is over."""
        self._over = over
        self._noted_s = -math.inf
        self.trouble = ""
        """In words; "" while nothing has stood still."""

    def note(self, now_s: float, trouble: str) -> None:
        """What one look has found: `trouble` in words, "" when nothing stands still."""
        if trouble:
            if not self.trouble:
                _log.warning("%s", trouble)
            self.trouble, self._noted_s = trouble, now_s
        elif self.trouble and now_s - self._noted_s >= _OVER_AFTER_S:
            _log.warning("%s", self._over)
            self.trouble = ""


class DiskStalls:
    """Watches what a writer does. `run` must be running."""

    def __init__(self, writer: Writer, directory: Path, clock: Clock) -> None:
        self._writer = writer
        self._directory = directory
        self._clock = clock
        self._stall = Stall(f"the disk of {directory} writes in time again")

    @property
    def trouble(self) -> str:
        """That the disk does not finish what it writes, in words; "" while it does."""
        return self._stall.trouble

    def look(self) -> None:
        """See how long the disk takes."""
        busy_s, took_s = self._writer.slowest_s()
        trouble = ""
        if busy_s >= STALLED_S:
            trouble = (
                f"the disk of {self._directory} has been busy with one write (fsync) for "
                f"{busy_s:.0f} s, and whatever else is to be written waits for it"
            )
        elif took_s >= STALLED_S:
            trouble = (
                f"the disk of {self._directory} needed {took_s:.0f} s for one write (fsync), for "
                "which all others had to wait"
            )
        self._stall.note(self._clock.monotonic_s(), trouble)

    async def run(self) -> None:
        """Look now and then, for ever."""
        while True:
            await trio.sleep(LOOK_EVERY_S)
            self.look()
