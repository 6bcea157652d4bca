"""Producers with names: who writes, and where the next process goes on."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio

import hadron
from hadron.client import Client
from hadron.model.errors import (
    InvalidRecordError,
    OffsetMismatchError,
    ProducerFencedError,
    RequestError,
)
from hadron.model.record import NewRecord
from hadron.testing.nodes import running_nodes

NAME = "billing-3"


async def values(client: Client, stream: str) -> list[Any]:
    return [record.value async for record in client.read(stream)]


async def test_the_second_one_shuts_the_first_one_out(tmp_path: Path) -> None:
    # On hosts of their own: two clients of one draw the same numbers, and so the same token.
    async with (
        running_nodes(tmp_path, 3) as nodes,
        nodes.client("one") as one,
        nodes.client("two") as two,
    ):
        await one.create_stream("s")
        async with one.producer("s", name=NAME) as first:
            await first.send("a")
            async with two.producer("s", name=NAME) as second:
                with pytest.raises(ProducerFencedError, match="'billing-3'") as caught:
                    await first.send("zombie")
                assert not caught.value.retryable
                await second.send("b")
                with pytest.raises(ProducerFencedError):
                    await first.send("zombie")
                await second.send("c")
        assert await values(one, "s") == ["a", "b", "c"]


async def test_a_process_that_starts_again_goes_on(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await client.create_stream("s")
        async with client.producer("s", name=NAME) as producer:
            assert await producer.last_sequence() == -1
            for number in range(0, 100, 10):
                await producer.send(number, sequence=number)
            assert await producer.last_sequence() == 90
        async with client.producer("s", name=NAME) as producer:
            assert await producer.last_sequences() == {"local/p0": 90}
            again = await producer.send(90, sequence=90)
            assert (again.duplicate, again.offset) == (True, -1)
            receipts = await producer.send_many(
                [NewRecord(number, sequence=number) for number in range(70, 130, 10)]
            )
            assert sum(each.count for each in receipts if each.duplicate) == 3
            assert [each.base_offset for each in receipts[:4]] == [-1, -1, -1, 10]
            assert await producer.last_sequence() == 120
        assert await values(client, "s") == list(range(0, 130, 10))


async def test_importers_that_are_killed_double_nothing(tmp_path: Path) -> None:
    """Each goes on behind what the one before has brought; leaders are killed as well."""
    async with running_nodes(tmp_path, 3) as nodes, nodes.client() as client:
        await client.create_stream("s")
        total = 2_000

        async def crash() -> None:
            for _ in range(2):
                await trio.sleep(0.15)
                await nodes.crash("n1")
                await nodes.restart("n1")
                await nodes.wait_serving()

        hosts = map("importer-{}".format, count(1))

        async def run(life_s: float) -> None:
            with trio.move_on_after(life_s):
                async with nodes.client(next(hosts)) as mine:
                    producer = await mine.producer("s", name=NAME, batch_bytes=300).__aenter__()
                    position = await producer.last_sequence() + 1
                    for number in range(max(position - 30, 0), total):
                        await producer.send_soon(number, sequence=number)
                        if number % 20 == 0:
                            await trio.sleep(0.002)
                    await producer.flush()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(crash)
            for life_s in (0.1, 0.3, 0.05, 0.5):
                await run(life_s)
        await run(60.0)
        assert await values(client, "s") == list(range(total))


async def test_a_record_that_is_refused_costs_a_named_producer_nothing(tmp_path: Path) -> None:
    """Its sequence has a hole, so it claims its name once more."""
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await client.create_stream("s")
        async with client.producer("s", name=NAME) as producer:
            await producer.send(0, sequence=5)
            pending = [await producer.send_soon(number) for number in range(1, 4)]
            with pytest.raises(OffsetMismatchError):
                await producer.send("no", expect_offset=1 << 40)
            for number in range(4, 7):
                await producer.send(number, sequence=number + 5)
            for each in pending:
                await each.wait()
            assert await producer.last_sequence() == 11
        assert await values(client, "s") == list(range(7))


async def test_a_zombie_that_claims_again_is_told(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await client.create_stream("s")
        async with client.producer("s", name=NAME) as first:
            with pytest.raises(OffsetMismatchError):
                await first.send("no", expect_offset=1 << 40)
            async with client.producer("s", name=NAME) as second:
                with pytest.raises(ProducerFencedError):
                    await first.send("zombie")
                await second.send("a")
        assert await values(client, "s") == ["a"]


async def test_two_that_open_at_once(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await client.create_stream("s")
        sent: list[int] = []
        fenced: list[int] = []

        async def run(number: int) -> None:
            async with client.producer("s", name=NAME) as producer:
                try:
                    for _ in range(20):
                        await producer.send(number)
                        sent.append(number)
                except ProducerFencedError:
                    fenced.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(run, number)
        logged = await values(client, "s")
        assert sorted(logged) == sorted(sent)
        runs = [each for index, each in enumerate(logged) if not index or logged[index - 1] != each]
        assert len(runs) == len(set(runs)), "one that was shut out has written again"
        assert len(fenced) <= 3


async def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await client.create_stream("s")
        for name in ("", "x" * 101, 5):
            with pytest.raises(RequestError, match="name"):
                client.producer("s", name=name)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="its records stay in theirs"):
            client.producer("s", name=NAME, failover="any")
        async with client.producer("s") as producer:
            with pytest.raises(InvalidRecordError, match="a producer without a name"):
                await producer.send("x", sequence=1)
            with pytest.raises(RequestError, match="without a name"):
                await producer.last_sequence()
        async with client.producer("s", name=NAME) as producer:
            with pytest.raises(InvalidRecordError, match="sequence -1"):
                await producer.send("x", sequence=-1)
            with pytest.raises(InvalidRecordError, match="together with a condition"):
                await producer.send("x", sequence=1, expect_offset=0)
            pending = await producer.send_soon("a", sequence=7)
            with pytest.raises(InvalidRecordError, match="comes behind 7"):
                await producer.send_soon("b", sequence=6)
            await pending.wait()
        assert await values(client, "s") == ["a"]


def test_the_blocking_producer_has_the_same(tmp_path: Path) -> None:
    from hadron.node.supervision.cluster import LocalCluster

    with LocalCluster(tmp_path, nodes=1) as cluster, hadron.connect_sync(cluster.url) as client:
        client.create_stream("s")
        with client.producer("s", name=NAME) as first:
            first.send("a", sequence=3)
            with client.producer("s", name=NAME) as second:
                assert second.last_sequence() == 3
                assert second.last_sequences() == {"local/p0": 3}
                assert second.send("a", sequence=3).duplicate
                second.send("b", sequence=4)
                with pytest.raises(hadron.ProducerFencedError):
                    first.send("zombie")
        assert [record.value for record in client.read("s")] == ["a", "b"]
