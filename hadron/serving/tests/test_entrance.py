"""What a call passes before its handler has it."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from hadron.model.errors import NotLeaderError, NotReadyError
from hadron.serving.entrance import Entrance, Led
from hadron.serving.leading import Door, Leading
from hadron.wire.calls import AnyCall
from hadron.wire.local_calls import LocalConnection
from hadron.wire.messages import METHODS, Audience, Method
from hadron.wire.services import Served

LED = {"Produce", "Probe"}
"""Methods that only a leader serves here."""

LEADING = cast(Leading, SimpleNamespace(replica_set="local/p0"))


class Service:
    """Answers every method, and notes which were let in."""

    def __init__(self) -> None:
        self.let_in: list[str] = []

    def methods(self) -> list[Served | Led]:
        return [
            Led(each, self._lead) if each.name in LED else Served(each, self._serve)
            for each in METHODS.values()
        ]

    def _serve(self, call: Any, _request: Any, _attachment: memoryview) -> None:
        self.let_in.append(call.method.name)
        call.send(call.method.response(), end=True)

    def _lead(self, leading: Leading, call: Any, request: Any, attachment: memoryview) -> None:
        assert leading is LEADING
        self._serve(call, request, attachment)


def shake_hands_first(_call: AnyCall) -> None:
    raise NotReadyError("shake hands first")


@asynccontextmanager
async def opened(door: Door) -> AsyncIterator[tuple[LocalConnection, Service]]:
    service = Service()
    handlers = Entrance(door, shake_hands_first).handlers(service.methods())
    connection = LocalConnection(handlers)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        yield connection, service
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("method", METHODS.values(), ids=str)
async def test_who_may_call_is_asked_before_anything_else(
    method: Method, autojump_clock: MockClock
) -> None:
    async with opened(Door("n2", "n1", "n1:7000")) as (connection, service):
        if method.audience is Audience.MEMBERS:
            with pytest.raises(NotReadyError, match="shake hands first"):
                await connection.request(method, method.request())
        elif method.name in LED:
            with pytest.raises(NotLeaderError, match="the leader is n1 at n1:7000"):
                await connection.request(method, method.request())
        else:
            await connection.request(method, method.request())
            assert service.let_in == [method.name]
            return
        assert service.let_in == []


async def test_a_leader_serves_what_leaders_do(autojump_clock: MockClock) -> None:
    door = Door("n1", "n1", "n1:7000")
    [produce] = [each for each in METHODS.values() if each.name == "Produce"]
    async with opened(door) as (connection, service):
        with pytest.raises(NotReadyError, match="node n1 does not serve"):
            await connection.request(produce, produce.request())
        door.open(LEADING)
        await connection.request(produce, produce.request())
        assert service.let_in == ["Produce"]
        door.close()
        with pytest.raises(NotReadyError):
            await connection.request(produce, produce.request())


def test_a_method_that_nothing_serves_or_two_do_is_named() -> None:
    entrance = Entrance(Door("n1", "n1", ""), shake_hands_first)
    [first, *others] = Service().methods()
    with pytest.raises(AssertionError, match=f"nothing serves {first.method}"):
        entrance.handlers(others)
    with pytest.raises(AssertionError, match=f"{first.method} is served twice"):
        entrance.handlers([first, first, *others])
