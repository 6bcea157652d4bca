"""A bridge whose stream is gone while its exchange is not: the metadata set has lost the exchange
(R7), and nobody looks for who refers to the stream."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from hadron.exchanges.bridge import Bridge
from hadron.exchanges.driver import ExchangeDriver, Exchanges
from hadron.exchanges.parcels import Gaps, Parcel, Published
from hadron.model.batch import StampedBatch
from hadron.model.batch_building import BatchBuilder
from hadron.model.errors import CorruptionError, FrameError, HadronError
from hadron.model.record import NewRecord
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.model.services import ExchangeSpec
from hadron.serving.tests.stack import SET, Stack, leading
from hadron.state.schema import DeleteObjects


class Subscriber:
    """A client, of an exchange whose records have no topic."""

    peer = "client"
    writable = True

    def __init__(self) -> None:
        self.on_writable: Callable[[], None] = lambda: None
        self.failure: HadronError | None = None

    def confirm(self, ids: Sequence[int]) -> None:
        assert list(ids) == [1]

    def refuse(self, id: int, error: HadronError) -> None:
        raise AssertionError(id) from error

    def deliver(self, parcel: Parcel) -> None:
        raise AssertionError(parcel)

    def tell_missed(self, gaps: Gaps) -> None:
        raise AssertionError(gaps)

    def fail(self, error: HadronError) -> None:
        self.failure = error


class Target:
    """An exchange, as a bridge sees it."""

    def __init__(self, *, has_subscriptions: bool) -> None:
        self.has_subscriptions = has_subscriptions

    def publish_bridged(self, batches: Sequence[Published], without_topic: int) -> None:
        pass

    def interrupt(self, reason: HadronError) -> None:
        raise reason


async def delete(stack: Stack, object_id: int) -> None:
    with trio.fail_after(10):
        await stack.controller.execute(DeleteObjects(stack.catalog.metadata_index, (object_id,)))


@contextlib.asynccontextmanager
async def serving(stack: Stack) -> AsyncIterator[ExchangeDriver]:
    """Exchange `news` of stream `orders`, in use."""
    exchanges = Exchanges(stack.visible, stack.catalog, SET)
    spec = ExchangeSpec(replica_set=SET, from_stream="orders")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchanges.run)
        await trio.testing.wait_all_tasks_blocked()
        exchange_id = await stack.declare("Exchange", "news", spec)
        yield exchanges.driver(stack.catalog.by_id(exchange_id))
        nursery.cancel_scope.cancel()


async def test_an_exchange_outlives_its_stream_and_publishes_one_that_is_made_anew(
    tmp_path: Path,
) -> None:
    async with leading(tmp_path) as stack:
        orders = await stack.stream("orders")
        async with serving(stack) as news:
            sink = Subscriber()
            news.subscribe(news.attend(sink), [(1, [">"], "")])
            await delete(stack, orders)
            assert stack.fatal == []
            assert "nothing is published from orders" in news.trouble
            again = await stack.stream("orders")
            assert (news.trouble, news.has_subscriptions, sink.failure) == ("", True, None)
            await stack.append(again, b"1")
            assert stack.fatal == []
            assert news.machine.without_topic == 1


@pytest.mark.parametrize("has_subscriptions", [False, True])
async def test_a_bridge_that_nobody_closed_before_its_stream_was_deleted_closes(
    tmp_path: Path, *, has_subscriptions: bool
) -> None:
    async with leading(tmp_path) as stack:
        orders = await stack.stream("orders")
        bridge = Bridge(
            stack.catalog.by_id(orders),
            "{type}",
            SET,
            stack.visible,
            Target(has_subscriptions=has_subscriptions),
            lambda _task: None,
        )
        await delete(stack, orders)
        assert stack.fatal == []
        assert bridge.is_closed


@pytest.mark.parametrize("is_found_out", [True, False])
async def test_a_stream_that_is_deleted_while_it_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_found_out: bool
) -> None:
    """A read of what is damaged takes as long as its repair. The leader's node ended with it."""
    async with leading(tmp_path) as stack:
        orders = await stack.stream("orders")
        asked = trio.Event()

        async def read(*_given: Any) -> list[StampedBatch]:
            asked.set()
            await delete(stack, orders)
            raise CorruptionError("the body of entry 3 is missing")

        monkeypatch.setattr(stack.visible, "recent", lambda *_given: None)
        monkeypatch.setattr(stack.visible, "read", read)
        async with serving(stack) as news:
            sink = Subscriber()
            news.subscribe(news.attend(sink), [(1, [">"], "")])
            if not is_found_out:
                # The metadata set has lost the exchange, and nobody closes its bridge.
                monkeypatch.setattr(news, "bridge", lambda: None)
            await stack.append(orders, b"1")
            await asked.wait()
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert (sink.failure is None) == is_found_out
            if is_found_out:
                again = await stack.stream("orders")
                monkeypatch.undo()
                await stack.append(again, b"1")
                assert news.machine.without_topic == 1
        assert stack.fatal == []


class Records:
    """A stream's visible records, read when the test says so; each has the type `t0` or `t1`."""

    def __init__(self) -> None:
        self.batches: list[StampedBatch] = []
        self.asked: list[int] = []
        self.may_read = trio.Event()
        self.moved: Callable[[], None] = lambda: None

    def grow(self, batches: int, count: int) -> None:
        for _ in range(batches):
            builder = BatchBuilder()
            for number in range(count):
                builder.add(NewRecord(value=b"", type=f"t{number % 2}"), 1)
            end = self.bounds(0).next_offset
            self.batches.append(StampedBatch(end, count, 1, 1, 1, builder.build()))
        self.moved()

    def bounds(self, _stream: int) -> Any:
        end = self.batches[-1].next_offset if self.batches else 0
        return SimpleNamespace(next_offset=end)

    def watch(self, _stream: int, moved: Callable[[], None]) -> Callable[[], None]:
        self.moved = moved
        return lambda: None

    def recent(self, _stream: int, _position: int, _max_bytes: int) -> None:
        return None

    async def read(self, _stream: int, position: int, _max_bytes: int) -> list[StampedBatch]:
        self.asked.append(position)
        await self.may_read.wait()
        return [each for each in self.batches if each.next_offset > position]


class Refusing(Target):
    """An exchange that can say nothing of what comes."""

    def __init__(self) -> None:
        super().__init__(has_subscriptions=True)
        self.interrupted: list[HadronError] = []

    def publish_bridged(self, batches: Sequence[Published], without_topic: int) -> None:  # noqa: ARG002
        raise FrameError(f"a message of {len(batches)} batches is too large")

    def interrupt(self, reason: HadronError) -> None:
        self.interrupted.append(reason)


async def test_what_cannot_be_published_ends_who_is_subscribed_and_not_the_node(
    tmp_path: Path,
) -> None:
    async with leading(tmp_path) as stack:
        orders = await stack.stream("orders")
        target = Refusing()
        stream = stack.catalog.by_id(orders)
        Bridge(stream, "a", SET, stack.visible, target, lambda _task: None)
        await stack.append(orders, b"1")
        await stack.append(orders, b"2")
        assert stack.fatal == []
        assert len(target.interrupted) == 2
        assert "did not go out: a message of 1 batches" in str(target.interrupted[0])


class Counting(Target):
    """An exchange that counts the records and turns in which they come."""

    def __init__(self) -> None:
        super().__init__(has_subscriptions=True)
        self.turns: list[int] = []

    def publish_bridged(self, batches: Sequence[Published], without_topic: int) -> None:
        assert without_topic == 0
        self.turns.append(sum(len(each.topics) for each in batches))


def a_stream() -> SchemaObject:
    return SchemaObject(kind="Stream", name="s", spec=StreamSpec(partitions=(SET,)))


@contextlib.asynccontextmanager
async def bridging() -> AsyncIterator[tuple[Records, Counting, Bridge]]:
    records, target, stream = Records(), Counting(), a_stream()
    visible: Any = records
    async with trio.open_nursery() as nursery:
        yield records, target, Bridge(stream, "{type}", SET, visible, target, nursery.start_soon)


async def test_who_subscribes_while_records_are_read_for_others_gets_none_of_them() -> None:
    async with bridging() as (records, target, bridge):
        records.grow(1, 4)
        await trio.testing.wait_all_tasks_blocked()
        assert records.asked == [0]
        # The last one leaves, and another comes.
        bridge.begin()
        records.may_read.set()
        await trio.testing.wait_all_tasks_blocked()
        assert target.turns == []
        records.grow(1, 4)
        await trio.testing.wait_all_tasks_blocked()
        assert target.turns == [4]


async def test_batches_of_many_types_are_not_published_in_one_turn() -> None:
    async with bridging() as (records, target, _):
        records.may_read.set()
        records.grow(5, 3_000)
        await trio.testing.wait_all_tasks_blocked()
        assert target.turns == [6_000, 6_000, 3_000]
