"""Which parts run instead of one that has raised."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import trio
import trio.testing

from hadron.model.pipelines import StageSpec
from hadron.spark import rounds as rounds_room
from hadron.spark.rounds import Part, Rounds
from hadron.spark.stage import StageRaisedError, StageResult
from hadron.spark.suspects import Suspects
from hadron.spark.threads import Threads


@pytest.fixture
def rounds() -> Rounds:
    nothing: Any = None
    stage = StageSpec(name="picky", run="a:b")
    return Rounds(nothing, trio.Lock(), Threads(), stage, lambda: None)


def part(count: int) -> Part:
    invocations = [SimpleNamespace(instance_id=100 + i, attempt=1) for i in range(count)]
    return Part(invocations, pa.table({"n": range(count)}))


def raised(found: Suspects | None) -> StageRaisedError:
    error = StageRaisedError("bad")
    error.suspects = found
    return error


def rows(parts: list[Part]) -> list[list[int]]:
    for each in parts:
        ids = [invocation.instance_id - 100 for invocation in each.invocations]
        assert each.table["n"].to_pylist() == ids
    return [each.table["n"].to_pylist() for each in parts]


def test_suspects_run_alone_and_those_that_were_tried_together(rounds: Rounds) -> None:
    parts = rounds.smaller(part(30), raised(Suspects((2, 5), 10, 30)))
    untried = [[at, at + 1] for at in range(10, 30, 2)]
    assert rows(parts) == [[2], [5], [0, 1, 3, 4, 6, 7, 8, 9], *untried]
    assert [each.is_suspect for each in parts] == [True, True] + [False] * 11
    assert [each.is_cleared for each in parts] == [False, False, True] + [False] * 10
    assert rows(rounds.smaller(part(2), raised(Suspects((0, 1), 2, 2)))) == [[0], [1]]


@pytest.mark.parametrize("found", [None, Suspects((), 20, 20), Suspects((2,), 19, 19)])
def test_without_usable_suspects_there_are_tenths(rounds: Rounds, found: Suspects | None) -> None:
    assert rows(rounds.smaller(part(20), raised(found))) == [[i, i + 1] for i in range(0, 20, 2)]


def test_what_was_cleared_and_raises_is_split_as_if_nobody_had_tried_it(rounds: Rounds) -> None:
    """Else each round might name one row, and leave all others to the next."""
    cleared = rounds.smaller(part(21), raised(Suspects((20,), 21, 21)))[1]
    assert len(cleared) == 20
    tenths = rounds.smaller(cleared, raised(Suspects((3,), 20, 20)))
    assert rows(tenths) == [[i, i + 1] for i in range(0, 20, 2)]
    assert not any(each.is_cleared for each in tenths)


async def test_what_waits_for_its_turn_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another micro-batch hangs for longer than the leader waits: what has begun here would be
    somebody else's, and be done twice."""
    monkeypatch.setattr(rounds_room, "_BEGIN_EVERY_S", 0.01)
    monkeypatch.setattr(rounds_room, "run_stage", lambda *_: StageResult(pa.table({}), False))
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(setJobGroup=lambda *_: None))
    turn, told, often = trio.Lock(), list[int](), trio.Event()

    def begin() -> None:
        told.append(1)
        if len(told) == 9:
            often.set()

    found = Rounds(spark, turn, Threads(), StageSpec(name="s", run="a:b"), begin)
    async with trio.open_nursery() as nursery:
        await turn.acquire()
        nursery.start_soon(found.run, [part(1)])
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert told == [], "its time does not run yet"
        turn.release()
        with trio.fail_after(10):
            while not told:  # noqa: ASYNC110 - it is told from a thread's end, too
                await trio.sleep(0.001)
    async with trio.open_nursery() as nursery:
        await turn.acquire()
        nursery.start_soon(found.run, [part(1)])
        with trio.fail_after(10):
            await often.wait()
        turn.release()


class Waiting:
    """A session whose cores others have, until it was asked so often for a job's tasks."""

    def __init__(self, often: int) -> None:
        self.sparkContext = self
        self.left = often
        self.begun = threading.Event()

    def setJobGroup(self, *_: str) -> None:  # noqa: N802
        """Of a thread."""

    def statusTracker(self) -> Waiting:  # noqa: N802
        return self

    def getJobIdsForGroup(self, _group: str) -> list[int]:  # noqa: N802
        return [7]

    def getJobInfo(self, _job: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(stageIds=[8, 9])

    def getStageInfo(self, stage: int) -> SimpleNamespace | None:  # noqa: N802
        if stage == 9:
            return None
        self.left -= 1
        if self.left <= 0:
            self.begun.set()
        active = int(self.left <= 0)
        return SimpleNamespace(numActiveTasks=active, numCompletedTasks=0, numFailedTasks=0)


async def test_the_time_of_a_part_begins_when_spark_has_a_core_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others hang on all of them: it is not to be late for that."""
    spark: Any = Waiting(often=60)

    def run_stage(*_: Any) -> StageResult:
        assert spark.begun.wait(60)
        return StageResult(pa.table({}), False)

    monkeypatch.setattr(rounds_room, "_CORE_EVERY_S", 0.02)
    monkeypatch.setattr(rounds_room, "run_stage", run_stage)
    stage = StageSpec(name="s", run="a:b", timeout_ms=1_000)
    (end,) = await Rounds(spark, trio.Lock(), Threads(), stage, lambda: None).run([part(1)])
    assert isinstance(end, StageResult)


async def test_who_never_has_a_core_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark: Any = Waiting(often=1_000_000)
    over = threading.Event()
    monkeypatch.setattr(rounds_room, "_MOST_WAITING", 2)
    monkeypatch.setattr(rounds_room, "run_stage", lambda *_: over.wait(60))
    monkeypatch.setattr(rounds_room, "plan", lambda *_: None)
    monkeypatch.setattr(rounds_room, "is_alive", lambda _: False)
    stage = StageSpec(name="s", run="a:b", timeout_ms=50)
    (end,) = await Rounds(spark, trio.Lock(), Threads(), stage, lambda: None).run([part(1)])
    over.set()
    assert isinstance(end, StageRaisedError)
