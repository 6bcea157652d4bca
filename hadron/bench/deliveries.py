"""Consuming, measured: what `hadron bench groups` does again and again. Only what users have."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import anyio

from hadron.bench.stats import ProcessUse, percentile
from hadron.client import Client, Subscription
from hadron.model.errors import DeadlineExceededError, HadronError

SMALL_BYTES: Final = 16
"""Of values in logs that are long: what counts there is the number of records."""

BATCH_RECORDS: Final = 5_000
"""Records of one stored batch."""

WINDOW: Final = 1_000
"""`max_in_flight` of members that take many records at a time: the default."""

WARM_UP: Final = 20
"""Deliveries one at a time that are not measured."""

_JOIN_S: Final = 60.0
_RUN_IN: Final = 0.25
"""Of the measured time, before it: members take what was waiting for them while others joined."""


@dataclass(frozen=True, slots=True)
class Throughput:
    records_per_s: float
    leader_us: float
    """CPU time of the leader's process per record, microseconds."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of deliveries one at a time, in microseconds."""

    p50_us: float
    p99_us: float
    leader_us: float


async def fill(client: Client, stream: str, records: int, size: int, limit_s: float) -> int:
    """Publish until the stream has so many records, or time is up; returns how many it has."""
    (offsets,) = await client.offsets(stream)
    held = offsets.next_offset
    values = [b"x" * size] * BATCH_RECORDS
    end = time.perf_counter() + limit_s
    async with client.producer(stream) as producer:

        async def publish() -> None:
            nonlocal held
            while held < records and time.perf_counter() < end:
                count = min(BATCH_RECORDS, records - held)
                held += count
                await producer.send_many(values[:count])

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(publish)
    return held


class _Taking:
    """What members take, and whether there is more."""

    def __init__(self, members: int, end: int) -> None:
        self.count = 0
        self.last_s = 0.0
        self.all_joined, self.all_read = anyio.Event(), anyio.Event()
        self._waiting = members
        self._end = end

    async def member(self, client: Client, stream: str, group: str, window: int) -> None:
        # Its own window stops it until all have joined: the first must not take everything.
        async with client.subscribe(stream, group=group, max_in_flight=window) as subscription:
            self._waiting -= 1
            if not self._waiting:
                self.all_joined.set()
            await self.all_joined.wait()
            async for batch in subscription.batches():
                self.count += len(batch)
                self.last_s = anyio.current_time()
                if self.count >= self._end:
                    self.all_read.set()
                await batch.ack()


async def consume(
    stream: str,
    members: Sequence[tuple[Client, str]],
    seconds: float,
    leader: ProcessUse,
    *,
    window: int = WINDOW,
    aside: int = 0,
) -> Throughput:
    """Members of groups that are new take and acknowledge whole deliveries, until time is up or all
    is read; only then it is shorter: silence before is time like any other.

    Args:
        members: the client and the group of each.
        window: records that a member has at a time; 1 makes every record a delivery of its own.
        aside: records that somebody else in these groups may hold.

    Raises `HadronError` when there was nothing to take.
    """
    (offsets,) = await members[0][0].offsets(stream)
    records = offsets.next_offset
    taking = _Taking(len(members), records * len({group for _, group in members}) - aside)
    is_used_up, taken, elapsed, cpu = False, 0, 1.0, 0.0
    with anyio.move_on_after(seconds + _JOIN_S):
        async with anyio.create_task_group() as tasks:
            for client, group in members:
                tasks.start_soon(taking.member, client, stream, group, window)
            await taking.all_joined.wait()
            await anyio.sleep(seconds * _RUN_IN)
            before, started, cpu = taking.count, anyio.current_time(), leader.cpu_s()
            is_used_up = taking.all_read.is_set()
            if not is_used_up:
                with anyio.move_on_after(seconds):
                    await taking.all_read.wait()
                while taking.count == before:  # noqa: ASYNC110 - nobody tells
                    # A busy machine takes longer than a short look.
                    await anyio.sleep(0.01)
            cpu = leader.cpu_s() - cpu
            end_s = taking.last_s if taking.all_read.is_set() else anyio.current_time()
            taken, elapsed = taking.count - before, max(end_s - started, 1e-9)
            tasks.cancel_scope.cancel()
    if is_used_up:
        raise HadronError(
            f"the stream {stream} has only {records:,} records: they were taken before the "
            "measurement began",
            "raise --fill-seconds",
        )
    if not taken:
        raise DeadlineExceededError(
            f"{len(members)} members consumed nothing within {seconds + _JOIN_S:g} s",
            "is the machine busy? give it more --seconds",
        )
    return Throughput(taken / elapsed, cpu / taken * 1e6)


async def one_by_one(
    client: Client,
    stream: str,
    group: str,
    start: int,
    records: int,
    limit_s: float,
    leader: ProcessUse,
) -> Cost:
    """From an acknowledgement to the next record in the member's hands, `records` times at most, or
    until the log ends; `WARM_UP` more are taken before. Raises `DeadlineExceededError` when the
    next one does not come."""
    (offsets,) = await client.offsets(stream)
    taken: list[float] = []
    seen, cpu, end = 0, 0.0, 0.0
    async with client.subscribe(stream, group=group, start=start, max_in_flight=1) as subscription:
        with anyio.move_on_after(limit_s + _JOIN_S) as scope:
            async for delivery in subscription:
                seen += 1
                if seen > WARM_UP:
                    taken.append(time.perf_counter())
                await delivery.ack()
                if seen == WARM_UP:
                    cpu = leader.cpu_s()
                    taken.append(time.perf_counter())
                    end = taken[0] + limit_s
                is_over = taken and (taken[-1] > end or len(taken) > records)
                if is_over or delivery.offset + 1 >= offsets.next_offset:
                    break
            cpu = leader.cpu_s() - cpu
    if scope.cancelled_caught or len(taken) < 2:
        raise DeadlineExceededError(
            f"{stream}: {seen:,} of {records + WARM_UP:,} deliveries one at a time came within "
            f"{limit_s + _JOIN_S:g} s"
        )
    steps = [(later - earlier) * 1e6 for earlier, later in pairwise(taken)]
    return Cost(percentile(steps, 0.50), percentile(steps, 0.99), cpu / len(steps) * 1e6)


async def keep_some(
    subscription: Subscription, begin: int, end: int, step: int, limit_s: float
) -> tuple[int, int]:
    """Acknowledge the records from `begin` to `end`, but hold every `step`-th from the first on.

    Returns how many were acknowledged and how many are held; what lies above them goes to others.
    """
    kept = seen = 0
    with anyio.move_on_after(limit_s):
        while seen < end - begin:
            # In order, as there is nobody else in the group yet.
            delivery = await anext(subscription)
            seen += 1
            if (delivery.offset - begin) % step:
                await delivery.ack()
            else:
                kept += 1
    # What it has not looked at goes to others, and nothing more comes here.
    subscription._consumer.give_back_unseen()
    await subscription.flush()
    return seen - kept, kept
