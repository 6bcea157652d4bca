"""Calls to endpoints: values and streams both ways, what they end with, and who goes away."""
# ruff: noqa: ARG001 - nodes are started for who asks for their door

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from hadron.client import Client, IncomingCall
from hadron.client.endpoints import items
from hadron.client.endpoints.items import Outflow
from hadron.doors.http import limits as bounds
from hadron.doors.http.tests.support import (
    HTTP_PORT,
    NDJSON,
    Http2,
    _Stream,
    declare,
    http_of,
    nodes_with_doors,
    received,
    serving,
    until,
)
from hadron.model.errors import CallFailedError
from hadron.model.services import STREAM, EndpointSpec
from hadron.testing.nodes import CLIENT, Nodes

SET = "local/p0"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
EVENTS = {"accept": "text/event-stream"}


@asynccontextmanager
async def served(
    nodes: Nodes, name: str, handler: Callable[..., Any], **spec: Any
) -> AsyncIterator[Client]:
    async with nodes.client("server") as client:
        await declare(client, "Endpoint", name, EndpointSpec(replica_set=SET, **spec))
        async with client.serve(name, handler):
            yield client


def problem(answer: httpx.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    found: dict[str, Any] = answer.json()
    return found


async def echo(value: Any) -> Any:
    return value


# --- one value for one ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "media", "wanted", "answered"),
    [
        (b'{"a": 1.00, "b": 12345678901234567890}', "application/json", dict, "application/json"),
        ("grün".encode(), "text/plain", str, "text/plain; charset=utf-8"),
        (b"\xff\0", "application/octet-stream", bytes, "application/octet-stream"),
        (b"a=b", "application/x-www-form-urlencoded", str, "text/plain; charset=utf-8"),
        (b"", None, type(None), "application/json"),
        (b"", "application/octet-stream", bytes, "application/octet-stream"),
    ],
)
async def test_a_value_goes_there_and_back_as_what_it_is(
    nodes: Nodes,
    http: httpx.AsyncClient,
    content: bytes,
    media: str | None,
    wanted: type,
    answered: str,
) -> None:
    found: list[Any] = []

    async def handler(value: Any) -> Any:
        found.append(value)
        return value

    async with served(nodes, "echo", handler):
        headers = {"content-type": media} if media is not None else {}
        answer = await http.post("/v1/endpoints/echo", content=content, headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (200, answered)
        assert type(found[0]) is wanted
        if wanted is dict:
            assert answer.json() == json.loads(content)
        else:
            assert answer.content == (content or (b"null" if media is None else b""))


async def test_headers_time_and_region_go_along(nodes: Nodes, http: httpx.AsyncClient) -> None:
    seen: list[IncomingCall] = []

    async def handler(value: Any, call: IncomingCall) -> Any:
        assert 0 < call.left_s <= 2.5
        seen.append(call)
        call.answer_headers |= {"Tenant": "grün 100%", "a b": "c", "tracestate": "x=1%2"}
        return value

    async with served(nodes, "quote", handler):
        headers = {
            "traceparent": TRACE,
            "tracestate": "a=%20",
            "call-tenant": "gr%C3%BCn",
            "cookie": "own",
        }
        params = {"timeout_s": "2.5", "region": "aws.us-east-1"}
        answer = await http.post("/v1/endpoints/quote", json=1, headers=headers, params=params)
        assert answer.status_code == 200, answer.text
    assert seen[0].headers == {"traceparent": TRACE, "tracestate": "a=%20", "tenant": "grün"}
    assert answer.headers["call-tenant"] == "gr%C3%BCn%20100%25"
    assert answer.headers["call-a%20b"] == "c"
    assert answer.headers["tracestate"] == "x=1%2"


@dataclass
class Order:
    amount: int


async def test_what_a_handler_raises_has_a_status(nodes: Nodes, http: httpx.AsyncClient) -> None:
    async def quote(order: Order) -> Any:
        if order.amount == 1:
            raise ValueError("one is too few")
        raise CallFailedError("sold out", "order tea", retryable=True, type="SoldOut")

    async with served(nodes, "quote", quote):
        answer = await http.post("/v1/endpoints/quote", json={"amount": 1})
        assert (answer.status_code, problem(answer)["code"]) == (500, "CallFailedError")
        assert problem(answer)["error_type"] == "ValueError"
        assert (problem(answer)["detail"], problem(answer)["retryable"]) == (
            "one is too few",
            False,
        )
        told = problem(await http.post("/v1/endpoints/quote", json={"amount": 2}))
        assert (told["error_type"], told["detail"], told["hint"], told["retryable"]) == (
            "SoldOut",
            "sold out",
            "order tea",
            True,
        )
        answer = await http.post("/v1/endpoints/quote", json={"amount": "many"})
        assert (answer.status_code, problem(answer)["error_type"]) == (422, "ValidationError")
        assert "amount" in problem(answer)["detail"]


# httpx leaves a request's body behind that nobody wants.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_what_is_wrong_with_a_call_has_a_status(
    nodes: Nodes, http: httpx.AsyncClient
) -> None:
    path = "/v1/endpoints/echo"
    assert (await http.post(path, json=1)).status_code == 404
    assert (await http.get(path)).status_code == 404
    async with nodes.client("server") as client:
        await declare(client, "Endpoint", "echo", EndpointSpec(replica_set=SET))
    answer = await http.post(path, json=1, params={"timeout_s": "5"})
    assert (answer.status_code, problem(answer)["code"]) == (503, "NoServerError")
    assert (problem(answer)["retryable"], answer.headers["retry-after"]) == (True, "1")
    async with served(nodes, "echo", echo):
        for bad, status in (
            ({"content": b"{", "headers": {"content-type": "application/json"}}, 400),
            ({"content": b"\xff", "headers": {"content-type": "text/plain"}}, 400),
            ({"content": b"a", "headers": {"content-type": "text/plain; charset=utf-16"}}, 415),
            ({"json": 1, "params": {"timeout_s": "0"}}, 400),
            ({"json": 1, "params": {"timeout_s": "1e9"}}, 400),
            ({"json": 1, "params": {"timeout_s": "nan"}}, 400),
            ({"json": 1, "params": {"retries": "3"}}, 400),
            ({"json": 1, "headers": {"call-a": "%ff"}}, 400),
            ({"json": 1, "headers": {"call-a": "b" * 9_000}}, 400),
            ({"content": b"x" * (5 << 20)}, 413),
            ({"content": b"x" * (bounds.MAX_BODY_BYTES + 1)}, 413),
        ):
            answer = await http.post(path, **bad)
            assert answer.status_code == status, (str(bad)[:80], answer.text)
        assert (await http.post(path, json=2)).json() == 2
    async with served(nodes, "sum", total, input=STREAM):
        answer = await http.post("/v1/endpoints/sum", json=1)
        assert answer.status_code == 415
        assert "endpoint 'sum' (input: stream) takes a stream" in problem(answer)["detail"]


async def test_an_endpoint_that_is_declared_anew(
    nodes: Nodes, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The door knew it as it was before."""
    monkeypatch.setattr("hadron.client.endpoints.calls.RECENT_S", 0.0)
    path = "/v1/endpoints/it"
    async with served(nodes, "it", echo) as client:
        assert (await http.post(path, json=1)).json() == 1
        await client.delete(("Endpoint", "default", "it"), allow_destructive=True)
    async with served(nodes, "it", mixed, output=STREAM):
        answer = await http.post(path, json=1)
        assert (answer.status_code, answer.text.count("\n")) == (200, 3), answer.text
    async with served(nodes, "it", total, input=STREAM):
        answer = await http.post(path, content=b"1\n2\n", headers=NDJSON)
        assert (answer.status_code, answer.text) == (200, "3")
    async with nodes.client("server") as client:
        await client.delete(("Endpoint", "default", "it"), allow_destructive=True)
    assert (await http.post(path, content=b"1", headers=NDJSON)).status_code == 404


async def test_a_deadline_that_passes(nodes: Nodes, http: httpx.AsyncClient) -> None:
    ended = trio.Event()

    async def sleep(_value: Any) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with served(nodes, "sleep", sleep):
        began_s = trio.current_time()
        answer = await http.post("/v1/endpoints/sleep", json=1, params={"timeout_s": "0.2"})
        assert (answer.status_code, problem(answer)["code"]) == (504, "DeadlineExceededError")
        assert trio.current_time() - began_s < 5
        with trio.fail_after(10):
            await ended.wait()


async def test_more_calls_than_may_wait(nodes: Nodes, http: httpx.AsyncClient) -> None:
    gate = trio.Event()

    async def handler(value: Any) -> Any:
        await gate.wait()
        return value

    async with nodes.client("server") as client, trio.open_nursery() as nursery:
        spec = EndpointSpec(replica_set=SET, max_waiting=0)
        await declare(client, "Endpoint", "busy", spec)
        async with client.serve("busy", handler, max_in_flight=1):
            found: list[int] = []

            async def call() -> None:
                found.append((await http.post("/v1/endpoints/busy", json=1)).status_code)
                gate.set()

            for _ in range(2):
                nursery.start_soon(call)
            await until("both", lambda: len(found) == 2)
    assert sorted(found) == [200, 503]


async def test_what_lives_of_it(nodes: Nodes, http: httpx.AsyncClient) -> None:
    async with served(nodes, "echo", echo):
        assert (await http.post("/v1/endpoints/echo", json=1)).status_code == 200
        told = (await http.get("/v1/endpoints/echo")).json()
        assert (told["name"], told["answered"], len(told["servers"])) == ("echo", 1, 1)
        assert told["p99_ms"] >= told["p50_ms"] > 0


# --- streams --------------------------------------------------------------------------------------


async def count(most: int) -> AsyncIterator[Any]:
    for number in range(most):
        yield number


async def mixed(value: Any, call: IncomingCall) -> AsyncIterator[Any]:
    call.answer_headers["first"] = "yes"
    yield {"a": [1, None]}
    yield "two\nlines"
    yield b"\0\xff"
    if value == "fail":
        raise ValueError("in the middle")


async def test_a_streamed_answer_as_lines(nodes: Nodes, http: httpx.AsyncClient) -> None:
    async with served(nodes, "mixed", mixed, output=STREAM):
        answer = await http.post("/v1/endpoints/mixed", json=1)
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert answer.headers["call-first"] == "yes"
        by_curl = {"accept": "application/json"}
        again = await http.post("/v1/endpoints/mixed", json=1, headers=by_curl)
        assert (again.headers["content-type"], again.text) == ("application/x-ndjson", answer.text)
        assert [json.loads(line) for line in answer.text.splitlines()] == [
            {"a": [1, None]},
            "two\nlines",
            {"value_base64": "AP8="},
        ]


async def test_a_streamed_answer_as_events(nodes: Nodes, http: httpx.AsyncClient) -> None:
    async with served(nodes, "mixed", mixed, output=STREAM):
        answer = await http.post("/v1/endpoints/mixed", json="fail", headers=EVENTS)
        assert answer.headers["content-type"] == "text/event-stream"
        *values, error, rest = answer.text.split("\n\n")
        assert values == [
            'data: {"a":[1,null]}',
            'data: "two\\nlines"',
            'data: {"value_base64":"AP8="}',
        ]
        kind, _, data = error.partition("\n")
        assert (kind, rest) == ("event: error", "")
        told = json.loads(data.removeprefix("data: "))
        assert (told["error_type"], told["detail"]) == ("ValueError", "in the middle")


async def test_lines_that_end_by_an_error_are_cut_off(
    nodes: Nodes, http: httpx.AsyncClient
) -> None:
    async with served(nodes, "mixed", mixed, output=STREAM):
        stream = await _post(nodes, "/v1/endpoints/mixed", b'"fail"', "application/json")
        found = (await received(stream)).decode()
        assert not found.endswith("0\r\n\r\n"), "the end of an answer in chunks"
        lines = [json.loads(line) for line in found.splitlines() if line.startswith(("{", '"'))]
        assert len(lines) == 4
        assert (lines[-1]["code"], lines[-1]["status"]) == ("CallFailedError", 500)


async def test_what_fails_before_the_first_value_has_a_status(
    nodes: Nodes, http: httpx.AsyncClient
) -> None:
    async def fail(_value: Any) -> AsyncIterator[Any]:
        raise ValueError("at once")
        yield

    async with served(nodes, "fail", fail, output=STREAM):
        for headers in ({}, EVENTS):
            answer = await http.post("/v1/endpoints/fail", json=1, headers=headers)
            assert (answer.status_code, problem(answer)["error_type"]) == (500, "ValueError")
        answer = await http.post("/v1/endpoints/fail", headers={"accept": "text/html"})
        assert answer.status_code == 406
    answer = await http.post("/v1/endpoints/fail", json=1, params={"timeout_s": "1"})
    assert answer.status_code == 503


async def test_an_answer_without_values(nodes: Nodes, http: httpx.AsyncClient) -> None:
    async with served(nodes, "count", count, output=STREAM):
        answer = await http.post("/v1/endpoints/count", json=0)
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["content-type"] == "application/x-ndjson"


async def total(numbers: AsyncIterator[int]) -> int:
    return sum([each async for each in numbers])


async def test_a_streamed_input(nodes: Nodes, http: httpx.AsyncClient) -> None:
    async with served(nodes, "total", total, input=STREAM):
        path = "/v1/endpoints/total"
        answer = await http.post(path, content=b"1\n2\r\n\n39", headers=NDJSON)
        assert (answer.status_code, answer.json()) == (200, 42)
        assert (await http.post(path)).json() == 0
        answer = await http.post(path, content=b"1\n{\n2\n", headers=NDJSON)
        assert answer.status_code == 400
        assert problem(answer)["detail"].startswith("line 2: ")
        answer = await http.post(path, content=b'1\n"x"\n', headers=NDJSON)
        assert (answer.status_code, problem(answer)["error_type"]) == (422, "ValidationError")
        answer = await http.post(path, content=b"1" * (3 << 20), headers=NDJSON)
        assert (answer.status_code, problem(answer)["code"]) == (413, "RecordTooLargeError")
        assert (await http.post(path, json=1)).status_code == 415


async def test_streams_both_ways_go_at_the_same_time(nodes: Nodes, http: httpx.AsyncClient) -> None:
    """The next line is written only once the answer to the one before has come."""

    async def double(numbers: AsyncIterator[int]) -> AsyncIterator[int]:
        async for each in numbers:
            yield 2 * each

    async with served(nodes, "double", double, input=STREAM, output=STREAM):
        transport = await nodes.network.host(CLIENT).dial(f"n1:{HTTP_PORT}")
        stream = _Stream(transport)
        head = (
            b"POST /v1/endpoints/double HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        await stream.write(head)
        found = b""
        for number in (1, 20, 300):
            line = b"%d\n" % number
            await stream.write(b"%x\r\n%b\r\n" % (len(line), line))
            with trio.fail_after(10):
                while b"\r\n%d\n\r\n" % (2 * number) not in found:
                    found += await stream.read(4096)
        await stream.write(b"0\r\n\r\n")
        with trio.fail_after(10):
            while not found.endswith(b"0\r\n\r\n"):
                found += await stream.read(4096)
        assert found.startswith(b"HTTP/1.1 200 OK")
        transport.close()


# httpx leaves a request's body behind that nobody wants.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_an_answer_before_the_input_has_ended(nodes: Nodes, http: httpx.AsyncClient) -> None:
    """Nobody waits for what nobody wants any more."""

    async def first(numbers: AsyncIterator[int]) -> int:
        async for each in numbers:
            return each
        return -1

    async def lines() -> AsyncIterator[bytes]:
        for number in range(7, 2_000):
            yield b"%d%b\n" % (number, b" " * 1_000)

    async with served(nodes, "first", first, input=STREAM):
        answer = await http.post("/v1/endpoints/first", content=lines(), headers=NDJSON)
        assert (answer.status_code, answer.json()) == (200, 7)


# --- who goes away, and who does not read ---------------------------------------------------------


class Flood:
    """A handler that answers without an end, and knows how far it was let go."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sent = 0
        self.ended = trio.Event()

    async def __call__(self, _value: Any) -> AsyncIterator[str]:
        try:
            while True:
                yield "x" * self.size
                self.sent += self.size
        finally:
            self.ended.set()


async def _post(nodes: Nodes, path: str, body: bytes, media: str, more: int = 0) -> _Stream:
    """A request on a connection of its own, from which nothing is read yet; `more` bytes of its
    body are still to come."""
    stream = _Stream(await nodes.network.host(CLIENT).dial(f"n1:{HTTP_PORT}"))
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {media}\r\n"
    await stream.write(f"{head}content-length: {len(body) + more}\r\n\r\n".encode() + body)
    return stream


async def settled(what: Callable[[], int]) -> int:
    """A number, once it has not changed for a while."""
    last, since_s = what(), trio.current_time()
    with trio.fail_after(60):
        while trio.current_time() - since_s < 0.5:
            await trio.sleep(0.05)
            if what() != last:
                last, since_s = what(), trio.current_time()
    return last


async def test_a_flood_waits_for_who_does_not_read(nodes: Nodes, http: httpx.AsyncClient) -> None:
    flood = Flood(10_000)
    async with served(nodes, "flood", flood, output=STREAM):
        stream = await _post(nodes, "/v1/endpoints/flood", b"1", "application/json")
        await until("it has begun", lambda: flood.sent > 0)
        held = await settled(lambda: flood.sent)
        assert held < 4 << 20, "as much as is on the way"
        assert not flood.ended.is_set()
        for _ in range(200):
            assert await stream.read(1 << 16)
        assert await settled(lambda: flood.sent) > held, "it goes on when it is read"
        await stream.aclose()
        with trio.fail_after(20):
            await flood.ended.wait()


@pytest.mark.parametrize("shape", [{}, {"output": STREAM}, {"input": STREAM}])
async def test_who_goes_away_has_cancelled_it(
    nodes: Nodes, http: httpx.AsyncClient, shape: dict[str, str]
) -> None:
    begun, ended = trio.Event(), trio.Event()

    async def wait(_value: Any) -> Any:
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async def wait_all(value: Any) -> AsyncIterator[Any]:
        yield await wait(value)

    handler = wait_all if "output" in shape else wait
    async with served(nodes, "wait", handler, **shape):
        media = "application/x-ndjson" if "input" in shape else "application/json"
        stream = await _post(nodes, "/v1/endpoints/wait", b"1", media)
        with trio.fail_after(20):
            await begun.wait()
            assert not ended.is_set()
            await stream.aclose()
            await ended.wait()


async def test_who_goes_away_in_the_middle_of_its_input(
    nodes: Nodes, http: httpx.AsyncClient
) -> None:
    seen: list[int] = []
    ended = trio.Event()

    async def gather(numbers: AsyncIterator[int]) -> int:
        try:
            async for each in numbers:
                seen.append(each)  # noqa: PERF401 - looked at meanwhile
        finally:
            ended.set()
        return len(seen)

    async with served(nodes, "gather", gather, input=STREAM):
        path, media = "/v1/endpoints/gather", "application/x-ndjson"
        stream = await _post(nodes, path, b"1\n2\n", media, more=100)
        await until("two", lambda: seen == [1, 2])
        await stream.aclose()
        with trio.fail_after(20):
            await ended.wait()


@pytest.mark.parametrize("http2", [False, True])
async def test_who_goes_away_while_its_input_is_held_back(
    nodes: Nodes, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, *, http2: bool
) -> None:
    """Behind lines that the handler has not taken yet, and may not take for an hour."""
    held, ended = trio.Event(), trio.Event()
    wait = Outflow.wait

    async def noticed(self: Outflow) -> bool:
        if self._window <= 0:
            held.set()
        return await wait(self)

    async def hold(_numbers: AsyncIterator[int]) -> int:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()
        return 0

    monkeypatch.setattr(Outflow, "wait", noticed)
    monkeypatch.setattr(items, "CALL_WINDOW_BYTES", 16 << 10)

    lines = b'"%b"\n' % (b"x" * 1_021) * 60
    path, media = "/v1/endpoints/hold", "application/x-ndjson"
    async with served(nodes, "hold", hold, input=STREAM), trio.open_nursery() as nursery:
        if http2:
            stream = _Stream(await nodes.network.host(CLIENT).dial(f"n1:{HTTP_PORT}"))
            peer = Http2(stream, "localhost")
            nursery.start_soon(peer.run)
            number = await peer.ask("POST", path, content_type=media)
            await peer.send(
                number, *[lines[at : at + 16_384] for at in range(0, len(lines), 16_384)]
            )
        else:
            stream = await _post(nodes, path, lines * 10, media, more=100)
        with trio.fail_after(20):
            await held.wait()
            assert not ended.is_set()
            if http2:
                peer.h2.reset_stream(number)
                await peer.flush()
            else:
                await stream.aclose()
            await ended.wait()
        nursery.cancel_scope.cancel()
        await stream.aclose()


async def test_any_node_s_door_will_do(tmp_path: Path, nursery: trio.Nursery) -> None:
    nodes = nodes_with_doors(tmp_path, 3, nursery)
    async with (
        serving(nodes),
        served(nodes, "count", count, output=STREAM),
        http_of(nodes, "n3") as http,
    ):
        answer = await http.post("/v1/endpoints/count", json=3)
        assert answer.text == "0\n1\n2\n"


# httpx leaves an answer behind that was not read to its end.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_over_http2(nodes: Nodes, http: httpx.AsyncClient) -> None:
    flood = Flood(1_000)
    async with (
        served(nodes, "count", count, output=STREAM),
        served(nodes, "mixed", mixed, output=STREAM),
        served(nodes, "flood", flood, output=STREAM),
    ):
        async with http_of(nodes, "n1", http2=True) as other:
            answer = await other.post("/v1/endpoints/count", json=3)
            assert (answer.http_version, answer.text) == ("HTTP/2", "0\n1\n2\n")
            with pytest.raises(httpx.RemoteProtocolError):
                await other.post("/v1/endpoints/mixed", json="fail")
            async with other.stream("POST", "/v1/endpoints/flood", json=1) as answer:
                async for _ in answer.aiter_bytes():
                    break
        with trio.fail_after(20):
            await flood.ended.wait()


async def test_a_key_for_what_is_not_logged_is_refused(http: httpx.AsyncClient) -> None:
    """Whoever sends it would take it that the call is run once."""
    key = {"idempotency-key": "pay-1"}
    for method, path in (("POST", "/v1/endpoints/quote"), ("PUT", "/v1/streams/keyed")):
        answer = await http.request(method, path, json={}, headers=key)
        assert answer.status_code == 400
        assert "knows no Idempotency-Key" in answer.json()["detail"]


async def test_text_is_json_for_who_accepts_that_first(
    nodes: Nodes, http: httpx.AsyncClient
) -> None:
    async with served(nodes, "echo", echo):
        for accept, wanted in (
            ("application/json, text/plain, */*", '"hello"'),
            ("text/plain, application/json", "hello"),
            ("*/*", "hello"),
        ):
            answer = await http.post("/v1/endpoints/echo", json="hello", headers={"accept": accept})
            assert answer.text == wanted


# --- a node that stops ----------------------------------------------------------------------------


async def test_a_node_that_stops_ends_what_is_under_way(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    """A call has its answer, a poll is told that there is nothing, who follows is let go."""
    nodes = nodes_with_doors(tmp_path, 1, nursery)
    async with serving(nodes) as http:
        begun, gate, told = trio.Event(), trio.Event(), dict[str, Any]()

        async def slow(value: Any) -> Any:
            begun.set()
            await gate.wait()
            return value

        async def ask(what: str, asked: Awaitable[httpx.Response]) -> None:
            try:
                told[what] = await asked
            except httpx.HTTPError as error:
                told[what] = error

        async with served(nodes, "slow", slow), trio.open_nursery() as asking:
            poll = {"consumer": "c", "wait_s": 60}
            asking.start_soon(ask, "call", http.post("/v1/endpoints/slow", json=7))
            asking.start_soon(ask, "poll", http.post("/v1/streams/s/groups/g/poll", json=poll))
            asking.start_soon(ask, "events", http.get("/v1/streams/s/events"))
            await begun.wait()
            with trio.fail_after(60):
                while (await http.get("/v1/streams/s/groups/g")).status_code != 200:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            async with trio.open_nursery() as stopping:
                stopping.start_soon(nodes.crash, "n1")
                await until("who waits is let go", lambda: len(told) == 2)
                assert told["poll"].json()["records"] == []
                gate.set()
            await until("all have ended", lambda: len(told) == 3)
        assert told["call"].json() == 7


async def test_headers_in_parts_are_one_and_those_without_a_name_none(
    nodes: Nodes, http: httpx.AsyncClient
) -> None:
    found: list[Any] = []

    async def handler(_value: Any, call: IncomingCall) -> None:
        found.append(dict(call.headers))

    async with served(nodes, "e", handler):
        parts = [("call-x", "1"), ("tracestate", "a=1"), ("call-x", "2"), ("tracestate", "b=2")]
        answer = await http.post("/v1/endpoints/e", headers=parts)
        assert answer.status_code == 200
        assert found == [{"x": "1, 2", "tracestate": "a=1, b=2"}]
        answer = await http.post("/v1/endpoints/e", headers={"call-": "tenant"})
        assert answer.status_code == 400
        assert problem(answer)["detail"] == "the header with the text 'tenant' has no name"
