"""Instances whose runner was lost while it worked on them. Pure.

A record that ends its runner's process, by a crash or for want of memory, takes along whatever else
that works on, and comes first again. So what was lost twice is *suspected*: of those that were lost
together an eighth run together, down to one by itself; and what is by itself each time costs others
nothing. Nothing of this is in the log: another leader counts from the beginning.

A run of a program that comes back was cut off, and has not ended: its loss is taken back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

_SUSPECTED: Final = 2
"""So often lost: once is what a restart, or a cut, does to everybody."""

_PARTS: Final = 8
"""What was lost together runs in so many parts: of 5,000 one is found in four losses."""

_MOST: Final = 100_000
"""That are remembered of a stage, the latest; and of all runs that may come back."""


@dataclass(slots=True)
class _Loss:
    """Of one instance.

    Attributes:
        count: how often its runner was lost.
        alone: of these, how often that worked on nothing else.
        most: it may run with so many at a time, itself included.
        first, last: how many others of its stage had ended when its runner was lost, the first time
            (or any later one, where some were taken back) and the last time.
    """

    first: int
    count: int = 0
    alone: int = 0
    most: int = 1
    last: int = 0


class Losses:
    """Of one pipeline, by stage."""

    def __init__(self) -> None:
        self._lost: dict[str, dict[int, _Loss]] = {}
        self._ended: dict[str, int] = {}
        self._by_run: dict[bytes, list[tuple[str, dict[int, _Loss]]]] = {}
        """What each run was lost with, by stage; those that were lost first come first."""
        self._of_runs = 0
        """How many instances these are."""

    def __bool__(self) -> bool:
        return bool(self._lost)

    def counts(self) -> dict[str, int]:
        """How many are remembered, by stage."""
        return {stage: len(known) for stage, known in self._lost.items()}

    def note(self, stage: str, ids: Sequence[int], run_id: bytes = b"") -> None:
        """A runner is lost that worked on these. `run_id`: by which it may come back."""
        if not ids:
            return
        known, ended = self._lost.setdefault(stage, {}), self._ended.setdefault(stage, 0)
        for instance_id in ids:
            loss = known.pop(instance_id, None) or _Loss(ended)
            loss.count += 1
            loss.alone += len(ids) == 1
            loss.most = max(1, len(ids) // _PARTS)
            loss.last = ended
            known[instance_id] = loss
        if run_id:
            lost = {instance_id: known[instance_id] for instance_id in ids}
            self._by_run.setdefault(run_id, []).append((stage, lost))
            self._of_runs += len(lost)
        while len(known) > _MOST:
            del known[next(iter(known))]
        while self._of_runs > _MOST:
            self._forget_run(next(iter(self._by_run)))

    def take_back(self, run_id: bytes) -> None:
        """The run is there again: what it worked on has not ended it."""
        for stage, lost in self._forget_run(run_id):
            known = self._lost.get(stage, {})
            for instance_id, loss in lost.items():
                # It may have ended, and been retried and lost since: that was another one's.
                if known.get(instance_id) is not loss:
                    continue
                loss.count -= 1
                loss.alone -= len(lost) == 1
                # Others are to end before a loss that is still to come: which of these was the
                # first is not known any more.
                loss.first = loss.last
                if not loss.count:
                    del known[instance_id]
            self._forget_if_done(stage)

    def _forget_run(self, run_id: bytes) -> list[tuple[str, dict[int, _Loss]]]:
        """Returns what it was lost with."""
        found = self._by_run.pop(run_id, [])
        self._of_runs -= sum(len(lost) for _, lost in found)
        return found

    def _forget_if_done(self, stage: str) -> None:
        """Where nothing of the stage is lost any more."""
        if not self._lost.get(stage, True):
            del self._lost[stage], self._ended[stage]
        if not self._lost:
            self._by_run.clear()
            self._of_runs = 0

    def settle(self, stage: str, ids: Iterable[int], by_runner: bool = True) -> None:
        """These have ended, well or not. Whoever ran them is there, where they ended `by_runner`:
        of one that was given up, or cancelled, nothing follows for the others."""
        known = self._lost.get(stage)
        if known is None:
            return
        for instance_id in ids:
            known.pop(instance_id, None)
            self._ended[stage] += by_runner
        self._forget_if_done(stage)

    def suspected(self, stage: str, ids: Iterable[int]) -> list[int]:
        """Those of `ids` that are not to run with any other."""
        known = self._lost.get(stage, {})
        return [each for each in ids if each in known and known[each].count >= _SUSPECTED]

    def turn(self, stage: str, suspected: Iterable[int], others: bool) -> list[int]:
        """Which suspected ones run next, together; those first that are so the least. Where there
        are `others`, one of its stage has to end between two of an instance's losses."""
        known = self._lost.get(stage, {})
        ended = self._ended.get(stage, 0)
        waiting = [each for each in suspected if not others or known[each].last < ended]
        group: list[int] = []
        for each in sorted(waiting, key=lambda each: (known[each].count, -known[each].most)):
            if len(group) >= known[each].most:
                break
            group.append(each)
        return group

    def hopeless(self, stage: str, ids: Iterable[int], max_attempts: int) -> list[int]:
        """Those of `ids` that have lost as many runners by themselves as they may have attempts,
        and others of their stage ended between the first and the last of these: it is they, and not
        the code or the machines, which may have been mended since."""
        known = self._lost.get(stage, {})
        return [
            each
            for each in ids
            if (loss := known.get(each)) and loss.alone >= max_attempts and loss.first < loss.last
        ]
