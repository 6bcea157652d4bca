"""Intents: statements of transactions, prepared here (PROTOCOL E2): of those that are driven
elsewhere, and of those that are driven here and are too much for the deciding entry.

A statement is an encoded command of a type that may be one (`machine.Statement`). Preparing checks
all that could refuse it, locks what nobody else may end meanwhile, and keeps its bytes: an intent
is in no stream, so nobody reads it. Finishing does the statements, in order, in one entry; it is
never refused, and gives offsets only then. Safety rule: what was prepared stays until the driver
has said how it ended; what was finished is known until the driver says `ForgetTransactions`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

from hadron.model.errors import NotFoundError, RequestError
from hadron.model.limits import MAX_SET_STATEMENTS
from hadron.model.ports import Database
from hadron.model.tables import PREFIX
from hadron.model.transactions import Lock, StatementResult, TransactionId, check_id
from hadron.state import bodies, leadership, together
from hadron.state.machine import Command, Context, Feature, NoChange
from hadron.state.transactions import key_locks, locks, participations
from hadron.state.transactions.events import IntentsWritten, TransactionAborted, TransactionFinished
from hadron.state.transactions.participations import Participation

INTENT: Final = PREFIX + "intent"

_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {INTENT}(
    lsn INTEGER PRIMARY KEY,            -- of the entry that brought them
    prepared_lsn INTEGER NOT NULL,      -- of the transaction
    first_number INTEGER NOT NULL,      -- of the first of these statements
    count INTEGER NOT NULL,
    bytes INTEGER NOT NULL,             -- of its body, which is held; 0 where there is none
    statements BLOB NOT NULL,           -- MessagePack: the commands, as they are logged
    UNIQUE (prepared_lsn, first_number)
) STRICT;
"""

_INSERT: Final = f"INSERT INTO {INTENT} VALUES(?, ?, ?, ?, ?, ?)"
_BELOW: Final = (
    f"SELECT first_number, count, statements FROM {INTENT}"
    " WHERE prepared_lsn = ? AND first_number < ? ORDER BY first_number DESC LIMIT 1"
)
_ALL: Final = (
    f"SELECT first_number, count, lsn, bytes, statements FROM {INTENT} WHERE prepared_lsn = ?"
    " ORDER BY first_number"
)
_BODIES: Final = f"SELECT lsn FROM {INTENT} WHERE prepared_lsn = ? AND bytes > 0 ORDER BY lsn"
_DELETE: Final = f"DELETE FROM {INTENT} WHERE prepared_lsn = ?"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[bytes, ...]).decode


class WriteIntents(Command["Prepared"], frozen=True, array_like=True, tag=30):
    """Prepare statements of a transaction; the entry's body is their batches. Returns `Prepared`.
    Sent again, as the same bytes under the same numbers: `NoChange`, also once it was finished.

    Refused: what a statement's own check refuses; `ConflictError`, retryable, with the id of the
    transaction that holds what one wants; `RequestError` over the limits, for commands that are no
    statements, and for other statements under known numbers.

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


class FinishTransaction(Command[tuple[StatementResult, ...]], frozen=True, array_like=True, tag=31):
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


class AbortTransaction(Command[None], frozen=True, array_like=True, tag=32):
    """The transaction was not decided, and never will be: its intents and locks go. `NoChange` when
    nothing is known of it, `RequestError` when it was finished."""

    uses_reserve: ClassVar[bool] = True

    transaction: TransactionId


class ForgetTransactions(Command[tuple[TransactionId, ...]], frozen=True, array_like=True, tag=33):
    """The driver has noted what the finished statements came to. Returns those that are not
    finished here, which are left alone; of others nothing may be known any more. `NoChange` when
    that is so of all that are left."""

    uses_reserve: ClassVar[bool] = True

    transactions: tuple[TransactionId, ...]


class Prepared(NamedTuple):
    """What is here of a transaction; for the driver's `Participant`.

    Attributes:
        prepared_lsn: of the entry with the transaction's first intent.
        statements: how many it has here so far.
    """

    prepared_lsn: int
    statements: int


def apply_write_intents(context: Context, command: WriteIntents) -> Prepared:
    check_id(command.transaction)
    known = participations.find(context.db, command.transaction)
    _check_numbers(context, command, known)
    statements = [context.machine.decode(each) for each in command.statements]
    size, rows = together.size_of(statements), sum(each.rows for each in statements)
    _check_limits(command, size, rows, known)
    prepared_lsn, count = context.lsn, len(statements)
    if known is None:
        participations.begin(context, command.transaction, count, size, rows)
    else:
        prepared_lsn = known.prepared_lsn
        count = participations.grow(context, prepared_lsn, count, size, rows)
    taken: list[Lock] = []
    for each in statements:
        leadership.check_rules(context, each)
        statement = context.machine.statement(each)
        statement.check(context, each)
        for lock in statement.locks(each):
            locks.take(context, prepared_lsn, lock)
            taken.append(lock)
        statement.hold(context, each, prepared_lsn)
    if size:
        bodies.hold(context, size)
    context.db.execute(
        _INSERT,
        (
            context.lsn,
            prepared_lsn,
            command.first_number,
            len(statements),
            size,
            _encode(command.statements),
        ),
    )
    context.emit(IntentsWritten(command.transaction, tuple(taken)))
    return Prepared(prepared_lsn, count)


def _check_numbers(context: Context, command: WriteIntents, known: Participation | None) -> None:
    """Raises `NoChange` when these statements are here, `RequestError` when some others are where
    they belong, or none can be."""
    transaction, first, count = command.transaction, command.first_number, len(command.statements)
    if not count or not 0 <= first <= MAX_SET_STATEMENTS - count:
        raise RequestError(
            f"{count} statements from number {first} on cannot be of transaction {transaction}",
            f"number them from 0 to {MAX_SET_STATEMENTS - 1}, one at least",
        )
    if known is None:
        return
    prepared = Prepared(known.prepared_lsn, known.statements)
    if known.is_finished and first + count <= known.statements:
        raise NoChange(prepared)
    row = context.db.execute(_BELOW, (known.prepared_lsn, first + count)).fetchone()
    if row is not None and row == (first, count, _encode(command.statements)):
        raise NoChange(prepared)
    if known.is_finished or (row is not None and row[0] + row[1] > first):
        raise RequestError(
            f"transaction {transaction} has other statements than these under numbers {first} to "
            f"{first + count - 1}, or was finished without them",
            "a statement that is sent again is sent as it was; a new one has a new number",
        )


def _check_limits(command: WriteIntents, size: int, rows: int, known: Participation | None) -> None:
    count = len(command.statements)
    if known is not None:
        count, size, rows = count + known.statements, size + known.size, rows + known.rows
    participations.check_limits(f"transaction {command.transaction}", count, size, rows)


def apply_finish_transaction(
    context: Context, command: FinishTransaction
) -> tuple[StatementResult, ...]:
    known = participations.find(context.db, command.transaction)
    if known is None:
        raise NotFoundError(
            f"nothing is known {context.place} of transaction {command.transaction}"
        )
    lsn = known.prepared_lsn
    if (lsn, known.statements) != (command.prepared_lsn, command.count):
        raise RequestError(
            f"transaction {command.transaction} has {known.statements} statements {context.place}, "
            f"the first one of entry {lsn}; its driver has prepared {command.count}, the first one "
            f"of entry {command.prepared_lsn}",
            "these are copies that came late: its driver says what becomes of them",
        )
    if known.is_finished:
        raise NoChange(participations.results(context.db, command.transaction))
    intents = context.db.execute(_ALL, (lsn,)).fetchall()
    end = intents[-1][0] + intents[-1][1] if intents else 0
    if end != command.count:
        raise RequestError(
            f"of the {command.count} statements of transaction {command.transaction}, numbers from "
            f"0 on, one has number {end - 1}"
        )
    freed = locks.release(context, lsn)
    key_locks.release(context, lsn)
    results = tuple(_do(context, intents))
    context.db.execute(_DELETE, (lsn,))
    participations.finish(context, lsn, results)
    context.emit(TransactionFinished(command.transaction, freed))
    return results


def _do(context: Context, intents: Sequence[tuple[Any, ...]]) -> Iterator[StatementResult]:
    """Do the statements of each intent, whose bytes came with an entry before this one."""
    machine = context.machine
    for _, _, body_lsn, size, packed in intents:
        context.body_lsn, context.start = body_lsn, 0
        for _, alike in groupby(map(machine.decode, _decode(packed)), type):
            commands = list(alike)
            statement = machine.statement(commands[0])
            if statement.apply_all is not None:
                yield from statement.apply_all(context, commands)
                context.start += together.size_of(commands)
                continue
            for each in commands:
                yield statement.apply(context, each)
                context.start += together.size_of([each])
        if size:
            bodies.release(context, body_lsn)
    context.body_lsn = context.start = None


def apply_abort_transaction(context: Context, command: AbortTransaction) -> None:
    known = participations.find(context.db, command.transaction)
    if known is None:
        raise NoChange(result=None)
    if known.is_finished:
        raise RequestError(f"transaction {command.transaction} was committed, and is finished here")
    freed = locks.release(context, known.prepared_lsn)
    key_locks.release(context, known.prepared_lsn)
    for (body_lsn,) in context.db.execute(_BODIES, (known.prepared_lsn,)).fetchall():
        bodies.release(context, body_lsn)
    context.db.execute(_DELETE, (known.prepared_lsn,))
    participations.forget(context, known.prepared_lsn)
    context.emit(TransactionAborted(command.transaction, freed))


def apply_forget_transactions(
    context: Context, command: ForgetTransactions
) -> tuple[TransactionId, ...]:
    unfinished: list[TransactionId] = []
    is_new = False
    for transaction in command.transactions:
        if participations.forget_finished(context, transaction):
            is_new = True
        elif participations.find(context.db, transaction) is not None:
            unfinished.append(transaction)
    if not is_new:
        raise NoChange(tuple(unfinished))
    return tuple(unfinished)


FEATURE: Final = Feature(
    name="intents",
    tables=_TABLES,
    commands={
        WriteIntents: apply_write_intents,
        FinishTransaction: apply_finish_transaction,
        AbortTransaction: apply_abort_transaction,
        ForgetTransactions: apply_forget_transactions,
    },
)


# --- reading ------------------------------------------------------------------------------------


def prepared(
    db: Database, transaction: TransactionId, first_number: int, count: int
) -> Prepared | None:
    """What `WriteIntents` answers for statements that are here, or were, under these numbers; None
    when they are not, or are others."""
    known = participations.find(db, transaction)
    if known is None or first_number + count > MAX_SET_STATEMENTS:
        return None
    if not known.is_finished or first_number + count > known.statements:
        row = db.execute(_BELOW, (known.prepared_lsn, first_number + 1)).fetchone()
        if row is None or row[:2] != (first_number, count):
            return None
    return Prepared(known.prepared_lsn, known.statements)


def statements(
    db: Database, prepared_lsn: int, *, after: int, limit: int
) -> list[tuple[int, bytes]]:
    """Of a transaction that is prepared here: numbers and encoded commands, from behind number
    `after` on; for people."""
    found: list[tuple[int, bytes]] = []
    for first, _, _, _, packed in db.execute(_ALL, (prepared_lsn,)):
        found += [(n, data) for n, data in enumerate(_decode(packed), first) if n > after]
        if len(found) >= limit:
            break
    return found[:limit]
