"""Whether objects may be applied: references, replica sets, and changes that lose something."""

from __future__ import annotations

import difflib
from typing import Any

import msgspec
import pytest

from hadron.metadata.homes import with_partitions
from hadron.metadata.judging import Key, key_of
from hadron.metadata.tests.support import ComparedName
from hadron.metadata.validation import RULES, validate
from hadron.model.documents.problem import Problem, schema_error
from hadron.model.documents.stages import MAX_STAGES
from hadron.model.pipelines import Output, PipelineSpec, Retry, StageSpec
from hadron.model.schema import INDEXED, NamespaceSpec, Retention, SchemaObject, StreamSpec

SETS = {"local/p0", "local/p1"}


def _stream(
    name: str = "flights", *partitions: str, namespace: str = "default", **spec: Any
) -> SchemaObject:
    found = StreamSpec(partitions=partitions or ("local/p0",), **spec)
    return SchemaObject(kind="Stream", namespace=namespace, name=name, spec=found)


def _pipeline(*stages: StageSpec, namespace: str = "default", **spec: Any) -> SchemaObject:
    values: dict[str, Any] = {
        "replica_set": "local/p0",
        "input": "flights",
        "stages": stages or (_stage(),),
        **spec,
    }
    return SchemaObject(
        kind="Pipeline", namespace=namespace, name="departures", spec=PipelineSpec(**values)
    )


def _stage(name: str = "verdict", **spec: Any) -> StageSpec:
    return StageSpec(**{"name": name, "run": "m:f", **spec})


def _namespace(name: str) -> SchemaObject:
    return SchemaObject(kind="Namespace", name=name, spec=NamespaceSpec())


def _existing(*objects: SchemaObject) -> dict[Key, SchemaObject]:
    return {key_of(obj): obj for obj in objects}


def _validate(
    *objects: SchemaObject,
    existing: dict[Key, SchemaObject] | None = None,
    replica_sets: set[str] = SETS,
    allow_destructive: bool = False,
) -> list[str]:
    problems = validate(
        objects, existing or {}, replica_sets=replica_sets, allow_destructive=allow_destructive
    )
    return [str(problem) for problem in problems]


def test_objects_that_fit_together_are_fine_in_any_order() -> None:
    verdicts = _stream("verdicts")
    pipeline = _pipeline(_stage(output=Output("verdicts")))
    assert _validate(_stream(), verdicts, pipeline) == []
    assert _validate(pipeline, verdicts, _stream()) == []
    assert _validate(pipeline, existing=_existing(verdicts, _stream())) == []
    assert _validate() == []


def test_repeated_it_is_still_fine() -> None:
    objects = [_stream(), _pipeline(), _namespace("billing")]
    assert _validate(*objects, existing=_existing(*objects)) == []


def test_a_replica_set_must_be_known_when_it_is_named_first() -> None:
    assert _validate(_stream("flights", "local/p0", "local/p2")) == [
        "Stream default/flights: partitions[1]: there is no replica set 'local/p2' (did you mean "
        "'local/p1'?), expected one of the cluster's (local/p0, local/p1)"
    ]
    assert _validate(_stream(), _pipeline(replica_set="moon"))[0] == (
        "Pipeline default/departures: replica_set: there is no replica set 'moon', expected one "
        "of the cluster's (local/p0, local/p1)"
    )
    assert "(none is known yet)" in _validate(_stream(), replica_sets=set())[0]
    # It may be away while something else is applied.
    objects = [_stream(), _pipeline()]
    assert _validate(*objects, existing=_existing(*objects), replica_sets=set()) == []


def test_partitions_are_only_added_behind() -> None:
    existing = _existing(_stream("flights", "local/p0", "local/p1"))
    sets = {*SETS, "local/p2"}
    longer = _stream("flights", "local/p0", "local/p1", "local/p2")
    assert _validate(longer, existing=existing, replica_sets=sets) == []

    shorter = _stream("flights", "local/p1")
    assert _validate(shorter, existing=existing) == [
        "Stream default/flights: partitions: 'local/p0' was removed, which would put its records "
        "out of reach and move keys to other partitions, expected every existing partition, or "
        "`allow_destructive` if it is meant"
    ]
    for order in (("local/p1", "local/p0"), ("local/p0", "local/p2", "local/p1")):
        (told,) = _validate(_stream("flights", *order), existing=existing, replica_sets=sets)
        assert "the order of existing partitions was changed, which would move keys" in told
        assert "expected local/p0, local/p1 first and new ones behind, or `allow_destr" in told
    assert _validate(shorter, existing=existing, allow_destructive=True) == []


def test_a_retention_is_shortened_by_whoever_insists() -> None:
    week, day, hour = 604_800_000, 86_400_000, 3_600_000
    kept = _stream("flights", retention=Retention(max_age_ms=day, max_bytes=10 << 20))
    for longer in (
        Retention(week, 10 << 20),
        Retention(0, 10 << 20),
        Retention(day, 0),
        Retention(day, 1 << 30),
        kept.spec.retention,  # type: ignore[attr-defined]
    ):
        assert _validate(_stream("flights", retention=longer), existing=_existing(kept)) == []
    shorter = _stream("flights", retention=Retention(hour, 1 << 20))
    insist = "or `allow_destructive` if it is meant"
    assert _validate(shorter, existing=_existing(kept)) == [
        "Stream default/flights: retention.max_age: 1h instead of 1d, which drops what is older "
        f"than 1h at once, expected 1d, {insist}",
        "Stream default/flights: retention.max_bytes: 1MiB instead of 10MiB, which drops what is "
        f"beyond the newest 1MiB of a partition at once, expected 10MiB, {insist}",
    ]
    assert _validate(shorter, existing=_existing(kept), allow_destructive=True) == []
    assert _validate(shorter) == []
    (told,) = _validate(
        _stream("flights", retention=Retention(week)), existing=_existing(_stream("flights"))
    )
    assert "7d instead of no limit, which drops what is older than 7d at once" in told


def test_a_pipelines_streams_must_exist_in_its_namespace() -> None:
    pipeline = _pipeline(_stage(output=Output("verdict")), input="flight")
    assert _validate(pipeline, _stream(), _stream("verdicts")) == [
        "Pipeline default/departures: input: there is no stream 'flight' in namespace default "
        "(did you mean 'flights'?), expected an existing stream, or its declaration beside this",
        "Pipeline default/departures: stages[0].output.stream: there is no stream 'verdict' in "
        "namespace default (did you mean 'verdicts'?), expected an existing stream, or its "
        "declaration beside this",
    ]
    elsewhere = _pipeline(namespace="billing")
    (told,) = _validate(elsewhere, _namespace("billing"), _stream())
    assert "there is no stream 'flights' in namespace billing" in told
    beside = _stream(namespace="billing")
    assert _validate(elsewhere, _namespace("billing"), beside) == []


def test_an_output_goes_to_a_partition_of_its_stream() -> None:
    output = _stream("verdicts", "local/p1")
    pipeline = _pipeline(_stage(output=Output("verdicts")))
    assert _validate(_stream(), output, pipeline) == [
        "Pipeline default/departures: stages[0].output.partition: 'local/p0', the pipeline's "
        "replica set, is no partition of stream verdicts, expected one of local/p1"
    ]
    named = _pipeline(_stage(output=Output("verdicts", "local/p1")))
    assert _validate(_stream(), output, named) == []
    other = _pipeline(_stage(output=Output("verdicts", "local/p2")))
    (told,) = _validate(_stream(), output, other)
    assert "'local/p2' is no partition of stream verdicts, expected one of local/p1" in told


def test_partitions_left_out_are_those_that_leave_no_choice() -> None:
    bare = SchemaObject(kind="Stream", name="flights", spec=StreamSpec(partitions=()))
    (found,) = with_partitions([bare], {}, {"local/p0"})
    assert found == _stream("flights", "local/p0")
    before = _existing(_stream("flights", "local/p1", "local/p0"))
    (found,) = with_partitions([bare], before, SETS)
    assert found == _stream("flights", "local/p1", "local/p0")
    others = [_stream("flights", "local/p1"), _pipeline()]
    assert with_partitions(others, {}, {"local/p0"}) == others
    (found,) = with_partitions([bare], {}, SETS)
    assert _validate(found) == [
        "Stream default/flights: partitions: no partitions, and the cluster has 2 replica sets, "
        "expected some of local/p0, local/p1"
    ]


def test_a_namespace_must_exist() -> None:
    stream = _stream(namespace="biling")
    assert _validate(stream, existing=_existing(_namespace("billing"))) == [
        "Stream biling/flights: namespace: there is no namespace 'biling' (did you mean "
        "'billing'?), expected an existing one (`hadron create namespace biling` makes it), or its "
        "declaration beside this"
    ]
    assert _validate(stream, _namespace("biling")) == []
    assert _validate(stream, existing=_existing(_namespace("biling"))) == []
    assert _validate(_namespace("default"), _stream()) == []


def test_a_pipeline_is_moved_only_when_meant() -> None:
    before = _pipeline(_stage("weather"), _stage("verdict"))
    existing = _existing(before, _stream(), _stream("other"))
    after = _pipeline(_stage("verdict"), _stage("new"), input="other", replica_set="local/p1")
    insist = "or `allow_destructive` if it is meant"
    assert _validate(after, existing=existing) == [
        "Pipeline default/departures: input: changed from 'flights' to 'other', which would lose "
        f"its progress in the old stream, expected flights, {insist}",
        "Pipeline default/departures: replica_set: changed from 'local/p0' to 'local/p1', which "
        f"would lose its instances, which do not move, expected local/p0, {insist}",
    ]
    assert _validate(after, existing=existing, allow_destructive=True) == []
    harmless = _pipeline(_stage("other", after=("verdict",)), _stage("verdict"), start="earliest")
    assert _validate(harmless, existing=existing) == []


def test_a_pipeline_that_stays_must_still_fit() -> None:
    pipeline = _pipeline(_stage(output=Output("verdicts")))
    existing = _existing(_stream(), pipeline, _stream("verdicts", "local/p0", "local/p1"))
    smaller = _stream("verdicts", "local/p1")
    (told,) = _validate(smaller, existing=existing, allow_destructive=True)
    assert told.startswith("Pipeline default/departures: stages[0].output.partition: 'local/p0'")
    moved = _pipeline(_stage(output=Output("verdicts", "local/p1")))
    assert _validate(smaller, moved, existing=existing, allow_destructive=True) == []


def test_an_object_is_declared_once() -> None:
    assert _validate(_stream(), _stream()) == [
        "Stream default/flights: declared more than once, expected each object once"
    ]


@pytest.mark.parametrize(
    ("obj", "told"),
    [
        (_stream("a b"), "Stream default/a b: name: 'a b' is not a valid name"),
        (_stream("flights", "local/p0", "local/p0"), "partitions[1]: 'local/p0' again"),
        (_stream(description="x" * 5_001), "description: 5001 characters, expected at most 5000"),
        (_stream(retention=Retention(-1, 0)), "retention.max_age: -1, expected 0 (without limit)"),
        (_stream("s", *[f"p{i}" for i in range(1_001)]), "1001 partitions, expected at most 1000"),
        (_pipeline(_stage(delay_ms=-5)), "stages[0].delay: -5ms is out of range"),
        (_pipeline(_stage(timeout_ms=0)), "stages[0].timeout: 0s is out of range"),
        (_pipeline(_stage(retry=Retry(5, -1))), "stages[0].retry.backoff: -1ms is out of range"),
        (_pipeline(_stage(run="")), "stages[0].run: missing"),
        (_pipeline(*[_stage(f"s{i}") for i in range(101)]), "stages: 101 stages, expected at most"),
        (_pipeline(triggers=("a",) * 101), "triggers: 101 patterns, expected at most 100"),
        (_pipeline(_stage(dependencies=("verdict",))), "'verdict' is the stage itself"),
        (_pipeline(on_failure="tell"), "on_failure: there is no stage 'tell', expected one of"),
        (
            _pipeline(_stage(), _stage("tell", after=("verdict",)), on_failure="tell"),
            "stages[1].after: stage 'tell' runs when an instance is given up, expected no after",
        ),
        (
            _pipeline(_stage(after=("tell",)), _stage("tell"), on_failure="tell"),
            "stages[0].after: stage 'tell' runs only when an instance is given up",
        ),
        (_pipeline(on_failure="verdict"), "stages: each runs only when an instance is given up"),
        (
            _pipeline(dead_letters="a b"),
            "dead_letters: 'a b' is not a valid name, expected the name of",
        ),
        (msgspec.structs.replace(_stream(), kind="Steam"), "kind: unknown kind 'Steam'"),
        (msgspec.structs.replace(_stream(), kind="Pipeline"), "kind: unknown kind 'Pipeline'"),
    ],
)
def test_what_a_client_sends_obeys_the_same_rules(obj: SchemaObject, told: str) -> None:
    sets = {*SETS, *(f"p{i}" for i in range(1_001))}
    problems = _validate(obj, existing=_existing(_stream()), replica_sets=sets)
    assert any(told in problem for problem in problems), problems


def test_a_large_knot_of_stages_is_judged_quickly() -> None:
    names = [f"s{i}" for i in range(100)]
    stages = [
        _stage(name, after=tuple(other for other in names if other != name)) for name in names
    ]
    problems = _validate(_stream(), _pipeline(*stages))
    assert sum("a cycle" in problem for problem in problems) == 50


def test_the_error_lists_every_problem() -> None:
    one = Problem("Stream default/a", ("partitions", 0), "x", "y")
    two = Problem("Stream default/b", (), "x", "y")
    assert schema_error([one]).message == "Stream default/a: partitions[0]: x, expected y"
    assert schema_error([one, two, one]).message == (
        "2 problems with the schema:\n  Stream default/a: partitions[0]: x, expected y\n"
        "  Stream default/b: x, expected y"
    )


def test_a_stage_fills_no_index_of_keys() -> None:
    problems = _validate(
        _stream(),
        _stream("verdicts", keys=INDEXED),
        _pipeline(_stage(output=Output(stream="verdicts"))),
    )
    assert len(problems) == 1
    assert "'verdicts' has an index of keys" in problems[0]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({}, {"keys": INDEXED}, "keys: 'indexed', and the stream has records"),
        ({"keys": INDEXED}, {}, "keys: not given, and the stream has records"),
    ],
)
def test_keys_are_indexed_from_the_first_record_on(
    before: dict[str, Any], after: dict[str, Any], told: str
) -> None:
    problems = RULES["Stream"].refuse_change(_stream(**before), _stream(**after))
    assert [told in str(problem) for problem in problems] == [True]
    assert RULES["Stream"].refuse_change(_stream(**before), _stream(**before)) == []


def test_partitions_are_not_added_where_keys_are_indexed() -> None:
    one, two = ("local/p0",), ("local/p0", "local/p1")
    (problem,) = RULES["Stream"].refuse_change(
        _stream("s", *one, keys=INDEXED), _stream("s", *two, keys=INDEXED)
    )
    assert "keys would move" in str(problem)
    assert RULES["Stream"].refuse_change(_stream("s", *one), _stream("s", *two)) == []


def test_what_pipelines_do_with_what_is_given_up() -> None:
    streams = (_stream(), _stream("letters", "local/p1"), _stream("verdicts", "local/p0"))
    there = _existing(*streams)
    good = _pipeline(_stage(), _stage("tell"), on_failure="tell", dead_letters="verdicts")
    assert _validate(good, existing=there) == []
    for wrong, told in (
        ({"dead_letters": "nope"}, "dead_letters: "),
        ({"dead_letters": "letters"}, "'letters' has no partition on 'local/p0', where the"),
        ({"dead_letters": "flights"}, "'flights' is the pipeline's own input: letters may"),
    ):
        problems = _validate(_pipeline(_stage(), **wrong), existing=there)
        assert any(told in each for each in problems), problems


def test_what_was_meant_is_sought_for_the_first_mistakes_of_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a value's own, and of what it refers to, in as many objects as there are."""
    asked: list[str] = []
    monkeypatch.setattr(difflib, "get_close_matches", lambda given, *_, **__: asked.append(given))
    existing = _existing(_stream(), *map(_namespace, ("billing", "other")))
    for wrong in (
        [_pipeline(_stage(engine="sparc"), _stage("b", after=("verdikt",)))],
        [_pipeline(start="earlyest", input="flihgts"), _stream("s", "local/p2")],
        [_stream("s", namespace="biling")],
    ):
        many = [
            msgspec.structs.replace(obj, name=f"{obj.name}{number}")
            for number in range(50)
            for obj in wrong
        ]
        asked.clear()
        assert len(_validate(*many, existing=existing)) >= len(many)
        assert len(asked) == 10


def test_of_many_that_there_are_some_are_named() -> None:
    sets = {f"local/p{number:03d}" for number in range(100)}
    (problem,) = _validate(_stream("s", "local/q"), replica_sets=sets)
    assert problem.endswith("local/p018, local/p019 and 80 more)")


def test_who_waits_for_more_stages_than_there_may_be_is_not_looked_at_any_further() -> None:
    """Each name is compared with those before it, and a message holds a million."""
    stages = _stage(after=("a",) * 100_000), _stage("b", dependencies=("verdict",) * 101)
    problems = _validate(_pipeline(*stages), existing=_existing(_stream()))
    assert [each.split("departures: ")[1] for each in problems] == [
        "stages[0].after: 100000 names, expected at most 100",
        "stages[1].dependencies: 101 names, expected at most 100",
    ]


def test_a_partition_is_not_looked_for_among_all_others() -> None:
    sets: set[str] = {ComparedName(f"local/p{number:03d}") for number in range(200)}
    names = sorted(sets)
    existing = _existing(_stream("flights", *names))
    ComparedName.times = 0
    assert _validate(_stream("flights", *names), existing=existing, replica_sets=sets) == []
    (told,) = _validate(_stream("flights", *names[1:]), existing=existing, replica_sets=sets)
    assert "'local/p000' was removed" in told
    assert ComparedName.times < 3 * len(names)


@pytest.mark.parametrize("waits_for_all", [True, False])
def test_each_stage_is_compared_a_few_times_with_each_that_it_waits_for(
    waits_for_all: bool,
) -> None:
    def after(index: int) -> tuple[str, ...]:
        first = 0 if waits_for_all else max(0, index - 1)
        return tuple(ComparedName(f"s{number}") for number in range(first, index))

    stages = [
        _stage(ComparedName(f"s{index}"), after=after(index), output=Output("verdicts"))
        for index in reversed(range(MAX_STAGES))
    ]
    pipeline = _pipeline(*stages)
    ComparedName.times = 0
    assert _validate(pipeline, _stream(), _stream("verdicts")) == []
    waits = sum(len(stage.after) for stage in stages)
    assert ComparedName.times < 8 * (waits + len(stages))
