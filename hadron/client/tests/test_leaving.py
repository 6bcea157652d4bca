"""Who waits for what a client's tasks set hears of it when the client's block is left (K15)."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from hadron.client import Client, connect
from hadron.client.handling.invocation import StageInvocation
from hadron.client.reading.reader import spans_of
from hadron.client.tests.fake_node import FakeNode
from hadron.client.tests.support import both, served, until
from hadron.model.errors import ClosedError, HadronError
from hadron.testing.nodes import running_nodes

SCHEMA = """
kind: Stream
name: s
---
kind: Exchange
name: prices
replica_set: local/p0
---
kind: Endpoint
name: shout
replica_set: local/p0
---
kind: Pipeline
name: pipe
replica_set: local/p0
input: s
stages:
- {name: one, engine: handler}
"""


class Scene:
    """Attributes:
    is_open: what is waited for was asked once.
    is_away: the leader is.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.is_open, self.is_away = trio.Event(), trio.Event()

    async def go_on(self) -> None:
        self.is_open.set()
        await self.is_away.wait()


async def follow(scene: Scene) -> None:
    reader = scene.client.read("s", follow=True)
    await anext(reader)
    await scene.go_on()
    async for _ in reader:
        pass


async def take_messages(scene: Scene) -> None:
    async with scene.client.exchange("prices").subscribe() as messages:
        await scene.go_on()
        async for _ in messages:
            pass


async def subscribe_to_messages(scene: Scene) -> None:
    exchange = scene.client.exchange("prices")
    await exchange.publish("topic", 1)
    await scene.go_on()
    async with exchange.subscribe():
        pass


async def call(scene: Scene) -> None:
    async with scene.client.serve("shout", str.upper):
        await scene.client.call("shout", "x")
        await scene.go_on()
        await scene.client.call("shout", "x")


async def flush(scene: Scene) -> None:
    async with scene.client.subscribe("s", group="g") as subscription:
        delivery = await anext(subscription)
        await scene.go_on()
        await delivery.ack()
        await subscription.flush()


async def run_stages(scene: Scene) -> None:
    async with scene.client.run_stages("pipe") as run:
        await scene.go_on()
        async for _ in run:
            pass


async def run_stage(scene: Scene) -> None:
    async with scene.client.stage("pipe", "one") as invocations:
        await scene.go_on()
        async for _ in invocations:
            pass


async def complete(scene: Scene) -> None:
    async with scene.client.stage("pipe", "one") as invocations:
        first, second = await anext(invocations), await anext(invocations)
        await scene.go_on()
        # The second one waits for the request that says the first.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(is_refused, first)
            await until(lambda: [*invocations._ends._waiting.values()] == [deque()])
            nursery.start_soon(is_refused, second)


async def is_refused(invocation: StageInvocation) -> None:
    with pytest.raises(ClosedError):
        await invocation.complete()


async def transact(scene: Scene) -> None:
    async with scene.client.transaction() as transaction:
        await transaction.publish("s", 1)
        await transaction.commit()
    await scene.go_on()
    async with scene.client.transaction() as transaction:
        await transaction.publish("s", 2)


@pytest.mark.parametrize(
    ("wait", "ends"),
    [
        (follow, True),
        (take_messages, True),
        (subscribe_to_messages, False),
        (call, False),
        (flush, False),
        (run_stages, False),
        (run_stage, True),
        (complete, True),
        (transact, False),
    ],
)
async def test_who_waits_while_the_leader_is_away(
    tmp_path: Path, clock: MockClock, wait: Callable[[Scene], Awaitable[None]], ends: bool
) -> None:
    """A loop that its docs say ends does so, anything else says that the client is closed."""
    outcomes: list[Any] = []

    async def run() -> None:
        try:
            await wait(scene)
            outcomes.append(None)
        except HadronError as error:
            outcomes.append(error)

    with trio.fail_after(120):
        async with running_nodes(tmp_path, 1) as nodes, trio.open_nursery() as nursery:
            async with nodes.client() as client:
                await client.apply(SCHEMA)
                for number in range(2):
                    await client.send("s", number)
                scene = Scene(client)
                nursery.start_soon(run)
                await scene.is_open.wait()
                await nodes.crash("n1")
                session = client._session
                await until(lambda: session.connection_now("local/p0") is None)
                # Whose calls are lost hears of it before there are others.
                await wait_all_tasks_blocked()
                scene.is_away.set()
                await until(lambda: "local/p0" in session._suspects)
                # It is looked for again and again.
                await trio.sleep(1)
                assert not outcomes
            # Sooner than any of them gives up by itself.
            with trio.fail_after(15):
                await until(lambda: bool(outcomes))
    assert outcomes == [None] if ends else type(outcomes[0]) is ClosedError


async def fill(client: Client, count: int) -> None:
    async with client.producer("s", batch_bytes=100) as producer:
        await producer.send_many([b"%d" % number for number in range(count)])


@both
async def test_a_read_that_goes_on_behind_the_block_says_so() -> None:
    node = FakeNode()
    async with node.listen() as url:
        async with connect(url) as client:
            await fill(client, 400)
            node.most_fetch_bytes = 1
            reader = client.read("s")
            await anext(reader)
            # No request is under way that would fail: as many answers wait as may.
            prefetches = spans_of(reader)._prefetches
            assert prefetches is not None
            await until(lambda: prefetches[0]._call is None)
        with anyio.fail_after(3), pytest.raises(ClosedError, match="the client is closed"):
            async for _ in reader:
                pass


@both
async def test_following_ends_also_while_the_leader_is_away() -> None:
    node = FakeNode()
    urls: list[str] = []
    seen, stop, is_gone, is_done = [anyio.Event() for _ in range(4)]

    async def serve() -> None:
        async with node.listen() as url:
            urls.append(url)
            await stop.wait()
        is_gone.set()

    async def follow_all(client: Client) -> None:
        async for _ in client.read("s", follow=True):
            seen.set()
        is_done.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        await until(lambda: bool(urls))
        async with connect(urls[0]) as client:
            await fill(client, 1)
            tasks.start_soon(follow_all, client)
            await until(lambda: seen.is_set() and node.fetches >= 2)
            stop.set()
            await is_gone.wait()
            await until(lambda: bool(client._session._suspects))
        with anyio.fail_after(3):
            await is_done.wait()


@both
async def test_stages_that_are_run_behind_the_block_are_none() -> None:
    node = FakeNode()
    async with node.listen() as url:
        async with connect(url) as client:
            run = await client.run_stages("pipe").__aenter__()
        with anyio.fail_after(3), pytest.raises(ClosedError, match="the client is closed"):
            await anext(run)


@both
async def test_a_loop_over_steps_ends_behind_the_block() -> None:
    """Its body was at work when the block ended: no task commits what it has done."""
    async with FakeNode().listen() as url:
        async with connect(url) as client:
            await fill(client, 1)
            subscription = await client.subscribe("s", group="g").__aenter__()
            steps = subscription.transactions()
            step = await anext(steps)
        with anyio.fail_after(3):
            assert [each async for each in steps] == []
        assert "rolled back" in repr(step)


@both
async def test_what_was_set_before_the_end_is_no_news_of_it() -> None:
    async with served() as (_, client):
        event = anyio.Event()
        event.set()
        await client.close()
        await client._session.wait(event)
        with pytest.raises(ClosedError):
            await client._session.wait(anyio.Event())
        assert not client._session.on_close
