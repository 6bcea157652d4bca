"""Server-sent events: what a follower is told, and where it goes on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from hadron.doors.http.tests.support import http_of, nodes_with_doors, serving, until
from hadron.testing.nodes import Nodes

EVENTS = "/v1/streams/s/events"


class Follower:
    """An `EventSource`, as the standard has it: it connects again with the last id."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.others: list[tuple[str, Any]] = []
        self.last_id = ""
        self.comments = 0
        self.connected = 0

    async def follow(self, http: httpx.AsyncClient, **params: str) -> None:
        """Over one connection, until it ends."""
        headers = {"last-event-id": self.last_id} if self.last_id else {}
        async with http.stream("GET", EVENTS, params=params, headers=headers) as answer:
            if answer.status_code != 200:
                raise RuntimeError(f"{answer.status_code} {await answer.aread()!r}")
            assert answer.headers["content-type"] == "text/event-stream"
            self.connected += 1
            given: dict[str, str] = {}
            async for line in answer.aiter_lines():
                if line.startswith(":"):
                    self.comments += 1
                elif line:
                    name, _, value = line.partition(": ")
                    given[name] = value
                else:
                    self._event(given)
                    given = {}

    def _event(self, given: dict[str, str]) -> None:
        self.last_id = given.get("id", self.last_id)
        if "data" not in given:
            return
        data = json.loads(given["data"])
        if "event" in given:
            self.others.append((given["event"], data))
        else:
            self.records.append(data)

    @property
    def values(self) -> list[Any]:
        return [each["value"] for each in self.records]


@asynccontextmanager
async def following(http: httpx.AsyncClient, **params: str) -> AsyncIterator[Follower]:
    follower = Follower()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: follower.follow(http, **params))
        await until("connected", lambda: bool(follower.connected and follower.last_id))
        yield follower
        nursery.cancel_scope.cancel()


async def publish(http: httpx.AsyncClient, *values: Any) -> None:
    for value in values:
        assert (await http.post("/v1/streams/s", json=value)).status_code == 200


async def test_records_come_as_they_are_published(http: httpx.AsyncClient) -> None:
    await publish(http, "old")
    async with following(http) as follower:
        assert follower.last_id == "local/p0:1", "told before the first record"
        await publish(http, 1, {"a": 2})
        await until("both", lambda: len(follower.records) == 2)
        assert follower.values == [1, {"a": 2}]
        assert follower.last_id == "local/p0:3"


async def test_it_goes_on_behind_the_last_id(http: httpx.AsyncClient) -> None:
    await publish(http, 0, 1, 2)
    follower = Follower()
    follower.last_id = "local/p0:1"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follower.follow, http)
        await until("the rest", lambda: len(follower.records) == 2)
        nursery.cancel_scope.cancel()
    assert follower.values == [1, 2]


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
        await until("it", lambda: bool(follower.records))
        (found,) = follower.records
        assert (found["specversion"], found["data"]) == ("1.0", {"a": 1})


# httpx leaves a request's body behind when its connection breaks.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_each_record_comes_once_while_leaders_die(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    """A follower connects again, each time at another node, while the leader is killed."""
    nodes = nodes_with_doors(tmp_path, 3, nursery)
    async with serving(nodes) as http:
        follower = Follower()
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
            await until("all", lambda: len(follower.records) >= published)
            inner.cancel_scope.cancel()
        assert follower.values == list(range(published))
        assert [each["offset"] for each in follower.records] == list(range(published))
        assert follower.connected >= 4


async def _reconnect(nodes: Nodes, names: tuple[str, ...], follower: Follower) -> None:
    params = {"from": "earliest"}
    while True:
        for name in names:
            async with http_of(nodes, name) as http:
                with trio.move_on_after(0.5):
                    try:
                        await follower.follow(http, **params)
                    except (httpx.TransportError, RuntimeError):
                        await trio.sleep(0.05)
