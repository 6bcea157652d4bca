"""The door, given what nobody should send: no crash, no 500, no hang.

In one process and without sockets: the application with a node's door behind it, the parser with
whatever bytes. What is asked for is mostly well-formed, with something wrong in it.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hadron.client import IncomingCall
from hadron.client.connecting.ports import ClientPorts
from hadron.doors.http.app import HttpApp
from hadron.doors.http.asgi import Message
from hadron.doors.http.door import Door
from hadron.doors.http.draining import Draining
from hadron.doors.http.guard import Guard
from hadron.doors.http.h1 import Connection
from hadron.doors.http.limits import Limits
from hadron.doors.http.table import OPERATIONS
from hadron.doors.http.tests.support import declare
from hadron.model.services import STREAM, EndpointSpec, ExchangeSpec
from hadron.testing.nodes import CLIENT, Nodes

SET = "local/p0"

_CASES = 5_000
_PARSED = 3_000
_DRAWN = 250
_ANSWER_S = 30.0

_MEDIA = (
    "application/json",
    "application/x-ndjson",
    "application/cloudevents+json",
    "application/cloudevents-batch+json",
    "application/cloudevents+xml",
    "text/plain",
    "text/plain; charset=utf-16",
    "application/octet-stream",
    "application/yaml",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "",
    ";",
    "a/b/c",
)
_NAMES = st.sampled_from(
    ("s", "s", "s", "in", "out", "both", "none", "a b", "..", "ü", "s%2Fs", "", "x" * 200)
)
_TEXT = st.text(max_size=20)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=10,
)
_EVENT = st.fixed_dictionaries(
    {},
    optional={
        "specversion": st.sampled_from(("1.0", "1.0", "0.3", 1)),
        "id": _TEXT | st.just("e"),
        "source": _TEXT | st.just("/a"),
        "type": _TEXT | st.just("t"),
        "data": _JSON,
        "data_base64": _TEXT,
        "time": _TEXT | st.just("2013-01-01T00:00:00Z"),
        "datacontenttype": st.sampled_from(_MEDIA),
        "partitionkey": _TEXT,
        "hadronkey": _TEXT,
        "hadronheaders": _TEXT,
        "own": _JSON,
    },
)
_MEMBER = st.fixed_dictionaries(
    {},
    optional={
        "consumer": _TEXT | st.just("c"),
        "deliveries": st.lists(_TEXT, max_size=3) | _JSON,
        "wait_s": st.sampled_from((0, 0.0, -1, "x", 1e400, None)),
        "max_records": st.integers(),
        "again": st.booleans(),
        "start": _TEXT,
        "order": _TEXT | st.just("key"),
        "ack_deadline_s": st.floats(),
        "to": _TEXT,
        "delay_s": st.floats(),
        "value": _JSON,
        "key": _TEXT,
        "headers": st.dictionaries(_TEXT, _TEXT, max_size=2),
        "kind": st.sampled_from(("Stream", "Namespace", "strem")),
        "name": _TEXT,
    },
)


def _written(value: Any) -> bytes:
    return json.dumps(value).encode(errors="surrogatepass")


_BODIES = st.one_of(
    st.binary(max_size=60),
    _JSON.map(_written),
    _EVENT.map(_written),
    st.lists(_EVENT, max_size=3).map(_written),
    _MEMBER.map(_written),
    st.lists(st.binary(max_size=12) | _JSON.map(_written), max_size=4).map(b"\n".join),
    st.sampled_from((b"[" * 5_000, b'{"a":' * 3_000, b'"\\ud800"', b"1e999", b"\xff\xfe", b"\0")),
    _EVENT.map(lambda each: _written(each)[:-2]),
)
_VALUES = st.sampled_from(
    (
        b"",
        b"0",
        b"-1",
        b"1",
        b"99999999999999999999",
        b"earliest",
        b"latest",
        b"true",
        b"x",
        b"local/p0",
        b"local/p0:0",
        b"local/p0:0,local/p0:1",
        b"@0",
        b"@99999999999999",
        b"-1h",
        b"-1000000d",
        b"2013-01-01",
        b"%ff",
        b"%",
        b"%00",
        b"a=b",
        b"default",
        b"records",
        b"\xc3\xbc",
        b"0001-01-01T00:00:00Z",
        b"9999-12-31T23:59:59Z",
        b"NaN",
        b"1.5",
        b"cloudevents",
    )
)
_PARAMETERS = st.sampled_from(
    (
        b"from",
        b"limit",
        b"partition",
        b"namespace",
        b"key",
        b"type",
        b"id",
        b"timestamp_ms",
        b"expect_offset",
        b"expect_key_offset",
        b"lines",
        b"format",
        b"kind",
        b"name",
        b"dry_run",
        b"force",
        b"nonsense",
        b"",
    )
)
_QUERIES = st.lists(st.tuples(_PARAMETERS, _VALUES), max_size=3).map(
    lambda pairs: b"&".join(b"%b=%b" % pair for pair in pairs)
) | st.binary(max_size=12)
_CE = st.sampled_from((b"ce-id", b"ce-source", b"ce-type", b"ce-time", b"ce-subject", b"ce-own"))
_HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                b"accept",
                b"content-length",
                b"idempotency-key",
                b"last-event-id",
                b"ce-specversion",
                b"ce-Bad",
                b"x-own",
                b"content-type",
                b"transfer-encoding",
            )
        )
        | _CE,
        st.sampled_from(
            (
                b"1.0",
                b"",
                b"text/event-stream",
                b"application/json;q=x",
                b"*/*",
                b"%ff",
                b"2013-01-01T00:00:00Z",
                b"local/p0:0",
                b"-5",
                b"99999999999",
                b"\xff",
            )
        )
        | st.binary(max_size=8),
    ),
    max_size=4,
)
_PATHS = st.sampled_from([(each.method, each.path) for each in OPERATIONS]) | st.tuples(
    st.sampled_from(("GET", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "HEAD", "X")),
    st.sampled_from(
        [each.path for each in OPERATIONS] + ["/", "//", "/v1", "/v1/streams/s/records/"]
    ),
)


async def _echo_one(value: Any, call: IncomingCall) -> Any:
    call.answer_headers.update(call.headers)
    return value


async def _gather(values: AsyncIterator[Any]) -> Any:
    return [each async for each in values]


async def _repeat(value: Any) -> AsyncIterator[Any]:
    for _ in range(3):
        yield value


async def _echo_all(values: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for each in values:
        yield each


_SERVED: Mapping[str, tuple[Any, EndpointSpec]] = {
    "s": (_echo_one, EndpointSpec(replica_set=SET)),
    "in": (_gather, EndpointSpec(replica_set=SET, input=STREAM)),
    "out": (_repeat, EndpointSpec(replica_set=SET, output=STREAM)),
    "both": (_echo_all, EndpointSpec(replica_set=SET, input=STREAM, output=STREAM)),
}


class _Client:
    """What is sent, and what comes."""

    def __init__(self, chunks: Sequence[bytes], *, hangs_up: bool, patience_s: float) -> None:
        self._chunks = list(chunks)
        self._patience_s = patience_s
        self._hangs_up = hangs_up
        self.status = 0
        self.body = b""
        self.has_begun = trio.Event()
        self.is_done = trio.Event()

    async def receive(self) -> Message:
        if self._chunks:
            data = self._chunks.pop(0)
            more = bool(self._chunks) or self._hangs_up
            return {"type": "http.request", "body": data, "more_body": more}
        if not self._hangs_up:
            # However slow the machine is.
            with trio.move_on_after(_ANSWER_S):
                await self.has_begun.wait()
            with trio.move_on_after(self._patience_s):
                await self.is_done.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            assert not self.status
            self.status = message["status"]
            self.has_begun.set()
        else:
            assert self.status
            self.body += message.get("body", b"")
            if not message.get("more_body"):
                self.is_done.set()


_Seen = Counter[tuple[str, str, int]]

_CASE = (_PATHS, _NAMES, _QUERIES, _HEADERS, st.sampled_from(_MEDIA), _BODIES, st.booleans())


async def _ask(app: HttpApp, case: Any) -> int:
    (method, path), name, query, headers, media, body, hangs_up = case
    if isinstance(query, dict):
        query = query[method, path]
    # What has no end is followed for a moment; a call has its answer.
    patience_s = _ANSWER_S if "{endpoint}" in path else 0.05
    for parameter in ("stream", "endpoint", "exchange", "group", "consumer", "kind", "name"):
        path = path.replace(f"{{{parameter}}}", name)
    path = path.replace("{offset}", "0")
    client = _Client([body[:7], body[7:]], hangs_up=hangs_up, patience_s=patience_s)
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "server": ("n1", 7200),
        "client": ("c", 1),
        "headers": [(b"host", b"localhost"), (b"content-type", media.encode()), *headers],
    }
    with trio.fail_after(_ANSWER_S):
        await app(scope, client.receive, client.send)
    assert client.status or hangs_up, case
    assert client.status != 500, (case, client.body)
    if client.status >= 400 and method != "HEAD":
        problem = json.loads(client.body)
        assert (problem["status"], problem["code"] != "") == (client.status, True)
    return client.status


def _drawn(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """Examples; the same in every run."""
    found: list[Any] = []

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(each: Any) -> None:
        found.append(each)

    draw()
    return found


async def _ask_all(directory: Path, case: Sequence[st.SearchStrategy[Any]], count: int) -> _Seen:
    """How often an operation was answered with a status."""
    rng = random.Random(7)
    # Drawn part by part, and put together by chance: to draw a whole case takes 5 ms.
    parts = [_drawn(each, _DRAWN) for each in case]
    seen: _Seen = Counter()
    async with trio.open_nursery() as nursery:
        nodes = Nodes(directory, 1, nursery)
        await nodes.start()
        await nodes.wait_serving()
        node = nodes.node("n1")
        door = Door(node, ClientPorts(network=nodes.network.host(CLIENT)), Limits())
        await nursery.start(door.run)
        app = HttpApp(door, Guard([]), OPERATIONS)
        client = await door.clients.of("default")
        await client.create_stream("s")
        await declare(client, "Exchange", "s", ExchangeSpec(replica_set=SET, to_stream="s"))
        async with AsyncExitStack() as stack:
            for name, (handler, spec) in _SERVED.items():
                await declare(client, "Endpoint", name, spec)
                await stack.enter_async_context(client.serve(name, handler))
            for _ in range(count):
                drawn = [rng.choice(part) for part in parts]
                seen[(*drawn[0], await _ask(app, drawn))] += 1
        nursery.cancel_scope.cancel()
    return seen


@pytest.mark.long
def test_whatever_is_asked_is_answered(tmp_path: Path) -> None:
    trio.run(_ask_all, tmp_path, _CASE, _CASES)


# --- calls and messages ---------------------------------------------------------------------------

_ENDPOINT = "/v1/endpoints/{endpoint}"
_EXCHANGE = "/v1/exchanges/{exchange}"
_MESSAGES = _EXCHANGE + "/messages"

_ANYWHERE = (b"", b"", b"namespace=default", b"namespace=none", b"nonsense=1")
_OWN = {
    ("GET", _ENDPOINT): (),
    ("POST", _ENDPOINT): (
        *(b"timeout_s=5", b"timeout_s=-1", b"timeout_s=1e999", b"timeout_s=nan"),
        *(b"region=aws", b"region=%00"),
    ),
    ("GET", _EXCHANGE): (),
    ("POST", _EXCHANGE): (
        *[b"topic=a.b"] * 8,
        *(b"topic=a.*", b"topic=%20", b"topic=a&key=k", b"topic=a&logged=true"),
        *[b"topic=a&lines=messages"] * 3,
        *(b"lines=messages", b"topic=a&logged=2", b"topic=a&lines="),
    ),
    ("GET", _MESSAGES): (
        *(b"pattern=a.*+%3E", b"pattern=%3E.a", b"pattern=", b"group=g", b"group=&pattern=a"),
    ),
}
"""By operation, parameters that are its own."""


def _some_of(*queries: bytes) -> st.SearchStrategy[bytes]:
    return st.sampled_from(_ANYWHERE if not queries else (*queries, *_ANYWHERE))


_SERVICES = (
    st.sampled_from((*_OWN, ("POST", _ENDPOINT), ("POST", _EXCHANGE))),
    st.sampled_from(("s", "s", "s", "in", "out", "both", "none", "ü", "")),
    st.fixed_dictionaries({each: _some_of(*its) for each, its in _OWN.items()}),
    st.lists(
        st.tuples(
            st.sampled_from(
                (
                    *(b"accept", b"call-own", b"call-", b"call-a%20b", b"traceparent"),
                    *(b"tracestate", b"last-event-id", b"ce-specversion", b"ce-type", b"ce-id"),
                )
            ),
            st.sampled_from(
                (
                    *(b"text/event-stream", b"application/x-ndjson", b"*/*", b"live", b"1.0"),
                    *(b"a.b", b"%ff", b"gr%c3%bcn", b"\xff", b"", b"x" * 9_000),
                )
            ),
        ),
        max_size=1,
    ),
    st.sampled_from((*_MEDIA[:2], *_MEDIA[:2], *_MEDIA)),
    st.one_of(
        _JSON.map(_written),
        st.lists(_JSON.map(_written), max_size=4).map(b"\n".join),
        st.lists(
            st.fixed_dictionaries(
                {"value": _JSON},
                optional={"topic": st.just("c.d") | _TEXT, "key": _TEXT, "headers": _JSON},
            ).map(_written),
            max_size=4,
        ).map(b"\n".join),
        _EVENT.map(_written),
        _BODIES,
    ),
    st.booleans(),
)


@pytest.mark.long
def test_calls_and_messages_are_answered(tmp_path: Path) -> None:
    seen = trio.run(_ask_all, tmp_path, _SERVICES, _CASES)
    asked = {each[:2] for each in seen}
    assert len(asked) == 5
    for operation in asked:
        assert seen[(*operation, 200)] > 50, seen
        assert seen[(*operation, 400)] + seen[(*operation, 404)] > 50, seen


# --- the parser -----------------------------------------------------------------------------------


class _Bytes:
    """A transport that brings what it is given, in pieces."""

    peer = "127.0.0.1:1"

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = [each for each in pieces if each]
        self.sent = b""

    async def receive_into(self, buffer: memoryview) -> int:
        await trio.lowlevel.checkpoint()
        if not self._pieces:
            return 0
        piece = self._pieces.pop(0)
        buffer[: len(piece)] = piece
        return len(piece)

    def send_some(self, chunks: Sequence[bytes | bytearray | memoryview]) -> int:
        data = b"".join(chunks)
        self.sent += data
        return len(data)

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        pass


_TOKENS = st.sampled_from(
    (
        b"GET ",
        b"POST ",
        b"/",
        b"/a?b=c",
        b" HTTP/1.1\r\n",
        b" HTTP/1.0\r\n",
        b" HTTP/9.9\r\n",
        b"host: s\r\n",
        b"content-length: 3\r\n",
        b"content-length: x\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b"transfer-encoding: chunked\r\n",
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        b"abc",
        b"\0",
        b"\xff",
        b"expect: 100-continue\r\n",
        b"upgrade: h2c\r\n",
        b"connection: upgrade\r\n",
        b"connection: close\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b":",
        b"a" * 300,
    )
)
_WHOLE = st.sampled_from(
    (
        b"GET / HTTP/1.1\r\nhost: s\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: s\r\ncontent-length: 3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nhost: s\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    )
)


async def _echo(scope: Any, receive: Any, send: Any) -> None:
    assert scope["path"].startswith("/")
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def test_whatever_bytes_come_the_connection_ends() -> None:
    rng = random.Random(7)
    tokens = _drawn(_TOKENS | _WHOLE | st.binary(max_size=6), _DRAWN)

    async def main() -> None:
        for _ in range(_PARSED):
            pieces = rng.choices(tokens, k=rng.randint(0, 12))
            transport = _Bytes(pieces)
            with trio.fail_after(_ANSWER_S):
                await Connection(transport, _echo, Limits(), ("s", 80), Draining()).run()
            assert not transport.sent or transport.sent.startswith(b"HTTP/1.1 "), pieces
            assert b" 500 " not in transport.sent, pieces

    trio.run(main)
