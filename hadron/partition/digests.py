"""Asks for a state digest now and then, while there is something new to compare (PROTOCOL A5)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import trio

from hadron.model.errors import HadronError
from hadron.partition.controller import Controller
from hadron.partition.submission import Submission
from hadron.state import rows
from hadron.state.digests import Compared, StateDigest

_log = logging.getLogger(__name__)

_TOLD_EVERY: Final = 50


class DigestDriver:
    """One per leadership. An idle replica set stays idle: only what others have logged since the
    latest digest makes another one worth while."""

    def __init__(self, controller: Controller, interval_s: float) -> None:
        """`interval_s`: 0 for never."""
        self._controller = controller
        self._interval_s = interval_s
        self._news = trio.Event()

    async def run(self) -> None:
        """Until cancelled, or the controller's end."""
        if not self._interval_s:
            return
        unobserve = self._controller.observe(self._on_visible)
        try:
            while True:
                await self._news.wait()
                await trio.sleep(self._interval_s)
                self._news = trio.Event()
                try:
                    await self._controller.execute(StateDigest())
                except HadronError as error:
                    _log.info("a state digest was not logged: %s", error)
        finally:
            unobserve()

    def _on_visible(self, submissions: Sequence[Submission]) -> None:
        """`Controller.Observer`."""
        if not self._news.is_set() and any(
            not isinstance(submission.command, StateDigest) for submission in submissions
        ):
            self._news.set()


async def go_round(
    controller: Controller, *, max_digests: int, on_progress: Callable[[int], None]
) -> tuple[int, int, bool]:
    """Log digests until every row of every table is covered, or `max_digests` are logged.

    Returns how many rows they cover, the last one's lsn, and whether that was all of them.
    `on_progress` is told the rows so far.
    """
    # The table in which the first slice begins may be met from its middle on.
    ends = len(rows.table_names()) + 1
    covered = lsn = 0
    for number in range(max_digests):
        done: Compared = await controller.execute(StateDigest())
        covered, lsn = covered + done.rows, done.lsn
        ends -= done.is_last
        if not ends:
            return covered, lsn, True
        if number % _TOLD_EVERY == 0:
            on_progress(covered)
    return covered, lsn, False
