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
from hadron.model.errors import ConnectionLostError, RequestError
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
        answers: that who is away gives before it is away again.
        takes_s: until any answer is here.
        tasks: of the client's own.
    """

    def __init__(self, nursery: trio.Nursery, most: int) -> None:
        self.credit = most
        self.answers = self.tasks = 0
        self.takes_s = 0.0
        self._nursery = nursery
        session: Any = SimpleNamespace(
            background=SimpleNamespace(start=self._start),
            ports=SimpleNamespace(random=random.Random(1), clock=SimpleNamespace(now_ms=lambda: 0)),
            closed=None,
            check_open=lambda: None,
            wait=lambda event: event.wait(),
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
        await trio.sleep(self.takes_s)
        if ref.partition == AWAY:
            if not self.answers:
                raise ConnectionLostError("away")
            self.answers -= 1
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
    clock: MockClock, nursery: trio.Nursery
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


async def test_in_place_of_one_that_waits_again_and_again_one_other_comes(
    clock: MockClock, nursery: trio.Nursery
) -> None:
    program = Program(nursery, most=4)
    given: list[StageInvocation] = []

    async def take_all() -> None:
        while True:
            given.append(await anext(program.stage))

    program.receive(*[AWAY] * 4)
    nursery.start_soon(take_all)
    for handed_out in range(4):
        await trio.sleep(10)
        assert len(given) == handed_out
        assert program.credit == 4 + 4
        program.answers = 1


async def test_many_that_wait_do_not_stop_the_loop(clock: MockClock, nursery: trio.Nursery) -> None:
    program, beats = Program(nursery, most=1_000), 0
    program.receive(*[AWAY] * 1_000)
    nursery.start_soon(program.hand_out_nothing)
    while program.stage._absences.count < 1_000:
        beats += 1
        await trio.lowlevel.checkpoint()
    assert beats > 500


@pytest.mark.parametrize("answers", [0, 1])
async def test_a_stage_that_is_closed_while_a_record_is_asked_for_leaves_nothing_behind(
    clock: MockClock, nursery: trio.Nursery, answers: int
) -> None:
    program = Program(nursery, most=1)
    program.takes_s, program.answers = 0.5, answers
    program.receive(AWAY)
    with trio.fail_after(10):
        async with trio.open_nursery() as looping:
            looping.start_soon(program.hand_out_nothing)
            await trio.sleep(0.2)
            program.stage.close()
    await trio.sleep(2)
    assert program.tasks == 0


async def test_what_is_no_handler_uses_up_no_attempt(
    clock: MockClock, nursery: trio.Nursery
) -> None:
    """A forgotten `return` of what makes one."""
    program = Program(nursery, most=1)
    program.receive(HERE)
    forgotten: Any = None
    with trio.fail_after(10), pytest.raises(RequestError, match="handler None cannot be called"):
        await program.stage.run(forgotten)
    assert program.stage._taken == 0
