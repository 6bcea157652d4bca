"""What is sent once under a key, by clients of a cluster whose leader dies (PROTOCOL D7)."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from hadron.client import Client
from hadron.model.errors import HadronError, KeyReusedError, RequestError
from hadron.model.record import NewRecord
from hadron.testing.nodes import Cluster, Nodes


async def values(client: Client, stream: str = "s") -> list[object]:
    return [record.value async for record in client.read(stream)]


@pytest.fixture
async def nodes(tmp_path: Path, nursery: trio.Nursery) -> Nodes:
    made = Nodes(tmp_path, 3, nursery)
    await made.start()
    await made.wait_serving()
    return made


async def test_another_client_sends_it_again_after_a_failover(nodes: Nodes) -> None:
    async with nodes.client("one") as one, nodes.client("two") as two:
        await one.create_stream("s")
        (first,) = await one.send_once("s", ["a", "b"], key="k")
        await nodes.restart("n1")
        (again,) = await two.send_once("s", ["a", "b"], key="k")
        assert (again.duplicate, again.base_offset, again.count) == (True, first.base_offset, 2)
        assert await values(two) == ["a", "b"]


async def test_a_leader_that_dies_with_its_answers_doubles_nothing(nodes: Nodes) -> None:
    """Two programs send the same hundred records while the leader is killed again and again."""

    async def send(host: str) -> None:
        async with nodes.client(host) as client:
            for number in range(100):
                while True:
                    try:
                        await client.send_once("s", [number], key=f"k{number}")
                        break
                    except HadronError as error:
                        if not error.retryable:
                            raise

    async with nodes.client() as client:
        await client.create_stream("s")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, "one")
            nursery.start_soon(send, "two")
            for _ in range(3):
                await trio.sleep(0.2)
                await nodes.restart("n1")
                await nodes.wait_serving()
        found = await values(client)
        assert sorted(found) == list(range(100))  # type: ignore[type-var]


async def test_other_records_under_a_key_are_refused(nodes: Nodes) -> None:
    async with nodes.client() as client:
        await client.create_stream("s")
        await client.send_once("s", [NewRecord({"n": 1}, key="a")], key="k", partition="local/p0")
        for other in (
            [NewRecord({"n": 2}, key="a")],
            [NewRecord({"n": 1}, key="b")],
            [NewRecord({"n": 1}, key="a", type="t")],
            [NewRecord({"n": 1}, key="a", headers={"h": "x"})],
            [NewRecord({"n": 1}, key="a"), "more"],
        ):
            with pytest.raises(KeyReusedError):
                await client.send_once("s", other, key="k")
        with pytest.raises(RequestError, match="a condition or a sequence"):
            await client.send_once("s", [NewRecord(1, expect_offset=3)], key="new")
        assert await client.send_once("s", [], key="none") == []
        assert await values(client) == [{"n": 1}]


async def test_keys_choose_partitions(tmp_path: Path, nursery: trio.Nursery) -> None:
    """Each record goes where its own key leads, the others where the sending's does: also when they
    are sent again, by somebody who knows nothing of the first time."""
    cluster = Cluster(tmp_path, {"a/p0": 1, "b/p0": 1}, nursery)
    await cluster.start()
    await cluster.wait_serving()
    async with cluster.client() as client:
        await client.create_stream("s", partitions=["a/p0", "b/p0"])
        homes = set()
        for number in range(20):
            receipts = await client.send_once("s", [number], key=f"k{number}")
            again = await client.send_once("s", [number], key=f"k{number}")
            assert [(r.partition, r.base_offset) for r in again] == [
                (r.partition, r.base_offset) for r in receipts
            ]
            homes |= {each.partition for each in receipts}
        assert homes == {"a/p0", "b/p0"}
        many = [NewRecord(n, key=f"{n}") for n in range(20)]
        parts = await client.send_once("s", many, key="many")
        assert sum(each.count for each in parts) == 20
        assert len(parts) == 2
        assert all(each.duplicate for each in await client.send_once("s", many, key="many"))
        assert len(await values(client)) == 40
        # Partitions know a key each for itself: what one has logged before another refuses is told.
        await client.send_once("s", [NewRecord(n, partition="b/p0") for n in range(2)], key="p")
        for count in (1, 2):
            other = [NewRecord("x", partition=at) for at in ("a/p0", *["b/p0"] * count)]
            with pytest.raises(
                KeyReusedError, match=r"of s/b/p0 .*; those for a/p0 are in the log"
            ):
                await client.send_once("s", other, key="p")
        assert len(await values(client)) == 43
