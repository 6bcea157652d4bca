"""Groups over several replica sets, one of them away: what the others say and do is not lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from hadron.client import Client
from hadron.client.consuming import groups
from hadron.client.producing.tests.test_failover import SETS, declare
from hadron.client.tests.fake_node import FakeNode
from hadron.client.tests.support import served
from hadron.model.errors import IncompleteError, NotFoundError, PeerError, RequestError
from hadron.testing.nodes import Cluster, running_cluster
from hadron.wire.messages import Method, streams_pb2

EU, US, US1 = SETS
WITHIN_S = 0.5


@asynccontextmanager
async def two_regions(directory: Path) -> AsyncIterator[tuple[Cluster, Client]]:
    """A stream over two sets with three records each, and a group that has acknowledged them."""
    async with running_cluster(directory, SETS) as cluster, cluster.client() as client:
        await declare(cluster, client, EU, US)
        for partition in (EU, US):
            async with client.producer("s", partition=partition) as producer:
                await producer.send_many([b"0", b"1", b"2"])
        async with client.subscribe("s", group="g") as members:
            for _ in range(6):
                await (await anext(members)).ack()
            await members.flush()
        yield cluster, client


async def floors(client: Client) -> dict[str, int]:
    return {group.partition: group.floor for group in await client.groups("s")}


@pytest.mark.long
async def test_a_leader_that_is_away_does_not_hide_the_others(tmp_path: Path) -> None:
    async with two_regions(tmp_path) as (cluster, client):
        assert await floors(client) == {EU: 3, US: 3}
        await cluster.crash(US, US1)
        with trio.fail_after(4 * WITHIN_S), pytest.raises(IncompleteError) as heard:
            await client.groups("s", within_s=WITHIN_S)
        assert [(group.partition, group.floor) for group in heard.value.found] == [(EU, 3)]
        assert list(heard.value.failed) == [US]
        assert heard.value.message.startswith(
            "1 of 2 partitions could not be asked: us/p0: cannot connect to us-p0-n1"
        )
        assert heard.value.retryable
        with trio.fail_after(4 * WITHIN_S), pytest.raises(IncompleteError) as heard:
            await client.pipeline_progress(within_s=WITHIN_S)
        assert sorted(heard.value.failed) == [US, US1]
        # Both at once: two sets that are away take no longer than one.
        with trio.fail_after(4 * WITHIN_S), pytest.raises(IncompleteError) as heard:
            await client.groups(within_s=WITHIN_S)
        assert [group.partition for group in heard.value.found] == [EU]
        assert set(heard.value.failed) == {US, US1}
        with pytest.raises(IncompleteError) as heard:
            await client.describe_group("s", "g", within_s=WITHIN_S)
        (described,) = heard.value.found
        assert (described.group.partition, list(heard.value.failed)) == (EU, [US])
        with pytest.raises(PeerError, match="cannot connect") as alone:
            await client.describe_group("s", "g", partitions=[US], within_s=WITHIN_S)
        assert not isinstance(alone.value, IncompleteError)
        (described,) = await client.describe_group("s", "g", partitions=[EU], within_s=WITHIN_S)
        # Whether the one that is away knows it, nobody can say.
        with pytest.raises(IncompleteError) as heard:
            await client.describe_group("s", "stranger", within_s=WITHIN_S)
        assert (heard.value.found, list(heard.value.failed)) == ([], [US])


@pytest.mark.long
async def test_changes_are_done_where_they_can_be_and_may_be_repeated(tmp_path: Path) -> None:
    async with two_regions(tmp_path) as (cluster, client):
        await cluster.crash(US)
        with pytest.raises(IncompleteError, match="1 of 2 partitions were not reset") as heard:
            await client.reset_group("s", "g", -2, within_s=WITHIN_S)
        assert [(each.partition, each.floor) for each in heard.value.found] == [(EU, 1)]
        await cluster.start(US)
        await cluster.wait_serving(US)
        again = await client.reset_group("s", "g", -2)
        assert [(each.partition, each.floor_before, each.floor) for each in again] == [
            (EU, 1, 1),
            (US, 3, 1),
        ]
        await cluster.crash(US)
        with pytest.raises(IncompleteError, match="have not deleted it") as heard:
            await client.delete_group("s", "g", within_s=WITHIN_S)
        assert (heard.value.found, list(heard.value.failed)) == ([EU], [US])
        # Nothing is left to be done here, and that one is still away.
        with pytest.raises(IncompleteError) as heard:
            await client.delete_group("s", "g", within_s=WITHIN_S)
        assert (heard.value.found, list(heard.value.failed)) == ([], [US])
        await cluster.start(US)
        await cluster.wait_serving(US)
        assert await client.delete_group("s", "g") == [US]
        with pytest.raises(NotFoundError, match="no group 'g'"):
            await client.delete_group("s", "g")


async def test_a_refusal_at_one_partition_is_told_beside_what_was_done(tmp_path: Path) -> None:
    async with (
        two_regions(tmp_path) as (_, client),
        client.subscribe("s", group="g", partitions=[US]),
    ):
        with pytest.raises(IncompleteError, match="1 member is connected") as heard:
            await client.reset_group("s", "g", "earliest")
        assert [(each.partition, each.floor) for each in heard.value.found] == [(EU, 0)]
        assert isinstance(heard.value.failed[US], RequestError)
        assert not heard.value.retryable
        assert "force" in heard.value.hint
        done = await client.reset_group("s", "g", "earliest", force=True)
        assert [each.partition for each in done] == [EU, US]


async def test_all_leaders_are_asked_at_the_same_time() -> None:
    node = FakeNode(partitions=tuple(f"r{n}/p0" for n in range(8)))
    answer, waiting = node.on_groups, list[Any]()

    def on_groups(*call: Any) -> None:
        waiting.append(call)
        for each in waiting if len(waiting) == 8 else ():
            answer(*each)

    node.on_groups = on_groups  # type: ignore[method-assign, assignment]
    async with served(node) as (_, client):
        assert await client.groups("s", within_s=5.0) == []
    assert len(waiting) == 8


async def test_a_leader_that_tells_nothing_of_its_partition_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_regions(tmp_path) as (_, client):
        request = client._session.request

        async def answered(partition: str, what: Method, *given: Any, **named: Any) -> Any:
            if (partition, what) == (US, groups._OFFSETS):
                return streams_pb2.OffsetsResponse(), b""
            return await request(partition, what, *given, **named)

        monkeypatch.setattr(client._session, "request", answered)
        with pytest.raises(IncompleteError, match="told of 0 partitions") as heard:
            await client.reset_group("s", "g", -2)
        assert [each.partition for each in heard.value.found] == [EU]
