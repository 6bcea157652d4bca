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

SINK: Final = PREFIX + "sink"

_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {SINK}(
    name TEXT PRIMARY KEY,
    query TEXT NOT NULL,                -- whose batches these are; "" for a program without one
    batch INTEGER NOT NULL,             -- the highest that is published
    published_ms INTEGER NOT NULL       -- when that was
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {SINK}_by_time ON {SINK}(published_ms);
"""

_SET: Final = (
    f"INSERT INTO {SINK} VALUES(?, ?, ?, ?) ON CONFLICT DO UPDATE SET query = excluded.query,"
    " batch = excluded.batch, published_ms = excluded.published_ms"
)
_FIND: Final = f"SELECT name, query, batch, published_ms FROM {SINK}"
_EVICT: Final = (
    f"DELETE FROM {SINK} WHERE name = (SELECT name FROM {SINK} WHERE published_ms < ?"
    " ORDER BY published_ms, name LIMIT 1)"
)
_COUNT: Final = f"SELECT count(*), count(*) FILTER (WHERE published_ms >= ?) FROM {SINK}"

SINK_IDLE_MS: Final = 30 * 24 * 3_600_000
"""A sink may make room for a new one when nothing was published for longer. Only then: what is not
known begins anew, and would publish a batch that it has published."""

MAX_SINKS: Final = 10_000
"""At a replica set: some 4 MB. A sink is named for what it writes, not for a run."""

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
        _, busy = _count(context)
        if busy >= MAX_SINKS:
            raise RequestError(
                f"{busy} sinks are known {context.place}, and {MAX_SINKS} are the most",
                "name a sink for what it writes, not for a run; one that is idle for 30 days makes "
                "room",
            )


def _count(context: Context) -> tuple[int, int]:
    """All sinks, and those that may not make room."""
    row = context.db.execute(_COUNT, (context.now_ms - SINK_IDLE_MS,)).fetchone()
    assert row is not None
    return row[0], row[1]


def _advance(context: Context, command: AdvanceSink) -> StatementResult:
    db = context.db
    if find(db, command.name) is None and _count(context)[0] >= MAX_SINKS:
        db.execute(_EVICT, (context.now_ms - SINK_IDLE_MS,))
    db.execute(_SET, (command.name, command.query, command.batch, context.now_ms))
    return DONE


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
