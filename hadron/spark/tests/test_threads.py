"""Functions that hang: they are left behind, and nobody waits for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import trio

from hadron.model.errors import ConfigurationError
from hadron.model.pipelines import StageSpec
from hadron.spark import rounds as rounds_room
from hadron.spark.microbatch import MicroBatchWorker
from hadron.spark.rounds import Part, Rounds
from hadron.spark.stage import StageRaisedError, StageResult
from hadron.spark.threads import Threads

MORE_THAN_TRIO_HAS = 45


@pytest.fixture
def end() -> Iterator[threading.Event]:
    """Set at the end, for whom threads wait that nobody can end."""
    event = threading.Event()
    yield event
    event.set()


class Spark:
    """A session with whatever is asked of it; it is not alive."""

    sparkContext = SimpleNamespace(setJobGroup=lambda *_: None)  # noqa: N815


def parts(ids: range) -> list[Part]:
    return [
        Part([SimpleNamespace(instance_id=each, attempt=1)], pa.table({"instance_id": [each]}))
        for each in ids
    ]


async def test_what_comes_after_many_that_hang_has_its_whole_time(
    monkeypatch: pytest.MonkeyPatch, end: threading.Event
) -> None:
    def run_stage(_spark: Any, stage: StageSpec, table: pa.Table) -> StageResult:
        if stage.name == "stuck":
            end.wait(60)
        return StageResult(table, False)

    monkeypatch.setattr(rounds_room, "run_stage", run_stage)
    monkeypatch.setattr(rounds_room, "plan", lambda *_: None)
    spark: Any = Spark()
    worker = MicroBatchWorker(None, "flow", spark)

    async def ended(name: str, timeout_ms: int, ids: range) -> list[Any]:
        stage = StageSpec(name=name, run="m:f", timeout_ms=timeout_ms)
        rounds = Rounds(spark, worker._turn, worker._threads, stage, lambda: None)
        rounds.costs_a_task = False
        return await rounds.run(parts(ids))

    for end_of in await ended("stuck", 10, range(MORE_THAN_TRIO_HAS)):
        assert isinstance(end_of, StageRaisedError)
        assert "took longer than its timeout of 0.01 s" in str(end_of)
    (innocent,) = await ended("good", 10_000, range(1))
    assert isinstance(innocent, StageResult)


async def test_too_many_that_hang_end_the_runner(end: threading.Event) -> None:
    threads, stage = Threads(most=3), StageSpec(name="stuck", run="m:f")
    for _ in range(3):
        with trio.move_on_after(0.05) as scope:
            await threads.run(stage, partial(end.wait, 60))
        assert scope.cancelled_caught
    with pytest.raises(ConfigurationError, match=r"^3 calls of .* \(3 of stage 'stuck'\): there"):
        await threads.run(StageSpec(name="good", run="m:f"), lambda: 1)
    end.set()
    with trio.fail_after(10):
        while threads._running:  # noqa: ASYNC110 - what ends them is in no event loop
            await trio.sleep(0.001)
    assert await threads.run(stage, lambda: 1) == 1


async def test_a_system_without_more_threads_is_told_as_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def raises() -> None:
        raise RuntimeError("mine")

    threads, stage = Threads(), StageSpec(name="s", run="m:f")
    with pytest.raises(RuntimeError, match="mine"):
        await threads.run(stage, raises)

    async def no_thread(*_: Any, **_others: Any) -> None:
        await trio.lowlevel.checkpoint()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(trio.to_thread, "run_sync", no_thread)
    with pytest.raises(ConfigurationError, match="no thread for another call: can't start"):
        await threads.run(stage, lambda: 1)
