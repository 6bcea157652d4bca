"""JSON values as Arrow structs, a block at a time: what `value STRUCT<…>` is when a stream is read.

As `from_json` does, names that are not asked for are passed over, and missing ones are null. A
value that is no object, or no UTF-8, or has a member that does not fit, is null as a whole.
Timestamps without a zone are in the session's. A number may be "NaN", "Infinity" or "-Infinity", as
`to_json` writes those that JSON has not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import json as pa_json
from pyspark.sql import types as st

from hadron.model.errors import RequestError
from hadron.spark.zones import instants, zone_of

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_LOCAL: Final = pa.timestamp("us")
_ZONED: Final = r"[T ].*(?:Z|[+-]\d\d(?::?\d\d)?)$"
"""A time with a zone; what has none may end in `-01`, a day."""

_SCALARS: Final[dict[type[st.DataType], Any]] = {
    st.BooleanType: pa.bool_(),
    st.ByteType: pa.int8(),
    st.ShortType: pa.int16(),
    st.IntegerType: pa.int32(),
    st.LongType: pa.int64(),
    st.FloatType: pa.float32(),
    st.DoubleType: pa.float64(),
    st.StringType: pa.string(),
    st.TimestampType: _TIMESTAMP,
    st.TimestampNTZType: _LOCAL,
}


def unparsed(kind: st.DataType) -> st.DataType | None:
    """What of a type cannot be parsed; None when all of it can."""
    if isinstance(kind, st.StructType):
        return next(filter(None, (unparsed(each.dataType) for each in kind.fields)), None)
    if isinstance(kind, st.ArrayType):
        return unparsed(kind.elementType)
    return None if type(kind) in _SCALARS or isinstance(kind, st.DecimalType) else kind


def doubled(kind: st.DataType) -> str:
    """A name that two members of the same struct have, of which only one could be read; "" where
    there is none."""
    if isinstance(kind, st.ArrayType):
        return doubled(kind.elementType)
    if isinstance(kind, st.MapType):
        return doubled(kind.keyType) or doubled(kind.valueType)
    if not isinstance(kind, st.StructType):
        return ""
    names = kind.fieldNames()
    twice = next((name for name in names if names.count(name) > 1), "")
    return twice or next(filter(None, (doubled(each.dataType) for each in kind.fields)), "")


def arrow_type(kind: st.DataType) -> Any:
    """Of what `unparsed` has nothing against."""
    if isinstance(kind, st.StructType):
        return pa.struct([pa.field(each.name, arrow_type(each.dataType)) for each in kind.fields])
    if isinstance(kind, st.ArrayType):
        return pa.list_(arrow_type(kind.elementType))
    if isinstance(kind, st.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    return _SCALARS[type(kind)]


def parse(values: pa.Array, kind: Any, zone: str | None) -> pa.Array:
    """A struct for each of these bytes, null where there is none.

    Args:
        kind: the struct's type.
        zone: of timestamps that have none; None where it is not known.

    Raises `RequestError` for a timestamp without a zone where that is not known.
    """
    rows: list[bytes | None] = values.to_pylist()
    # Rows are parsed together, as one text: of two that are torn in the middle one object could be
    # made, and of one that is several as many as are missing then. These are parsed alone.
    together: list[int] = []
    alone: list[int] = []
    for index, row in enumerate(rows):
        if row and row.lstrip()[:1] == b"{":
            (together if _is_one_value(row) else alone).append(index)
    found = _parse([rows[index] or b"" for index in together], kind, zone)
    if len(together) == len(rows):
        return found
    if alone:
        torn = (_parse([rows[each] or b""], kind, zone) for each in alone)
        found = pa.concat_arrays([found, *torn])
    places = together + alone
    where = np.full(len(rows), -1, np.int64)
    where[places] = np.arange(len(places))
    return found.take(pa.array(where, mask=where < 0))


_Path = tuple[str | int, ...]

_NUMBERS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_ODD: Final = re.compile(rb'"(?:NaN|-?Infinity)"')

_raw: Final = msgspec.json.Decoder(msgspec.Raw).decode
_exact: Final = msgspec.json.Decoder(float_hook=Decimal).decode
_encode: Final = msgspec.json.Encoder(decimal_format="number").encode
"""All digits as they were."""


def _is_one_value(row: bytes) -> bool:
    try:
        _raw(row)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _parse(rows: Sequence[bytes], kind: Any, zone: str | None, *, has_odd: bool = True) -> pa.Array:
    """What does not fit is found by halving: a block of good rows costs 1 µs each.

    Args:
        has_odd: some may have numbers that are strings.
    """
    if not rows:
        return pa.nulls(0, kind)
    found = _parse_block(rows, kind, zone)
    if found is not None:
        return found
    odd = [index for index, row in enumerate(rows) if has_odd and _ODD.search(row)]
    if odd:
        even = sorted(set(range(len(rows))) - set(odd))
        parts = [
            _parse_odd([rows[each] for each in odd], kind, zone),
            _parse([rows[each] for each in even], kind, zone, has_odd=False),
        ]
        return pa.concat_arrays(parts).take(pa.array(np.argsort([*odd, *even])))
    if len(rows) == 1:
        return pa.nulls(1, kind)
    halves = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    return pa.concat_arrays([_parse(half, kind, zone, has_odd=False) for half in halves])


def _parse_odd(rows: Sequence[bytes], kind: Any, zone: str | None) -> pa.Array:
    """Arrow takes no string for a number: it is given 0, and what it stands for put there."""
    found = [_without_odd(row, kind) for row in rows]
    parsed = _parse([row for row, _ in found], kind, zone, has_odd=False)
    try:
        values: list[Any] = parsed.to_pylist()
    except (ValueError, OverflowError):
        # Python has not all times that there are.
        if len(rows) == 1:
            return _parse(rows, kind, zone, has_odd=False)
        halves = rows[: len(rows) // 2], rows[len(rows) // 2 :]
        return pa.concat_arrays([_parse_odd(half, kind, zone) for half in halves])
    for whole, (_, numbers) in zip(values, found, strict=True):
        for path, number in numbers if whole is not None else ():
            place = whole
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = number
    return pa.array(values, kind)


def _without_odd(row: bytes, kind: Any) -> tuple[bytes, list[tuple[_Path, float]]]:
    found: list[tuple[_Path, float]] = []
    try:
        value = _exact(row)
        _take_odd(value, kind, (), found)
        return (_encode(value) if found else row), found
    except (msgspec.DecodeError, ValueError, ArithmeticError, RecursionError):
        # What it is, and whether that fits, is found when it is parsed.
        return row, []


def _take_odd(value: Any, kind: Any, path: _Path, found: list[tuple[_Path, float]]) -> None:
    """Strings that stand for numbers become 0; where they were, and what they are, is `found`."""
    if pa.types.is_struct(kind) and isinstance(value, dict):
        steps: list[tuple[str | int, Any]] = [
            (field.name, field.type) for field in kind if field.name in value
        ]
    elif pa.types.is_list(kind) and isinstance(value, list):
        steps = [(index, kind.value_type) for index in range(len(value))]
    else:
        return
    for step, inner in steps:
        each = value[step]
        if pa.types.is_floating(inner) and isinstance(each, str) and each in _NUMBERS:
            found.append(((*path, step), _NUMBERS[each]))
            value[step] = 0
        else:
            _take_odd(each, inner, (*path, step), found)


def _parse_block(rows: Sequence[bytes], kind: Any, zone: str | None) -> pa.Array | None:
    """All of them; None where one does not fit."""
    data = b"\n".join(rows)
    try:
        # Arrow takes any bytes between quotes for text, which whoever reads it then fails at.
        data.decode()
        table = pa_json.read_json(
            pa.BufferReader(data),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=pa_json.ParseOptions(
                explicit_schema=pa.schema(list(_unread(kind))),
                newlines_in_values=True,
                unexpected_field_behavior="ignore",
            ),
        )
        if table.num_rows == len(rows):
            columns: list[Any] = [
                _read(
                    column.combine_chunks() if column.num_chunks != 1 else column.chunk(0),
                    field.type,
                    zone,
                )
                for column, field in zip(table.columns, kind, strict=True)
            ]
            return pa.StructArray.from_arrays(columns, fields=list(kind))
    except (pa.ArrowInvalid, UnicodeDecodeError):
        pass
    return None


def _unread(kind: Any) -> Any:
    """The type with text for timestamps: Arrow's parser takes those without a zone for UTC."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_unread(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_unread(kind.value_type)))
    return pa.string() if pa.types.is_timestamp(kind) else kind


def _read(array: pa.Array, kind: Any, zone: str | None) -> pa.Array:
    """What was `_unread`. Raises `ArrowInvalid` for text that is no such time."""
    if _unread(kind) == kind:
        return array
    if pa.types.is_struct(kind):
        members = [_read(array.field(i), field.type, zone) for i, field in enumerate(kind)]
        return pa.StructArray.from_arrays(members, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind):
        elements = [_read(array.values, kind.value_type, zone)]
        return pa.Array.from_buffers(
            kind, len(array), array.buffers()[:2], offset=array.offset, children=elements
        )
    return array.cast(_LOCAL) if kind == _LOCAL else _timestamps(array, zone)


def _timestamps(texts: pa.Array, zone: str | None) -> pa.Array:
    zoned = pc.match_substring_regex(texts, _ZONED)
    none = pa.scalar(None, pa.string())
    found = pc.if_else(zoned, texts, none).cast(_TIMESTAMP)
    local = pc.if_else(zoned, none, texts).cast(_LOCAL)
    if local.null_count == len(local):
        return found
    if zone is None:
        raise RequestError(
            "a value has a timestamp without a zone, and Spark does not tell the session's",
            "set spark.sql.session.timeZone, or the reader's option timeZone",
        )
    return pc.coalesce(found, instants(local, zone_of(zone)))
