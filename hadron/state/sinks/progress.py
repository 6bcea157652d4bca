"""Sinks: how far a query has published, so that a batch that it repeats is known (PROTOCOL E11).

A sink is a name that a program has chosen for what it writes, such as Spark's `txnId`; a query is
who writes to it, and numbers its batches. `AdvanceSink` stands in the transaction that publishes a
batch, as its condition. Safety rule: a sink only goes forward, and only with the query that it
knows; so of the transactions that publish one batch, one commits.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

from hadron.model.errors import RequestError
from hadron.model.ports import Database
from hadron.model.sinks import UNKNOWN, SinkProgress, check_advance
from hadron.model.tables import PREFIX
from hadron.model.transactions import DONE, MAX_NUMBER, Lock, StatementResult
from hadron.state.machine import Command, Context, Feature, Statement
from hadron.state.transactions.locks import LOCK

SINK: Final = PREFIX + "sink"

_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {SINK}(
    place INTEGER PRIMARY KEY,          -- from 1, without gaps, so it counts them
    name TEXT NOT NULL UNIQUE,
    query TEXT NOT NULL,                -- whose batches these are; "" for a program without one
    batch INTEGER NOT NULL,             -- the highest that is published
    published_ms INTEGER NOT NULL       -- when that was
) STRICT;
CREATE INDEX IF NOT EXISTS {SINK}_by_time ON {SINK}(published_ms, name);
"""

_INSERT: Final = f"INSERT INTO {SINK} VALUES(?, ?, ?, ?, ?)"
_SET: Final = f"UPDATE {SINK} SET query = ?, batch = ?, published_ms = ? WHERE name = ?"
_FIND: Final = f"SELECT name, query, batch, published_ms FROM {SINK}"
_EVICT: Final = (
    f"DELETE FROM {SINK} WHERE name = (SELECT name FROM {SINK} WHERE published_ms < ?"
    " ORDER BY published_ms, name LIMIT 1) RETURNING place"
)
_COUNT: Final = f"SELECT ifnull(max(place), 0) FROM {SINK}"
_IDLE: Final = f"SELECT count(*) FROM (SELECT 1 FROM {SINK} WHERE published_ms < ? LIMIT ?)"
_PREPARED: Final = (
    f"SELECT count(*) FROM (SELECT 1 FROM {LOCK} WHERE kind = 'sink' AND owner_id = 0 LIMIT ?)"
)

SINK_IDLE_MS: Final = 30 * 24 * 3_600_000
"""A sink may make room for a new one when nothing was published for longer. Only then: what is not
known begins anew, and would publish a batch that it has published."""

MAX_SINKS: Final = 10_000
"""At a replica set: some 4 MB. A sink is named for what it writes, not for a run."""

_MAX_PREPARED: Final = 100
"""Sinks that transactions have prepared here: each new one counts them."""

MAX_SINK_NAME: Final = 300


class AdvanceSink(Command, frozen=True, array_like=True, tag=74):
    """In a transaction: the sink is at this batch of this query from here on, and was not before.

    Refused (`RequestError`): a batch that is published already; a query that is not the sink's, or
    goes on at a sink that is not known, unless it follows whom the sink knows.

    Attributes:
        query: "" for a program that numbers its batches and has no query: it may begin anywhere.
        follows: the query that this one takes the sink over from; `UNKNOWN`: the sink was
            forgotten; "": it does not.
    """

    name: str
    query: str
    batch: int
    follows: str = ""


def apply_advance_sink(_context: Context, _command: AdvanceSink) -> NoReturn:
    raise RequestError("a sink is advanced by what it publishes", "put it into a transaction")


def _check(context: Context, command: AdvanceSink) -> None:
    name, query, batch = command.name, command.query, command.batch
    if not 0 < len(name) <= MAX_SINK_NAME or len(query) > MAX_SINK_NAME or query == UNKNOWN:
        raise RequestError(
            f"{name[:MAX_SINK_NAME]!r} is no sink's name, or {query[:MAX_SINK_NAME]!r} no query's",
            f"use 1 to {MAX_SINK_NAME} characters",
        )
    if not 0 <= batch <= MAX_NUMBER:
        raise RequestError(f"batch {batch} is out of bounds", f"number them from 0 to {MAX_NUMBER}")
    known = find(context.db, name)
    check_advance(known, name, query, batch, command.follows)
    if known is None:
        _check_room(context)


def _check_room(context: Context) -> None:
    """Raises `RequestError` when there is none for a new sink, beside those that are prepared."""
    prepared = _number(context.db, _PREPARED, _MAX_PREPARED)
    if prepared == _MAX_PREPARED:
        raise RequestError(
            f"{prepared} transactions that are prepared {context.place} advance a sink",
            "wait until they are over: see `hadron tx list`",
            retryable=True,
        )
    known = _number(context.db, _COUNT)
    over = known + prepared + 1 - MAX_SINKS
    if over > 0 and _number(context.db, _IDLE, context.now_ms - SINK_IDLE_MS, over) < over:
        raise RequestError(
            f"{known} sinks are known {context.place}, and {MAX_SINKS} are the most",
            "name a sink for what it writes, not for a run; one that is idle for 30 days makes "
            "room",
        )


def _advance(context: Context, command: AdvanceSink) -> StatementResult:
    db = context.db
    values = command.query, command.batch, context.now_ms
    db.execute(_SET, (*values, command.name))
    if not db.changes():
        if context.body_lsn is None:
            # Others of this entry were new; what was prepared has its room.
            _check_room(context)
        db.execute(_INSERT, (_new_place(context), command.name, *values))
    return DONE


def _new_place(context: Context) -> int:
    """Where there is no room, that of the sink to which nobody has published for longest."""
    known = _number(context.db, _COUNT)
    if known >= MAX_SINKS:
        idle = context.db.execute(_EVICT, (context.now_ms - SINK_IDLE_MS,)).fetchone()
        if idle is not None:
            return int(idle[0])
    return known + 1


def _number(db: Database, query: str, *values: int) -> int:
    row: Any = db.execute(query, values).fetchone()
    return int(row[0])


def _locks(command: AdvanceSink) -> tuple[Lock, ...]:
    return (Lock("sink", 0, command.name, ((0, 0),)),)


FEATURE: Final = Feature(
    name="sinks",
    tables=_TABLES,
    commands={AdvanceSink: apply_advance_sink},
    statements={AdvanceSink: Statement(check=_check, apply=_advance, locks=_locks)},
)


# --- reading ------------------------------------------------------------------------------------


def find(db: Database, name: str) -> SinkProgress | None:
    row = db.execute(f"{_FIND} WHERE name = ?", (name,)).fetchone()
    return None if row is None else SinkProgress(*row)


def all_sinks(db: Database) -> list[SinkProgress]:
    """By name."""
    rows: Any = db.execute(f"{_FIND} ORDER BY name").fetchall()
    return [SinkProgress(*row) for row in rows]
