"""The demo's two stages: Spark functions, DataFrame to DataFrame, one row per instance.

Only Spark's own expressions are used, so nothing is sent through Python workers. `verdicts` has
the same rule in plain Python; the demo compares the two, flight by flight.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from hadron.demo.flights import WEATHER_FIELDS, load_weather

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LATE_FROM_MINUTES: Final = 15
"""Departing so long after schedule is late: the US Department of Transportation's line."""

POOR_VISIBILITY_MILES: Final = 3
"""Below it, only instrument flight rules allow flying (14 CFR 91.155)."""

STRONG_GUST_MPH: Final = 30
"""Strong enough to close a runway to light aircraft and to slow down the others."""

_REPORT: Final = "struct<" + ", ".join(f"{name}: double" for name in WEATHER_FIELDS) + ">"


def join_weather(instances: DataFrame) -> DataFrame:
    """Stage `weather`: give each flight the report of its origin and scheduled hour.

    A left join: where the weather station reported nothing, `weather` is null.
    """
    flight = F.from_json(F.col("root").cast("string"), "id bigint, origin string, time_hour string")
    flights = instances.select("instance_id", flight.alias("flight"))
    reports = F.broadcast(_reports(instances.sparkSession))
    at_origin = (flights["flight.origin"] == reports["origin"]) & (
        flights["flight.time_hour"] == reports["time_hour"]
    )
    value = F.struct("flight.id", "flight.origin", "flight.time_hour", "weather")
    return flights.join(reports, at_origin, "left").select("instance_id", value.alias("value"))


def verdict(instances: DataFrame) -> DataFrame:
    """Stage `verdict`: on time, late, late in bad weather, or cancelled.

    Cancelled: the flight never departed. Late: at least `LATE_FROM_MINUTES` after schedule. Bad
    weather: visibility below `POOR_VISIBILITY_MILES`, any precipitation in the hour, or gusts of
    `STRONG_GUST_MPH` and more; without a report the weather is not blamed.
    """
    flight = F.from_json(
        F.col("root").cast("string"),
        "id bigint, carrier string, flight bigint, origin string, dest string, "
        "sched_dep_time bigint, time_hour string, dep_delay bigint",
    )
    report = F.from_json(F.col("weather").cast("string"), f"weather {_REPORT}")
    known = instances.select(
        "instance_id", flight.alias("flight"), report["weather"].alias("report")
    )
    value = F.struct("flight.*", _verdict(F.col("flight.dep_delay")).alias("verdict"))
    return known.select("instance_id", value.alias("value"))


def _verdict(delay: Column) -> Column:
    bad_weather = (
        (F.col("report.visib") < POOR_VISIBILITY_MILES)
        | (F.col("report.precip") > 0)
        | (F.col("report.wind_gust") >= STRONG_GUST_MPH)
    )
    return (
        F.when(delay.isNull(), "cancelled")
        .when(delay < LATE_FROM_MINUTES, "on time")
        .when(F.coalesce(bad_weather, F.lit(False)), "late in bad weather")
        .otherwise("late")
    )


@functools.lru_cache(maxsize=1)
def _reports(spark: SparkSession) -> DataFrame:
    """The packaged weather: origin, time_hour, weather (a struct of `WEATHER_FIELDS`)."""
    rows = [
        (origin, time_hour, tuple(report[name] for name in WEATHER_FIELDS))
        for (origin, time_hour), report in load_weather().items()
    ]
    return spark.createDataFrame(rows, f"origin string, time_hour string, weather {_REPORT}")
