"""Filters taken over from Spark: exact where they are not handed back."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql import datasource as ds

from hadron.model.ids import Ballot
from hadron.model.record import NewRecord
from hadron.spark.source.filters import Restriction, take_over
from hadron.spark.source.ranges import OffsetRange
from hadron.spark.tests.fakes import build

RANGES = [OffsetRange("a", 0, 100), OffsetRange("b", 50, 60)]
OFFSET, PARTITION, TIMESTAMP = ("offset",), ("partition",), ("timestamp",)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([ds.EqualTo(OFFSET, 7)], [OffsetRange("a", 7, 8)]),
        ([ds.GreaterThan(OFFSET, 97)], [OffsetRange("a", 98, 100)]),
        ([ds.GreaterThanOrEqual(OFFSET, 99)], [OffsetRange("a", 99, 100)]),
        ([ds.LessThan(OFFSET, 2)], [OffsetRange("a", 0, 2)]),
        ([ds.LessThanOrEqual(OFFSET, 50)], [OffsetRange("a", 0, 51), OffsetRange("b", 50, 51)]),
        ([ds.GreaterThan(OFFSET, 5), ds.LessThan(OFFSET, 8)], [OffsetRange("a", 6, 8)]),
        ([ds.EqualTo(PARTITION, "b")], [OffsetRange("b", 50, 60)]),
        ([ds.In(PARTITION, ("a", "c")), ds.IsNotNull(PARTITION)], [OffsetRange("a", 0, 100)]),
        ([ds.EqualTo(PARTITION, "a"), ds.EqualTo(PARTITION, "b")], []),
    ],
)
def test_partition_and_offset_are_taken_over(
    filters: list[ds.Filter], expected: list[OffsetRange]
) -> None:
    restriction, rest = take_over(filters)
    assert rest == []
    assert restriction.narrow(RANGES) == expected


@pytest.mark.parametrize(
    "condition",
    [
        ds.EqualTo(("value",), b"x"),
        ds.IsNotNull(("key",)),
        ds.EqualTo(("offset", "x"), 1),
        ds.Not(ds.EqualTo(OFFSET, 1)),
        ds.EqualTo(OFFSET, 1.5),
        ds.GreaterThan(PARTITION, "a"),
        ds.EqualTo(TIMESTAMP, datetime(2013, 1, 1)),
    ],
)
def test_the_rest_is_left_to_spark(condition: ds.Filter) -> None:
    assert take_over([condition]) == (Restriction(), [condition])


@pytest.mark.parametrize(
    ("condition", "may_match"),
    [
        (ds.GreaterThan(TIMESTAMP, datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)), False),
        (ds.GreaterThanOrEqual(TIMESTAMP, datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)), True),
        (ds.LessThan(TIMESTAMP, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)), False),
        (ds.EqualTo(TIMESTAMP, datetime(1970, 1, 1, 0, 0, 1, 500, tzinfo=UTC)), True),
    ],
)
def test_a_timestamp_lets_batches_stay_closed(condition: ds.Filter, may_match: bool) -> None:
    data = build([NewRecord(value=b"", timestamp_ms=stamp) for stamp in (1_000, 2_000)])
    restriction, rest = take_over([condition])
    assert rest == [condition], "Spark still has to check each record"
    assert restriction.may_match(data) is may_match


def test_what_is_narrowed_is_of_the_same_stream() -> None:
    """Of one that was deleted and made again nothing is taken for it; a ballot is of its end."""
    before, last = Ballot(1, 1), Ballot(1, 2)
    whole = OffsetRange("a", 0, 100, stream_id=7, after=before, last=last)
    restriction, _ = take_over([ds.GreaterThan(OFFSET, 97)])
    assert restriction.narrow([whole]) == [OffsetRange("a", 98, 100, stream_id=7, last=last)]
    restriction, _ = take_over([ds.LessThan(OFFSET, 2)])
    assert restriction.narrow([whole]) == [OffsetRange("a", 0, 2, stream_id=7, after=before)]
