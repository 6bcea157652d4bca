"""What producers do when their stream changes, or is another one by now: against real nodes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from hadron.client import Client
from hadron.client.producing.producer import Producer
from hadron.client.tests.support import until
from hadron.model.errors import NotFoundError
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.testing.nodes import Cluster, running_cluster

META, EU = "meta", "eu/p0"
STREAM = ("Stream", "default", "s")


async def declare(client: Client, *partitions: str, description: str = "") -> None:
    """Stream `s` has these partitions from now on."""
    spec = StreamSpec(partitions=partitions, description=description)
    await client.apply([SchemaObject(kind="Stream", name="s", spec=spec)], allow_destructive=True)


def partitions_of(producer: Producer) -> list[str]:
    return producer._publisher._router.partitions


def cut_off(cluster: Cluster) -> None:
    """Nothing that changes is pushed to the other set; clients reach both."""
    cluster.network.cut("meta-n1", "eu-p0-n1")


async def test_what_its_client_has_deleted_takes_no_record_more(tmp_path: Path) -> None:
    """Its leader has not heard so, and would take it."""
    async with (
        running_cluster(tmp_path, {META: 1, EU: 1}) as cluster,
        cluster.client("a", through=[EU]) as client,
        cluster.client("b") as other,
        trio.open_nursery() as nursery,
    ):
        await declare(other, EU)
        await other.send("s", "old")
        # The other set has heard of the stream: it is where the client watches the schema.
        await client.send("s", "old")
        async with client.producer("s") as producer:
            cut_off(cluster)
            await client.delete(STREAM, allow_destructive=True)
            with pytest.raises(NotFoundError, match="stream 's' was deleted"):
                await producer.send("lost")
        await declare(client, EU)
        receipts = []

        async def send() -> None:
            receipts.append(await client.send("s", "new"))

        nursery.start_soon(send)
        await until(lambda: "s" in client._standing._open)
        cluster.network.heal_all()
        await until(lambda: bool(receipts))
        assert receipts[0].offset == 0
        assert [record.value async for record in client.read("s")] == ["new"]


async def test_a_producer_that_opens_while_its_stream_is_deleted(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path, {META: 1, EU: 1}) as cluster,
        cluster.client("a", through=[META]) as client,
        trio.open_nursery() as nursery,
    ):
        await declare(client, EU)
        await client.stream("s")
        # It waits for the leader, with the stream looked up.
        cluster.network.cut("a", "eu-p0-n1")
        cut_off(cluster)
        opened = []

        async def open_producer() -> None:
            async with client.producer("s") as producer:
                opened.append(producer)

        nursery.start_soon(open_producer)
        await until(lambda: bool(client._catalog._followers))
        await client.delete(STREAM, allow_destructive=True)
        assert not opened
        await until(lambda: bool(opened))
        with pytest.raises(NotFoundError, match="stream 's' was deleted"):
            await opened[0].send("lost")


async def test_who_is_shown_another_stream_of_the_name_writes_no_more_to_the_old_one(
    tmp_path: Path,
) -> None:
    async with (
        running_cluster(tmp_path, {META: 1, EU: 1}) as cluster,
        cluster.client("a", through=[EU]) as client,
        cluster.client("b") as other,
    ):
        await declare(other, EU)
        await other.send("s", "old")
        async with client.producer("s") as producer:
            cut_off(cluster)
            await other.delete(STREAM, allow_destructive=True)
            await declare(other, EU)
            assert await client.objects("Stream")
            with pytest.raises(NotFoundError, match="stream 's' was deleted"):
                await producer.send("lost")
        assert (await client.stream("s")).id == (await other.stream("s")).id


async def test_an_unrelated_change_stops_no_producer(tmp_path: Path) -> None:
    """The leader has not heard of it."""
    async with (
        running_cluster(tmp_path, {META: 1, EU: 1}) as cluster,
        cluster.client(through=[EU]) as client,
    ):
        await declare(client, EU)
        await client.send("s", 0)
        cut_off(cluster)
        await client.create_stream("t", partitions=[META])
        await client.delete(("Stream", "default", "t"), allow_destructive=True)
        assert (await client.send("s", 1)).offset == 1


async def test_a_name_is_claimed_by_one_task_at_a_partition_that_was_added(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path, {META: 1, EU: 1}) as cluster,
        cluster.client("a") as client,
        cluster.client("b") as other,
    ):
        await declare(other, META)
        async with client.producer("s", name="importer") as producer:
            await producer.send(1, key="k", sequence=1)
            for ends in (("a", "eu-p0-n1"), ("eu-p0-n1", "a")):
                cluster.network.delay(*ends, 0.02)
            # The second change is heard of while the name is being claimed.
            await declare(other, META, EU)
            await declare(other, META, EU, description="changed meanwhile")
            await until(lambda: partitions_of(producer) == [META, EU])
            receipts = [await producer.send(n, key=f"k{n}", sequence=n) for n in range(2, 10)]
            assert {receipt.partition for receipt in receipts} == {META, EU}


async def test_a_name_is_claimed_once_a_partition_that_was_added_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "hadron.client.producing.following")
    async with (
        running_cluster(tmp_path, {META: 1, EU: 1}) as cluster,
        cluster.client("a", request_timeout_s=0.1) as client,
        cluster.client("b") as other,
    ):
        await declare(other, META)
        async with client.producer("s", name="importer") as producer:
            await cluster[EU].crash("n1")
            await declare(other, META, EU)
            await until(lambda: bool(caplog.messages))
            assert "stream s has more partitions: cannot connect" in caplog.text
            await cluster[EU].start("n1")
            await until(lambda: partitions_of(producer) == [META, EU])
            assert (await producer.send("there", partition=EU)).offset == 0


async def test_nobody_claims_a_name_for_a_producer_that_is_closed(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path, {META: 1, EU: 1}) as cluster,
        cluster.client("a", request_timeout_s=0.1) as client,
    ):
        await declare(client, META)
        async with client.producer("s", name="importer") as producer:
            await cluster[EU].crash("n1")
            await declare(client, META, EU)
            following = cast(Any, producer._publisher.stop_following).__self__
            claiming = following._claiming
        assert claiming.cancel_called
        assert client._catalog._followers == {}


@pytest.mark.parametrize("key", ["key", None])
async def test_records_go_to_the_partitions_that_are_left(tmp_path: Path, key: str | None) -> None:
    async with (
        running_cluster(tmp_path, {META: 1, EU: 1}) as cluster,
        cluster.client("a") as client,
        cluster.client("b") as other,
    ):
        await declare(other, META, EU)

        async def places() -> set[str]:
            keys = [key and f"{key}{number}" for number in range(20)]
            return {(await client.send("s", "x", key=each)).partition for each in keys}

        while await places() != {META, EU}:
            pass
        async with other.producer("s") as producer, other.producer("s", partition=META) as pinned:
            await declare(other, META)
            with pytest.raises(NotFoundError, match="no partition 'eu/p0' any more"):
                await producer.send("x", partition=META)
            assert (await pinned.send("x")).partition == META
        # None fails; the other set takes some for as long as it has not heard of the change.
        while await places() != {META}:
            pass


async def test_a_partition_may_be_named_once_it_is_there(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path, {META: 1, EU: 1}) as cluster,
        cluster.client("a") as client,
        cluster.client("b", through=[EU]) as other,
    ):
        await declare(client, META)
        await client.send("s", 0)
        await other.send("s", 1)
        await declare(client, META, EU)
        assert (await client.send("s", 2, partition=EU)).partition == EU
        # Another client may not have heard of it, and asks.
        assert (await other.send("s", 3, partition=EU)).partition == EU
