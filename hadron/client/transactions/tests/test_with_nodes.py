"""Transactions and steps over real nodes in one process, whose leaders crash."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest
import trio

from hadron.client import Client
from hadron.model.errors import (
    CommitUnknownError,
    ConflictError,
    HadronError,
    NotFoundError,
    RequestError,
)
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.testing.nodes import Cluster, running_cluster

EU, US = "eu/p0", "us/p0"
ONE: Final = {EU: 1, US: 1}
STREAMS: Final = {"in": (EU,), "eu": (EU,), "us": (US,), "both": (EU, US)}


async def declare(client: Client) -> None:
    await client.apply(
        [
            SchemaObject(kind="Stream", name=name, spec=StreamSpec(partitions=partitions))
            for name, partitions in STREAMS.items()
        ]
    )
    # All leaders have heard of them then.
    for name in ("eu", "us"):
        async with client.producer(name) as producer:
            await producer.send(b"before")


async def eventually(look: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(60):
        while not await look():  # noqa: ASYNC110 - what is looked at sets no event
            await trio.sleep(0.02)


async def until_over(client: Client) -> None:
    """Nothing is left of any transaction."""

    async def is_over() -> bool:
        return not await client.transactions()

    await eventually(is_over)


async def values(client: Client, stream: str) -> list[bytes]:
    found = [record.value async for record in client.read(stream)]
    return found[1:] if stream in ("eu", "us") else found


@pytest.mark.long
async def test_fifty_megabytes_on_one_replica_set(tmp_path: Path) -> None:
    """Far more than one entry has: it is prepared there, and shows up at once."""
    many = [b"%6d" % number + bytes(100_000) for number in range(500)]
    async with running_cluster(tmp_path, {EU: 1}) as cluster, cluster.client() as client:
        await client.create_stream("eu", partitions=[EU])
        async with client.transaction() as tx:
            published = await tx.publish_many("eu", many)
            assert not [record async for record in client.read("eu")]
        (receipt,) = published.receipts[:1]
        assert (receipt.base_offset, sum(each.count for each in published.receipts)) == (0, 500)
        found = [record.value[:6] async for record in client.read("eu")]
        assert found == [value[:6] for value in many]
        assert tx.id is not None
        known = await client.outcome(tx.id)
        assert known.state == "committed"
        await until_over(client)


async def test_100_000_records_published_one_by_one(tmp_path: Path) -> None:
    """They share statements, of which a replica set takes ten thousand."""
    async with running_cluster(tmp_path, {EU: 1}) as cluster, cluster.client() as client:
        for name in ("eu", "in"):
            await client.create_stream(name, partitions=[EU])
        async with client.transaction() as tx:
            for number in range(50_000):
                await tx.publish("eu", b"%d" % number)
                await tx.publish("in", b"%d" % number)
        for name in ("eu", "in"):
            found = [record.value async for record in client.read(name)]
            assert found == [b"%d" % number for number in range(50_000)]


async def test_all_of_it_is_where_the_receipts_say(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, ONE) as cluster, cluster.client() as client:
        await declare(client)
        async with client.producer("in") as producer:
            await producer.send_many([b"%d" % number for number in range(10)])
        async with client.subscribe("in", group="g", max_in_flight=10) as subscription:
            async with client.transaction() as tx:
                for _ in range(4):
                    delivery = await subscription.__anext__()
                    await tx.ack(delivery)
                    await tx.publish("us", delivery.value, id=delivery.id)
                many = await tx.publish_many("both", [b"x"] * 100)
                await tx.publish("eu", {"n": 1}, key="k")
            assert tx.id is not None
            assert tx.id.startswith(EU)
            assert [each.partition for each in many.receipts] == [EU], "where it is already"
            for receipt in tx.receipts:
                reader = client.read(
                    receipt.stream, partition=receipt.partition, offset=receipt.offset, limit=1
                )
                assert [record.id async for record in reader] == [receipt.id]
            outcome = await client.outcome(tx.id)
            assert outcome.is_committed
            assert {each.partition for each in outcome.receipts} == {EU, US}
            assert many.receipts[0] in outcome.receipts
            (group,) = await client.groups("in")
            assert group.floor == 4
        await until_over(client)


async def test_who_takes_one_at_a_time_gets_them_in_order(tmp_path: Path) -> None:
    """Offsets are given when a transaction is done, not when its intents are written."""
    rounds, writers = 25, 4
    async with running_cluster(tmp_path, ONE) as cluster, cluster.client() as client:
        await declare(client)
        seen: list[int] = []

        async def write(name: int) -> None:
            for number in range(rounds):
                async with client.transaction(driver=(EU, US)[name % 2]) as tx:
                    await tx.publish("us", b"%d" % number)
                    await tx.publish("eu", b"%d" % number)
                    if number % 5 == 0:
                        await tx.rollback()
                await client.send("us", b"alone")

        async with (
            trio.open_nursery() as nursery,
            client.subscribe("us", group="g", start="earliest", max_in_flight=1) as subscription,
        ):
            for name in range(writers):
                nursery.start_soon(write, name)
            expected = 1 + writers * (rounds + rounds - rounds // 5)
            with trio.fail_after(60):
                while len(seen) < expected:
                    delivery = await anext(subscription)
                    seen.append(delivery.offset)
                    await delivery.ack()
        assert seen == list(range(expected))


async def test_what_is_refused_is_told_and_nothing_of_it_is_done(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, ONE) as cluster, cluster.client() as client:
        await declare(client)
        async with client.producer("in") as producer:
            await producer.send_many([b"x"] * 3)
        async with client.subscribe("in", group="g") as subscription:
            first, second = [await subscription.__anext__() for _ in range(2)]
            await first.ack()
            await subscription.flush()
            first._is_acked = False  # As another program's would be.
            with pytest.raises(RequestError):  # noqa: PT012
                async with client.transaction(driver=US) as tx:
                    await tx.publish("us", b"never")
                    await tx.ack(first)
            # What one holds, another may not end.
            async with client.transaction(driver=US) as tx:
                await tx.ack(second)
                await tx.publish("us", b"done")

                async def is_there() -> bool:
                    return any(each.replica_set == EU for each in await client.transactions(EU))

                await eventually(is_there)
                second._is_acked = False
                with pytest.raises(ConflictError, match=tx.id) as caught:  # noqa: PT012
                    async with client.transaction(driver=US) as other:
                        await other.ack(second)
                        await other.publish("us", b"never")
                assert caught.value.retryable
        with pytest.raises(NotFoundError, match="'nowhere'"):  # noqa: PT012
            async with client.transaction() as tx:
                await tx.publish("us", b"never")
                await tx.publish("nowhere", b"never")
        assert await values(client, "us") == [b"done"]


@pytest.mark.parametrize("driver", [EU, US])
async def test_what_was_rolled_back_is_given_back_at_once(tmp_path: Path, driver: str) -> None:
    """The deliveries' leader may hear that before it hears of the rollback: they stayed with a
    member that had nothing more to say of them."""
    async with running_cluster(tmp_path, ONE) as cluster, cluster.client() as client:
        await declare(client)
        async with client.producer("in") as producer:
            await producer.send_many([b"one", b"two"])
        async with client.subscribe("in", group="g", start="earliest") as subscription:
            one, two = await anext(subscription), await anext(subscription)

            async def are_taken() -> bool:
                (group,) = await client.describe_group("in", "g")
                return group.group.in_transactions == 2

            async with client.transaction(driver=driver) as tx:
                await tx.ack(one)
                await tx.ack(two)
                await eventually(are_taken)
                await tx.rollback()
            await one.nack(delay_s=0)
            await two.ack()
            with trio.fail_after(30):
                again = await anext(subscription)
            assert (again.offset, again.attempt) == (one.offset, 2)
            await again.ack()

            async def is_dealt_with() -> bool:
                (group,) = await client.describe_group("in", "g")
                return group.group.floor == 2

            await eventually(is_dealt_with)


async def test_an_operator_rolls_back(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, ONE) as cluster, cluster.client() as client:
        await declare(client)
        with pytest.raises(RequestError, match="an operator has rolled it back"):  # noqa: PT012
            async with client.transaction() as tx:
                await tx.publish("us", b"never")

                async def is_listed() -> bool:
                    return bool(await client.transactions())

                await eventually(is_listed)
                listed = await client.transactions()
                assert (listed[0].transaction, listed[0].phase) == (tx.id, "open")
                await client.resolve_transaction(listed[0].transaction)
        assert await values(client, "us") == []


class Crashes:
    """A leader that crashes again and again, and comes back."""

    def __init__(self, cluster: Cluster, *sets: str) -> None:
        self._cluster = cluster
        self._sets = sets
        self.count = 0
        self.is_over = False

    async def run(self, times: int) -> None:
        for number in range(times):
            nodes = self._cluster[self._sets[number % len(self._sets)]]
            await trio.sleep(0.15)
            await nodes.crash("n1")
            await nodes.restart("n1")
            await nodes.wait_serving()
            self.count += 1
        self.is_over = True


@pytest.mark.long
async def test_all_or_nothing_while_leaders_crash(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path, {EU: 3, US: 3}) as cluster,
        cluster.client() as client,
        trio.open_nursery() as nursery,
    ):
        await declare(client)
        crashes = Crashes(cluster, EU, US)
        committed: set[bytes] = set()
        unknown: set[bytes] = set()
        failures: list[HadronError] = []

        async def work(name: int) -> None:
            number = 0
            while not crashes.is_over or len(committed) <= 10:
                number += 1
                value = b"%d-%d" % (name, number)
                try:
                    async with client.transaction() as tx:
                        await tx.publish("eu", value)
                        await tx.publish("us", value)
                except CommitUnknownError:
                    unknown.add(value)
                except HadronError as error:
                    failures.append(error)
                else:
                    committed.add(value)

        async with trio.open_nursery() as workers:
            workers.start_soon(crashes.run, 4)
            for name in range(4):
                workers.start_soon(work, name)
        await cluster.wait_serving()
        await until_over(client)
        assert [str(each) for each in failures if not each.retryable] == []
        eu, us = await values(client, "eu"), await values(client, "us")
        assert len(set(eu)) == len(eu), "nothing is doubled"
        assert sorted(eu) == sorted(us), "nothing is torn"
        assert committed <= set(eu) <= committed | unknown
        assert len(committed) > 10
        nursery.cancel_scope.cancel()


@pytest.mark.long
async def test_each_record_has_its_output_once_while_leaders_and_members_crash(
    tmp_path: Path,
) -> None:
    sent = [b"%d" % number for number in range(6_000)]
    async with running_cluster(tmp_path, {EU: 3, US: 3}) as cluster, cluster.client() as client:
        await declare(client)
        async with client.producer("in", batch_bytes=2_000) as producer:
            await producer.send_many(sent)
        crashes = Crashes(cluster, EU, US)

        async def copy(limit_s: float) -> bool:
            """One life of a program; whether all is done."""
            with trio.move_on_after(limit_s):
                async with (
                    cluster.client() as own,
                    own.subscribe("in", group="g", max_in_flight=300) as subscription,
                ):
                    async for step in subscription.transactions(max_records=100):
                        await step.publish_many("us", [each.value for each in step.records])
                        await step.publish("eu", b"%d" % len(step))
                        await trio.sleep(0.003)
            (group,) = await client.groups("in")
            return bool(group.floor == len(sent))

        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(crashes.run, 4)
                while not await copy(0.7):
                    pass
            await cluster.wait_serving()
            await until_over(client)
        assert sorted(await values(client, "us")) == sorted(sent)
        assert sum(map(int, await values(client, "eu"))) == len(sent)


async def test_more_than_a_message_takes_is_said_in_several(tmp_path: Path) -> None:
    """However many tasks have a transaction to say at one moment."""
    async with running_cluster(tmp_path, {EU: 1}) as cluster, cluster.client() as client:
        await client.create_stream("many", partitions=[EU])

        async def write() -> None:
            async with client.transaction() as tx:
                await tx.publish("many", bytes(200_000))

        await write()
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for _ in range(120):
                    nursery.start_soon(write)
        (offsets,) = await client.offsets("many")
        assert offsets.next_offset == 121
