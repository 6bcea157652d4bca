"""Places in a stream as a text: what `from=` says, and the ids of server-sent events. Pure.

A cursor has the next offset of every partition, `aws.us-east-1/p0:120,gcp.us-east4/p0:99`: a reader
that was cut off goes on from it at any node. Names of partitions have neither `:` nor `,`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias

from hadron.model.errors import RequestError
from hadron.model.ids import is_valid_replica_set_name
from hadron.model.problems import shorten
from hadron.model.units import parse_duration_ms, parse_time_ms

Place: TypeAlias = Literal["earliest", "latest"] | int | datetime
"""As the client has it."""

Cursor: TypeAlias = dict[str, int]
"""By partition, the next offset."""

FORM: Final = (
    "earliest, latest, an offset, -N for the last N of each partition, a time "
    "(2026-01-31T12:00:00Z, -1h, @MILLISECONDS), or the `next` of an earlier answer"
)
_ENDS: Final[dict[str, Literal["earliest", "latest"]]] = {
    "earliest": "earliest",
    "latest": "latest",
}
_AGO: Final = re.compile(r"-(\d[\d.]*[a-z]+)")
_MOST_OFFSET: Final = (1 << 63) - 1
_MAX_PARTITIONS: Final = 1_000


def parse_position(text: str, now_ms: int) -> Place | Cursor:
    """Where reading begins. Raises `RequestError`."""
    if (end := _ENDS.get(text)) is not None:
        return end
    if re.fullmatch(r"-?\d{1,19}", text, re.ASCII):
        offset = int(text)
        if abs(offset) <= _MOST_OFFSET:
            return offset
    if match := re.fullmatch(r"@(\d{1,15})", text, re.ASCII):
        return _instant(int(match[1]), text)
    try:
        if match := _AGO.fullmatch(text):
            return _instant(now_ms - parse_duration_ms(match[1]), text)
        if ":" in text and "/" not in text and "," not in text and text[:4].isdecimal():
            return _instant(parse_time_ms(text), text)
    except RequestError as error:
        raise RequestError(f"from={shorten(text)}: {error.message}", error.hint) from None
    if ":" in text:
        return parse_cursor(text, "from")
    raise RequestError(f"from={shorten(text)} is no place in a stream", f"expected {FORM}")


def parse_cursor(text: str, what: str) -> Cursor:
    """Raises `RequestError`."""
    cursor: Cursor = {}
    for part in text.split(",", _MAX_PARTITIONS):
        partition, _, offset = part.rpartition(":")
        if (
            not is_valid_replica_set_name(partition)
            or not re.fullmatch(r"\d{1,19}", offset, re.ASCII)
            or int(offset) > _MOST_OFFSET
            or partition in cursor
        ):
            raise RequestError(
                f"{what} {shorten(text)} is no place in a stream",
                "give one back as it came: it names each partition with its next offset",
            )
        cursor[partition] = int(offset)
    return cursor


def format_cursor(cursor: Mapping[str, int]) -> str:
    return ",".join(f"{partition}:{offset}" for partition, offset in cursor.items())


def _instant(ms: int, text: str) -> datetime:
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    except OverflowError:
        raise RequestError(f"from={shorten(text)} is out of bounds") from None
