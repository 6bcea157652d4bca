"""Locks of statements that are in no table: of those that are on their way into the log as intents,
and of those that wait for their decision here (`serving.lock_table`).

Safety rule: what is claimed is let go once its statement was refused, or its transaction rolled
back; what the log has given to the transaction by then, the log takes away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from hadron.model.ranges import RangeSet
from hadron.model.transactions import Lock, TransactionId
from hadron.partition.observers import Observers, Order
from hadron.serving.lock_table import LockTable
from hadron.state.transactions.events import IntentsWritten

HOME: Final = -1

Claim: TypeAlias = tuple[TransactionId, int]
"""Of the intents from a number on, or of all statements of the driver's own set (`HOME`)."""


class Claims:
    """Of one leadership."""

    def __init__(self, locks: LockTable) -> None:
        self._locks = locks
        self._claimed: dict[Claim, list[Lock]] = {}
        self._firsts: dict[TransactionId, set[int]] = {}

    def __len__(self) -> int:
        return len(self._claimed)

    def observe(self, observers: Observers) -> None:
        observers.add(Order.DRIVERS, [IntentsWritten], self._on_written)

    def claim(self, claim: Claim, locks: Iterable[Lock]) -> None:
        """Raises `ConflictError` when another transaction has some of them."""
        fresh = self._locks.take(claim[0], locks)
        if fresh:
            self._claimed.setdefault(claim, []).extend(fresh)
            self._firsts.setdefault(claim[0], set()).add(claim[1])

    def settle(self, claim: Claim) -> None:
        """The statements were refused, or are in the log, or known there since long."""
        locks = self._claimed.pop(claim, None)
        if locks is not None:
            self._forget(claim)
            self._locks.free(claim[0], locks)

    def _on_written(self, events: Sequence[IntentsWritten]) -> None:
        """Told before who has sent them is answered: from here on these are the log's."""
        for event in events:
            written: dict[tuple[Any, ...], RangeSet] = {}
            for lock in event.locks:
                known = written.setdefault(lock[:3], RangeSet())
                for each in lock.ranges:
                    known.add(*each)
            for first in list(self._firsts.get(event.transaction, ())):
                claim = event.transaction, first
                left = [each for each in self._claimed[claim] if not _has(written, each)]
                self._claimed[claim] = left
                if not left:
                    del self._claimed[claim]
                    self._forget(claim)

    def _forget(self, claim: Claim) -> None:
        transaction, first = claim
        firsts = self._firsts[transaction]
        firsts.discard(first)
        if not firsts:
            del self._firsts[transaction]


def _has(written: Mapping[tuple[Any, ...], RangeSet], wanted: Lock) -> bool:
    """Whether all of a lock is among what was written, by what it is of."""
    known = written.get(wanted[:3])
    return known is not None and not any(known.gaps(first, last) for first, last in wanted.ranges)
