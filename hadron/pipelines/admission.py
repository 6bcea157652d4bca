"""How many instances a pipeline may make now, and whose turn it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from hadron.model.pipelines import PipelineSpec
from hadron.partition.controller import Controller
from hadron.state.pipelines import views

_MOST_PER_ENTRY: Final = 2_000
"""Instances made by one entry: about 10 ms of the writer's time."""


class Admission:
    """Of new instances of one pipeline: `max_parallel` of them live at a time.

    Args:
        when_full: called when somebody begins to wait.

    Attributes:
        turn: of all that make instances; it is fair, so each gets its share of the room.
        is_full: somebody waits for room.
    """

    def __init__(
        self,
        pipeline_id: int,
        spec: Callable[[], PipelineSpec],
        controller: Controller,
        when_full: Callable[[], None],
    ) -> None:
        self.turn = trio.Lock()
        self.is_full = False
        self._id = pipeline_id
        self._spec = spec
        self._controller = controller
        self._when_full = when_full
        self._moved = trio.Event()

    def wake(self) -> None:
        """Instances ended, or it was declared anew."""
        self._moved.set()

    async def wait(self) -> int:
        """How many instances one entry may make, at least one; for who has the turn."""
        while True:
            self._moved = trio.Event()
            counts = await self._controller.query(lambda db: views.counts(db, self._id))
            room = min(self._spec().max_parallel - counts.live, _MOST_PER_ENTRY)
            if room > 0:
                return room
            self.is_full = True
            self._when_full()
            try:
                await self._moved.wait()
            finally:
                self.is_full = False
