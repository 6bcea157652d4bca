"""Instances whose runner was lost while it worked on them. Pure.

A record that ends its runner's process, by a crash or for want of memory, takes along whatever else
that works on, and comes first again. So what was lost twice is *suspected*: of those that were lost
together an eighth run together, down to one by itself; and what is by itself each time costs others
nothing. Nothing of this is in the log: another leader counts from the beginning.
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
"""That are remembered of a stage, the latest."""


@dataclass(slots=True)
class _Loss:
    """Of one instance.

    Attributes:
        count: how often its runner was lost.
        alone: of these, how often that worked on nothing else.
        most: it may run with so many at a time, itself included.
        first, last: how many others of its stage had ended when its runner was lost, the first time
            and the last time.
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

    def __bool__(self) -> bool:
        return bool(self._lost)

    def counts(self) -> dict[str, int]:
        """How many are remembered, by stage."""
        return {stage: len(known) for stage, known in self._lost.items()}

    def note(self, stage: str, ids: Sequence[int]) -> None:
        """A runner is lost that worked on these."""
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
        while len(known) > _MOST:
            del known[next(iter(known))]

    def settle(self, stage: str, ids: Iterable[int]) -> None:
        """These have ended, well or not: whoever ran them is there."""
        known = self._lost.get(stage)
        if known is None:
            return
        for instance_id in ids:
            known.pop(instance_id, None)
            self._ended[stage] += 1
        if not known:
            del self._lost[stage], self._ended[stage]

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
