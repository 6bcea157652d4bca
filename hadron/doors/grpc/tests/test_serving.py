"""What the door keeps for a program that serves, whose other side is here a list."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from hadron.client.endpoints.incoming import IncomingCall
from hadron.client.endpoints.items import Packed
from hadron.doors.grpc.bridge import Lane
from hadron.doors.grpc.limits import WINDOW_BYTES
from hadron.doors.grpc.rpc import Rpc, Talk
from hadron.doors.grpc.serving import Served
from hadron.doors.held import Held
from hadron.model.errors import CallFailedError, DeadlineExceededError
from hadron.model.record import BYTES, JSON, TEXT
from hadron.wire._pb import calls_pb2 as pb
from hadron.wire._pb import records_pb2


class Scene:
    """A Serve call, and what was told to its program."""

    def __init__(self, nursery: trio.Nursery, held_bytes: int, *, is_single: bool) -> None:
        self.told: list[bytes] = []
        self.unread = 0
        other: Any = SimpleNamespace(send=self.told.append)
        self.rpc = Rpc(
            Lane(lambda drain: drain()), other, "/a/Serve", {}, "", on_consumed=self._consumed
        )
        self.held = Held(held_bytes, "calls", "")
        self.rpc.share = self.held.share()
        self.served = Served(Talk(self.rpc), nursery, 10, is_single=is_single)
        self.served.opened.set()

    def _consumed(self, size: int) -> None:
        self.unread -= size

    async def listen(self, silence_s: float) -> None:
        serving: Any = None
        await self.served.listen(serving, silence_s)

    def say(self, **said: Any) -> None:
        data = pb.ServerRequest(**said).SerializeToString()
        self.unread += len(data)
        self.rpc.receive(data)

    def answer(self, id: int, value: bytes) -> None:
        self.say(answer=pb.ServerRequest.Answer(id=id, value=records_pb2.Value(data=value)))


def incoming() -> IncomingCall:
    return IncomingCall("e", {}, "a test", 1, 60.0, lambda: 0.0)


async def test_values_of_calls_count_as_held_until_they_are_over() -> None:
    async with trio.open_nursery() as nursery:
        scene = Scene(nursery, 2_000, is_single=True)
        nursery.start_soon(scene.served.answer, (BYTES, b"x" * 900), incoming())
        await trio.testing.wait_all_tasks_blocked()
        scene.rpc.written(len(scene.told[0]))
        assert 900 < scene.held.bytes < 910
        with pytest.raises(CallFailedError, match="over its limit of 2000") as caught:
            await scene.served.answer((BYTES, b"x" * 1_200), incoming())
        assert (caught.value.type, caught.value.retryable) == ("OverloadedError", True)
        nursery.start_soon(scene.listen, float("inf"))
        scene.answer(1, b"y")
        await trio.testing.wait_all_tasks_blocked()
        assert (scene.held.bytes, scene.unread) == (0, 0)
        nursery.cancel_scope.cancel()


async def test_an_answer_that_is_not_taken_holds_its_program_and_does_not_make_it_silent(
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001 - time passes by it
) -> None:
    async with trio.open_nursery() as nursery:
        scene = Scene(nursery, 10 << 20, is_single=False)
        answer = scene.served.answer_all(None, incoming())
        taken: list[Any] = []

        async def take_one() -> None:
            taken.append(await anext(answer))

        nursery.start_soon(take_one)
        await trio.testing.wait_all_tasks_blocked()
        failures: list[Exception] = []

        async def listen() -> None:
            try:
                await scene.listen(1.0)
            except DeadlineExceededError as error:
                failures.append(error)

        nursery.start_soon(listen)
        for _ in range(3):
            scene.answer(1, bytes(WINDOW_BYTES))
        await trio.sleep(30)
        assert taken == [bytes(WINDOW_BYTES)]
        assert scene.unread > 2 * WINDOW_BYTES, "nobody has taken the others"
        assert not failures
        assert len([await anext(answer), await anext(answer)]) == 2
        assert scene.unread == 0
        await trio.sleep(3)
        assert "has said nothing for 1 s" in str(failures[0])
        scene.say(end=pb.ServerRequest.End(id=1))
        nursery.start_soon(scene.listen, 60.0)
        with pytest.raises(StopAsyncIteration):
            await anext(answer)
        nursery.cancel_scope.cancel()


async def test_a_callers_broken_input_is_told_to_both_and_keeps_the_slot(
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001
) -> None:
    """Until the program's last word: it may still be at work."""

    async def broken() -> AsyncIterator[Packed]:
        yield TEXT, b"good"
        raise ValueError("half a value")

    async with trio.open_nursery() as nursery:
        scene = Scene(nursery, 10_000, is_single=True)
        nursery.start_soon(scene.listen, float("inf"))
        outcome: list[Exception] = []

        async def call() -> None:
            try:
                await scene.served.answer(broken(), incoming())
            except CallFailedError as error:
                outcome.append(error)

        nursery.start_soon(call)
        await trio.sleep(1)
        said = [pb.ServerEvent.FromString(each).WhichOneof("said") for each in scene.told]
        assert said == ["call", "input", "cancelled"]
        assert not outcome
        scene.say(end=pb.ServerRequest.End(id=1))
        await trio.sleep(1)
        (error,) = outcome
        assert isinstance(error, CallFailedError)
        assert (error.type, error.message) == (
            "ValueError",
            "the input cannot be read: half a value",
        )
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("given", [(JSON, b"{"), (JSON, b"\xff"), (TEXT, b"\xff")])
async def test_a_value_that_is_not_what_it_says_is_told_its_caller(given: Packed) -> None:
    async with trio.open_nursery() as nursery:
        scene = Scene(nursery, 10_000, is_single=True)
        with pytest.raises(CallFailedError, match="and is none") as caught:
            await scene.served.answer(given, incoming())
        assert caught.value.type == "ValidationError"
        assert not scene.told
