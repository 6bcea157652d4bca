"""What is said of invocations whose time is over."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from hadron.client.handling.lateness import Lateness


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


class Late:
    """An invocation whose stage may take 10 s."""

    def __init__(self) -> None:
        self.stage = SimpleNamespace(timeout_ms=10_000)
        self.began_s = trio.current_time()
        self.is_ended = False
        self.said: list[bool] = []

    async def expire(self, is_ours: bool) -> None:
        self.said.append(is_ours)


@pytest.mark.parametrize("is_lost", [False, True])
async def test_who_was_frozen_hears_that_its_call_is_lost_before_it_says_anything(
    clock: MockClock, is_lost: bool
) -> None:
    """Its leader ended the call meanwhile, and somebody else has the attempt: that stands where
    the next thing that it reads is, some turns of the loop behind the end of the time."""
    thaws, here = trio.Event(), True

    async def read() -> None:
        nonlocal here
        await thaws.wait()
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        here = not is_lost

    async with trio.open_nursery() as nursery:
        session: Any = SimpleNamespace(background=SimpleNamespace(start=nursery.start_soon))
        lateness = Lateness(session, lambda _given: here)
        nursery.start_soon(lateness.run)
        nursery.start_soon(read)
        late = Late()
        lateness.add(cast(Any, late))
        await trio.sleep(5.0)
        clock.jump(60.0)
        thaws.set()
        await trio.sleep(2.0)
        assert late.said == [not is_lost]
        nursery.cancel_scope.cancel()


async def test_whose_time_is_over_is_told_at_once(clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        session: Any = SimpleNamespace(background=SimpleNamespace(start=nursery.start_soon))
        lateness = Lateness(session, lambda _given: True)
        nursery.start_soon(lateness.run)
        late = Late()
        lateness.add(cast(Any, late))
        await wait_all_tasks_blocked()
        clock.jump(10.5)
        await wait_all_tasks_blocked()
        assert late.said == [True]
        nursery.cancel_scope.cancel()


async def test_whose_transactions_are_rolled_back_is_watched_once(clock: MockClock) -> None:
    """Watched twice, the timing task finds a time that is over for ever, and never sleeps again."""
    async with trio.open_nursery() as nursery:
        session: Any = SimpleNamespace(background=SimpleNamespace(start=nursery.start_soon))
        lateness = Lateness(session, lambda _given: True)
        nursery.start_soon(lateness.run)
        late = Late()
        lateness.add(cast(Any, late))
        for _ in range(3):
            await trio.sleep(1)
            lateness.resume(cast(Any, late))
        assert sum(map(len, lateness._open.values())) == 1
        await trio.sleep(6.5)
        assert late.said == []
        await trio.sleep(1)
        assert late.said == [True]
        assert not lateness._open
        nursery.cancel_scope.cancel()
