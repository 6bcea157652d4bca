"""What must be true of streams' tables, whatever was logged: for those who verify a file."""

from __future__ import annotations

from typing import Any, Final

import apsw

from hadron.state import dropping
from hadron.state.bodies import COUNTED_BODY
from hadron.state.machine import Feature
from hadron.state.streams.tables import STREAM_BATCH, STREAM_PARTITION
from hadron.storage.bodies import BODY
from hadron.storage.database import READ_ERRORS, in_words
from hadron.storage.report import SLICE_ROWS, Report

_BATCHES: Final = (
    "SELECT s.base_offset, s.count, coalesce(s.body_lsn, s.lsn), s.bytes, s.start, length(b.bytes)"
    f" FROM {STREAM_BATCH} s LEFT JOIN {BODY} b ON b.lsn = coalesce(s.body_lsn, s.lsn)"
    " WHERE s.stream_id = ? AND s.base_offset >= ? ORDER BY s.base_offset LIMIT ?"
)

_BODIES: Final = (
    "SELECT c.lsn, c.bytes, c.batches, length(b.bytes),"
    f" (SELECT count(*) FROM {STREAM_BATCH} s WHERE s.body_lsn = c.lsn)"
    f" FROM {COUNTED_BODY} c LEFT JOIN {BODY} b USING (lsn) WHERE c.lsn > ? ORDER BY c.lsn LIMIT ?"
)
_UNCOUNTED: Final = (
    f"SELECT s.body_lsn, s.stream_id, s.base_offset FROM {STREAM_BATCH} s"
    f" LEFT JOIN {COUNTED_BODY} c ON c.lsn = s.body_lsn"
    " WHERE s.body_lsn IS NOT NULL AND c.lsn IS NULL LIMIT 100"
)


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
                gone = dropping.ids(db)
                self._streams = [each for each in self._streams if each not in gone]
            if self._streams and self._slice(db, self._streams[0]):
                self._streams.pop(0)
                self._expected = None
        except READ_ERRORS as error:
            self._report.add(
                f"the streams' tables cannot be read: {in_words(error)}",
                table=STREAM_BATCH,
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
            if stream_id in dropping.ids(db):
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
        for row in rows:
            self._check_batch(row, limits[0])
        if len(rows) == SLICE_ROWS:
            return False
        self._check_end(limits)
        return True

    def _check_batch(self, row: tuple[Any, ...], first_offset: int) -> None:
        base, count, lsn, size, start, length = row
        if self._expected is None:
            if not base <= first_offset < base + count:
                self._problem(
                    f"the first batch has offsets {base} to {base + count - 1}, the first kept "
                    f"offset is {first_offset}",
                    base,
                )
        elif base != self._expected:
            self._problem(f"offset {base} comes where {self._expected} should", self._expected)
        self._expected = base + count
        self._bytes += size
        if count < 1:
            self._problem(f"the batch at offset {base} has {count} records", base, lsn)
        if length is None:
            self._problem(f"the batch at offset {base} has lost its bytes", base, lsn, BODY)
        elif start is None and length != size:
            self._problem(f"the batch at offset {base} has {length} bytes, not {size}", base, lsn)
        elif start is not None and length < start + size:
            self._problem(
                f"the batch at offset {base} has bytes {start} to {start + size} of a body of "
                f"{length}",
                base,
                lsn,
            )

    def _check_end(self, limits: tuple[int, int, int]) -> None:
        first, following, size = limits
        end = self._expected if self._expected is not None else first
        if end != following:
            self._problem(f"its batches end at offset {end}, the next one is {following}", end)
        if first == self._first and size != self._bytes:
            self._problem(f"its batches have {self._bytes} bytes, it says {size}", first)

    def _problem(self, text: str, offset: int, lsn: int = 0, table: str = STREAM_BATCH) -> None:
        self._report.add(
            f"stream {self._stream}: {text}",
            table=table,
            lsn=lsn,
            stream_id=self._stream,
            offset=offset,
        )


class BodiesCheck:
    """Counted bodies are here whole, and have as many batches as is said of them."""

    name = "counted bodies"

    def __init__(self, report: Report) -> None:
        self._report = report
        self._lsn = 0

    def step(self, db: apsw.Connection) -> bool:
        try:
            rows: list[Any] = db.execute(_BODIES, (self._lsn, SLICE_ROWS)).fetchall()
        except READ_ERRORS as error:
            self._report.add(
                f"counted bodies cannot be read: {in_words(error)}",
                table=COUNTED_BODY,
                is_unreadable=True,
            )
            return True
        for self._lsn, size, said, length, batches in rows:
            if length is None:
                self._problem(f"the body of entry {self._lsn} is missing", BODY)
            elif size != length:
                self._problem(f"the body of entry {self._lsn} has {length} bytes, not {size}")
            if said != batches:
                self._problem(f"the body of entry {self._lsn} is in {batches} batches, not {said}")
        if len(rows) == SLICE_ROWS:
            return False
        rows = db.execute(_UNCOUNTED).fetchall()
        for lsn, stream_id, base in rows:
            self._report.add(
                f"stream {stream_id}: the batch at offset {base} is in the body of entry {lsn}, "
                "which is not counted",
                table=COUNTED_BODY,
                lsn=lsn,
                stream_id=stream_id,
                offset=base,
            )
        return True

    def _problem(self, text: str, table: str = COUNTED_BODY) -> None:
        self._report.add(text, table=table, lsn=self._lsn)


FEATURE: Final = Feature(name="stream checks", checks=(StreamsCheck, BodiesCheck))
