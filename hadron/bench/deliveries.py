"""Consuming, measured: what `hadron bench groups` does again and again. Only what users have."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import anyio

from hadron.bench.stats import ProcessUse, percentile
from hadron.bench.workloads import declare
from hadron.client import Client, Subscription
from hadron.model.errors import DeadlineExceededError

SMALL_BYTES: Final = 16
"""Of values in logs that are long: what counts there is the number of records."""

_BATCH_RECORDS: Final = 5_000
_MAX_IN_FLIGHT: Final = 1_000
"""What 200 members have got before all of them are there is little beside the stream."""

_JOIN_S: Final = 60.0
_WARM_UP: Final = 20


@dataclass(frozen=True, slots=True)
class Throughput:
    records_per_s: float
    leader_us_per_record: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Of deliveries one at a time, in microseconds."""

    p50_us: float
    p99_us: float
    leader_us: float

    def figures(self, prefix: str) -> dict[str, float]:
        return {
            f"{prefix}_p50_us": self.p50_us, f"{prefix}_p99_us": self.p99_us,
            f"{prefix}_leader_us": self.leader_us,
        }


async def fill(client: Client, stream: str, records: int, size: int, limit_s: float) -> int:
    """Publish until the stream has so many records, or time is up; returns how many it has."""
    (offsets,) = await client.offsets(stream)
    held = offsets.next_offset
    values = [b"x" * size] * _BATCH_RECORDS
    end = time.perf_counter() + limit_s
    async with client.producer(stream) as producer:

        async def publish() -> None:
            nonlocal held
            while held < records and time.perf_counter() < end:
                count = min(_BATCH_RECORDS, records - held)
                held += count
                await producer.send_many(values[:count])

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(publish)
    return held


async def consume(
    stream: str,
    members: Sequence[tuple[Client, str]],
    seconds: float,
    leader: ProcessUse | None = None,
) -> Throughput:
    """Members of groups take and acknowledge whole deliveries, until time is up or all is read.

    Args:
        members: the client and the group of each.
    """
    count = 0
    last_s = 0.0
    waiting = len(members)
    ready = anyio.Event()

    async def member(client: Client, group: str) -> None:
        nonlocal count, waiting, last_s
        # Its own window stops it until all have joined: the first must not take everything.
        async with client.subscribe(
            stream, group=group, max_in_flight=_MAX_IN_FLIGHT
        ) as subscription:
            waiting -= 1
            if not waiting:
                ready.set()
            await ready.wait()
            async for batch in subscription.batches():
                count += len(batch)
                last_s = time.perf_counter()
                await batch.ack()

    with anyio.move_on_after(seconds + _JOIN_S):
        async with anyio.create_task_group() as tasks:
            for client, group in members:
                tasks.start_soon(member, client, group)
            await ready.wait()
            started, cpu = time.perf_counter(), leader.cpu_s() if leader else 0.0
            seen = -1
            while time.perf_counter() < started + seconds and count != seen:
                # Everything is read when nothing has come for a while.
                seen = count
                await anyio.sleep(min(1.0, seconds))
            cpu = leader.cpu_s() - cpu if leader else 0.0
            records, elapsed = count, max(last_s - started, 1e-9)
            tasks.cancel_scope.cancel()
    if waiting or not records:
        raise DeadlineExceededError(
            f"{len(members)} members consumed nothing within {seconds + _JOIN_S:g} s",
            "is the machine busy? give it more --seconds",
        )
    return Throughput(records / elapsed, cpu / records * 1e6)


async def one_by_one(
    client: Client, stream: str, group: str, start: int, seconds: float, leader: ProcessUse
) -> Cost:
    """From an acknowledgement to the next record in the member's hands."""
    taken: list[float] = []
    cpu = 0.0
    async with client.subscribe(
        stream, group=group, start=start, max_in_flight=1
    ) as subscription:
        with anyio.move_on_after(seconds + _JOIN_S):
            for _ in range(_WARM_UP):
                await (await anext(subscription)).ack()
            cpu = leader.cpu_s()
            end = time.perf_counter() + seconds
            taken.append(time.perf_counter())
            async for delivery in subscription:
                taken.append(time.perf_counter())
                await delivery.ack()
                if taken[-1] > end or len(taken) > 9_000:
                    break
            cpu = leader.cpu_s() - cpu
    if len(taken) < 2:
        raise DeadlineExceededError(f"{stream}: nothing was delivered in {seconds + _JOIN_S:g} s")
    steps = [(later - earlier) * 1e6 for earlier, later in pairwise(taken)]
    return Cost(percentile(steps, 0.50), percentile(steps, 0.99), cpu / len(steps) * 1e6)


async def keep_every_other(subscription: Subscription, wanted: int, limit_s: float) -> int:
    """Acknowledge the second, fourth … record, and hold the others; returns how many of them."""
    kept = 0
    with anyio.move_on_after(limit_s):
        while kept < wanted:
            delivery = await anext(subscription)
            if delivery.offset % 2:
                await delivery.ack()
            else:
                kept += 1
        await subscription.flush()
    # What it has not looked at goes to others, and nothing more comes here.
    subscription.give_back_unseen()
    return kept


__all__ = ["Cost", "Throughput", "consume", "declare", "fill", "keep_every_other", "one_by_one"]
