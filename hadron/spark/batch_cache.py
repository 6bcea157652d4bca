"""Decoded batches, kept for the stages that follow and for the micro-batches behind this one.

Safety rule: offsets are counted again where a set was restored, or has lost a part of its log
(PIPELINES P2). So whoever takes a batch from here asks its leader first whether the log still has
it: of each answer that was kept at once, by the ballot of its last batch (PROTOCOL D4).
"""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hadron.model.ids import Ballot
from hadron.model.record_batch import RecordBatch

CACHE_BYTES: Final = 64 << 20
"""Some 500,000 records of 100 bytes."""

Place = tuple[str, int, str]
"""A stream's name and id, and a partition. Another stream may have had the name (PROTOCOL D3)."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """The batches of one answer, which are of one history. A log that has the last of them has them
    all.

    Attributes:
        end: the offset behind them.
        ballot: of the last one.
    """

    end: int
    ballot: Ballot


class BatchCache:
    """By place, the least recently used dropped first. Bounded by bytes. Those of one place do not
    overlap."""

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._batches: OrderedDict[tuple[Place, int], tuple[RecordBatch, Run]] = OrderedDict()
        self._bases: dict[Place, list[int]] = {}

    def find(self, place: Place, offset: int) -> tuple[RecordBatch, Run] | None:
        """The batch that held `offset` when it was read, if it is here, and what it came with."""
        bases = self._bases.get(place, [])
        position = bisect.bisect_right(bases, offset) - 1
        if position < 0:
            return None
        key = (place, bases[position])
        found = self._batches[key]
        if offset >= found[0].next_offset:
            return None
        self._batches.move_to_end(key)
        return found

    def add(self, place: Place, batches: Sequence[RecordBatch], ballot: Ballot) -> Run:
        """Keep one answer, the last of whose batches has this ballot. It is newer than whatever is
        known of these offsets."""
        run = Run(batches[-1].next_offset, ballot)
        for base in self._between(place, batches[0].base_offset, run.end):
            self._forget(place, base)
        # Last to first: where there is no room for all, the first are what is needed.
        for batch in reversed(batches):
            self._batches[place, batch.base_offset] = batch, run
            bisect.insort(self._bases.setdefault(place, []), batch.base_offset)
            self._bytes += batch.head.raw
            while self._bytes > self._max_bytes and len(self._batches) > 1:
                self._forget(*next(iter(self._batches)))
        return run

    def drop(self, place: Place, run: Run) -> None:
        """Forget what came with one answer: the log has something else there by now."""
        for base in list(self._bases.get(place, ())):
            if self._batches[place, base][1] is run:
                self._forget(place, base)

    def _between(self, place: Place, first: int, end: int) -> list[int]:
        """Where batches begin that have some of these offsets."""
        bases = self._bases.get(place, [])
        start = max(bisect.bisect_right(bases, first) - 1, 0)
        found = bases[start : bisect.bisect_left(bases, end)]
        return [base for base in found if self._batches[place, base][0].next_offset > first]

    def _forget(self, place: Place, base: int) -> None:
        self._bytes -= self._batches.pop((place, base))[0].head.raw
        bases = self._bases[place]
        bases.remove(base)
        if not bases:
            del self._bases[place]
