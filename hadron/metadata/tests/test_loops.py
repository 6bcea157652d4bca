"""Pipelines whose outputs come back to their own input."""

from __future__ import annotations

import time

import pytest

from hadron.metadata.judging import key_of
from hadron.metadata.pipeline_loops import Loops
from hadron.metadata.validation import validate
from hadron.model.pipelines import Output, PipelineSpec, StageSpec
from hadron.model.schema import SchemaObject, StreamSpec

SETS = {"local/p0", "local/p1"}


def stream(name: str) -> SchemaObject:
    return SchemaObject(
        kind="Stream", name=name, spec=StreamSpec(partitions=("local/p0", "local/p1"))
    )


def pipeline(
    name: str,
    source: str,
    *targets: str,
    triggers: tuple[str, ...] = (),
    at: str = "local/p0",
    partition: str = "",
) -> SchemaObject:
    stages = tuple(
        StageSpec(name=f"s{number}", run="m:f", output=Output(target, partition))
        for number, target in enumerate(targets)
    )
    spec = PipelineSpec(replica_set=at, input=source, stages=stages, triggers=triggers)
    return SchemaObject(kind="Pipeline", name=name, spec=spec)


STREAMS = [stream(name) for name in "abcd"]


def refused(*objects: SchemaObject, existing: tuple[SchemaObject, ...] = ()) -> list[str]:
    there = {key_of(obj): obj for obj in (*STREAMS, *existing)}
    problems = validate(objects, there, replica_sets=SETS, allow_destructive=True)
    return [str(problem) for problem in problems]


@pytest.mark.parametrize("triggers", [(), (">",), ("x", ">")])
def test_a_stage_that_writes_to_its_own_input_is_refused(triggers: tuple[str, ...]) -> None:
    (told,) = refused(pipeline("p", "a", "b", "a", triggers=triggers))
    assert "stages[1].output.stream" in told
    assert "'a' is the pipeline's own input, and every record is taken there: each output" in told
    assert "another stream, or `triggers` which the outputs' types do not match" in told


def test_all_partitions_of_a_stream_are_read() -> None:
    (told,) = refused(pipeline("p", "d", "d", partition="local/p1"))
    assert "'d' is the pipeline's own input" in told


def test_a_longer_way_back_is_refused_with_its_names() -> None:
    (told,) = refused(
        pipeline("p", "a", "b"),
        existing=(pipeline("q", "b", "d", "c"), pipeline("r", "c", "a"), pipeline("s", "b", "d")),
    )
    assert "'b' leads back to the pipeline's input, through 'q', 'r'" in told
    assert len(refused(pipeline("p", "a", "b"), pipeline("q", "b", "a"))) == 2


def test_what_ends_somewhere_is_fine() -> None:
    assert (
        refused(
            pipeline("p", "a", "b"),
            pipeline("q", "b", "c"),
            pipeline("r", "a", "c"),
            pipeline("elsewhere", "c", "d", at="local/p1"),
        )
        == []
    )


def test_where_types_decide_it_is_told_and_not_refused() -> None:
    own = pipeline("p", "a", "a", triggers=("flight.departed",))
    assert refused(own) == []
    (loop,) = Loops([own]).of(own)
    assert (loop.is_endless, str(loop)) == (False, "'a' is the pipeline's own input")
    first, second = pipeline("p", "a", "b"), pipeline("q", "b", "a", triggers=("x",))
    assert refused(first, second) == []
    assert [
        loop.is_endless for each in (first, second) for loop in Loops([first, second]).of(each)
    ] == [False, False]


def test_many_pipelines_are_judged_quickly() -> None:
    chain = [pipeline(f"p{n}", f"s{n}", f"s{n + 1}") for n in range(10_000)]
    loops = Loops([*chain, pipeline("own", "x", "x"), pipeline("behind", "x", "y")])
    began = time.process_time()
    assert not any(loops.of(each) for each in chain)
    assert time.process_time() - began < 2, "it looks at each once"
    assert loops.of(pipeline("own", "x", "x"))[0].is_endless
    assert loops.of(pipeline("behind", "x", "y")) == []
