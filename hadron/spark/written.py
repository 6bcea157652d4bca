"""From Arrow columns, as Spark's tasks are given them, to record batches, as they are stored.

Values and keys that are text or bytes are copied as blocks: what a row costs in Python is its key's
hash, and its headers where there are some. Which partition a record goes to is as with producers:
by its key, else a batch at a time (`client.producing.partitioner`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as st

from hadron.model.batch import BatchHead, encode_batch, key_hash
from hadron.model.bodies import BatchBody
from hadron.model.errors import InvalidRecordError, RecordTooLargeError, RequestError
from hadron.model.ids import EVENT_TYPE_FORM, is_event_type
from hadron.model.limits import (
    MAX_BATCH_RECORDS,
    MAX_RECORD_BYTES,
    MAX_TYPES_PER_BATCH,
    RECORD_OVERHEAD_BYTES,
)
from hadron.model.record import BYTES, JSON, TEXT
from hadron.spark.json_values import strange, to_json
from hadron.spark.parsed import doubled

TARGET_BYTES: Final = 768 << 10
"""Of a batch: two of them and a half are a commit of the leader; a largest record fits on top."""

_TEXT: Final = (st.StringType,)
_PLAIN: Final = (st.StringType, st.BinaryType)

_COLUMNS: Final[Mapping[str, str]] = {
    "value": "binary, string, or anything that JSON has",
    "key": "binary or string",
    "type": "string",
    "partition": "string",
    "headers": "map<string,string>",
    "timestamp": "timestamp",
}

_READ_ONLY: Final = ("stream", "offset")


def check_columns(schema: st.StructType) -> None:
    """Raises `RequestError` for columns that cannot be written, before anything is."""
    for field in schema.fields:
        name, kind = field.name, field.dataType
        if name not in _COLUMNS:
            way = "leave it out: the cluster gives it" if name in _READ_ONLY else (
                "put it into the value, such as struct(*) AS value"
            )  # fmt: skip
            raise RequestError(f"column {name!r} cannot be written", f"{way}; {_known()}")
        if not _fits(name, kind):
            raise RequestError(
                f"column {name!r} is {kind.simpleString()}, not {_COLUMNS[name]}",
                "cast it, or take to_json of it",
            )
        if twice := doubled(kind):
            raise RequestError(
                f"column {name!r} has the member {twice!r} twice", "name each member once"
            )
    if "value" not in schema.fieldNames():
        raise RequestError(
            "there is no column 'value'", f"name one, such as struct(*) AS value; {_known()}"
        )
    if len(set(schema.fieldNames())) < len(schema.fieldNames()):
        raise RequestError(f"a column is there twice: {', '.join(schema.fieldNames())}")


def _known() -> str:
    return "there are " + ", ".join(f"{name} ({kind})" for name, kind in _COLUMNS.items())


def _fits(name: str, kind: st.DataType) -> bool:
    if name == "value":
        return strange(kind) is None
    if name == "key":
        return isinstance(kind, _PLAIN)
    if name == "timestamp":
        return isinstance(kind, st.TimestampType)
    if name == "headers":
        return (
            isinstance(kind, st.MapType)
            and isinstance(kind.keyType, _TEXT)
            and isinstance(kind.valueType, _TEXT)
        )
    return isinstance(kind, _TEXT)


class Packer:
    """Gathers a task's rows by partition, and makes batches of them.

    Args:
        stream: where they go.
        partitions: of the stream, in declared order.
        first: which one the round begins with, for rows without a key.
        now_ms: the time of rows without one.
    """

    def __init__(
        self,
        stream: str,
        partitions: Sequence[str],
        *,
        first: int,
        now_ms: int,
        codec: str = "none",
    ) -> None:
        self._stream = stream
        self._partitions = list(partitions)
        self._turn = first % len(self._partitions)
        self._now_ms = now_ms
        self._codec = codec
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._bytes: dict[str, int] = {}

    def add(self, rows: pa.RecordBatch) -> Iterator[tuple[str, bytes, int]]:
        """Batches that are complete, each with its partition and its records. Raises
        `InvalidRecordError` and `RecordTooLargeError` for rows that cannot be written,
        `RequestError` for a partition that does not exist."""
        if not rows.num_rows:
            return
        _check_text(rows)
        plain = _plain(rows, self._now_ms)
        for partition, part in self._routed(rows, plain):
            self._waiting.setdefault(partition, []).append(part)
            self._bytes[partition] = self._bytes.get(partition, 0) + part.nbytes
            if self._bytes[partition] >= TARGET_BYTES:
                yield from self._packed(partition)
        self._turn = (self._turn + 1) % len(self._partitions)

    def finish(self) -> Iterator[tuple[str, bytes, int]]:
        """What is left."""
        for partition in list(self._waiting):
            yield from self._packed(partition)

    def _routed(
        self, rows: pa.RecordBatch, plain: pa.RecordBatch
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        count = len(self._partitions)
        places = np.full(rows.num_rows, self._turn, np.int64)
        if "hash" in plain.schema.names:
            hashes = plain.column("hash").to_numpy(zero_copy_only=False)
            places = np.where(hashes != 0, (hashes % np.uint64(count)).astype(np.int64), places)
        if "partition" in rows.schema.names:
            named = pc.index_in(rows.column("partition"), pa.array(self._partitions, pa.string()))
            strangers = pc.filter(
                rows.column("partition"),
                pc.and_(pc.is_null(named), pc.is_valid(rows.column("partition"))),
            )
            if len(strangers):
                raise RequestError(
                    f"stream {self._stream!r} has no partition {strangers[0].as_py()!r}",
                    f"it has {', '.join(self._partitions)}; null leaves it to the key",
                )
            chosen = named.fill_null(-1).to_numpy(zero_copy_only=False)
            places = np.where(chosen >= 0, chosen, places)
        wanted = np.unique(places)
        for place in wanted.tolist():
            part = plain if len(wanted) == 1 else plain.filter(pa.array(places == place))
            yield self._partitions[place], part

    def _packed(self, partition: str) -> Iterator[tuple[str, bytes, int]]:
        parts = self._waiting.pop(partition)
        del self._bytes[partition]
        whole: Any = pa.Table.from_batches(parts).combine_chunks()
        for rows in whole.to_batches():
            for start, stop in _cuts(rows):
                part = rows.slice(start, stop - start)
                yield partition, _encoded(part, self._codec), stop - start


def _check_text(rows: pa.RecordBatch) -> None:
    """Raises `InvalidRecordError` where a string is none: Spark's may be any bytes."""
    try:
        rows.validate(full=True)
    except pa.ArrowInvalid:
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            for index in range(len(column)):
                try:
                    column[index].as_py()
                except UnicodeDecodeError as error:
                    data: bytes = error.object
                    raise InvalidRecordError(
                        f"column {name!r} has the string {data[:60]!r}, which is not UTF-8",
                        "decode it, or cast it to binary",
                    ) from None
                except (OverflowError, ValueError):
                    # A time that Python has not.
                    continue
        raise


def _plain(rows: pa.RecordBatch, now_ms: int) -> pa.RecordBatch:
    """The rows as they are stored: value and its encoding, key, its hash and encoding, time in
    milliseconds, type, headers; the last ones where they are given."""
    names = rows.schema.names
    columns: dict[str, Any] = {}
    columns["value"], columns["encoding"] = _values(rows.column("value"))
    if "key" in names:
        keys = rows.column("key")
        encoding = TEXT if _is_text(keys.type) else BYTES
        columns["key"] = keys = _as_binary(keys)
        hashes = [0 if each is None else key_hash(each) for each in keys.to_pylist()]
        columns["hash"] = pa.array(np.array(hashes, np.uint64))
        columns["key_encoding"] = pa.array(np.full(len(hashes), encoding, np.uint8))
    if "timestamp" in names:
        micros = rows.column("timestamp").cast(pa.timestamp("us")).cast(pa.int64())
        millis = micros.fill_null(now_ms * 1_000).to_numpy(zero_copy_only=False) // 1_000
    else:
        millis = np.full(rows.num_rows, now_ms, np.int64)
    columns["ms"] = pa.array(millis)
    if "type" in names:
        columns["type"] = rows.column("type").cast(pa.string()).fill_null("")
    if "headers" in names:
        columns["headers"] = rows.column("headers")
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _values(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Bytes without nulls, and how each is encoded."""
    if _is_text(column.type) or _is_bytes(column.type):
        encoding = np.full(len(column), TEXT if _is_text(column.type) else BYTES, np.uint8)
        data = _as_binary(column)
        if data.null_count:
            encoding[column.is_null().to_numpy(zero_copy_only=False)] = JSON
            data = data.fill_null(b"null")
        return data, pa.array(encoding)
    return to_json(column), pa.array(np.full(len(column), JSON, np.uint8))


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _as_binary(column: pa.Array) -> pa.Array:
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())


def _cuts(rows: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """Where batches begin and end. Raises `RecordTooLargeError`."""
    sizes = np.diff(_offsets(rows.column("value"))).astype(np.int64) + RECORD_OVERHEAD_BYTES
    if "key" in rows.schema.names:
        sizes += np.diff(_offsets(rows.column("key"))) + 12
    if "headers" in rows.schema.names:
        sizes += np.array([_header_bytes(each) for each in rows.column("headers").to_pylist()])
    largest = int(sizes.max())
    if largest > MAX_RECORD_BYTES:
        raise RecordTooLargeError(
            f"a row makes a record of {largest} bytes, over the limit of {MAX_RECORD_BYTES}",
            "store large objects elsewhere and send a reference",
        )
    ends = np.cumsum(sizes)
    start = 0
    while start < rows.num_rows:
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + TARGET_BYTES, side="right"))
        stop = min(max(stop, start + 1), start + MAX_BATCH_RECORDS, rows.num_rows)
        yield start, stop
        start = stop


def _header_bytes(pairs: Sequence[tuple[str, str | None]] | None) -> int:
    return sum(
        len(name.encode()) + len((content or "").encode()) + 8 for name, content in pairs or ()
    )


def _offsets(column: pa.Array) -> Any:
    """Where each value begins, and the last one ends; int32."""
    buffer = column.buffers()[1]
    return np.frombuffer(buffer, np.int32)[column.offset : column.offset + len(column) + 1]


def _encoded(rows: pa.RecordBatch, codec: str) -> bytes:
    names = rows.schema.names
    head = BatchHead(n=rows.num_rows, ts=_packed_numbers(rows.column("ms"), "<i8"))
    v, vo = _block(rows.column("value"))
    body = BatchBody(v=v, vo=vo, ve=_packed_numbers(rows.column("encoding"), "u1"))
    if "key" in names and rows.column("key").null_count < rows.num_rows:
        head.kh = memoryview(rows.column("hash").to_numpy().astype("<u8").tobytes())
        body.k, body.ko = _block(rows.column("key"))
        body.ke = _packed_numbers(rows.column("key_encoding"), "u1")
    if "type" in names:
        _set_types(head, rows.column("type"))
    if "headers" in names:
        body.h = list(_headers(rows.column("headers")))
    return encode_batch(head, body, codec)


def _packed_numbers(column: pa.Array, kind: str) -> memoryview:
    """One value when all are equal, the column itself otherwise."""
    numbers = column.to_numpy(zero_copy_only=False)
    if (numbers == numbers[0]).all():
        numbers = numbers[:1]
    return memoryview(numbers.astype(kind).tobytes())


def _block(column: pa.Array) -> tuple[Any, memoryview]:
    """Values back to back, and where each of them begins in there. Nulls are empty in Arrow's
    layout as Spark writes it; where one is not, its bytes go."""
    offsets = _offsets(column)
    if (
        column.null_count
        and np.diff(offsets)[column.is_null().to_numpy(zero_copy_only=False)].any()
    ):
        column = column.fill_null(b"")
        offsets = _offsets(column)
    data = column.buffers()[2]
    first, last = int(offsets[0]), int(offsets[-1])
    values = b"" if data is None else memoryview(data)[first:last]
    return values, memoryview((offsets - first).astype("<i4").tobytes())


def _set_types(head: BatchHead, column: pa.Array) -> None:
    coded = column.dictionary_encode()
    names: list[str] = coded.dictionary.to_pylist()
    for name in names:
        if name and not is_event_type(name):
            raise InvalidRecordError(f"{name[:60]!r} is not a type", EVENT_TYPE_FORM)
    if len(names) > MAX_TYPES_PER_BATCH:
        raise InvalidRecordError(
            f"{len(names)} different types in {len(column)} rows",
            f"{MAX_TYPES_PER_BATCH} are the most: a type says what kind of record it is",
        )
    if names == [""]:
        return
    head.t = names
    if len(names) > 1:
        codes = coded.indices.to_numpy(zero_copy_only=False)
        head.tc = memoryview(codes.astype("<u2").tobytes())


def _headers(column: pa.Array) -> Iterator[tuple[int, dict[str, str]]]:
    for index, pairs in enumerate(column.to_pylist()):
        if pairs:
            for name, content in pairs:
                if content is None:
                    raise InvalidRecordError(
                        f"header {name!r} is null", "leave it out of the map, or give it a text"
                    )
            yield index, dict(pairs)
