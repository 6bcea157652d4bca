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
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import types as st

from hadron.spark.zones import zone_of

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


_DAY_US: Final = 86_400_000_000
_CYCLE_US: Final = 146_097 * _DAY_US
"""Four hundred years: weekdays, and rules of zones, are the same again."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_US: Final = -719_160 * _DAY_US
_LAST_US: Final = 2_932_894 * _DAY_US
"""Python has the years 1 to 9999; some days off, in any zone."""


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
    """Each value of a column as JSON bytes; `null` for null. Raises `RequestError` for a zone that
    is not known here."""
    convert = _converter(column.type)
    # Times as numbers: Python has fewer years than Spark.
    values: Iterable[Any] = column.cast(_counted(column.type)).to_pylist()
    return pa.array(
        [b"null" if each is None else _encode(convert(each)) for each in values], pa.binary()
    )


def _counted(kind: Any) -> Any:
    """The type with numbers for times: days, and microseconds."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_counted(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_counted(kind.key_type), _counted(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_counted(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_counted(kind.value_type)))
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date(kind) else kind


def _converter(kind: Any) -> _Convert:
    """From a counted value to what is encoded; never called with None."""
    if pa.types.is_struct(kind):
        fields = {field.name: _converter(field.type) for field in kind}
        return lambda row: {
            name: fields[name](value) for name, value in row.items() if value is not None
        }
    if pa.types.is_map(kind):
        key = _exactly(kind.key_type) or _converter(kind.key_type)
        item = _or_none(_converter(kind.item_type))
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
        zone = _zone(kind.tz)
        return lambda value: _moment(value, zone, "milliseconds")
    if pa.types.is_date(kind):
        return lambda value: _moment(value * _DAY_US, None, "seconds").partition("T")[0]
    return _same


def _exactly(kind: Any) -> _Convert | None:
    """Of times that are keys: two in one millisecond are two."""
    if not pa.types.is_timestamp(kind):
        return None
    zone = _zone(kind.tz)
    return lambda value: _moment(value, zone, "microseconds" if value % 1000 else "milliseconds")


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


def _moment(micros: int, zone: tzinfo | None, timespec: str) -> str:
    cycles = 0
    if not _FIRST_US <= micros <= _LAST_US:
        # Rules of zones that hold today hold in the far future, and none did in the far past.
        cycles = (micros - (0 if micros > 0 else _FIRST_US)) // _CYCLE_US
    moment = _EPOCH + timedelta(microseconds=micros - cycles * _CYCLE_US)
    moment = moment.replace(tzinfo=None) if zone is None else moment.astimezone(zone)
    text = moment.isoformat(timespec=timespec)
    if cycles:
        year = moment.year + 400 * cycles
        text = f"{'+' if year > 9_999 else '-' if year < 0 else ''}{abs(year):04}{text[4:]}"
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text


def _zone(name: str | None) -> tzinfo | None:
    """None of times that are in no zone. Raises `RequestError`."""
    return None if name is None else zone_of(name)
