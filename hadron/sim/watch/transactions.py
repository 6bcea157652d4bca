"""PROTOCOL E1, E2, E6, E7: what leaders log, and say, of transactions, held against what other
sets' logs have by then.

Of each entry is known under which ballot it was logged, and how far a majority has that ballot's
log: so it is known what is decided, or prepared, for good, whatever its leader thinks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from hadron.delivery.port import DeliveryRange
from hadron.model.transactions import DELIVERIES, Lock, Participant, TransactionId, numbered
from hadron.sim.watch.ballots import Ballots
from hadron.sim.watch.marks import Mark
from hadron.sim.watch.views import Complaints
from hadron.state.features import MACHINE
from hadron.state.transactions.decisions import Decide, NoteFinished
from hadron.state.transactions.intents import AbortTransaction, FinishTransaction, WriteIntents
from hadron.state.transactions.joint_decisions import DecideRun

_PREPARED: Final = (
    "SELECT prepared_lsn FROM hadron_participation"
    " WHERE (replica_set, epoch, incarnation, number) = (?, ?, ?, ?)"
)
_DECISION: Final = "SELECT lsn FROM hadron_decision WHERE (epoch, incarnation, number) = (?, ?, ?)"
_NOTED: Final = (
    "SELECT p.results IS NOT NULL FROM hadron_decision d JOIN hadron_decision_part p USING (id)"
    " WHERE (epoch, incarnation, number) = (?, ?, ?) AND replica_set = ?"
)
_FORGOTTEN: Final = (
    "SELECT 1 FROM hadron_decision_forgotten WHERE (epoch, incarnation) = (?, ?) AND number >= ?"
)
"""What not all have finished is not forgotten, the model sees to that."""
_LOCKED: Final = (
    "SELECT prepared_lsn FROM hadron_lock WHERE kind = ? AND owner_id = ? AND name = ''"
    " AND first <= ? AND last >= ? LIMIT 1"
)
_HERE: Final = {
    "stream_id": "SELECT 1 FROM hadron_stream_partition WHERE stream_id = ?",
    "out_stream_id": "SELECT 1 FROM hadron_stream_partition WHERE stream_id = ?",
    "group_id": "SELECT 1 FROM hadron_group WHERE group_id = ?",
    "pipeline_id": "SELECT 1 FROM hadron_pipeline WHERE pipeline_id = ?",
}
"""Whether what a statement is of is there, by what it is called in it."""

CLIENT: Final = "its client"


@dataclass(slots=True)
class _Entry:
    """Something that a leader has logged, or had in its log when it was asked again."""

    mark: Mark
    lsn: int

    @property
    def is_durable(self) -> bool:
        return self.lsn <= self.mark.true_lsn


@dataclass(slots=True)
class _Decision:
    """
    Attributes:
        entries: each leader's that has logged it; all but one lose it.
        is_durable: it was seen to be.
        noted: who has finished, as it was logged.
    """

    participants: tuple[Participant, ...]
    entries: list[_Entry] = field(default_factory=list)
    is_durable: bool = False
    noted: dict[str, list[_Entry]] = field(default_factory=dict)


@dataclass(slots=True)
class _Intents:
    """Of one transaction at one set, by the entry with the first of them: how many statements each
    of its entries has, by first number; and the statements."""

    entries: dict[int, tuple[int, list[_Entry]]] = field(default_factory=dict)
    statements: dict[int, bytes] = field(default_factory=dict)

    def durable(self) -> int:
        return sum(
            count for count, each in self.entries.values() if any(e.is_durable for e in each)
        )


class Transactions:
    """Every transaction of a run."""

    def __init__(self, complaints: Complaints, ballots: Ballots) -> None:
        self._complaints = complaints
        self._ballots = ballots
        self._decisions: dict[TransactionId, _Decision] = {}
        self._intents: dict[tuple[TransactionId, str, int], _Intents] = {}
        self._aborted: dict[tuple[TransactionId, str, int], str] = {}
        self._said: dict[TransactionId, tuple[str, Any]] = {}
        """Who was told that it is rolled back, or aborted, and in which ballot: the first one's."""
        self._claims: dict[Any, dict[tuple[TransactionId, int], list[Lock]]] = {}
        """By leadership: what statements have taken that are in no log."""
        self._driven: dict[Any, dict[TransactionId, list[Lock]]] = {}
        self._delivered: dict[TransactionId, str] = {}
        """What was delivered that these had asked to acknowledge: wrong if they are decided."""

    # --- what is logged -------------------------------------------------------------------------

    def prepared_here(self, mark: Mark, transaction: TransactionId) -> int:
        """The entry with the first intent, as the leader's tables have it; 0 for none."""
        row = mark.view.select(_PREPARED, *transaction)
        return row[0] if row is not None else 0

    def logged(self, mark: Mark, command: Any, lsn: int, result: Any, prepared_lsn: int) -> None:
        """A leader has logged a command, or, where `lsn` is 0, has known it as done.

        Args:
            prepared_lsn: of its transaction, from before that.
        """
        if isinstance(command, WriteIntents):
            self._prepared(mark, command, lsn, result.prepared_lsn)
        elif isinstance(command, Decide):
            self._decided(mark, command.transaction, command.participants, lsn)
        elif isinstance(command, DecideRun):
            for each in numbered(command.transaction, len(command.records)):
                self._decided(mark, each, (), lsn)
        elif isinstance(command, FinishTransaction) and lsn:
            self._finished(mark, command)
            self._done(mark, command, result)
        elif isinstance(command, AbortTransaction) and lsn:
            self._abort(mark, command.transaction, prepared_lsn)
        elif isinstance(command, NoteFinished):
            entry = _Entry(mark, lsn or mark.started_lsn)
            for note in command.notes:
                decision = self._decisions.get(note.transaction)
                if decision is not None:
                    decision.noted.setdefault(note.participant, []).append(entry)

    def _prepared(self, mark: Mark, command: WriteIntents, lsn: int, prepared_lsn: int) -> None:
        key = command.transaction, mark.view.replica_set, prepared_lsn
        intents = self._intents.setdefault(key, _Intents())
        intents.statements.update(enumerate(command.statements, command.first_number))
        _, entries = intents.entries.setdefault(command.first_number, (len(command.statements), []))
        if lsn:
            entries.append(_Entry(mark, lsn))
        elif all(each.mark is not mark for each in entries):
            # Of an earlier ballot: this one's log begins with it.
            entries.append(_Entry(mark, mark.started_lsn))

    def _decided(
        self,
        mark: Mark,
        transaction: TransactionId,
        participants: tuple[Participant, ...],
        lsn: int,
    ) -> None:
        name = mark.view.name
        decision = self._decisions.setdefault(transaction, _Decision(participants))
        decision.entries.append(_Entry(mark, lsn or mark.started_lsn))
        if not lsn:
            return
        _, said_in = self._said.get(transaction, ("", None))
        # A leader that was deposed may still write what no majority ever has.
        if said_in is not None and mark.key[1] >= said_in:
            self._complain_of_said(transaction, f"{name} decides it at entry {lsn}")
        for each in participants:
            key = transaction, each.replica_set, each.prepared_lsn
            intents = self._intents.get(key)
            durable = intents.durable() if intents is not None else 0
            if durable != each.statements:
                self._complaints.add(
                    "E6 what is decided is durable where it was prepared",
                    f"{name} decides {transaction} at entry {lsn}; of {each.statements} statements "
                    f"at {each.replica_set} a majority there has {durable}",
                )
            if key in self._aborted:
                self._complaints.add(
                    "E1 what is decided is aborted nowhere",
                    f"{name} decides {transaction} at entry {lsn}, which {self._aborted[key]} has "
                    "aborted",
                )

    def _finished(self, mark: Mark, command: FinishTransaction) -> None:
        transaction, name = command.transaction, mark.view.name
        part = self._part(transaction, mark.view.replica_set)
        named = command.prepared_lsn, command.count
        if part is None or named != part[1:] or not self._is_decided(transaction):
            self._complaints.add(
                "E2 what is finished is decided",
                f"{name} finishes {transaction}, {command.count} statements from entry "
                f"{command.prepared_lsn} on; what is decided for good of it is "
                f"{part if self._is_decided(transaction) else 'nothing'}",
            )

    def _done(self, mark: Mark, command: FinishTransaction, results: Iterable[Any]) -> None:
        key = command.transaction, mark.view.replica_set, command.prepared_lsn
        statements = self._intents[key].statements if key in self._intents else {}
        for number, result in enumerate(results):
            if not result.is_deleted or number not in statements:
                continue
            statement: Any = MACHINE.decode(statements[number])
            wanted = [(query, getattr(statement, name, 0)) for name, query in _HERE.items()]
            if all(mark.view.select(query, each) for query, each in wanted if each):
                self._complaints.add(
                    "E2 what is decided is done, or was deleted",
                    f"{mark.view.name} finishes {command.transaction} without statement {number}, "
                    f"{type(statement).__name__}, and nobody has deleted what that is of",
                )

    def _abort(self, mark: Mark, transaction: TransactionId, prepared_lsn: int) -> None:
        replica_set = mark.view.replica_set
        self._aborted[transaction, replica_set, prepared_lsn] = mark.view.name
        part = self._part(transaction, replica_set)
        if part is not None and part.prepared_lsn == prepared_lsn and self._is_decided(transaction):
            self._complaints.add(
                "E1 what is decided is aborted nowhere",
                f"{mark.view.name} aborts {transaction}, prepared by entry {prepared_lsn}, "
                "which is decided",
            )

    # --- what is said ---------------------------------------------------------------------------

    def told_aborted(self, mark: Mark, who: str, transaction: TransactionId) -> None:
        """Somebody is told that nothing of it was done, nor will be."""
        _, said_in = self._said.get(transaction, ("", None))
        if said_in is None or mark.key[1] < said_in:
            self._said[transaction] = who, mark.key[1]
        if self._is_decided(transaction):
            self._complain_of_said(transaction, "it is decided")

    def told_committed(self, mark: Mark, transaction: TransactionId, whom: str) -> None:
        """Somebody is told that it is decided. Of one without statements nothing is logged."""
        is_empty = whom == CLIENT and transaction not in self._decisions
        if not is_empty and not self._is_decided(transaction):
            self._complaints.add(
                "E6 committed is said once it is for good",
                f"{mark.view.name} tells {whom} that {transaction} is committed, and no majority "
                "has the decision",
            )

    def told_over(self, mark: Mark, transaction: TransactionId, participant: str) -> None:
        """A participant may forget what its statements came to."""
        if self._part(transaction, participant) is None or not self._is_decided(transaction):
            return
        if not self._is_noted(transaction, participant):
            self._complaints.add(
                "E6 what is not noted is not forgotten",
                f"{mark.view.name} lets {participant} forget {transaction}, and no majority has "
                "what its statements came to",
            )

    def _complain_of_said(self, transaction: TransactionId, what: str) -> None:
        self._complaints.add(
            "E1 what is called aborted is never decided",
            f"{self._said[transaction][0]} was told that {transaction} is aborted; {what}",
        )

    def judge(self) -> None:
        """At the end of a run."""
        for transaction in self._said:
            if self._is_decided(transaction):
                self._complain_of_said(transaction, "it is decided")
        for transaction, what in self._delivered.items():
            if self._is_decided(transaction):
                self._complain_of_delivered(what, str(transaction))

    # --- what is known --------------------------------------------------------------------------

    def _part(self, transaction: TransactionId, replica_set: str) -> Participant | None:
        decision = self._decisions.get(transaction)
        parts = decision.participants if decision is not None else ()
        return next((each for each in parts if each.replica_set == replica_set), None)

    def _is_decided(self, transaction: TransactionId) -> bool:
        """For good: a majority has the entry, in the ballot that logged it or in a later one."""
        decision = self._decisions.get(transaction)
        if decision is None:
            return False
        if not decision.is_durable:
            decision.is_durable = self._is_durable(
                transaction, decision.entries, (_DECISION, *transaction[1:])
            )
        return decision.is_durable

    def _is_noted(self, transaction: TransactionId, participant: str) -> bool:
        entries = self._decisions[transaction].noted.get(participant, [])
        query = _NOTED, *transaction[1:], participant
        return self._is_durable(transaction, entries, query) or any(
            mark.view.select(_DECISION, *transaction[1:]) is None
            and mark.view.select(_FORGOTTEN, *transaction[1:]) is not None
            for mark in self._later(transaction.replica_set, transaction.ballot)
        )

    def _is_durable(
        self, transaction: TransactionId, entries: Iterable[_Entry], query: tuple[Any, ...]
    ) -> bool:
        entries = list(entries)
        if not entries:
            return False
        if any(each.is_durable for each in entries):
            return True
        # Its leader has not heard that a majority has it; who leads since has it in its tables.
        oldest = min(each.mark.key[1] for each in entries)
        return any(
            mark.true_lsn >= mark.started_lsn and (row := mark.view.select(*query)) and row[0]
            for mark in self._later(transaction.replica_set, oldest)
        )

    def _later(self, replica_set: str, ballot: Any) -> Iterator[Mark]:
        for (name, of), mark in self._ballots.marks.items():
            if name == replica_set and of > ballot:
                yield mark

    # --- what is taken --------------------------------------------------------------------------

    def claimed(self, leadership: Any, claim: tuple[TransactionId, int], locks: list[Lock]) -> None:
        """A statement has taken these, until it is in the log or its transaction is over."""
        self._claims.setdefault(leadership, {}).setdefault(claim, []).extend(locks)

    def settled(self, leadership: Any, claim: tuple[TransactionId, int]) -> None:
        self._claims.get(leadership, {}).pop(claim, None)

    def ended(self, leadership: Any, transaction: TransactionId) -> None:
        """The log says that it is over, and its leader knows. Who has sent its statements may hear
        later that they were logged before."""
        claims = self._claims.get(leadership, {})
        for claim in [each for each in claims if each[0] == transaction]:
            del claims[claim]

    def driven(self, leadership: Any, transaction: TransactionId, locks: list[Lock]) -> None:
        """A driver has been asked for these at its own set: no table says so before it decides."""
        self._driven.setdefault(leadership, {}).setdefault(transaction, []).extend(locks)

    def answered(self, leadership: Any, transaction: TransactionId) -> None:
        self._driven.get(leadership, {}).pop(transaction, None)

    def acknowledges(
        self,
        mark: Mark,
        transaction: TransactionId,
        given: dict[int, int],
        ranges: Iterable[DeliveryRange],
    ) -> None:
        """A leader lets a transaction acknowledge records: as they were delivered last."""
        for delivery, first, last in ranges:
            for offset in range(first, last + 1):
                if given.get(offset) != delivery:
                    self._complaints.add(
                        "E7 who acknowledges was given it last",
                        f"{mark.view.name} lets {transaction} acknowledge offset {offset} of "
                        f"delivery {delivery}, it was given last in {given.get(offset)}",
                    )
                    return

    def delivered(self, mark: Mark, leadership: Any, group_id: int, first: int, last: int) -> None:
        """A member is given records."""
        row = mark.view.select(_LOCKED, DELIVERIES, group_id, last, first)
        holder = f"the one prepared by entry {row[0]}" if row is not None else ""
        for (transaction, _), locks in self._claims.get(leadership, {}).items():
            if any(_overlaps(each, group_id, first, last) for each in locks):
                holder = str(transaction)
        what = f"{mark.view.name} delivers offsets {first} to {last} of group {group_id}"
        if holder:
            self._complain_of_delivered(what, holder)
        for transaction, locks in self._driven.get(leadership, {}).items():
            if any(_overlaps(each, group_id, first, last) for each in locks):
                self._delivered.setdefault(transaction, what)

    def _complain_of_delivered(self, what: str, holder: str) -> None:
        self._complaints.add(
            "E7 what a transaction takes is delivered to nobody",
            f"{what}, of which some are to be acknowledged by {holder}",
        )


def _overlaps(lock: Lock, group_id: int, first: int, last: int) -> bool:
    return (lock.kind, lock.owner_id) == (DELIVERIES, group_id) and any(
        low <= last and first <= high for low, high in lock.ranges
    )
