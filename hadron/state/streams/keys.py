"""The latest record of each key, of streams that are declared with `keys: indexed`.

A replica does not look into bodies: the command brings the hashes of the keys, which the leader has
from the batch's head. So the index is of hashes. Safety rule: it is of every record with a key that
the partition keeps, from its first on, or there is none: who declares a stream says which, for
ever. Two keys with one hash (64 bits) share a row, which is of the later record: a condition on one
of them may be refused for the other's sake, and is never met by mistake (PROTOCOL D5).
"""

from __future__ import annotations

from typing import Any, Final

import apsw

from hadron.model.batch import key_hashes
from hadron.model.columns import view
from hadron.model.errors import HadronError
from hadron.model.kinds import spec_from_json
from hadron.model.ports import Database
from hadron.model.schema import INDEXED, StreamSpec
from hadron.model.tables import PREFIX
from hadron.state import slices
from hadron.state.machine import Context, Feature
from hadron.state.schema import SCHEMA_OBJECT
from hadron.state.streams.tables import STREAM_BATCH, STREAM_PARTITION
from hadron.storage.bodies import BODY
from hadron.storage.database import READ_ERRORS, in_words
from hadron.storage.report import SLICE_BYTES, Report

STREAM_KEY: Final = PREFIX + "stream_key"
_BY_OFFSET: Final = PREFIX + "stream_key_by_offset"

_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {STREAM_KEY}(
    stream_id INTEGER NOT NULL,
    key_hash INTEGER NOT NULL,          -- xxh3-64 of the key, as a signed number
    offset INTEGER NOT NULL,            -- of the latest record; below the first kept one: dropped
    PRIMARY KEY (stream_id, key_hash)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {_BY_OFFSET} ON {STREAM_KEY}(stream_id, offset);
"""

_SET: Final = (
    f"INSERT INTO {STREAM_KEY} VALUES(?, ?, ?) ON CONFLICT DO UPDATE SET offset = excluded.offset"
)
_GET: Final = (
    f"SELECT k.offset FROM {STREAM_KEY} k JOIN {STREAM_PARTITION} p USING (stream_id)"
    " WHERE k.stream_id = ? AND k.key_hash = ? AND k.offset >= p.first_offset"
)
_DROP: Final = (
    f"DELETE FROM {STREAM_KEY} WHERE (stream_id, key_hash) IN (SELECT k.stream_id, k.key_hash"
    f" FROM {STREAM_KEY} k JOIN {STREAM_PARTITION} p USING (stream_id)"
    " WHERE k.stream_id = ? AND k.offset < p.first_offset ORDER BY k.offset LIMIT ?)"
)
_IS_INDEXED: Final = (
    f"SELECT 1 FROM {SCHEMA_OBJECT} WHERE id = ? AND json_extract(spec, '$.keys') = ?"
)
_OWNED: Final = slices.Owned(STREAM_KEY, "stream_id, key_hash", "stream_id = ?")

NO_OFFSET: Final = -1
"""Of a key that has no record."""

_DROPPED_PER_RECORD: Final = 2
"""Rows of dropped records go with the appends that come after, two for each record: so they end,
and neither a slice of retention nor an append waits for many of them (PROTOCOL F3)."""


def signed(key_hash: int) -> int:
    """As SQLite's integers are."""
    return key_hash - (1 << 64) if key_hash >> 63 else key_hash


def latest(db: Database, stream_id: int, key_hash: int) -> int:
    """The offset of the latest kept record with a key of this hash, or `NO_OFFSET`."""
    row = db.execute(_GET, (stream_id, signed(key_hash))).fetchone()
    return int(row[0]) if row is not None else NO_OFFSET


def is_indexed(db: Database, stream_id: int) -> bool:
    """Whether a stream is declared so. For who has not got its specification."""
    row = db.execute(_IS_INDEXED, (stream_id, INDEXED)).fetchone()
    return row is not None


def hashes_of(packed: bytes) -> list[int]:
    """One for each record, 0 for none; nothing where no record has a key."""
    return list(view("Q", memoryview(packed)))


def note(context: Context, stream_id: int, base_offset: int, packed: bytes) -> None:
    """Records with keys of these hashes have been appended from `base_offset` on."""
    newest = {each: base_offset + index for index, each in enumerate(hashes_of(packed)) if each}
    db = context.db
    if newest:
        db.executemany(_SET, [(stream_id, signed(each), offset) for each, offset in newest.items()])
        db.execute(_DROP, (stream_id, _DROPPED_PER_RECORD * len(newest)))


def _trimmed(context: Context, stream_id: int, _first_offset: int) -> None:
    context.db.execute(_DROP, (stream_id, slices.SLICE_ROWS))


def _close(context: Context, stream_id: int) -> bool:
    left = context.db.execute(
        f"SELECT 1 FROM {STREAM_KEY} WHERE stream_id = ? LIMIT 1", (stream_id,)
    )
    return left.fetchone() is not None


def _drop_some(context: Context, stream_id: int, portion: slices.Portion) -> slices.Dropped:
    rows = slices.delete_some(context.db, [_OWNED], stream_id, portion.rows)
    return slices.Dropped(rows, is_done=rows < portion.rows)


# --- verification -------------------------------------------------------------------------------

_BATCHES: Final = (
    "SELECT s.base_offset, s.count, s.bytes, coalesce(s.start, 0), b.bytes"
    f" FROM {STREAM_BATCH} s LEFT JOIN {BODY} b ON b.lsn = coalesce(s.body_lsn, s.lsn)"
    " WHERE s.stream_id = ? AND s.base_offset >= ? ORDER BY s.base_offset"
)
_ROWS: Final = (
    f"SELECT key_hash, offset FROM {STREAM_KEY} WHERE stream_id = ? AND offset >= ? AND offset < ?"
)
_ROW: Final = f"SELECT offset FROM {STREAM_KEY} WHERE stream_id = ? AND key_hash = ?"
_BEYOND: Final = (
    f"SELECT count(*) FROM {STREAM_KEY} k JOIN {STREAM_PARTITION} p USING (stream_id)"
    " WHERE k.stream_id = ? AND k.offset >= p.next_offset"
)


class StreamKeysCheck:
    """Of every key in the batches the index has the latest record, and of none that is not there.

    Every record of the batches is looked for, and every row among them: a row that is not below any
    record of its key, and is one itself, is the latest."""

    name = "key index"

    def __init__(self, report: Report) -> None:
        self._report = report
        self._streams: list[int] | None = None
        self._offset = 0

    def step(self, db: apsw.Connection) -> bool:
        try:
            if self._streams is None:
                self._streams = _indexed(db)
            if self._streams and self._slice(db, self._streams[0]):
                self._streams.pop(0)
                self._offset = 0
        except READ_ERRORS as error:
            self._report.add(
                f"the key index cannot be read: {in_words(error)}",
                table=STREAM_KEY,
                is_unreadable=True,
            )
            return True
        return not self._streams

    def _slice(self, db: apsw.Connection, stream_id: int) -> bool:
        """Some batches of a stream; whether it was the last of them."""
        read = 0
        rows: Any = db.execute(_BATCHES, (stream_id, self._offset))
        for base, count, size, start, body in rows:
            if read >= SLICE_BYTES:
                return False
            self._offset = base + count
            read += size
            # What is missing or damaged is the other checks' to tell.
            if type(body) is bytes:
                try:
                    hashes = list(key_hashes(memoryview(body)[start : start + size]))
                except (HadronError, ValueError, IndexError):
                    continue
                self._check_batch(db, stream_id, base, count, hashes)
        beyond: Any = db.execute(_BEYOND, (stream_id,)).fetchone()
        if beyond[0]:
            self._problem(stream_id, f"{beyond[0]} keys have their latest record behind its end")
        return True

    def _check_batch(
        self, db: apsw.Connection, stream_id: int, base: int, count: int, hashes: list[int]
    ) -> None:
        here = {signed(each): base + index for index, each in enumerate(hashes) if each}
        for key_hash, offset in here.items():
            row: Any = db.execute(_ROW, (stream_id, key_hash)).fetchone()
            if row is None:
                self._problem(stream_id, f"the key of offset {offset} is not indexed", offset)
            elif row[0] < offset:
                text = f"the key of offset {offset} is said to have its latest record at {row[0]}"
                self._problem(stream_id, text, offset)
        rows: Any = db.execute(_ROWS, (stream_id, base, base + count))
        for key_hash, offset in rows:
            if here.get(key_hash) != offset:
                text = f"offset {offset} is said to be the latest of a key that it does not have"
                self._problem(stream_id, text, offset)

    def _problem(self, stream_id: int, text: str, offset: int = 0) -> None:
        self._report.add(
            f"stream {stream_id}: {text}", table=STREAM_KEY, stream_id=stream_id, offset=offset
        )


def _indexed(db: apsw.Connection) -> list[int]:
    """Streams whose keys are indexed."""
    found: Any = db.execute(
        f"SELECT id, spec FROM {SCHEMA_OBJECT} JOIN {STREAM_PARTITION} ON stream_id = id"
        " WHERE kind = 'Stream' ORDER BY id"
    )
    ids = []
    for stream_id, written in found.fetchall():
        try:
            spec = spec_from_json("Stream", written)
        except HadronError:
            continue
        if isinstance(spec, StreamSpec) and spec.has_key_index:
            ids.append(stream_id)
    return ids


FEATURE: Final = Feature(
    name="stream keys",
    tables=_TABLES,
    deleted={"Stream": _close},
    leftovers={"Stream": _drop_some},
    trimmed=_trimmed,
    checks=(StreamKeysCheck,),
)
