"""Stages of pipelines: programs with plain grpcio run them, over a real node."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

import hadron
from hadron.doors.grpc.tests.support import Program, Said, details_of, text, until
from hadron.node.supervision.cluster import LocalCluster
from hadron.wire._pb import records_pb2
from hadron.wire._pb import stages_pb2 as pb

WORK = "/hadron.v1.Stages/Work"
_numbers = itertools.count(1)


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Any]:
    with hadron.connect_sync(f"hadron://{cluster.config.leader.address}") as client:
        yield client


@pytest.fixture
def pipeline(cluster: LocalCluster, client: Any) -> str:
    """A new one, with its streams NAME-in and NAME-out."""
    return declare(cluster, client)


def declare(cluster: LocalCluster, client: Any, **make: Any) -> str:
    name = f"p{next(_numbers)}"
    for stream in (f"{name}-in", f"{name}-out"):
        client.create_stream(stream)
    retry = {"max_attempts": 2, "backoff": "10ms"}
    stages = [
        {
            "name": "make",
            "engine": "handler",
            "output": {"stream": f"{name}-out"},
            "retry": retry,
            **make,
        },
        {"name": "use", "engine": "handler", "dependencies": ["make"]},
    ]
    declared = {
        "kind": "Pipeline",
        "name": name,
        "replica_set": cluster.config.name,
        "input": f"{name}-in",
        "start": "earliest",
        "stages": stages,
    }
    client.apply(json.dumps(declared))
    return name


class Runner:
    def __init__(self, program: Program, pipeline: str, stage: str, **opening: Any) -> None:
        self._said = Said()
        self.say(open=pb.WorkRequest.Open(pipeline=pipeline, stage=stage, **opening))
        self.events = program.stream(WORK, pb.WorkEvent)(iter(self._said), timeout=90)
        assert next(self.events).HasField("opened")

    def say(self, **said: Any) -> None:
        self._said.say(pb.WorkRequest(**said))

    def next(self, kind: str) -> Any:
        event = next(self.events)
        assert event.WhichOneof("said") == kind, event
        return getattr(event, kind)

    def complete(self, id: int, output: records_pb2.PublishedRecord | None = None) -> None:
        self.say(complete=pb.WorkRequest.Complete(id=id, output=output))

    def fail(self, id: int, **said: Any) -> None:
        self.say(fail=pb.WorkRequest.Fail(id=id, **said))

    def leave(self) -> None:
        self._said.end()
        assert list(self.events) == []

    def vanish(self) -> None:
        self.events.cancel()
        self._said.end()


def done(client: Any, pipeline: str) -> tuple[int, int]:
    (shown,) = client.pipeline_progress(pipeline)
    return shown.done, shown.failed


def test_a_program_runs_both_stages_of_a_pipeline(
    program: Program, pipeline: str, client: Any
) -> None:
    program.publish(f"{pipeline}-in", "a", "b", headers={"h": "1"}, type="made.up")
    first = Runner(program, pipeline, "make", runner="test", code_version="7")
    works = [first.next("work") for _ in range(2)]
    for work in works:
        assert (work.attempt, work.root.type, work.root.headers["h"]) == (1, "made.up", "1")
        first.complete(work.id, text(work.root.value.text * 2, type="doubled"))
        ended = first.next("ended")
        assert (ended.id, ended.output.count, ended.output.partition) == (work.id, 1, "local/p0")
    second = Runner(program, pipeline, "use")
    for work in [second.next("work") for _ in range(2)]:
        made = work.outputs["make"]
        assert (made.value.text, made.type) == (work.root.value.text * 2, "doubled")
        second.complete(work.id)
        assert not second.next("ended").HasField("output")
    until(lambda: done(client, pipeline) == (2, 0))
    assert program.texts(f"{pipeline}-out") == ["aa", "bb"]
    first.leave()
    second.leave()


@pytest.mark.long
@pytest.mark.parametrize("max_in_flight", [1, 100])
def test_what_takes_too_long_is_tried_again_and_its_end_is_refused(
    cluster: LocalCluster, program: Program, client: Any, max_in_flight: int
) -> None:
    pipeline = declare(cluster, client, timeout="2s")
    program.publish(f"{pipeline}-in", "a")
    runner = Runner(program, pipeline, "make", max_in_flight=max_in_flight)
    hung, again = runner.next("work"), runner.next("work")
    assert (hung.attempt, again.attempt) == (1, 2)
    runner.complete(again.id, text("in time"))
    assert runner.next("ended").id == again.id
    runner.complete(hung.id, text("late"))
    refused = runner.next("refused")
    assert (refused.id, refused.is_over) == (hung.id, True)
    assert "longer than its timeout" in refused.message
    assert program.texts(f"{pipeline}-out") == ["in time"]
    runner.leave()


def test_what_fails_is_tried_again_or_given_up(
    program: Program, pipeline: str, client: Any
) -> None:
    program.publish(f"{pipeline}-in", "a")
    runner = Runner(program, pipeline, "make")
    runner.fail(runner.next("work").id, reason="the weather")
    runner.next("ended")
    again = runner.next("work")
    assert again.attempt == 2
    runner.fail(again.id, reason="no such carrier", final=True)
    runner.next("ended")
    until(lambda: done(client, pipeline) == (0, 1))
    runner.leave()


def test_what_a_program_leaves_is_another_one_s_with_the_same_attempt(
    program: Program, pipeline: str
) -> None:
    program.publish(f"{pipeline}-in", "a", "b", "c")
    with Program(program.address) as dying:
        first = Runner(dying, pipeline, "make", max_in_flight=2)
        held = [first.next("work") for _ in range(2)]
        assert [each.root.value.text for each in held] == ["a", "b"]
    second = Runner(program, pipeline, "make")
    found = [second.next("work") for _ in range(3)]
    assert sorted(each.root.value.text for each in found) == ["a", "b", "c"]
    assert {each.attempt for each in found} == {1}
    second.vanish()


def test_what_cannot_be_done_is_refused_and_may_be_said_again(
    program: Program, pipeline: str
) -> None:
    program.publish(f"{pipeline}-in", "a")
    runner = Runner(program, pipeline, "make")
    number = runner.next("work").id
    wrong = [
        text("x", expect_offset=1),
        records_pb2.PublishedRecord(),
        text("x", partition="nowhere/p9"),
    ]
    for each in wrong:
        runner.complete(number, each)
        refused = runner.next("refused")
        assert (refused.id, refused.is_over) == (number, False)
        assert refused.message
    runner.fail(number, reason=" ")
    assert "why a stage has failed" in runner.next("refused").message
    runner.complete(number, text("y"))
    assert runner.next("ended").id == number
    runner.complete(number, text("z"))
    with pytest.raises(grpc.RpcError) as caught:
        next(runner.events)
    assert "is ended already" in caught.value.details()


def test_an_invocation_that_was_cancelled_is_over(
    program: Program, pipeline: str, client: Any
) -> None:
    program.publish(f"{pipeline}-in", "a")
    runner = Runner(program, pipeline, "make")
    work = runner.next("work")
    client.cancel_instances(pipeline, [work.instance_id])
    runner.complete(work.id, text("late"))
    refused = runner.next("refused")
    assert (refused.reason, refused.is_over) == ("StaleCompletionError", True)
    runner.leave()


@pytest.mark.parametrize(
    ("request_", "code", "told"),
    [
        (pb.WorkRequest(fail=pb.WorkRequest.Fail(id=1)), "INVALID_ARGUMENT", "without `open`"),
        (pb.WorkRequest.Open(pipeline="nowhere", stage="s"), "NOT_FOUND", "nowhere"),
        (pb.WorkRequest.Open(pipeline="{}"), "INVALID_ARGUMENT", "stage"),
        (
            pb.WorkRequest.Open(pipeline="{}", stage="make", max_in_flight=1_001),
            "INVALID_ARGUMENT",
            "1001",
        ),
    ],
)
def test_calls_that_make_no_sense_are_refused(
    program: Program, pipeline: str, request_: Any, code: str, told: str
) -> None:
    if isinstance(request_, pb.WorkRequest.Open):
        request_.pipeline = request_.pipeline.format(pipeline)
        request_ = pb.WorkRequest(open=request_)
    said = Said()
    said.say(request_)
    with pytest.raises(grpc.RpcError) as caught:
        list(program.stream(WORK, pb.WorkEvent)(iter(said), timeout=60))
    assert caught.value.code().name == code, caught.value
    assert told in caught.value.details()
    assert details_of(caught.value)["ErrorInfo"].domain == "hadron"
    said.end()
