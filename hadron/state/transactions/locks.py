"""Locks of transactions: deliveries and stages that nobody else may end until they are over.

Safety rule: nobody waits for a lock. Whoever wants what another has is refused at once and told
whose it is, so there is no deadlock (PROTOCOL E2). Locks of one kind never overlap.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, pairwise
from typing import Final, NamedTuple

from hadron.model.errors import ConflictError, RequestError
from hadron.model.ports import Database
from hadron.model.ranges import Range
from hadron.model.tables import PREFIX
from hadron.model.transactions import DELIVERIES, STAGES, Lock, TransactionId
from hadron.state.machine import Context, Feature
from hadron.state.transactions import participations
from hadron.state.transactions.participations import PARTICIPATION

LOCK: Final = PREFIX + "lock"

_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {LOCK}(
    kind TEXT NOT NULL,                 -- group (deliveries of one), stage, staged, sink
    owner_id INTEGER NOT NULL,          -- the group's, the pipeline's
    name TEXT NOT NULL,                 -- the stage's
    first INTEGER NOT NULL,             -- offsets, or ids of instances, both ends inclusive;
    last INTEGER NOT NULL,              -- ranges do not overlap
    prepared_lsn INTEGER NOT NULL,      -- of the transaction that has them
    PRIMARY KEY (kind, owner_id, name, first)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {LOCK}_by_transaction ON {LOCK}(prepared_lsn);
"""

_OF: Final = "kind = ? AND owner_id = ? AND name = ?"
_ANY: Final = f"SELECT 1 FROM {LOCK} WHERE {_OF} LIMIT 1"
_WITHIN: Final = (
    f"SELECT first, last, prepared_lsn FROM {LOCK} WHERE {_OF} AND first <= ? AND last >= ?"
    f" AND first >= coalesce((SELECT max(first) FROM {LOCK} WHERE {_OF} AND first <= ?), 0)"
    " ORDER BY first"
)
_INSERT: Final = f"INSERT INTO {LOCK} VALUES(?, ?, ?, ?, ?, ?)"
_HAS: Final = (
    f"SELECT kind, owner_id, name, first, last FROM {LOCK} WHERE prepared_lsn = ?"
    " ORDER BY kind, owner_id, name, first"
)
_RELEASE: Final = f"DELETE FROM {LOCK} WHERE prepared_lsn = ?"
_ALL: Final = (
    "SELECT l.kind, l.owner_id, l.name, l.first, l.last, p.replica_set, p.epoch, p.incarnation,"
    f" p.number, p.since_ms FROM {LOCK} l JOIN {PARTICIPATION} p USING (prepared_lsn)"
    " ORDER BY l.kind, l.owner_id, l.name, l.first"
)


def check_free(context: Context, lock: Lock) -> None:
    """Raises `ConflictError` when a transaction that is prepared here has some of it."""
    key = lock.kind, lock.owner_id, lock.name
    if not lock.ranges or context.db.execute(_ANY, key).fetchone() is None:
        return
    for wanted in lock.ranges:
        for first, last, prepared_lsn in _within(context.db, lock, wanted):
            raise _conflict(context.db, lock, (first, last), prepared_lsn)


def take(context: Context, prepared_lsn: int, lock: Lock) -> None:
    """Give it to a transaction that is prepared here, with its other statements' locks. What is
    acknowledged twice is acknowledged once; all else has one end.

    Raises `ConflictError` when another has some of it, `RequestError` for what the transaction ends
    already, other than deliveries.
    """
    for wanted in lock.ranges:
        free, last_wanted = wanted
        for first, last, owner in _within(context.db, lock, wanted):
            if owner != prepared_lsn:
                raise _conflict(context.db, lock, (first, last), owner)
            if lock.kind != DELIVERIES:
                raise _twice(lock, (first, last))
            if free < first:
                context.db.execute(_INSERT, (*lock[:3], free, first - 1, prepared_lsn))
            free = last + 1
        if free <= last_wanted:
            context.db.execute(_INSERT, (*lock[:3], free, last_wanted, prepared_lsn))


def check_once(statements: Iterable[Iterable[Lock]]) -> None:
    """What `take` refuses to a transaction that is prepared, of one that is done in this entry: its
    statements are checked before any is done, so none of them sees what another does.

    Raises `RequestError`.
    """
    taken: dict[tuple[str, int, str], list[Range]] = {}
    for lock in chain.from_iterable(statements):
        if lock.kind != DELIVERIES:
            taken.setdefault(lock[:3], []).extend(lock.ranges)
    for key, ranges in taken.items():
        for (_, last), (first, end) in pairwise(sorted(ranges)):
            if first <= last:
                raise _twice(Lock(*key, ()), (first, min(last, end)))


def release(context: Context, prepared_lsn: int) -> tuple[Lock, ...]:
    """The transaction is over here; returns what it had."""
    found: dict[tuple[str, int, str], list[Range]] = {}
    for kind, owner_id, name, first, last in context.db.execute(_HAS, (prepared_lsn,)):
        found.setdefault((kind, owner_id, name), []).append((first, last))
    if found:
        context.db.execute(_RELEASE, (prepared_lsn,))
    return tuple(Lock(*key, tuple(ranges)) for key, ranges in found.items())


def deliveries(group_id: int, ranges: tuple[Range, ...]) -> Lock:
    """Of a group's offsets."""
    return Lock(DELIVERIES, group_id, "", ranges)


def _within(db: Database, lock: Lock, wanted: Range) -> list[tuple[int, int, int]]:
    key, (first, last) = lock[:3], wanted
    return db.execute(_WITHIN, (*key, last, first, *key, first)).fetchall()


def _conflict(db: Database, lock: Lock, found: Range, prepared_lsn: int) -> ConflictError:
    return conflict(participations.name_of(db, prepared_lsn), lock, found)


def _twice(lock: Lock, found: Range) -> RequestError:
    return RequestError(
        f"the transaction ends {_label(lock, found)} with another statement already",
        "end each once",
    )


def conflict(transaction: TransactionId, lock: Lock, found: Range) -> ConflictError:
    """What `lock` wants of `found` the transaction has."""
    return ConflictError(
        f"transaction {transaction} holds {_label(lock, found)}",
        f"{over_when(transaction)}, or leave it to that one",
    )


def over_when(transaction: TransactionId) -> str:
    """When who was refused what it holds may try again: for a hint. While its driver is away that
    may be long."""
    return (
        f"it ends when its driver {transaction.replica_set} has decided, see `hadron tx show "
        f"{transaction}`: try again then"
    )


def _label(lock: Lock, found: Range) -> str:
    first, last = found
    span = str(first) if first == last else f"{first} to {last}"
    if lock.kind == DELIVERIES:
        return f"offsets {span} of consumer group {lock.owner_id}"
    if lock.kind == STAGES:
        return f"stage {lock.name!r} of instances {span} of pipeline {lock.owner_id}"
    return f"{lock.kind} {span} of {lock.name or lock.owner_id}"


FEATURE: Final = Feature(name="locks", tables=_TABLES)


# --- reading ------------------------------------------------------------------------------------


class HeldLock(NamedTuple):
    """What a transaction that is prepared here has of one group or stage.

    Attributes:
        since_ms: when it began here.
    """

    transaction: TransactionId
    since_ms: int
    lock: Lock


def all_held(db: Database) -> list[HeldLock]:
    """What transactions that are prepared here hold. A leader begins with it: it is not delivered,
    nor handed to a runner."""
    return [
        HeldLock(TransactionId(*transaction), since_ms, Lock(kind, owner_id, name, ((a, b),)))
        for kind, owner_id, name, a, b, *transaction, since_ms in db.execute(_ALL)
    ]
