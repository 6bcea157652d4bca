"""Instances of records that were there before a pipeline looked."""

from __future__ import annotations

import pytest

from hadron.fakes.tables import SET, dump
from hadron.model.errors import NotFoundError, RequestError
from hadron.state.pipelines import backfills
from hadron.state.pipelines.backfills import (
    Backfill,
    ControlBackfill,
    StartBackfill,
    StepBackfill,
    Stepped,
)
from hadron.state.pipelines.inputs import MoveInput, OpenInput
from hadron.state.pipelines.tables import BackfillStatus
from hadron.state.tests.piping import IN, PIPELINE, Pipe, stage

RUNNING, PAUSED, DONE, CANCELLED = BackfillStatus


def begin(
    pipe: Pipe,
    first: int,
    end: int,
    *,
    again: bool = False,
    request: bytes = b"r",
    partition: str = SET,
) -> Backfill:
    found = pipe.submit(StartBackfill(PIPELINE, partition, first, end, 0, again, request))
    assert isinstance(found, Backfill)
    return found


def step(pipe: Pipe, number: int, first: int, end: int, *offsets: int) -> Stepped:
    found = pipe.submit(StepBackfill(PIPELINE, number, first, end, offsets))
    assert isinstance(found, Stepped)
    return found


def control(pipe: Pipe, number: int, status: int) -> int:
    found = pipe.submit(ControlBackfill(PIPELINE, number, status))
    assert isinstance(found, int)
    return found


def made(pipe: Pipe) -> list[int]:
    rows = pipe.rows("SELECT offset FROM hadron_instance ORDER BY instance_id")
    return [offset for (offset,) in rows]


def test_each_record_makes_one_instance_whoever_looks() -> None:
    pipe = Pipe(stage("a"), start="40")
    pipe.trigger(41, 45, start=40, to=50)
    first = begin(pipe, 10, 100)
    assert first == Backfill(1, SET, 10, 10, 50, 0, False, RUNNING, 0), "as far as triggers came"
    assert step(pipe, 1, 10, 20, 10, 19) == Stepped(20, 2)
    assert step(pipe, 1, 20, 50, 30, 39, 40, 41, 45, 49) == Stepped(50, 2)
    assert made(pipe) == [41, 45, 10, 19, 30, 39]
    begin(pipe, 0, 25, request=b"s")
    assert step(pipe, 2, 0, 25, 0, 10, 19, 24) == Stepped(25, 1)
    begin(pipe, 10, 25, again=True, request=b"t")
    assert step(pipe, 3, 10, 25, 10, 24) == Stepped(25, 2)
    assert made(pipe)[6:] == [0, 10, 24]
    assert [each.status for each in backfills.backfills(pipe.db, PIPELINE)] == [DONE] * 3
    assert pipe.rows("SELECT first, last FROM hadron_looked_at") == [(0, 49)]
    assert pipe.ready("a") == list(range(1, 10))
    assert dump(pipe.replica()) == dump(pipe.db)


def test_a_step_counts_where_its_backfill_stands() -> None:
    pipe = Pipe(stage("a"), start="40")
    begin(pipe, 10, 40)
    step(pipe, 1, 10, 20, 10)
    for stale in (10, 15, 25):
        assert step(pipe, 1, stale, 30, 26) == Stepped(20, 0, stale=True)
        assert pipe.again
    assert made(pipe) == [10]
    with pytest.raises(NotFoundError, match="has no backfill 7"):
        step(pipe, 7, 0, 1)


def test_one_is_paused_resumed_and_cancelled() -> None:
    pipe = Pipe(stage("a"), start="40")
    begin(pipe, 10, 40)
    assert control(pipe, 1, PAUSED) == PAUSED
    assert step(pipe, 1, 10, 20, 10) == Stepped(10, 0, stale=True)
    assert (control(pipe, 1, PAUSED), pipe.again) == (PAUSED, True)
    assert control(pipe, 1, RUNNING) == RUNNING
    assert step(pipe, 1, 10, 20, 10) == Stepped(20, 1)
    assert control(pipe, 1, CANCELLED) == CANCELLED
    assert control(pipe, 1, RUNNING) == CANCELLED
    assert step(pipe, 1, 20, 30, 25).stale
    with pytest.raises(NotFoundError, match="has no backfill 2"):
        control(pipe, 2, PAUSED)


def test_one_is_started_once_for_its_request() -> None:
    pipe = Pipe(stage("a"), start="40")
    one = begin(pipe, 10, 40)
    step(pipe, 1, 10, 20)
    assert begin(pipe, 10, 40) == Backfill(1, SET, 10, 20, 40, 0, False, RUNNING, 0)
    assert pipe.again
    assert begin(pipe, 10, 40, request=b"s").number == one.number + 1


@pytest.mark.parametrize(("first", "end"), [(40, 50), (10, 10), (30, 20), (500, 900)])
def test_what_the_triggers_have_not_come_to_is_refused(first: int, end: int) -> None:
    pipe = Pipe(stage("a"), start="40")
    with pytest.raises(RequestError, match="has looked at what is before 40"):
        begin(pipe, first, end)
    with pytest.raises(NotFoundError, match="does not read other/p1"):
        begin(pipe, 0, 10, partition="other/p1")


def test_of_a_partition_that_has_lost_records_nothing_is_known() -> None:
    pipe = Pipe(stage("a"))
    away = "other/p1"
    pipe.submit(OpenInput(PIPELINE, away, IN, 50))
    begin(pipe, 0, 50, partition=away)
    step(pipe, 1, 0, 20, 3)
    begin(pipe, 0, 50, partition=away, request=b"s")
    control(pipe, 2, PAUSED)
    pipe.submit(MoveInput(PIPELINE, away, 50, 30, True))
    assert [each.status for each in backfills.backfills(pipe.db, PIPELINE)] == [CANCELLED] * 2
    assert pipe.rows("SELECT * FROM hadron_looked_at") == []
    begin(pipe, 0, 30, partition=away, request=b"t")
    assert step(pipe, 3, 0, 30, 3, 29) == Stepped(30, 2), "3 is another record now"
