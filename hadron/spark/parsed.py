"""JSON values as Arrow structs, a block at a time: what `value STRUCT<…>` is when a stream is read.

As `from_json` does, names that are not asked for are passed over, and missing ones are null. A
value that is no object, or has a member that does not fit, is null as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import json as pa_json
from pyspark.sql import types as st

_SCALARS: Final[dict[type[st.DataType], Any]] = {
    st.BooleanType: pa.bool_(),
    st.ByteType: pa.int8(),
    st.ShortType: pa.int16(),
    st.IntegerType: pa.int32(),
    st.LongType: pa.int64(),
    st.FloatType: pa.float32(),
    st.DoubleType: pa.float64(),
    st.StringType: pa.string(),
    st.TimestampType: pa.timestamp("us", tz="UTC"),
    st.TimestampNTZType: pa.timestamp("us"),
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


def parse(values: pa.Array, kind: Any) -> pa.Array:
    """A struct for each of these bytes, null where there is none.

    Args:
        kind: the struct's type.
    """
    rows: list[bytes | None] = values.to_pylist()
    # Rows are parsed together, as one text: of two that are torn in the middle one object could be
    # made, and of one that is several as many as are missing then. These are parsed alone.
    together: list[int] = []
    alone: list[int] = []
    for index, row in enumerate(rows):
        if row and row.lstrip()[:1] == b"{":
            (together if _is_one_value(row) else alone).append(index)
    found = _parse([rows[index] or b"" for index in together], kind)
    if len(together) == len(rows):
        return found
    if alone:
        found = pa.concat_arrays([found, *(_parse([rows[each] or b""], kind) for each in alone)])
    places = together + alone
    where = np.full(len(rows), -1, np.int64)
    where[places] = np.arange(len(places))
    return found.take(pa.array(where, mask=where < 0))


_raw: Final = msgspec.json.Decoder(msgspec.Raw).decode


def _is_one_value(row: bytes) -> bool:
    try:
        _raw(row)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _parse(rows: Sequence[bytes], kind: Any) -> pa.Array:
    """What does not fit is found by halving: a block of good rows costs 1 µs each."""
    if not rows:
        return pa.nulls(0, kind)
    data = b"\n".join(rows)
    try:
        table = pa_json.read_json(
            pa.BufferReader(data),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=pa_json.ParseOptions(
                explicit_schema=pa.schema(list(kind)),
                newlines_in_values=True,
                unexpected_field_behavior="ignore",
            ),
        )
        if table.num_rows == len(rows):
            columns: list[Any] = [
                column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
                for column in table.columns
            ]
            return pa.StructArray.from_arrays(columns, fields=list(kind))
    except pa.ArrowInvalid:
        pass
    if len(rows) == 1:
        return pa.nulls(1, kind)
    middle = len(rows) // 2
    return pa.concat_arrays([_parse(rows[:middle], kind), _parse(rows[middle:], kind)])
