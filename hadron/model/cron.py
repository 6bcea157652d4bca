"""Cron expressions: when a schedule is due, always in UTC.

Five fields (minute, hour, day of month, month, day of week), six with seconds in front, or
`@every DURATION`. As in Vixie's cron, numbers, ranges, steps, lists and English names of months
and days are taken, Sunday is 0 or 7, and when both days are restricted either one will do.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from hadron.model.errors import RequestError
from hadron.model.problems import shorten
from hadron.model.units import format_duration, parse_duration_ms

CRON_FORM: Final = (
    "five fields such as `0 3 * * mon-fri` (minute, hour, day, month, day of week; six with "
    "seconds in front), or @every 5m"
)
MIN_EVERY_MS: Final = 1_000
"""As often as six fields can say."""

_MONTHS: Final = [
    "jan",
    "feb",
    "mar",
    "apr",
    "may",
    "jun",
    "jul",
    "aug",
    "sep",
    "oct",
    "nov",
    "dec",
]
_WEEKDAYS: Final = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_LONGEST: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_PART: Final = re.compile(r"(\*|[0-9a-z]+)(?:-([0-9a-z]+))?(?:/([0-9]{1,3}))?")


class Cron(msgspec.Struct, frozen=True):
    """A parsed expression: either an interval, or the values that each field allows.

    Attributes:
        every_ms: the interval of `@every`, in milliseconds; 0 for fields.
        weekdays: 0 is Sunday.
        either_day: a day need only be in one of `days` and `weekdays`.
    """

    every_ms: int = 0
    seconds: frozenset[int] = frozenset()
    minutes: frozenset[int] = frozenset()
    hours: frozenset[int] = frozenset()
    days: frozenset[int] = frozenset()
    months: frozenset[int] = frozenset()
    weekdays: frozenset[int] = frozenset()
    either_day: bool = False


def parse_cron(text: str) -> Cron:
    """Raises `RequestError` saying which field is wrong, also when it can never be due."""
    fields = text.lower().split()
    if fields[:1] == ["@every"]:
        return _parse_every(text, fields)
    if len(fields) not in (5, 6):
        raise RequestError(f"{shorten(text)} has {len(fields)} fields", f"expected {CRON_FORM}")
    if len(fields) == 5:
        fields.insert(0, "0")
    seconds, minutes, hours, days, months, weekdays = (
        _parse_field(text, field, *bounds) for field, bounds in zip(fields, _FIELDS, strict=True)
    )
    cron = Cron(
        0,
        seconds,
        minutes,
        hours,
        days,
        months,
        frozenset(day % 7 for day in weekdays),
        either_day=not fields[3].startswith("*") and not fields[5].startswith("*"),
    )
    if not cron.either_day and min(days) > max(_LONGEST[month - 1] for month in months):
        raise RequestError(
            f"{shorten(text)} is never due", "expected a day that one of the months has"
        )
    return cron


_FIELDS: Final[tuple[tuple[str, int, int, list[str]], ...]] = (
    ("second", 0, 59, []),
    ("minute", 0, 59, []),
    ("hour", 0, 23, []),
    ("day", 1, 31, []),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 7, _WEEKDAYS),
)


def _parse_every(text: str, fields: list[str]) -> Cron:
    if len(fields) != 2:
        raise RequestError(f"{shorten(text)} is not one interval", "expected @every 5m")
    every_ms = parse_duration_ms(fields[1])
    if every_ms < MIN_EVERY_MS:
        raise RequestError(
            f"{shorten(text)} is too often",
            f"expected at least @every {format_duration(MIN_EVERY_MS)}",
        )
    return Cron(every_ms)


def _parse_field(
    text: str, field: str, name: str, low: int, high: int, names: list[str]
) -> frozenset[int]:
    allowed: set[int] = set()
    for part in field.split(","):
        match = _PART.fullmatch(part)
        values = None if match is None else _values(match, low, high, names)
        if not values:
            raise RequestError(
                f"{shorten(part)} is no {name} in {shorten(text)}",
                f"expected {low} to {high}{', names' if names else ''}, *, ranges a-b, steps */n, "
                "or a list of these",
            )
        allowed |= values
    return frozenset(allowed)


def _values(match: re.Match[str], low: int, high: int, names: list[str]) -> set[int]:
    """What one part allows; nothing when it makes no sense."""
    start, end, step = match.groups()
    if start == "*":
        if end is not None:
            return set()
        # Seven is Sunday again, which * has already.
        first, last = low, 6 if high == 7 else high
    else:
        first = _number(start, low, names)
        # `5/10` means from 5 on.
        last = _number(end, low, names) if end else high if step else first
    if end in ("sun", "0") and high == 7:
        # `fri-sun`: at the end of a range Sunday is the seventh.
        last = high
    every = 1 if step is None else int(step)
    if not low <= first <= last <= high or every == 0:
        return set()
    return set(range(first, last + 1, every))


def _number(word: str, low: int, names: list[str]) -> int:
    """-1 for what is neither a number nor a name; `low` is what the first name stands for."""
    if word in names:
        return names.index(word) + low
    return int(word) if word.isdecimal() and len(word) <= 2 else -1
