"""Cron expressions: when they are due, and what is told about those that make no sense."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from hadron.model.cron import check_cron, next_after
from hadron.model.errors import RequestError

BERLIN = ZoneInfo("Europe/Berlin")


def due(expression: str, *after: int, count: int = 3) -> list[str]:
    """The next times, in UTC, from 2026-01-01, a Thursday, on."""
    check_cron(expression)
    found, when = list[str](), datetime(*(after or (2026, 1, 1)), tzinfo=UTC)  # type: ignore[misc, arg-type]
    for _ in range(count):
        following = next_after(expression, when)
        assert following is not None
        assert following.tzinfo is UTC
        assert following > when
        found.append(f"{following:%Y-%m-%d %H:%M:%S}")
        when = following
    return found


def test_five_fields_are_due_at_the_first_second() -> None:
    assert due("*/20 3 * 2 mon-fri", count=4) == [
        "2026-02-02 03:00:00",
        "2026-02-02 03:20:00",
        "2026-02-02 03:40:00",
        "2026-02-03 03:00:00",
    ]


def test_six_fields_begin_with_seconds() -> None:
    assert due("5/30 0 12 1,15 JAN,mar-apr *", count=5) == [
        "2026-01-01 12:00:05",
        "2026-01-01 12:00:35",
        "2026-01-15 12:00:05",
        "2026-01-15 12:00:35",
        "2026-03-01 12:00:05",
    ]


def test_the_time_itself_is_not_after_it() -> None:
    assert due("0 0 * * *", 2026, 1, 1, 0, 0, 0, count=1) == ["2026-01-02 00:00:00"]
    assert due("* * * * * *", 2026, 1, 1, 0, 0, 0, 999_999, count=1) == ["2026-01-01 00:00:01"]
    assert due("@every 1s", 2026, 1, 1, count=1) == ["2026-01-01 00:00:01"]


@pytest.mark.parametrize(
    ("field", "days"),
    [
        ("0", [4, 11]),
        ("7", [4, 11]),
        ("sun", [4, 11]),
        ("5-7", [2, 3, 4, 9]),
        ("*/2", [1, 3, 4, 6, 8]),
        ("1/3", [1, 4, 5, 8]),
        ("5L", [30]),
        ("mon#2", [12]),
    ],
)
def test_sunday_is_zero_and_seven(field: str, days: list[int]) -> None:
    found = due(f"0 0 * * {field}", 2025, 12, 31, 12, count=len(days))
    assert found == [f"2026-01-{day:02} 00:00:00" for day in days]


def test_two_restricted_days_are_alternatives() -> None:
    assert due("0 0 13 * tue", count=2) == ["2026-01-06 00:00:00", "2026-01-13 00:00:00"]
    assert due("0 0 14 * tue", count=3)[1:] == ["2026-01-13 00:00:00", "2026-01-14 00:00:00"]
    # So this is due on Fridays.
    assert due("0 0 30 2 fri", count=1) == ["2026-02-06 00:00:00"]
    assert due("0 0 L * *", count=2) == ["2026-01-31 00:00:00", "2026-02-28 00:00:00"]


def test_what_is_due_once_in_decades() -> None:
    assert due("0 0 29 2 *", 2097, 1, 1, count=1) == ["2104-02-29 00:00:00"]
    assert due("0 0 * 2 mon#5", 2072, 3, 1, count=1) == ["2112-02-29 00:00:00"]


def test_intervals_begin_at_the_epoch_whoever_asks() -> None:
    assert due("@every 1h30m", 2026, 1, 1, 1) == [
        "2026-01-01 01:30:00",
        "2026-01-01 03:00:00",
        "2026-01-01 04:30:00",
    ]
    assert due(" @EVERY 7d ", 2026, 1, 2) == due("@every 7d", 2026, 1, 7)
    assert due("@every 1500ms", count=2) == ["2026-01-01 00:00:01", "2026-01-01 00:00:03"]


def test_a_day_with_a_time_of_day_that_is_skipped_or_comes_twice() -> None:
    when = datetime(2026, 3, 28, 12, tzinfo=BERLIN)
    spring = next_after("30 2 * * *", when)
    assert spring is not None
    assert spring.astimezone(UTC) == datetime(2026, 3, 29, 1, tzinfo=UTC)
    autumn = next_after("30 2 * * *", datetime(2026, 10, 24, 12, tzinfo=BERLIN))
    assert autumn is not None
    assert autumn.astimezone(UTC) == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert next_after("30 2 * * *", autumn) == datetime(2026, 10, 26, 2, 30, tzinfo=BERLIN)
    hourly = next_after("30 * * * *", autumn)
    assert hourly is not None
    assert hourly.astimezone(UTC) - autumn.astimezone(UTC) == timedelta(hours=1)


@pytest.mark.parametrize("expression", ["0 0 30 1 *", "* * * * *", "@every 5m"])
def test_time_ends(expression: str) -> None:
    assert next_after(expression, datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)) is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "'' has 0 fields"),
        ("* * *", "'* * *' has 3 fields"),
        ("* * * * * * *", "has 7 fields"),
        ("@daily", "'@daily' has 1 fields"),
        ("60 * * * *", "'60' is no minute in '60 * * * *'"),
        ("60 * * * * *", "'60' is no second in '60 * * * * *'"),
        ("* 24 * * *", "'24' is no hour"),
        ("* * 0 * *", "'0' is no day-of-month in"),
        ("* * * 13 *", "'13' is no month"),
        ("0 * * * 13 *", "'13' is no month"),
        ("* * * * 8", "'8' is no day-of-week"),
        ("0 0 * * fri-sun", "'fri-sun' is no day-of-week"),
        ("* * * fri *", "'fri' is no month"),
        ("5-1 * * * *", "'5-1' is no minute"),
        ("*/0 * * * *", "'*/0' is no minute"),
        ("*-5 * * * *", "'*-5' is no minute"),
        ("1,,2 * * * *", "'1,,2' is no minute"),
        ("-1 * * * *", "'-1' is no minute"),
        ("\u0661 * * * *", "is no minute"),
        ("0 0 \u00b2L * *", "is no day-of-month"),
        ("9" * 5_000 + " * * * *", "has 5008 characters"),
        ("0 0 31 4,6 *", "'31' is no day-of-month in '0 0 31 4,6 *'"),
        ("* * */20 * 1L", "'* * */20 * 1L' is never due"),
        ("@every", "'@every' is not one interval"),
        ("@every 10", "'10' is not a duration"),
        ("@every 999ms", "'@every 999ms' is too often"),
        ("@every 99999999999d", "'@every 99999999999d' is never due"),
    ],
)
def test_what_makes_no_sense_is_told(text: str, told: str) -> None:
    with pytest.raises(RequestError) as raised:
        check_cron(text)
    assert told in raised.value.message
    assert raised.value.hint.startswith("expected ")
