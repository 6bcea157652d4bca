"""Durations, sizes and times as people write them: `5m`, `10GiB`, `2013-01-01T05:00:00Z`.

Used by configuration files, schema documents and the command line, so that one spelling works
everywhere. Arithmetic is exact (fractions): what cannot be told exactly is refused, never rounded.
The text of the error is the sentence a user reads, so each parser's `..._FORM` says what it takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import Final

from hadron.model.errors import RequestError

DURATION_FORM: Final = "a duration such as 500ms, 1.5s, 5m, 1h30m or 7d"
SIZE_FORM: Final = "a size such as 512, 64KiB, 1MB or 10GiB"
TIME_FORM: Final = "an RFC 3339 time such as 2013-01-01T05:00:00Z"

_LARGEST: Final = (1 << 63) - 1
"""Durations and sizes are stored as SQLite integers."""

_MS_OF: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_BYTES_OF: Final = {
    "TiB": 1 << 40,
    "GiB": 1 << 30,
    "MiB": 1 << 20,
    "KiB": 1 << 10,
    "TB": 10**12,
    "GB": 10**9,
    "MB": 10**6,
    "kB": 10**3,
    "B": 1,
    "": 1,
}
_SIZE_UNITS: Final = {name.lower(): size for name, size in _BYTES_OF.items()}
_NUMBER: Final = r"[0-9]{1,19}(?:\.[0-9]{1,19})?"
_DURATION_PART: Final = re.compile(rf"({_NUMBER})(ms|[smhd])")
_DURATION: Final = re.compile(rf"(?:{_NUMBER}(?:ms|[smhd]))+")
_SIZE: Final = re.compile(rf"({_NUMBER}) ?([a-zA-Z]*)")
_TIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?"
    r"(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def parse_duration_ms(text: str) -> int:
    """Milliseconds of a duration: numbers with units ms, s, m, h, d, largest first; or `0`.

    Raises `RequestError` for anything else, including fractions of a millisecond and a number
    without a unit (is `30` seconds or milliseconds?).
    """
    text = text.strip()
    if text == "0":
        return 0
    if not _DURATION.fullmatch(text):
        raise _refused(text, "duration", DURATION_FORM)
    parts = _DURATION_PART.findall(text)
    scales = [_MS_OF[unit] for _, unit in parts]
    if any(later >= earlier for earlier, later in pairwise(scales)):
        raise _refused(text, "duration", DURATION_FORM)
    total = sum(
        (Fraction(number) * scale for (number, _), scale in zip(parts, scales, strict=True)),
        Fraction(0),
    )
    return _whole(text, total, "duration", "milliseconds", DURATION_FORM)


def format_duration(ms: int) -> str:
    """The shortest exact spelling with one unit; `parse_duration_ms` gives the number back."""
    if ms == 0:
        return "0s"
    unit = next(unit for unit, scale in _MS_OF.items() if ms % scale == 0)
    return f"{ms // _MS_OF[unit]}{unit}"


def parse_size(text: str) -> int:
    """Bytes of a size: a number with KiB, MiB, GiB, TiB (powers of 1,024) or kB, MB, GB, TB
    (powers of 1,000), in any case, or without a unit.

    Raises `RequestError` for anything else, including fractions of a byte.
    """
    match = _SIZE.fullmatch(text.strip())
    scale = _SIZE_UNITS.get(match[2].lower()) if match else None
    if match is None or scale is None:
        raise _refused(text, "size", SIZE_FORM)
    return _whole(text, Fraction(match[1]) * scale, "size", "bytes", SIZE_FORM)


def format_size(size: int) -> str:
    """The largest unit that is exact, binary ones first; `parse_size` gives the number back."""
    if size == 0:
        return "0"
    unit = next(unit for unit, scale in _BYTES_OF.items() if size % scale == 0)
    return str(size) if unit == "B" else f"{size // _BYTES_OF[unit]}{unit}"


def parse_time_ms(text: str) -> int:
    """Milliseconds since the Unix epoch of an RFC 3339 time; digits past milliseconds are cut.

    Raises `RequestError` when it is not one; a time without a zone is refused, not guessed.
    """
    text = text.strip()
    if not _TIME.fullmatch(text):
        raise _refused(text, "time", TIME_FORM)
    try:
        moment = datetime.fromisoformat(text.upper())
    except ValueError as error:
        raise _refused(text, "time", TIME_FORM) from error
    try:
        return (moment - _EPOCH) // timedelta(milliseconds=1)
    except OverflowError as error:
        raise _refused(text, "time", TIME_FORM) from error


def format_time(ms: int) -> str:
    """RFC 3339 in UTC, with milliseconds when there are any; `parse_time_ms` gives them back.

    `ms` must be from the year 1 to 9999.
    """
    moment = _EPOCH + timedelta(milliseconds=ms)
    shown = moment.isoformat(timespec="milliseconds" if ms % 1_000 else "seconds")
    return shown.replace("+00:00", "Z")


def _whole(text: str, total: Fraction, what: str, unit: str, form: str) -> int:
    if total.denominator != 1:
        raise RequestError(f"{text!r} is not a whole number of {unit}", f"expected {form}")
    if total > _LARGEST:
        raise RequestError(f"{text!r} is too large a {what}", f"expected at most {_LARGEST} {unit}")
    return int(total)


def _refused(text: str, what: str, form: str) -> RequestError:
    shown = text if len(text) <= 60 else text[:57] + "..."
    return RequestError(f"{shown!r} is not a {what}", f"expected {form}")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number that people write with its unit, and programs keep as so many of the smallest.

    Attributes:
        unit: the end of a field's name that a document's key does not have.
    """

    parse: Callable[[str], int]
    format: Callable[[int], str]
    form: str
    unit: str = ""


DURATION: Final = Quantity(parse_duration_ms, format_duration, DURATION_FORM, "_ms")
SIZE: Final = Quantity(parse_size, format_size, SIZE_FORM)
TIME: Final = Quantity(parse_time_ms, format_time, TIME_FORM, "_ms")
QUANTITIES: Final = (DURATION, SIZE, TIME)
