"""What transactions have made happen, as in `events`. What their statements do to streams and
pipelines is told by the events of those."""

from __future__ import annotations

from hadron.model.ranges import Range
from hadron.model.transactions import Lock, TransactionId
from hadron.state.machine import Event


class IntentsWritten(Event, frozen=True):
    """More of a transaction that is driven elsewhere is prepared here; it has taken `locks`."""

    transaction: TransactionId
    locks: tuple[Lock, ...]


class TransactionFinished(Event, frozen=True):
    """Its statements here are done, and `locks` are free."""

    transaction: TransactionId
    locks: tuple[Lock, ...]


class TransactionAborted(Event, frozen=True):
    """Nothing of it was done here, and `locks` are free."""

    transaction: TransactionId
    locks: tuple[Lock, ...]


class RecordsAcknowledged(Event, frozen=True):
    """A transaction has acknowledged records of a group, whose floor is `floor` now."""

    group_id: int
    ranges: tuple[Range, ...]
    floor: int
