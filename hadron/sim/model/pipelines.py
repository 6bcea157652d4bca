"""Pipelines: cursors, instances, and what each stage of each instance has done (E3, P1, P2).

No counter is kept: how many instances are live is counted where somebody asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Protocol

from hadron.model.errors import NotFoundError, RequestError, SchemaError
from hadron.model.kinds import spec_from_json
from hadron.model.pipelines import PipelineSpec, StageSpec
from hadron.model.units import parse_time_ms
from hadron.sim.model.entry import Entry, Known, Refused, Rows
from hadron.sim.model.streams import Streams, appended
from hadron.state.pipeline_retries import RetryInstances
from hadron.state.pipelines import CompleteStages, FailStages, TriggerInstances

LIVE: Final = 1
READY: Final = 1
DONE: Final = 2
FAILED: Final = 3


@dataclass(slots=True)
class Instance:
    status: int
    stream_id: int
    partition: str
    offset: int
    created_ms: int


@dataclass(slots=True)
class Run:
    """A stage of an instance, once it may run."""

    ready_ms: int
    status: int = READY
    attempts: int = 0
    output: tuple[int | None, str | None, int | None] = (None, None, None)
    reason: str | None = None


@dataclass(slots=True)
class Pipeline:
    """Attributes:
    is_here: false once it was deleted, and its rows are being dropped.
    stages: every one that was ever declared.
    cursors: by partition: the stream, and up to where all was looked at.
    runs: by (stage, instance id).
    retried: by that, how many attempts there were before the last retry.
    counted: by stage, what its runs were when the pipeline was deleted.
    """

    is_here: bool = True
    next_instance: int = 1
    stages: set[str] = field(default_factory=set)
    cursors: dict[str, tuple[int, int]] = field(default_factory=dict)
    instances: dict[int, Instance] = field(default_factory=dict)
    runs: dict[tuple[str, int], Run] = field(default_factory=dict)
    retried: dict[tuple[str, int], int] = field(default_factory=dict)
    counted: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def has_done(self, stages: set[str], instance_id: int) -> bool:
        return all(
            (run := self.runs.get((stage, instance_id))) is not None and run.status == DONE
            for stage in stages
        )

    def step(self, spec: PipelineSpec, instance_ids: list[int], now_ms: int) -> None:
        """Whatever may run now is ready; whoever has nothing left is done."""
        for instance_id in instance_ids:
            for stage in spec.stages:
                key = stage.name, instance_id
                if key not in self.runs and self.has_done(_before(stage), instance_id):
                    self.runs[key] = Run(now_ms + stage.delay_ms)
            instance = self.instances.get(instance_id)
            names = {stage.name for stage in spec.stages}
            if (
                instance is not None
                and instance.status == LIVE
                and self.has_done(names, instance_id)
            ):
                instance.status = DONE

    def count(self, stage: str) -> tuple[int, int, int]:
        found = [run.status for (name, _), run in self.runs.items() if name == stage]
        return found.count(READY), found.count(DONE), found.count(FAILED)


def _before(stage: StageSpec) -> set[str]:
    return {*stage.dependencies, *stage.after}


class Declared(Protocol):
    """An object of the schema; its specification is JSON."""

    spec: str


@lru_cache(maxsize=256)
def parsed(spec: str) -> PipelineSpec:
    found = spec_from_json("Pipeline", spec)
    assert isinstance(found, PipelineSpec)
    return found


@dataclass(slots=True)
class Pipelines:
    """`objects`: all that are declared, of whatever kind."""

    replica_set: str
    streams: Streams
    objects: Mapping[int, Declared]
    by_id: dict[int, Pipeline] = field(default_factory=dict)

    def declared(
        self, now_ms: int, pipeline_id: int, spec: PipelineSpec, stream_id: int | None
    ) -> None:
        """It is new, or has changed; `stream_id` is its input's."""
        if spec.replica_set != self.replica_set or stream_id is None:
            return
        known = self.by_id.get(pipeline_id)
        if known is not None and any(each != stream_id for each, _ in known.cursors.values()):
            raise Refused(SchemaError)
        start = self._start(stream_id, spec.start)
        pipeline = self.by_id.setdefault(pipeline_id, Pipeline())
        pipeline.stages |= {stage.name for stage in spec.stages}
        pipeline.cursors.setdefault(self.replica_set, (stream_id, start))
        live = [each for each, made in pipeline.instances.items() if made.status == LIVE]
        pipeline.step(spec, live, now_ms)

    def _start(self, stream_id: int, start: str) -> int:
        first, following = self.streams.bounds(stream_id)
        if start == "earliest":
            return first
        if start == "latest":
            return following
        if start.isdigit():
            return min(max(int(start), first), following)
        return self.streams.offset_at(stream_id, parse_time_ms(start))

    def close(self, pipeline_id: int) -> bool:
        """It is deleted; whether anything of it is left."""
        pipeline = self.by_id.get(pipeline_id)
        if pipeline is None or not pipeline.is_here:
            return False
        pipeline.counted = {stage: pipeline.count(stage) for stage in pipeline.stages}
        pipeline.is_here = False
        return True

    def trimmed(self, stream_id: int, first_offset: int) -> list[tuple[int, int]]:
        """(pipeline, records) that retention has dropped before they were looked at."""
        skipped = []
        for pipeline_id, pipeline in sorted(self.by_id.items()):
            known, cursor = pipeline.cursors.get(self.replica_set, (0, 0))
            if known == stream_id and cursor < first_offset:
                pipeline.cursors[self.replica_set] = stream_id, first_offset
                skipped.append((pipeline_id, first_offset - cursor))
        return skipped

    def trigger(self, entry: Entry, command: TriggerInstances) -> dict[str, Any]:
        pipeline = self.by_id.get(command.pipeline_id)
        if pipeline is None or command.partition not in pipeline.cursors:
            raise Refused(NotFoundError)
        stream_id, cursor = pipeline.cursors[command.partition]
        if cursor != command.from_offset:
            raise Known({"next_offset": cursor, "created": 0, "stale": True})
        made: list[int] = []
        if command.offsets:
            if not pipeline.is_here:
                raise Refused(NotFoundError)
            spec = self._spec(command.pipeline_id)
            for offset in command.offsets:
                made.append(pipeline.next_instance)
                pipeline.instances[pipeline.next_instance] = Instance(
                    LIVE, stream_id, command.partition, offset, entry.now_ms
                )
                pipeline.next_instance += 1
            pipeline.step(spec, made, entry.now_ms)
        pipeline.cursors[command.partition] = stream_id, command.to_offset
        return {"next_offset": command.to_offset, "created": len(made), "stale": False}

    def _spec(self, pipeline_id: int) -> PipelineSpec:
        if pipeline_id not in self.objects:
            raise Refused(NotFoundError)
        return parsed(self.objects[pipeline_id].spec)

    def stale(self, command: CompleteStages | FailStages) -> list[int]:
        """Those whose stage does not wait for just this attempt of this instance."""
        pipeline = self.by_id.get(command.pipeline_id, Pipeline())
        created_ms = command.created_ms or (None,) * len(command.instance_ids)
        stale: list[int] = []
        seen: set[int] = set()
        for instance_id, attempt, made_ms in zip(
            command.instance_ids, command.attempts, created_ms, strict=True
        ):
            run = pipeline.runs.get((command.stage, instance_id))
            instance = pipeline.instances.get(instance_id)
            waits = (
                run is not None
                and instance is not None
                and instance_id not in seen
                and run.status == READY
                and run.attempts + 1 == attempt
                and made_ms in (None, instance.created_ms)
            )
            seen.add(instance_id)
            if not waits:
                stale.append(instance_id)
        return stale

    def complete(self, entry: Entry, command: CompleteStages) -> dict[str, Any]:
        stale = self.stale(command)
        if stale:
            raise Known({"appended": None, "stale": stale})
        ids, output = command.instance_ids, command.out_stream_id
        if output:
            self.streams.bounds(output)
        spec = self._spec(command.pipeline_id)
        done = None
        if output:
            base = self.streams.append(entry, output, len(ids), command.size)
            done = appended(base, len(ids), entry.now_ms, -1)
        pipeline = self.by_id[command.pipeline_id]
        for index, instance_id in enumerate(ids):
            run = pipeline.runs[command.stage, instance_id]
            run.status, run.reason = DONE, None
            run.output = (output, self.replica_set, base + index) if output else (None,) * 3
        self._advance(pipeline, spec, command.stage, list(ids), entry.now_ms)
        return {"appended": done, "stale": []}

    def _advance(
        self, pipeline: Pipeline, spec: PipelineSpec, stage: str, ids: list[int], now_ms: int
    ) -> None:
        """Only what waited for this stage is looked at."""
        for following in spec.stages:
            if stage not in _before(following):
                continue
            for instance_id in ids:
                key = following.name, instance_id
                if key not in pipeline.runs and pipeline.has_done(_before(following), instance_id):
                    pipeline.runs[key] = Run(now_ms + following.delay_ms)
        names = {each.name for each in spec.stages}
        for instance_id in ids:
            instance = pipeline.instances[instance_id]
            if instance.status == LIVE and pipeline.has_done(names, instance_id):
                instance.status = DONE

    def fail(self, entry: Entry, command: FailStages) -> dict[str, Any]:
        stale = set(self.stale(command))
        failed = [
            (instance_id, attempt)
            for instance_id, attempt in zip(command.instance_ids, command.attempts, strict=True)
            if instance_id not in stale
        ]
        spec = self._spec(command.pipeline_id)
        stages = {each.name: each for each in spec.stages}
        if command.stage not in stages or not failed:
            raise Known({"appended": None, "stale": list(command.instance_ids)})
        retry = stages[command.stage].retry
        pipeline = self.by_id[command.pipeline_id]
        for instance_id, attempt in failed:
            run = pipeline.runs[command.stage, instance_id]
            counted = attempt - pipeline.retried.get((command.stage, instance_id), 0)
            run.attempts, run.reason = attempt, command.reason
            run.ready_ms = entry.now_ms + retry.backoff_ms * 2 ** min(counted - 1, 20)
            if counted >= retry.max_attempts:
                run.status = FAILED
                if pipeline.instances[instance_id].status == LIVE:
                    pipeline.instances[instance_id].status = FAILED
        return {"appended": None, "stale": sorted(stale)}

    def retry(self, entry: Entry, command: RetryInstances) -> dict[str, Any]:
        """P1: their failed stages are ready, and their attempts count from here on."""
        pipeline = self.by_id.get(command.pipeline_id)
        if pipeline is None or not pipeline.is_here:
            raise Refused(NotFoundError)
        ids = sorted(set(command.instance_ids))
        if any(each not in pipeline.instances for each in ids):
            raise Refused(NotFoundError)
        failed = [each for each in ids if pipeline.instances[each].status == FAILED]
        others = [each for each in ids if each not in failed]
        retried = {each for _, each in pipeline.retried}
        if any(each not in retried for each in others):
            raise Refused(RequestError)
        if not failed:
            raise Known({"retried": 0, "again": len(others)})
        spec = self._spec(command.pipeline_id)
        for key, run in pipeline.runs.items():
            if key[1] in failed and run.status == FAILED:
                pipeline.retried[key], run.status = run.attempts, READY
                run.ready_ms, run.reason = entry.now_ms, None
        for instance_id in failed:
            pipeline.instances[instance_id].status = LIVE
        pipeline.step(spec, failed, entry.now_ms)
        return {"retried": len(failed), "again": len(others)}

    def rows(self) -> Rows:
        found: Rows = {
            name: []
            for name in (
                "pipeline",
                "pipeline_input",
                "instance",
                "stage_run",
                "stage_retry",
                "stage_count",
            )
        }
        for each, pipeline in self.by_id.items():
            if pipeline.is_here:
                ended = [made.status for made in pipeline.instances.values()]
                found["pipeline"].append(
                    (each, pipeline.next_instance, *(ended.count(at) for at in (1, 2, 3)))
                )
            found["pipeline_input"] += [
                (each, name, *cursor) for name, cursor in pipeline.cursors.items()
            ]
            found["instance"] += [
                (each, number, i.status, i.stream_id, i.partition, i.offset, i.created_ms)
                for number, i in pipeline.instances.items()
            ]
            for (stage, number), run in pipeline.runs.items():
                found["stage_run"].append(
                    (
                        each,
                        stage,
                        number,
                        run.status,
                        run.ready_ms,
                        run.attempts,
                        *run.output,
                        run.reason,
                    )
                )
            found["stage_retry"] += [(each, *key, at) for key, at in pipeline.retried.items()]
            counts = pipeline.counted
            if pipeline.is_here:
                counts = {stage: pipeline.count(stage) for stage in pipeline.stages}
            found["stage_count"] += [(each, stage, *count) for stage, count in counts.items()]
        return found
