"""What the driver of transactions has decided: commit records, and who has finished.

A transaction is committed by one entry, `Decide`, which also does the statements of the driver's
own replica set: all of it, or none. Of one that is aborted nothing is logged: what has no decision
was not committed (PROTOCOL E1 has when that may be said). Safety rule: a leadership decides only
what it drives itself, so nothing is decided by a copy that comes late, and none that a new leader
takes for aborted is committed afterwards.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from hadron.model.ports import Database
from hadron.model.transactions import Participant, StatementResult, TransactionId
from hadron.state.machine import Command


class Decide(Command, frozen=True, array_like=True, tag=34):
    """The transaction is committed: its intents at the participants will be done, and these
    statements of the driver's own set are done in this entry, all or none. The entry's body is
    their batches. Returns `Decided`; decided before: `NoChange` with what was kept.

    Refused, in which case nothing was decided, when one of the statements is; when the transaction
    is not of this replica set and this ballot (`RequestError`).

    Attributes:
        statements: encoded commands, as in `WriteIntents`.
    """

    transaction: TransactionId
    participants: tuple[Participant, ...]
    statements: tuple[bytes, ...]

    @property
    def joined(self) -> tuple[bytes, ...]:
        return self.statements


class NoteFinished(Command, frozen=True, array_like=True, tag=35):
    """A participant has finished; what its statements came to, in their order. Returns whether all
    have. `NoChange` when it was noted before; `NotFoundError` without the decision."""

    uses_reserve: ClassVar[bool] = True

    transaction: TransactionId
    participant: str
    results: tuple[StatementResult, ...]


class ForgetDecisions(Command, frozen=True, array_like=True, tag=36):
    """Forget decisions that all participants had finished before `before_ms`: one slice of them.
    Returns `slices.Dropped`."""

    uses_reserve: ClassVar[bool] = True

    before_ms: int


class Decided(NamedTuple):
    """A decision, as it stands.

    Attributes:
        results: of the driver's own statements, in order.
        finished: of the participants that have finished, in their order.
        unfinished: those who still have to be told.
    """

    transaction: TransactionId
    decided_ms: int
    results: tuple[StatementResult, ...]
    finished: dict[str, tuple[StatementResult, ...]]
    unfinished: tuple[Participant, ...]


# --- reading ------------------------------------------------------------------------------------


def find(db: Database, transaction: TransactionId) -> Decided | None:
    """None of what was not decided, or was forgotten; `is_forgotten` tells which it may be. The
    transaction must be of this replica set."""
    raise NotImplementedError


def is_forgotten(db: Database, transaction: TransactionId) -> bool:
    """Whether it may have been decided, and forgotten since: its outcome is not known any more."""
    raise NotImplementedError


def unfinished(db: Database, replica_set: str, *, after_lsn: int, limit: int) -> list[Decided]:
    """Decisions with participants that have not finished, in the order in which they were made."""
    raise NotImplementedError
