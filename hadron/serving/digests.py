"""Asks for a state digest now and then, while there is something new to compare (PROTOCOL A5)."""

from __future__ import annotations

from collections.abc import Callable

import trio

from hadron.partition.controller import Controller
from hadron.serving.leading import Part
from hadron.serving.perseverance import persevere
from hadron.state.digests import Compared, StateDigest


class DigestDriver(Part):
    """One per leadership. An idle replica set stays idle: only what others have logged since the
    latest digest makes another one worth while."""

    def __init__(self, controller: Controller, interval_s: float) -> None:
        """`interval_s`: 0 for never."""
        self._controller = controller
        self._interval_s = interval_s
        self._lsn = 0
        """Of the latest digest."""

    async def run(self) -> None:
        """Until cancelled."""
        if self._interval_s:
            self._lsn = self._controller.committed_lsn
            await persevere("comparing tables by digests", self._rounds)

    async def _rounds(self) -> None:
        while True:
            await self._controller.wait_committed(self._lsn + 1)
            await trio.sleep(self._interval_s)
            done: Compared = await self._controller.execute(StateDigest())
            self._lsn = done.lsn


async def go_round(
    controller: Controller, *, max_digests: int, on_progress: Callable[[int], None]
) -> tuple[int, int, bool]:
    """Log digests until every row of every table is covered, or `max_digests` are logged.

    Returns how many rows they cover, the last one's lsn, and whether that was all of them.
    `on_progress` is told the rows so far, after each.
    """
    # The table in which the first slice begins may be met from its middle on.
    ends = len(controller.machine.table_names) + 1
    covered = lsn = 0
    for _ in range(max_digests):
        done: Compared = await controller.execute(StateDigest())
        covered, lsn = covered + done.rows, done.lsn
        on_progress(covered)
        ends -= done.is_last
        if not ends:
            return covered, lsn, True
    return covered, lsn, False
