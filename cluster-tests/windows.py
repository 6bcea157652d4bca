"""A streaming aggregate over windows of event time, and the same of all events at once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA: Final = "s BIGINT, kind STRING, amount BIGINT"

_WINDOW_S: Final = 60
_LATE_S: Final = 600
"""The watermark: much more than one partition is read ahead of another, so that nothing is late."""

_FIRST_S: Final = 1_700_000_040
_KINDS: Final = 7

Event = dict[str, int | str]


def events(first: int, last: int) -> Iterator[Event]:
    """One for each number, and for each second; they come in disorder, by up to twenty of these."""
    for n in range(first, last):
        second = _FIRST_S + n + n * 7 % 20
        yield {"s": second, "kind": f"k{n * n % _KINDS}", "amount": n * 31 % 997}


def counted(given: DataFrame) -> DataFrame:
    """What the pipeline runs: how many there were of each kind, and how much, once final."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    late = (
        given.select("value.*")
        .withColumn("at", F.timestamp_seconds("s"))
        .withWatermark("at", f"{_LATE_S} seconds")
    )
    counts = late.groupBy(F.window("at", f"{_WINDOW_S} seconds"), "kind").agg(
        F.count("*").alias("count"), F.sum("amount").alias("amount")
    )
    start = F.col("window.start").cast("long").alias("start")
    return counts.select(
        F.col("kind").alias("key"), F.struct(start, "kind", "count", "amount").alias("value")
    )


def counted_at_once(given: Sequence[Event]) -> list[bytes]:
    """The same without Spark, as the bytes of the records: of windows that are final."""
    watermark = max(int(each["s"]) for each in given) - _LATE_S
    counts, amounts = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    for each in given:
        window = int(each["s"]) // _WINDOW_S * _WINDOW_S, str(each["kind"])
        counts[window] += 1
        amounts[window] += int(each["amount"])
    made = [
        {"start": start, "kind": kind, "count": count, "amount": amounts[start, kind]}
        for (start, kind), count in counts.items()
        if start + _WINDOW_S <= watermark
    ]
    return [json.dumps(each, separators=(",", ":")).encode() for each in made]
