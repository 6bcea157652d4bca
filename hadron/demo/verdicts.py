"""What the pipeline's outputs must be, computed in plain Python from the CSV files.

Independent of `stages`: nothing here comes from Spark, and nothing there from here, so that
comparing the two says something.
"""

from __future__ import annotations

import functools
from typing import Any

from hadron.demo.flights import WEATHER_FIELDS, load_flights, load_weather

Value = dict[str, Any]


@functools.cache
def expected_flights() -> list[Value]:
    """The values of stream `flights`, by flight id."""
    return [dict(flight) for flight in load_flights()]


@functools.cache
def expected_weather() -> list[Value]:
    """The values of stream `flights-weather`, by flight id."""
    reports = load_weather()
    return [
        {
            "id": flight["id"],
            "origin": flight["origin"],
            "time_hour": flight["time_hour"],
            "weather": reports.get((flight["origin"], flight["time_hour"])),
        }
        for flight in load_flights()
    ]


@functools.cache
def expected_verdicts() -> list[Value]:
    """The values of stream `verdicts`, by flight id."""
    reports = load_weather()
    return [
        {
            "id": flight["id"],
            "carrier": flight["carrier"],
            "flight": flight["flight"],
            "origin": flight["origin"],
            "dest": flight["dest"],
            "sched_dep_time": flight["sched_dep_time"],
            "time_hour": flight["time_hour"],
            "dep_delay": flight["dep_delay"],
            "verdict": verdict(
                flight["dep_delay"], reports.get((flight["origin"], flight["time_hour"]))
            ),
        }
        for flight in load_flights()
    ]


def verdict(dep_delay: int | None, report: dict[str, float | None] | None) -> str:
    """The rule in words: see `stages.verdict`.

    Args:
        dep_delay: minutes after the scheduled time; None when the flight never departed.
        report: the hour's weather at the origin, or None when there is no report.
    """
    if dep_delay is None:
        return "cancelled"
    if dep_delay < 15:
        return "on time"
    if report is None:
        return "late"
    visibility, rain, gust = (report[name] for name in ("visib", "precip", "wind_gust"))
    assert set(report) == set(WEATHER_FIELDS)
    bad = (
        (visibility is not None and visibility < 3)
        or (rain is not None and rain > 0)
        or (gust is not None and gust >= 30)
    )
    return "late in bad weather" if bad else "late"
