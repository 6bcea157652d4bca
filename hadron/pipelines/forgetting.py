"""Drops what has ended long ago of one pipeline, on its leader: `keep_finished` says how long it is
kept. It sleeps until something is due."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from hadron.model.pipelines import PipelineSpec
from hadron.partition.controller import Controller
from hadron.state.pipelines import finished
from hadron.state.pipelines.finished import DropInstances
from hadron.state.slices import Dropped

_PAUSE_S: Final = 1.0
"""Between two rounds at least: instances go in handfuls."""

_LONGEST_SLEEP_S: Final = 600.0
"""The wall clock may jump; nothing is late by more than this because of it."""


class Forgetting:
    """Of one pipeline. `run` must be running."""

    def __init__(
        self, pipeline_id: int, spec: Callable[[], PipelineSpec], controller: Controller
    ) -> None:
        self._id = pipeline_id
        self._spec = spec
        self._controller = controller

    async def run(self) -> None:
        while True:
            keep_ms = self._spec().keep_finished_ms
            oldest_ms = await self._controller.query(
                partial(finished.oldest_end_ms, pipeline_id=self._id)
            )
            now_ms = self._controller.log_now_ms()
            if oldest_ms is not None and oldest_ms + keep_ms < now_ms:
                command = DropInstances(self._id, now_ms - keep_ms)
                dropped: Dropped = await self._controller.execute(command)
                if not dropped.is_done:
                    continue
            due_s = keep_ms / 1_000 if oldest_ms is None else (oldest_ms + keep_ms - now_ms) / 1_000
            # What is declared may change meanwhile.
            await trio.sleep(min(max(due_s, _PAUSE_S), _LONGEST_SLEEP_S))
