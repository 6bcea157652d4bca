"""JSON values as structs: as `from_json` has them where they fit, null where they do not."""

from __future__ import annotations

import math
from datetime import datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyspark.sql import types as st

from hadron.model.errors import RequestError
from hadron.spark.parsed import arrow_type, doubled, parse, unparsed

ONE = st.StructType().add("f", st.IntegerType())


def parsed(kind: st.StructType, *rows: bytes | None, zone: str | None = None) -> list[object]:
    found = parse(pa.array(rows, pa.binary()), arrow_type(kind), zone)
    assert found.type == arrow_type(kind)
    values: list[object] = found.to_pylist()
    return values


def test_each_value_is_a_struct_of_what_was_asked_for() -> None:
    kind = (
        st.StructType()
        .add("s", st.StringType())
        .add("d", st.DecimalType(10, 2))
        .add("a", st.ArrayType(st.LongType()))
        .add("in", st.StructType().add("x", st.DoubleType()))
    )
    assert parsed(kind, b'{"s":"x","d":1.5,"a":[1,null],"in":{"x":2,"y":3},"z":{}}', b"{}") == [
        {"s": "x", "d": Decimal("1.50"), "a": [1, None], "in": {"x": 2.0}},
        {"s": None, "d": None, "a": None, "in": None},
    ]


@pytest.mark.parametrize(
    "bad",
    [
        b"", b" ", b"null", b"5", b"[1]", b'"x"', b'{"f":1', b"\xff", b'{"f":5.5}', b'{"f":"5"}',
        b'{"f":1}{"f":2}', b'{"f":99999999999}', b'{"f":1,"f":2}', b'{"f":1,"s":"\xff\xfe"}', None,
    ],
)  # fmt: skip
def test_what_does_not_fit_is_null_and_its_neighbours_are_not(bad: bytes | None) -> None:
    good = [b'{"f":%d}' % n for n in range(9)]
    rows = [*good[:4], bad, *good[4:], b' {"f": 9}', bad]
    expected = [{"f": n} for n in range(10)]
    assert parsed(ONE, *rows) == [*expected[:4], None, *expected[4:], None]


def test_numbers_that_json_has_not_are_read_as_to_json_writes_them() -> None:
    kind = (
        st.StructType()
        .add("x", st.DoubleType())
        .add("s", st.StringType())
        .add("in", st.StructType().add("y", st.ArrayType(st.FloatType())))
        .add("d", st.DecimalType(38, 20))
        .add("t", st.TimestampType())
    )
    rows = [
        b'{"x":1.5,"s":"NaN"}',
        b'{"x":"Infinity","s":"NaN","d":1.12345678901234567891,"t":"2024-01-31T23:59:59.999999Z"}',
        b'{"x":"nan"}',
        b'{"x":2,"in":{"y":[1,"-Infinity",null]}}',
        b'{"x":"NaN","s":5}',
        b'{"x":"NaN"',
        b'{"x":"Infinity","s":"\xff"}',
    ]
    found = parsed(kind, *rows)
    none = {"x": None, "s": None, "in": None, "d": None, "t": None}
    whole = none | {
        "x": math.inf,
        "s": "NaN",
        "d": Decimal("1.12345678901234567891"),
        "t": datetime(2024, 1, 31, 23, 59, 59, 999_999, tzinfo=ZoneInfo("UTC")),
    }
    inner = none | {"x": 2.0, "in": {"y": [1.0, -math.inf, None]}}
    assert found == [none | {"x": 1.5, "s": "NaN"}, whole, None, inner, None, None, None]
    (value,) = parsed(kind, b'{"x":"NaN"}')
    assert isinstance(value, dict)
    assert math.isnan(value["x"])


def test_a_strange_number_beside_one_that_is_none_is_its_own_values_alone() -> None:
    kind = st.StructType().add("user", st.StringType()).add("n", st.IntegerType())
    kind = kind.add("x", st.DoubleType()).add("t", st.TimestampType())
    none = {"user": None, "n": None, "x": None, "t": None}
    huge = b"1e99999999999999999999"
    assert parsed(
        kind,
        b'{"user":"NaN","n":' + huge + b"}",
        b'{"user":"NaN","n":2}',
        b'{"x":"-Infinity","t":"9999-12-31T23:00:00-05:00"}',
        b'{"x":"Infinity","t":"2020-01-01T00:00:00Z"}',
    ) == [
        None,
        none | {"user": "NaN", "n": 2},
        None,
        none | {"x": math.inf, "t": datetime(2020, 1, 1, tzinfo=ZoneInfo("UTC"))},
    ]


def test_text_that_is_no_utf_8_is_null_with_its_value() -> None:
    """Arrow would pass it on as a string, and the query that reads it ended."""
    kind = st.StructType().add("s", st.StringType())
    rows = ['{"s":"é"}'.encode(), b'{"s":"\xff\xfe"}', b'{"s":"\xed\xa0\x80"}', b'{"s":"\xc3"}']
    found = parse(pa.array(rows, pa.binary()), arrow_type(kind), None)
    found.validate(full=True)
    assert found.to_pylist() == [{"s": "é"}, None, None, None]
    assert parsed(kind, b'{"s":"\xc3', b'\xa9"}', rows[0]) == [None, None, {"s": "é"}]


def test_nobody_is_given_the_object_of_another_row() -> None:
    """Of two torn rows one object could be made, and as many of another one as are missing then."""
    rows = [b'{"x":', b"{}}", b'{"f":7}', b'{"f":1}{"f":2}']
    assert parsed(ONE, *rows) == [None, None, {"f": 7}, None]


TIMES = (
    st.StructType()
    .add("t", st.TimestampType())
    .add("a", st.ArrayType(st.StructType().add("n", st.TimestampNTZType())))
)


def test_times_without_a_zone_are_of_the_one_that_is_told() -> None:
    rows = [
        b'{"t":"2013-01-01 05:00:00","a":[null,{"n":"2013-01-01"},{}]}',
        b'{"t":"2013-01-01T05:00:00.25Z","a":[]}',
        b'{"t":"2013-01-01T05:00-05:30"}',
        b'{"t":null,"a":null}',
        b'{"t":"no time"}',
        b'{"a":[{"n":"2013-01-01T05:00:00Z"}]}',
    ]
    found = parse(pa.array(rows, pa.binary()), arrow_type(TIMES), "America/New_York")
    utc = found.field("t").cast(pa.timestamp("us"))
    assert utc.to_pylist() == [
        datetime(2013, 1, 1, 10),
        datetime(2013, 1, 1, 5, 0, 0, 250_000),
        datetime(2013, 1, 1, 10, 30),
        None, None, None,
    ]  # fmt: skip
    assert found.field("a").to_pylist()[:2] == [
        [None, {"n": datetime(2013, 1, 1)}, {"n": None}],
        [],
    ]
    assert found.is_valid().to_pylist() == [True] * 4 + [False] * 2, "no NTZ has a zone"


def test_a_time_without_a_zone_is_not_guessed() -> None:
    assert parsed(ONE, b'{"f":1}') == [{"f": 1}]
    assert parsed(TIMES, b'{"t":"x"}', b'{"t":null}') == [None, {"t": None, "a": None}]
    assert parsed(TIMES, b'{"t":"2013-01-01T05:00:00Z"}') != [None]
    for zone, message in ((None, "Spark does not tell the session's"), ("Mars/X", "'Mars/X'")):
        with pytest.raises(RequestError, match=message):
            parsed(TIMES, b'{"t":"2013-01-01 05:00:00"}', zone=zone)


def test_nothing_is_parsed_to_nothing() -> None:
    assert parsed(ONE) == []
    assert parsed(ONE, None, b"x") == [None, None]


def test_types_that_cannot_be_parsed_are_named() -> None:
    assert unparsed(ONE) is None
    for strange in (st.BinaryType(), st.DateType(), st.MapType(st.StringType(), st.StringType())):
        assert unparsed(st.StructType().add("f", st.ArrayType(strange))) == strange


@pytest.mark.parametrize(
    ("ddl", "twice"),
    [
        (st.StructType().add("n", "integer").add("N", "integer"), ""),
        (st.StructType().add("n", "integer").add("n", "string"), "n"),
        (st.ArrayType(st.StructType().add("m", "integer").add("m", "integer")), "m"),
        (st.MapType(st.StringType(), st.StructType().add("m", "integer").add("m", "integer")), "m"),
        (st.StructType().add("in", st.StructType().add("m", "integer").add("m", "integer")), "m"),
    ],
)
def test_members_of_the_same_name_are_found(ddl: st.DataType, twice: str) -> None:
    assert doubled(ddl) == twice
