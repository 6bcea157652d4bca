"""The book that is kept of exchanges: what it complains of, and what it lets pass."""

from __future__ import annotations

import pytest

from hadron.sim.actors.messages import MessageBook, Sent, Taken


def book_of(*taken: Taken) -> MessageBook:
    """Four messages of one publisher, on topics a, b, a and b; the last one was not answered."""
    sent = [Sent("p", topic, float(number), "ok") for number, topic in enumerate("abab")]
    sent[3].state = "unknown"
    return MessageBook("x", sent, list(taken))


def taken_of(
    *numbers: int, patterns: str = ">", group: str = "", missed: int = 0, interruptions: int = 0
) -> Taken:
    got = [(number, 0, False) for number in numbers]
    return Taken((patterns,), group, 0.0, got, 10.0, missed, interruptions)


@pytest.mark.parametrize(
    ("taken", "rule"),
    [
        ((taken_of(0, 1, 1, 2),), "X1"),
        ((taken_of(0, 1, 2, patterns="a"),), "X1"),
        ((taken_of(0, 1, group="g"), taken_of(1, 2, group="g")), "X1"),
        ((taken_of(0, 2, 1),), "X2"),
        ((taken_of(0, 2),), "X3"),
        ((taken_of(0, patterns="a"),), "X3"),
    ],
)
def test_what_breaks_a_rule_is_told_by_its_name(taken: tuple[Taken, ...], rule: str) -> None:
    found = book_of(*taken).complaints(gaps=True)
    assert [each.split()[0] for each in found] == [rule]


@pytest.mark.parametrize(
    "taken",
    [
        (taken_of(0, 1, 2), taken_of(0, 1, 2, 3)),
        # What nobody was told of may come late, or never.
        (taken_of(0, 3, 1, 2),),
        (taken_of(0, 2, missed=1),),
        (taken_of(2, interruptions=1),),
        (taken_of(0, 2, patterns="a"), taken_of(1, patterns="b")),
        (taken_of(0, group="g"), taken_of(1, 2, group="g"), taken_of(0, 1, 2, group="h")),
    ],
)
def test_what_keeps_the_rules_is_let_pass(taken: tuple[Taken, ...]) -> None:
    assert not book_of(*taken).complaints(gaps=True)


def test_more_told_than_missed_and_an_interruption_of_nothing_are_told() -> None:
    told = taken_of(2)
    told.got = [(2, 2, True)]
    found = book_of(told).complaints(gaps=False)
    assert [each.split()[0] for each in found] == ["X3", "X7"]


def test_where_something_may_be_under_way_no_gap_is_told() -> None:
    assert not book_of(taken_of(0)).complaints(gaps=False)
