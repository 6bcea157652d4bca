"""Values of Spark columns as JSON, as Spark's `to_json` has them: members that are null are left
out of structs, nulls stay in arrays and maps, binary is base64, times are ISO 8601 with
milliseconds in the session's zone, NaN and infinities are text. Numbers are equal, and may be
written otherwise (`1e20` for `1.0E20`).

Row by row, in Python: for values that are nested, or numbers. Text and bytes never come here.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable
from datetime import UTC
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import types as st

_encode = msgspec.json.Encoder(decimal_format="number").encode

_Convert = Callable[[Any], Any]

_SCALARS: Final = (
    st.BooleanType,
    st.ByteType,
    st.ShortType,
    st.IntegerType,
    st.LongType,
    st.FloatType,
    st.DoubleType,
    st.DecimalType,
    st.StringType,
    st.BinaryType,
    st.DateType,
    st.TimestampType,
    st.TimestampNTZType,
    st.NullType,
)


def strange(kind: st.DataType) -> st.DataType | None:
    """What of a type has no JSON here; None when all of it has."""
    if isinstance(kind, st.StructType):
        return next(filter(None, (strange(each.dataType) for each in kind.fields)), None)
    if isinstance(kind, st.ArrayType):
        return strange(kind.elementType)
    if isinstance(kind, st.MapType):
        key = kind.keyType if isinstance(kind.keyType, _SCALARS) else None
        return strange(kind.valueType) if key is not None else kind.keyType
    return None if isinstance(kind, _SCALARS) else kind


def to_json(column: pa.Array) -> pa.Array:
    """Each value of a column as JSON bytes; `null` for null."""
    convert = _converter(column.type)
    values: Iterable[Any] = column.to_pylist()
    return pa.array(
        [b"null" if each is None else _encode(convert(each)) for each in values], pa.binary()
    )


def _converter(kind: Any) -> _Convert:
    """From what `to_pylist` gives to what is encoded; never called with None."""
    if pa.types.is_struct(kind):
        fields = {field.name: _converter(field.type) for field in kind}
        return lambda row: {
            name: fields[name](value) for name, value in row.items() if value is not None
        }
    if pa.types.is_map(kind):
        key, item = _converter(kind.key_type), _or_none(_converter(kind.item_type))
        return lambda pairs: {_name(key(name)): item(value) for name, value in pairs}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _or_none(_converter(kind.value_type))
        return lambda values: [element(value) for value in values]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda value: base64.b64encode(value).decode()
    if pa.types.is_float32(kind):
        return lambda value: _number(float(str(np.float32(value))))
    if pa.types.is_floating(kind):
        return _number
    if pa.types.is_timestamp(kind):
        return _moment
    if pa.types.is_date(kind):
        return lambda value: value.isoformat()
    return _same


def _or_none(convert: _Convert) -> _Convert:
    return lambda value: None if value is None else convert(value)


def _same(value: Any) -> Any:
    return value


def _name(key: Any) -> str:
    """A map's key."""
    return key if isinstance(key, str) else _encode(key).decode().strip('"')


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _moment(value: Any) -> str:
    text: str = value.isoformat(timespec="milliseconds")
    if value.tzinfo is not None and value.utcoffset() == UTC.utcoffset(None):
        return text[: -len("+00:00")] + "Z"
    return text
