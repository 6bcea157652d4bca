"""Which runner gets which ready stages. Pure.

What is handed out is remembered here and nowhere else: a runner that goes away, or takes longer
than the stage's timeout, loses its invocations to others. Should both finish, the guard of
`CompleteStages` lets one of them publish (PROTOCOL E3).

What a transaction ends is *taken* until that is over: nobody else is given it, and no timeout takes
it from its runner (PIPELINES P7).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from hadron.model.transactions import TransactionId


@dataclass(slots=True)
class Runner:
    """A connected stage runner; `credit` is how many more micro-batches it takes.

    Attributes:
        stages: names of those that it runs; all of its engine when empty, also those that the
            pipeline gets later.
    """

    number: int
    engine: str
    stages: frozenset[str]
    max_batch: int
    credit: int
    is_writable: Callable[[], bool] = lambda: True

    def runs(self, stage: str, engine: str) -> bool:
        return engine == self.engine and (not self.stages or stage in self.stages)


@dataclass(slots=True)
class _Batch:
    runner: int
    deadline: float
    left: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Taken:
    """`runner` had it; 0 when nobody had, or not under this leader."""

    transaction: TransactionId
    runner: int


class Dispatch:
    """Assignments of one pipeline. Times are seconds on the monotonic clock."""

    def __init__(self) -> None:
        self.runners: dict[int, Runner] = {}
        self._numbers = itertools.count(1)
        self._batches: dict[str, list[_Batch]] = {}
        self._assigned: dict[str, dict[int, _Batch]] = {}
        self._taken: dict[str, dict[int, _Taken]] = {}
        self._turn = 0

    def join(
        self,
        engine: str,
        stages: Collection[str],
        max_batch: int,
        credit: int,
        is_writable: Callable[[], bool] = lambda: True,
    ) -> Runner:
        runner = Runner(
            next(self._numbers), engine, frozenset(stages), max_batch, credit, is_writable
        )
        self.runners[runner.number] = runner
        return runner

    def leave(self, number: int) -> None:
        """What the runner holds is free again."""
        self.runners.pop(number, None)
        for stage, batches in self._batches.items():
            for batch in batches:
                if batch.runner == number:
                    self._free(stage, batch)
            self._batches[stage] = [batch for batch in batches if batch.runner != number]

    def runner_for(self, stage: str, engine: str) -> Runner | None:
        """Who takes the next micro-batch of a stage: round robin over those with credit."""
        able = [
            runner
            for runner in self.runners.values()
            if runner.credit > 0 and runner.runs(stage, engine) and runner.is_writable()
        ]
        if not able:
            return None
        chosen = next((r for r in able if r.number > self._turn), able[0])
        self._turn = chosen.number
        return chosen

    def assign(self, runner: Runner, stage: str, ids: Collection[int], deadline: float) -> None:
        batch = _Batch(runner.number, deadline, set(ids))
        self._batches.setdefault(stage, []).append(batch)
        held = self._assigned.setdefault(stage, {})
        for instance_id in ids:
            held[instance_id] = batch
        runner.credit -= 1

    def assigned(self, stage: str) -> set[int]:
        """Instances whose `stage` nobody is given: it is at a runner, or a transaction's."""
        return {*self._assigned.get(stage, ()), *self._taken.get(stage, ())}

    def is_out(self, stage: str, instance_id: int) -> bool:
        """Whether that instance is one of them."""
        return instance_id in self._assigned.get(stage, ()) or (
            instance_id in self._taken.get(stage, ())
        )

    def count(self, stage: str) -> int:
        return len(self._assigned.get(stage, ())) + len(self._taken.get(stage, ()))

    def settle(self, stage: str, ids: Collection[int]) -> None:
        """These are completed or failed, by whomever."""
        taken = self._taken.get(stage, {})
        for instance_id in ids:
            self._release(stage, instance_id)
            taken.pop(instance_id, None)

    def _release(self, stage: str, instance_id: int) -> int:
        """No runner has it any more; returns the one that had, or 0."""
        batch = self._assigned.get(stage, {}).pop(instance_id, None)
        if batch is None:
            return 0
        batch.left.discard(instance_id)
        if not batch.left:
            self._batches[stage].remove(batch)
        return batch.runner

    # --- transactions ---------------------------------------------------------------------------

    def take(self, stage: str, transaction: TransactionId, ids: Iterable[int]) -> None:
        """The transaction ends these attempts, and is not over."""
        taken = self._taken.setdefault(stage, {})
        for instance_id in ids:
            if instance_id in taken:
                taken[instance_id].transaction = transaction
            else:
                runner = self._release(stage, instance_id)
                taken[instance_id] = _Taken(transaction, runner)

    def untake(
        self, stage: str, transaction: TransactionId, ids: Iterable[int], deadline: float
    ) -> None:
        """It was rolled back: its runner has them again, up to `deadline`, if it is still there."""
        taken = self._taken.get(stage, {})
        again: dict[int, _Batch] = {}
        for instance_id in ids:
            known = taken.get(instance_id)
            if known is None or known.transaction != transaction:
                continue
            del taken[instance_id]
            if known.runner in self.runners:
                batch = again.setdefault(known.runner, _Batch(known.runner, deadline))
                batch.left.add(instance_id)
                self._assigned.setdefault(stage, {})[instance_id] = batch
        self._batches.setdefault(stage, []).extend(again.values())

    # --- time -----------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Free what is out for longer than its stage may take."""
        for stage, batches in self._batches.items():
            for batch in batches:
                if batch.deadline <= now:
                    self._free(stage, batch)
            self._batches[stage] = [batch for batch in batches if batch.deadline > now]

    def next_deadline(self) -> float | None:
        return min(
            (batch.deadline for batches in self._batches.values() for batch in batches),
            default=None,
        )

    def _free(self, stage: str, batch: _Batch) -> None:
        held = self._assigned[stage]
        for instance_id in batch.left:
            if held.get(instance_id) is batch:
                del held[instance_id]
