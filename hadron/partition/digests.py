"""Asks for a state digest now and then, while there is something new to compare (PROTOCOL A5)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import trio

from hadron.model.errors import HadronError
from hadron.partition.controller import Controller
from hadron.partition.group_commit import Submission
from hadron.state.digests import StateDigest

_log = logging.getLogger(__name__)


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
