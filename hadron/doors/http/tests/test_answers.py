"""What answers hold of a node until they are read: bounded for all of them together."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import trio
from starlette.responses import Response
from trio.testing import MockClock

from hadron.client.reading import reader
from hadron.doors.http import limits as bounds
from hadron.doors.http.asgi import Message
from hadron.doors.http.call import NDJSON, Call, room_of
from hadron.doors.http.door import Door
from hadron.doors.http.limits import Limits
from hadron.doors.http.live import EVENTS, Live
from hadron.doors.http.tests.support import HTTP_PORT, _Stream, serving, until
from hadron.doors.http.tests.test_groups import poll, settle
from hadron.model.errors import OutcomeUnknownError, OverloadedError
from hadron.node import http_door
from hadron.testing.nodes import CLIENT, Nodes

RECORDS = "/v1/streams/s/records"
VALUE = "x" * 100_000


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        http_door, "Limits", lambda: Limits(answer_bytes=1_100_000, held_bytes=100_000)
    )
    monkeypatch.setattr(bounds, "READING_BYTES", 600_000)


@pytest.fixture
def doors(monkeypatch: pytest.MonkeyPatch) -> list[Door]:
    """Those that are opened."""
    found: list[Door] = []

    class Kept(Door):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            found.append(self)

    monkeypatch.setattr(http_door, "Door", Kept)
    return found


@pytest.fixture
async def http(nodes: Nodes, doors: list[Door]) -> AsyncIterator[httpx.AsyncClient]:
    del doors
    async with serving(nodes) as client, nodes.client() as producer:
        for _ in range(8):
            await producer.send("s", VALUE)
        yield client


@asynccontextmanager
async def unread(nodes: Nodes, accept: str, path: str = RECORDS) -> AsyncIterator[None]:
    """Somebody who asks for all records, and reads the beginning of the answer only."""
    transport = await nodes.network.host(CLIENT).dial(f"n1:{HTTP_PORT}")
    try:
        stream = _Stream(transport)
        asked = f"GET {path} HTTP/1.1\r\nhost: n1\r\naccept: {accept}\r\n\r\n"
        await stream.write(asked.encode())
        assert (await stream.read(12)).endswith(b" 200")
        yield
    finally:
        transport.close()


@pytest.mark.parametrize("accept", ["application/json", NDJSON])
async def test_answers_that_nobody_reads_are_bounded(
    http: httpx.AsyncClient, nodes: Nodes, accept: str
) -> None:
    async with unread(nodes, accept):
        answer = await http.get(RECORDS, headers={"accept": accept})
        told = answer.json()
        assert (answer.status_code, told["code"]) == (503, "OverloadedError")
        assert told["retryable"]
        assert "read what was asked for" in told["hint"]
        assert answer.headers["retry-after"] == "1"
        answer = await http.get(f"{RECORDS}/0")
        assert (answer.status_code, answer.text) == (200, VALUE), "who asks for little passes"
    # Once they are gone there is room.
    while (await http.get(RECORDS, headers={"accept": accept})).status_code != 200:
        pass


async def test_events_that_nobody_reads_are_counted_too(
    nodes: Nodes, doors: list[Door], http: httpx.AsyncClient
) -> None:
    """Each partition of each of them had 4 MiB, which nobody knew of."""
    nodes.network.wire("n1", CLIENT).buffer_bytes = 16 << 10
    (door,) = doors
    held = door.room.answers
    async with unread(nodes, EVENTS, "/v1/streams/s/events?from=earliest"):
        await until("counted", lambda: held.bytes == bounds.READING_BYTES)
        assert (await http.get(RECORDS)).status_code == 503
        async with unread(nodes, EVENTS, "/v1/streams/s/events?from=earliest"):
            assert door._streams == 2
            await until("who has no room is cut off", lambda: door._streams == 1)
            assert held.bytes == bounds.READING_BYTES
    await until("gone", lambda: held.bytes == 0)


async def test_what_was_fetched_for_who_is_refused_is_gone(
    http: httpx.AsyncClient, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, and not when Python looks for circles next."""
    made: list[weakref.ref[reader.SpanReader]] = []
    begin = reader.SpanReader.__init__

    def noticed(self: reader.SpanReader, *args: Any) -> None:
        made.append(weakref.ref(self))
        begin(self, *args)

    monkeypatch.setattr(reader.SpanReader, "__init__", noticed)
    gc.disable()
    try:
        async with unread(nodes, "application/json"):
            assert (await http.get(RECORDS)).status_code == 503
            found = made[-1]()
            assert found is None or not (found._batches or found._prefetches)
    finally:
        gc.enable()


async def test_what_was_done_is_not_said_to_be_refused() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError

    room = room_of(Limits(answer_bytes=100_000))
    scope = {"type": "http", "headers": []}
    waiting = Call(scope, receive, send, room)
    waiting.hold_answer(90_000)
    call = Call(scope, receive, send, room)
    with pytest.raises(OverloadedError):
        await call.respond(Response(b"x" * 70_000), is_done=False)
    with pytest.raises(OutcomeUnknownError, match="was done, but its answer is dropped: 90000 "):
        await call.respond(Response(b"x" * 70_000), is_done=True)
    await call.respond(Response(b"done"), is_done=True)
    waiting.let_go()
    call.let_go()
    assert (room.answers.bytes, len(sent)) == (0, 2)


async def test_the_end_of_an_answer_may_take_as_long_as_any_of_it(
    autojump_clock: MockClock,
) -> None:
    """After a second it was given up, and what was whole was cut off."""
    del autojump_clock
    sent: list[Message] = []

    async def send(message: Message) -> None:
        await trio.sleep(5)
        sent.append(message)

    limits = Limits()
    live = Live(Call({"headers": []}, trio.sleep_forever, send, room_of(limits)), limits, NDJSON)
    await live.run(lambda: live.say(b"1\n"), trio.sleep_forever)
    assert [each.get("more_body") for each in sent] == [None, True, False]


async def test_a_poll_brings_as_much_as_an_answer_may_have(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MAX_ANSWER_BYTES", 250_000)
    first = await poll(http)
    assert [each["offset"] for each in first] == [0, 1, 2]
    assert await poll(http, again=True) == first
    assert [each["offset"] for each in await poll(http)] == [3, 4, 5]
    await settle(http, "ack", *first)
    assert [each["offset"] for each in await poll(http, again=True)] == [3, 4, 5]


async def test_a_poll_whose_answer_has_no_room_loses_nothing(
    http: httpx.AsyncClient, nodes: Nodes
) -> None:
    async with unread(nodes, "application/json"):
        assert (await http.get(RECORDS)).status_code == 503
        asked = {"consumer": "c", "wait_s": 5, "max_records": 8}
        answer = await http.post("/v1/streams/s/groups/g/poll", json=asked)
        assert (answer.status_code, answer.json()["hint"]) == (
            503,
            "poll with `again`: these records are kept for this consumer",
        )

    async def ask_again() -> httpx.Response:
        return await http.post("/v1/streams/s/groups/g/poll", json=asked | {"again": True})

    while (answer := await ask_again()).status_code == 503:
        pass
    found = [each["offset"] for each in answer.json()["records"]]
    assert len(found) > 1
    assert found == list(range(len(found)))
