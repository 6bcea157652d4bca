"""A pipeline over a state machine, for tests."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from hadron.fakes.tables import SET, Replicated
from hadron.model.pipelines import Output, PipelineSpec, Retry, StageSpec
from hadron.model.schema import StreamSpec
from hadron.state.pipelines import definitions, views
from hadron.state.pipelines.inputs import Triggered, TriggerInstances
from hadron.state.pipelines.retries import Retried, RetryInstances
from hadron.state.pipelines.stage_runs import Completed, CompleteStages, FailStages
from hadron.state.streams.partitions import AppendBatch

IN, OUT, PIPELINE = 1, 2, 3


def stage(name: str, *dependencies: str, output: bool = True, **fields: Any) -> StageSpec:
    return StageSpec(
        name=name,
        engine="handler",
        dependencies=dependencies,
        output=Output("out") if output else None,
        **fields,
    )


DIAMOND = (
    stage("a"),
    stage("b", "a", delay_ms=500),
    stage("c", "a", output=False),
    stage("d", "a", "b", after=("c",), retry=Retry(2, 1_000)),
)


class Pipe(Replicated):
    """Streams `in` with 100 records and `out`, and a pipeline over them."""

    def __init__(self, *stages: StageSpec, start: str = "earliest") -> None:
        super().__init__()
        self.declare(
            ("Stream", "in", StreamSpec(partitions=(SET,))),
            ("Stream", "out", StreamSpec(partitions=(SET,))),
        )
        self.submit(AppendBatch(IN, 100, 1_000, b"", 0, -1))
        self.stages(*stages, start=start)

    def stages(self, *stages: StageSpec, start: str = "earliest") -> None:
        spec = PipelineSpec(replica_set=SET, input="in", stages=stages, start=start)
        self.declare(("Pipeline", "p", spec))

    def trigger(self, *offsets: int, start: int = 0, to: int = 100) -> Triggered:
        result = self.submit(TriggerInstances(PIPELINE, SET, start, to, offsets))
        assert isinstance(result, Triggered)
        return result

    def complete(self, name: str, *ids: int, attempt: int = 1, output: bool = True) -> Completed:
        result = self.submit(
            CompleteStages(
                PIPELINE,
                name,
                ids,
                (attempt,) * len(ids),
                OUT if output else 0,
                100 if output else 0,
            )
        )
        assert isinstance(result, Completed)
        return result

    def fail(self, name: str, *ids: int, attempt: int = 1) -> Completed:
        result = self.submit(FailStages(PIPELINE, name, ids, (attempt,) * len(ids), "cold"))
        assert isinstance(result, Completed)
        return result

    def retry(self, *ids: int) -> Retried:
        result = self.submit(RetryInstances(PIPELINE, ids))
        assert isinstance(result, Retried)
        return result

    def ready(self, name: str) -> list[int]:
        return [item.instance_id for item in self.invocations(name)]

    def invocations(
        self, name: str, limit: int = 1_000, except_ids: Container[int] = ()
    ) -> list[views.ReadyStage]:
        """Of all definitions."""
        return [
            item
            for version, stages in definitions.all_stages(self.db, PIPELINE).items()
            for stage in stages
            if stage.name == name
            for item in views.ready_stages(
                self.db,
                PIPELINE,
                version,
                stage,
                now_ms=self.now_ms,
                limit=limit,
                except_ids=except_ids,
            )
        ]

    def versions(self) -> dict[int, int]:
        """Of definitions, how many instances may go on with each."""
        return dict(self.rows("SELECT version, instances FROM hadron_definition"))

    def counts(self) -> views.PipelineCounts:
        return views.counts(self.db, PIPELINE)

    def statuses(self) -> list[int]:
        return [
            row[0] for row in self.rows("SELECT status FROM hadron_instance ORDER BY instance_id")
        ]
