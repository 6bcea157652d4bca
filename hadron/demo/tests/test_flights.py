"""The packaged data and the rule, in plain Python."""

from __future__ import annotations

from collections import Counter

import pytest

from hadron.demo.flights import flight_record, load_airlines, load_flights, load_weather
from hadron.demo.verdicts import expected_verdicts, expected_weather, verdict

FAIR: dict[str, float | None] = {
    "temp": 40.0,
    "wind_speed": 10.0,
    "wind_gust": None,
    "precip": 0.0,
    "visib": 10.0,
}


def test_the_month_is_complete() -> None:
    flights = load_flights()
    assert len(flights) == 27_004
    assert [flight["id"] for flight in flights] == list(range(27_004))
    assert sum(flight["dep_time"] is None for flight in flights) == 521
    assert sum(value["weather"] is None for value in expected_weather()) == 52
    assert {flight["carrier"] for flight in flights} <= set(load_airlines())
    assert len(load_weather()) == 2_226


def test_a_flight_is_announced_at_its_scheduled_time() -> None:
    record = flight_record(load_flights()[0])
    assert record.key == "UA"
    assert record.type == "flight.departed"
    # 2013-01-01T10:00:00Z is the hour, 15 the minute.
    assert record.timestamp_ms == 1_357_034_400_000 + 15 * 60_000


@pytest.mark.parametrize(
    ("delay", "changes", "expected"),
    [
        (None, {}, "cancelled"),
        (None, {"visib": 0.0}, "cancelled"),
        (-4, {}, "on time"),
        (14, {"precip": 1.0}, "on time"),
        (15, {}, "late"),
        (15, {"visib": 3.0}, "late"),
        (15, {"visib": 2.5}, "late in bad weather"),
        (99, {"precip": 0.01}, "late in bad weather"),
        (99, {"wind_gust": 29.9}, "late"),
        (99, {"wind_gust": 30.0}, "late in bad weather"),
    ],
)
def test_the_rule(delay: int | None, changes: dict[str, float | None], expected: str) -> None:
    assert verdict(delay, FAIR | changes) == expected


def test_without_a_report_the_weather_is_not_blamed() -> None:
    assert verdict(60, None) == "late"


def test_the_verdicts_of_the_month() -> None:
    assert Counter(value["verdict"] for value in expected_verdicts()) == {
        "on time": 21_392,
        "late": 3_849,
        "late in bad weather": 1_242,
        "cancelled": 521,
    }
