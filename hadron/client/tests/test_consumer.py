"""Group members against a fake node."""

from __future__ import annotations

import anyio
import pytest

from hadron.client import Client
from hadron.client.consumer import Delivery
from hadron.client.tests.fake_node import FakeNode
from hadron.client.tests.support import both, served, until
from hadron.model.errors import ConnectionLostError, NotFoundError, PeerError, RequestError


async def fill(client: Client, count: int, batch: int = 10, partition: str | None = None) -> None:
    async with client.producer("s", partition=partition) as producer:
        for start in range(0, count, batch):
            await producer.send_many([b"%d" % n for n in range(start, min(count, start + batch))])


@both
async def test_every_record_is_delivered_and_acks_move_the_floor() -> None:
    async with served() as (node, client):
        await fill(client, 1000)
        async with client.subscribe("s", group="g", max_in_flight=64) as subscription:
            for expected in range(1000):
                delivery = await subscription.__anext__()
                assert (delivery.offset, delivery.value) == (expected, b"%d" % expected)
                assert (delivery.attempt, delivery.partition) == (1, "local/p0")
                await delivery.ack()
            await subscription.flush()
            assert node.groups["s", "local/p0", "g"].floor == 1000
            assert [(g.group, g.floor) for g in await client.groups("s")] == [("g", 1000)]
        await until(lambda: not node.groups["s", "local/p0", "g"].members)


@both
async def test_leaving_the_block_sends_the_acks() -> None:
    async with served() as (node, client):
        await fill(client, 10)
        async with client.subscribe("s", group="g") as subscription:
            async for delivery in subscription:
                await delivery.ack()
                if delivery.offset == 6:
                    break
        assert node.groups["s", "local/p0", "g"].floor == 7
        async with client.subscribe("s", group="g") as subscription:
            delivery = await subscription.__anext__()
            assert (delivery.offset, delivery.attempt) == (7, 2)


@both
async def test_acks_leave_by_themselves() -> None:
    async with served() as (node, client):
        await fill(client, 3)
        async with client.subscribe("s", group="g") as subscription:
            await (await subscription.__anext__()).ack()
            await until(lambda: node.groups["s", "local/p0", "g"].floor == 1)


@both
async def test_batches_are_acknowledged_as_a_whole_and_new_records_are_pushed() -> None:
    async with served() as (node, client):
        async with client.subscribe("s", group="g", start="latest") as subscription:
            await fill(client, 100)
            seen: list[int] = []
            async for batch in subscription.batches():
                assert batch.first_offset == len(seen)
                assert len(batch) == len(batch.records)
                seen.extend(int(record.value) for record in batch.records)
                await batch.ack()
                if len(seen) == 100:
                    break
            await subscription.flush()
        assert seen == list(range(100))
        assert node.groups["s", "local/p0", "g"].floor == 100


@both
async def test_nacked_records_come_again() -> None:
    async with served() as (_, client):
        await fill(client, 3)
        async with client.subscribe("s", group="g") as subscription:
            first = await subscription.__anext__()
            await first.nack()
            seen: list[Delivery] = []
            async for delivery in subscription:
                seen.append(delivery)
                await delivery.ack()
                if len(seen) == 3:
                    break
            assert [(d.offset, d.attempt) for d in seen] == [(1, 1), (2, 1), (0, 2)]
            await fill(client, 2)
            batch = await subscription.batches().__anext__()
            await batch.nack(delay_s=0.0)
            again = await subscription.batches().__anext__()
            assert (again.first_offset, again.attempt) == (batch.first_offset, 2)


@both
async def test_a_batch_is_attached_once_and_remembered() -> None:
    """One member in steps of 3, more batches in play than both sides remember."""
    async with served() as (node, client):
        await fill(client, 300, batch=7)
        async with client.subscribe("s", group="g", max_in_flight=3) as subscription:
            for expected in range(300):
                delivery = await subscription.__anext__()
                assert delivery.value == b"%d" % expected
                await delivery.ack()
            await subscription.flush()
        assert node.groups["s", "local/p0", "g"].floor == 300


@both
async def test_after_a_cut_the_member_joins_again_and_misses_nothing() -> None:
    async with served() as (node, client):
        await fill(client, 400)
        async with client.subscribe("s", group="g", max_in_flight=50) as subscription:
            acked: list[int] = []
            stale: list[Delivery] = []
            while len(set(acked)) < 400:
                delivery = await subscription.__anext__()
                if delivery.offset % 90 == 40 and delivery.attempt == 1:
                    stale.append(delivery)
                    node.cut()
                    await until(lambda: node.groups["s", "local/p0", "g"].members == [])
                    continue
                acked.append(delivery.offset)
                await delivery.ack()
            for old in stale:
                await old.ack()
            await until(lambda: node.groups["s", "local/p0", "g"].floor == 400)
        assert set(acked) == set(range(400))


@both
async def test_flush_says_when_acks_were_lost() -> None:
    async with served() as (node, client):
        await fill(client, 5)
        async with client.subscribe("s", group="g") as subscription:
            delivery = await subscription.__anext__()
            await delivery.ack()
            node.cut()
            with pytest.raises(ConnectionLostError, match="1 ack"):
                await subscription.flush()
            await subscription.flush()


@both
async def test_flush_says_when_acks_came_too_late() -> None:
    async with served() as (node, client):
        await fill(client, 2)
        async with client.subscribe("s", group="g") as subscription:
            early, late = [await subscription.__anext__() for _ in range(2)]
            await early.ack()
            await subscription.flush()
            node.cut()
            assert (await subscription.__anext__()).attempt == 2
            await late.ack()
            with pytest.raises(ConnectionLostError, match="1 acknowledgements came after"):
                await subscription.flush()
            await subscription.flush()


@both
async def test_one_group_shares_the_work_and_partitions_can_be_chosen() -> None:
    node = FakeNode(partitions=("a", "b"))
    async with served(node) as (_, client):
        await fill(client, 20, partition="a")
        await fill(client, 20, partition="b")
        async with client.subscribe("s", group="g") as subscription:
            seen = set()
            async for delivery in subscription:
                seen.add((delivery.partition, delivery.offset))
                await delivery.ack()
                if len(seen) == 40:
                    break
        async with client.subscribe("s", group="h", partitions=["b"]) as subscription:
            assert (await subscription.__anext__()).partition == "b"
        assert ("s", "a", "h") not in node.groups


@both
async def test_bad_arguments_and_names_are_named() -> None:
    async with served() as (_, client):
        with pytest.raises(RequestError, match="group"):
            client.subscribe("s", group="")
        with pytest.raises(RequestError, match="'now'"):
            client.subscribe("s", group="g", start="now")  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="max_in_flight 0"):
            client.subscribe("s", group="g", max_in_flight=0)
        with pytest.raises(NotFoundError):
            async with client.subscribe("nope", group="g"):
                pass
        with pytest.raises(NotFoundError):
            async with client.subscribe("s", group="g", partitions=["nope"]):
                pass
        with pytest.raises(RequestError, match="no partition"):
            async with client.subscribe("s", group="g", partitions=[]):
                pass


@both
async def test_a_lasting_refusal_ends_the_iteration() -> None:
    async with served() as (node, client):
        await fill(client, 1)
        async with client.subscribe("s", group="g") as subscription:
            await subscription.__anext__()
            node.objects.pop(("Stream", "s"))
            node.cut()
            with pytest.raises(NotFoundError):
                await subscription.__anext__()


@both
async def test_a_group_that_cannot_be_joined_says_why() -> None:
    node = FakeNode()
    async with served(node, request_timeout_s=0.2) as (_, client):
        await client.stream("s")
        node.handlers = lambda: {}  # type: ignore[method-assign]
        node.cut()
        with pytest.raises((PeerError, RequestError)):
            async with client.subscribe("s", group="g"):
                pass


@both
async def test_cancelling_a_waiting_member_leaves_the_client_usable() -> None:
    async with served() as (node, client):
        async with client.subscribe("s", group="g") as subscription:
            with anyio.move_on_after(0.02) as scope:
                await subscription.__anext__()
            assert scope.cancelled_caught
            await fill(client, 1)
            assert (await subscription.__anext__()).offset == 0
        await until(lambda: not node.groups["s", "local/p0", "g"].members)
