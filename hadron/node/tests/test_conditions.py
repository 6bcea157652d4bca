"""Records that are logged under a condition, from a program to the disks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

import hadron
from hadron.client import Client
from hadron.model.errors import InvalidRecordError, OffsetMismatchError, RequestError, SchemaError
from hadron.model.record import NewRecord
from hadron.testing.nodes import running_nodes


async def values(client: Client, stream: str) -> list[Any]:
    return [record.value async for record in client.read(stream)]


async def test_a_record_is_logged_where_it_is_expected(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await client.create_stream("s")
        assert (await client.send("s", "a", expect_offset=0)).offset == 0
        with pytest.raises(OffsetMismatchError, match="is 1, not 0") as caught:
            await client.send("s", "b", expect_offset=0)
        assert (caught.value.expected, caught.value.actual) == (0, 1)
        assert (await client.send("s", "c", expect_offset=caught.value.actual)).offset == 1
        assert await values(client, "s") == ["a", "c"]


async def test_the_latest_record_of_a_key(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 3) as nodes, nodes.client() as client:
        await client.create_stream("s", keys="indexed")
        assert await client.latest("s", "k") is None
        first = await client.send("s", 1, key="k", expect_key_offset=-1)
        await client.send("s", 2, key="other")
        found = await client.latest("s", "k")
        assert found is not None
        assert (found.value, found.offset, found.key) == (1, first.offset, "k")
        await client.send("s", 3, key="k", expect_key_offset=found.offset)
        with pytest.raises(OffsetMismatchError) as caught:
            await client.send("s", 4, key=b"k", expect_key_offset=found.offset)
        assert (caught.value.expected, caught.value.actual) == (0, 2)
        latest = await client.latest("s", b"k")
        assert latest is not None
        assert latest.value == 3


async def test_a_key_that_is_none_is_shown(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await client.create_stream("s", keys="indexed")
        with pytest.raises(RequestError) as caught:
            await client.latest("s", "a\ud800")
        assert "key is not valid Unicode: 'a\\ud800'" in caught.value.message
        assert "bytes" in caught.value.hint
        with pytest.raises(RequestError, match="key is not valid Unicode"):
            await client.send_once("s", [1], key="a\ud800")


async def test_many_keys_in_batches(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await client.create_stream("s", keys="indexed")
        async with client.producer("s", codec="zstd") as producer:
            await producer.send_many(
                [NewRecord(number, key=f"k{number % 100}") for number in range(1_000)]
            )
        for key in (0, 57, 99):
            found = await client.latest("s", f"k{key}")
            assert found is not None
            assert found.value == 900 + key


async def test_writers_of_one_key_lose_no_update(tmp_path: Path) -> None:
    """Each reads, adds one, and writes on condition: what is in the end is how often they did."""
    async with running_nodes(tmp_path, 3) as nodes, nodes.client() as client:
        await client.create_stream("s", keys="indexed")
        done = 0

        async def add(times: int) -> None:
            nonlocal done
            for _ in range(times):
                while True:
                    found = await client.latest("s", "sum")
                    offset = -1 if found is None else found.offset
                    before = 0 if found is None else found.value
                    try:
                        await client.send("s", before + 1, key="sum", expect_key_offset=offset)
                    except OffsetMismatchError:
                        continue
                    done += 1
                    break

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(add, 10)
        found = await client.latest("s", "sum")
        assert found is not None
        assert found.value == done == 40
        assert await values(client, "s") == list(range(1, 41))


async def test_a_leader_that_dies_between_attempts(tmp_path: Path) -> None:
    """Who asks again after a lost answer gets the first one, not a mismatch with itself."""
    async with running_nodes(tmp_path, 3) as nodes, nodes.client() as client:
        await client.create_stream("s", keys="indexed")
        offset = -1
        async with trio.open_nursery() as nursery:

            async def crash() -> None:
                for number in range(4):
                    await trio.sleep(0.08)
                    while offset < 3 * number:  # noqa: ASYNC110 - a record sets no event
                        await trio.sleep(0.01)
                    await nodes.crash("n1")
                    await nodes.restart("n1")
                    await nodes.wait_serving()
                nursery.cancel_scope.cancel()

            nursery.start_soon(crash)
            while True:
                receipt = await client.send(
                    "s", offset + 1, key="k", expect_offset=offset + 1, expect_key_offset=offset
                )
                assert receipt.offset == offset + 1
                offset = receipt.offset
        logged = await values(client, "s")
        assert logged == list(range(len(logged)))
        assert len(logged) >= offset + 1 >= 10


async def test_plain_records_beside_a_refused_one_are_logged(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await client.create_stream("s")
        async with client.producer("s", batch_bytes=100) as producer:
            sent = [await producer.send_soon(number) for number in range(50)]
            with pytest.raises(OffsetMismatchError):
                await producer.send("no", expect_offset=1 << 40)
            sent += [await producer.send_soon(number) for number in range(50, 100)]
            receipts = [await pending.wait() for pending in sent]
        assert [receipt.offset for receipt in receipts] == list(range(100))
        assert await values(client, "s") == list(range(100))


async def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await client.create_stream("plain")
        await client.create_stream("keyed", keys="indexed")
        with pytest.raises(RequestError, match="has no index of keys"):
            await client.send("plain", "x", key="k", expect_key_offset=-1)
        with pytest.raises(RequestError, match="has no index of keys"):
            await client.latest("plain", "k")
        with pytest.raises(InvalidRecordError, match="without a key"):
            await client.send("keyed", "x", expect_key_offset=-1)
        for offset in (-1, True, "0", 1.5, 1 << 63):
            with pytest.raises(InvalidRecordError, match="expect_offset"):
                await client.send("plain", "x", expect_offset=offset)  # type: ignore[arg-type]
        with pytest.raises(InvalidRecordError, match="expect_key_offset -2"):
            await client.send("keyed", "x", key="k", expect_key_offset=-2)
        with pytest.raises(RequestError, match="key 5 is of type int"):
            await client.latest("keyed", 5)  # type: ignore[arg-type]
        assert await values(client, "plain") == await values(client, "keyed") == []


async def test_keys_are_indexed_from_the_first_record_on_or_never(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await client.create_stream("plain")
        await client.create_stream("keyed", keys="indexed")
        partitions = ["local/p0"]
        plain = {"kind": "Stream", "name": "plain", "partitions": partitions}
        keyed = {"kind": "Stream", "name": "keyed", "partitions": partitions}
        new = {"kind": "Stream", "name": "new", "partitions": partitions, "keys": "sorted"}
        with pytest.raises(SchemaError, match="as it was created"):
            await client.apply(plain | {"keys": "indexed"}, allow_destructive=True)
        with pytest.raises(SchemaError, match="as it was created"):
            await client.apply(keyed, allow_destructive=True)
        with pytest.raises(SchemaError, match="indexed, or nothing"):
            await client.apply(new)
        assert (await client.create_stream("keyed", keys="indexed")).name == "keyed"


def test_the_blocking_client_has_the_same(tmp_path: Path) -> None:
    from hadron.node.supervision.cluster import LocalCluster

    with LocalCluster(tmp_path, nodes=1) as cluster, hadron.connect_sync(cluster.url) as client:
        client.create_stream("s", keys="indexed")
        client.send("s", 1, key="k", expect_key_offset=-1)
        with pytest.raises(hadron.OffsetMismatchError) as caught:
            client.send("s", 2, key="k", expect_key_offset=-1)
        assert (caught.value.expected, caught.value.actual) == (-1, 0)
        with client.producer("s") as producer:
            assert producer.send(2, key="k", expect_key_offset=0).offset == 1
            with pytest.raises(hadron.OffsetMismatchError) as caught:
                producer.send(3, expect_offset=0)
            assert caught.value.actual == 2
        found = client.latest("s", "k")
        assert found is not None
        assert found.value == 2
