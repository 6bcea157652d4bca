"""Ends what has waited for too long, or waits for records of a deleted stream, of one pipeline on
its leader. It sleeps until something is due."""

from __future__ import annotations

from functools import partial
from typing import Final

import trio

from hadron.partition.controller import Controller
from hadron.state.pipelines import waiting
from hadron.state.pipelines.waits import Expired, ExpireWaits

_LONGEST_SLEEP_S: Final = 600.0
"""The wall clock may jump; nothing is late by more than this because of it."""


class Expiring:
    """Of one pipeline. `run` must be running."""

    def __init__(self, pipeline_id: int, controller: Controller) -> None:
        self._id = pipeline_id
        self._controller = controller
        self._moved = trio.Event()

    def wake(self) -> None:
        """Something may be due earlier."""
        self._moved.set()

    async def run(self) -> None:
        while True:
            self._moved = trio.Event()
            due_ms = await self._controller.query(
                partial(waiting.next_due_ms, pipeline_id=self._id)
            )
            now_ms = self._controller.log_now_ms()
            if due_ms is not None and due_ms <= now_ms:
                _: Expired = await self._controller.execute(ExpireWaits(self._id, now_ms))
                continue
            sleep_s = _LONGEST_SLEEP_S if due_ms is None else (due_ms - now_ms) / 1_000
            with trio.move_on_after(min(sleep_s, _LONGEST_SLEEP_S)):
                await self._moved.wait()
