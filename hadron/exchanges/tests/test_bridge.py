"""A bridge whose stream is gone while its exchange is not: the metadata set has lost the exchange
(R7), and nobody looks for who refers to the stream."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from hadron.exchanges.bridge import Bridge
from hadron.exchanges.driver import ExchangeDriver, Exchanges
from hadron.exchanges.parcels import Gaps, Parcel, Published
from hadron.model.errors import HadronError
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
