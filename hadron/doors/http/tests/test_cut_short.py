"""Bodies that stall or end half way: whoever sent them is told what was done with them by then."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
import trio

from hadron.doors.http import limits as bounds
from hadron.doors.http.limits import Limits
from hadron.doors.http.tests.support import HTTP_PORT, NDJSON, Http2, _Stream, declare, until
from hadron.model.services import STREAM, EndpointSpec, ExchangeSpec
from hadron.node import http_door
from hadron.testing.nodes import CLIENT, Nodes

SET = "local/p0"
DOOR = f"n1:{HTTP_PORT}"
RECORDS = "/v1/streams/s"
MESSAGES = "/v1/exchanges/e?topic=a"


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_door, "Limits", lambda: Limits(stall_s=0.3))


@pytest.fixture
async def http(nodes: Nodes, http: httpx.AsyncClient) -> httpx.AsyncClient:
    async with nodes.client("owner") as client:
        await declare(client, "Exchange", "e", ExchangeSpec(replica_set=SET))
    return http


async def told(
    nodes: Nodes, path: str, body: bytes, rest: Callable[[], Awaitable[bytes]] | None = None
) -> dict[str, Any]:
    """What is answered to the beginning of a body in chunks, and maybe what comes later."""
    stream = _Stream(await nodes.network.host(CLIENT).dial(DOOR))
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\n"
    await stream.write(head.encode() + b"transfer-encoding: chunked\r\n\r\n" + body)
    if rest is not None:
        await stream.write(await rest())
    said = b""
    while not said.endswith(b"}"):
        said += await stream.read(1 << 16)
    await stream.aclose()
    found: dict[str, Any] = json.loads(said.partition(b"\r\n\r\n")[2])
    return found


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.mark.parametrize("path", [RECORDS, MESSAGES])
async def test_lines_that_stall_are_told_how_many_were_published(
    http: httpx.AsyncClient, nodes: Nodes, path: str
) -> None:
    """Who sends all of it again, because it may be retried, would have them twice."""
    del http
    problem = await told(nodes, path, chunk(b"1\n2\n3"))
    assert (problem["status"], problem["published"], problem["lost"]) == (408, 2, 0)
    assert not problem["retryable"]
    problem = await told(nodes, path, chunk(b"1"))
    assert (problem["status"], problem["published"], problem["retryable"]) == (408, 0, True)


async def test_lines_before_what_is_no_chunk_are_told(
    http: httpx.AsyncClient, nodes: Nodes
) -> None:
    async def rest() -> bytes:
        while not (await http.get(RECORDS + "/records")).json()["records"]:
            pass
        return b"zz\r\n"

    problem = await told(nodes, RECORDS, chunk(b"1\n2"), rest)
    assert (problem["status"], problem["published"], problem["retryable"]) == (400, 1, False)


@pytest.mark.parametrize("path", [RECORDS, MESSAGES])
async def test_lines_before_one_that_is_too_long_are_told(
    http: httpx.AsyncClient, path: str
) -> None:
    lines = b"1\n2\n" + b"3" * (bounds.MAX_LINE_BYTES + 1)
    answer = await http.post(path, content=lines, headers=NDJSON)
    assert (answer.status_code, answer.json()["published"]) == (413, 2)


@pytest.mark.parametrize("path", [RECORDS, MESSAGES])
async def test_the_same_over_http2(http: httpx.AsyncClient, nodes: Nodes, path: str) -> None:
    del http
    stream = _Stream(await nodes.network.host(CLIENT).dial(DOOR))
    peer = Http2(stream, "localhost")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.run)
        number = await peer.ask("POST", path, content_type="application/x-ndjson")
        await peer.send(number, b"1\n2\n3")
        await until("answered", lambda: number in peer.whole)
        nursery.cancel_scope.cancel()
    await stream.aclose()
    problem = json.loads(peer.bodies[number])
    assert peer.statuses[number] == problem["status"] == 408
    assert (problem["published"], problem["retryable"]) == (2, False)


async def test_a_call_whose_input_stalls_was_run(http: httpx.AsyncClient, nodes: Nodes) -> None:
    del http

    async def gather(values: AsyncIterator[Any]) -> int:
        return len([each async for each in values])

    async with nodes.client("server") as client:
        spec = EndpointSpec(replica_set=SET, input=STREAM)
        await declare(client, "Endpoint", "gather", spec)
        async with client.serve("gather", gather):
            problem = await told(nodes, "/v1/endpoints/gather", chunk(b"1\n2\n"))
    assert (problem["status"], problem["retryable"]) == (408, False)


async def test_a_body_that_is_refused_half_way_ends_no_poll_beside_it(
    http: httpx.AsyncClient, nodes: Nodes
) -> None:
    stream = _Stream(await nodes.network.host(CLIENT).dial(DOOR))
    peer = Http2(stream, "localhost")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.run)
        poll = await peer.ask("POST", f"{RECORDS}/groups/g/poll", content_type="application/json")
        await peer.send(poll, b'{"consumer": "c"}', end=True)
        large = await peer.ask("POST", RECORDS, content_length="20000000")
        await until("refused", lambda: large in peer.whole)
        assert peer.statuses[large] == json.loads(peer.bodies[large])["status"] == 413
        await http.post(RECORDS, json="for the poll")
        await until("polled", lambda: poll in peer.whole)
        assert b"for the poll" in peer.bodies[poll]
        nursery.cancel_scope.cancel()
    await stream.aclose()
