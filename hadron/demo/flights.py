"""The demo's data: the packaged CSV files as typed Python values.

A flight's `id` is its row in the file, from 0: it travels through every stage, so that an output
names the flight that it is about.
"""

from __future__ import annotations

import csv
import functools
import gzip
from collections.abc import Iterator
from datetime import datetime
from importlib.resources import files
from typing import Any, Final

from hadron.model.record import NewRecord

EVENT_TYPE: Final = "flight.departed"
Flight = dict[str, Any]
Weather = dict[str, Any]

_TEXT: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_MINUTE_MS: Final = 60_000
WEATHER_FIELDS: Final = ("temp", "wind_speed", "wind_gust", "precip", "visib")
"""What the pipeline uses of a weather report: degrees Fahrenheit, miles per hour twice, inches in
the hour, miles. A missing gust means that there was none."""


@functools.cache
def load_flights() -> tuple[Flight, ...]:
    """All departures, in the file's order; missing values are None, times stay as written."""
    return tuple(
        {"id": number} | {name: _typed(name, value) for name, value in row.items()}
        for number, row in enumerate(_rows("flights-2013-01.csv.gz"))
    )


@functools.cache
def load_weather() -> dict[tuple[str, str], Weather]:
    """Hourly reports by (origin, time_hour), with `WEATHER_FIELDS` as floats or None."""
    return {
        (row["origin"], row["time_hour"]): {
            name: None if row[name] == "NA" else float(row[name]) for name in WEATHER_FIELDS
        }
        for row in _rows("weather-2013-01.csv.gz")
    }


@functools.cache
def load_airlines() -> dict[str, str]:
    """Airline names by carrier code."""
    text = (files("hadron.demo") / "data" / "airlines.csv").read_text()
    return {row["carrier"]: row["name"] for row in csv.DictReader(text.splitlines())}


def flight_record(flight: Flight) -> NewRecord:
    """The record that announces a flight: keyed by carrier, at the scheduled time."""
    hour = datetime.fromisoformat(flight["time_hour"])
    return NewRecord(
        value=flight,
        key=flight["carrier"],
        type=EVENT_TYPE,
        timestamp_ms=int(hour.timestamp()) * 1000 + flight["minute"] * _MINUTE_MS,
    )


def _rows(name: str) -> Iterator[dict[str, str]]:
    data = (files("hadron.demo") / "data" / name).read_bytes()
    yield from csv.DictReader(gzip.decompress(data).decode().splitlines())


def _typed(name: str, value: str) -> int | str | None:
    if value == "NA":
        return None
    return value if name in _TEXT else int(value)
