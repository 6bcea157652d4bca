"""Transactions that expect where a key's latest record is, over real nodes in one process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from hadron.client import Client
from hadron.client.transactions.tests.test_with_nodes import EU, ONE, US, eventually, until_over
from hadron.model.errors import (
    ConflictError,
    DeadlineExceededError,
    HadronError,
    InvalidRecordError,
    OffsetMismatchError,
    OutcomeUnknownError,
    RequestError,
)
from hadron.model.record import NewRecord
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.testing.nodes import Cluster, running_cluster


@asynccontextmanager
async def accounts(tmp_path: Path, nodes: int = 1) -> AsyncIterator[tuple[Cluster, Client]]:
    """Two streams with an index of keys, one on each set, one on both, and a plain one."""
    of = {"eu": (EU,), "us": (US,), "both": (EU, US)}
    async with (
        running_cluster(tmp_path, dict.fromkeys(ONE, nodes)) as cluster,
        cluster.client() as client,
    ):
        await client.apply(
            [
                SchemaObject(
                    kind="Stream", name=name, spec=StreamSpec(partitions=parts, keys="indexed")
                )
                for name, parts in of.items()
            ]
        )
        await client.create_stream("plain", partitions=(EU,))
        for name in of:
            await client.send(name, b"0", key="other")
        yield cluster, client


async def latest(client: Client, stream: str, key: str = "anna") -> int:
    found = await client.latest(stream, key)
    return -1 if found is None else found.offset


async def until_prepared(client: Client, replica_set: str) -> None:
    async def is_there() -> bool:
        return any(not each.is_driver for each in await client.transactions(replica_set))

    await eventually(is_there)


@pytest.mark.parametrize("home", [EU, US])
async def test_a_transfer_is_done_where_both_balances_are_as_read(
    tmp_path: Path, home: str
) -> None:
    async with accounts(tmp_path) as (_, client):
        for number in range(3):
            async with client.transaction(driver=home) as tx:
                for stream in ("eu", "us"):
                    await tx.publish(
                        stream, {"n": number}, key="anna",
                        expect_key_offset=await latest(client, stream),
                    )  # fmt: skip
                    await tx.publish(stream, b"of the same event", key="anna")
            assert len(tx.receipts) == 4
        assert (await latest(client, "eu"), await latest(client, "us")) == (6, 6)
        for stream in ("eu", "us"):
            with pytest.raises(OffsetMismatchError, match="is at offset 6, not at 3") as caught:  # noqa: PT012
                async with client.transaction(driver=home) as tx:
                    await tx.publish("eu" if stream == "us" else "us", b"never", key="bob")
                    await tx.publish(stream, b"never", key="anna", expect_key_offset=3)
            assert (caught.value.expected, caught.value.actual) == (3, 6)
            assert not caught.value.retryable
        await until_over(client)
        assert await latest(client, "eu", "bob") == await latest(client, "us", "bob") == -1


async def test_who_writes_a_key_that_is_held_is_told_and_producers_wait(tmp_path: Path) -> None:
    async with accounts(tmp_path) as (_, client):
        async with client.producer("eu") as producer, trio.open_nursery() as nursery:
            async with client.transaction(driver=US) as tx:
                await tx.publish("eu", b"1", key="anna", expect_key_offset=-1)
                await tx.publish("us", b"1")
                await until_prepared(client, EU)
                # Other keys are free, another transaction is refused, a producer's record waits.
                await producer.send(b"2", key="bob")
                with pytest.raises(ConflictError, match=tx.id) as caught:
                    async with client.transaction() as other:
                        await other.publish("eu", b"never", key="anna")
                assert caught.value.retryable
                with pytest.raises(ConflictError, match=tx.id):
                    async with client.transaction(driver=US) as other:
                        await other.publish("eu", b"never", key="anna", expect_key_offset=-1)
                pending = await producer.send_soon(b"3", key="anna")
                following = await producer.send_soon(b"4", key="bob")
                expecting = await producer.send_soon(b"never", key="anna", expect_key_offset=-1)
                async with client.producer("eu", delivery_timeout_s=0.5) as hasty:
                    # Unknown where just then it was tried once more.
                    with pytest.raises((DeadlineExceededError, OutcomeUnknownError), match=tx.id):
                        await hasty.send(b"never", key="anna")
                assert await latest(client, "eu") == -1
            nursery.cancel_scope.deadline = trio.current_time() + 30
            assert (await pending.wait()).offset == 3
            assert (await following.wait()).offset == 4
            with pytest.raises(OffsetMismatchError):
                await expecting.wait()
            nursery.cancel_scope.cancel()
        found = [record.value async for record in client.read("eu")]
        assert found == [b"0", b"2", b"1", b"3", b"4"]


@pytest.mark.long
async def test_writers_of_two_keys_lose_no_update(tmp_path: Path) -> None:
    """Counters on both sets that are read, and written together, while plain writers and a crash
    get in between."""
    async with accounts(tmp_path, 3) as (cluster, client):
        done: list[int] = []
        failures: list[HadronError] = []
        ours = b"in a transaction"

        async def add(times: int, home: str) -> None:
            while len(done) < times:
                read = await latest(client, "eu"), await latest(client, "us")
                try:
                    async with client.transaction(driver=home) as tx:
                        await tx.publish("eu", ours, key="anna", expect_key_offset=read[0])
                        await tx.publish("us", ours, key="anna", expect_key_offset=read[1])
                except HadronError as error:
                    failures.append(error)
                    await trio.sleep(0.005)
                else:
                    done.append(1)

        async def crash() -> None:
            for name in (EU, US):
                await trio.sleep(0.2)
                await cluster[name].crash("n1")
                await cluster[name].restart("n1")
                await cluster[name].wait_serving()

        async def alone(stream: str) -> None:
            async with client.producer(stream) as producer:
                while len(done) < 20:
                    await producer.send(b"alone", key="anna")
                    await trio.sleep(0.05)

        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(crash)
                for number in range(4):
                    nursery.start_soon(add, 20, (EU, US)[number % 2])
                for stream in ("eu", "us"):
                    nursery.start_soon(alone, stream)
            await cluster.wait_serving()
            await until_over(client)
        kinds = {type(error) for error in failures}
        assert kinds >= {ConflictError, OffsetMismatchError}, kinds
        counts = []
        for stream in ("eu", "us"):
            found = [record.value async for record in client.read(stream)]
            counts.append(found.count(ours))
        assert counts[0] == counts[1] >= len(done)


async def test_what_cannot_be_expected_is_not_in_the_transaction(tmp_path: Path) -> None:
    async with accounts(tmp_path) as (_, client):
        async with client.transaction() as tx:
            with pytest.raises(InvalidRecordError, match="expect_offset 4 cannot be in a trans"):
                await tx.publish("eu", b"never", expect_offset=4)
            with pytest.raises(InvalidRecordError, match="sequence 4 cannot be in a transaction"):
                await tx.publish("eu", NewRecord(value=b"never", sequence=4))
            with pytest.raises(InvalidRecordError, match="'plain' has no index of keys"):
                await tx.publish("plain", b"never", key="k", expect_key_offset=-1)
            with pytest.raises(InvalidRecordError, match="without a key"):
                await tx.publish("eu", b"never", expect_key_offset=-1)
            await tx.publish("eu", NewRecord(value=b"a", key="anna", expect_key_offset=-1))
            many = [NewRecord(value=b"b", key="bob", expect_key_offset=-1), b"c"]
            await tx.publish_many("eu", many)
        assert [record.value async for record in client.read("eu")] == [b"0", b"a", b"b", b"c"]
        for options in ({"region": "eu"}, {"partitioner": "round_robin"}):
            async with client.transaction(**options) as tx:  # type: ignore[arg-type]
                with pytest.raises(RequestError, match="records of one key lie in several"):
                    await tx.publish("both", b"never", key="anna")
                await tx.publish("both", b"without a key")
