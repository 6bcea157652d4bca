"""The bridge, whose other side is here a list of what is to be done."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hadron.doors.grpc.bridge import Lane


def test_what_is_said_is_done_in_order_and_what_fails_costs_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    woken: list[Callable[[], None]] = []
    done: list[int] = []
    lane = Lane(woken.append)
    for number in range(1_000):
        lane.put(done.append, number)
        if number == 500:
            lane.put(lambda: 1 / 0)
    assert len(woken) == 1, "once for all of them"
    turns = 0
    while woken:
        woken.pop()()
        turns += 1
    assert done == list(range(1_000))
    assert turns > 1, "others have their turn in between"
    assert [record.exc_info is not None for record in caplog.records] == [True]
    caplog.clear()


def test_what_is_said_while_others_are_done_wakes_again() -> None:
    woken: list[Callable[[], None]] = []
    done: list[str] = []
    lane = Lane(woken.append)
    lane.put(lambda: lane.put(done.append, "second"))
    while woken:
        woken.pop()()
    assert done == ["second"]
