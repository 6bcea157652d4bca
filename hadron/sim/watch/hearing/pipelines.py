"""Stages of pipelines, as leaders hand them out, and what they read of other sets' partitions."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any
from weakref import WeakKeyDictionary

import trio

from hadron.model.ids import Ballot
from hadron.model.transactions import TransactionId
from hadron.node.pipelines.other_leaders import LeaderSource
from hadron.partition.controller import Controller
from hadron.pipelines.assignments import Assignments, Runner
from hadron.pipelines.consumer import Consumer
from hadron.pipelines.dispatcher import Dispatcher
from hadron.sim.watch.known import Known, Wrappers


class HearsPipelines:
    def __init__(self, known: Known) -> None:
        self._known = known
        self._of: WeakKeyDictionary[Assignments, Dispatcher] = WeakKeyDictionary()
        self._looked_ms: WeakKeyDictionary[Controller, int] = WeakKeyDictionary()
        """What time it was at the latest: a clock may jump back between a look and its hand-out."""

    def wrappers(self) -> Wrappers:
        """By what is wrapped: what hears of each function."""
        return [
            (Controller, {"log_now_ms": self.looks}),
            (Dispatcher, {"__init__": self.makes, "_hopeless": self.gives_up}),
            (
                Assignments,
                {
                    "join": self.joins,
                    "assign": self.assigns,
                    "begin": self.begins,
                    "leave": self.leaves,
                    "settle": self.settles,
                    "take": self.takes,
                    "untake": self.gives_back,
                },
            ),
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
            self._of[dispatcher.assignments] = dispatcher

        return make

    def gives_up(self, original: Any) -> Any:
        def hopeless(dispatcher: Dispatcher, found: Any) -> set[int]:
            ids: set[int] = original(dispatcher, found)
            stage = found.stage
            self._known.leases.given_up(
                dispatcher.assignments, stage.name, sorted(ids), stage.retry.max_attempts
            )
            return ids

        return hopeless

    def joins(self, original: Any) -> Any:
        def join(
            assignments: Assignments, *given: Any, run_id: bytes = b"", **named: Any
        ) -> Runner:
            runner: Runner = original(assignments, *given, run_id=run_id, **named)
            self._known.leases.joined(assignments, runner.number, run_id)
            return runner

        return join

    def assigns(self, original: Any) -> Any:
        def assign(
            assignments: Assignments,
            runner: Runner,
            stage: str,
            ids: Collection[int],
            timeout_s: float,
            *given: Any,
            **named: Any,
        ) -> int:
            by = self._of.get(assignments)
            view = self._known.by_part.get(by._controller) if by is not None else None
            if by is not None and view is not None and view.is_alive:
                now_ms = self._looked_ms[by._controller]
                handed_out = self._known.flows.handed_out
                self._known.judging(handed_out, view, by._item.id, stage, list(ids), now_ms)
            number: int = original(assignments, runner, stage, ids, timeout_s, *given, **named)
            leases = self._known.leases
            leases.assigned(assignments, runner.number, stage, ids, timeout_s, number)
            return number

        return assign

    def begins(self, original: Any) -> Any:
        def begin(
            assignments: Assignments, runner: int, numbers: Collection[int], *given: Any
        ) -> float:
            self._known.leases.begun(assignments, runner, numbers)
            earliest: float = original(assignments, runner, numbers, *given)
            return earliest

        return begin

    def leaves(self, original: Any) -> Any:
        def leave(assignments: Assignments, number: int, *, is_lost: bool = True) -> None:
            self._known.leases.left(assignments, number, is_lost=is_lost)
            original(assignments, number, is_lost=is_lost)

        return leave

    def settles(self, original: Any) -> Any:
        def settle(
            assignments: Assignments, stage: str, ids: Collection[int], by_runner: bool = True
        ) -> None:
            self._known.leases.settled(assignments, stage, ids, by_runner)
            original(assignments, stage, ids, by_runner)

        return settle

    def takes(self, original: Any) -> Any:
        def take(
            assignments: Assignments, stage: str, transaction: TransactionId, ids: Iterable[int]
        ) -> None:
            some = tuple(ids)
            self._known.leases.took(assignments, stage, transaction, some)
            original(assignments, stage, transaction, some)

        return take

    def gives_back(self, original: Any) -> Any:
        def untake(
            assignments: Assignments,
            stage: str,
            transaction: TransactionId,
            ids: Iterable[int],
            now: float,
            timeout_s: float,
        ) -> None:
            some = tuple(ids)
            original(assignments, stage, transaction, some, now, timeout_s)
            self._known.leases.gave_back(assignments, stage, transaction, some, timeout_s)

        return untake

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
                consumer._controller, consumer._item.id, began_s, is_full=consumer.admission.is_full
            )

        return catch_up
