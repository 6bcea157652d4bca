"""The client against real nodes: in one process with crashes, and as a process under both loops."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
import trio
from trio.testing import MockClock

import hadron
from hadron.client import Client
from hadron.model.errors import NotFoundError, PeerError
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node.supervision.cluster import LocalCluster
from hadron.testing.nodes import running_nodes

PARTITION = "local/p0"


async def declare(client: Client, name: str) -> None:
    spec = StreamSpec(partitions=(PARTITION,))
    await client.apply([SchemaObject(kind="Stream", name=name, spec=spec)])


async def test_a_leader_that_crashes_again_and_again_costs_no_record(tmp_path: Path) -> None:
    sent = [b"%d" % number for number in range(4000)]
    async with running_nodes(tmp_path, 3) as nodes, nodes.client() as client:
        await declare(client, "s")
        async with trio.open_nursery() as nursery:
            done = trio.Event()
            consumed: set[int] = set()

            async def crash() -> None:
                for _ in range(3):
                    await trio.sleep(0.1)
                    await nodes.crash("n1")
                    await nodes.restart("n1")
                    await nodes.wait_serving()
                done.set()

            async def consume() -> None:
                async with client.subscribe("s", group="g") as subscription:
                    while len(consumed) < len(sent):
                        delivery = await subscription.__anext__()
                        assert delivery.value == sent[delivery.offset]
                        consumed.add(delivery.offset)
                        await delivery.ack()

            nursery.start_soon(crash)
            nursery.start_soon(consume)
            async with client.producer("s", batch_bytes=1000) as producer:
                for number, value in enumerate(sent):
                    await producer.send_soon(value)
                    if number % 10 == 0 and not done.is_set():
                        await trio.sleep(0.001)
        assert [record.value async for record in client.read("s")] == sent
        assert consumed == set(range(len(sent)))


@pytest.mark.long
async def test_only_the_leader_says_that_there_is_no_such_stream(
    tmp_path: Path, clock: MockClock
) -> None:
    """A replica may have it in its log, and not know yet that it is committed."""
    async with running_nodes(tmp_path, 3) as nodes:
        async with nodes.client() as client:
            with pytest.raises(NotFoundError, match="no stream is called 'made-next'"):
                await client.stream("made-next")
            await declare(client, "s")
        await nodes.wait_in_step()
        await nodes.crash("n1")
        async with nodes.client(request_timeout_s=5.0) as client:
            assert (await client.stream("s")).name == "s"
            with pytest.raises(PeerError, match="only the leader of local/p0 knows"):
                await client.stream("made-next")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("node"), nodes=1) as running:
        yield running


async def use(client: Client, stream: str) -> None:
    await declare(client, stream)
    async with client.producer(stream) as producer:
        receipt = await producer.send({"a": 1}, key="k", type="t.u")
        assert (receipt.offset, receipt.duplicate) == (0, False)
        pending = [await producer.send_soon(b"%d" % number) for number in range(1000)]
        assert (await pending[-1].wait()).offset == 1000
        receipts = await producer.send_many([b"x" * 100] * 5000)
        assert receipts[-1].next_offset == 6001
    records = [record async for record in client.read(stream, offset="earliest")]
    assert [record.offset for record in records] == list(range(6001))
    assert (records[0].value, records[0].key, records[0].type) == ({"a": 1}, "k", "t.u")
    assert [b.count async for b in client.read_batches(stream, offset=6000)] == [1]
    assert (await client.offsets(stream))[0].next_offset == 6001
    async with client.subscribe(stream, group="g", max_in_flight=100) as subscription:
        first = await subscription.__anext__()
        await first.nack()
        attempts = {}
        async for delivery in subscription:
            attempts[delivery.offset] = delivery.attempt
            await delivery.ack()
            if len(attempts) == 6001:
                break
        assert attempts[0] == 2
        await subscription.flush()
    groups = {group.group: group for group in await client.groups(stream)}
    assert (groups["g"].floor, groups["g"].in_flight) == (6001, 0)
    assert (await client.status()).state == "serving"


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_everything_once_through_a_real_node(cluster: LocalCluster, backend: str) -> None:
    async def run(function: Callable[[Client, str], Awaitable[None]]) -> None:
        with anyio.fail_after(60):
            async with hadron.connect(cluster.url) as client:
                await function(client, backend)

    anyio.run(run, use, backend=backend)


def test_everything_once_through_a_real_node_blocking(cluster: LocalCluster) -> None:
    with hadron.connect_sync(cluster.url) as client:
        # The cluster has one replica set, so nothing is to be chosen.
        assert client.create_stream("sync").spec == StreamSpec(partitions=(PARTITION,))
        before = datetime.now(UTC)
        with client.producer("sync") as producer:
            producer.send("text", key=b"k")
            for number in range(1000):
                producer.send_soon(number)
        values = [record.value for record in client.read("sync")]
        assert values == ["text", *range(1000)]
        assert [each.value for each in client.read("sync", start=before, limit=1)] == ["text"]
        assert list(client.read("sync", start=before + timedelta(days=1))) == []
        with client.subscribe("sync", group="g") as subscription:
            for _, delivery in zip(range(1001), subscription, strict=False):
                delivery.ack()
            subscription.flush()
        assert [group.floor for group in client.groups("sync")] == [1001]
