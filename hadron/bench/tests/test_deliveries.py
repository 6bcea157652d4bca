"""Silence is time: what stops coming before the end makes figures worse, or is an error."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from hadron.bench import deliveries, parts, workloads
from hadron.bench.deliveries import Cost, Throughput
from hadron.bench.ground import Plan
from hadron.model.errors import ConfigurationError, DeadlineExceededError, HadronError

Step = tuple[float, int]
"""Seconds, and the records that come after them."""


class Batch:
    def __init__(self, count: int) -> None:
        self.records = [SimpleNamespace(value=b"x")] * count

    def __len__(self) -> int:
        return len(self.records)

    async def ack(self) -> None:
        await trio.lowlevel.checkpoint()


class Delivery(SimpleNamespace):
    async def ack(self) -> None:
        await trio.lowlevel.checkpoint()


class Client:
    """Of a stream with so many records, which come in these steps; then nothing comes any more."""

    def __init__(self, records: int, steps: Sequence[Step]) -> None:
        self._records = records
        self._steps = steps

    async def offsets(self, _stream: str) -> Sequence[Any]:
        return (SimpleNamespace(next_offset=self._records),)

    def subscribe(self, _stream: str, **_options: Any) -> Client:
        return self

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def batches(self) -> Batches:
        return Batches(self._steps)

    def __aiter__(self) -> Deliveries:
        return Deliveries(self._steps)


class Batches:
    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = iter(steps)

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> Batch:
        seconds, count = next(self._steps, (math.inf, 0))
        await trio.sleep(seconds)
        return Batch(count)


class Deliveries:
    def __init__(self, steps: Sequence[Step]) -> None:
        self._batches = Batches(steps)
        self._offset = -1
        self._left = 0

    async def __anext__(self) -> Delivery:
        while not self._left:
            self._left = len(await anext(self._batches))
        self._left -= 1
        self._offset += 1
        return Delivery(offset=self._offset, value=b"x")


class Leader:
    """Uses a second of its processor each time that it is looked at; 500 until now."""

    seconds = 500.0

    def cpu_s(self) -> float:
        self.seconds += 1.0
        return self.seconds


async def _consume(client: Client, seconds: float, groups: int = 1, **options: Any) -> Throughput:
    members = [(cast(Any, client), f"g{number}") for number in range(groups)]
    return await deliveries.consume("fan", members, seconds, cast(Any, Leader()), **options)


async def _one_by_one(client: Client, records: int) -> Cost:
    return await deliveries.one_by_one(
        cast(Any, client), "long", "g", 0, records, 60.0, cast(Any, Leader())
    )


async def test_a_stall_before_the_end_is_time(autojump_clock: MockClock) -> None:
    del autojump_clock
    # A run-in of one second, then 1,000 records in the first of four seconds, and no more.
    found = await _consume(Client(1_000_000, [(0.1, 100)] * 20), 4.0)
    assert found.records_per_s == pytest.approx(1_000 / 4, rel=0.1)


async def test_the_clock_ends_where_all_groups_have_read_all(autojump_clock: MockClock) -> None:
    del autojump_clock
    found = await _consume(Client(2_000, [(0.1, 100)] * 20), 4.0, groups=3)
    assert found.records_per_s == pytest.approx(3 * 1_000, rel=0.1)


async def test_what_somebody_else_holds_is_not_waited_for(autojump_clock: MockClock) -> None:
    del autojump_clock
    found = await _consume(Client(2_500, [(0.1, 100)] * 20), 4.0, aside=500)
    assert found.records_per_s == pytest.approx(1_000, rel=0.1)


async def test_a_stream_that_is_used_up_gives_no_figure(autojump_clock: MockClock) -> None:
    del autojump_clock
    with pytest.raises(HadronError, match="fan has only 500 records") as raised:
        await _consume(Client(500, [(0.1, 100)] * 5), 4.0)
    assert raised.value.hint == "raise --fill-seconds"


async def test_a_group_that_gets_nothing_at_all_is_told(autojump_clock: MockClock) -> None:
    del autojump_clock
    with pytest.raises(DeadlineExceededError, match="consumed nothing within 64 s"):
        await _consume(Client(1_000, []), 4.0)


async def test_one_by_one_ends_with_the_log(autojump_clock: MockClock) -> None:
    del autojump_clock
    found = await _one_by_one(Client(61, [(0.001, 1)] * 61), 1_000)
    # One second of the processor, and not the 500 before it: for 41 steps.
    assert found.leader_us == pytest.approx(1e6 / 41)


async def test_one_by_one_says_that_the_next_did_not_come(autojump_clock: MockClock) -> None:
    del autojump_clock
    with pytest.raises(DeadlineExceededError, match=r"60 of 1,020 deliveries .* within 120 s"):
        await _one_by_one(Client(5_000, [(0.001, 1)] * 60), 1_000)


@pytest.mark.parametrize("workload", [workloads.consume_batch, workloads.consume_single])
async def test_a_workload_that_stalls_has_no_figures(
    workload: Callable[[Any, str, float], Awaitable[Any]], autojump_clock: MockClock
) -> None:
    del autojump_clock
    client = Client(5_000_000, [(0.01, 1_000)] * 5)
    with pytest.raises(DeadlineExceededError, match="5,000 of 5,000,000 records were delivered"):
        await workload(client, "many", 1.0)


@pytest.mark.parametrize(
    ("part", "held", "hint"),
    [("log", None, "--records"), ("acknowledged", None, "--records"), ("log", 9, "--fill-seconds")],
)
def test_a_log_that_is_too_short_for_all_turns_is_refused(
    part: str, held: int | None, hint: str
) -> None:
    plan = Plan(1, 100, "os", 1.0, 3, 1_000, 30.0, 1, 100, (part,))
    with pytest.raises(ConfigurationError, match="are delivered out of it") as raised:
        parts.check(plan, held)
    assert raised.value.hint == f"raise {hint}"
    parts.check(plan, 1_000_000)
