"""Stages of pipelines, as leaders hand them out, and what they read of other sets' partitions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from weakref import WeakKeyDictionary

import trio

from hadron.model.ids import Ballot
from hadron.node.pipelines.other_leaders import LeaderSource
from hadron.partition.controller import Controller
from hadron.pipelines.consumer import Consumer
from hadron.pipelines.dispatch import Dispatch, Runner
from hadron.pipelines.dispatcher import Dispatcher
from hadron.sim.watch.known import Known, Wrappers


class HearsPipelines:
    def __init__(self, known: Known) -> None:
        self._known = known
        self._of: WeakKeyDictionary[Dispatch, Dispatcher] = WeakKeyDictionary()
        self._looked_ms: WeakKeyDictionary[Controller, int] = WeakKeyDictionary()
        """What time it was at the latest: a clock may jump back between a look and its hand-out."""

    def wrappers(self) -> Wrappers:
        """By what is wrapped: what hears of each function."""
        return [
            (Controller, {"log_now_ms": self.looks}),
            (Dispatcher, {"__init__": self.makes}),
            (Dispatch, {"assign": self.assigns}),
            (LeaderSource, {"read": self.reads}),
            (Consumer, {"catch_up": self.catches_up}),
        ]

    def looks(self, original: Any) -> Any:
        def log_now_ms(controller: Controller) -> int:
            now_ms: int = original(controller)
            self._looked_ms[controller] = max(now_ms, self._looked_ms.get(controller, 0))
            return now_ms

        return log_now_ms

    def makes(self, original: Any) -> Any:
        def make(dispatcher: Dispatcher, *given: Any, **named: Any) -> None:
            original(dispatcher, *given, **named)
            self._of[dispatcher.dispatch] = dispatcher

        return make

    def assigns(self, original: Any) -> Any:
        def assign(
            dispatch: Dispatch, runner: Runner, stage: str, ids: Collection[int], timeout_s: float
        ) -> int:
            by = self._of.get(dispatch)
            view = self._known.by_part.get(by._controller) if by is not None else None
            if by is not None and view is not None and view.is_alive:
                now_ms = self._looked_ms[by._controller]
                handed_out = self._known.flows.handed_out
                self._known.judging(handed_out, view, by._item.id, stage, list(ids), now_ms)
            number: int = original(dispatch, runner, stage, ids, timeout_s)
            return number

        return assign

    def reads(self, original: Any) -> Any:
        async def read(source: LeaderSource, offset: int, after: Ballot) -> Any:
            self._known.cursors.asks(source._partition, source._stream_id, offset, after)
            return await original(source, offset, after)

        return read

    def catches_up(self, original: Any) -> Any:
        async def catch_up(consumer: Consumer) -> None:
            began_s = trio.current_time()
            await original(consumer)
            self._known.awaited.caught_up(
                consumer._controller, consumer._item.id, began_s, is_full=consumer._is_full
            )

        return catch_up
