"""Bodies that are taken as a whole: all together are bounded, and none may drip for ever."""
# ruff: noqa: ARG001 - time passes by the clock that each test asks for

from __future__ import annotations

import pytest
import trio
from starlette.responses import Response
from trio.testing import MockClock

from hadron.doors.http import limits as bounds
from hadron.doors.http.asgi import Message
from hadron.doors.http.call import Call, Room, room_of
from hadron.doors.http.limits import Limits
from hadron.doors.http.problems import HttpError
from hadron.model.errors import OverloadedError

SMALL = Limits(held_bytes=10, body_s=1.0)


def call_with(room: Room, *chunks: bytes, pause_s: float = 0.0) -> Call:
    left = list(chunks)

    async def receive() -> Message:
        await trio.sleep(pause_s)
        data = left.pop(0)
        return {"type": "http.request", "body": data, "more_body": bool(left)}

    async def send(_: Message) -> None:
        raise AssertionError

    return Call({"headers": []}, receive, send, room)


async def test_all_bodies_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "SMALL_BYTES", 0)
    room = room_of(SMALL)
    first = call_with(room, b"12345", b"678")
    assert await first.body() == b"12345678"
    second = call_with(room, b"1", b"23")
    with pytest.raises(OverloadedError, match="2 more are over its limit of 10"):
        await second.body()
    second.let_go()
    first.let_go()
    assert len(await call_with(room, b"x" * 10).body()) == 10


async def test_a_small_body_has_room_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of acknowledgements and polls, whatever others hold."""
    monkeypatch.setattr(bounds, "SMALL_BYTES", 3)
    room = room_of(SMALL)
    assert len(await call_with(room, b"x" * 10).body()) == 10
    assert await call_with(room, b"12", b"3").body() == b"123"
    with pytest.raises(OverloadedError):
        await call_with(room, b"12", b"34").body()


async def test_an_answer_that_is_read_in_drips_ends(autojump_clock: MockClock) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        await trio.sleep(0.8)
        sent.append(message)

    call = call_with(room_of(SMALL))
    call.send = send
    call.scope["type"] = "http"
    with pytest.raises(OSError, match="not read within 1 s"):
        await call.respond(Response(b"x"), is_done=True)
    assert len(sent) == 1


async def test_a_body_that_drips_ends(autojump_clock: MockClock) -> None:
    room = room_of(SMALL)
    with pytest.raises(HttpError, match="not complete within 1 s"):
        await call_with(room, *[b"1"] * 9, pause_s=0.2).body()
