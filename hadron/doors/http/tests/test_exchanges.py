"""Messages of exchanges over HTTP: in, out, and what readers are told that they have missed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from hadron.client import Message
from hadron.doors.http.limits import Limits
from hadron.doors.http.tests.support import (
    HTTP_PORT,
    NDJSON,
    Events,
    _Stream,
    declare,
    http_of,
    nodes_with_doors,
    serving,
    until,
)
from hadron.model.services import ExchangeSpec
from hadron.testing.nodes import CLIENT, Nodes

SET = "local/p0"
PRICES = "/v1/exchanges/prices"
MESSAGES = PRICES + "/messages"
CE = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/shop", "ce-type": "order.placed"}


@pytest.fixture
async def prices(nodes: Nodes, http: httpx.AsyncClient) -> httpx.AsyncClient:
    async with nodes.client("owner") as client:
        await declare(client, "Exchange", "prices", ExchangeSpec(replica_set=SET, to_stream="s"))
    return http


@asynccontextmanager
async def reading(http: httpx.AsyncClient, **params: str) -> AsyncIterator[Events]:
    events = Events()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: events.follow(http, MESSAGES, params))
        await until("subscribed", lambda: events.last_id == "live")
        yield events
        nursery.cancel_scope.cancel()


async def publish(http: httpx.AsyncClient, topic: str, value: Any) -> dict[str, Any]:
    answer = await http.post(PRICES, params={"topic": topic}, json=value)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def until_subscribed(http: httpx.AsyncClient, count: int = 1) -> None:
    with trio.fail_after(20):
        while (await http.get(PRICES)).json()["subscriptions"] != count:  # noqa: ASYNC110
            await trio.sleep(0.02)


# --- in -------------------------------------------------------------------------------------------


async def test_what_is_published_reaches_programs(nodes: Nodes, prices: httpx.AsyncClient) -> None:
    async with nodes.client() as client, client.exchange("prices").subscribe("eu.>") as messages:
        found: list[Message] = []
        sent = await publish(prices, "eu.ibm", {"bid": 1.50})
        assert sent == {"exchange": "prices", "messages": 1, "deliveries": 1, "dropped": 0}
        assert (await publish(prices, "us.ibm", 0))["deliveries"] == 0
        answer = await prices.post(
            PRICES,
            params={"topic": "eu.sap", "key": "k"},
            content="grün".encode(),
            headers={"content-type": "text/markdown"},
        )
        assert answer.status_code == 200
        answer = await prices.post(
            PRICES,
            params={"topic": "eu.default", "lines": "messages"},
            content=b'{"value": 1}\n\n{"value": 2, "topic": "eu.x", "key": "a", "headers": '
            b'{"b": "c"}}\n',
            headers=NDJSON,
        )
        assert answer.json()["messages"] == answer.json()["deliveries"] == 2
        event = CE | {"ce-type": "eu.placed"}
        assert (await prices.post(PRICES, json={"n": 1}, headers=event)).status_code == 200
        with trio.fail_after(20):
            while len(found) < 5:
                found.append(await anext(messages))
        assert [(each.topic, each.value) for each in found] == [
            ("eu.ibm", {"bid": 1.5}),
            ("eu.sap", "grün"),
            ("eu.default", 1),
            ("eu.x", 2),
            ("eu.placed", {"n": 1}),
        ]
        assert (found[1].key, found[1].content_type) == ("k", "text/markdown")
        assert (found[3].key, dict(found[3].headers)) == ("a", {"b": "c"})


async def test_lines_of_any_length_come_in_order(nodes: Nodes, prices: httpx.AsyncClient) -> None:
    count = 20_000
    async with (
        nodes.client() as client,
        client.exchange("prices").subscribe(">", max_buffer_bytes=64 << 20) as messages,
        trio.open_nursery() as nursery,
    ):
        seen: list[Any] = []

        async def take() -> None:
            async for each in messages:
                seen.append(each.value)  # noqa: PERF401 - looked at meanwhile

        nursery.start_soon(take)
        body = b"".join(b"%d\n" % each for each in range(count))
        answer = await prices.post(PRICES, params={"topic": "a"}, content=body, headers=NDJSON)
        assert (answer.status_code, answer.json()["messages"]) == (200, count)
        await until("all", lambda: len(seen) == count)
        assert seen == list(range(count))
        nursery.cancel_scope.cancel()


async def test_what_is_logged_says_where(prices: httpx.AsyncClient) -> None:
    answer = await prices.post(
        PRICES, params={"topic": "a.b", "logged": "true"}, content=b"1\n2\n3\n", headers=NDJSON
    )
    assert answer.json()["logged"] == {
        "stream": "s",
        "partition": SET,
        "count": 3,
        "first_offset": 0,
        "last_offset": 2,
    }
    records = (await prices.get("/v1/streams/s/records")).json()["records"]
    assert [(each["type"], each["value"]) for each in records] == [
        ("a.b", 1),
        ("a.b", 2),
        ("a.b", 3),
    ]


# httpx leaves a request's body behind that nobody wants.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_what_is_wrong_has_a_status(prices: httpx.AsyncClient) -> None:
    topic = {"topic": "a"}
    for path, asked, status in (
        ("/v1/exchanges/none", {"json": 1, "params": topic}, 404),
        (PRICES, {"json": 1}, 400),
        (PRICES, {"json": 1, "params": {"topic": "a b"}}, 400),
        (PRICES, {"json": 1, "params": {"topic": "a.*"}}, 400),
        (PRICES, {"json": 1, "params": topic, "headers": CE}, 400),
        (PRICES, {"json": 1, "headers": CE | {"ce-type": "a b"}}, 400),
        (PRICES, {"content": b"{", "params": topic, "headers": NDJSON}, 400),
        (PRICES, {"content": b"1", "headers": NDJSON}, 400),
        (PRICES, {"content": b"1", "params": topic | {"key": "a"}, "headers": NDJSON}, 400),
        (PRICES, {"content": b"1", "params": topic | {"lines": "words"}, "headers": NDJSON}, 400),
        (PRICES, {"content": b"x" * (1 << 21), "params": topic}, 413),
        (PRICES, {"content": b"1" * (3 << 20), "params": topic, "headers": NDJSON}, 413),
        (PRICES, {"content": b"x" * (17 << 20), "params": topic}, 413),
    ):
        answer = await prices.post(path, **asked)
        assert answer.status_code == status, (str(asked)[:90], answer.text)
    for path, params, headers, status in (
        ("/v1/exchanges/none", {}, {}, 404),
        ("/v1/exchanges/none/messages", {}, {}, 404),
        (MESSAGES, {"pattern": "a.>.b"}, {}, 400),
        (MESSAGES, {"pattern": ""}, {}, 400),
        (MESSAGES, {"pattern": "a " * 101}, {}, 400),
        (MESSAGES, {"patern": "a"}, {}, 400),
        (MESSAGES, {}, {"accept": "text/html"}, 406),
    ):
        answer = await prices.get(path, params=params, headers=headers)
        assert answer.status_code == status, (path, params, answer.text)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("topic", ["a b", "a..b", "x" * 300, "x" * 70_000])
async def test_what_is_no_topic_is_called_so(prices: httpx.AsyncClient, topic: str) -> None:
    line = json.dumps({"topic": topic, "value": 1}).encode()
    lines: dict[str, Any] = {"content": line, "headers": NDJSON, "params": {"lines": "messages"}}
    event: dict[str, Any] = {
        "json": {"specversion": "1.0", "id": "1", "source": "/s", "type": topic}
    }
    asked: list[dict[str, Any]] = [
        lines,
        event | {"headers": {"content-type": "application/cloudevents+json"}},
    ]
    if len(topic) < 1_000:
        asked.append({"json": 1, "params": {"topic": topic}})
    for each in asked:
        answer = await prices.post(PRICES, **each)
        told = answer.json()
        assert answer.status_code == 400, told
        assert "is not a topic" in told["detail"], told
        assert "dot segments" in told["hint"]


async def test_lines_before_a_bad_one_are_told(prices: httpx.AsyncClient) -> None:
    body = b"1\n" * 700 + b"{\n"
    answer = await prices.post(PRICES, params={"topic": "a"}, content=body, headers=NDJSON)
    told = answer.json()
    assert (answer.status_code, told["published"], told["unknown"]) == (400, 500, 0)
    assert told["detail"].startswith("line 701: ")


# --- out ------------------------------------------------------------------------------------------


async def test_messages_come_as_events(prices: httpx.AsyncClient) -> None:
    async with reading(prices, pattern="eu.* us.>") as events:
        for topic in ("eu.ibm", "eu.ibm.old", "us.a.b"):
            await publish(prices, topic, {"on": topic})
        answer = await prices.post(PRICES, params={"topic": "eu.raw", "key": "k"}, content=b"\xff")
        assert answer.json()["deliveries"] == 1
        await until("three", lambda: len(events.data) == 3)
        first, second, third = events.data
        assert (first["topic"], first["value"]) == ("eu.ibm", {"on": "eu.ibm"})
        assert second["value"] == {"on": "us.a.b"}
        assert (third["key"], third["value_base64"], "value" in third) == ("k", "/w==", False)
        told = (await prices.get(PRICES)).json()
        assert (told["subscriptions"], told["listed"][0]["patterns"]) == (1, ["eu.*", "us.>"])
    await until_subscribed(prices, 0)


# httpx leaves an answer behind that was not read to its end.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_messages_come_as_lines(prices: httpx.AsyncClient) -> None:
    headers = {"accept": "application/x-ndjson"}
    async with prices.stream("GET", MESSAGES, headers=headers) as answer:
        assert answer.headers["content-type"] == "application/x-ndjson"
        await publish(prices, "eu.ibm", "two\nlines")
        async for line in answer.aiter_lines():
            assert json.loads(line)["value"] == "two\nlines"
            break


async def test_a_group_shares_them(nodes: Nodes, prices: httpx.AsyncClient) -> None:
    async with (
        http_of(nodes, "n1") as other,
        reading(prices, group="g") as one,
        reading(other, group="g") as two,
    ):
        for each in range(10):
            await publish(prices, "a", each)
        await until("all", lambda: len(one.data) + len(two.data) == 10)
        values = [each["value"] for each in one.data + two.data]
        assert sorted(values) == list(range(10))
        assert one.data
        assert two.data


async def test_who_comes_back_is_told_that_it_was_away(prices: httpx.AsyncClient) -> None:
    async with reading(prices) as events:
        assert not events.others
    async with trio.open_nursery() as nursery:
        nursery.start_soon(events.follow, prices, MESSAGES)
        await until("told", lambda: events.others == [("interrupted", {})])
        nursery.cancel_scope.cancel()


@pytest.mark.long
async def test_a_slow_reader_is_told_what_it_missed_and_nobody_waits_for_it(
    prices: httpx.AsyncClient, nodes: Nodes
) -> None:
    stream = _Stream(await nodes.network.host(CLIENT).dial(f"n1:{HTTP_PORT}"))
    head = f"GET {MESSAGES} HTTP/1.1\r\nhost: localhost\r\n\r\n"
    await stream.write(head.encode())
    await until_subscribed(prices)
    async with reading(prices) as quick:
        for each in range(100):
            await publish(prices, "a", [each, "x" * 100_000])
            await until("each", lambda: len(quick.data) > each)  # noqa: B023
        assert not quick.others, "who reads misses none"
    slow = Events()
    text = b""
    await publish(prices, "a", "last")
    with trio.fail_after(60):
        while b'"last"' not in text:
            text += await stream.read(1 << 20)
    slow.feed(_unchunked(text[text.index(b"\r\n\r\n") + 4 :]))
    missed = sum(data["messages"] for kind, data in slow.others if kind == "missed")
    assert missed > 0
    assert missed + len(slow.data) == 101, "each has come, or was told of"
    await stream.aclose()


async def test_who_reads_nothing_is_cut_off(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = Limits(stall_s=1.0)
    monkeypatch.setattr("hadron.node.http_door.Limits", lambda: quick)
    nodes = nodes_with_doors(tmp_path, 1, nursery)
    async with serving(nodes) as http:
        async with nodes.client("owner") as client:
            await declare(client, "Exchange", "prices", ExchangeSpec(replica_set=SET))
        stream = _Stream(await nodes.network.host(CLIENT).dial(f"n1:{HTTP_PORT}"))
        await stream.write(f"GET {MESSAGES} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        await until_subscribed(http)
        for _ in range(100):
            await publish(http, "a", "x" * 100_000)
        await until_subscribed(http, 0)
        await stream.aclose()


def _unchunked(data: bytes) -> str:
    parts = []
    while data:
        size, _, rest = data.partition(b"\r\n")
        parts.append(rest[: int(size, 16)])
        data = rest[int(size, 16) + 2 :]
    return b"".join(parts).decode()


async def test_messages_outlive_their_leader(tmp_path: Path, nursery: trio.Nursery) -> None:
    """A reader at a replica's door is told that its leader was away, and goes on."""
    nodes = nodes_with_doors(tmp_path, 3, nursery)
    async with serving(nodes), http_of(nodes, "n2") as http:
        async with nodes.client("owner") as client:
            await declare(client, "Exchange", "prices", ExchangeSpec(replica_set=SET))
        async with reading(http) as events:
            await publish(http, "a", 1)
            await until("the first", lambda: len(events.data) == 1)
            await nodes.crash("n1")
            await nodes.start("n1")
            await nodes.wait_serving()
            await until_subscribed(http)
            await publish(http, "a", 2)
            await until("the second", lambda: len(events.data) == 2)
            assert events.others == [("interrupted", {})]
            assert events.connected == 1


async def test_a_reader_of_an_exchange_that_is_deleted_is_told(
    nodes: Nodes, prices: httpx.AsyncClient
) -> None:
    async with trio.open_nursery() as nursery:
        events = Events()
        nursery.start_soon(events.follow, prices, MESSAGES)
        await until("subscribed", lambda: events.last_id == "live")
        async with nodes.client("owner") as client:
            await client.delete(("Exchange", "default", "prices"), allow_destructive=True)
        await until("told", lambda: bool(events.others))
    ((kind, data),) = events.others
    assert (kind, data["code"]) == ("error", "NotFoundError")
