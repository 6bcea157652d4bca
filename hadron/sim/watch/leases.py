"""PIPELINES P8, P18: what waits at a runner is its own, and what it works on until its time is up;
who is given up for lost runners has ended them.

Told of whatever moves a micro-batch; nobody else may be given an instance's stage while the runner
that has it is there, and has not begun, or has said within the stage's timeout that it is at work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

import trio

from hadron.model.transactions import TransactionId
from hadron.pipelines.assignments import Assignments
from hadron.sim.watch.views import Complaints

_NEVER: Final = float("inf")

_Key = tuple[str, int]
"""A stage, and an instance."""


@dataclass(eq=False)
class _Lease:
    """`until`: never, while its runner has not begun."""

    runner: int
    timeout_s: float
    until: float = _NEVER
    has_begun: bool = False


@dataclass(frozen=True)
class _Lost:
    """A runner of an instance's stage was lost: whose run, by the id that it comes back with,
    whether it worked on nothing else, and how many of that stage had ended before."""

    run_id: bytes
    is_alone: bool
    ended: int


@dataclass
class _Out:
    """What one pipeline's leader has handed out."""

    leases: dict[_Key, _Lease] = field(default_factory=dict)
    batches: dict[int, _Lease] = field(default_factory=dict)
    """By the micro-batch's number."""
    taken: dict[_Key, tuple[TransactionId, int]] = field(default_factory=dict)
    """By which transaction, and from which runner; 0 for none."""
    lost: dict[_Key, list[_Lost]] = field(default_factory=dict)
    run_ids: dict[int, bytes] = field(default_factory=dict)
    """Of runners whose run has not joined again since."""
    ended: Counter[str] = field(default_factory=Counter)
    """By stage, how many have."""


class Leases:
    """Of every pipeline, under each of its leaders."""

    def __init__(self, complaints: Complaints) -> None:
        self._complaints = complaints
        self._out: WeakKeyDictionary[Assignments, _Out] = WeakKeyDictionary()

    def _of(self, assignments: Assignments) -> _Out:
        return self._out.setdefault(assignments, _Out())

    def joined(self, assignments: Assignments, runner: int, run_id: bytes) -> None:
        """A runner comes, or comes back: then it was not lost, nor is its call before."""
        out = self._of(assignments)
        for key in list(out.lost) if run_id else ():
            out.lost[key] = [each for each in out.lost[key] if each.run_id != run_id]
        for number in [number for number, known in out.run_ids.items() if run_id == known != b""]:
            del out.run_ids[number]
        out.run_ids[runner] = run_id

    def assigned(
        self,
        assignments: Assignments,
        runner: int,
        stage: str,
        ids: Collection[int],
        timeout_s: float,
        number: int,
    ) -> None:
        """A runner is given a micro-batch."""
        out, now = self._of(assignments), trio.current_time()
        lease = out.batches[number] = _Lease(runner, timeout_s)
        for each in ids:
            known = out.leases.get((stage, each))
            if known is not None and now < known.until:
                state = "has not begun" if known.until == _NEVER else "is at work"
                self._complaints.add(
                    "E3 what is at a runner is its own",
                    f"stage {stage} of instance {each} is given to runner {runner} at {now:.3f}; "
                    f"runner {known.runner} has it, which is there and {state}, "
                    f"until {known.until:.3f}",
                )
            out.leases[stage, each] = lease

    def begun(self, assignments: Assignments, runner: int, numbers: Iterable[int]) -> None:
        """A runner says that it is at work."""
        out, now = self._of(assignments), trio.current_time()
        for number in numbers:
            lease = out.batches.get(number)
            # Once its time was up it may be anybody's.
            if lease is not None and lease.runner == runner and now < lease.until:
                lease.until, lease.has_begun = now + lease.timeout_s, True

    def left(self, assignments: Assignments, runner: int, *, is_lost: bool) -> None:
        """A runner's call is over. `is_lost`: without a word from it."""
        out, now = self._of(assignments), trio.current_time()
        is_lost = is_lost and runner in out.run_ids
        run_id = out.run_ids.pop(runner, b"")
        begun: dict[str, list[_Key]] = {}
        for key in [key for key, lease in out.leases.items() if lease.runner == runner]:
            lease = out.leases.pop(key)
            if is_lost and lease.has_begun and now < lease.until:
                begun.setdefault(key[0], []).append(key)
        for stage, keys in begun.items():
            for key in keys:
                lost = _Lost(run_id, len(keys) == 1, out.ended[stage])
                out.lost.setdefault(key, []).append(lost)
        for key, (transaction, had) in out.taken.items():
            if had == runner:
                out.taken[key] = transaction, 0

    def settled(
        self, assignments: Assignments, stage: str, ids: Collection[int], by_runner: bool
    ) -> None:
        """They are over, whoever has them. What no runner has ended shows of none that it is there
        (P18)."""
        out = self._of(assignments)
        for each in ids:
            out.leases.pop((stage, each), None)
            out.taken.pop((stage, each), None)
            out.lost.pop((stage, each), None)
            out.ended[stage] += by_runner

    def given_up(
        self, assignments: Assignments, stage: str, ids: Iterable[int], max_attempts: int
    ) -> None:
        """A leader takes these for what has ended their runners."""
        out = self._of(assignments)
        for each in ids:
            lost = out.lost.get((stage, each), [])
            alone = sum(loss.is_alone for loss in lost)
            others = lost[-1].ended - lost[0].ended if lost else 0
            if alone < max_attempts or not others:
                self._complaints.add(
                    "E3 who is given up has ended its runners",
                    f"stage {stage} of instance {each} is given up for lost runners: {alone} "
                    f"worked on nothing else, it may have {max_attempts} attempts, and {others} "
                    "others have ended between the first time and the last",
                )

    def took(
        self, assignments: Assignments, stage: str, transaction: TransactionId, ids: Iterable[int]
    ) -> None:
        """A transaction ends them (P7)."""
        out, now = self._of(assignments), trio.current_time()
        for each in ids:
            lease = out.leases.pop((stage, each), None)
            runner = lease.runner if lease is not None and now < lease.until else 0
            if (stage, each) in out.taken:
                runner = out.taken[stage, each][1]
            out.taken[stage, each] = transaction, runner

    def gave_back(
        self,
        assignments: Assignments,
        stage: str,
        transaction: TransactionId,
        ids: Iterable[int],
        timeout_s: float,
    ) -> None:
        """It was rolled back: they are their runners' again, which have begun."""
        out, until = self._of(assignments), trio.current_time() + timeout_s
        for each in ids:
            known, runner = out.taken.get((stage, each), (None, 0))
            if known != transaction:
                continue
            del out.taken[stage, each]
            if runner:
                out.leases[stage, each] = _Lease(runner, timeout_s, until)
