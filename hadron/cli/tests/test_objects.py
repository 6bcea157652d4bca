from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hadron.cli.objects import notes_on
from hadron.client import SyncClient
from hadron.model.pipelines import Output, PipelineSpec, StageSpec
from hadron.model.schema import SchemaObject, StreamSpec

PIPELINE = SchemaObject(
    kind="Pipeline",
    name="departures",
    spec=PipelineSpec(
        replica_set="eu/p0", input="flights", stages=(StageSpec(name="a", run="m:a"),)
    ),
)


def flights(*partitions: str) -> SchemaObject:
    return SchemaObject(kind="Stream", name="flights", spec=StreamSpec(partitions=partitions))


def cluster_with(*objects_there: SchemaObject) -> SyncClient:
    def objects(kind: str, namespace: str, name: str) -> list[Any]:
        if kind == "Pipeline":
            return [each for each in objects_there if each.kind == kind]
        return [
            each
            for each in objects_there
            if (each.kind, each.namespace, each.name) == (kind, namespace, name)
        ]

    return cast("SyncClient", SimpleNamespace(objects=objects))


def test_partitions_that_a_pipeline_does_not_read_are_named() -> None:
    (note,) = notes_on(cluster_with(flights("eu/p0", "us/p0", "us/p1")), [PIPELINE])
    assert note == (
        "Pipeline default/departures reads what flights has at eu/p0 only, in this version of "
        "Hadron: nothing of us/p0, us/p1 yet"
    )


def test_what_is_declared_together_is_not_asked_for() -> None:
    declared = [flights("us/p0", "eu/p0"), PIPELINE]
    assert len(notes_on(cluster_with(), declared)) == 1


def test_a_pipeline_that_reads_everything_needs_no_note() -> None:
    assert notes_on(cluster_with(flights("eu/p0")), [PIPELINE]) == []


def pipeline(name: str, source: str, target: str, *triggers: str) -> SchemaObject:
    stages = (StageSpec(name="a", run="m:a", output=Output(target)),)
    spec = PipelineSpec(replica_set="eu/p0", input=source, stages=stages, triggers=triggers)
    return SchemaObject(kind="Pipeline", name=name, spec=spec)


def test_outputs_that_may_come_back_are_told() -> None:
    (own,) = notes_on(cluster_with(), [pipeline("p", "flights", "flights", "flight.departed")])
    assert own.startswith(
        "Pipeline default/p: 'flights' is the pipeline's own input: an output whose type matches"
    )
    (through,) = notes_on(
        cluster_with(pipeline("back", "late", "flights")), [pipeline("p", "flights", "late", "a")]
    )
    assert "'late' leads back to the pipeline's input, through 'back'" in through
    assert notes_on(cluster_with(), [pipeline("p", "flights", "late", "a")]) == []
