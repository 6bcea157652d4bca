"""What a micro-batch counts, and when."""

from __future__ import annotations

import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pyarrow as pa
import pytest
import trio
import trio.testing

from hadron.model.errors import (
    ConfigurationError,
    ConnectionLostError,
    DiskFullError,
    HadronError,
    RequestError,
)
from hadron.model.pipelines import Output as Declared
from hadron.model.pipelines import StageSpec
from hadron.model.record import NewRecord
from hadron.spark import loading
from hadron.spark import rounds as rounds_room
from hadron.spark.microbatch import MicroBatchWorker, _alike, _Course
from hadron.spark.outputs import Completion, Output, Refusal
from hadron.spark.parting import Parts
from hadron.spark.rounds import Part, Rounds
from hadron.spark.stage import StageRaisedError, StageResult
from hadron.spark.tests.fakes import PARTITION, FakeClient
from hadron.spark.threads import Threads
from hadron.wire.messages import pipelines_pb2

_IDS = (3, 4, 5)
ROWS = pa.table({"instance_id": list(_IDS), "value": ["x"] * len(_IDS)})


def _invocations() -> list[pipelines_pb2.Invocation]:
    return [pipelines_pb2.Invocation(instance_id=each, attempt=1) for each in _IDS]


class HeldClient:
    """Answers completions when it is let, with an error when there is one."""

    def __init__(self) -> None:
        self.asked, self.go = trio.Event(), trio.Event()
        self.error: HadronError | None = None
        self.failed: list[int] = []
        self.takes_s = 0.0

    async def complete_stages(
        self, *_given: Any, **_named: Any
    ) -> pipelines_pb2.CompleteStagesResponse:
        self.asked.set()
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return pipelines_pb2.CompleteStagesResponse(base_offset=7)

    async def fail_stages(self, _pipeline: int, _stage: str, ids: list[int], *_others: Any) -> None:
        await trio.sleep(self.takes_s)
        self.failed += ids


def course_of() -> tuple[_Course, Completion]:
    course = _Course(1, "copy", [])
    course.open_ids = dict.fromkeys(_IDS, 1)
    course.created_ms = dict.fromkeys(_IDS, 5)
    return course, Completion([Output(each, 1, "", None) for each in _IDS], b"a batch")


async def test_what_is_completed_counts_once_the_server_has_said_so() -> None:
    client = HeldClient()
    worker = MicroBatchWorker(client, "flow", cast(Any, None))
    course, completion = course_of()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker._complete, course, completion)
        await client.asked.wait()
        assert (course.completed, set(course.open_ids)) == (0, set(_IDS))
        client.go.set()
    assert (course.completed, course.open_ids) == (3, {})


async def test_what_is_refused_for_good_is_not_completed_too() -> None:
    client = HeldClient()
    client.error = RequestError("the output has no such partition")
    client.go.set()
    worker = MicroBatchWorker(client, "flow", cast(Any, None))
    course, completion = course_of()
    await worker._complete(course, completion)
    assert (course.completed, course.open_ids) == (0, {})
    await worker._fail(course)
    assert (course.failed_attempts, client.failed) == ([1, 1, 1], list(_IDS))


async def test_what_the_server_could_not_do_now_is_neither(
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001 - it is tried again for half a minute
) -> None:
    client = HeldClient()
    client.error = DiskFullError("there is no room")
    client.go.set()
    worker = MicroBatchWorker(client, "flow", cast(Any, None))
    course, completion = course_of()
    with pytest.raises(DiskFullError):
        await worker._complete(course, completion)
    assert (course.completed, course.failed_attempts, client.failed) == (0, [], [])
    assert set(course.open_ids) == set(_IDS)


@pytest.mark.parametrize("most_bytes", [10**9, 5_000, 1])
async def test_a_micro_batch_that_is_too_large_runs_in_parts(
    monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    """Each of them has a dependency, and these were made in another order."""
    count = 40
    copy = StageSpec(name="copy", run="hadron.spark.tests.stages:passing", dependencies=("first",))
    client = FakeClient([StageSpec(name="first", run="a:b"), copy])
    for offset in range(count):
        client.publish([NewRecord(value="x" * 1_000)])
        client.publish([NewRecord(value="y" * 1_000)], "made")
        client.outputs["first", count - offset] = ("made", PARTITION, offset)
    client.invoke("copy", range(count))
    monkeypatch.setattr(loading, "_MOST_BYTES", most_bytes)
    worker = MicroBatchWorker(client, "flow", cast(Any, None))
    ran: list[int] = []
    largest = 0

    async def run(_course: _Course, _stage: StageSpec, _rounds: Rounds, whole: Part) -> None:
        nonlocal largest
        largest = max(largest, whole.table.nbytes)
        ran.extend(whole.table["instance_id"].to_pylist())

    monkeypatch.setattr(worker, "_run_whole", run)
    with trio.fail_after(10):
        async with client.run_stages("flow", credit=1) as stream:
            await worker.process(await anext(stream))
    assert sorted(ran) == list(range(1, count + 1))
    assert largest < most_bytes + 2 * 2_000


async def test_failures_with_different_texts_are_told_together(
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001 - a thousand entries, a second in all
) -> None:
    """By hundreds that are told one after the other the stage's timeout is over."""
    client = HeldClient()
    client.takes_s = 0.01
    worker = MicroBatchWorker(client, "flow", cast(Any, None))
    begun: list[float] = []
    course = _Course(1, "copy", [], lambda: begun.append(trio.current_time()))
    ids = range(1, 1_001)
    course.created_ms = dict.fromkeys(ids, 5)
    course.refuse([Refusal(each, 1, f"bad thing {each}") for each in ids])
    began_s = trio.current_time()
    await worker._fail(course)
    assert sorted(client.failed) == list(ids)
    took_s = trio.current_time() - began_s
    assert took_s < 1
    assert begun[0] == began_s
    # While a completion takes long, too.
    begun.clear()
    course.open_ids = dict.fromkeys(_IDS, 1)
    given = (Part(_invocations(), pa.table({"instance_id": list(_IDS)})), StageResult(ROWS, False))
    stage = StageSpec(name="copy", run="m:f", output=Declared("out"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker._settle, course, stage, [given])
        await client.asked.wait()
        await trio.sleep(10)
        assert len(begun) >= 20
        client.go.set()
    assert course.completed == len(_IDS)


async def test_an_output_to_a_partition_that_is_away_holds_no_others_up(
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001 - pytest-trio takes it from here
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = HeldClient()
    client.go.set()
    worker = MicroBatchWorker(client, "flow", cast(Any, None))
    complete_once = worker._complete_once
    asked: list[str] = []

    async def complete(course: _Course, left: Any, data: Any) -> set[int]:
        asked.append(left[0].partition)
        if left[0].partition == "away":
            await trio.sleep(30)
            raise DiskFullError("not now")
        return await complete_once(course, left, data)

    monkeypatch.setattr(worker, "_complete_once", complete)
    course, _ = course_of()
    table = ROWS.append_column("partition", pa.array(["away", "here", None]))
    stage = StageSpec(name="copy", run="m:f", output=Declared("out"))
    given = Part(_invocations(), table), StageResult(table, False)
    with pytest.raises(DiskFullError):
        await worker._settle(course, stage, [given])
    assert sorted(asked) == ["", "away", "here"]
    assert (course.completed, set(course.open_ids)) == (2, {_IDS[0]})


@pytest.mark.parametrize("is_away", [False, True])
async def test_what_has_waited_is_said_to_be_worked_on_whatever_it_waits_for_now(
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001 - pytest-trio takes it from here
    monkeypatch: pytest.MonkeyPatch,
    is_away: bool,
) -> None:
    """For the leader of its record, or for Spark's turn: longer than its stage may take."""
    stage = StageSpec(name="copy", run="hadron.spark.tests.stages:passing", timeout_ms=5_000)
    client = FakeClient([stage])
    client.publish([NewRecord(value="x")])
    client.invoke("copy", [0])
    told: list[float] = []

    async def fetch(*_given: Any, **_named: Any) -> Any:
        await trio.sleep(30)
        raise ConnectionLostError("away")

    async def run(rounds: Rounds, _parts: Any) -> Any:
        async with rounds._in_turn():
            return [StageRaisedError("it is bad")]

    worker = MicroBatchWorker(client, "flow", cast(Any, None))
    if is_away:
        monkeypatch.setattr(client, "fetch", fetch)
    monkeypatch.setattr(Rounds, "run", run)

    async def have_turn() -> None:
        async with worker._turn:
            await trio.sleep(30)

    async with client.run_stages("flow", credit=1) as stream:
        message = await anext(stream)

        def begin() -> None:
            told.append(trio.current_time())

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(have_turn)
            await trio.testing.wait_all_tasks_blocked()
            done = await worker.process(message, begin, is_patient=False)
    assert (done.left is not None, done.report.failed) == (is_away, not is_away)
    times = [began, *told, trio.current_time()]
    assert max(b - a for a, b in pairwise(times)) < 1


async def test_failures_are_told_when_nothing_else_is_left_to_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While a batch is halved an instance that failed already may run again: its next attempt must
    not be told of before this one, and the time of what raised counts."""
    runs: list[int] = []

    def run_stage(_spark: Any, _stage: StageSpec, table: pa.Table) -> StageResult:
        ids = table["instance_id"].to_pylist()
        runs.append(len(ids))
        assert client.failed == []
        time.sleep(0.001)
        if _IDS[0] in ids:
            raise StageRaisedError("the first one is bad")
        values = pa.array(["x"] * len(ids))
        return StageResult(pa.table({"instance_id": ids, "value": values}), False)

    monkeypatch.setattr(rounds_room, "run_stage", run_stage)
    client = HeldClient()
    client.go.set()
    worker = MicroBatchWorker(client, "flow", cast(Any, SimpleNamespace(sparkContext=Context())))
    stage = StageSpec(name="copy", run="m:f", output=Declared("out"))
    invocations = _invocations()
    course = _Course(
        1, "copy", invocations, open_ids=dict.fromkeys(_IDS, 1), created_ms=dict.fromkeys(_IDS, 5)
    )
    rounds = Rounds(worker._spark, worker._turn, worker._threads, stage, lambda: None)
    rounds.costs_a_task = False
    whole = Part(invocations, pa.table({"instance_id": list(_IDS)}))
    assert await worker._run_parts(course, stage, rounds, [whole]) == {}
    assert runs == [3, 2, 1, 1, 1]
    assert rounds.spark_s >= 0.005
    assert (course.completed, course.open_ids) == (2, {})
    await worker._fail(course)
    assert client.failed == [_IDS[0]]
    assert course.report().failed_attempts == (1,)


async def test_parts_for_which_a_function_chooses_other_columns_are_settled_by_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or values of another kind: text beside structs stays text."""
    client = HeldClient()
    client.go.set()
    worker = MicroBatchWorker(client, "flow", cast(Any, None))
    completed: list[Completion] = []

    async def complete(_course: _Course, completion: Completion) -> None:
        completed.append(completion)

    monkeypatch.setattr(worker, "_complete", complete)
    stage = StageSpec(name="copy", run="m:f", output=Declared("out"))

    def part(instance_id: int, is_json: bool, **columns: Any) -> tuple[Part, StageResult]:
        ids = [instance_id]
        invocation = pipelines_pb2.Invocation(instance_id=instance_id, attempt=1)
        table = pa.table({"instance_id": ids, **{name: [each] for name, each in columns.items()}})
        return Part([invocation], pa.table({"instance_id": ids})), StageResult(table, is_json)

    given = [
        part(3, True, value='{"a": 1}'),
        part(4, False, value="hello"),
        part(5, False, value="x", error="no"),
    ]
    course = _Course(
        1, "copy", [], open_ids=dict.fromkeys(_IDS, 1), created_ms=dict.fromkeys(_IDS, 5)
    )
    for alike in _alike(given):
        assert await worker._settle(course, stage, alike) == {}
    values = [each.record.value for made in completed for each in made.outputs if each.record]
    assert values == [msgspec.Raw(b'{"a": 1}'), "hello"]
    await worker._fail(course)
    assert client.failed == [5]


class Context:
    """What is asked of Spark's."""

    def setJobGroup(self, *_: str) -> None:  # noqa: N802
        pass


class GoneSpark:
    """A session whose Java was killed: whatever it is asked for, nobody is there."""

    @property
    def sparkContext(self) -> Any:  # noqa: N802
        raise ConnectionRefusedError(111, "Connection refused")


@pytest.mark.parametrize("count", [1, 2])
async def test_java_that_is_gone_is_told_as_that(count: int) -> None:
    stage = StageSpec(name="copy", run="hadron.spark.tests.stages:passing")
    spark = cast(Any, GoneSpark())
    rounds = Rounds(spark, trio.Lock(), Threads(), stage, lambda: None)
    parts = [Part([object()], None)] * count
    planned = Parts(spark, stage, [])
    with pytest.raises(ConfigurationError, match=r"Spark stopped while .* ran: "):
        await rounds.run(parts) if count == 1 else await rounds._tasks(planned, parts)
