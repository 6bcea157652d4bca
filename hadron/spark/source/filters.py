"""Filters that the connector takes over from Spark: on partition, offset and timestamp.

Partition and offset narrow what is fetched at all, exactly. A timestamp only lets whole batches
stay closed, so Spark still checks it record by record.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
from pyspark.sql import datasource as ds

from hadron.model.batch import read_head
from hadron.spark.source.ranges import OffsetRange

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ENDLESS: Final = 2**63 - 1
_NEVER_NULL: Final = ("stream", "partition", "offset", "timestamp", "type", "headers")
"""A value is null where it was damaged at its source."""


@dataclass(frozen=True, slots=True)
class Restriction:
    """What the filters leave: offsets and event times (microseconds), both ends inclusive."""

    partitions: frozenset[str] | None = None
    first_offset: int = 0
    last_offset: int = _ENDLESS
    first_us: int = -_ENDLESS
    last_us: int = _ENDLESS

    def narrow(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """The parts of `ranges` that can hold matching records."""
        narrowed = [
            self._narrowed(each)
            for each in ranges
            if self.partitions is None or each.partition in self.partitions
        ]
        return [each for each in narrowed if len(each)]

    def _narrowed(self, range: OffsetRange) -> OffsetRange:
        """Of the same stream; what is known of its ends stays with them."""
        start = max(range.start, self.first_offset)
        stop = min(range.stop, self.last_offset + 1)
        return replace(
            range,
            start=start,
            stop=stop,
            after=range.after if start == range.start else None,
            last=range.last if stop == range.stop else None,
        )

    @property
    def _limits_time(self) -> bool:
        return self.first_us > -_ENDLESS or self.last_us < _ENDLESS

    def may_match(self, data: bytes | memoryview) -> bool:
        """Whether a record of the batch can have a matching event time. Opens its head only."""
        if not self._limits_time:
            return True
        stamps = np.frombuffer(read_head(data).ts, "<i8")
        return bool(
            int(stamps.max()) * 1000 >= self.first_us and int(stamps.min()) * 1000 <= self.last_us
        )


def take_over(filters: Iterable[ds.Filter]) -> tuple[Restriction, list[ds.Filter]]:
    """The restriction that `filters` make together, and those that Spark must still apply."""
    restriction = Restriction()
    rest: list[ds.Filter] = []
    for each in filters:
        narrowed, exact = _apply(restriction, each)
        restriction = narrowed
        if not exact:
            rest.append(each)
    return restriction, rest


def _apply(restriction: Restriction, condition: ds.Filter) -> tuple[Restriction, bool]:
    attribute: tuple[str, ...] = getattr(condition, "attribute", ())
    if len(attribute) != 1:
        return restriction, False
    column = attribute[0]
    if isinstance(condition, ds.IsNotNull):
        return restriction, column in _NEVER_NULL
    if column == "partition":
        return _by_partition(restriction, condition)
    value = getattr(condition, "value", None)
    if column == "offset" and type(value) is int:
        return _by_offset(restriction, condition, value)
    if column == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
        microseconds = (value - _EPOCH) // timedelta(microseconds=1)
        return _by_time(restriction, condition, microseconds), False
    return restriction, False


def _by_partition(restriction: Restriction, condition: Any) -> tuple[Restriction, bool]:
    if isinstance(condition, (ds.EqualTo, ds.EqualNullSafe)):
        wanted = frozenset([condition.value])
    elif isinstance(condition, ds.In):
        wanted = frozenset(condition.value)
    else:
        return restriction, False
    if restriction.partitions is not None:
        wanted &= restriction.partitions
    return replace(restriction, partitions=wanted), True


def _by_offset(restriction: Restriction, condition: Any, value: int) -> tuple[Restriction, bool]:
    first, last = restriction.first_offset, restriction.last_offset
    limits = _limits(condition, value)
    if limits is None:
        return restriction, False
    return replace(
        restriction, first_offset=max(first, limits[0]), last_offset=min(last, limits[1])
    ), True


def _by_time(restriction: Restriction, condition: Any, value_us: int) -> Restriction:
    limits = _limits(condition, value_us)
    if limits is None:
        return restriction
    return replace(
        restriction,
        first_us=max(restriction.first_us, limits[0]),
        last_us=min(restriction.last_us, limits[1]),
    )


def _limits(condition: Any, value: int) -> tuple[int, int] | None:
    """The inclusive interval that a comparison with a whole number leaves."""
    if isinstance(condition, (ds.EqualTo, ds.EqualNullSafe)):
        return value, value
    if isinstance(condition, ds.GreaterThan):
        return value + 1, _ENDLESS
    if isinstance(condition, ds.GreaterThanOrEqual):
        return value, _ENDLESS
    if isinstance(condition, ds.LessThan):
        return -_ENDLESS, value - 1
    if isinstance(condition, ds.LessThanOrEqual):
        return -_ENDLESS, value
    return None
