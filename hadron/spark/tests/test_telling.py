"""What is said at the end of a micro-batch: some calls at a time, none twice."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import trio
import trio.testing

from hadron.model.errors import OverloadedError
from hadron.spark.telling import say


async def test_many_calls_go_together_and_all_are_worked_on(
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001 - pytest-trio takes it from here
) -> None:
    said: list[int] = []
    begun: list[float] = []
    now = most = 0

    async def call(number: int) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await trio.sleep(0.1)
        now -= 1
        said.append(number)

    began_s = trio.current_time()
    await say(lambda: begun.append(trio.current_time()), [partial(call, n) for n in range(1_000)])
    assert sorted(said) == list(range(1_000))
    assert 8 <= most <= 100
    assert begun[0] == began_s
    assert max(after - before for before, after in itertools.pairwise(begun)) < 1
    assert trio.current_time() - begun[-1] < 1


async def test_what_one_raises_is_raised_as_it_is_and_no_others_begin() -> None:
    said: list[int] = []

    async def call(number: int) -> None:
        said.append(number)
        await trio.lowlevel.checkpoint()
        if number == 3:
            raise OverloadedError("busy")

    with pytest.raises(OverloadedError):
        await say(lambda: None, [partial(call, n) for n in range(1_000)])
    assert len(said) < 100
