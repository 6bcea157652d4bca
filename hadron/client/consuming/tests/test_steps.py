"""Consume, transform, publish against a driver that misbehaves, under both event loops."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import anyio
import pytest

from hadron.client import Client, connect_sync
from hadron.client.consuming.steps import Step
from hadron.client.tests.support import both, served, until
from hadron.client.transactions.tests.fake_driver import FakeDriver
from hadron.model.errors import (
    ConflictError,
    ConnectionLostError,
    NotFoundError,
    RequestError,
    TransactionExpiredError,
)


def driver(**options: Any) -> FakeDriver:
    return FakeDriver(**{"streams": ("s", "t"), **options})


async def fill(client: Client, count: int) -> None:
    async with client.producer("s", batch_bytes=1000) as producer:
        await producer.send_many([b"%d" % number for number in range(count)])


def expected(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def copy_all(client: Client, count: int, **settings: Any) -> list[int]:
    """Until so many have been copied; returns the sizes of the steps."""
    sizes: list[int] = []
    done = 0
    async with client.subscribe("s", group="g", max_in_flight=300) as subscription:
        async for step in subscription.transactions(**settings):
            await step.publish_many("t", [record.value for record in step.records])
            sizes.append(len(step))
            done = step.records[-1].offset + 1
            if done == count:
                await step.commit()
                break
    return sizes


def is_rolled_back(step: Step) -> bool:
    return "rolled back" in repr(step)


@both
async def test_each_record_has_its_output_once() -> None:
    async with served(driver()) as (node, client):
        await fill(client, 3_000)
        sizes = await copy_all(client, 3_000, max_records=100)
        assert max(sizes) == 100
        assert node.values("t") == expected(3_000)
        assert node.groups["s", "local/p0", "g"].floor == 3_000


@both
async def test_a_step_waits_for_more_records() -> None:
    async with served(driver()) as (_, client):
        async with client.subscribe("s", group="g") as subscription:
            steps = subscription.transactions(max_records=10, max_wait_s=5)
            async with anyio.create_task_group() as tasks, client.producer("s") as producer:

                async def send() -> None:
                    for number in range(10):
                        await producer.send(b"%d" % number)
                        await anyio.sleep(0.005)

                tasks.start_soon(send)
                step = await anext(steps)
                assert [each.value for each in step.records] == expected(10)
        with pytest.raises(RequestError, match="max_records 0 is out of bounds"):
            subscription.transactions(max_records=0)


@both
async def test_the_next_body_runs_while_a_step_commits() -> None:
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        await fill(client, 100)
        async with client.subscribe("s", group="g") as subscription:
            steps = subscription.transactions(max_records=10)
            node.hold = True
            one = await anext(steps)
            await one.publish("t", b"1")
            two = await anext(steps)
            await until(lambda: len(node.waiting) == 1)
            await two.publish("t", b"2")
            with anyio.move_on_after(0.05) as scope:
                # The second is not said to be committed before the first one is.
                await anext(steps)
            assert scope.cancelled_caught
            assert len(node.waiting) == 1
            node.release()
        await until(lambda: node.values("t") == [b"1"])


@both
async def test_who_stops_waiting_for_the_next_step_loses_none() -> None:
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        await fill(client, 30)
        async with client.subscribe("s", group="g") as subscription:
            steps = subscription.transactions(max_records=10)
            node.hold = True
            for number in (1, 2):
                step = await anext(steps)
                await step.publish("t", b"%d" % number)
            await until(lambda: len(node.waiting) == 1)
            with anyio.move_on_after(0.05) as scope:
                await anext(steps)
            assert scope.cancelled_caught
            node.hold = False
            node.release()
            step = await anext(steps)
            await step.publish("t", b"3")
            await step.commit()
        assert node.values("t") == [b"1", b"2", b"3"]
        assert node.groups["s", "local/p0", "g"].floor == 30


@both
async def test_a_step_that_is_committed_by_hand_waits_for_its_turn() -> None:
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        await fill(client, 100)
        node.refusals += [None, ConflictError("x/1.1/5 holds it")]
        async with client.subscribe("s", group="g") as subscription:
            steps = subscription.transactions(max_records=10)
            for value in (b"1", b"2"):
                step = await anext(steps)
                await step.publish("t", value)
            step = await anext(steps)
            await step.publish("t", b"3")
            with pytest.raises(ConnectionLostError, match="step before this one was not committed"):
                await step.commit()
        assert node.values("t") == [b"1"]


@both
async def test_what_fails_is_done_again_with_what_was_behind_it() -> None:
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        await fill(client, 1_000)
        for error in (ConflictError("x/1.1/5 holds it"), RequestError("others have them")):
            node.refusals += [None, None, error]
        await copy_all(client, 1_000, max_records=50)
        assert sorted(node.values("t")) == sorted(expected(1_000))
        assert node.groups["s", "local/p0", "g"].floor == 1_000
        assert node.nacks
        assert all(nack.unseen for nack in node.nacks), "nobody's fault is no attempt"


@both
async def test_what_never_works_ends_the_loop() -> None:
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        await fill(client, 1_000)
        node.refusals += [RequestError("no")] * 100
        with pytest.raises(RequestError, match="no"):
            await copy_all(client, 1_000, max_records=50)
        assert node.values("t") == []


@both
async def test_a_body_that_is_too_slow_hears_of_it() -> None:
    """The driver does not wait for ever, and will not the next time."""
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        await fill(client, 1_000)
        node.refusals += [TransactionExpiredError("it was idle for 30 s")] * 100
        with pytest.raises(TransactionExpiredError, match="idle for 30 s"):
            await copy_all(client, 1_000, max_records=50)
        assert node.values("t") == []
        # Each time it is an attempt, and none of the step behind.
        await until(lambda: sum(not nack.unseen for nack in node.nacks) >= 3)
        assert any(nack.unseen for nack in node.nacks)


@both
async def test_an_exception_and_a_break_roll_back() -> None:
    async with served(driver()) as (node, client):
        await fill(client, 10)
        for _ in range(2):
            with pytest.raises(NotFoundError, match="'nowhere'"):  # noqa: PT012
                async with client.subscribe("s", group="g") as subscription:
                    async for step in subscription.transactions():
                        await step.publish("t", b"never")
                        await step.publish("nowhere", b"x")
        async with client.subscribe("s", group="g") as subscription:
            async for step in subscription.transactions():
                await step.publish("t", b"never")
                break
        async with client.subscribe("s", group="g") as subscription:
            async for step in subscription.transactions():
                assert step.attempt > 1
                await step.rollback()
                break
        assert node.values("t") == []
        await copy_all(client, 10)
        assert node.values("t") == expected(10)


@both
async def test_a_lost_connection_costs_and_doubles_nothing() -> None:
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        await fill(client, 2_000)
        node.refusals += [None] * 5
        cuts = 0
        done: set[int] = set()
        async with (
            client.subscribe("s", group="g", max_in_flight=300) as subscription,
            anyio.create_task_group() as tasks,
        ):

            async def end() -> None:
                await until(lambda: node.groups["s", "local/p0", "g"].floor == 2_000)
                await subscription.close()

            tasks.start_soon(end)
            async for step in subscription.transactions(max_records=50):
                await step.publish_many("t", [record.value for record in step.records])
                done.update(record.offset for record in step.records)
                if len(done) > 300 * (cuts + 1):
                    cuts += 1
                    if cuts % 3 == 0:
                        node.cut()
                    elif cuts % 3 == 1:
                        node.cut_after = 1
                    else:
                        node.cut_before = 1
        assert cuts >= 5
        assert sorted(node.values("t")) == sorted(expected(2_000))


@both
async def test_a_body_whose_driver_is_lost_goes_on() -> None:
    """It would be its program's end: nobody can catch what a loop's body raises, and go on."""
    async with served(driver()) as (node, client):
        assert isinstance(node, FakeDriver)
        await fill(client, 20)
        lives = 0
        async with (
            client.subscribe("s", group="g") as subscription,
            client.subscribe("t", group="other") as others,
        ):
            async with client.producer("t") as producer:
                await producer.send(b"other")
            async for step in subscription.transactions(max_records=20):
                lives += 1
                await step.publish("t", b"first")
                if lives == 1:
                    await anyio.sleep(0.05)
                    node.cut()
                    await until(partial(is_rolled_back, step))
                    assert (await step.publish("t", b"x")).receipt is None
                    assert (await step.publish_many("t", [b"x" * 1_000] * 1_000)).receipts == []
                    delivery = await others.__anext__()
                    await step.ack(delivery)
                    await delivery.ack()
                    continue
                await step.publish_many("t", [record.value for record in step.records])
                await step.commit()
                break
        assert lives == 2
        assert node.values("t") == [b"other", b"first", *expected(20)]


@both
async def test_steps_have_what_an_iteration_has_left() -> None:
    async with served(driver()) as (node, client):
        await fill(client, 10)
        async with client.subscribe("s", group="g") as subscription:
            for _ in range(2):
                async for delivery in subscription:
                    await delivery.ack()
                    break
            async for step in subscription.transactions(max_records=3):
                await step.publish_many("t", [record.value for record in step.records])
                if step.records[-1].offset == 9:
                    await step.commit()
                    break
        assert node.values("t") == expected(10)[2:]
        assert node.groups["s", "local/p0", "g"].floor == 10


@both
async def test_what_a_loop_over_steps_has_left_comes_next() -> None:
    """To another loop, one by one, or in batches; with the step that was left."""
    async with served(driver()) as (node, client):
        await fill(client, 40)
        async with client.subscribe("s", group="g", max_in_flight=40) as subscription:
            for _ in range(2):
                async for step in subscription.transactions(max_records=10):
                    await step.publish("t", b"never")
                    break
            async for step in subscription.transactions(max_records=10):
                await step.publish_many("t", [record.value for record in step.records])
                await step.commit()
                break
            seen = {record.offset for record in step.records}
            async for _ in subscription.transactions(max_records=10):
                break
            async for delivery in subscription:
                seen.add(delivery.offset)
                await delivery.ack()
                break
            async for _ in subscription.transactions(max_records=10):
                break
            async for batch in subscription.batches():
                seen.update(record.offset for record in batch.records)
                await batch.ack()
                if len(seen) == 40:
                    break
            await subscription.flush()
        assert node.groups["s", "local/p0", "g"].floor == 40
        assert len(node.values("t")) == 10


@both
async def test_what_a_step_has_committed_is_not_given_back_by_the_next_loop() -> None:
    async with served(driver()) as (node, client):
        await fill(client, 20)
        async with client.subscribe("s", group="g") as subscription:
            async for step in subscription.transactions(max_records=10):
                await step.commit()
                break
            for _ in range(2):
                async for _ in subscription.transactions(max_records=10):
                    break
        given_back = [
            (each.first_offset, each.last_offset) for n in node.nacks for each in n.ranges
        ]
        assert given_back
        assert min(given_back)[0] == 10


@both
async def test_a_subscription_has_one_loop_over_steps_at_a_time() -> None:
    async with served(driver()) as (node, client):
        await fill(client, 20)
        async with client.subscribe("s", group="g") as subscription:
            first, second = subscription.transactions(), subscription.transactions()
            step = await anext(first)
            await step.publish("t", b"never")
            other = await anext(second)
            with pytest.raises(RequestError, match="in another way before the step's end"):
                await step.commit()
            with pytest.raises(RequestError, match="another loop over transactions"):
                await anext(first)
            await other.publish_many("t", [record.value for record in other.records])
            await other.commit()
        assert node.values("t") == [record.value for record in other.records]


@both
async def test_what_is_left_and_given_to_others_meanwhile_is_in_no_step() -> None:
    async with served(driver()) as (_, client):
        await fill(client, 10)
        async with client.subscribe("s", group="g") as subscription:
            async for delivery in subscription:
                consumer, parcel = subscription._consumer, delivery._parcel
                consumer._revoked("local/p0", parcel.channel, parcel.number, 3, 4)
                break
            async for step in subscription.transactions():
                offsets = [record.offset for record in step.records]
                ranges = [each for parcel in step._parcels for each in parcel.ranges()]
                break
        assert offsets == [1, 2, 5, 6, 7, 8, 9]
        assert ranges == [(1, 2), (5, 9)]


@both
async def test_closing_the_subscription_ends_the_loop() -> None:
    async with served(driver()) as (node, client):
        await fill(client, 10)
        async with client.subscribe("s", group="g") as subscription:
            async for step in subscription.transactions():
                await step.publish("t", b"x")
                await step.commit()
                await subscription.close()
        assert node.values("t") == [b"x"]


def test_blocking_steps_have_what_an_iteration_has_left() -> None:
    async def serve(node: FakeDriver) -> None:
        with anyio.fail_after(30):
            async with node.listen() as url:
                await anyio.to_thread.run_sync(use, url, abandon_on_cancel=True)

    def use(url: str) -> None:
        with connect_sync(url) as client:
            with client.producer("s") as producer:
                for number in range(0, 10, 5):
                    producer.send_many(expected(10)[number : number + 5])
            with client.subscribe("s", group="g") as subscription:
                for delivery in subscription:
                    delivery.ack()
                    break
                for step in subscription.transactions(max_records=3):
                    step.publish_many("t", [each.value for each in step.records])
                    if step.records[-1].offset == 9:
                        step.commit()
                        break

    node = driver()
    anyio.run(serve, node)
    assert node.values("t") == expected(10)[1:]
    assert node.groups["s", "local/p0", "g"].floor == 10


def test_blocking_steps_and_transactions(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def serve(node: FakeDriver) -> None:
        async with node.listen() as url:
            await anyio.to_thread.run_sync(use, url)

    def use(url: str) -> None:
        with connect_sync(url) as client:
            with client.producer("s") as producer:
                producer.send_many(expected(100))
            with client.subscribe("s", group="g") as subscription:
                steps = subscription.transactions(max_records=30)
                for step in steps:
                    many = step.publish_many("t", [each.value for each in step.records])
                    one = step.publish("t", b"end", key="k")
                    assert (step.partition, step.attempt) == ("local/p0", 1)
                    if step.records[-1].offset == 99:
                        step.commit()
                        assert sum(each.count for each in many.receipts) == len(step)
                        assert one.receipt is not None
                        assert step.receipts[-1] == one.receipt
                        break
                assert "SyncSteps" in repr(steps)
                assert "SyncStep of" in repr(step)
            with client.transaction() as tx:
                published = tx.publish("s", b"x")
                assert tx.state == "open"
            assert published.receipt is not None
            assert tx.receipts == [published.receipt]
            assert (tx.state, tx.id) == ("committed", tx.id)
            assert repr(tx) == f"<SyncTransaction {tx.id}, committed>"
            with pytest.raises(ZeroDivisionError), client.transaction() as tx:  # noqa: PT012
                tx.publish("s", b"never")
                raise ZeroDivisionError
            assert tx.state == "rolled back"
            with client.subscribe("s", group="h") as subscription, client.transaction() as tx:
                delivery = next(subscription)
                tx.ack(delivery)
            assert tx.id is not None
            assert client.outcome(tx.id).is_committed
            assert client.transactions() == []
            left = client.transaction()
            left.publish("s", b"never")

    node = driver()
    anyio.run(serve, node)
    assert node.values("s") == [*expected(100), b"x"]
    assert [each for each in node.values("t") if each != b"end"] == expected(100)
    assert node.groups["s", "local/p0", "h"].floor == 1
    assert not caplog.records
