"""What the driver of transactions has decided: commit records, and who has finished.

A transaction is committed by one entry, `Decide`, which also does the statements of the driver's
own replica set: all of it, or none. Of one that is aborted nothing is logged: what has no decision
was not committed (PROTOCOL E1 has when that may be said). Safety rule: a leadership decides only
what it drives itself, so nothing is decided by a copy that comes late, and none that a new leader
takes for aborted is committed afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

from hadron.model.errors import NotFoundError, RequestError
from hadron.model.ids import Ballot
from hadron.model.limits import MAX_PARTICIPANTS
from hadron.model.ports import Database
from hadron.model.tables import PREFIX
from hadron.model.transactions import (
    BLOCK_BITS,
    MAX_NUMBER,
    Note,
    Participant,
    StatementResult,
    TransactionId,
    check_id,
)
from hadron.state import together
from hadron.state.machine import Command, Context, Feature, NoChange
from hadron.state.slices import SLICE_ROWS, Dropped
from hadron.state.transactions import locks, participations

DECISION: Final = PREFIX + "decision"
DECISION_PART: Final = PREFIX + "decision_part"
DECISION_FORGOTTEN: Final = PREFIX + "decision_forgotten"
_UNFINISHED: Final = PREFIX + "decision_unfinished"

_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {DECISION}(
    id INTEGER PRIMARY KEY,             -- rises in the order of the decisions
    lsn INTEGER NOT NULL,               -- of the entry
    epoch INTEGER NOT NULL, incarnation INTEGER NOT NULL,   -- the id's, which is of this set
    number INTEGER NOT NULL,
    decided_ms INTEGER NOT NULL,
    finished_ms INTEGER,                -- by all participants; NULL until then
    results BLOB NOT NULL,              -- of the statements here: MessagePack [StatementResult …]
    total_bytes INTEGER NOT NULL,       -- of all results up to these, about: those that come yet
    UNIQUE (epoch, incarnation, number)
) STRICT;
CREATE INDEX IF NOT EXISTS {_UNFINISHED} ON {DECISION}(lsn) WHERE finished_ms IS NULL;
CREATE TABLE IF NOT EXISTS {DECISION_PART}(
    id INTEGER NOT NULL,                -- of the decision
    position INTEGER NOT NULL,
    replica_set TEXT NOT NULL,
    prepared_lsn INTEGER NOT NULL,      -- there
    count INTEGER NOT NULL,             -- of its statements
    results BLOB,                       -- NULL until it has finished
    PRIMARY KEY (id, position)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {DECISION_FORGOTTEN}(
    epoch INTEGER NOT NULL, incarnation INTEGER NOT NULL,
    block INTEGER NOT NULL,             -- of a client's numbers
    number INTEGER NOT NULL,            -- the highest that was forgotten of them; of block -1: all
    PRIMARY KEY (epoch, incarnation, block)     -- up to it may be, of whatever block
) STRICT, WITHOUT ROWID;
"""

_FIND: Final = (
    f"SELECT id, lsn, decided_ms, finished_ms, results FROM {DECISION}"
    " WHERE epoch = ? AND incarnation = ? AND number = ?"
)
_INSERT: Final = f"INSERT INTO {DECISION} VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
_LATEST: Final = f"SELECT id, total_bytes FROM {DECISION} ORDER BY id DESC LIMIT 1"
_COUNT_ABOVE: Final = f"SELECT count(*) FROM {DECISION} WHERE id > ?"
_INSERT_PART: Final = f"INSERT INTO {DECISION_PART} VALUES(?, ?, ?, ?, ?, NULL)"
_PARTS: Final = (
    f"SELECT replica_set, prepared_lsn, count, results FROM {DECISION_PART} WHERE id = ?"
    " ORDER BY position"
)
_NOTE: Final = f"UPDATE {DECISION_PART} SET results = ? WHERE id = ? AND replica_set = ?"
_PART: Final = (
    f"SELECT count, results IS NOT NULL FROM {DECISION_PART} WHERE id = ? AND replica_set = ?"
)
_FINISH: Final = (
    f"UPDATE {DECISION} SET finished_ms = ?1 WHERE id = ?2 AND NOT EXISTS"
    f" (SELECT 1 FROM {DECISION_PART} WHERE id = ?2 AND results IS NULL)"
)
_OLDEST: Final = (
    "SELECT id, epoch, incarnation, number, decided_ms, finished_ms, total_bytes"
    f" FROM {DECISION} ORDER BY id"
)
_FORGET: Final = (
    f"INSERT INTO {DECISION_FORGOTTEN} VALUES(?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
    " number = max(number, excluded.number)"
)
_DELETE: Final = f"DELETE FROM {DECISION} WHERE id = ?"
_DELETE_PARTS: Final = f"DELETE FROM {DECISION_PART} WHERE id = ?"
_WAITING: Final = (
    "SELECT id, lsn, epoch, incarnation, number, decided_ms, results"
    f" FROM {DECISION} INDEXED BY {_UNFINISHED} WHERE finished_ms IS NULL AND lsn > ?1"
    f" AND lsn <= coalesce((SELECT lsn FROM {DECISION} INDEXED BY {_UNFINISHED}"
    " WHERE finished_ms IS NULL AND lsn > ?1 ORDER BY lsn LIMIT 1 OFFSET ?2 - 1),"
    " 9223372036854775807) ORDER BY lsn, id"
)
_FORGOTTEN: Final = (
    f"SELECT 1 FROM {DECISION_FORGOTTEN} WHERE epoch = ? AND incarnation = ? AND block IN (-1, ?)"
    " AND number >= ?"
)
_BLOCKS_OVER: Final = (
    f"SELECT epoch, incarnation, block FROM {DECISION_FORGOTTEN} WHERE block >= 0"
    f" ORDER BY epoch, incarnation, block LIMIT max(0, (SELECT count(*) FROM {DECISION_FORGOTTEN}"
    " WHERE block >= 0) - ?)"
)
_DELETE_BLOCK: Final = (
    f"DELETE FROM {DECISION_FORGOTTEN} WHERE epoch = ? AND incarnation = ? AND block = ?"
)

FORGOTTEN_BLOCKS: Final = 10_000
"""Of clients, whose forgotten transactions are told apart from aborted ones; of still earlier
blocks neither is known. Counting them takes a fraction of a millisecond."""

_RESULT_BYTES: Final = 24
"""Of a statement's result, about."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[StatementResult, ...]).decode


class Decide(Command["Decided"], frozen=True, array_like=True, tag=34):
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


class NoteFinished(Command[tuple[bool, ...]], frozen=True, array_like=True, tag=35):
    """Participants have finished. Returns for each note whether all of its transaction have. Some
    may have been noted before; `NoChange` when all were. Refused, all of it: `NotFoundError`
    without a decision, `RequestError` when a participant has another number of statements."""

    uses_reserve: ClassVar[bool] = True

    notes: tuple[Note, ...]


class ForgetDecisions(Command[Dropped], frozen=True, array_like=True, tag=36):
    """Forget decisions that all participants had finished before `before_ms`, and the oldest ones
    while there are more than `max_rows`, or more than about `max_bytes` of results: one slice of
    them. Those that participants still have to finish stay. Returns `slices.Dropped`."""

    uses_reserve: ClassVar[bool] = True

    before_ms: int
    max_rows: int = MAX_NUMBER
    max_bytes: int = MAX_NUMBER


class Decided(NamedTuple):
    """A decision, as it stands.

    Attributes:
        lsn: of the entry.
        results: of the driver's own statements, in order.
        finished: what the statements of the participants that have finished came to.
        unfinished: those who still have to be told.
        noted: those who need not be, in their order.
    """

    transaction: TransactionId
    lsn: int
    decided_ms: int
    results: tuple[StatementResult, ...]
    finished: dict[str, tuple[StatementResult, ...]]
    unfinished: tuple[Participant, ...]
    noted: tuple[Participant, ...] = ()


def apply_decide(context: Context, command: Decide) -> Decided:
    transaction = command.transaction
    if not 0 <= transaction.number <= MAX_NUMBER:
        check_id(transaction)
    known = find(context.db, transaction)
    if known is not None:
        raise NoChange(known)
    _check(context, command)
    statements = [context.machine.decode(each) for each in command.statements]
    _check_statements(context, statements)
    results = tuple(_do(context, each) for each in together.with_batches(context, statements))
    decided = Decided(transaction, context.lsn, context.now_ms, results, {}, command.participants)
    keep_all(context, (decided,))
    return decided


def keep_all(context: Context, made: Sequence[Decided]) -> None:
    """Write down what this entry has decided.

    Raises `RequestError` when some of several were decided before.
    """
    db = context.db
    row = db.execute(_LATEST).fetchone()
    before, total = (0, 0) if row is None else (row[0], row[1])
    rows = []
    parts = []
    for place, each in enumerate(made, before + 1):
        results = _encode(each.results)
        total += len(results) + sum(_RESULT_BYTES * part.statements for part in each.unfinished)
        finished_ms = None if each.unfinished else each.decided_ms
        _, *key = each.transaction
        rows.append((place, each.lsn, *key, each.decided_ms, finished_ms, results, total))
        parts += [(place, position, *part) for position, part in enumerate(each.unfinished)]
    db.executemany(_INSERT, rows)
    count = sum(each for (each,) in db.execute(_COUNT_ABOVE, (before,)))
    if count != len(rows):
        raise RequestError(
            f"of {len(rows)} transactions that are to be decided together {len(rows) - count} were "
            f"decided before {context.place}"
        )
    if parts:
        db.executemany(_INSERT_PART, parts)


def check_driven_here(context: Context, transaction: TransactionId, ballot: Ballot) -> None:
    """Raises `RequestError` for what this leadership may not decide."""
    is_own = transaction.replica_set == context.replica_set or not context.replica_set
    if not is_own or ballot != context.ballot:
        raise RequestError(
            f"transaction {transaction} is not driven by the leadership {context.ballot} "
            f"{context.place}",
            "it was not committed: begin it anew",
        )


def _check(context: Context, command: Decide) -> None:
    """Raises `RequestError` for what this leadership may not decide."""
    transaction = command.transaction
    check_driven_here(context, transaction, transaction.ballot)
    check_parts(context, transaction, command.participants, has_statements=bool(command.statements))


def check_parts(
    context: Context,
    transaction: TransactionId,
    participants: Sequence[Participant],
    *,
    has_statements: bool,
) -> None:
    """Raises `RequestError` for participants that do not fit the statements here."""
    if not participants:
        if not has_statements:
            raise RequestError(f"transaction {transaction} has no statement")
        return
    names = {each.replica_set for each in participants}
    if len(names) != len(participants) or (has_statements and context.replica_set in names):
        raise RequestError(
            f"transaction {transaction} names a participant twice, or {context.replica_set} for "
            "statements that it has prepared and for others"
        )
    if len(names) > MAX_PARTICIPANTS:
        raise RequestError(
            f"transaction {transaction} is prepared at {len(names)} replica sets; the "
            f"limit is {MAX_PARTICIPANTS}"
        )


def _check_statements(context: Context, statements: list[Command]) -> None:
    """All of them before any is done, as if they had been prepared."""
    rows = sum(each.rows for each in statements)
    participations.check_limits(
        "a transaction", len(statements), together.size_of(statements), rows
    )
    for each in statements:
        statement = context.machine.statement(each)
        statement.check(context, each)
        for lock in statement.locks(each):
            locks.check_free(context, lock)
        statement.hold(context, each, None)
    locks.check_once(context.machine.statement(each).locks(each) for each in statements)


def _do(context: Context, command: Command) -> StatementResult:
    result = context.machine.apply_statement(context, command)
    if result.is_deleted:
        raise RequestError(
            f"{type(command).__name__} cannot be done: another statement of the same transaction "
            "has done it",
            "end each stage of an instance once",
        )
    return result


def apply_note_finished(context: Context, command: NoteFinished) -> tuple[bool, ...]:
    db = context.db
    is_new = False
    are_over: list[bool] = []
    for transaction, participant, results in command.notes:
        row = db.execute(_FIND, transaction[1:]).fetchone()
        if row is None:
            raise NotFoundError(f"transaction {transaction} was not decided {context.place}")
        decision_id, lsn, _, finished_ms, _ = row
        is_over = finished_ms is not None
        part = db.execute(_PART, (decision_id, participant)).fetchone()
        if part is None or part[0] != len(results):
            raise RequestError(
                f"transaction {transaction} has no {len(results)} statements on {participant}"
            )
        if not part[1]:
            is_new = True
            db.execute(_NOTE, (_encode(results), decision_id, participant))
            context.machine.finish(context, lsn, participant, results)
            db.execute(_FINISH, (context.now_ms, decision_id))
            is_over = db.changes() > 0
        are_over.append(is_over)
    if not is_new:
        raise NoChange(tuple(are_over))
    return tuple(are_over)


def apply_forget_decisions(context: Context, command: ForgetDecisions) -> Dropped:
    db = context.db
    latest = db.execute(_LATEST).fetchone()
    if latest is None:
        raise NoChange(Dropped(0, is_done=True))
    # Of a row over a bound all older ones are, too.
    over_id, over_bytes = latest[0] - command.max_rows, latest[1] - command.max_bytes
    gone: list[tuple[int]] = []
    highest: dict[tuple[int, int, int], int] = {}
    is_done = True
    for place, *key, decided_ms, finished_ms, total_bytes in db.execute(_OLDEST):
        is_over = place <= over_id or total_bytes <= over_bytes
        # Stamps never go back (PROTOCOL B8). Few that were decided before then finished later:
        # there is a bound for what waits.
        if decided_ms >= command.before_ms and not is_over:
            break
        if len(gone) == SLICE_ROWS:
            is_done = False
            break
        if finished_ms is not None and (is_over or finished_ms < command.before_ms):
            gone.append((place,))
            epoch, incarnation, number = key
            block = epoch, incarnation, number >> BLOCK_BITS
            highest[block] = max(number, highest.get(block, 0))
    if not gone:
        raise NoChange(Dropped(0, is_done=True))
    db.executemany(_FORGET, [(*block, number) for block, number in highest.items()])
    db.executemany(_DELETE_PARTS, gone)
    db.executemany(_DELETE, gone)
    for epoch, incarnation, block in db.execute(_BLOCKS_OVER, (FORGOTTEN_BLOCKS,)).fetchall():
        db.execute(_DELETE_BLOCK, (epoch, incarnation, block))
        db.execute(_FORGET, (epoch, incarnation, -1, ((block + 1) << BLOCK_BITS) - 1))
    return Dropped(len(gone), is_done=is_done)


FEATURE: Final = Feature(
    name="decisions",
    tables=_TABLES,
    commands={
        Decide: apply_decide,
        NoteFinished: apply_note_finished,
        ForgetDecisions: apply_forget_decisions,
    },
)


# --- reading ------------------------------------------------------------------------------------


def find(db: Database, transaction: TransactionId) -> Decided | None:
    """None of what was not decided, or was forgotten; `is_forgotten` tells which it may be. The
    transaction must be of this replica set."""
    row = db.execute(_FIND, transaction[1:]).fetchone()
    return None if row is None else _decided(db, transaction, row[0], row[1], row[2], row[4])


def is_forgotten(db: Database, transaction: TransactionId) -> bool:
    """Whether it may have been decided, and forgotten since: its outcome is not known any more."""
    key = transaction.epoch, transaction.incarnation, transaction.block, transaction.number
    return db.execute(_FORGOTTEN, key).fetchone() is not None


def unfinished(db: Database, replica_set: str, *, after_lsn: int, limit: int) -> list[Decided]:
    """Decisions with participants that have not finished, in the order in which they were made: so
    many, and what the last one's entry has decided besides."""
    rows = db.execute(_WAITING, (after_lsn, limit)).fetchall()
    return [
        _decided(db, TransactionId(replica_set, *row[2:5]), row[0], row[1], row[5], row[6])
        for row in rows
    ]


def _decided(
    db: Database,
    transaction: TransactionId,
    decision_id: int,
    lsn: int,
    decided_ms: int,
    results: bytes,
) -> Decided:
    finished: dict[str, tuple[StatementResult, ...]] = {}
    waiting: list[Participant] = []
    noted: list[Participant] = []
    rows: list[Any] = db.execute(_PARTS, (decision_id,)).fetchall()
    for replica_set, prepared_lsn, count, done in rows:
        (waiting if done is None else noted).append(Participant(replica_set, prepared_lsn, count))
        if done is not None:
            finished[replica_set] = _decode(done)
    return Decided(
        transaction, lsn, decided_ms, _decode(results), finished, tuple(waiting), tuple(noted)
    )
