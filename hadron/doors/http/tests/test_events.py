"""Server-sent events: what a follower is told, and where it goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from hadron.doors.http import openapi
from hadron.doors.http.door import Door
from hadron.doors.http.table import OPERATIONS
from hadron.doors.http.tests.support import Events, http_of, nodes_with_doors, serving, until
from hadron.node import http_door
from hadron.testing.nodes import Nodes

EVENTS = "/v1/streams/s/events"


@asynccontextmanager
async def following(http: httpx.AsyncClient, **params: str) -> AsyncIterator[Events]:
    follower = Events()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: follower.follow(http, EVENTS, params))
        await until("connected", lambda: bool(follower.connected and follower.last_id))
        yield follower
        nursery.cancel_scope.cancel()


def values(follower: Events) -> list[Any]:
    return [each["value"] for each in follower.data]


async def publish(http: httpx.AsyncClient, *values: Any) -> None:
    for value in values:
        assert (await http.post("/v1/streams/s", json=value)).status_code == 200


async def test_records_come_as_they_are_published(http: httpx.AsyncClient) -> None:
    await publish(http, "old")
    async with following(http) as follower:
        assert follower.last_id == "local/p0:1", "told before the first record"
        await publish(http, 1, {"a": 2})
        await until("both", lambda: len(follower.data) == 2)
        assert values(follower) == [1, {"a": 2}]
        assert follower.last_id == "local/p0:3"


async def test_it_goes_on_behind_the_last_id(http: httpx.AsyncClient) -> None:
    await publish(http, 0, 1, 2)
    follower = Events()
    follower.last_id = "local/p0:1"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follower.follow, http, EVENTS)
        await until("the rest", lambda: len(follower.data) == 2)
        nursery.cancel_scope.cancel()
    assert values(follower) == [1, 2]


@pytest.mark.parametrize(
    ("headers", "params", "status"),
    [
        ({"last-event-id": "nonsense"}, {}, 400),
        ({"last-event-id": "local/p0:9"}, {}, 416),
        ({"last-event-id": "other/p0:0"}, {}, 404),
        ({}, {"from": "5"}, 416),
        ({}, {"from": "soon"}, 400),
        ({}, {"format": "xml"}, 400),
        ({"accept": "text/html"}, {}, 406),
    ],
)
async def test_what_is_wrong_has_a_status(
    http: httpx.AsyncClient, headers: dict[str, str], params: dict[str, str], status: int
) -> None:
    answer = await http.get(EVENTS, headers=headers, params=params)
    assert answer.status_code == status, answer.text


async def test_as_cloudevents(http: httpx.AsyncClient) -> None:
    await publish(http, {"a": 1})
    async with following(http, **{"from": "earliest", "format": "cloudevents"}) as follower:
        await until("it", lambda: bool(follower.data))
        (found,) = follower.data
        assert (found["specversion"], found["data"]) == ("1.0", {"a": 1})


# httpx leaves a request's body behind when its connection breaks.
@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_each_record_comes_once_while_leaders_die(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    """A follower connects again, each time at another node, while the leader is killed."""
    nodes = nodes_with_doors(tmp_path, 3, nursery)
    async with serving(nodes) as http:
        follower = Events()
        names = ("n2", "n1", "n3")
        async with trio.open_nursery() as inner:
            inner.start_soon(_reconnect, nodes, names, follower)
            await until("connected", lambda: bool(follower.connected))
            published = 0
            for round_ in range(3):
                for _ in range(20):
                    headers = {"idempotency-key": f"r-{published}"}
                    while True:
                        try:
                            answer = await http.post(
                                "/v1/streams/s", json=published, headers=headers
                            )
                        except httpx.TransportError:
                            await trio.sleep(0.05)
                            continue
                        if answer.status_code == 200:
                            break
                    published += 1
                connected = round_ + 2
                await until("elsewhere", lambda: follower.connected >= connected)  # noqa: B023
                await nodes.crash("n1")
                await nodes.start("n1")
                await nodes.wait_serving()
            await until("all", lambda: len(follower.data) >= published)
            inner.cancel_scope.cancel()
        assert values(follower) == list(range(published))
        assert [each["offset"] for each in follower.data] == list(range(published))
        assert follower.connected >= 4


async def _reconnect(nodes: Nodes, names: tuple[str, ...], follower: Events) -> None:
    params = {"from": "earliest"}
    while True:
        for name in names:
            async with http_of(nodes, name) as http:
                with trio.move_on_after(0.5):
                    try:
                        await follower.follow(http, EVENTS, params)
                    except (httpx.TransportError, RuntimeError):
                        await trio.sleep(0.05)


@pytest.mark.parametrize("http2", [False, True])
@pytest.mark.parametrize("path", ["/v1/streams/s/events", "/v1/exchanges/x/messages?pattern=a"])
async def test_a_head_alone_is_refused(
    http: httpx.AsyncClient, nodes: Nodes, path: str, *, http2: bool
) -> None:
    """It went on for ever, without a word, and took the place of somebody who reads."""
    declared = {"kind": "Exchange", "name": "x", "replica_set": "local/p0"}
    assert (await http.post("/v1/schema", json=declared)).status_code == 200
    async with http_of(nodes, "n1", http2=http2) as other:
        with trio.fail_after(30):
            answer = await other.head(path)
            assert (answer.status_code, answer.headers["allow"]) == (405, "GET")
            assert answer.content == b""
            assert (await other.head("/v1/streams/s")).status_code == 200
            assert (await other.get("/v1/streams/s")).status_code == 200


def test_the_document_says_whose_head_there_is() -> None:
    assert {each.name for each in OPERATIONS if each.is_safe and not each.has_head} == {
        "events",
        "messages",
    }
    document = openapi.document(OPERATIONS)
    assert "HEAD is answered where GET is" in document["info"]["description"]
    for path in ("/v1/streams/{stream}/events", "/v1/exchanges/{exchange}/messages"):
        assert "405" in document["paths"][path]["get"]["responses"]


async def test_who_comes_while_the_node_stops_is_told_so(
    tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was 500, which nobody tries again."""
    doors: list[Door] = []

    class Kept(Door):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            doors.append(self)

    monkeypatch.setattr(http_door, "Door", Kept)
    async with serving(nodes_with_doors(tmp_path, 1, nursery)) as http:
        declared = {"kind": "Exchange", "name": "x", "replica_set": "local/p0"}
        assert (await http.post("/v1/schema", json=declared)).status_code == 200
        (door,) = doors
        door.draining.begin()
        for path in (EVENTS, "/v1/exchanges/x/messages"):
            answer = await http.get(path)
            told = answer.json()
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert (told["code"], told["retryable"]) == ("ShuttingDownError", True)
