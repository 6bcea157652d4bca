"""Verifying a node's log from its own content, a slice at a time.

Nothing that the file says of itself is believed: the chain is computed again over every entry,
bodies are hashed, batches' checksums compared. What the tables make of the log is for
`replication.verification`, which drives the checks of this module too.

Safety rule: a slice is one short read transaction (`read_slice`), so that a live node's write-ahead
log can restart between two of them (PROTOCOL F2); a check therefore keeps nothing across slices
that a leader's new tail, trimming or retention could make untrue without noticing it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import apsw

from hadron.model.batch import check_body
from hadron.model.errors import CorruptionError
from hadron.model.ids import Ballot
from hadron.storage.bodies import BODY
from hadron.storage.database import READ_ERRORS, in_words, read_transaction
from hadron.storage.log import (
    LOG,
    META,
    NO_BODY,
    Entry,
    chain_of_row,
    first_lsn,
    get_meta,
    hash_body,
    is_well_formed,
    last_lsn,
    read_anchor,
)
from hadron.storage.report import SLICE_BYTES, SLICE_ROWS, Check, Report

_INTEGRITY_STEPS: Final = 1_000
_INTEGRITY_TURNS: Final = 500
"""An integrity check of one table on a running node ends after this many times so many steps of
SQLite's machine: about a quarter of a second."""

_FINDINGS: Final = 3
"""Of one row of an integrity check that are told; the others mostly follow from them."""

EntryCheck = Callable[[Entry], str]
"""What is wrong with an entry beyond its hashes, "" when nothing is."""


def read_slice(db: apsw.Connection, check: Check) -> bool:
    """One slice of `check` in a read transaction of its own; whether it was the last one."""
    with read_transaction(db):
        return check.step(db)


class LogCheck:
    """Every entry from the anchor on: the chain, the bodies, the batches, gaps.

    Args:
        check_entry: a further look at each entry whose body is here.
        until_lsn: stop there; None for the log's end as it is at the first slice. A live node's
            uncommitted tail may be replaced while it is read, which is noticed and no problem.
    """

    name = "log"

    def __init__(
        self, report: Report, check_entry: EntryCheck, *, until_lsn: int | None = None
    ) -> None:
        self._report = report
        self._check_entry = check_entry
        self._until = until_lsn
        self._next = 0
        # Of the last entry: as it stands in its row, and as it follows from what came before. A
        # damaged chain makes its own row wrong, not the next one as well.
        self._stored: bytes | None = None
        self._computed: bytes | None = None

    @property
    def reached_lsn(self) -> int:
        """How far it has got."""
        return max(0, self._next - 1)

    def step(self, db: apsw.Connection) -> bool:
        try:
            if not self._next:
                self._begin(db)
            elif self._tail_was_replaced(db):
                self._report.skipped.append(
                    f"the log above {self._next - 2} was replaced while it was read"
                )
                return True
            return self._slice(db)
        except READ_ERRORS as error:
            return self._unreadable(error)

    def _begin(self, db: apsw.Connection) -> None:
        first = first_lsn(db)
        last = last_lsn(db)
        self._until = last if self._until is None else min(self._until, last)
        self._report.first_lsn = self._next = first
        self._stored = self._computed = read_anchor(db).chain

    def _tail_was_replaced(self, db: apsw.Connection) -> bool:
        first = first_lsn(db)
        if self._next < first:
            # Trimmed meanwhile.
            self._next = first
            self._stored = self._computed = read_anchor(db).chain
            return False
        if self._stored is None or self._next == first:
            return False
        before = db.execute(f"SELECT chain FROM {LOG} WHERE lsn = ?", (self._next - 1,)).fetchone()
        return before is None or before[0] != self._stored

    def _slice(self, db: apsw.Connection) -> bool:
        assert self._until is not None
        size = rows = 0
        for row in db.execute(
            f"SELECT l.*, b.bytes FROM {LOG} l LEFT JOIN {BODY} b USING (lsn)"
            " WHERE l.lsn >= ? AND l.lsn <= ? ORDER BY l.lsn LIMIT ?",
            (self._next, self._until, SLICE_ROWS),
        ):
            self._check_row(row)
            rows += 1
            size += sum(len(part) for part in (row[4], row[7]) if isinstance(part, bytes))
            if size >= SLICE_BYTES:
                break
        self._report.bytes += size
        if not rows and self._next <= self._until < last_lsn(db):
            self._miss(self._until)
        return not rows or self._next > self._until

    def _miss(self, until: int) -> None:
        what = f"entries {self._next} to {until} are missing"
        self._report.add(what, table=LOG, lsn=self._next)
        self._stored = self._computed = None
        self._next = until + 1

    def _check_row(self, row: tuple[Any, ...]) -> None:
        *logged, body = row
        lsn, report = logged[0], self._report
        if lsn != self._next:
            self._miss(lsn - 1)
        self._next = lsn + 1
        report.entries += 1
        if not is_well_formed(logged) or not isinstance(body, bytes | None):
            report.add(f"entry {lsn} has values that no entry has", table=LOG, lsn=lsn)
            self._stored = self._computed = None
            return
        body_hash, chain = logged[5:]
        follows = [
            chain_of_row(previous, logged)
            for previous in dict.fromkeys((self._stored, self._computed))
            if previous is not None
        ]
        if follows and chain not in follows:
            report.add(f"entry {lsn} does not continue the hash chain", table=LOG, lsn=lsn)
        self._stored, self._computed = chain, (follows[0] if follows else chain)
        report.last_lsn, report.chain = lsn, chain.hex()
        ballot = Ballot(logged[1], logged[2])
        if body is None:
            if body_hash != NO_BODY:
                report.add(f"the body of entry {lsn} is missing", table=BODY, lsn=lsn)
            else:
                self._check_command(Entry(lsn, ballot, logged[3], logged[4], b"", chain))
        elif not body and body_hash != NO_BODY:
            report.dropped_bodies += 1
        else:
            self._check_body(Entry(lsn, ballot, logged[3], logged[4], body, chain), body_hash)

    def _check_body(self, entry: Entry, body_hash: bytes) -> None:
        report, lsn = self._report, entry.lsn
        report.bodies += 1
        if hash_body(entry.body) != body_hash:
            report.add(f"the body of entry {lsn} does not match its hash", table=BODY, lsn=lsn)
            return
        try:
            report.batches += check_body(entry.body)
        except CorruptionError as error:
            report.add(f"entry {lsn}: {error.message}", table=BODY, lsn=lsn)
            return
        self._check_command(entry)

    def _check_command(self, entry: Entry) -> None:
        try:
            wrong = self._check_entry(entry)
        except CorruptionError as error:
            wrong = error.message
        if wrong:
            self._report.add(f"entry {entry.lsn}: {wrong}", table=BODY, lsn=entry.lsn)

    def _unreadable(self, error: Exception) -> bool:
        """The next entry stands on a page that cannot be read; go on behind it."""
        what = in_words(error)
        if self._until is None or not self._next:
            self._report.add(f"the log cannot be read: {what}", table=LOG, is_unreadable=True)
            return True
        lsn = self._next
        self._report.add(f"entry {lsn} cannot be read: {what}", table=LOG, lsn=lsn)
        self._stored = self._computed = None
        self._next += 1
        return self._next > self._until


class IntegrityCheck:
    """SQLite's own check of pages, b-trees and indexes, a table at a time.

    Args:
        live: leave out the log and the bodies, whose content has hashes of its own, and give up on
            a table that would take long: a read transaction must not last on a running node.
    """

    name = "integrity"

    def __init__(self, report: Report, *, live: bool) -> None:
        self._report = report
        self._live = live
        self._tables: list[str] | None = None

    def step(self, db: apsw.Connection) -> bool:
        try:
            if not self._live:
                self._check(db, "PRAGMA integrity_check(100)", "")
                return True
            if self._tables is None:
                self._tables = [
                    row[0]
                    for row in db.execute(
                        "SELECT name FROM sqlite_schema WHERE type = 'table'"
                        f" AND name NOT IN ('{LOG}', '{BODY}') ORDER BY name"
                    )
                ]
            if self._tables:
                table = self._tables.pop(0)
                self._check(db, f"PRAGMA integrity_check('{table}')", table)
        except READ_ERRORS as error:
            self._report.add(
                f"the file's schema cannot be read: {in_words(error)}", is_unreadable=True
            )
            return True
        return not self._tables

    def _check(self, db: apsw.Connection, pragma: str, table: str) -> None:
        turns = 0

        def enough() -> bool:
            nonlocal turns
            turns += 1
            return turns > _INTEGRITY_TURNS

        if self._live:
            db.set_progress_handler(enough, _INTEGRITY_STEPS)
        try:
            for (text,) in db.execute(pragma).fetchall():
                if text != "ok":
                    self._report.add(
                        f"SQLite's integrity check: {_in_one_line(str(text))}",
                        table=table,
                        is_unreadable=True,
                    )
        except apsw.InterruptError:
            self._report.skipped.append(
                f"the integrity check of {table}, too large for a node that runs"
            )
        except READ_ERRORS as error:
            self._report.add(
                f"the integrity check found a page it cannot read: {in_words(error)}",
                table=table,
                is_unreadable=True,
            )
        finally:
            db.set_progress_handler(None)


def _in_one_line(findings: str) -> str:
    """A row of the integrity check, which may be a page of findings under a heading."""
    lines = [line.strip() for line in findings.splitlines() if not line.startswith("***")]
    shown, more = lines[:_FINDINGS], len(lines) - _FINDINGS
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")


class MetaCheck:
    """What `meta` says of the log fits the log."""

    name = "meta"

    def __init__(self, report: Report) -> None:
        self._report = report

    def step(self, db: apsw.Connection) -> bool:
        report = self._report
        try:
            last = last_lsn(db)
            report.applied_lsn = get_meta(db, "applied_lsn")
            report.committed_lsn = get_meta(db, "committed_lsn")
            for name, lsn in (("applied", report.applied_lsn), ("committed", report.committed_lsn)):
                if type(lsn) is not int or not 0 <= lsn <= last:
                    report.add(f"{name}_lsn is {lsn}, the log ends at {last}", table=META)
            row = db.execute(f"SELECT min(lsn) FROM {BODY} WHERE lsn > ?", (last,)).fetchone()
            if row is not None and row[0] is not None:
                report.add(f"the body of entry {row[0]} has no entry", table=BODY, lsn=row[0])
        except READ_ERRORS as error:
            report.add(f"meta cannot be read: {in_words(error)}", table=META, is_unreadable=True)
        return True
