"""What strangers can make large or slow: each has its bound, and nobody else notices."""
# ruff: noqa: ARG001 - time passes by the clock that each test asks for

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import h2.connection
import h2.events
import httpx
import pytest
import trio
import trio.testing
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hyperframe.frame import DataFrame, GoAwayFrame, PingFrame
from trio.testing import MockClock

from hadron.doors.http import limits as bounds
from hadron.doors.http import server
from hadron.doors.http.asgi import Message, Receive, Scope, Send
from hadron.doors.http.limits import Limits
from hadron.doors.http.server import Server
from hadron.doors.http.tests.support import Http2, _Stream, http_at, received, until
from hadron.fakes.network import SimNetwork

HEAD = b"POST / HTTP/1.1\r\nhost: s\r\n"

CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"

HEADERS = [(":method", "GET"), (":scheme", "http"), (":authority", "s")]

QUICK = Limits(connections=3, idle_s=5, head_s=2, stall_s=3)


class App:
    """Answers with what it was sent, or as it is told."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.headers: list[tuple[bytes, bytes]] = []
        self.disconnected = 0
        self.unread = 0
        self.flooded = 0
        self.target = b"", b""
        self.go_on = trio.Event()
        self.cut_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        if scope["path"].startswith("/hold"):
            await self.go_on.wait()
        if scope["path"] == "/answered":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"early", "more_body": True})
        while scope["path"] != "/unread":
            message = await receive()
            if message["type"] == "http.disconnect":
                self.disconnected += 1
                return
            body += message["body"]
            if not message["more_body"]:
                break
        self.bodies.append(body)
        self.headers = scope["headers"]
        self.target = scope["raw_path"], scope["query_string"]
        if scope["path"] == "/listen":
            async with trio.open_nursery() as nursery:

                async def listen() -> None:
                    assert (await receive())["type"] == "http.disconnect"
                    self.disconnected += 1

                nursery.start_soon(listen)
                await self.go_on.wait()
                nursery.cancel_scope.cancel()
        if scope["path"] == "/wait":
            assert (await receive())["type"] == "http.disconnect"
            self.disconnected += 1
            return
        start: Message = {"type": "http.response.start", "status": 200, "headers": []}
        await send(start)
        while scope["path"] == "/flood":
            try:
                await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
                self.flooded += 65_536
            except OSError:
                self.unread += 1
                raise
        if scope["path"] == "/early":
            return
        if scope["path"] == "/cut":
            with trio.move_on_after(self.cut_s):
                body = b"x" * (8 << 20)
                await send({"type": "http.response.body", "body": body, "more_body": True})
            body = b"behind"
        if scope["path"] == "/last":
            with trio.move_on_after(self.cut_s):
                await send({"type": "http.response.body", "body": b"x" * 20_000})
            return
        if scope["path"].endswith("/large"):
            body = b"x" * (1 << 20)
        for _ in range(3 if scope["path"] == "/parts" else 0):
            await send({"type": "http.response.body", "body": b"part,", "more_body": True})
        await send({"type": "http.response.body", "body": body or b"-", "more_body": False})


class World:
    def __init__(self, app: App, server: Server, network: SimNetwork) -> None:
        self.app, self.server, self.network = app, server, network

    async def ask(self, *pieces: bytes, pause_s: float = 0) -> bytes:
        """All that comes for these bytes, up to the end of the connection."""
        async with self.connection() as stream:
            for piece in pieces:
                await stream.write(piece)
                await trio.sleep(pause_s)
            return await received(stream)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        transport = await self.network.host("client").dial("s:80")
        try:
            yield _Stream(transport)
        finally:
            transport.close()


@pytest.fixture
async def world(nursery: trio.Nursery) -> World:
    app, network = App(), SimNetwork()
    server = Server(app, QUICK)
    listener = await network.host("s").listen("s:80")
    nursery.start_soon(server.run, listener)
    return World(app, server, network)


def status(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 "), answer
    return int(answer[9:12])


# --- what is no request ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_bytes", "wanted"),
    [
        (b"nonsense\r\n\r\n", 400),
        (HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nhost s\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n bad: fold\r\n\r\n", 400),
        (b"GET nowhere HTTP/1.1\r\nhost: s\r\n\r\n", 400),
        (b"GET https://s/ HTTP/1.1\r\nhost: s\r\n\r\n", 400),
        (HEAD + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", 400),
        (HEAD + b"content-length: 1\r\ncontent-length: 2\r\n\r\nx", 400),
        (HEAD + b"content-length: -1\r\n\r\n", 400),
        (HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET /" + b"a" * bounds.MAX_TARGET_BYTES + b" HTTP/1.1\r\n\r\n", 414),
        (HEAD + b"a: " + b"b" * bounds.MAX_HEADER_BYTES + b"\r\n\r\n", 431),
        (HEAD + b"a: " + b"b" * (2 * bounds.MAX_HEADER_BYTES), 431),
        (HEAD + b"a: b\r\n" * (bounds.MAX_HEADERS + 1) + b"\r\n", 431),
        (CHUNKED + b"1\r\na\r\n0\r\na: " + b"b" * (3 << 16), 431),
        (CHUNKED + b"1\r\na\r\n0\r\n" + b"a: b\r\n" * (3 << 13), 431),
        (CHUNKED + b"1;a=" + b"b" * (3 << 16), 431),
    ],
)
async def test_what_is_no_request_is_refused(
    autojump_clock: MockClock, world: World, request_bytes: bytes, wanted: int
) -> None:
    answer = await world.ask(request_bytes)
    assert status(answer) == wanted
    assert b"application/problem+json" in answer
    assert b"connection: close" in answer
    assert world.server.connections == 0


# --- what is slow ---------------------------------------------------------------------------------


async def test_headers_that_drip_are_cut_off(autojump_clock: MockClock, world: World) -> None:
    pieces = [bytes([each]) for each in b"GET / HTTP/1.1\r\nhost: s\r\n"]
    began_s = trio.current_time()
    answer = await world.ask(*pieces[:8], pause_s=0.2)
    assert status(answer) == 408
    assert trio.current_time() - began_s <= QUICK.head_s + 1.5


async def test_who_says_nothing_is_let_go(autojump_clock: MockClock, world: World) -> None:
    began_s = trio.current_time()
    assert await world.ask() == b""
    assert trio.current_time() - began_s <= QUICK.idle_s + 0.1


async def test_a_connection_is_kept_for_a_while(autojump_clock: MockClock, world: World) -> None:
    began_s = trio.current_time()
    answer = await world.ask(HEAD + b"content-length: 0\r\n\r\n")
    assert status(answer) == 200
    assert trio.current_time() - began_s >= QUICK.idle_s


async def test_a_body_that_stalls_is_cut_off(autojump_clock: MockClock, world: World) -> None:
    answer = await world.ask(HEAD + b"content-length: 10\r\n\r\n12345")
    assert status(answer) == 408
    assert world.app.disconnected == 1


async def test_a_body_that_goes_on_is_not(autojump_clock: MockClock, world: World) -> None:
    pieces = [b"5\r\nhello\r\n"] * 5
    answer = await world.ask(
        HEAD + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n",
        *pieces,
        b"0\r\n\r\n",
        pause_s=QUICK.stall_s * 0.8,
    )
    assert status(answer) == 200
    assert world.app.bodies == [b"hello" * 5]


async def test_who_reads_nothing_is_let_go(autojump_clock: MockClock, world: World) -> None:
    async with world.connection() as stream:
        await stream.write(b"GET /flood HTTP/1.1\r\nhost: s\r\n\r\n")
        await trio.sleep(QUICK.stall_s + 1)
        assert world.server.connections == 0


# --- how many -------------------------------------------------------------------------------------


async def test_so_many_connections_and_no_more(autojump_clock: MockClock, world: World) -> None:
    async with world.connection() as one, world.connection(), world.connection():
        await trio.testing.wait_all_tasks_blocked()
        answer = await world.ask(HEAD + b"content-length: 0\r\n\r\n")
        assert status(answer) == 503
        assert b"3 connections are open" in answer
        await one.write(HEAD + b"content-length: 0\r\n\r\n")
        assert status(await one.read(4096)) == 200, "nobody else notices"
    await trio.sleep(1)
    async with world.connection() as again:
        await again.write(HEAD + b"content-length: 0\r\n\r\n")
        assert status(await again.read(4096)) == 200


async def test_a_burst_overruns_neither_those_that_are_let_in_nor_those_that_are_told(
    autojump_clock: MockClock, world: World
) -> None:
    """All of it may be accepted before any task of a connection has begun."""
    waiting = await world.network.host("s").listen("s:81")
    burst = [await world.network.host("client").dial("s:81") for _ in range(100)]
    taken = [await waiting.accept() for _ in burst]

    class Burst:
        address = "s:81"

        async def accept(self) -> Any:
            if not taken:
                await trio.sleep_forever()
            return taken.pop(0)

    listener: Any = Burst()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.server.run, listener)
        await trio.testing.wait_all_tasks_blocked()
        assert world.server.connections == QUICK.connections
        assert world.server._refusing == server._LINGERING
        assert await burst[-1].receive_into(memoryview(bytearray(1))) == 0
        nursery.cancel_scope.cancel()
    assert world.server.connections == world.server._refusing == 0
    for each in burst:
        each.close()


async def test_pipelined_requests_are_answered_in_order(
    autojump_clock: MockClock, world: World
) -> None:
    many = b"".join(HEAD + b"content-length: 2\r\n\r\n%02d" % each for each in range(40))
    answer = await world.ask(many, HEAD + b"connection: close\r\ncontent-length: 0\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200 OK") == 41
    assert world.app.bodies[:40] == [b"%02d" % each for each in range(40)]


async def test_who_hangs_up_is_noticed(autojump_clock: MockClock, world: World) -> None:
    async with world.connection() as stream:
        await stream.write(b"GET /wait HTTP/1.1\r\nhost: s\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked()
    await trio.sleep(0.1)
    assert world.app.disconnected == 1


async def test_who_hangs_up_behind_other_requests_is_noticed(
    autojump_clock: MockClock, world: World
) -> None:
    async with world.connection() as stream:
        await stream.write(b"GET /wait HTTP/1.1\r\nhost: s\r\n\r\n")
        await stream.write((HEAD + b"content-length: 2\r\n\r\n__") * 40)
        await trio.testing.wait_all_tasks_blocked()
        assert world.app.disconnected == 0
    await trio.sleep(0.1)
    assert world.app.disconnected == 1


async def test_a_request_that_begins_behind_many_is_not_charged_with_them(
    autojump_clock: MockClock, world: World
) -> None:
    many = (HEAD + b"content-length: 1000\r\n\r\n" + b"x" * 1_000) * 60
    last = HEAD + b"connection: close\r\ncontent-length: 0\r\n\r\n"
    answer = await world.ask(many + last[:9], last[9:], pause_s=0.1)
    assert answer.count(b"HTTP/1.1 200 OK") == 61


@pytest.mark.parametrize(
    ("behind", "wanted"),
    [
        ((HEAD + b"content-length: 2\r\n\r\n__") * 300, 400),
        (HEAD + b"content-length: 99999999\r\n\r\n" + b"x" * (3 << 19), 400),
        ((b"GET / HTTP/1.1\r\nhost: s\r\na: " + b"b" * 30_000 + b"\r\n\r\n") * 40, 400),
        ((b"GET / HTTP/1.1\r\nhost: s\r\n" + b"a:b\r\n" * 99 + b"\r\n") * 80, 400),
        (b"GET /\r\n\r\n" + b"x" * (3 << 19), 400),
    ],
    ids=["requests", "bodies", "heads", "headers", "nonsense"],
)
async def test_what_comes_behind_a_request_is_bounded(
    autojump_clock: MockClock, world: World, behind: bytes, wanted: int
) -> None:
    """It has to be read, or nobody would notice that the program has gone."""
    async with world.connection() as stream:
        await stream.write(b"GET /wait HTTP/1.1\r\nhost: s\r\n\r\n")
        await stream.write(behind)
        answer = await stream.read(4096)
    assert status(answer) == wanted
    assert b"came behind one that is not answered yet" in answer
    assert world.app.disconnected == 1


@pytest.mark.parametrize(
    ("behind", "wanted"),
    [(b"nonsense\r\n\r\n", 400), (CHUNKED + b"0\r\na: " + b"b" * (3 << 16), 431)],
)
async def test_what_is_refused_behind_a_request_does_not_end_that(
    autojump_clock: MockClock, world: World, behind: bytes, wanted: int
) -> None:
    async with world.connection() as stream:
        await stream.write(b"GET /listen HTTP/1.1\r\nhost: s\r\n\r\n" + behind)
        await trio.testing.wait_all_tasks_blocked()
        assert world.app.disconnected == 0
        world.app.go_on.set()
        answer = await received(stream)
    assert status(answer) == 200
    assert status(answer.partition(b"\r\n\r\n-")[2]) == wanted
    async with world.connection() as stream:
        await stream.write(b"GET /wait HTTP/1.1\r\nhost: s\r\n\r\n" + behind)
        await trio.testing.wait_all_tasks_blocked()
    await until("its end is noticed", lambda: world.app.disconnected == 1)


async def test_who_says_that_nothing_more_comes_has_hung_up(
    autojump_clock: MockClock, world: World
) -> None:
    async with world.connection() as stream:
        await stream.write(b"GET /wait HTTP/1.1\r\nhost: s\r\n\r\n")
        stream._transport.outgoing.finish(broken=False)
        answer = await received(stream)
    assert status(answer) == 400
    assert b"which is hanging up" in answer


def test_a_door_has_no_more_connections_than_there_are_files_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "most_at_door", lambda: 192)
    assert Server(App(), Limits(connections=1_000)).most == 192
    assert Server(App(), Limits(connections=100)).most == 100


# --- forms of answers -----------------------------------------------------------------------------


async def test_answers_of_unknown_length(autojump_clock: MockClock, world: World) -> None:
    chunked = await world.ask(b"GET /parts HTTP/1.1\r\nhost: s\r\nconnection: close\r\n\r\n")
    assert b"transfer-encoding: chunked" in chunked
    assert chunked.endswith(b"5\r\npart,\r\n1\r\n-\r\n0\r\n\r\n")
    plain = await world.ask(b"GET /parts HTTP/1.0\r\nhost: s\r\n\r\n")
    assert b"transfer-encoding" not in plain
    assert plain.endswith(b"part,part,part,-")


async def test_head_has_no_body(autojump_clock: MockClock, world: World) -> None:
    answer = await world.ask(b"HEAD / HTTP/1.1\r\nhost: s\r\nconnection: close\r\n\r\n")
    assert b"content-length: 1\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


async def test_half_an_answer_ends_the_connection(autojump_clock: MockClock, world: World) -> None:
    answer = await world.ask(b"GET /early HTTP/1.1\r\nhost: s\r\n\r\n")
    assert status(answer) == 500


async def test_nothing_is_written_behind_what_was_cut_half_way(
    autojump_clock: MockClock, world: World
) -> None:
    """It was taken for the rest of it, and the connection was kept."""
    world.app.cut_s = 1.0
    async with world.connection() as stream:
        await stream.write(b"GET /cut HTTP/1.1\r\nhost: s\r\n\r\n")
        await trio.sleep(2.0)
        answer = await received(stream)
    assert b"behind" not in answer
    assert not answer.endswith(b"0\r\n\r\n")
    assert world.server.connections == 0


async def test_what_stands_behind_a_body_is_none_of_the_headers(
    autojump_clock: MockClock, world: World
) -> None:
    await world.ask(CHUNKED + b"1\r\na\r\n0\r\nidempotency-key: 1\r\nhost: t\r\n\r\n")
    assert world.app.bodies == [b"a"]
    assert world.app.headers == [(b"host", b"s"), (b"transfer-encoding", b"chunked")]


async def test_a_body_is_asked_for_when_it_is_wanted(
    autojump_clock: MockClock, world: World
) -> None:
    async with world.connection() as stream:
        await stream.write(HEAD + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        assert await stream.read(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        await stream.write(b"ok")
        assert status(await stream.read(4096)) == 200


async def test_a_body_is_not_asked_for_by_who_does_not_know_the_word_or_is_answered_already(
    autojump_clock: MockClock, world: World
) -> None:
    for line in (b"POST / HTTP/1.0", b"POST /answered HTTP/1.1"):
        async with world.connection() as stream:
            await stream.write(line + b"\r\nhost: s\r\nexpect: 100-continue\r\n")
            await stream.write(b"content-length: 2\r\n\r\n")
            await trio.testing.wait_all_tasks_blocked()
            await stream.write(b"ok")
            answer = await received(stream)
        assert status(answer) == 200
        assert b"100 Continue" not in answer
    assert world.app.bodies == [b"ok", b"ok"]


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"http://other:80/a/b?c=d", b"/a/b", b"c=d"),
        (b"HTTP://other:80?c=d", b"/", b"c=d"),
        (b"http://other:80", b"/", b""),
    ],
)
async def test_a_target_may_name_the_host(
    autojump_clock: MockClock, world: World, target: bytes, path: bytes, query: bytes
) -> None:
    """As `curl` asks a proxy; servers must take it (RFC 9112, 3.2.2)."""
    head = b" HTTP/1.1\r\nhost: s\r\na: b\r\nconnection: close\r\n\r\n"
    assert status(await world.ask(b"GET " + target + head)) == 200
    assert world.app.target == (path, query)
    assert world.app.headers[:2] == [(b"host", b"other:80"), (b"a", b"b")]


async def test_no_other_protocol_is_switched_to(autojump_clock: MockClock, world: World) -> None:
    answer = await world.ask(
        b"GET / HTTP/1.1\r\nhost: s\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
        b"POST / HTTP/1.1\r\nhost: s\r\ncontent-length: 6\r\n\r\nbehind"
    )
    assert status(answer) == 200
    assert answer.endswith(b"behind"), "it goes on as it was"


# --- a node that is about to stop -----------------------------------------------------------------


async def test_who_asks_for_nothing_is_let_go_as_the_node_stops(
    autojump_clock: MockClock, world: World
) -> None:
    async with world.connection() as new, world.connection() as kept, world.connection() as begun:
        await kept.write(HEAD + b"content-length: 0\r\n\r\n")
        assert status(await kept.read(4096)) == 200
        await begun.write(HEAD)
        await trio.testing.wait_all_tasks_blocked()
        began_s = trio.current_time()
        world.server.drain()
        assert [await received(each) for each in (new, kept, begun)] == [b"", b"", b""]
        assert trio.current_time() == began_s
    assert world.server.connections == 0


async def test_no_other_request_is_taken_as_the_node_stops(
    autojump_clock: MockClock, world: World
) -> None:
    """Those that came later were cut off, though they may have been done."""
    async with world.connection() as stream:
        await stream.write(b"GET /hold HTTP/1.1\r\nhost: s\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked()
        world.server.drain()
        await stream.write(HEAD + b"content-length: 1\r\n\r\nx")
        world.app.go_on.set()
        answer = await received(stream)
        assert status(answer) == 200
        assert b"connection: close\r\n" in answer
    assert world.app.bodies == [b""]


async def test_http2_takes_no_other_request_as_the_node_stops(
    autojump_clock: MockClock, world: World
) -> None:
    async with by_hand(world) as peer, by_hand(world) as idle:
        held = await peer.ask("GET", "/hold", end=True)
        await trio.testing.wait_all_tasks_blocked()
        world.server.drain()
        await until("told", lambda: idle.ended is not None)
        await until("nobody asks there", lambda: world.server.connections == 1)
        late = await peer.ask("GET", "/", end=True)
        await until("refused", lambda: late in peer.resets)
        assert peer.resets == {late: ErrorCodes.REFUSED_STREAM}
        assert peer.ended is None
        world.app.go_on.set()
        await until("answered", lambda: held in peer.whole)
        await until("told", lambda: peer.ended is not None)
        assert peer.ended is not None
        assert peer.ended.error_code == ErrorCodes.NO_ERROR
        await until("closed", lambda: world.server.connections == 0)
    assert world.app.bodies == [b""]


# --- HTTP/2 ---------------------------------------------------------------------------------------


async def test_http2_says_the_same(autojump_clock: MockClock, world: World) -> None:
    network = world.network.host("client")
    async with http_at(network, "s:80", http2=True) as http:
        async with trio.open_nursery() as nursery:
            found: list[httpx.Response] = []

            async def ask(number: int) -> None:
                found.append(await http.post("/", content=b"%d" % number))

            for number in range(20):
                nursery.start_soon(ask, number)
        assert {each.http_version for each in found} == {"HTTP/2"}
        assert sorted(each.content for each in found) == sorted(b"%d" % n for n in range(20))
        assert world.server.connections == 1


@pytest.mark.parametrize(
    ("path", "headers", "wanted"),
    [
        ("/?" + "a" * bounds.MAX_TARGET_BYTES, {}, 414),
        ("/", {"x": "a" * (bounds.MAX_HEADER_BYTES + 1)}, 431),
        ("/", {f"x{number}": "1" for number in range(bounds.MAX_HEADERS)}, 431),
        ("/", {"x": "a" * (bounds.MAX_HEADER_BYTES - 1_000)}, 200),
    ],
)
async def test_http2_has_the_bounds_of_a_head_too(
    autojump_clock: MockClock, world: World, path: str, headers: dict[str, str], wanted: int
) -> None:
    async with http_at(world.network.host("client"), "s:80", http2=True) as http:
        answer = await http.get(path, headers=headers)
        assert (answer.http_version, answer.status_code) == ("HTTP/2", wanted)
        if wanted != 200:
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["hint"]
        assert (await http.get("/")).status_code == 200, "the connection goes on"


async def test_http2_with_a_body_that_stalls(autojump_clock: MockClock, world: World) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"some"
        await trio.sleep_forever()

    async with http_at(world.network.host("client"), "s:80", http2=True) as http:
        with trio.move_on_after(QUICK.stall_s + 2):
            await http.post("/", content=body())
        assert world.app.disconnected == 1


async def test_http2_with_an_answer_that_nobody_reads(
    autojump_clock: MockClock, world: World
) -> None:
    async with http_at(world.network.host("client"), "s:80", http2=True) as http:
        async with http.stream("POST", "/flood") as answer:
            assert answer.status_code == 200
            await trio.sleep(QUICK.stall_s + 1)
            assert world.app.unread == 1
            with pytest.raises(httpx.RemoteProtocolError):
                await answer.aread()
        answer = await http.post("/", content=b"others")
        assert answer.content == b"others", "go on"


async def test_http2_with_an_answer_that_is_given_no_window(
    autojump_clock: MockClock, world: World
) -> None:
    """What comes is read, but nothing more may come."""
    async with by_hand(world, INITIAL_WINDOW_SIZE=0) as peer:
        number = await peer.ask("GET", "/flood", end=True)
        await until("cut off", lambda: number in peer.resets)
        assert peer.resets == {number: ErrorCodes.INTERNAL_ERROR}
        assert world.app.unread == 1
        assert world.app.flooded <= 1 << 16


async def test_http2_with_an_answer_that_is_taken_bit_by_bit(
    autojump_clock: MockClock, world: World
) -> None:
    """In more time than one may pass without a byte."""
    async with by_hand(world) as peer:
        peer.pause_s = QUICK.stall_s * 0.1
        number = await peer.ask("GET", "/large", end=True)
        await until("answered", lambda: number in peer.whole)
        assert len(peer.bodies[number]) == 1 << 20


@pytest.mark.parametrize("opens", [True, False])
async def test_http2_with_an_answer_whose_end_waits_for_its_reader(
    autojump_clock: MockClock, world: World, *, opens: bool
) -> None:
    """All of it is there, and its reader slow: that is no answer that was cut short."""
    world.app.cut_s = 1.0
    async with by_hand(world, INITIAL_WINDOW_SIZE=0) as peer:
        asked = [await peer.ask("GET", "/last", end=True) for _ in range(10)]
        await trio.sleep(2.0)
        peer.h2.increment_flow_control_window(1 << 20)
        for number in asked if opens else ():
            peer.h2.increment_flow_control_window(20_000, number)
        await peer.flush()
        await until("ended", lambda: peer.whole | peer.resets.keys() == set(asked))
        assert peer.whole == (set(asked) if opens else set())
        assert {len(each) for each in peer.bodies.values()} == ({20_000} if opens else set())


async def test_http2_with_half_an_answer(autojump_clock: MockClock, world: World) -> None:
    async with http_at(world.network.host("client"), "s:80", http2=True) as http:
        began_s = trio.current_time()
        with pytest.raises(httpx.RemoteProtocolError):
            await http.post("/early")
        assert trio.current_time() - began_s < 1, "not only when the connection ends"
        assert (await http.post("/")).status_code == 200


async def test_http2_with_requests_that_are_taken_back(
    autojump_clock: MockClock, world: World
) -> None:
    async with world.connection() as stream:
        peer = h2.connection.H2Connection()
        peer.initiate_connection()
        await stream.write(peer.data_to_send())
        ended: list[h2.events.ConnectionTerminated] = []
        settled: list[h2.events.Event] = []

        async def read() -> None:
            while data := await stream.read(1 << 16):
                for event in peer.receive_data(data):
                    if isinstance(event, h2.events.ConnectionTerminated):
                        ended.append(event)
                    if isinstance(event, h2.events.ResponseReceived):
                        settled.append(event)

        async def take_back(count: int) -> None:
            for _ in range(count):
                number = peer.get_next_available_stream_id()
                peer.send_headers(number, [*HEADERS, (":path", "/wait")])
                peer.reset_stream(number)
                # A frame in pieces is a frame.
                data = peer.data_to_send()
                await stream.write(data[:-7])
                await stream.write(data[-7:])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            # Without a request it would not be kept so long.
            number = peer.get_next_available_stream_id()
            peer.send_headers(number, [*HEADERS, (":path", "/wait")], end_stream=True)
            await take_back(150)
            await trio.sleep(100)
            await take_back(150)
            number = peer.get_next_available_stream_id()
            peer.send_headers(number, [*HEADERS, (":path", "/")], end_stream=True)
            await stream.write(peer.data_to_send())
            await trio.sleep(1)
            assert settled, "some dozens are nobody's concern"
            assert not ended
            with contextlib.suppress(OSError):
                await take_back(300)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert [each.error_code for each in ended] == [ErrorCodes.ENHANCE_YOUR_CALM]
    await trio.sleep(1)
    assert world.server.connections == 0


@asynccontextmanager
async def by_hand(world: World, **settings: int) -> AsyncIterator[Http2]:
    """Somebody who has begun to speak HTTP/2."""
    async with world.connection() as stream, trio.open_nursery() as nursery:
        peer = Http2(stream, "s")
        if settings:
            peer.h2.update_settings({SettingCodes[name]: each for name, each in settings.items()})
        await peer.flush()
        nursery.start_soon(peer.run)
        yield peer
        nursery.cancel_scope.cancel()


async def test_http2_with_a_body_that_nobody_reads_and_an_answer_that_nobody_takes(
    autojump_clock: MockClock, world: World
) -> None:
    """Neither keeps the connection from being read, nor from its end."""
    async with by_hand(world, INITIAL_WINDOW_SIZE=0) as peer:
        number = await peer.ask("POST", "/unread")
        await peer.send(number, *[b"1"] * 12)
        await trio.sleep(2 * QUICK.stall_s + 0.1)
        assert peer.resets == {number: ErrorCodes.INTERNAL_ERROR}
        await trio.sleep(QUICK.idle_s)
        assert world.server.connections == 0


async def test_http2_with_a_body_that_is_refused_half_way(
    autojump_clock: MockClock, world: World
) -> None:
    """The rest of it is not wanted, and nobody else's concern."""
    async with by_hand(world) as peer:
        await peer.ask("GET", "/wait", end=True)
        number = await peer.ask("POST", "/unread", content_length="20000000")
        await until("answered", lambda: number in peer.resets)
        assert peer.statuses[number] == 200
        assert (peer.bodies[number], peer.whole) == (b"-", {number})
        assert peer.resets == {number: ErrorCodes.NO_ERROR}
        # What was on its way by then.
        late = DataFrame(number, b"x" * 16_384).serialize()
        for _ in range(100):
            await peer.stream.write(late)
        other = await peer.ask("POST", "/", end=True)
        await until("answered", lambda: other in peer.whole)
        assert world.app.disconnected == 0
        assert peer.h2.outbound_flow_control_window > 65_535


async def test_http2_with_a_body_that_is_held_back(autojump_clock: MockClock, world: World) -> None:
    """It waits by flow control, whatever comes on the connection meanwhile, also its end."""
    async with by_hand(world) as peer:
        held = await peer.ask("POST", "/hold")
        await until("settled", lambda: peer.h2.outbound_flow_control_window > 65_535)
        await peer.send(held, *[b"x" * 13_107] * 5)
        other = await peer.ask("POST", "/")
        await peer.send(other, *[b"y" * 13_107] * 5)
        assert peer.h2.local_flow_control_window(held) == 0
        await until("taken", lambda: peer.h2.local_flow_control_window(other) > 0)
        await peer.send(other, end=True)
        await until("answered", lambda: other in peer.whole)
        assert (world.app.bodies, world.app.disconnected) == ([b"y" * 65_535], 0)
        assert peer.h2.local_flow_control_window(held) == 0
        world.app.go_on.set()
        await until("taken", lambda: peer.h2.local_flow_control_window(held) > 0)
        await peer.send(held, *[b"x"] * 20, end=True)
        await until("answered", lambda: held in peer.whole)
        assert len(world.app.bodies[-1]) == 65_555


async def test_http2_forgets_what_is_taken_back(autojump_clock: MockClock, world: World) -> None:
    async with by_hand(world) as peer:
        for _ in range(1_100):
            peer.h2.reset_stream(await peer.ask("GET", "/wait", end=True))
            await trio.sleep(2 / bounds.RESETS_PER_S)
        number = await peer.ask("POST", "/", end=True)
        await until("answered", lambda: number in peer.whole)
        assert peer.ended is None
        peer.h2.reset_stream(await peer.ask("GET", "/wait", end=True))
        await peer.flush()
        await trio.sleep(QUICK.idle_s + 0.1)
        assert world.server.connections == 0, "it has no request any more"


async def test_http2_without_a_request_is_let_go(autojump_clock: MockClock, world: World) -> None:
    async with by_hand(world) as peer:
        number = await peer.ask("POST", "/", end=True)
        await until("answered", lambda: number in peer.whole)
        for _ in range(3):
            await trio.sleep(QUICK.idle_s / 3 + 0.1)
            if world.server.connections:
                peer.h2.ping(b"are here")
                await peer.flush()
        assert world.server.connections == 0


@pytest.mark.parametrize("path", ["/hold", "/hold/large"])
async def test_http2_that_is_left_answers_what_it_has(
    autojump_clock: MockClock, world: World, path: str
) -> None:
    """GOAWAY without an error: no more requests come, those under way are waited for."""
    async with by_hand(world) as peer:
        number = await peer.ask("POST", path, end=True)
        leaves = GoAwayFrame(0, last_stream_id=0, error_code=ErrorCodes.NO_ERROR).serialize()
        before = peer.h2.get_next_available_stream_id()
        peer.h2.send_headers(before, [*HEADERS, (":path", "/")], end_stream=True)
        # What comes with it in one piece counts.
        ping = PingFrame(0, b"are here").serialize()
        await peer.stream.write(peer.h2.data_to_send() + leaves + ping)
        late = await peer.ask("POST", "/", end=True)
        await until("refused", lambda: late in peer.resets)
        assert peer.resets == {late: ErrorCodes.REFUSED_STREAM}
        await until("answered", lambda: before in peer.whole)
        assert world.server.connections == 1
        world.app.go_on.set()
        await until("answered", lambda: number in peer.whole)
        assert len(peer.bodies[number]) == (1 << 20 if path == "/hold/large" else 1)
        await until("ended", lambda: not world.server.connections)
        assert world.app.disconnected == 0


@pytest.mark.parametrize("code", [ErrorCodes.NO_ERROR, ErrorCodes.INTERNAL_ERROR])
async def test_http2_that_is_left_with_nothing_under_way_ends(
    autojump_clock: MockClock, world: World, code: ErrorCodes
) -> None:
    async with by_hand(world) as peer:
        number = await peer.ask("POST", "/", end=True)
        await until("answered", lambda: number in peer.whole)
        if code is not ErrorCodes.NO_ERROR:
            # Nor does it wait for anything then.
            await peer.ask("POST", "/wait", end=True)
        began_s = trio.current_time()
        await peer.stream.write(GoAwayFrame(0, last_stream_id=0, error_code=code).serialize())
        await until("ended", lambda: not world.server.connections)
        assert trio.current_time() - began_s < QUICK.idle_s / 2


async def test_http2_refuses_what_is_no_request(autojump_clock: MockClock, world: World) -> None:
    async with by_hand(world) as peer:
        peer.h2.config.validate_outbound_headers = False
        tunnel = peer.h2.get_next_available_stream_id()
        peer.h2.send_headers(tunnel, [(":method", "CONNECT"), (":authority", "s")])
        odd = await peer.ask("GET", "/\u00fc", end=True)
        other = await peer.ask("POST", "/", end=True)
        await until("answered", lambda: other in peer.whole)
        assert dict.fromkeys((tunnel, odd), ErrorCodes.PROTOCOL_ERROR) == peer.resets
