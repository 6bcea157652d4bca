"""Pipelines whose outputs come back to their own input."""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import Random

import pytest

from hadron.metadata import pipeline_loops
from hadron.metadata.judging import key_of
from hadron.metadata.pipeline_loops import Loop, Loops, Place, _input, _outputs, _takes_all
from hadron.metadata.validation import validate
from hadron.model.pipelines import Output, PipelineSpec, StageSpec
from hadron.model.problems import ValuePath
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


def reachable(objects: Sequence[SchemaObject], start: str) -> set[str]:
    found: set[str] = set()
    ahead = [start]
    while ahead:
        place = ahead.pop()
        for _, (_, output) in (
            each for obj in objects if _input(obj)[1] == place for each in _outputs(obj)
        ):
            if output not in found:
                found.add(output)
                ahead.append(output)
    return found


@pytest.mark.parametrize("seed", range(60))
def test_loops_are_those_that_a_look_at_every_way_finds(seed: int) -> None:
    random = Random(seed)
    places = [f"s{number}" for number in range(random.randint(1, 12))]
    objects = [
        pipeline(
            f"p{number}",
            random.choice(places),
            *random.choices(places, k=random.randint(0, 3)),
            triggers=("x",) if random.random() < 0.3 else (),
        )
        for number in range(random.randint(1, 16))
    ]
    loops = Loops(objects)
    takers = [each for each in objects if _takes_all(each)]
    for each in objects:
        start = _input(each)[1]
        outputs = [output for _, (_, output) in _outputs(each)]
        back = [out for out in outputs if out == start or start in reachable(objects, out)]
        endless = [out for out in back if out == start or start in reachable(takers, out)]
        found = loops.of(each)
        assert [loop.stream for loop in found] == back
        assert [loop.stream for loop in found if loop.is_endless] == [
            out for out in endless if each in takers
        ]
        for loop in found:
            if loop.through:
                check_way(loop, each)


def check_way(loop: Loop, start: SchemaObject) -> None:
    """Each on the way reads what the one before it writes."""
    assert loop.through
    outputs = {loop.stream}
    for reader in loop.through:
        assert _input(reader)[1] in outputs
        assert not loop.is_endless or _takes_all(reader)
        outputs = {output for _, (_, output) in _outputs(reader)}
    assert _input(start)[1] in outputs


def test_a_ring_is_walked_once_and_told_of_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring of 1,000 pipelines stopped the leader's loop for 5.9 s: each looked for its way."""
    looks: list[str] = []

    def counted(obj: SchemaObject) -> list[tuple[ValuePath, Place]]:
        looks.append(obj.name)
        return _outputs(obj)

    monkeypatch.setattr(pipeline_loops, "_outputs", counted)
    count = 300
    for triggers in ((), ("x",)):
        ring = [
            pipeline(f"p{at}", f"s{at}", f"s{(at + 1) % count}", triggers=triggers)
            for at in range(count)
        ]
        streams = [stream(f"s{number}") for number in range(count)]
        told = [
            str(each)
            for each in validate([*streams, *ring], {}, replica_sets=SETS, allow_destructive=True)
        ]
        assert len(looks) < 15 * count
        assert len(told) == (0 if triggers else count)
        looks.clear()
        for each in told[:10]:
            assert ", through 'p" in each
            assert " and 279 more, and every record is taken there" in each
        for each in told[10:]:
            assert "leads back to the pipeline's input, and every record is taken there" in each
