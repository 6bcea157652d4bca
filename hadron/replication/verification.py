"""Verifying a node's whole file from its own content: the log, and the tables that it makes.

Every check is made in slices (`storage.verify`), so a `Verification` can run beside live traffic,
a step whenever there is time, as well as over a file that nobody has open.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import apsw

from hadron.model.batch import check_batch, read_head
from hadron.model.errors import CorruptionError
from hadron.replication.replay import ReplayCheck
from hadron.state.dropping import DROPPED
from hadron.state.group_changes import GROUP_GARBAGE
from hadron.state.groups import GROUP, GROUP_ACK
from hadron.state.machine import StateMachine
from hadron.state.streams import STREAM_BATCH, STREAM_PARTITION
from hadron.storage.bodies import BODY
from hadron.storage.database import in_words
from hadron.storage.log import LOG, NO_BODY, Entry, first_lsn
from hadron.storage.verify import (
    SLICE_BYTES,
    SLICE_ROWS,
    Check,
    IntegrityCheck,
    LogCheck,
    MetaCheck,
    Report,
    read_slice,
)

_BATCHES: Final = (
    "SELECT s.base_offset, s.count, s.lsn, s.append_ms, s.bytes, s.epoch, s.incarnation,"
    " length(b.bytes), l.lsn, l.now_ms, l.epoch, l.incarnation, l.body_hash"
    f" FROM {STREAM_BATCH} s LEFT JOIN {BODY} b USING (lsn) LEFT JOIN {LOG} l USING (lsn)"
    " WHERE s.stream_id = ? AND s.base_offset >= ? ORDER BY s.base_offset LIMIT ?"
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
        self, machine: StateMachine, *, replica_set: str = "", live: bool = False,
        replay: bool = True, until_lsn: int | None = None,
    ) -> None:
        self.report = report = Report()
        self._log = LogCheck(report, partial(entry_problem, machine), until_lsn=until_lsn)
        self._checks: list[Check] = [
            IntegrityCheck(report, live=live), MetaCheck(report), self._log,
            KeptBodiesCheck(report), StreamsCheck(report), GroupsCheck(report),
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
    """What is wrong between a command and the batch that is its body; "" when nothing is.

    Raises `CorruptionError` for a command or a batch that cannot be understood.
    """
    batch = machine.decode(entry.command).batch
    if batch is None:
        return ""
    if batch.size != len(entry.body):
        return f"its command says {batch.size} bytes, the batch has {len(entry.body)}"
    found = read_head(entry.body).n
    return (
        "" if found == batch.records
        else f"its command says {batch.records} records, the batch has {found}"
    )


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
                size += len(body)
                try:
                    check_batch(body)
                except CorruptionError as error:
                    self._report.add(f"entry {lsn}: {error.message}", table=BODY, lsn=lsn)
                if size >= SLICE_BYTES:
                    break
        except apsw.Error as error:
            return self._unreadable(db, in_words(error))
        self._report.bytes += size
        return not size

    def _unreadable(self, db: apsw.Connection, what: str) -> bool:
        """The next body stands on pages that cannot be read; go on behind it, as long as the
        streams tell which one it is."""
        try:
            row: Any = db.execute(
                f"SELECT min(lsn) FROM {STREAM_BATCH} WHERE lsn > ?", (self._lsn,)
            ).fetchone()
        except apsw.Error:
            row = (None,)
        if row[0] is None:
            self._report.add(
                f"bodies after entry {self._lsn} cannot be read: {what}", table=BODY,
                is_unreadable=True,
            )
            return True
        self._lsn = row[0]
        self._report.add(
            f"the body of entry {self._lsn} cannot be read: {what}", table=BODY, lsn=self._lsn
        )
        return False


def _dropped(db: apsw.Connection) -> set[int]:
    """Ids of deleted streams that have not gone yet."""
    return _ids(db, DROPPED, "id")


def _garbage(db: apsw.Connection) -> set[int]:
    """Ids of groups that were reset or deleted, and have not gone yet."""
    return _ids(db, GROUP_GARBAGE, "group_id")


def _ids(db: apsw.Connection, table: str, column: str) -> set[int]:
    """Files of older versions may have no such table."""
    known: Any = db.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
    if known is None:
        return set()
    rows: Any = db.execute(f"SELECT {column} FROM {table}")
    return {row[0] for row in rows}


class StreamsCheck:
    """Batches follow each other without gaps, have their bytes, and add up to their partition."""

    name = "streams"

    def __init__(self, report: Report) -> None:
        self._report = report
        self._streams: list[int] | None = None
        self._stream = 0
        self._first = 0
        self._expected: int | None = None
        self._bytes = 0

    def step(self, db: apsw.Connection) -> bool:
        try:
            if self._streams is None:
                rows: Any = db.execute(
                    f"SELECT stream_id FROM {STREAM_PARTITION} UNION"
                    f" SELECT DISTINCT stream_id FROM {STREAM_BATCH} ORDER BY 1"
                )
                self._streams = [row[0] for row in rows]
                gone = _dropped(db)
                self._streams = [each for each in self._streams if each not in gone]
            if self._streams and self._slice(db, self._streams[0]):
                self._streams.pop(0)
                self._expected = None
        except apsw.Error as error:
            self._report.add(
                f"the streams' tables cannot be read: {in_words(error)}", table=STREAM_BATCH,
                is_unreadable=True,
            )
            return True
        return not self._streams

    def _slice(self, db: apsw.Connection, stream_id: int) -> bool:
        """Some batches of a stream; whether it was the last of them."""
        self._stream = stream_id
        limits: Any = db.execute(
            f"SELECT first_offset, next_offset, bytes FROM {STREAM_PARTITION} WHERE stream_id = ?",
            (stream_id,),
        ).fetchone()
        if limits is None:
            if stream_id in _dropped(db):
                # Deleted while this goes on.
                return True
            self._problem(f"stream {stream_id} has batches but no partition", 0)
            return True
        if self._expected is None:
            self._first, self._bytes, from_offset = limits[0], 0, 0
        else:
            # Retention may have come by.
            from_offset = self._expected = max(self._expected, limits[0])
        rows: list[Any] = db.execute(_BATCHES, (stream_id, from_offset, SLICE_ROWS)).fetchall()
        kept_from = first_lsn(db)
        for row in rows:
            self._check_batch(row, limits[0], kept_from)
        if len(rows) == SLICE_ROWS:
            return False
        self._check_end(limits)
        return True

    def _check_batch(self, row: tuple[Any, ...], first_offset: int, kept_from: int) -> None:
        base, count, lsn, append_ms, size, epoch, incarnation, length, *logged = row
        if self._expected is None:
            if not base <= first_offset < base + count:
                self._problem(
                    f"the first batch has offsets {base} to {base + count - 1}, the first kept "
                    f"offset is {first_offset}", base,
                )
        elif base != self._expected:
            self._problem(f"offset {base} comes where {self._expected} should", self._expected)
        self._expected = base + count
        self._bytes += size
        if count < 1:
            self._problem(f"the batch at offset {base} has {count} records", base, lsn)
        if length is None:
            self._problem(f"the batch at offset {base} has lost its bytes", base, lsn, BODY)
        elif length != size:
            self._problem(f"the batch at offset {base} has {length} bytes, not {size}", base, lsn)
        if logged[0] is None:
            if lsn >= kept_from:
                self._problem(f"the batch at offset {base} is of no entry, {lsn}", base, lsn)
        elif tuple(logged[1:4]) != (append_ms, epoch, incarnation) or logged[4] == NO_BODY:
            self._problem(f"the batch at offset {base} does not fit its entry {lsn}", base, lsn)

    def _check_end(self, limits: tuple[int, int, int]) -> None:
        first, following, size = limits
        end = self._expected if self._expected is not None else first
        if end != following:
            self._problem(f"its batches end at offset {end}, the next one is {following}", end)
        if first == self._first and size != self._bytes:
            self._problem(f"its batches have {self._bytes} bytes, it says {size}", first)

    def _problem(
        self, text: str, offset: int, lsn: int = 0, table: str = STREAM_BATCH
    ) -> None:
        self._report.add(
            f"stream {self._stream}: {text}", table=table, lsn=lsn,
            stream_id=self._stream, offset=offset,
        )


class GroupsCheck:
    """Floors lie within their stream; ranges above them are apart from each other."""

    name = "groups"

    def __init__(self, report: Report) -> None:
        self._report = report
        self._group = 0
        self._range: tuple[int, int] | None = None
        self._last = -2

    def step(self, db: apsw.Connection) -> bool:
        try:
            return self._floors(db) if self._range is None else self._ranges(db, self._range)
        except apsw.Error as error:
            self._report.add(
                f"the groups' tables cannot be read: {in_words(error)}", table=GROUP,
                is_unreadable=True,
            )
            return True

    def _floors(self, db: apsw.Connection) -> bool:
        rows: list[Any] = db.execute(
            f"SELECT g.group_id, g.name, g.floor, g.stream_id, p.next_offset FROM {GROUP} g"
            f" LEFT JOIN {STREAM_PARTITION} p USING (stream_id)"
            " WHERE g.group_id > ? ORDER BY g.group_id LIMIT ?", (self._group, SLICE_ROWS),
        ).fetchall()
        gone = _dropped(db)
        for group_id, name, floor, stream_id, following in rows:
            self._group = group_id
            if following is None and stream_id in gone:
                continue
            if following is None:
                self._report.add(f"group {name!r} is of no stream here, {stream_id}", table=GROUP)
            elif not 0 <= floor <= following:
                self._report.add(
                    f"group {name!r} has its floor at {floor}, the stream ends at {following}",
                    table=GROUP, stream_id=stream_id, offset=floor,
                )
        if len(rows) < SLICE_ROWS:
            self._range = (0, -1)
        return False

    def _ranges(self, db: apsw.Connection, after: tuple[int, int]) -> bool:
        rows: list[Any] = db.execute(
            f"SELECT a.group_id, a.first, a.last, g.floor, p.next_offset, g.stream_id"
            f" FROM {GROUP_ACK} a"
            f" LEFT JOIN {GROUP} g USING (group_id) LEFT JOIN {STREAM_PARTITION} p"
            f" USING (stream_id)"
            " WHERE (a.group_id, a.first) > (?, ?) ORDER BY 1, 2 LIMIT ?", (*after, SLICE_ROWS),
        ).fetchall()
        gone, garbage = _dropped(db), _garbage(db)
        for group_id, first, last, floor, following, stream_id in rows:
            above = self._last if self._range and self._range[0] == group_id else -2
            self._range, self._last = (group_id, first), last
            if (following is None and stream_id in gone) or group_id in garbage:
                continue
            if floor is None or following is None:
                self._report.add(
                    f"acknowledged offsets {first} to {last} are of no group, {group_id}",
                    table=GROUP_ACK, offset=first,
                )
            elif not (floor < first <= last < following and first > above + 1):
                self._report.add(
                    f"group {group_id} has {first} to {last} acknowledged, its floor is {floor} "
                    f"and the stream ends at {following}",
                    table=GROUP_ACK, stream_id=stream_id, offset=first,
                )
        return len(rows) < SLICE_ROWS


