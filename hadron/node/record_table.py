"""The records of a node's file as an SQL table: `SELECT … FROM record`. Read-only.

A module of its own because values stand in the file as batches, which no SQL reads: a virtual
table opens them. It never holds a read transaction while somebody looks at rows: rows come a few
batches at a time, each read in a transaction of its own that is over before the first of them is
shown (PROTOCOL F2: a transaction that stays open keeps the write-ahead log of a live node from
starting again). What lies above the watermark that it was made with is not shown (PROTOCOL A2).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import apsw

from hadron.model.errors import CorruptionError
from hadron.model.record import BYTES
from hadron.model.record_batch import RecordBatch, decode_batch
from hadron.state.schema import SCHEMA_OBJECT
from hadron.state.streams.tables import STREAM_BATCH, STREAM_PARTITION
from hadron.storage.bodies import BODY
from hadron.storage.database import READ_ERRORS, in_words, read_transaction

COLUMNS: Final = (
    "namespace",
    "stream",
    "partition",
    "offset",
    "id",
    "timestamp_ms",
    "append_ms",
    "type",
    "key",
    "headers",
    "content_type",
    "value",
)
"""Times are milliseconds since the Unix epoch: the record's own, and that of the leader that logged
it. Keys and values are text or, as they were sent, blobs; JSON values are JSON text. Headers are a
JSON object, NULL without any."""

_OF_BATCH: Final = frozenset(
    map(COLUMNS.index, ("namespace", "stream", "partition", "offset", "append_ms"))
)
"""What is known of a record without its batch's bytes."""
_NAMESPACE, _STREAM, _OFFSET = map(COLUMNS.index, ("namespace", "stream", "offset"))

_CHUNK_BATCHES: Final = 256
_CHUNK_BYTES: Final = 4 << 20
"""So much is read in one transaction: milliseconds."""

_EQUAL: Final = apsw.SQLITE_INDEX_CONSTRAINT_EQ
_ABOVE: Final = apsw.SQLITE_INDEX_CONSTRAINT_GT
_FROM: Final = apsw.SQLITE_INDEX_CONSTRAINT_GE
_BELOW: Final = apsw.SQLITE_INDEX_CONSTRAINT_LT
_UNTIL: Final = apsw.SQLITE_INDEX_CONSTRAINT_LE
_USED: Final = {
    (_NAMESPACE, _EQUAL),
    (_STREAM, _EQUAL),
    (_OFFSET, _EQUAL),
    (_OFFSET, _ABOVE),
    (_OFFSET, _FROM),
    (_OFFSET, _BELOW),
    (_OFFSET, _UNTIL),
}
"""Constraints that spare reading: the others are SQLite's to check."""

OnDamage = Callable[[str, BaseException], None]
"""Told what could not be read, and why; its records are left out."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of a stream: `size` bytes of the body of entry `body_lsn`, from `start` on, or all of
    its own entry's. `data` is None when nobody asked for it."""

    base_offset: int
    count: int
    lsn: int
    append_ms: int
    size: int = 0
    body_lsn: int | None = None
    start: int | None = None
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class RecordTable:
    """The module behind the table; `register` it with any connection.

    Attributes:
        source: a read-only connection to a node's database, used by this table alone.
        partition: the replica set whose database it is; None when nobody knows.
        watermark: entries up to this lsn are committed, and shown.
        on_damage: told of each batch that cannot be read.
    """

    source: apsw.Connection
    partition: str | None
    watermark: int
    on_damage: OnDamage

    def register(self, connection: apsw.Connection, name: str = "record") -> None:
        """Make it a table of `connection`, without a trace in any file."""
        # What an eponymous table never needs is not here (Create, ShadowName).
        module: Any = self
        connection.create_module(
            name, module, use_bestindex_object=True, eponymous_only=True, read_only=True
        )

    # --- as apsw calls a module and its table ---------------------------------------------------

    def Connect(self, *_: Any) -> tuple[str, RecordTable]:  # noqa: N802 - SQLite's names
        return f"CREATE TABLE record({', '.join(COLUMNS)})", self

    def BestIndexObject(self, index: apsw.IndexInfo) -> bool:  # noqa: N802
        used: list[str] = []
        for number in range(index.nConstraint):
            what = index.get_aConstraint_iColumn(number), index.get_aConstraint_op(number)
            if what in _USED and index.get_aConstraint_usable(number):
                used.append("{} {}".format(*what))
                index.set_aConstraintUsage_argvIndex(number, len(used))
        index.idxStr = ";".join(used)
        index.idxNum = int(not index.colUsed <= _OF_BATCH)
        named = any(each.startswith(f"{_STREAM} ") for each in used)
        bounded = any(each.startswith(f"{_OFFSET} ") for each in used)
        index.estimatedRows = 10_000_000 >> (5 * named) >> (8 * bounded)
        index.estimatedCost = float(index.estimatedRows * (10 if index.idxNum else 1))
        return True

    def Open(self) -> _Cursor:  # noqa: N802
        return _Cursor(self)

    def Disconnect(self) -> None:  # noqa: N802
        """Nothing of this table's own is open."""

    Destroy = Disconnect

    # --- reading --------------------------------------------------------------------------------

    def streams(self) -> list[tuple[int, str, str]]:
        """(id, namespace, name) of those that have a partition here."""
        with _damage_told("its streams"):
            rows: list[Any] = self.source.execute(
                f"SELECT o.id, o.namespace, o.name FROM {SCHEMA_OBJECT} o"
                f" JOIN {STREAM_PARTITION} p ON p.stream_id = o.id WHERE o.kind = 'Stream'"
                f" ORDER BY o.id"
            ).fetchall()
        return rows

    def batches(
        self, stream_id: int, stream: str, first: int, end: int, *, with_data: bool
    ) -> Iterator[Batch | tuple[Batch, BaseException]]:
        """Committed ones with records from `first` to below `end`; of those whose bytes cannot be
        read, what is wrong. Raises `CorruptionError` where nobody can say which ones there are."""
        while True:
            with _damage_told(f"which batches {stream} has from offset {first} on"):
                chunk = self._chunk(stream_id, first, end, with_data)
            if not chunk:
                return
            yield from chunk
            last = chunk[-1]
            batch = last if isinstance(last, Batch) else last[0]
            first = batch.base_offset + batch.count

    def _chunk(
        self, stream_id: int, first: int, end: int, with_data: bool
    ) -> list[Batch | tuple[Batch, BaseException]]:
        chunk: list[Batch | tuple[Batch, BaseException]] = []
        size = 0
        with read_transaction(self.source):
            rows: list[Any] = self.source.execute(
                "SELECT base_offset, count, lsn, append_ms, bytes, body_lsn, start"
                f" FROM {STREAM_BATCH}"
                " WHERE stream_id = ?1 AND base_offset < ?3 AND base_offset >= coalesce(("
                f"  SELECT max(base_offset) FROM {STREAM_BATCH}"
                "  WHERE stream_id = ?1 AND base_offset <= ?2), 0)"
                " AND base_offset + count > ?2 AND lsn <= ?4 ORDER BY base_offset LIMIT ?5",
                (stream_id, first, end, self.watermark, _CHUNK_BATCHES),
            ).fetchall()
            for row in rows:
                batch = Batch(*row)
                if with_data:
                    try:
                        batch = replace(batch, data=self._bytes(batch))
                    except (CorruptionError, *READ_ERRORS) as error:
                        chunk.append((batch, error))
                        continue
                chunk.append(batch)
                size += len(batch.data or b"")
                if size >= _CHUNK_BYTES:
                    break
        return chunk

    def _bytes(self, batch: Batch) -> bytes:
        lsn = batch.lsn if batch.body_lsn is None else batch.body_lsn
        row = self.source.execute(f"SELECT bytes FROM {BODY} WHERE lsn = ?", (lsn,)).fetchone()
        if row is None or type(row[0]) is not bytes:
            raise CorruptionError(f"the body of entry {lsn} is missing")
        body: bytes = row[0]
        return body if batch.start is None else body[batch.start : batch.start + batch.size]


class _Cursor:
    """One scan."""

    def __init__(self, table: RecordTable) -> None:
        self._table = table
        self._rows: Iterator[tuple[str, str, Batch, RecordBatch | None, int]] = iter(())
        self._row: tuple[str, str, Batch, RecordBatch | None, int] | None = None
        self._number = 0

    def Filter(self, with_data: int, used: str, values: tuple[Any, ...]) -> None:  # noqa: N802
        self._rows = self._scan(bool(with_data), used, values)
        self._number = 0
        self.Next()

    def _scan(
        self, with_data: bool, used: str, values: tuple[Any, ...]
    ) -> Iterator[tuple[str, str, Batch, RecordBatch | None, int]]:
        first, end = 0, (1 << 63) - 1
        names: dict[int, set[Any]] = {}
        for each, value in zip(filter(None, used.split(";")), values, strict=True):
            column, op = map(int, each.split())
            if column != _OFFSET:
                names.setdefault(column, set()).add(value)
            elif type(value) is int:
                # One that is no whole number, SQLite compares by its own rules.
                if op in (_EQUAL, _FROM, _ABOVE):
                    first = max(first, value + (op == _ABOVE))
                if op in (_EQUAL, _UNTIL, _BELOW):
                    end = min(end, value + (op != _BELOW))
        for stream_id, namespace, stream in self._table.streams():
            wanted = {_NAMESPACE: namespace, _STREAM: stream}
            if any(given != {wanted[column]} for column, given in names.items()):
                continue
            for batch, decoded in self._decoded(stream_id, stream, first, end, with_data):
                start = max(0, first - batch.base_offset)
                for index in range(start, min(batch.count, end - batch.base_offset)):
                    yield namespace, stream, batch, decoded, index

    def _decoded(
        self, stream_id: int, stream: str, first: int, end: int, with_data: bool
    ) -> Iterator[tuple[Batch, RecordBatch | None]]:
        table = self._table
        for found in table.batches(stream_id, stream, first, end, with_data=with_data):
            if not isinstance(found, Batch):
                self._tell(stream, *found)
                continue
            if found.data is None:
                yield found, None
                continue
            try:
                decoded = decode_batch(
                    found.data,
                    base_offset=found.base_offset,
                    stream=stream,
                    partition=table.partition or "",
                )
                if decoded.count != found.count:
                    raise CorruptionError(f"it has {decoded.count} records, not {found.count}")
            except CorruptionError as error:
                self._tell(stream, found, error)
                continue
            yield found, decoded

    def _tell(self, stream: str, batch: Batch, error: BaseException) -> None:
        last = batch.base_offset + batch.count - 1
        offsets = f"offset {last}" if batch.count == 1 else f"offsets {batch.base_offset} to {last}"
        where = f"{stream}/{self._table.partition}" if self._table.partition else stream
        if isinstance(error, READ_ERRORS):
            error = CorruptionError(in_words(error))
        self._table.on_damage(f"{offsets} of {where} (entry {batch.lsn})", error)

    def Next(self) -> None:  # noqa: N802
        self._row = next(self._rows, None)
        self._number += 1

    def Eof(self) -> bool:  # noqa: N802
        return self._row is None

    def Rowid(self) -> int:  # noqa: N802
        return self._number

    def Close(self) -> None:  # noqa: N802
        self._rows = iter(())

    def Column(self, number: int) -> Any:  # noqa: N802
        assert self._row is not None
        namespace, stream, batch, decoded, index = self._row
        name = COLUMNS[number] if number >= 0 else ""
        if name == "namespace":
            return namespace
        if name == "stream":
            return stream
        if name == "partition":
            return self._table.partition
        if name == "offset":
            return batch.base_offset + index
        if name == "append_ms":
            return batch.append_ms
        if decoded is None:
            return self._number
        (record,) = decoded.records(index, index + 1)
        if name == "value":
            is_text = decoded.value_encoding(index) != BYTES
            return _text(record.value_bytes) if is_text else record.value_bytes
        if name == "headers":
            return json.dumps(dict(record.headers), ensure_ascii=False) if record.headers else None
        return getattr(record, name)


@contextmanager
def _damage_told(what: str) -> Iterator[None]:
    """SQLite's word for it would be taken for one about the statement."""
    try:
        yield
    except READ_ERRORS as error:
        raise CorruptionError(
            f"the file is damaged, it does not tell {what}: {in_words(error)}",
            "`hadron verify` shows all that is damaged; ask another member's file",
        ) from error


def _text(data: bytes) -> str | bytes:
    """What is not the text that it should be stays as it is."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
