"""The clock of what is staged: drops, on the leader, what nobody has published in time, and what
was given up (PROTOCOL E10). It sleeps while nothing is staged."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import trio

from hadron.partition.controller import Controller
from hadron.partition.observers import Order
from hadron.serving.leading import Part
from hadron.serving.perseverance import persevere
from hadron.state.sinks import staging
from hadron.state.sinks.staging import DropStaged, StagedChanged
from hadron.state.slices import Dropped

_log = logging.getLogger(__name__)

_PAUSE_S: Final = 1.0
"""Between two rounds at least; so what a transaction holds is looked at again so late, too."""

_LONGEST_SLEEP_S: Final = 600.0
"""The wall clock may jump; nothing is late by more than this because of it."""


class StagedDriver(Part):
    """One per leadership. `run` must be running."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._changed = trio.Event()
        controller.observers.add(Order.DRIVERS, [StagedChanged], self._on_changed)

    def _on_changed(self, _events: Sequence[StagedChanged]) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Drop what is due, for ever."""
        await persevere("dropping what was staged", self._rounds)

    async def _rounds(self) -> None:
        while True:
            self._changed = trio.Event()
            sleep_s = await self._round()
            with trio.move_on_after(sleep_s):
                await self._changed.wait()
                await trio.sleep(_PAUSE_S)

    async def _round(self) -> float:
        """Returns in how many seconds the next attempt expires."""
        while True:
            next_ms = await self._controller.read(staging.next_expiry)
            if next_ms is None:
                return float("inf")
            now_ms = self._controller.log_now_ms()
            if next_ms >= now_ms:
                return min(_LONGEST_SLEEP_S, (next_ms - now_ms) / 1_000 + _PAUSE_S)
            dropped: Dropped = await self._controller.execute(DropStaged(now_ms))
            if not dropped.rows:
                # A transaction that is prepared here publishes it.
                return _PAUSE_S
            _log.info("dropped %d attempts that were staged and not published", dropped.rows)
