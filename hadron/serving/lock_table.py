"""What transactions hold on this leader: in the log, as participants, and of those that it drives.

The log has the locks of what is prepared; statements of the leader's own transactions are in no
table before they are decided (PROTOCOL E2). Here they are together, so that who serves groups and
runs stages gives nothing out that a transaction may end at any moment, and hears when one is over.

Safety rule: events come in the log's order, and drivers hear of them after this. Who watches a
stream is called before: what keeps from it what a statement ends is the claim that was taken before
that was logged. What the log gives to a transaction another one had only wanted: that one is
refused when it is to be decided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from hadron.model.errors import OverloadedError
from hadron.model.range_maps import RangeMap
from hadron.model.ranges import Range, runs
from hadron.model.transactions import STAGES, Lock, TransactionId
from hadron.partition.observers import Observers, Order
from hadron.state.pipelines.events import StagesEnded
from hadron.state.transactions.events import (
    IntentsWritten,
    RecordsAcknowledged,
    TransactionAborted,
    TransactionFinished,
)
from hadron.state.transactions.locks import HeldLock, conflict, deliveries

_Key = tuple[str, int, str]
"""What locks are of: kind, owner, name."""

MAX_HELD: Final = 1_000_000
"""What transactions may hold on a leader: ranges, and as `_KEY_RANGES` what these are of. Some 250
bytes each, with the claim on it. One driver's may have half."""

_KEY_RANGES: Final = 4

Event = (
    IntentsWritten | RecordsAcknowledged | StagesEnded | TransactionAborted | TransactionFinished
)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a lock, since when by the clock of the log."""

    transaction: TransactionId
    since_ms: int


class Summary(NamedTuple):
    """What transactions hold of a group, or of a stage.

    Attributes:
        size: of records, or instances.
        oldest: who has some for longest; None when nobody does.
    """

    size: int
    oldest: Holder | None


Told = Callable[[TransactionId, Lock], None]


class LockTable:
    """Of a leadership."""

    def __init__(self, held: Iterable[HeldLock], now_ms: Callable[[], int]) -> None:
        """
        Args:
            held: what the tables have when leading begins.
            now_ms: the clock of the log.
        """
        self._now_ms = now_ms
        self._held: dict[_Key, RangeMap[Holder]] = {}
        self._ranges: Counter[str] = Counter()
        """By driver, how many of them its transactions have."""
        self._listeners: dict[str, tuple[Told, Told]] = {}
        self._acknowledged: Callable[[RecordsAcknowledged], None] = lambda _event: None
        for each in held:
            self._put(Holder(each.transaction, each.since_ms), each.lock)

    def observe(self, observers: Observers) -> None:
        observers.add(
            Order.LOCKS,
            [
                IntentsWritten,
                RecordsAcknowledged,
                StagesEnded,
                TransactionAborted,
                TransactionFinished,
            ],
            self._on_events,
        )

    def listen(self, kind: str, taken: Told, freed: Told) -> None:
        """For whoever serves what can be locked, all of one kind.

        Args:
            taken: nobody else may end these from now on; the transaction may have had some before.
            freed: the transaction is over; what is still its own was rolled back.
        """
        self._listeners[kind] = taken, freed

    def on_acknowledged(self, told: Callable[[RecordsAcknowledged], None]) -> None:
        """Call `told` when a transaction has acknowledged something, and that is committed."""
        self._acknowledged = told

    # --- transactions ---------------------------------------------------------------------------

    def take(self, transaction: TransactionId, locks: Iterable[Lock]) -> list[Lock]:
        """The transaction wants these: of a statement that is about to be logged, or that waits for
        its decision here. Returns those that it had not, for `free` if nothing comes of it.

        Raises `ConflictError` when another one has some of it, `OverloadedError` when transactions
        hold too much here; then nothing is taken.
        """
        locks = list(locks)
        for lock in locks:
            self.check_free(lock, transaction)
        fresh = [lock._replace(ranges=tuple(gaps)) for lock in locks if (gaps := self._gaps(lock))]
        self._check_room(transaction, sum(len(each.ranges) for each in fresh))
        holder = Holder(transaction, self._now_ms())
        for each in fresh:
            self._put(holder, each)
            self._tell_taken(transaction, each)
        return fresh

    def _check_room(self, transaction: TransactionId, ranges: int) -> None:
        """What the log has given is in the table whether there is room or not."""
        driver = transaction.replica_set
        in_all = self._ranges.total() + _KEY_RANGES * len(self._held)
        if ranges and (in_all + ranges > MAX_HELD or self._ranges[driver] + ranges > MAX_HELD // 2):
            raise OverloadedError(
                f"transactions that {driver} drives hold {self._ranges[driver]} ranges of offsets "
                f"and instances here, those of all {in_all}; the limits are {MAX_HELD // 2} and "
                f"{MAX_HELD}, and transaction {transaction} wants {ranges} more",
                "let some end: `hadron tx list` has those that wait",
            )

    def free(self, transaction: TransactionId, locks: Iterable[Lock]) -> None:
        """The transaction does not have these any more: it was rolled back."""
        for lock in locks:
            self._remove(lock, transaction)
            if lock.kind in self._listeners:
                self._listeners[lock.kind][1](transaction, lock)

    def check_free(self, lock: Lock, transaction: TransactionId | None = None) -> None:
        """Raises `ConflictError` when another transaction has some of it."""
        known = self._held.get(lock[:3])
        if known is None:
            return
        for wanted in lock.ranges:
            for first, last, holder in known.within(*wanted):
                if holder.transaction != transaction:
                    raise conflict(holder.transaction, lock, (first, last))

    def held(self, kind: str, owner_id: int, name: str = "") -> list[tuple[int, int, Holder]]:
        """Ascending."""
        return list(self._held.get((kind, owner_id, name), ()))

    def of_owner(self, kind: str, owner_id: int) -> list[tuple[TransactionId, Lock]]:
        """Of all its stages, whatever they are called."""
        return [
            (holder.transaction, Lock(*key, ((first, last),)))
            for key, known in self._held.items()
            if key[:2] == (kind, owner_id)
            for first, last, holder in known
        ]

    def summary(self, kind: str, owner_id: int, name: str = "") -> Summary:
        found = self.held(kind, owner_id, name)
        holders = [holder for _, _, holder in found]
        oldest = min(holders, key=lambda holder: holder.since_ms, default=None)
        return Summary(sum(last - first + 1 for first, last, _ in found), oldest)

    # --- what the log says ----------------------------------------------------------------------

    def _on_events(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, IntentsWritten):
                holder = Holder(event.transaction, self._now_ms())
                for lock in event.locks:
                    self._put(holder, lock)
                    self._tell_taken(event.transaction, lock)
            elif isinstance(event, RecordsAcknowledged):
                self._remove(deliveries(event.group_id, event.ranges))
                self._acknowledged(event)
            elif isinstance(event, StagesEnded):
                key = STAGES, event.pipeline_id, event.stage
                if key in self._held:
                    self._remove(Lock(*key, tuple(runs(sorted(set(event.instance_ids))))))
            else:
                self.free(event.transaction, event.locks)

    def _put(self, holder: Holder, lock: Lock) -> None:
        known = self._held.setdefault(lock[:3], RangeMap())
        for wanted in lock.ranges:
            for a, b, before in known.within(*wanted):
                if before.transaction != holder.transaction:
                    self._take_out(known, a, b, before)
            for gap in known.gaps(*wanted):
                known.add(*gap, holder)
                self._ranges[holder.transaction.replica_set] += 1

    def _remove(self, lock: Lock, transaction: TransactionId | None = None) -> None:
        """What the transaction has of it, or, somebody having ended it, whoever has it."""
        known = self._held.get(lock[:3])
        if known is None:
            return
        for wanted in lock.ranges:
            for first, last, holder in known.within(*wanted):
                if transaction in (None, holder.transaction):
                    self._take_out(known, first, last, holder)
        if not len(known):
            del self._held[lock[:3]]

    def _take_out(self, known: RangeMap[Holder], first: int, last: int, holder: Holder) -> None:
        """Of one range of the holder's; what is left of it may be two."""
        before = len(known)
        known.take(first, last)
        self._ranges[holder.transaction.replica_set] += len(known) - before

    def _gaps(self, lock: Lock) -> list[Range]:
        known = self._held.get(lock[:3])
        if known is None:
            return list(lock.ranges)
        return [gap for wanted in lock.ranges for gap in known.gaps(*wanted)]

    def _tell_taken(self, transaction: TransactionId, lock: Lock) -> None:
        if lock.kind in self._listeners:
            self._listeners[lock.kind][0](transaction, lock)
