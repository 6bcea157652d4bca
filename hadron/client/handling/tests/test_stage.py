"""A stage's loop over its invocations, without a leader."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import trio
from trio.testing import MockClock

from hadron.client.handling.invocation import StageInvocation
from hadron.client.handling.stage import StageInvocations, StageSettings
from hadron.client.pipelines.stage_run import ReadyStages
from hadron.model.errors import ConnectionLostError
from hadron.model.pipelines import StageSpec
from hadron.wire.messages import pipelines_pb2

HERE, AWAY = "eu", "us"


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


class Program:
    """With room for `most` invocations.

    Attributes:
        credit: that its leader was given.
        is_mute: who is away does not even refuse.
        tasks: of the client's own.
    """

    def __init__(self, nursery: trio.Nursery, most: int) -> None:
        self.credit = most
        self.is_mute = self.is_back = False
        self.tasks = 0
        self._nursery = nursery
        session: Any = SimpleNamespace(
            background=SimpleNamespace(start=self._start),
            ports=SimpleNamespace(random=random.Random(1), clock=SimpleNamespace(now_ms=lambda: 0)),
            closed=None,
            check_open=lambda: None,
        )
        settings = StageSettings(
            pipeline="p",
            stage="s",
            max_in_flight=most,
            value_serializer=None,
            value_deserializer=None,
            runner="",
            code_version="",
        )
        self.ready = ReadyStages(
            session, HERE, pipelines_pb2.RunStagesRequest(credit=most), takes_ahead=True
        )
        call: Any = SimpleNamespace(send=self._hear, consumed=lambda _size: None, end=lambda: None)
        self.ready.opened(call)
        calls: Any = SimpleNamespace(
            ready=self._open, complete=self._complete, home_of=self._home_of
        )
        self.stage = StageInvocations(session, calls, cast(Any, None), settings)
        fetched: Any = SimpleNamespace(get=self._get)
        self.stage._fetched = self.stage._absences._fetched = fetched

    def _start(self, function: Any, *args: Any) -> trio.CancelScope:
        scope = trio.CancelScope()

        async def run() -> None:
            try:
                with scope:
                    await function(*args)
            finally:
                self.tasks -= 1

        self.tasks += 1
        self._nursery.start_soon(run)
        return scope

    def _hear(self, message: pipelines_pb2.RunStagesRequest) -> None:
        self.credit += message.credit

    async def _open(self, *_: Any, **__: Any) -> ReadyStages:
        return self.ready

    async def _complete(self, *_: Any) -> pipelines_pb2.CompleteStagesResponse:
        return pipelines_pb2.CompleteStagesResponse()

    async def _home_of(self, _pipeline_id: int) -> str:
        return HERE

    async def _get(self, ref: pipelines_pb2.RecordRef, _micro_batch: int) -> Any:
        if ref.partition == AWAY and not self.is_back:
            if self.is_mute:
                await trio.sleep_forever()
            raise ConnectionLostError("away")
        return "a record"

    def receive(self, *partitions: str) -> None:
        """A micro-batch with an invocation of each."""
        spec = msgspec.json.encode(StageSpec(name="s", timeout_ms=60_000)).decode()
        invocations = [
            pipelines_pb2.Invocation(
                instance_id=number,
                attempt=1,
                root=pipelines_pb2.RecordRef(stream="in", stream_id=1, partition=partition),
            )
            for number, partition in enumerate(partitions, 1)
        ]
        self.ready.received(
            pipelines_pb2.Invocations(stage="s", number=1, spec=spec, invocations=invocations),
            memoryview(b""),
        )

    async def hand_out_nothing(self) -> None:
        async for invocation in self.stage:
            raise AssertionError(invocation)


@pytest.fixture
async def nursery(clock: MockClock) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def _nobody_dials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReadyStages, "start", lambda _self: None)


def rolled_back(invocation: StageInvocation) -> None:
    """A transaction was to end it."""
    invocation._given.claim()
    assert invocation.is_ended
    invocation._given._unclaim()
    assert not invocation.is_ended


async def test_what_is_rolled_back_again_and_again_has_its_place_until_it_ends(
    nursery: trio.Nursery,
) -> None:
    program = Program(nursery, most=1)
    program.receive(HERE, HERE)
    first = await anext(program.stage)
    for _ in range(3):
        rolled_back(first)
        await trio.sleep(1)
    with trio.move_on_after(10) as scope:
        await anext(program.stage)
    assert scope.cancelled_caught
    await first.complete()
    second = await anext(program.stage)
    assert second.instance_id == 2
    await second.complete()
    # Its leader was told of room for them once.
    program.receive(HERE)
    assert program.credit == 1 + 2
    assert not program.stage._late._keys
    assert not program.stage._late._open
