"""One node's `hadron.db`, read as any SQLite tool would: the standard library's, `mode=ro`.

The demo must not judge a node by the node's own code, so nothing of `storage` or `state` is used
here; the tables and the chain's formula are those that the file format documents. A read-only
connection never checkpoints and never drops the write-ahead log, so it does no harm to a live file.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import xxhash

from hadron.model.errors import CorruptionError, StorageError
from hadron.model.record_batch import RecordBatch, decode_batch

_NO_HASH: Final = bytes(16)
_NUMBERS: Final = struct.Struct("<QQQQ")


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch of a stream as the tables have it; `data` is None when its body is missing."""

    base_offset: int
    count: int
    lsn: int
    data: bytes | None


class NodeFile:
    """A read-only view of one node's database at one moment. A context manager.

    Args:
        name: the node's, for messages.
        path: its `hadron.db`.

    Raises `StorageError` when the file cannot be read.
    """

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path
        self._db = self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._db.close()

    def _open(self) -> sqlite3.Connection:
        uri = f"{self.path.absolute().as_uri()}?mode=ro"
        try:
            connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5)
        except sqlite3.Error as error:
            raise self._unreadable(error) from error
        try:
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM hadron_log").fetchone()
        except sqlite3.Error as error:
            connection.close()
            raise self._unreadable(error) from error
        return connection

    def _unreadable(self, error: sqlite3.Error) -> StorageError:
        return StorageError(
            f"{self.name}'s file {self.path} cannot be read: {error}",
            "is it a node's hadron.db, and may this user read it and write beside it?",
        )

    def rows(self, sql: str, bindings: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield a query's rows. Raises `StorageError` where the file is damaged."""
        try:
            with closing(self._db.execute(sql, tuple(bindings))) as cursor:
                yield from cursor
        except sqlite3.Error as error:
            raise self._unreadable(error) from error

    def anchor(self) -> tuple[int, bytes]:
        """The last entry that was trimmed from the log, and its chain, which the first one that is
        left continues; entry 0 where none was."""
        return next(self.rows("SELECT lsn, chain FROM hadron_anchor"), (0, _NO_HASH))

    def chains(self) -> Iterator[tuple[int, bytes, str]]:
        """Recompute the hash chain from the anchor on: (lsn, the stored chain, "" or what does not
        fit there)."""
        anchor_lsn, previous = self.anchor()
        expected_lsn = anchor_lsn + 1
        for row in self.rows(
            "SELECT l.lsn, l.epoch, l.incarnation, l.now_ms, l.command, l.body_hash, l.chain,"
            " b.bytes FROM hadron_log l LEFT JOIN hadron_body b USING (lsn) ORDER BY l.lsn"
        ):
            lsn, epoch, incarnation, now_ms, command, body_hash, chain, body = row
            problem = ""
            if lsn != expected_lsn:
                problem = f"log entry {expected_lsn} is missing"
            elif body is not None and xxhash.xxh3_128_digest(body) != body_hash:
                problem = f"the record bytes of log entry {lsn} do not match their hash"
            elif body is None and body_hash != _NO_HASH:
                problem = f"the record bytes of log entry {lsn} are missing"
            else:
                numbers = _NUMBERS.pack(epoch, incarnation, lsn, now_ms)
                digest = xxhash.xxh3_128_digest(command)
                if xxhash.xxh3_128_digest(previous + numbers + digest + body_hash) != chain:
                    problem = f"log entry {lsn} does not continue the hash chain"
            yield lsn, chain, problem
            previous, expected_lsn = chain, lsn + 1

    def object_id(self, kind: str, name: str) -> int | None:
        """The id of a schema object of the default namespace, or None."""
        sql = (
            "SELECT id FROM hadron_schema_object"
            " WHERE kind = ? AND namespace = 'default' AND name = ?"
        )
        found = next(self.rows(sql, (kind, name)), None)
        return None if found is None else int(found[0])

    def batches(self, stream_id: int) -> Iterator[StoredBatch]:
        """A stream's batches in the order of their offsets."""
        for row in self.rows(
            "SELECT s.base_offset, s.count, s.lsn,"
            " iif(s.start IS NULL, b.bytes, substr(b.bytes, s.start + 1, s.bytes))"
            " FROM hadron_stream_batch s"
            " LEFT JOIN hadron_body b ON b.lsn = coalesce(s.body_lsn, s.lsn)"
            " WHERE s.stream_id = ? ORDER BY s.base_offset",
            (stream_id,),
        ):
            yield StoredBatch(*row)


def decode(batch: StoredBatch) -> RecordBatch:
    """Open a batch. Raises `CorruptionError` when it is missing, damaged or miscounted."""
    if batch.data is None:
        raise CorruptionError("its record bytes are missing")
    decoded = decode_batch(batch.data, base_offset=batch.base_offset)
    if len(decoded) != batch.count:
        raise CorruptionError(f"it holds {len(decoded)} records, the table says {batch.count}")
    return decoded
