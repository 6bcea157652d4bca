"""Re-applying a log into an empty database, to compare what it makes with what a node has.

What no checksum finds is found here: a row that was changed by somebody else, an `apply` that did
not do the same twice. It needs the whole log, from entry 1, and room for a second copy of the
tables (a temporary file), so it is made offline.
"""

from __future__ import annotations

from typing import Any, Final

import apsw

from hadron.model.errors import CorruptionError, HadronError
from hadron.state import rows
from hadron.state.execute import execute_logged
from hadron.state.machine import Context, StateMachine
from hadron.state.rows import Key, Row, Table
from hadron.storage.database import READ_ERRORS, open_scratch
from hadron.storage.log import LOG, TABLES, drop_bodies, first_lsn, get_meta, read_commands
from hadron.storage.report import SLICE_ROWS, Report

_COMMANDS: Final = 1_000
_NAMED_PER_TABLE: Final = 20


class ReplayCheck:
    """Apply every command up to `applied_lsn`, then compare every table row by row.

    The file may go on meanwhile: before a slice is compared, what was applied since is applied
    here as well, in the same read transaction.
    """

    name = "replay"

    def __init__(self, report: Report, machine: StateMachine, replica_set: str) -> None:
        self._report = report
        self._machine = machine
        self._replica_set = replica_set
        self._copy: apsw.Connection | None = None
        self._applied = 0
        self._tables = list(machine.table_names)
        self._after: Key | None = None
        self._found = 0

    def step(self, db: apsw.Connection) -> bool:
        try:
            if self._copy is None:
                if first_lsn(db) > 1:
                    self._report.skipped.append(
                        f"re-applying the log, which begins at entry {first_lsn(db)}"
                    )
                    return True
                self._copy = open_scratch()
                self._copy.execute(TABLES)
                self._copy.execute(self._machine.tables)
            done = self._apply_some(db, self._copy) and self._compare_some(db, self._copy)
        except READ_ERRORS as error:
            self._report.add(f"the tables cannot be compared with the log: {error}")
            done = True
        except CorruptionError as error:
            # Of the log itself, which has a check of its own.
            self._report.skipped.append(f"re-applying the log: {error.message}")
            done = True
        except HadronError as error:
            self._report.add(
                f"entry {self._applied + 1} cannot be applied again: {error.message}",
                table=LOG,
                lsn=self._applied + 1,
            )
            done = True
        if done and self._copy is not None:
            self._copy.close()
            self._copy = None
        return done

    def _apply_some(self, db: apsw.Connection, copy: apsw.Connection) -> bool:
        """Whether the copy is where the file is."""
        applied = get_meta(db, "applied_lsn")
        until = min(applied, self._applied + _COMMANDS)
        copy.execute("BEGIN")
        try:
            for entry in read_commands(db, self._applied + 1, until):
                context = Context(
                    machine=self._machine,
                    db=copy,
                    lsn=entry.lsn,
                    now_ms=entry.now_ms,
                    drop_bodies=drop_bodies,
                    replica_set=self._replica_set,
                    ballot=entry.ballot,
                )
                try:
                    execute_logged(context, entry.command)
                except apsw.Error as error:
                    raise HadronError(str(error)) from error
                self._applied = entry.lsn
        finally:
            copy.execute("COMMIT")
        if self._applied < until:
            raise CorruptionError(f"entry {self._applied + 1} is missing")
        return self._applied == applied

    def _compare_some(self, db: apsw.Connection, copy: apsw.Connection) -> bool:
        if self._applied < get_meta(db, "applied_lsn"):
            return True
        name = self._tables[0]
        declared = rows.table(copy, name)
        assert declared is not None
        theirs = rows.table(db, name)
        if theirs is None or theirs.columns != declared.columns:
            self._problem(name, f"table {name} is missing, or has other columns")
            ended = True
        else:
            ended = self._compare(
                declared,
                declared.after(copy, self._after, SLICE_ROWS),
                declared.after(db, self._after, SLICE_ROWS),
            )
        if ended or self._found > _NAMED_PER_TABLE:
            self._tables.pop(0)
            self._after, self._found = None, 0
        return not self._tables

    def _compare(self, table: Table, expected: list[Row], found: list[Row]) -> bool:
        """Compare two runs of rows as far as both reach; whether the table ends there."""
        reach = [table.key_of(run[-1]) for run in (expected, found) if len(run) == SLICE_ROWS]
        until = min(reach) if reach else None
        ours, theirs = (
            {key: row for key, row in keyed if until is None or key <= until}
            for keyed in ([(table.key_of(row), row) for row in run] for run in (expected, found))
        )
        for key in sorted({**ours, **theirs}):
            self._report.tables[table.name] = self._report.tables.get(table.name, 0) + 1
            if ours.get(key) != theirs.get(key):
                self._problem(table.name, _difference(table, key, ours.get(key), theirs.get(key)))
        self._after = until
        return until is None

    def _problem(self, table: str, text: str) -> None:
        self._found += 1
        if self._found <= _NAMED_PER_TABLE:
            self._report.add(text, table=table)


def _difference(table: Table, key: Key, expected: Row | None, found: Row | None) -> str:
    where = f"{table.name} at {_shown(dict(zip(table.key, key, strict=True)))}"
    if found is None:
        return f"{where}: the row is missing"
    if expected is None:
        return f"{where}: the log makes no such row"
    changed = [
        f"{name} is {_shown(theirs)}, the log makes it {_shown(ours)}"
        for name, ours, theirs in zip(table.columns, expected, found, strict=True)
        if ours != theirs
    ]
    return f"{where}: {', '.join(changed)}"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items())
    text = value.hex() if isinstance(value, bytes) else repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
