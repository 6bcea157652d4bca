"""Who would rather speak another protocol is served in this one, as if it had not said so."""

from __future__ import annotations

import json
import re

import httpx
import pytest
import trio

from hadron.doors.http.tests.support import HTTP_PORT, Events, _Stream, raw
from hadron.testing.nodes import CLIENT, Nodes

DOOR = f"n1:{HTTP_PORT}"
STREAM = "/v1/streams/s"

H2C = (
    b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"
    b"http2-settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
)
"""As `curl --http2` says it."""

LAST = f"GET {STREAM} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode()


def request(method: str, path: str, *headers: bytes, upgrade: bytes = H2C) -> bytes:
    lines = b"".join(each + b"\r\n" for each in headers)
    return f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n".encode() + upgrade + lines + b"\r\n"


def post(path: str, media: str, body: bytes) -> bytes:
    headers = f"content-type: {media}\r\ncontent-length: {len(body)}".encode()
    return request("POST", path, headers) + body


async def told(nodes: Nodes, *pieces: bytes) -> list[str]:
    """How the answers begin, to what is asked and to one request behind it."""
    text = (await raw(nodes.network, DOOR, *pieces, LAST)).decode()
    return re.findall(r"HTTP/1\.1 \d+ \w+", text)


async def values(http: httpx.AsyncClient) -> list[object]:
    found = (await http.get(f"{STREAM}/records")).json()["records"]
    return [each["value"] for each in found]


OK = "HTTP/1.1 200 OK"


async def test_text(http: httpx.AsyncClient, nodes: Nodes) -> None:
    assert await told(nodes, post(STREAM, "text/plain", b"an order")) == [OK, OK]
    assert await values(http) == ["an order"]


async def test_lines(http: httpx.AsyncClient, nodes: Nodes) -> None:
    assert await told(nodes, post(STREAM, "application/x-ndjson", b"1\n2\n3\n")) == [OK, OK]
    assert await values(http) == [1, 2, 3]


async def test_chunks_byte_by_byte(http: httpx.AsyncClient, nodes: Nodes) -> None:
    head = request(
        "POST", STREAM, b"content-type: application/x-ndjson", b"transfer-encoding: chunked"
    )
    whole = head + b"4\r\n1\n2\n\r\n2\r\n3\n\r\n0\r\n\r\n"
    assert await told(nodes, *(whole[at : at + 1] for at in range(len(whole)))) == [OK, OK]
    assert await values(http) == [1, 2, 3]


async def test_several_in_one_piece(http: httpx.AsyncClient, nodes: Nodes) -> None:
    body = json.dumps({"consumer": "c", "wait_s": 0}).encode()
    poll = post(f"{STREAM}/groups/g/poll", "application/json", body)
    pieces = [post(STREAM, "text/plain", b"a"), poll, request("GET", STREAM)]
    assert await told(nodes, b"".join(pieces)) == [OK] * 4
    assert await values(http) == ["a"]


async def test_a_body_that_is_waited_for(http: httpx.AsyncClient, nodes: Nodes) -> None:
    head = request(
        "POST", STREAM, b"content-type: text/plain", b"expect: 100-continue", b"content-length: 1"
    )
    assert await told(nodes, head, b"1") == ["HTTP/1.1 100 Continue", OK, OK]
    assert await values(http) == ["1"]


@pytest.mark.parametrize(
    "upgrade", [H2C, b"connection: keep-alive, upgrade\r\nupgrade: websocket\r\n"]
)
async def test_events_go_on(http: httpx.AsyncClient, nodes: Nodes, upgrade: bytes) -> None:
    stream = _Stream(await nodes.network.host(CLIENT).dial(DOOR))
    await stream.write(request("GET", f"{STREAM}/events?from=earliest", upgrade=upgrade))
    events = Events()
    with trio.fail_after(60):
        while not events.last_id:
            events.feed((await stream.read(1 << 16)).decode())
        await http.post(STREAM, json="later")
        text = ""
        while "later" not in text:
            data = await stream.read(1 << 16)
            assert data, "the answer goes on"
            text += data.decode()
    await stream.aclose()


async def test_what_is_wrong_with_it_is_told(http: httpx.AsyncClient, nodes: Nodes) -> None:
    del http
    asked = request("POST", STREAM, b"content-length: 1", b"transfer-encoding: chunked")
    answer = await raw(nodes.network, DOOR, asked + b"1")
    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_a_tunnel_is_refused(http: httpx.AsyncClient, nodes: Nodes) -> None:
    del http
    answer = await raw(nodes.network, DOOR, b"CONNECT s:1 HTTP/1.1\r\nhost: localhost\r\n\r\nGET /")
    assert answer.startswith(b"HTTP/1.1 400 ")
