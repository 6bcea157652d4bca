"""Spark's values as JSON; what Spark itself makes of them, `test_sink` compares."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from hadron.model.errors import RequestError
from hadron.spark.json_values import to_json

YEAR_10000_US = 253_402_300_800_000_000


def as_json(column: Any) -> list[Any]:
    return [json.loads(each) for each in to_json(column).to_pylist()]


def test_keys_that_are_times_stay_apart() -> None:
    """Or one of two values was lost."""
    times = pa.map_(pa.timestamp("us"), pa.int64())
    assert as_json(pa.array([[(1_000, 1), (1_001, 2), (YEAR_10000_US, 3)]], times)) == [
        {
            "1970-01-01T00:00:00.001": 1,
            "1970-01-01T00:00:00.001001": 2,
            "+10000-01-01T00:00:00.000": 3,
        }
    ]


@pytest.mark.parametrize(
    ("zone", "told"),
    [
        ("UTC", "1970-01-01T00:00:00.000Z"),
        ("Z", "1970-01-01T00:00:00.000Z"),
        ("UTC+5", "1970-01-01T05:00:00.000+05:00"),
        ("-05:30", "1969-12-31T18:30:00.000-05:30"),
        ("GMT+18:00", "1970-01-01T18:00:00.000+18:00"),
        ("Europe/Berlin", "1970-01-01T01:00:00.000+01:00"),
    ],
)
def test_zones_are_those_of_the_session(zone: str, told: str) -> None:
    assert as_json(pa.array([0, None], pa.timestamp("us", tz=zone))) == [told, None]


def test_a_zone_that_python_does_not_know_is_told() -> None:
    with pytest.raises(RequestError, match=r"'ACT/X' .* spark.sql.session.timeZone"):
        to_json(pa.array([0], pa.timestamp("us", tz="ACT/X")))


def test_nulls_and_lists_of_times() -> None:
    kind = pa.struct([("d", pa.list_(pa.date32())), ("t", pa.timestamp("us", tz="UTC"))])
    given = pa.array([{"d": [0, None], "t": None}, None, {"d": None, "t": 5_999}], kind)
    assert as_json(given) == [
        {"d": ["1970-01-01", None]}, None, {"t": "1970-01-01T00:00:00.005Z"}
    ]  # fmt: skip
