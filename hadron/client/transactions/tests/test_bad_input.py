"""What a transaction cannot do: the error names it and says whether doing it again helps, and no
half of it is ever in a log. Over real nodes in one process."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from hadron.client import Client
from hadron.client.transactions.tests.test_with_nodes import (
    EU,
    ONE,
    US,
    declare,
    eventually,
    until_over,
    values,
)
from hadron.client.transactions.transaction import Transaction
from hadron.model.errors import (
    ClosedError,
    HadronError,
    InvalidRecordError,
    NotFoundError,
    RecordTooLargeError,
    RequestError,
    TransactionExpiredError,
)
from hadron.model.record import NewRecord
from hadron.testing.nodes import running_cluster

LOOP: list[object] = []
LOOP.append(LOOP)

_REFUSED: list[tuple[str, Callable[[Transaction], Awaitable[object]], type[HadronError]]] = [
    ("'nowhere'", lambda tx: tx.publish("nowhere", b"x"), NotFoundError),
    ("'nowhere'", lambda tx: tx.publish_many("nowhere", [b"x"]), NotFoundError),
    ("'mars/p0'", lambda tx: tx.publish("us", b"x", partition="mars/p0"), NotFoundError),
    (
        "'eu/p0'",
        lambda tx: tx.publish("us", NewRecord(value=b"x", partition="eu/p0")),
        NotFoundError,
    ),
    ("3000016 bytes", lambda tx: tx.publish("us", b"x" * 3_000_000), RecordTooLargeError),
    ("3000016 bytes", lambda tx: tx.publish_many("us", [b"x" * 3_000_000]), RecordTooLargeError),
    ("type object", lambda tx: tx.publish("us", object()), InvalidRecordError),
    ("type object", lambda tx: tx.publish_many("us", [b"x", object()]), InvalidRecordError),
    ("NaN", lambda tx: tx.publish("us", {"x": float("nan")}), InvalidRecordError),
    ("", lambda tx: tx.publish("us", LOOP), InvalidRecordError),
    ("surrogate", lambda tx: tx.publish("us", "\ud800"), InvalidRecordError),
    ("list", lambda tx: tx.publish("us", b"x", key=["k"]), InvalidRecordError),  # type: ignore[arg-type]
    ("publish_many of one int", lambda tx: tx.publish_many("us", 7), RequestError),  # type: ignore[arg-type]
    ("'not a type '", lambda tx: tx.publish("us", b"x", type="not a type "), InvalidRecordError),
    ("NoneType", lambda tx: tx.ack(None), RequestError),  # type: ignore[arg-type]
    ("3", lambda tx: tx.publish(3, b"x"), RequestError),  # type: ignore[arg-type]
]


async def test_what_is_refused_at_once(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, ONE) as cluster, cluster.client() as client:
        await declare(client)
        for number, (names, call, kind) in enumerate(_REFUSED):
            caught: HadronError | None = None
            try:
                async with client.transaction() as tx:
                    await tx.publish("eu", b"never")
                    try:
                        await call(tx)
                    except HadronError as error:
                        caught = error
                        await tx.rollback()
            except HadronError as error:
                caught = error
            assert isinstance(caught, kind), (number, caught)
            assert names in str(caught), (number, caught)
            assert not caught.retryable, (number, caught)
        await until_over(client)
        assert await values(client, "eu") == await values(client, "us") == []


@pytest.mark.long
async def test_a_partition_that_is_away(tmp_path: Path, clock: MockClock) -> None:
    async with running_cluster(tmp_path, ONE) as cluster, cluster.client() as client:
        await declare(client)
        await cluster[US].crash("n1")
        with pytest.raises(HadronError, match=US) as caught:  # noqa: PT012
            async with client.transaction() as tx:
                await tx.publish("eu", b"never")
                await tx.publish("us", b"never")
        assert caught.value.retryable
        # Its driver is: nothing is begun.
        with pytest.raises(HadronError, match=US) as caught:  # noqa: PT012
            async with client.transaction() as tx:
                await tx.publish("us", b"never")
                await tx.publish("eu", b"never")
        assert caught.value.retryable
        await cluster[US].restart("n1")
        await cluster.wait_serving()
        await until_over(client)
        assert await values(client, "eu") == await values(client, "us") == []


@pytest.mark.long
async def test_more_statements_than_a_transaction_may_have(tmp_path: Path) -> None:
    """The first of them are prepared by then."""
    async with running_cluster(tmp_path, ONE) as cluster, cluster.client() as client:
        await declare(client)
        for stream, home in (("us", EU), ("eu", EU)):
            with pytest.raises(RequestError, match="more than 10000 statements at") as caught:  # noqa: PT012
                async with client.transaction(driver=home) as tx:
                    for _ in range(10_001):
                        await tx.publish_many(stream, [b"never"])
            assert not caught.value.retryable
        await until_over(client)
        assert await values(client, "eu") == await values(client, "us") == []


@pytest.mark.long
async def test_a_body_that_is_slower_than_a_transaction_may_be(
    tmp_path: Path, clock: MockClock
) -> None:
    """A step that publishes and then waits is rolled back each time: its program hears of it."""
    async with running_cluster(tmp_path, ONE) as cluster, cluster.client() as client:
        await declare(client)
        await client.send("in", b"x")
        attempts: list[int] = []
        async with client.subscribe("in", group="g", start="earliest") as subscription:
            with pytest.raises(TransactionExpiredError, match="was idle for 30 s"):  # noqa: PT012
                async for step in subscription.transactions(max_wait_s=0):
                    attempts.append(step.attempt)
                    await step.publish("us", b"never")
                    await trio.sleep(31)
        assert attempts == [1, 2, 3]
        await until_over(client)
        assert await values(client, "us") == []


async def test_deliveries_that_are_nobodys_or_somebody_elses(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, ONE) as cluster, cluster.client() as client:
        await declare(client)
        for number in range(3):
            await client.send("in", b"%d" % number)

        async def refused(*deliveries: object, words: str) -> None:
            for home in (EU, US):
                with pytest.raises(RequestError, match=words) as caught:  # noqa: PT012
                    async with client.transaction(driver=home) as tx:
                        await tx.publish("us", b"never")
                        for each in deliveries:
                            await tx.ack(each)  # type: ignore[arg-type]
                assert caught.value.hint

        # In order, so that what is given back comes first: else a group that is served still when
        # the next member joins begins with what it has delivered least often (GROUPS G14).
        async with client.subscribe(
            "in", group="g", start="earliest", order="strict"
        ) as subscription:
            gone = await subscription.__anext__()

        async def is_gone() -> bool:
            (group,) = await client.groups("in")
            return bool(group.in_flight == 0)

        # Its member has left, and nobody is there; then another member has the record.
        await eventually(is_gone)
        await refused(gone, words=r"'g' has no members at eu/p0|nobody holds offsets 0 to 0")
        async with client.subscribe("in", group="g") as subscription:
            again = await subscription.__anext__()
            assert again.offset == gone.offset
            await refused(gone, words=r"nobody holds offsets 0 to 0 of group 'g' under delivery")
            await again.ack()
            await refused(again, words="was acknowledged before")
            # Of another group of the same stream it is another delivery.
            async with client.subscribe("in", group="h", start="earliest") as others:
                theirs = await others.__anext__()
                async with client.transaction() as tx:
                    await tx.ack(theirs)
                    await tx.publish("us", b"of h")
            async with cluster.client() as other:
                mine = await subscription.__anext__()
                with pytest.raises(RequestError, match="a member of another client"):
                    async with other.transaction() as tx:
                        await tx.ack(mine)
        await until_over(client)
        assert await values(client, "us") == [b"of h"]


async def test_using_it_at_the_wrong_time(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, ONE) as cluster:
        async with cluster.client() as client:
            await declare(client)
            unopened = client.transaction()
            with pytest.raises((ClosedError, AttributeError), match="with"):
                await unopened.publish("us", b"never")  # type: ignore[attr-defined]
            async with client.transaction() as tx:
                await tx.publish("us", b"a")
                with pytest.raises(RequestError, match="opened by an `async with` already"):
                    async with tx:
                        pass
                # Another one inside of it is another one.
                async with client.transaction() as inner:
                    await inner.publish("us", b"b")
                await tx.commit()
                for call in (
                    lambda: tx.publish("us", b"never"),
                    lambda: tx.publish_many("us", [b"never"]),
                    tx.commit,
                ):
                    with pytest.raises(ClosedError, match=f"committed: {tx.id}"):
                        await call()
            with pytest.raises(ClosedError, match=f"committed: {tx.id}") as caught:
                await tx.publish("us", b"never")
            assert not caught.value.retryable
            assert "another transaction" in caught.value.hint
            assert await values(client, "us") == [b"b", b"a"]
            left = client.transaction()
            tx = await left.__aenter__()
            await tx.publish("us", b"never")
        with pytest.raises(ClosedError, match="closed") as caught:
            await tx.publish("us", b"never")
        with pytest.raises(ClosedError, match="closed"):
            await left.__aexit__(None, None, None)
        with pytest.raises(ClosedError, match="closed"):
            async with client.transaction():
                pass
        async with cluster.client() as client:
            assert await values(client, "us") == [b"b", b"a"]


@pytest.mark.long
async def test_a_connection_that_breaks_before_the_commit(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, {EU: 3, US: 1}) as cluster, cluster.client() as client:
        await declare(client)
        with pytest.raises(HadronError, match="rolled back") as caught:  # noqa: PT012
            async with client.transaction() as tx:
                await tx.publish("eu", b"never")
                await tx.publish("us", b"never")
                await trio.sleep(0.1)
                await cluster[EU].crash("n1")
                await cluster[EU].restart("n1")
                await cluster[EU].wait_serving()
        assert caught.value.retryable
        assert tx.id is not None
        assert tx.id in str(caught.value)
        assert (await client.outcome(tx.id)).state == "aborted"
        await until_over(client)
        assert await values(client, "eu") == await values(client, "us") == []


async def test_two_tasks_fill_one_and_one_ends_it(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, ONE) as cluster, cluster.client() as client:
        await declare(client)
        refusals: list[str] = []
        done: list[bytes] = []

        async def work(client: Client, tx: Transaction, name: int) -> None:
            for number in range(200):
                value = b"%d-%d" % (name, number)
                try:
                    await tx.publish("us" if number % 2 else "eu", value)
                except ClosedError as error:
                    refusals.append(str(error))
                else:
                    done.append(value)
                await trio.lowlevel.checkpoint()
                if (name, number) == (0, 150):
                    await tx.commit()

        async with client.transaction() as tx, trio.open_nursery() as nursery:
            nursery.start_soon(work, client, tx, 0)
            nursery.start_soon(work, client, tx, 1)
        assert refusals
        assert all(tx.id is not None and tx.id in each for each in refusals)
        found = await values(client, "us") + await values(client, "eu")
        assert sorted(found) == sorted(done)
