"""Cron expressions: what each field allows, and what is told about those that make no sense."""

from __future__ import annotations

import pytest

from hadron.model.cron import Cron, parse_cron
from hadron.model.errors import RequestError


def test_five_fields_are_due_at_the_first_second() -> None:
    cron = parse_cron("*/20 3 * 2 mon-fri")
    assert cron == Cron(
        seconds=frozenset({0}),
        minutes=frozenset({0, 20, 40}),
        hours=frozenset({3}),
        days=frozenset(range(1, 32)),
        months=frozenset({2}),
        weekdays=frozenset({1, 2, 3, 4, 5}),
    )


def test_six_fields_begin_with_seconds() -> None:
    cron = parse_cron("5/30 0 12 1,15 JAN,mar-apr *")
    assert cron.seconds == {5, 35}
    assert cron.minutes == {0}
    assert cron.days == {1, 15}
    assert cron.months == {1, 3, 4}
    assert cron.weekdays == set(range(7))


@pytest.mark.parametrize(
    ("field", "days"),
    [
        ("0", {0}),
        ("7", {0}),
        ("sun", {0}),
        ("fri-sun", {5, 6, 0}),
        ("5-7", {5, 6, 0}),
        ("*/2", {0, 2, 4, 6}),
        ("1/3", {1, 4, 0}),
    ],
)
def test_sunday_is_zero_and_seven(field: str, days: set[int]) -> None:
    assert parse_cron(f"0 0 * * {field}").weekdays == days


def test_two_restricted_days_are_alternatives() -> None:
    assert parse_cron("0 0 13 * fri").either_day
    assert not parse_cron("0 0 13 * *").either_day
    assert not parse_cron("0 0 * * fri").either_day
    # So this is due on Fridays.
    assert parse_cron("0 0 30 2 fri").either_day


def test_intervals() -> None:
    assert parse_cron("@every 1h30m") == Cron(every_ms=5_400_000)
    assert parse_cron(" @EVERY 1s ") == Cron(every_ms=1_000)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "'' has 0 fields"),
        ("* * *", "'* * *' has 3 fields"),
        ("@daily", "'@daily' has 1 fields"),
        ("60 * * * *", "'60' is no minute in '60 * * * *'"),
        ("* 24 * * *", "'24' is no hour"),
        ("* * 0 * *", "'0' is no day in"),
        ("* * * 13 *", "'13' is no month"),
        ("* * * * 8", "'8' is no day of week"),
        ("* * * fri *", "'fri' is no month"),
        ("5-1 * * * *", "'5-1' is no minute"),
        ("*/0 * * * *", "'*/0' is no minute"),
        ("*-5 * * * *", "'*-5' is no minute"),
        ("1,,2 * * * *", "'' is no minute"),
        ("-1 * * * *", "'-1' is no minute"),
        ("\u0661 * * * *", "is no minute"),
        ("0 0 31 4,6 *", "'0 0 31 4,6 *' is never due"),
        ("@every", "'@every' is not one interval"),
        ("@every 10", "'10' is not a duration"),
        ("@every 999ms", "'@every 999ms' is too often"),
    ],
)
def test_what_makes_no_sense_is_told(text: str, told: str) -> None:
    with pytest.raises(RequestError) as raised:
        parse_cron(text)
    assert told in raised.value.message
    assert raised.value.hint.startswith("expected ")
