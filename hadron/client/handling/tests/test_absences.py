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
from hadron.client.handling.micro_batches import MicroBatch, Turn
from hadron.client.handling.records import FetchedRecords, SentRecords
from hadron.model.errors import ConnectionLostError, NotFoundError
from hadron.model.pipelines import StageSpec
from hadron.wire.messages import pipelines_pb2


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


class Fetched:
    """Of partitions: what is raised of each, or `None` where nobody answers.

    Attributes:
        held: what is here in spite of that, by offset.
        takes_s: until there is an answer.
    """

    def __init__(self, **trouble: Exception | None) -> None:
        self.trouble = trouble
        self.asked: list[str] = []
        self.held: set[int] = set()
        self.takes_s = 0.0

    async def get(self, ref: pipelines_pb2.RecordRef, _micro_batch: int) -> str:
        if ref.offset in self.held:
            return "held"
        self.asked.append(ref.partition)
        await trio.sleep(self.takes_s)
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
            session, cast(FetchedRecords, fetched), lambda: self.woken.set(), self.begun.extend
        )

    def _start(self, function: Any, *args: Any) -> trio.CancelScope:
        scope = trio.CancelScope()

        async def run() -> None:
            with scope:
                await function(*args)

        self._nursery.start_soon(run)
        return scope

    async def take(self, *partitions: str, dependencies: int = 0) -> MicroBatch:
        invocations = [
            pipelines_pb2.Invocation(
                instance_id=number,
                root=reference(partition, 0),
                dependencies=[reference(partition, 1 + offset) for offset in range(dependencies)],
            )
            for number, partition in enumerate(partitions, 1)
        ]
        sent = pipelines_pb2.Invocations(stage="s", invocations=invocations)
        stage = StageSpec(name="s", timeout_ms=8_000)
        micro_batch = MicroBatch(sent, SentRecords(sent, memoryview(b""), None), stage, 0, 1)
        while micro_batch.left:
            await self.run(micro_batch.left.popleft())
        micro_batch.let_go()
        return micro_batch

    async def run(self, turn: Turn) -> bool:
        """Whether its records are all here; else it waits."""
        for ref in turn.references():
            if await self.absences.get(ref, turn) is None:
                self.absences.add(ref, turn)
                return False
        return True

    async def back(self) -> Turn:
        while not self.absences.back:
            await self.woken.wait()
            self.woken = trio.Event()
        return self.absences.back.popleft()


def reference(partition: str, offset: int) -> pipelines_pb2.RecordRef:
    return pipelines_pb2.RecordRef(stream="in", stream_id=1, partition=partition, offset=offset)


@pytest.fixture
async def nursery(clock: MockClock) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        yield nursery
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("trouble", [None, ConnectionLostError("away")])
async def test_one_of_a_partition_that_is_away_is_waited_for(
    clock: MockClock, nursery: trio.Nursery, trouble: Exception | None
) -> None:
    """And not for long."""
    fetched = Fetched(us=trouble)
    program = Program(nursery, fetched)
    with trio.fail_after(1.5):
        await program.take("us", "eu", "us", "us")
    assert program.absences.count == 3
    assert fetched.asked == ["us", "eu"]


async def test_whatever_the_answer_is_all_of_its_partition_have_their_turns(
    clock: MockClock, nursery: trio.Nursery
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
    turn = program.absences.back[0]
    with pytest.raises(NotFoundError):
        await program.absences.get(turn.invocation.root, turn)


async def test_the_record_that_is_waited_for_is_asked_for(
    clock: MockClock, nursery: trio.Nursery
) -> None:
    """Not another one of the same partition, which is here."""
    fetched = Fetched(us=ConnectionLostError("away"))
    fetched.held = {0}
    program = Program(nursery, fetched)
    await program.take("us", dependencies=1)
    with trio.move_on_after(10):
        await program.back()
        raise AssertionError("what it waits for is away")
    del fetched.trouble["us"]
    assert await program.run(await program.back())


@pytest.mark.parametrize("error", [None, NotFoundError("it is gone")])
async def test_who_has_waited_hears_what_came_later_than_others_wait(
    clock: MockClock, nursery: trio.Nursery, error: Exception | None
) -> None:
    """Asked for anew, for no longer than they do, it would come too late each time."""
    fetched = Fetched() if error is None else Fetched(us=error)
    fetched.takes_s = 3.0
    program = Program(nursery, fetched)
    await program.take("us", "us", dependencies=1)
    ended: list[int] = []
    with trio.fail_after(60):
        while len(ended) < 2:
            turn = await program.back()
            try:
                is_here = await program.run(turn)
            except NotFoundError:
                is_here = True
            if is_here:
                ended.append(turn.invocation.instance_id)
    assert sorted(ended) == [1, 2]


async def test_what_waits_is_said_to_be_worked_on_where_some_of_it_has_begun(
    clock: MockClock, nursery: trio.Nursery
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


async def test_what_is_others_does_not_come_back(clock: MockClock, nursery: trio.Nursery) -> None:
    fetched = Fetched(us=ConnectionLostError("away"))
    program = Program(nursery, fetched)
    await program.take("us", "us")
    assert program.absences.clear() == 2
    await program.woken.wait()
    assert not program.absences.back
    del fetched.trouble["us"]
    await program.take("us")
    assert program.absences.count == 0


async def test_of_what_waits_the_rest_of_its_micro_batch_is_not_kept(
    clock: MockClock, nursery: trio.Nursery
) -> None:
    program = Program(nursery, Fetched(us=ConnectionLostError("away")))
    micro_batch = await program.take("us", *["eu"] * 100)
    assert not micro_batch.sent.invocations
    ((_, turn),) = next(iter(program.absences._waiting.values()))
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
