"""Intents: statements of transactions that are driven elsewhere, prepared here (PROTOCOL E2).

A statement is an encoded command of a type that may be one (`machine.Statement`). Preparing checks
all that could refuse it, locks what nobody else may end meanwhile, and keeps its bytes: an intent
is in no stream, so nobody reads it. Finishing does the statements, in order, in one entry; it is
never refused, and gives offsets only then. Safety rule: what was prepared stays until the driver
has said how it ended; what was finished is known until the driver says `ForgetTransaction`.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from hadron.model.ports import Database
from hadron.model.transactions import StatementResult, TransactionId
from hadron.state.machine import Command


class WriteIntents(Command, frozen=True, array_like=True, tag=30):
    """Prepare statements of a transaction; the entry's body is their batches. Returns `Prepared`.
    Sent again, as the same bytes under the same numbers: `NoChange`, also once it was finished.

    Refused: what a statement's own check refuses; `ConflictError`, retryable, with the id of the
    transaction that holds what one wants; `RequestError` over the limits, for commands that are no
    statements, for other statements under known numbers, and on the driver's own set.

    Attributes:
        first_number: of the first statement: those of a transaction at this participant are
            numbered from 0. They may come in any order.
        statements: encoded commands.
    """

    transaction: TransactionId
    first_number: int
    statements: tuple[bytes, ...]

    @property
    def joined(self) -> tuple[bytes, ...]:
        return self.statements


class FinishTransaction(Command, frozen=True, array_like=True, tag=31):
    """The transaction was decided: do its statements here, in the order of their numbers. Returns
    `tuple[StatementResult, ...]`; done before: `NoChange` with the same.

    `NotFoundError` when nothing is known of it (any more), `RequestError` when what is here is not
    what the driver has prepared: it is left alone, the driver says what becomes of it.

    Attributes:
        prepared_lsn: as `Prepared` has it.
        count: of the statements here.
    """

    uses_reserve: ClassVar[bool] = True

    transaction: TransactionId
    prepared_lsn: int
    count: int


class AbortTransaction(Command, frozen=True, array_like=True, tag=32):
    """The transaction was not decided, and never will be: its intents and locks go. `NoChange` when
    nothing is known of it, `RequestError` when it was finished."""

    uses_reserve: ClassVar[bool] = True

    transaction: TransactionId


class ForgetTransaction(Command, frozen=True, array_like=True, tag=33):
    """The driver has noted what the finished statements came to. `NoChange` when nothing is known
    of it, `RequestError` when it was not finished."""

    uses_reserve: ClassVar[bool] = True

    transaction: TransactionId


class Prepared(NamedTuple):
    """What is here of a transaction; for the driver's `Participant`.

    Attributes:
        prepared_lsn: of the entry with the transaction's first intent.
        count: of its statements here so far.
    """

    prepared_lsn: int
    count: int


# --- reading ------------------------------------------------------------------------------------


class Held(NamedTuple):
    """A transaction that this replica set takes part in.

    Attributes:
        results: None until it was finished.
        since_ms: its first intent's, or when it was finished.
    """

    transaction: TransactionId
    prepared_lsn: int
    count: int
    since_ms: int
    results: tuple[StatementResult, ...] | None


def find(db: Database, transaction: TransactionId) -> Held | None:
    raise NotImplementedError


def held(db: Database, *, before_ms: int, after_lsn: int, limit: int) -> list[Held]:
    """Transactions that were prepared, or finished, before then and are not over, by `prepared_lsn`
    from behind `after_lsn` on: whose drivers are to be asked."""
    raise NotImplementedError
