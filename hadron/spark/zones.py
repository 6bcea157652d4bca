"""Time zones as Spark's Java has them: their names, and which instant a local time is there."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa

from hadron.model.errors import RequestError

_OFFSET: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d\d?)(?::?(\d\d)(?::?(\d\d))?)?", re.ASCII)
"""What Java calls a zone, and Python does not."""

_FIXED: Final = {"Z": "+0", "EST": "-5", "MST": "-7", "HST": "-10"}
"""Names for offsets. In newer tables of zones they are towns, with what was before there."""

_FURTHEST: Final = timedelta(hours=18)
"""Java has no offset beyond."""

_EPOCH: Final = datetime(1970, 1, 1)
_FIRST_S: Final = -62_135_596_800
"""Python's first year is 1, Spark has earlier ones."""
_CYCLE_S: Final = 146_097 * 86_400
"""Four hundred years."""


@lru_cache(maxsize=64)
def zone_of(name: str) -> tzinfo:
    """Raises `RequestError` for a zone that is not known here."""
    found = _OFFSET.fullmatch(_FIXED.get(name, name))
    try:
        return ZoneInfo(name) if found is None else _fixed(*found.groups("0"))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise RequestError(
            f"the time zone {name!r} of the session is not known in Python",
            "set spark.sql.session.timeZone to a name such as Europe/Berlin, or to +02:00",
        ) from None


def _fixed(sign: str, *parts: str) -> tzinfo:
    """Raises `ValueError` for what is no offset in Java."""
    hours, minutes, seconds = map(int, parts)
    offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    if max(minutes, seconds) > 59 or offset > _FURTHEST:
        raise ValueError(f"no zone is {offset} from UTC")
    return timezone(-offset if sign == "-" else offset)


def instants(local: pa.Array, zone: tzinfo) -> pa.Array:
    """Local times (microseconds) as instants, as Java's `LocalDateTime.atZone` has them: of two the
    earlier one; what is skipped as clocks go forward is as much later."""
    micros = local.cast(pa.int64()).fill_null(0).to_numpy()
    # Zones change at whole seconds.
    seconds, where = np.unique(micros // 1_000_000, return_inverse=True)
    offsets = np.array([_offset_us(zone, int(each)) for each in seconds], np.int64)
    missing: Any = local.is_null().to_numpy(zero_copy_only=False)
    return pa.array(micros - offsets[where], pa.int64(), mask=missing).view(
        pa.timestamp("us", tz="UTC")
    )


def _offset_us(zone: tzinfo, local_s: int) -> int:
    moment = _EPOCH + timedelta(seconds=local_s + (_CYCLE_S if local_s < _FIRST_S else 0))
    # Of a time that is there twice, or not at all, the offset from before: its `fold` is 0.
    offset = zone.utcoffset(moment)
    assert offset is not None
    return offset // timedelta(microseconds=1)
