"""Tables without a node: fed as a leader feeds its own, and as a replica does from the log."""

from __future__ import annotations

from typing import Any

import apsw

from hadron.model.errors import HadronError
from hadron.model.ids import Ballot
from hadron.model.ports import Database
from hadron.model.ranges import Range
from hadron.model.schema import Spec, spec_to_json
from hadron.state import machine, schema
from hadron.state.features import MACHINE
from hadron.state.machine import Command, Context, NoChange
from hadron.state.schema import ApplySchema, ObjectChange
from hadron.state.transactions.locks import LOCK
from hadron.storage import log
from hadron.storage.tables import make_tables

SET = "local/p0"
BALLOT = Ballot(1, 1)

Dump = dict[str, list[tuple[Any, ...]]]


def new_database() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    make_tables(connection, log.TABLES + MACHINE.tables)
    return connection


def dump(db: apsw.Connection) -> Dump:
    """Every table with all its rows."""
    names = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
    return {name: db.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall() for (name,) in names}


def locked(db: Database, kind: str, owner_id: int, name: str = "") -> list[Range]:
    """What is locked of one group or stage, whoever's it is; ascending."""
    rows = db.execute(
        f"SELECT first, last FROM {LOCK} WHERE kind = ? AND owner_id = ? AND name = ?"
        " ORDER BY first",
        (kind, owner_id, name),
    )
    return [(first, last) for first, last in rows]


class Replicated:
    """A leader's tables: each command in a savepoint, logged when it changed something."""

    def __init__(self, replica_set: str = SET) -> None:
        self.replica_set = replica_set
        self.db = new_database()
        self.log: list[tuple[int, Ballot, int, bytes]] = []
        self.now_ms = 1_000_000
        self.ballot = BALLOT

    def submit(self, command: Command) -> Any:
        """Its result; a refusal is raised, and leaves nothing behind. What was done before is
        answered with the original's result and `again` set."""
        self.again = False
        context = Context(
            machine=MACHINE,
            db=self.db,
            lsn=len(self.log) + 1,
            now_ms=self.now_ms,
            drop_bodies=log.drop_bodies,
            replica_set=self.replica_set,
            ballot=self.ballot,
        )
        before = self.db.total_changes()
        self.db.execute("BEGIN; SAVEPOINT command")
        try:
            command = MACHINE.seal(context, command)
            result = MACHINE.apply(context, command)
        except (NoChange, HadronError) as stop:
            self.db.execute("ROLLBACK TO command; RELEASE command; COMMIT")
            if isinstance(stop, NoChange):
                is_one = not command.joined
                assert not is_one or self.db.total_changes() == before, "nothing to undo"
                self.again = True
                return stop.result
            raise
        self.db.execute("RELEASE command; COMMIT")
        self.log.append((context.lsn, context.ballot, context.now_ms, machine.encode(command)))
        return result

    def declare(self, *objects: tuple[str, str, Spec]) -> list[int]:
        """Create or change (kind, name, spec); returns their ids."""
        changes = tuple(
            ObjectChange(kind, "default", name, spec_to_json(spec).decode())
            for kind, name, spec in objects
        )
        index = schema.current_index(self.db)
        return [item.id for item in self.submit(ApplySchema(index, changes))]

    def rows(self, sql: str, *bindings: Any) -> list[tuple[Any, ...]]:
        return self.db.execute(sql, bindings).fetchall()

    def replica(self) -> apsw.Connection:
        """Tables made from the log's bytes alone, without savepoints, as a replica does it."""
        db = new_database()
        db.execute("BEGIN")
        for lsn, ballot, now_ms, data in self.log:
            context = Context(
                machine=MACHINE,
                db=db,
                lsn=lsn,
                now_ms=now_ms,
                drop_bodies=log.drop_bodies,
                replica_set=self.replica_set,
                ballot=ballot,
            )
            MACHINE.apply(context, MACHINE.decode(data))
        db.execute("COMMIT")
        return db
