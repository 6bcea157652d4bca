"""Transactions that this replica set takes part in, and another one drives: a row each, from the
first intent until the driver has noted how they ended here."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from hadron.model.errors import RequestError
from hadron.model.limits import MAX_SET_ROWS, MAX_SET_STATEMENTS, MAX_TRANSACTION_BYTES
from hadron.model.ports import Database
from hadron.model.tables import PREFIX
from hadron.model.transactions import StatementResult, TransactionId
from hadron.state.machine import Context, Feature

PARTICIPATION: Final = PREFIX + "participation"

_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {PARTICIPATION}(
    prepared_lsn INTEGER PRIMARY KEY,   -- of the entry with the first intent
    replica_set TEXT NOT NULL,          -- the driver's; with what follows it is the id
    epoch INTEGER NOT NULL, incarnation INTEGER NOT NULL,
    number INTEGER NOT NULL,
    statements INTEGER NOT NULL,        -- how many are here
    bytes INTEGER NOT NULL,             -- of their batches
    changes INTEGER NOT NULL,           -- rows of tables that they will change, about
    since_ms INTEGER NOT NULL,          -- of the first intent; of the finish, once finished
    results BLOB,                       -- MessagePack [StatementResult …]; NULL until finished
    UNIQUE (replica_set, epoch, incarnation, number)
) STRICT;
"""

_COLUMNS: Final = (
    "prepared_lsn, replica_set, epoch, incarnation, number, statements, bytes, changes, since_ms,"
    " results"
)
_INSERT: Final = f"INSERT INTO {PARTICIPATION} VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)"
_GROW: Final = (
    f"UPDATE {PARTICIPATION} SET statements = statements + ?, bytes = bytes + ?,"
    " changes = changes + ? WHERE prepared_lsn = ? RETURNING statements"
)
_FINISH: Final = f"UPDATE {PARTICIPATION} SET results = ?, since_ms = ? WHERE prepared_lsn = ?"
_DELETE: Final = f"DELETE FROM {PARTICIPATION} WHERE prepared_lsn = ?"
_DELETE_FINISHED: Final = (
    f"DELETE FROM {PARTICIPATION} WHERE replica_set = ? AND epoch = ? AND incarnation = ?"
    " AND number = ? AND results IS NOT NULL"
)
_FIND: Final = (
    f"SELECT {_COLUMNS} FROM {PARTICIPATION}"
    " WHERE replica_set = ? AND epoch = ? AND incarnation = ? AND number = ?"
)
_NAME_OF: Final = (
    f"SELECT replica_set, epoch, incarnation, number FROM {PARTICIPATION} WHERE prepared_lsn = ?"
)
_HELD: Final = (
    f"SELECT {_COLUMNS.removesuffix('results')} results IS NOT NULL FROM {PARTICIPATION}"
    " WHERE prepared_lsn > ? ORDER BY prepared_lsn LIMIT ?"
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[StatementResult, ...]).decode


class Participation(NamedTuple):
    """A transaction here.

    Attributes:
        prepared_lsn: of the entry with its first intent.
        statements: how many it has here.
        size: bytes of their batches.
        rows: that they will change, about.
        since_ms: its first intent's; once it is finished, of that.
        is_finished: its statements are done, and the driver may not know it yet.
    """

    transaction: TransactionId
    prepared_lsn: int
    statements: int
    size: int
    rows: int
    since_ms: int
    is_finished: bool


def check_limits(transaction: str, count: int, size: int, rows: int) -> None:
    """Raises `RequestError` for more statements, bytes or rows than one entry may do: whoever wants
    something of the replica set waits for it (PROTOCOL F3)."""
    if count > MAX_SET_STATEMENTS or size > MAX_TRANSACTION_BYTES or rows > MAX_SET_ROWS:
        raise RequestError(
            f"{transaction} would have {count} statements here, with {size} bytes, which change "
            f"{rows} rows (keys of an index, ranges, instances); the limits are "
            f"{MAX_SET_STATEMENTS}, {MAX_TRANSACTION_BYTES} and {MAX_SET_ROWS}",
            "commit more often",
        )


def begin(
    context: Context, transaction: TransactionId, statements: int, size: int, rows: int
) -> None:
    """This entry has its first intent."""
    counts = statements, size, rows
    context.db.execute(_INSERT, (context.lsn, *transaction, *counts, context.now_ms))


def grow(context: Context, prepared_lsn: int, statements: int, size: int, rows: int) -> int:
    """Returns how many statements it has now."""
    row = context.db.execute(_GROW, (statements, size, rows, prepared_lsn)).fetchone()
    assert row is not None, prepared_lsn
    count: int = row[0]
    return count


def finish(context: Context, prepared_lsn: int, results: tuple[StatementResult, ...]) -> None:
    context.db.execute(_FINISH, (_encode(results), context.now_ms, prepared_lsn))


def forget(context: Context, prepared_lsn: int) -> None:
    context.db.execute(_DELETE, (prepared_lsn,))


def forget_finished(context: Context, transaction: TransactionId) -> bool:
    """Whether it was finished here, and known until now."""
    context.db.execute(_DELETE_FINISHED, transaction)
    return context.db.changes() > 0


FEATURE: Final = Feature(name="participations", tables=_TABLES)


# --- reading ------------------------------------------------------------------------------------


def find(db: Database, transaction: TransactionId) -> Participation | None:
    """None of what never came here, was aborted, or was forgotten."""
    row = db.execute(_FIND, transaction).fetchone()
    return None if row is None else _participation((*row[:9], row[9] is not None))


def results(db: Database, transaction: TransactionId) -> tuple[StatementResult, ...] | None:
    """What its statements here came to, in order; None before it was finished, and of what is not
    known."""
    row = db.execute(_FIND, transaction).fetchone()
    return None if row is None or row[9] is None else _decode(row[9])


def name_of(db: Database, prepared_lsn: int) -> TransactionId:
    row = db.execute(_NAME_OF, (prepared_lsn,)).fetchone()
    assert row is not None, prepared_lsn
    return TransactionId(*row)


def held(db: Database, *, after_lsn: int, limit: int) -> list[Participation]:
    """Transactions that were prepared, or finished, and are not over, by `prepared_lsn` from behind
    `after_lsn` on: whose drivers are to be asked."""
    return [_participation(row) for row in db.execute(_HELD, (after_lsn, limit))]


def _participation(row: tuple[Any, ...]) -> Participation:
    lsn, replica_set, epoch, incarnation, number, count, size, rows, since_ms, is_finished = row
    transaction = TransactionId(replica_set, epoch, incarnation, number)
    return Participation(transaction, lsn, count, size, rows, since_ms, bool(is_finished))
