"""What the streaming queries of tests run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.functions import udf
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

EACH: Final = 50
"""Of a kind so many events are a milestone."""


def totals(events: DataFrame) -> DataFrame:
    """How much of each kind came within ten seconds, once that is final."""
    return (
        events.select("value.*")
        .withColumn("at", F.timestamp_seconds("s"))
        .withWatermark("at", "5 seconds")
        .groupBy(F.window("at", "10 seconds"), "kind")
        .agg(F.count("*").alias("count"), F.sum("amount").alias("amount"))
        .select(
            F.struct(
                F.col("window.start").cast("long").alias("start"), "kind", "count", "amount"
            ).alias("value"),
            F.col("kind").alias("key"),
        )
    )


def once(events: DataFrame) -> DataFrame:
    """Which kinds came in which second, each said once."""
    late = events.select("value.s", "value.kind").withColumn("at", F.timestamp_seconds("s"))
    first = late.withWatermark("at", "5 seconds").dropDuplicatesWithinWatermark(["s", "kind"])
    return first.select(F.struct("s", "kind").alias("value"))


def milestones(events: DataFrame) -> DataFrame:
    """Of each kind every fiftieth event, counted in a state of Python's own."""
    made = (
        events.select("value.kind")
        .groupBy("kind")
        .applyInPandasWithState(
            _count, "value STRING", "count LONG", "append", GroupStateTimeout.NoTimeout
        )
    )
    return made.select("value")


def _count(
    key: tuple[Any, ...], events: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    (before,) = state.get if state.exists else (0,)
    now = before + sum(map(len, events))
    state.update((now,))
    passed = range(before // EACH + 1, now // EACH + 1)
    yield pd.DataFrame({"value": [f"{key[0]} {each * EACH}" for each in passed]})


def copies(events: DataFrame, spark: SparkSession) -> DataFrame:
    assert spark is events.sparkSession
    return events.select(F.struct("value.*").alias("value"))


def nothing(events: DataFrame) -> None:
    events.select("value")


def another(events: DataFrame) -> DataFrame:
    return events.select(F.col("value").alias("valeu"))


def still(events: DataFrame) -> DataFrame:
    return events.sparkSession.sql("SELECT 'a' AS value")


def misspelt(events: DataFrame) -> DataFrame:
    return events.select("value.amuont")


def without_watermark(events: DataFrame) -> DataFrame:
    return events.groupBy("value.kind").agg(F.to_json(F.struct(F.count("*"))).alias("value"))


def raises(_events: DataFrame) -> DataFrame:
    raise ValueError("not today")


def cancelled(_events: DataFrame) -> DataFrame:
    raise asyncio.CancelledError


def raises_for_a_record(events: DataFrame) -> DataFrame:
    def picky(kind: Any) -> str:
        if kind == "k3":
            raise ValueError("no k3 here")
        return str(kind)

    return events.select(udf(picky)("value.kind").alias("value"))
