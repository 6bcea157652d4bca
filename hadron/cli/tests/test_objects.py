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
