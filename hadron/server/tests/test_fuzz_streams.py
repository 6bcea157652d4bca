"""Items of whatever kind on the streams of callers, servers and who attends an exchange, behind
their welcome: each ends its call, or its stream, in words, and a neighbour is answered."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from hadron.client import Client
from hadron.model.errors import HadronError
from hadron.model.schema import SchemaObject
from hadron.model.services import STREAM, EndpointSpec, ExchangeSpec
from hadron.node.tests.support import assert_no_traceback
from hadron.server.tests.test_fuzz import attachment, check_words, fill
from hadron.testing.nodes import Nodes, running_nodes
from hadron.wire.calling import MessageStream
from hadron.wire.connection import Connection
from hadron.wire.messages import endpoints_pb2 as pb
from hadron.wire.messages import error_from_message, exchanges_pb2, method

MESSAGES: Final = 40
GIVEN: Final = 6
"""Calls that the server has which says nonsense."""

ENOUGH: Final = 2_000
"""Items, or messages of who attends."""

Item = pb.CallItem
_CALLER_SAYS: Final = (Item.OPEN, Item.OPEN, Item.VALUE, Item.END, Item.CANCEL, Item.CREDIT)
_SERVER_SAYS: Final = (Item.VALUE, Item.VALUE, Item.END, Item.ERROR, Item.CREDIT, Item.REFUSE)
_NUMBERS: Final = (1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1 << 40, (1 << 64) - 1)
_HEADERS: Final[tuple[dict[str, str], ...]] = ({}, {"a": "b"}, {"": ""}, {"é\0": "\n"})
_PATTERNS: Final = ("a.*", "#", "a.b", "", "a..b", "*.*.*", "x" * 3_000, "a.#.b", "\0")

Drawn = tuple[Any, list[bytes], int]
"""A message, what is attached, and how many items that is."""


class Saying:
    """What one side says on a stream, drawn: nearly always what it may, as the first word that
    makes no sense ends the stream."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.opened = 0

    def from_a_caller(self) -> Drawn:
        items, data = self._items(_CALLER_SAYS)
        return pb.CallRequest(items=items), data, len(items)

    def from_a_server(self) -> Drawn:
        self.opened = GIVEN
        items, data = self._items(_SERVER_SAYS)
        return pb.ServeRequest(items=items, drain=self.rng.random() < 0.02), data, len(items)

    def from_who_attends(self) -> Drawn:
        rng, message = self.rng, exchanges_pb2.AttendRequest()
        chance = rng.random()
        if chance < 0.02:
            fill(rng, message)
        elif chance < 0.6:
            message.subscribe.SetInParent()
            for _ in range(rng.choice((0, 1, 3))):
                each = message.subscribe.subscriptions.add(id=rng.choice(_NUMBERS))
                each.patterns.extend(rng.choices(_PATTERNS, k=rng.choice((0, 1, 1, 3))))
                each.group = rng.choice(("", "", "g", "x" * 500))
        elif chance < 0.8:
            message.unsubscribe.SetInParent()
            message.unsubscribe.ids.extend(rng.choices(_NUMBERS, k=rng.choice((0, 1, 5))))
        else:
            message.dropped.SetInParent()
            for _ in range(rng.choice((0, 1, 5))):
                message.dropped.gaps.add(id=rng.choice(_NUMBERS), messages=rng.choice(_NUMBERS))
        return message, attachment(rng) if rng.random() < 0.1 else [], 1

    def _items(self, kinds: tuple[int, ...]) -> tuple[list[Any], list[bytes]]:
        data: list[bytes] = []
        items = [self._item(kinds, data) for _ in range(self.rng.choice((0, 1, 2, 10)))]
        if self.rng.random() < 0.01:
            data += attachment(self.rng)
        return items, data

    def _item(self, kinds: tuple[int, ...], data: list[bytes]) -> Any:
        rng = self.rng
        is_sane = rng.random() < 0.98
        item = Item(
            kind=rng.choice(kinds if is_sane else (0, *range(1, 8), 99)),
            end=rng.random() < 0.5,
            encoding=rng.choice((0, 0, 1, 99)),
            credit=rng.choice((0, 1, 1 << 16, (1 << 32) - 1)),
            error_type=rng.choice(("", "E", "x" * 5_000)),
            headers=rng.choice(_HEADERS),
        )
        if item.kind == Item.OPEN or not self.opened:
            item.kind = Item.OPEN
            self.opened += 1
            item.number = self.opened
            self._opening(item.open)
        else:
            item.number = rng.randint(1, self.opened)
        if item.kind == Item.ERROR and rng.random() < 0.8:
            fill(rng, item.error)
        if item.kind == Item.VALUE or (item.kind == Item.OPEN and item.open.has_value):
            data.append(rng.randbytes(rng.choice((0, 1, 50, 5_000))))
            item.length = len(data[-1])
        if not is_sane:
            item.headers["h"] = "x" * rng.choice((1, 9_000))
            item.number = rng.choice((item.number, *_NUMBERS))
            item.length = min((1 << 32) - 1, item.length + rng.choice((0, 1, 1 << 31)))
        return item

    def _opening(self, opening: Any) -> None:
        rng = self.rng
        if rng.random() < 0.1:
            fill(rng, opening)
        else:
            opening.endpoint = rng.choice(("single", "rows", "single", "nothing"))
            opening.timeout_ms = rng.choice((1, 50, 5_000, (1 << 32) - 1))
            opening.has_value = rng.random() < 0.7


_OPEN: Final = pb.ServeRequest.Open(endpoint="single", max_in_flight=8, name="vandal")
_ATTEND: Final = exchanges_pb2.AttendRequest.Open(exchange="x")
SIDES: Final[dict[str, tuple[Any, Callable[[Saying], Drawn]]]] = {
    "Call": (pb.CallRequest(), Saying.from_a_caller),
    "Serve": (pb.ServeRequest(open=_OPEN), Saying.from_a_server),
    "Attend": (exchanges_pb2.AttendRequest(open=_ATTEND), Saying.from_who_attends),
}


@pytest.mark.long
@pytest.mark.parametrize("name", SIDES)
async def test_whatever_is_said_behind_a_welcome_is_answered_in_words(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    # What the program of a handler logs of values that are none is its own.
    caplog.set_level(logging.CRITICAL, "hadron.client.endpoints.runs")
    said: list[tuple[str, str]] = []
    items = streams = 0
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await _declare(client)
        async with client.serve("own", _echo), AsyncExitStack() as stack:
            if name == "Call":
                await stack.enter_async_context(client.serve("single", _echo))
                await stack.enter_async_context(client.serve("rows", _rows))
            while items < ENOUGH:
                items += await vandalize(nodes, name, random.Random(streams), said)
                streams += 1
                if streams % 10 == 0:
                    await neighbour(client, streams)
            await neighbour(client, -1)
    check_words(said)
    assert said
    assert all(words.strip() for _, words in said)
    assert_no_traceback(caplog)


async def neighbour(client: Client, number: int) -> None:
    assert await client.call("own", number, timeout_s=30) == number
    async with client.exchange("x").subscribe(f"own.{number}") as subscription:
        await client.exchange("x").publish(f"own.{number}", number)
        with trio.fail_after(30):
            assert (await anext(aiter(subscription))).value == number


async def vandalize(
    nodes: Nodes, name: str, rng: random.Random, said: list[tuple[str, str]]
) -> int:
    """Say things until the stream ends, dozens of messages at most; returns how many items of them
    were heard."""
    opening, draw = SIDES[name]
    items, saying = 0, Saying(rng)
    async with nodes.connection("n1", "vandal") as connection, AsyncExitStack() as stack:
        stream = await stack.enter_async_context(connection.open_stream(method(name), opening))
        assert await stream.receive() is not None
        if name == "Serve":
            await stack.enter_async_context(_calls(connection))
            given = 0
            while given < GIVEN:
                message, _ = await anext(stream)
                given += len(message.items)
        try:
            for _ in range(MESSAGES):
                message, data, count = draw(saying)
                await stream.send(message, data)
                with trio.move_on_after(0.01):
                    await listen(stream, said)
                items += count
            with trio.move_on_after(0.2):
                await listen(stream, said)
        except HadronError as error:
            said.append((name, str(error)))
    return items


async def listen(stream: MessageStream, said: list[tuple[str, str]]) -> None:
    """What a stream tells of its calls, and of subscriptions that are refused."""
    async for message, _ in stream:
        told = [each.error for each in getattr(message, "items", ()) if each.kind == Item.ERROR]
        if isinstance(message, exchanges_pb2.AttendEvent) and message.HasField("refused"):
            told.append(message.refused.error)
        said.extend(("told", str(error_from_message(each))) for each in told)


@asynccontextmanager
async def _calls(connection: Connection) -> AsyncIterator[None]:
    """Some that the server that serves nonsense has."""
    async with connection.open_stream(method("Call"), pb.CallRequest()) as stream:
        assert await stream.receive() is not None
        opening = pb.CallOpening(endpoint="single", timeout_ms=5_000, has_value=True)
        numbers = range(1, GIVEN + 1)
        items = [Item(number=each, kind=Item.OPEN, open=opening, end=True) for each in numbers]
        await stream.send(pb.CallRequest(items=items))
        yield


async def _declare(client: Client) -> None:
    rows = {"input": STREAM, "output": STREAM}
    endpoints: dict[str, dict[str, Any]] = {"own": {}, "single": {}, "rows": rows}
    home: dict[str, Any] = {"replica_set": "local/p0"}
    exchange = SchemaObject(kind="Exchange", name="x", spec=ExchangeSpec(**home))
    specs = {name: EndpointSpec(**home, **spec) for name, spec in endpoints.items()}
    objects = [SchemaObject(kind="Endpoint", name=name, spec=spec) for name, spec in specs.items()]
    await client.apply([*objects, exchange])


async def _echo(value: Any) -> Any:
    return value


async def _rows(values: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for value in values:
        yield value
