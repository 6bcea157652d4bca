"""Failed instances that run again: P1, P6 and P14, written a second time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hadron.model.errors import ConflictError, NotFoundError, RequestError
from hadron.model.pipelines import PipelineSpec, place_of
from hadron.sim.model.entry import Entry, Known, Refused
from hadron.sim.model.pipeline import (
    DONE,
    FAILED,
    LIVE,
    PUBLISHING,
    READY,
    WAITING,
    Pipeline,
    parsed,
)
from hadron.sim.model.waits import ARMED, CAME, OVER, Awaited, awaited_streams, keys_of
from hadron.state.pipelines.retries import RetryInstances

if TYPE_CHECKING:
    from hadron.sim.model.pipelines import Pipelines


def retry(pipelines: Pipelines, entry: Entry, command: RetryInstances) -> dict[str, Any]:
    """P1: their failed stages are ready, and their attempts count from here on."""
    pipeline = pipelines.by_id.get(command.pipeline_id)
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
    keys = _keys(pipeline, command, failed)
    pipelines.check_free(command.pipeline_id, failed)
    spec = pipelines.spec_of(command.pipeline_id)
    version = max(pipeline.definitions)
    if any(_is_publishing(pipeline, number, command.from_start) for number in failed):
        raise Refused(ConflictError)
    for number in failed:
        _begin_anew(pipeline, spec, number, entry.now_ms, from_start=command.from_start)
        made = pipeline.instances[number]
        made.status, made.version, made.ended_ms = LIVE, version, None
        pipeline.hold_back(spec, number)
    _rearm(pipelines, command.pipeline_id, pipeline, spec, keys)
    pipeline.step(spec, failed, entry.now_ms)
    return {"retried": len(failed), "again": len(others)}


def _keys(
    pipeline: Pipeline, command: RetryInstances, failed: Sequence[int]
) -> dict[int, int | None]:
    """P14: by instance: as it is known, or as the command says."""
    said = dict(
        zip(
            command.instance_ids,
            keys_of(command.key_hashes, len(command.instance_ids)),
            strict=True,
        )
    )
    keys = {
        number: max(
            (each.key for each in pipeline.waits.of(number).values() if each.key is not None),
            default=None,
        )
        for number in failed
    }
    version = max(pipeline.definitions)
    awaits = awaited_streams(parsed(pipeline.definitions[version]).stages)
    if awaits and not command.key_hashes and None in keys.values():
        raise Refused(ConflictError)
    return {number: said[number] if key is None else key for number, key in keys.items()}


def _is_publishing(pipeline: Pipeline, number: int, from_start: bool) -> bool:
    """Whether an output is on its way of what is to run again."""
    told = (
        pipeline.on_failure(pipeline.instances[number].version),
        pipeline.on_failure(max(pipeline.definitions)),
    )
    return any(
        run.status == PUBLISHING and (from_start or name in told)
        for (name, each), run in pipeline.runs.items()
        if each == number
    )


def _begin_anew(
    pipeline: Pipeline, now: PipelineSpec, number: int, now_ms: int, *, from_start: bool
) -> None:
    """Of an instance: what it has done and failed, in the definition of now."""
    instance, version = pipeline.instances[number], max(pipeline.definitions)
    told = pipeline.on_failure(instance.version), pipeline.on_failure(version)
    for (name, each), run in pipeline.runs.items():
        if each != number:
            continue
        if from_start or name in told:
            run.attempts += run.status in (READY, DONE)
            run.status, run.output, run.reason = WAITING, (None, None, None), None
            run.version, pipeline.retried[name, number] = version, run.attempts
            continue
        if run.status == FAILED:
            pipeline.retried[name, number], run.status = run.attempts, READY
            run.ready_ms, run.reason = now_ms, None
        before = pipeline.stages_of(instance.version, now).get(name)
        after = pipeline.stages_of(version, now).get(name)
        is_moved = before is None or after is None or place_of(before) != place_of(after)
        is_empty = after is not None and after.output is not None and run.output[0] is None
        if (run.status == READY and is_moved) or (run.status == DONE and is_empty):
            pipeline.wait_again(name, number)
        run.version = version


def _rearm(
    pipelines: Pipelines,
    pipeline_id: int,
    pipeline: Pipeline,
    now: PipelineSpec,
    keys: dict[int, int | None],
) -> None:
    """P14: what has not come is awaited again, by the stages that wait now."""
    stages = pipeline.ordinary(max(pipeline.definitions), now).values()
    waiting = [stage for stage in stages if stage.wait is not None]
    for number, key in keys.items():
        known = pipeline.waits.of(number)
        for stage in waiting:
            stream_id = pipelines.awaited_stream(pipeline_id, stage)
            awaited = known.setdefault(stage.name, Awaited(stream_id, key))
            pipeline.waits.by_stage[number, stage.name] = awaited
            if awaited.status != CAME:
                awaited.stream_id, awaited.is_deleted = stream_id, stream_id == 0
        for name, awaited in known.items():
            awaited.key = key
            run = pipeline.runs.get((name, number))
            if run is None or run.status != READY:
                awaited.due_ms = None
            if awaited.status == OVER and (run is None or run.status in (WAITING, READY)):
                awaited.status, awaited.due_ms = ARMED, None
            if name not in {stage.name for stage in waiting}:
                del pipeline.waits.by_stage[number, name]
