"""The workloads, each a function from a client to figures. They use only what users have."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import anyio

from hadron.bench.stats import percentile
from hadron.client import Client
from hadron.model.schema import SchemaObject, StreamSpec

Figures = dict[str, float]

_BATCH_RECORDS: Final = 1_000
_CONCURRENT_BATCHES: Final = 5
"""What an idempotent producer may have in flight per partition."""

_WARM_UP: Final = 200


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


async def publish_one(client: Client, stream: str, value: bytes, seconds: float) -> Figures:
    """One record at a time, each acknowledged before the next is sent."""
    taken: list[float] = []
    async with client.producer(stream) as producer:
        for _ in range(_WARM_UP):
            await producer.send(value)
        end = time.perf_counter() + seconds
        while (started := time.perf_counter()) < end:
            await producer.send(value)
            taken.append(time.perf_counter() - started)
    return {
        "publish_one_p50_ms": percentile(taken, 0.50) * 1e3,
        "publish_one_p99_ms": percentile(taken, 0.99) * 1e3,
    }


async def publish_many(
    client: Client, stream: str, value: bytes, seconds: float, cpu_s: Callable[[], float]
) -> Figures:
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
    return {
        "publish_many_records_per_s": records / elapsed,
        "publish_many_mb_per_s": records * len(value) / elapsed / 1e6,
        "publish_many_batch_p50_ms": percentile(taken, 0.50) * 1e3,
        "publish_many_batch_p99_ms": percentile(taken, 0.99) * 1e3,
        "cpu_s_per_million": cpu / records * 1e6,
    }


async def publish_send(client: Client, stream: str, value: bytes, seconds: float) -> Figures:
    """Single records with `send_soon`: buffered at once, batched by the producer."""
    count = 0
    started = time.perf_counter()
    end = started + seconds
    async with client.producer(stream) as producer:
        while time.perf_counter() < end:
            for _ in range(100):
                await producer.send_soon(value)
            count += 100
    return {"publish_send_records_per_s": count / (time.perf_counter() - started)}


async def read(client: Client, stream: str, seconds: float) -> Figures:
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
    return {"read_records_per_s": count / elapsed, "read_mb_per_s": size / elapsed / 1e6}


async def consume_batch(client: Client, stream: str, seconds: float) -> Figures:
    """A group of one member that takes and acknowledges whole deliveries."""
    count = 0
    async with client.subscribe(
        stream, group="bench-batch", start="earliest", max_in_flight=10_000
    ) as subscription:
        started = time.perf_counter()
        with anyio.move_on_after(seconds):
            async for batch in subscription.batches():
                for record in batch.records:
                    assert record.value
                count += len(batch.records)
                await batch.ack()
        elapsed = time.perf_counter() - started
    return {"consume_batch_records_per_s": count / elapsed}


async def consume_single(client: Client, stream: str, seconds: float) -> Figures:
    """A group of one member that takes and acknowledges records one by one."""
    count = 0
    async with client.subscribe(
        stream, group="bench-single", start="earliest", max_in_flight=2_000
    ) as subscription:
        started = time.perf_counter()
        with anyio.move_on_after(seconds):
            async for delivery in subscription:
                assert delivery.value
                await delivery.ack()
                count += 1
        elapsed = time.perf_counter() - started
    return {"consume_single_records_per_s": count / elapsed}


async def deliver(client: Client, stream: str, value: bytes, seconds: float) -> Figures:
    """From the call of `send` to the record in a waiting member's hands, one at a time."""
    taken: list[float] = []
    arrived = anyio.Event()

    async with (
        client.subscribe(stream, group="bench-deliver", start="latest") as subscription,
        client.producer(stream) as producer,
        anyio.create_task_group() as tasks,
    ):
        async def receive() -> None:
            async for delivery in subscription:
                taken.append(time.perf_counter() - started)
                arrived.set()
                await delivery.ack()

        started = time.perf_counter()
        tasks.start_soon(receive)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(taken) <= _WARM_UP:
            arrived = anyio.Event()
            started = time.perf_counter()
            await producer.send(value)
            await arrived.wait()
        tasks.cancel_scope.cancel()
    measured = taken[_WARM_UP:]
    return {
        "deliver_p50_ms": percentile(measured, 0.50) * 1e3,
        "deliver_p99_ms": percentile(measured, 0.99) * 1e3,
    }
