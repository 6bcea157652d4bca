"""Which runner gets which ready stages. Pure.

What is handed out is remembered here and nowhere else. It is its runner's while that is there, and
once begun for as long as the stage may take; then others get it (PIPELINES P8). Should both finish,
the guard of `CompleteStages` lets one of them publish (PROTOCOL E3).

What a transaction ends is *taken* until that is over: nobody else is given it, and no timeout takes
it from its runner (PIPELINES P7).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from hadron.model.transactions import TransactionId
from hadron.pipelines.losses import Losses


@dataclass(slots=True)
class Runner:
    """A connected stage runner; `credit` is how many more micro-batches it takes.

    Attributes:
        stages: names of those that it runs; all of its engine when empty, also those that the
            pipeline gets later.
        counts_invocations: its credit is of invocations, not of micro-batches.
        name: for people.
        code_version: of the code that it runs, as far as it has said.
        codes: of stages that it has begun, the function that each ran, and its code.
        run_id: of a run of a program, which may join again; empty where it has not said.
        is_back: its run has joined again since: this call was cut off, whenever that is noticed.
    """

    number: int
    engine: str
    stages: frozenset[str]
    max_batch: int
    credit: int
    is_writable: Callable[[], bool] = lambda: True
    counts_invocations: bool = False
    name: str = ""
    code_version: str = ""
    codes: dict[str, tuple[str, str]] = field(default_factory=dict)
    run_id: bytes = b""
    is_back: bool = False

    def code_of(self, stage: str, run: str) -> str:
        """What code it has of a stage that runs this function; "" where it has not said."""
        ran, code = self.codes.get(stage, ("", ""))
        return code if code and ran == run else self.code_version

    def runs(self, stage: str, engine: str) -> bool:
        return engine == self.engine and (not self.stages or stage in self.stages)

    @property
    def takes(self) -> int:
        """Invocations, in one micro-batch."""
        return min(self.max_batch, self.credit) if self.counts_invocations else self.max_batch


_NEVER: Final = float("inf")


@dataclass(slots=True)
class _Batch:
    """`deadline`: never, while it waits for its runner to begin. `is_apart`: of suspected ones."""

    number: int
    runner: int
    stage: str
    timeout_s: float
    run: str = ""
    deadline: float = _NEVER
    left: set[int] = field(default_factory=set)
    began: float | None = None
    code_version: str = ""
    is_apart: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """Whoever runs an invocation, as far as it is known.

    Attributes:
        took_s: since its micro-batch has begun; None before.
    """

    runner: str = ""
    code_version: str = ""
    took_s: float | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """Who takes a micro-batch, of which instances. `is_apart`: they run with no others."""

    runner: Runner
    ids: list[int]
    is_apart: bool = False


@dataclass(slots=True)
class _Taken:
    """`runner` had it; 0 when nobody had, or not under this leader."""

    transaction: TransactionId
    runner: int


class Assignments:
    """Assignments of one pipeline. Times are seconds on the monotonic clock.

    Attributes:
        losses: instances whose runners were lost.
    """

    def __init__(self, first_number: int = 1) -> None:
        """`first_number`: of micro-batches; no other leadership's have the same."""
        self.runners: dict[int, Runner] = {}
        self.losses = Losses()
        self._numbers = itertools.count(1)
        self._batch_numbers = itertools.count(first_number)
        self._batches: dict[int, _Batch] = {}
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
        *,
        counts_invocations: bool = False,
        name: str = "",
        code_version: str = "",
        run_id: bytes = b"",
    ) -> Runner:
        if run_id:
            self.losses.take_back(run_id)
            # A program may hear of a cut before its leader does.
            for each in self.runners.values():
                each.is_back = each.is_back or each.run_id == run_id
        runner = Runner(
            next(self._numbers),
            engine,
            frozenset(stages),
            max_batch,
            credit,
            is_writable,
            counts_invocations,
            name,
            code_version,
            run_id=run_id,
        )
        self.runners[runner.number] = runner
        return runner

    def leave(self, number: int, *, is_lost: bool = True) -> None:
        """What the runner holds is free again. `is_lost`: it has not said that it goes."""
        runner = self.runners.pop(number, None)
        run_id = runner.run_id if runner is not None else b""
        is_lost = is_lost and not (runner is not None and runner.is_back)
        begun: dict[str, list[int]] = {}
        for batch in [each for each in self._batches.values() if each.runner == number]:
            if is_lost and batch.began is not None:
                begun.setdefault(batch.stage, []).extend(batch.left)
            self._free(batch)
        for stage, ids in begun.items():
            self.losses.note(stage, ids, run_id)

    def runner_for(self, stage: str, engine: str) -> Runner | None:
        """Who takes the next micro-batch of a stage: round robin over those with credit."""
        return self._next_of([runner for runner in self.able() if runner.runs(stage, engine)])

    def _next_of(self, able: Sequence[Runner]) -> Runner | None:
        if not able:
            return None
        chosen = next((r for r in able if r.number > self._turn), able[0])
        self._turn = chosen.number
        return chosen

    def offer(self, stage: str, engine: str, ids: Sequence[int]) -> Offer | None:
        """The next micro-batch of a stage, of these, which are ready, oldest first; None when
        nobody takes one.

        Suspected ones are apart. A runner that works on many invocations at a time has nothing
        else meanwhile; where none has nothing, the one that came first is given no more until then.
        """
        if not self.losses:
            runner = self.runner_for(stage, engine)
            return None if runner is None else Offer(runner, list(ids[: runner.takes]))
        suspected = self.losses.suspected(stage, ids)
        busy = {batch.runner for batch in self._batches.values()}
        apart = {batch.runner for batch in self._batches.values() if batch.is_apart}
        able = [
            runner
            for runner in self.able()
            if runner.runs(stage, engine)
            and not (runner.counts_invocations and runner.number in apart)
        ]
        out = set(suspected)
        others = [each for each in ids if each not in out]
        group = self.losses.turn(stage, suspected, bool(others))
        if group:
            free = [r for r in able if not r.counts_invocations or r.number not in busy]
            runner = self._next_of(free)
            if runner is not None:
                return Offer(runner, group[: runner.takes], True)
            if not apart:
                numbers = [r.number for r in self.runners.values() if r.runs(stage, engine)]
                first = min(numbers, default=0)
                able = [runner for runner in able if runner.number != first]
        runner = self._next_of(able) if others else None
        return None if runner is None else Offer(runner, others[: runner.takes])

    def able(self) -> list[Runner]:
        """Who takes a micro-batch now."""
        return [
            runner for runner in self.runners.values() if runner.credit > 0 and runner.is_writable()
        ]

    def all_out(self) -> dict[str, set[int]]:
        """By stage, instances that nobody is given."""
        return {stage: self.assigned(stage) for stage in {*self._assigned, *self._taken}}

    def assign(
        self,
        runner: Runner,
        stage: str,
        ids: Collection[int],
        timeout_s: float,
        run: str = "",
        *,
        is_apart: bool = False,
    ) -> int:
        """The runner has these; returns the micro-batch's number. It may take `timeout_s` from when
        its runner says that it has begun. `run`: the function, for `codes`."""
        batch = self._new_batch(runner.number, stage, timeout_s)
        batch.run, batch.is_apart = run, is_apart
        batch.left.update(ids)
        self._assigned.setdefault(stage, {}).update(dict.fromkeys(ids, batch))
        runner.credit -= len(ids) if runner.counts_invocations else 1
        return batch.number

    def _new_batch(self, runner: int, stage: str, timeout_s: float) -> _Batch:
        number = next(self._batch_numbers)
        batch = self._batches[number] = _Batch(number, runner, stage, timeout_s)
        return batch

    def begin(
        self, runner: int, numbers: Iterable[int], now: float, code_version: str = ""
    ) -> float:
        """The runner works on these micro-batches: each has a whole timeout from now. Returns the
        earliest of their ends."""
        earliest = _NEVER
        for number in numbers:
            batch = self._batches.get(number)
            if batch is not None and batch.runner == runner:
                batch.deadline = now + batch.timeout_s
                earliest = min(earliest, batch.deadline)
                batch.began = now if batch.began is None else batch.began
                if code_version:
                    batch.code_version = code_version
                    self.runners[runner].codes[batch.stage] = (batch.run, code_version)
        return earliest

    def work_on(self, stage: str, instance_id: int, now: float) -> Work:
        """Who runs it."""
        batch = self._assigned.get(stage, {}).get(instance_id)
        number = batch.runner if batch is not None else 0
        taken = self._taken.get(stage, {}).get(instance_id)
        if taken is not None:
            number = taken.runner
        runner = self.runners.get(number)
        if runner is None:
            return Work()
        code, took_s = runner.code_version, None
        if batch is not None and batch.began is not None:
            code, took_s = batch.code_version or code, now - batch.began
        return Work(runner.name, code, took_s)

    def codes(self, stage: str, engine: str, run: str) -> dict[str, list[str]]:
        """What code the runners of a stage have, as far as they have said, and the names of those
        that have it."""
        found: dict[str, list[str]] = {}
        for runner in self.runners.values():
            if runner.runs(stage, engine) and (code := runner.code_of(stage, run)):
                found.setdefault(code, []).append(runner.name)
        return found

    def assigned(self, stage: str) -> set[int]:
        """Instances whose `stage` nobody is given: it is at a runner, or a transaction's."""
        return {*self._assigned.get(stage, ()), *self._taken.get(stage, ())}

    def is_out(self, stage: str, instance_id: int) -> bool:
        """Whether that instance is one of them."""
        return instance_id in self._assigned.get(stage, ()) or (
            instance_id in self._taken.get(stage, ())
        )

    def has_begun(self, stage: str, instance_id: int) -> bool:
        """Whether its runner works on it, as far as that has said, or a transaction ends it."""
        batch = self._assigned.get(stage, {}).get(instance_id)
        is_begun = batch is not None and batch.deadline < _NEVER
        return is_begun or instance_id in self._taken.get(stage, ())

    def count_begun(self, stage: str) -> int:
        """Instances of which that is so."""
        begun = (
            len(each.left)
            for each in self._batches.values()
            if each.stage == stage and each.deadline < _NEVER
        )
        return sum(begun) + len(self._taken.get(stage, ()))

    def settle(self, stage: str, ids: Collection[int], by_runner: bool = True) -> None:
        """These are completed, failed or cancelled, by whomever."""
        taken = self._taken.get(stage, {})
        for instance_id in ids:
            self._release(stage, instance_id)
            taken.pop(instance_id, None)
        self.losses.settle(stage, ids, by_runner)

    def _release(self, stage: str, instance_id: int) -> int:
        """No runner has it any more; returns the one that had, or 0."""
        batch = self._assigned.get(stage, {}).pop(instance_id, None)
        if batch is None:
            return 0
        batch.left.discard(instance_id)
        if not batch.left:
            del self._batches[batch.number]
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
        self,
        stage: str,
        transaction: TransactionId,
        ids: Iterable[int],
        now: float,
        timeout_s: float,
    ) -> None:
        """It was rolled back: its runner, which has begun, has them again for a whole timeout, if
        it is still there."""
        taken = self._taken.get(stage, {})
        again: dict[int, _Batch] = {}
        for instance_id in ids:
            known = taken.get(instance_id)
            if known is None or known.transaction != transaction:
                continue
            del taken[instance_id]
            if known.runner not in self.runners:
                continue
            batch = again.get(known.runner)
            if batch is None:
                batch = again[known.runner] = self._new_batch(known.runner, stage, timeout_s)
                batch.deadline = now + timeout_s
            batch.left.add(instance_id)
            self._assigned.setdefault(stage, {})[instance_id] = batch

    # --- time -----------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Free what is worked on for longer than its stage may take."""
        for batch in [each for each in self._batches.values() if each.deadline <= now]:
            self._free(batch)

    def next_deadline(self) -> float | None:
        found = min((batch.deadline for batch in self._batches.values()), default=_NEVER)
        return None if found == _NEVER else found

    def _free(self, batch: _Batch) -> None:
        del self._batches[batch.number]
        held = self._assigned[batch.stage]
        for instance_id in batch.left:
            if held.get(instance_id) is batch:
                del held[instance_id]
