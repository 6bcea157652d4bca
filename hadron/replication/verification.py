"""Verifying a node's whole file from its own content: the log, and the tables that it makes.

Every check is made in slices (`storage.verify`), so a `Verification` can run beside live traffic,
a step whenever there is time, as well as over a file that nobody has open.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import apsw

from hadron.model.batch import check_body, read_head, split_batches
from hadron.model.errors import CorruptionError
from hadron.replication.replay import ReplayCheck
from hadron.state import dropping
from hadron.state.bodies import COUNTED_BODY
from hadron.state.machine import StateMachine
from hadron.state.streams.tables import STREAM_BATCH
from hadron.storage.bodies import BODY
from hadron.storage.database import READ_ERRORS, in_words
from hadron.storage.log import LOG, NO_BODY, Entry, first_lsn
from hadron.storage.report import SLICE_BYTES, SLICE_ROWS, Check, Report
from hadron.storage.verify import IntegrityCheck, LogCheck, MetaCheck, read_slice

_BATCHES: Final = (
    "SELECT s.stream_id, s.base_offset, s.lsn, s.append_ms, s.epoch, s.incarnation,"
    " l.lsn, l.now_ms, l.epoch, l.incarnation, l.body_hash, s.body_lsn"
    f" FROM {STREAM_BATCH} s LEFT JOIN {LOG} l USING (lsn)"
    " WHERE (s.stream_id, s.base_offset) > (?, ?) ORDER BY 1, 2 LIMIT ?"
)


class Verification:
    """All checks of one file, one after the other: `step` until it says that it was the last.

    Args:
        machine: what the log drives.
        replica_set: whose file it is; "" when nobody knows, and then the log is not re-applied.
        live: a node is writing the file: nothing that takes a long read transaction.
        replay: re-apply the log and compare the tables, which takes a second copy of them; a
            running node's are compared by state digests instead.
        until_lsn: where a live log's committed part ends; None for all of it.
    """

    def __init__(
        self,
        machine: StateMachine,
        *,
        replica_set: str = "",
        live: bool = False,
        replay: bool = True,
        until_lsn: int | None = None,
    ) -> None:
        self.report = report = Report()
        self._log = LogCheck(report, partial(entry_problem, machine), until_lsn=until_lsn)
        self._checks: list[Check] = [
            IntegrityCheck(report, live=live),
            MetaCheck(report),
            self._log,
            KeptBodiesCheck(report),
            BatchesCheck(report),
            *(check(report) for feature in machine.features for check in feature.checks),
        ]
        if replay and not replica_set:
            report.skipped.append("re-applying the log; without node.db its replica set is unknown")
        elif replay:
            self._checks.append(ReplayCheck(report, machine, replica_set))

    @property
    def reached_lsn(self) -> int:
        """How far the log has been read."""
        return self._log.reached_lsn

    def step(self, db: apsw.Connection) -> bool:
        """One slice; whether that was the last one."""
        check = self._checks[0]
        try:
            ended = read_slice(db, check)
        except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
            # A damaged page may hand out rows with values of any type.
            self.report.add(f"the check of {check.name} met a value that cannot be: {error}")
            ended = True
        if ended:
            self.report.checked.append(check.name)
            self._checks.pop(0)
        return not self._checks


def entry_problem(machine: StateMachine, entry: Entry) -> str:
    """What is wrong between a command and the batches that its body is made of; "" when nothing is.

    Raises `CorruptionError` for a command or a batch that cannot be understood.
    """
    said = machine.batches(machine.decode(entry.command))
    if not said:
        return f"its command has no batch, it has {len(entry.body)} bytes" if entry.body else ""
    parts = list(split_batches(entry.body))
    if len(parts) != len(said):
        return f"its command has {len(said)} batches, its body {len(parts)}"
    for shape, part in zip(said, parts, strict=True):
        if shape.size != len(part):
            return f"its command says {shape.size} bytes, the batch has {len(part)}"
        if shape.records != (found := read_head(part).n):
            return f"its command says {shape.records} records, the batch has {found}"
    return ""


class KeptBodiesCheck:
    """Bodies that outlived their log rows: of each, the checksum that its batch carries."""

    name = "kept bodies"

    def __init__(self, report: Report) -> None:
        self._report = report
        self._lsn = 0

    def step(self, db: apsw.Connection) -> bool:
        size = 0
        try:
            until = first_lsn(db)
            for lsn, body in db.execute(
                f"SELECT lsn, bytes FROM {BODY} WHERE lsn > ? AND lsn < ? ORDER BY lsn LIMIT ?",
                (self._lsn, until, SLICE_ROWS),
            ):
                self._lsn = lsn
                self._report.bodies += 1
                # A damaged row may hand out a value of any type.
                data = body if type(body) is bytes else b""
                size += max(1, len(data))
                try:
                    check_body(data)
                except CorruptionError as error:
                    self._report.add(f"entry {lsn}: {error.message}", table=BODY, lsn=lsn)
                if size >= SLICE_BYTES:
                    break
        except READ_ERRORS as error:
            return self._unreadable(db, in_words(error))
        self._report.bytes += size
        return not size

    def _unreadable(self, db: apsw.Connection, what: str) -> bool:
        """The next body stands on pages that cannot be read; go on behind it, as long as the
        streams tell which one it is."""
        try:
            row: Any = db.execute(
                "SELECT min(lsn) FROM"
                f" (SELECT min(lsn) AS lsn FROM {STREAM_BATCH} WHERE lsn > ?1 AND body_lsn IS NULL"
                f" UNION ALL SELECT min(lsn) FROM {COUNTED_BODY} WHERE lsn > ?1)",
                (self._lsn,),
            ).fetchone()
        except READ_ERRORS:
            row = (None,)
        if row[0] is None:
            self._report.add(
                f"bodies after entry {self._lsn} cannot be read: {what}",
                table=BODY,
                is_unreadable=True,
            )
            return True
        self._lsn = row[0]
        self._report.add(
            f"the body of entry {self._lsn} cannot be read: {what}", table=BODY, lsn=self._lsn
        )
        return False


class BatchesCheck:
    """Each batch of a stream is what the log says of the entry that brought it."""

    name = "batches"

    def __init__(self, report: Report) -> None:
        self._report = report
        self._after = (-1, -1)

    def step(self, db: apsw.Connection) -> bool:
        try:
            rows: list[Any] = db.execute(_BATCHES, (*self._after, SLICE_ROWS)).fetchall()
            kept_from, gone = first_lsn(db), dropping.ids(db)
        except READ_ERRORS as error:
            self._report.add(
                f"batches and entries cannot be compared: {in_words(error)}",
                table=STREAM_BATCH,
                is_unreadable=True,
            )
            return True
        for stream_id, base, lsn, append_ms, epoch, incarnation, logged, *entry in rows:
            self._after = stream_id, base
            wrong = ""
            if stream_id in gone:
                continue
            if logged is None:
                wrong = f"is of no entry, {lsn}" if lsn >= kept_from else ""
            elif entry[:3] != [append_ms, epoch, incarnation] or (
                entry[3] == NO_BODY and entry[4] in (None, lsn)
            ):
                wrong = f"does not fit its entry {lsn}"
            if wrong:
                self._report.add(
                    f"stream {stream_id}: the batch at offset {base} {wrong}",
                    table=STREAM_BATCH,
                    lsn=lsn,
                    stream_id=stream_id,
                    offset=base,
                )
        return len(rows) < SLICE_ROWS
