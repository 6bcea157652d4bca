"""The workloads, each a function from a client to what it measured. They use only what users have.

A clock that runs on after the work is done measures waiting: each workload's stops with its last
record, and says how many records and seconds its figures stand on.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import anyio

from hadron.bench.stats import percentile
from hadron.client import Client
from hadron.model.errors import DeadlineExceededError
from hadron.model.schema import SchemaObject, StreamSpec

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Measured:
    """
    Attributes:
        figures: by name.
        records: that they stand on.
        seconds: from the first of these records to the last.
    """

    figures: Figures
    records: int
    seconds: float


_BATCH_RECORDS: Final = 1_000
_CONCURRENT_BATCHES: Final = 5
"""What an idempotent producer may have in flight per partition."""

_WARM_UP: Final = 200

ROUNDS: Final = 3
"""Of what is measured one at a time: the medians count, so that one disturbed round does not."""

_ARRIVE_WITHIN_S: Final = 60.0
"""A workload to which nothing comes for so long is not slow but stuck."""


async def declare(client: Client, *names: str) -> None:
    """Create the streams, on the first replica set of the topology."""
    topology = await client.topology()
    partition = topology.replica_sets[0].name
    await client.apply(
        [
            SchemaObject(kind="Stream", name=name, spec=StreamSpec(partitions=(partition,)))
            for name in names
        ]
    )


async def publish_one(client: Client, stream: str, value: bytes, seconds: float) -> Measured:
    """One record at a time, each acknowledged before the next is sent."""
    async with client.producer(stream) as producer:
        for _ in range(_WARM_UP):
            await producer.send(value)

        async def one_round() -> list[float]:
            taken: list[float] = []
            end = time.perf_counter() + seconds
            while (started := time.perf_counter()) < end:
                await producer.send(value)
                taken.append(time.perf_counter() - started)
            return taken

        return await _in_rounds("publish_one", one_round)


async def publish_many(
    client: Client, stream: str, value: bytes, seconds: float, cpu_s: Callable[[], float]
) -> Measured:
    """Batches of 1,000 records with `send_many`, as many in flight as a producer may have."""
    values = [value] * _BATCH_RECORDS
    taken: list[float] = []
    end = time.perf_counter() + seconds

    async with client.producer(stream) as producer:

        async def send_batches() -> None:
            while (started := time.perf_counter()) < end:
                await producer.send_many(values)
                taken.append(time.perf_counter() - started)

        cpu_before, started = cpu_s(), time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for _ in range(_CONCURRENT_BATCHES):
                tasks.start_soon(send_batches)
        elapsed, cpu = time.perf_counter() - started, cpu_s() - cpu_before
    records = len(taken) * _BATCH_RECORDS
    figures = {
        "publish_many_records_per_s": records / elapsed,
        "publish_many_mb_per_s": records * len(value) / elapsed / 1e6,
        "publish_many_batch_p50_ms": percentile(taken, 0.50) * 1e3,
        "publish_many_batch_p99_ms": percentile(taken, 0.99) * 1e3,
        "publish_many_batch_p999_ms": percentile(taken, 0.999) * 1e3,
        "cpu_s_per_million": cpu / records * 1e6,
    }
    return Measured(figures, records, elapsed)


async def publish_send(client: Client, stream: str, value: bytes, seconds: float) -> Measured:
    """Single records with `send_soon`: buffered at once, batched by the producer."""
    count = 0
    started = time.perf_counter()
    end = started + seconds
    async with client.producer(stream) as producer:
        while time.perf_counter() < end:
            for _ in range(100):
                await producer.send_soon(value)
            count += 100
    elapsed = time.perf_counter() - started
    return Measured({"publish_send_records_per_s": count / elapsed}, count, elapsed)


async def read(client: Client, stream: str, seconds: float) -> Measured:
    """Plain reads from the beginning; every record is constructed and its value touched."""
    count = size = 0
    started = time.perf_counter()
    end = started + seconds
    while time.perf_counter() < end:
        async for record in client.read(stream, offset=0):
            size += len(record.value)
            count += 1
            if not count & 0xFFFF and time.perf_counter() > end:
                break
    elapsed = time.perf_counter() - started
    figures = {"read_records_per_s": count / elapsed, "read_mb_per_s": size / elapsed / 1e6}
    return Measured(figures, count, elapsed)


async def consume_batch(client: Client, stream: str, seconds: float) -> Measured:
    """A group of one member that takes and acknowledges whole deliveries, until time is up or
    everything is consumed."""
    end = await _end_of(client, stream)
    count = 0
    async with client.subscribe(
        stream, group="bench-batch", start="earliest", max_in_flight=10_000
    ) as subscription:
        started = last = time.perf_counter()
        with anyio.move_on_after(_ARRIVE_WITHIN_S + seconds) as scope:
            async for batch in subscription.batches():
                for record in batch.records:
                    assert record.value
                count += len(batch.records)
                await batch.ack()
                last = time.perf_counter()
                if count >= end or last > started + seconds:
                    break
    return _consumed("consume_batch", count, end, last - started, scope)


async def consume_single(client: Client, stream: str, seconds: float) -> Measured:
    """A group of one member that takes and acknowledges records one by one, until time is up or
    everything is consumed."""
    end = await _end_of(client, stream)
    count = 0
    async with client.subscribe(
        stream, group="bench-single", start="earliest", max_in_flight=2_000
    ) as subscription:
        started = last = time.perf_counter()
        with anyio.move_on_after(_ARRIVE_WITHIN_S + seconds) as scope:
            async for delivery in subscription:
                assert delivery.value
                await delivery.ack()
                count += 1
                last = time.perf_counter()
                if count >= end or last > started + seconds:
                    break
    return _consumed("consume_single", count, end, last - started, scope)


async def deliver(client: Client, stream: str, value: bytes, seconds: float) -> Measured:
    """From the call of `send` to the record in a waiting member's hands, one at a time."""
    arrived = anyio.Event()
    arrived_at = 0.0

    async with (
        client.subscribe(stream, group="bench-deliver", start="latest") as subscription,
        client.producer(stream) as producer,
        anyio.create_task_group() as tasks,
    ):

        async def receive() -> None:
            nonlocal arrived_at
            async for delivery in subscription:
                arrived_at = time.perf_counter()
                arrived.set()
                await delivery.ack()

        async def one() -> float:
            nonlocal arrived
            arrived = anyio.Event()
            started = time.perf_counter()
            await producer.send(value)
            await arrived.wait()
            return arrived_at - started

        async def one_round() -> list[float]:
            end = time.perf_counter() + seconds
            taken = [await one()]
            while time.perf_counter() < end:
                taken.append(await one())
            return taken

        tasks.start_soon(receive)
        for _ in range(_WARM_UP):
            await one()
        measured = await _in_rounds("deliver", one_round)
        tasks.cancel_scope.cancel()
    return measured


async def _in_rounds(name: str, one_round: Callable[[], Awaitable[Sequence[float]]]) -> Measured:
    """Percentiles of the seconds that single records took: of each round, then their medians."""
    started = time.perf_counter()
    rounds = [await one_round() for _ in range(ROUNDS)]
    elapsed = time.perf_counter() - started
    figures = {
        f"{name}_{label}_ms": median(percentile(taken, share) for taken in rounds) * 1e3
        for label, share in (("p50", 0.50), ("p99", 0.99), ("p999", 0.999))
    }
    return Measured(figures, sum(map(len, rounds)), elapsed)


async def _end_of(client: Client, stream: str) -> int:
    """How many records the stream has: nobody writes to it, and it has one partition."""
    (offsets,) = await client.offsets(stream)
    return offsets.next_offset


def _consumed(
    name: str, records: int, end: int, seconds: float, scope: anyio.CancelScope
) -> Measured:
    """Raises `DeadlineExceededError` where records stopped coming before the end: those that came
    until then say nothing of how fast they are."""
    if scope.cancelled_caught:
        raise DeadlineExceededError(
            f"{name}: {records:,} of {end:,} records were delivered, and then nothing more within "
            f"{_ARRIVE_WITHIN_S:g} s of the measurement's end",
            "is the machine busy? give it more --seconds",
        )
    return Measured({f"{name}_records_per_s": records / seconds}, records, seconds)
