"""Streams that change while they are read: partitions are added, or another one has the name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
import trio

from hadron.client import Client, connect
from hadron.client.reading import reader
from hadron.client.tests.fake_node import FakeNode
from hadron.client.tests.support import both, served, until
from hadron.model.errors import NotFoundError
from hadron.model.schema import StreamSpec
from hadron.testing.nodes import Cluster, running_cluster
from hadron.wire.calls import AnyCall
from hadron.wire.messages import streams_pb2

META, EU = "meta", "eu/p0"
STREAM = ("Stream", "default", "s")


def make_again(node: FakeNode) -> None:
    """Another stream has the name."""
    node._store("Stream", "s", StreamSpec(partitions=node.partition_names))
    node.logs.clear()


async def send(client: Client, partition: str, *values: bytes) -> None:
    async with client.producer("s", partition=partition) as producer:
        await producer.send_many(values)


@both
async def test_a_read_is_of_one_stream() -> None:
    """What did not answer at once was asked by the name, which another stream had by then: three
    records of the old one's first partition came before those of the new one's second."""
    node = FakeNode(partitions=("a", "b"))
    async with served(node) as (_, client):
        await send(client, "a", b"old")
        answer, kept_waiting = node.on_offsets, True

        def keep_waiting(call: AnyCall, request: streams_pb2.OffsetsRequest, _: memoryview) -> None:
            if request.partition == "a" or not kept_waiting:
                answer(call, request, _)

        node.on_offsets = keep_waiting  # type: ignore[method-assign]
        node.cut()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reader, "_AT_ONCE_S", 0.05)
            records = client.read("s")
            assert (await anext(records)).value == b"old"
        kept_waiting = False
        make_again(node)
        async with connect(f"hadron://{node.address}") as other:
            await send(other, "b", b"new")
        with pytest.raises(NotFoundError, match="no stream has the id 1"):
            await anext(records)


@both
async def test_a_stream_that_was_made_again_before_the_read_is_read() -> None:
    """What the client knows of the name is old, which is no reason to refuse."""
    async with served() as (node, client):
        await send(client, "local/p0", b"old")
        make_again(node)
        async with connect(f"hadron://{node.address}") as other:
            await send(other, "local/p0", b"new")
        assert [record.value async for record in client.read("s")] == [b"new"]


@both
async def test_a_read_by_an_id_is_of_no_other_stream() -> None:
    async with served() as (node, client):
        await send(client, "local/p0", b"old")
        assert [record.value async for record in client.read("s", stream_id=1)] == [b"old"]
        make_again(node)
        for follow in (False, True):
            with pytest.raises(NotFoundError, match="another one has its name now"):
                await anext(client.read("s", stream_id=1, follow=follow))
        assert [record async for record in client.read("s", stream_id=3)] == []


class Followed:
    """What somebody who follows "s" was given, and what it was told at the end."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.values: list[bytes] = []
        self.error: NotFoundError | None = None

    async def follow(self, partition: str | None = None) -> None:
        try:
            async for record in self._client.read("s", partition=partition, follow=True):
                self.values.append(record.value)
        except NotFoundError as error:
            self.error = error


@asynccontextmanager
async def cluster_with_s(
    directory: Path, *partitions: str
) -> AsyncIterator[tuple[Cluster, Client]]:
    sets = {META: 1, EU: 1}
    async with running_cluster(directory, sets) as cluster, cluster.client("other") as client:
        await client.create_stream("s", partitions=partitions)
        yield cluster, client


async def test_partitions_that_are_added_are_followed_from_their_beginning(tmp_path: Path) -> None:
    """It went on with those that there were, and said nothing."""
    async with cluster_with_s(tmp_path, META) as (cluster, other), cluster.client("a") as client:
        await other.send("s", b"first")
        all_of_it, first_only = Followed(client), Followed(client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(all_of_it.follow)
            nursery.start_soon(first_only.follow, META)
            await until(lambda: all_of_it.values == first_only.values == [b"first"])
            await other.apply({"kind": "Stream", "name": "s", "partitions": [META, EU]})
            await send(other, EU, b"added")
            await until(lambda: all_of_it.values == [b"first", b"added"])
            await send(other, META, b"last")
            await until(lambda: all_of_it.values[2:] == first_only.values[1:] == [b"last"])
            nursery.cancel_scope.cancel()
        assert not client._catalog._listeners, "who reads no more is not told of changes"


async def test_a_partition_that_is_away_when_it_is_added_keeps_no_others_waiting(
    tmp_path: Path,
) -> None:
    async with (
        cluster_with_s(tmp_path, META) as (cluster, other),
        cluster.client("a", request_timeout_s=1.0) as client,
    ):
        followed = Followed(client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(followed.follow)
            await other.send("s", b"first")
            await until(lambda: followed.values == [b"first"])
            cluster.cut(["a", *cluster.hosts(META)], cluster.hosts(EU))
            await other.apply({"kind": "Stream", "name": "s", "partitions": [META, EU]})
            for number in range(3):
                await send(other, META, b"%d" % number)
            await until(lambda: followed.values == [b"first", b"0", b"1", b"2"])
            cluster.network.heal_all()
            await send(other, EU, b"added")
            await until(lambda: followed.values[4:] == [b"added"])
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_known", [True, False])
async def test_who_follows_a_stream_is_told_that_it_was_made_again(
    tmp_path: Path, is_known: bool
) -> None:
    """Whether its leader knows that already, or is cut off from those that do."""
    async with cluster_with_s(tmp_path, EU) as (cluster, other), cluster.client("a") as client:
        await other.send("s", b"old")
        followed = Followed(client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(followed.follow)
            await until(lambda: followed.values == [b"old"])
            if not is_known:
                cluster.cut(cluster.hosts(META), cluster.hosts(EU))
            await other.delete(STREAM, allow_destructive=True)
            await other.create_stream("s", partitions=[META, EU])
            client._catalog.forget("s")
            for listener in list(client._catalog._listeners):
                listener()
            with anyio.fail_after(20):
                await until(lambda: followed.error is not None)
        assert "was deleted" in str(followed.error)
        assert followed.values == [b"old"]
