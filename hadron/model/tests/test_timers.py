"""What is due is taken once, never early, and what is given up leaves nothing behind."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from hadron.model.timers import Timers


@given(st.lists(st.tuples(st.floats(0, 50), st.booleans()), max_size=60))
def test_all_that_is_due_and_nothing_else(items: list[tuple[float, bool]]) -> None:
    timers: Timers[int] = Timers()
    keys = [timers.add(due_s, number) for number, (due_s, _) in enumerate(items)]
    for number, (_, is_given_up) in enumerate(items):
        if is_given_up:
            timers.discard(keys[number], number)
    left = {number: due_s for number, (due_s, is_given_up) in enumerate(items) if not is_given_up}
    now_s = 0.0
    while left:
        assert timers.next_s - 0.01 - 1e-9 <= min(left.values()) <= timers.next_s + 1e-9
        now_s = timers.next_s
        for number in timers.take(now_s):
            assert now_s - 0.01 - 1e-9 <= left.pop(number) <= now_s + 1e-9
    assert timers.next_s == math.inf
    assert timers.take(1e9) == []
    timers.discard(5, 7)


def test_what_is_given_up_long_before_its_time_leaves_nothing() -> None:
    """A call that is answered at once has its deadline in a day."""
    timers: Timers[int] = Timers()
    last = timers.add(86_400.0, -1)
    for number in range(50_000):
        timers.discard(timers.add(3_600.0 + number / 100, number), number)
    assert timers.next_s == 86_400.0
    assert len(timers._buckets) == 1
    assert len(timers._order) < 200
    timers.discard(last, -1)
    assert timers.next_s == math.inf
