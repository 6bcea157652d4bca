"""Cron expressions: whether one makes sense, and when it is due next.

Five fields (minute, hour, day of month, month, day of week), six with seconds in front, or
`@every DURATION`. Fields are read by `cronsim` as Debian's cron reads them: Sunday is 0 or 7, and
when both days are restricted either one will do; also `L` and `LW` for a month's last day and last
weekday, `5L` for its last Friday, `mon#2` for its second Monday. Where a zone has summer time, five
fields that name hour and minute are due once a day, right after a time that is skipped; all others
go by what the clock shows.

Intervals are counted from the Unix epoch: every leader finds the same times due.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from cronsim import CronSim, CronSimError

from hadron.model.errors import RequestError
from hadron.model.problems import shorten
from hadron.model.units import format_duration, parse_duration_ms

CRON_FORM: Final = (
    "five fields such as `0 3 * * mon-fri` (minute, hour, day, month, day of week; six with "
    "seconds in front), or @every 5m"
)
MIN_EVERY_MS: Final = 1_000
"""As often as six fields can say."""

_MAX_CHARACTERS: Final = 500
"""Each second of a minute by its number is 169."""

_FIELDS: Final = {
    "second": "0 to 59",
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31 (in one of the months), L, LW",
    "month": "1 to 12, jan to dec",
    "day-of-week": "0 to 7 (Sunday is 0, and 7 at the end of a range), sun to sat",
}
"""As `cronsim` calls them: what each takes."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def check_cron(expression: str) -> None:
    """Raises `RequestError` saying which field is wrong, also when it can never be due."""
    if next_after(expression, _EPOCH) is None:
        raise RequestError(f"{shorten(expression)} is never due", f"expected {CRON_FORM}")


def next_after(expression: str, when: datetime) -> datetime | None:
    """The first time after `when` at which it is due, in the time zone of `when`, which must have
    one; None for never, and beyond the year 9999. Raises `RequestError` as `check_cron` does."""
    assert when.tzinfo is not None
    fields = expression.split()
    try:
        if fields[:1] and fields[0].lower() == "@every":
            every = timedelta(milliseconds=_every_ms(expression, fields))
            periods = (when - _EPOCH) // every + 1
            return (_EPOCH + periods * every).astimezone(when.tzinfo)
        return next(_parsed(expression, fields, when), None)
    except OverflowError:
        return None


def _parsed(expression: str, fields: list[str], when: datetime) -> CronSim:
    if len(fields) not in (5, 6):
        raise RequestError(
            f"{shorten(expression)} has {len(fields)} fields", f"expected {CRON_FORM}"
        )
    if len(expression) > _MAX_CHARACTERS:
        raise RequestError(
            f"{shorten(expression)} has {len(expression)} characters",
            f"expected at most {_MAX_CHARACTERS}",
        )
    try:
        return CronSim(expression, when)
    except CronSimError as error:
        name = str(error).removeprefix("Bad ")
    value = fields[list(_FIELDS).index(name) - len(_FIELDS)]
    raise RequestError(
        f"{shorten(value)} is no {name} in {shorten(expression)}",
        f"expected {_FIELDS[name]}, *, ranges a-b, steps */n, or a list of these",
    )


def _every_ms(expression: str, fields: list[str]) -> int:
    if len(fields) != 2:
        raise RequestError(f"{shorten(expression)} is not one interval", "expected @every 5m")
    every_ms = parse_duration_ms(fields[1].lower())
    if every_ms < MIN_EVERY_MS:
        raise RequestError(
            f"{shorten(expression)} is too often",
            f"expected at least @every {format_duration(MIN_EVERY_MS)}",
        )
    return every_ms
