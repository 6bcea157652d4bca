"""Invocations that wait for their records."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from hadron.client.handling.absences import Absences
from hadron.client.handling.micro_batches import MicroBatch
from hadron.client.handling.records import FetchedRecords, SentRecords
from hadron.model.errors import ConnectionLostError, NotFoundError
from hadron.model.pipelines import StageSpec
from hadron.wire.messages import pipelines_pb2


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


class Fetched:
    """Of partitions: what is raised of each, or `None` where nobody answers."""

    def __init__(self, **trouble: Exception | None) -> None:
        self.trouble = trouble
        self.asked: list[str] = []

    async def get(self, ref: pipelines_pb2.RecordRef, _micro_batch: int) -> str:
        self.asked.append(ref.partition)
        if ref.partition not in self.trouble:
            return "here"
        if (error := self.trouble[ref.partition]) is not None:
            raise error
        await trio.sleep_forever()
        raise AssertionError


class Program:
    """What has come to it with one call, a micro-batch with an invocation of each partition."""

    def __init__(self, nursery: trio.Nursery, fetched: Fetched) -> None:
        self.begun: list[MicroBatch] = []
        self.woken = trio.Event()
        session: Any = SimpleNamespace(
            background=SimpleNamespace(start=self._start),
            ports=SimpleNamespace(random=random.Random(1)),
            closed=None,
        )
        self._nursery = nursery
        self.absences = Absences(
            session, cast(FetchedRecords, fetched), self.woken.set, self.begun.extend
        )

    def _start(self, function: Any, *args: Any) -> trio.CancelScope:
        scope = trio.CancelScope()

        async def run() -> None:
            with scope:
                await function(*args)

        self._nursery.start_soon(run)
        return scope

    async def take(self, *partitions: str) -> MicroBatch:
        invocations = [
            pipelines_pb2.Invocation(
                instance_id=number,
                root=pipelines_pb2.RecordRef(stream="in", stream_id=1, partition=partition),
            )
            for number, partition in enumerate(partitions, 1)
        ]
        sent = pipelines_pb2.Invocations(stage="s", invocations=invocations)
        stage = StageSpec(name="s", timeout_ms=8_000)
        micro_batch = MicroBatch(sent, SentRecords(sent, memoryview(b""), None), stage, 0, 1)
        while micro_batch.left:
            turn = micro_batch.left.popleft()
            (ref,) = turn.references()
            if await self.absences.get(ref, 1) is None:
                self.absences.add(ref, turn)
        micro_batch.let_go()
        return micro_batch


@pytest.fixture
async def nursery(clock: MockClock) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("trouble", [None, ConnectionLostError("away")])
async def test_one_of_a_partition_that_is_away_is_waited_for(
    nursery: trio.Nursery, trouble: Exception | None
) -> None:
    """And not for long."""
    fetched = Fetched(us=trouble)
    program = Program(nursery, fetched)
    with trio.fail_after(1.5):
        await program.take("us", "eu", "us", "us")
    assert program.absences.count == 3
    assert fetched.asked == ["us", "eu"]


async def test_whatever_the_answer_is_all_of_its_partition_have_their_turns(
    nursery: trio.Nursery,
) -> None:
    fetched = Fetched(us=ConnectionLostError("away"))
    program = Program(nursery, fetched)
    await program.take("us", "eu", "us", "us")
    await trio.sleep(10)
    assert not program.absences.back
    fetched.trouble["us"] = NotFoundError("it is gone")
    await program.woken.wait()
    assert [each.invocation.instance_id for each in program.absences.back] == [1, 3, 4]
    assert program.absences.count == 0
    with pytest.raises(NotFoundError):
        await program.absences.get(program.absences.back[0].invocation.root, 1)


async def test_what_waits_is_said_to_be_worked_on_where_some_of_it_has_begun(
    nursery: trio.Nursery,
) -> None:
    program = Program(nursery, Fetched(us=ConnectionLostError("away")))
    await program.take("us")
    begun = await program.take("us")
    begun.said_s = trio.current_time()
    await trio.sleep(1)
    assert not program.begun
    await trio.sleep(2)
    assert begun in program.begun
    assert len(set(program.begun)) == 1


async def test_what_is_others_does_not_come_back(nursery: trio.Nursery) -> None:
    fetched = Fetched(us=ConnectionLostError("away"))
    program = Program(nursery, fetched)
    await program.take("us", "us")
    assert program.absences.clear() == 2
    await program.woken.wait()
    assert not program.absences.back
    del fetched.trouble["us"]
    await program.take("us")
    assert program.absences.count == 0


async def test_of_what_waits_the_rest_of_its_micro_batch_is_not_kept(nursery: trio.Nursery) -> None:
    program = Program(nursery, Fetched(us=ConnectionLostError("away")))
    micro_batch = await program.take("us", *["eu"] * 100)
    assert not micro_batch.sent.invocations
    (turn,) = next(iter(program.absences._waiting.values()))
    assert turn.invocation.root.partition == "us"


def test_all_else_that_is_said_of_a_micro_batch_is_kept() -> None:
    """A transaction says who has run it, and by which code."""
    large = {"invocations", "batches", "attachment"}
    fields = [
        each for each in pipelines_pb2.Invocations.DESCRIPTOR.fields if each.name not in large
    ]
    said: dict[str, Any] = {
        each.name: f"its {each.name}" if each.type == each.TYPE_STRING else each.number
        for each in fields
    }
    sent = pipelines_pb2.Invocations(invocations=[pipelines_pb2.Invocation()], **said)
    records = SentRecords(sent, memoryview(b""), None)
    micro_batch = MicroBatch(sent, records, StageSpec(name="s"), 0, 1)
    micro_batch.let_go()
    assert micro_batch.sent == pipelines_pb2.Invocations(**said)
