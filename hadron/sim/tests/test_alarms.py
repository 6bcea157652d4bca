"""Waiting for a moment: in the simulated time, and in any other loop, to the same end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from hadron.fakes.alarms import Alarm
from hadron.fakes.scheduling import run_seeded
from hadron.fakes.trace import Trace

Main = Callable[[], Awaitable[None]]
Loop = Callable[[Main], None]


@pytest.fixture(params=["simulated", "trio"])
def loop(request: pytest.FixtureRequest) -> Loop:
    if request.param == "simulated":
        return lambda main: run_seeded(1, lambda _: main(), Trace())
    clock = trio.testing.MockClock(autojump_threshold=0)
    return lambda main: trio.run(main, clock=clock)


async def waits_until(alarm: Alarm, due_s: float, act: Callable[[], None]) -> float:
    """For how many seconds, if something happens after one second."""
    started_s = trio.current_time()
    ended_s = []

    async def wait() -> None:
        await alarm.wait(started_s + due_s)
        ended_s.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(1)
        act()
        await trio.sleep(100)
        assert ended_s
    return ended_s[0] - started_s


def test_it_rings_when_it_is_due_or_told(loop: Loop) -> None:
    async def main() -> None:
        alarm = Alarm()
        now_s = trio.current_time
        assert await waits_until(alarm, 5, lambda: None) == pytest.approx(5)
        assert await waits_until(alarm, 5, alarm.ring) == pytest.approx(1)
        sooner = await waits_until(alarm, 5, lambda: alarm.bring_forward(now_s() + 2))
        assert sooner == pytest.approx(3)
        at_once = await waits_until(alarm, 5, lambda: alarm.bring_forward(now_s() - 2))
        assert at_once == pytest.approx(1)
        later = await waits_until(alarm, 5, lambda: alarm.bring_forward(now_s() + 50))
        assert later == pytest.approx(5)

    loop(main)


@pytest.mark.parametrize("shield", [False, True])
def test_only_a_shielded_one_rings_before_it_hears_of_cancellation(
    loop: Loop, shield: bool
) -> None:
    async def main() -> None:
        alarm = Alarm(shield=shield)
        started_s = trio.current_time()
        with trio.move_on_after(2) as scope:
            await alarm.wait(started_s + 5)
            await trio.sleep(1)
        assert scope.cancelled_caught
        assert trio.current_time() - started_s == pytest.approx(5 if shield else 2)
        alarm.ring()
        await trio.sleep(10)

    loop(main)


def test_sleeping_can_be_cancelled_and_many_wake_in_the_order_of_time(loop: Loop) -> None:
    async def main() -> None:
        woken: list[float] = []

        async def sleeper(seconds: float) -> None:
            await trio.sleep(seconds)
            woken.append(seconds)

        async with trio.open_nursery() as nursery:
            for seconds in (3, 0, 1, 9, 2, 0.5):
                nursery.start_soon(sleeper, seconds)
            await trio.sleep(4)
            nursery.cancel_scope.cancel()
        await trio.sleep(10)
        assert woken == [0, 0.5, 1, 2, 3]

    loop(main)
