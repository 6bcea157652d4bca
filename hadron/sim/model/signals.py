"""Commands of stages that wait: P14, written a second time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hadron.model.errors import NotFoundError, RequestError
from hadron.sim.model.entry import Entry, Known, Refused
from hadron.sim.model.pipeline import READY, Pipeline
from hadron.sim.model.streams import appended
from hadron.sim.model.waits import ARMED, CAME, OVER, WaitCursor, deleted, too_late
from hadron.state.pipelines.wait_inputs import OpenWait
from hadron.state.pipelines.waits import SLICE, ExpireWaits, SignalInstance, SignalStages

if TYPE_CHECKING:
    from hadron.sim.model.pipelines import Pipelines


def open_wait(pipelines: Pipelines, _entry: Entry, command: OpenWait) -> None:
    pipeline = pipelines.by_id.get(command.pipeline_id)
    if pipeline is None or not pipeline.is_here:
        raise Refused(NotFoundError)
    if command.stream_id not in pipelines.awaited(command.pipeline_id):
        raise Refused(NotFoundError)
    key = command.stream_id, command.partition
    if key in pipeline.waits.cursors:
        raise Known(None)
    pipeline.waits.cursors[key] = WaitCursor(command.offset)


def signal(pipelines: Pipelines, entry: Entry, command: SignalStages) -> dict[str, Any]:
    """P14: the first record of each wait, once."""
    pipeline, key = pipelines.by_id.get(command.pipeline_id), (command.stream_id, command.partition)
    if pipeline is None or not pipeline.is_here or key not in pipeline.waits.cursors:
        raise Refused(NotFoundError)
    cursor = pipeline.waits.cursors[key]
    if cursor.offset != command.from_offset:
        raise Known({"next_offset": cursor.offset, "stale": True})
    pipeline.waits.cursors[key] = WaitCursor(
        command.to_offset, command.ballot, cursor.truncations + command.is_truncated
    )
    came: dict[str, list[int]] = {}
    for number, stage, offset in command.signals:
        awaited = pipeline.waits.by_stage.get((number, stage))
        if awaited is None or awaited.status != ARMED:
            continue
        if awaited.stream_id == command.stream_id:
            awaited.status, awaited.due_ms = CAME, None
            awaited.output = command.stream_id, command.partition, offset
            came.setdefault(stage, []).append(number)
    for stage, numbers in came.items():
        _came(pipelines, pipeline, command.pipeline_id, stage, numbers, entry.now_ms)
    return {"next_offset": command.to_offset, "stale": False}


def _came(
    pipelines: Pipelines,
    pipeline: Pipeline,
    pipeline_id: int,
    stage: str,
    numbers: list[int],
    now_ms: int,
) -> None:
    """Where it is its turn."""
    for number in numbers:
        run = pipeline.runs.get((stage, number))
        if run is not None and run.status == READY:
            pipeline.came(pipelines.spec_of(pipeline_id), stage, number, now_ms)


def signal_one(pipelines: Pipelines, entry: Entry, command: SignalInstance) -> dict[str, Any]:
    pipeline = pipelines.by_id.get(command.pipeline_id)
    key = command.instance_id, command.stage
    if pipeline is None or not pipeline.is_here or key not in pipeline.waits.by_stage:
        raise Refused(NotFoundError)
    awaited = pipeline.waits.by_stage[key]
    if awaited.stream_id is not None:
        raise Refused(RequestError)
    if awaited.status == CAME:
        offset = awaited.output[2]
        known = None if offset is None else appended(offset, 1, 0, -1)
        raise Known({"appended": known, "again": True})
    if awaited.status == OVER:
        raise Refused(RequestError)
    done = None
    if command.out_stream_id:
        pipelines.streams.bounds(command.out_stream_id)
        base = pipelines.streams.append(entry, command.out_stream_id, 1, command.size)
        done = appended(base, 1, entry.now_ms, -1)
        awaited.output = command.out_stream_id, pipelines.replica_set, base
    awaited.status, awaited.due_ms = CAME, None
    numbers = [command.instance_id]
    _came(pipelines, pipeline, command.pipeline_id, command.stage, numbers, entry.now_ms)
    return {"appended": done, "again": False}


def expire(pipelines: Pipelines, entry: Entry, command: ExpireWaits) -> dict[str, Any]:
    """P14: the other way, or none."""
    pipeline = pipelines.by_id.get(command.pipeline_id)
    due: list[tuple[int, int, str]] = []
    if pipeline is not None and pipeline.is_here:
        due = sorted(
            (each.due_ms, *key)
            for key, each in pipeline.waits.by_stage.items()
            if each.due_ms is not None and each.due_ms <= command.before_ms
        )
    if pipeline is not None and pipeline.is_here and not due:
        return _expire_deleted(pipelines, entry, command.pipeline_id, pipeline)
    if pipeline is None or not due:
        raise Known({"count": 0, "is_done": True})
    by_stage: dict[str, list[int]] = {}
    for _, number, name in due[:SLICE]:
        by_stage.setdefault(name, []).append(number)
    now = pipelines.spec_of(command.pipeline_id)
    for name, numbers in by_stage.items():
        for number in numbers:
            stage = pipeline.stages_of(pipeline.instances[number].version, now)[name]
            assert stage.wait is not None
            pipeline.expire(now, stage, number, too_late(stage.wait), entry.now_ms)
    return {"count": min(len(due), SLICE), "is_done": len(due) <= SLICE}


def _expire_deleted(
    pipelines: Pipelines, entry: Entry, pipeline_id: int, pipeline: Pipeline
) -> dict[str, Any]:
    """P14: what waits for records of a stream that was deleted, where it is its turn."""
    lost = pipeline.waits.lost()
    if not lost:
        raise Known({"count": 0, "is_done": True})
    now = pipelines.spec_of(pipeline_id)
    for number, name in lost[:SLICE]:
        pipeline.waits.by_stage[number, name].end()
    for number, name in lost[:SLICE]:
        run = pipeline.runs.get((name, number))
        if run is not None and run.status == READY:
            wait = pipeline.stages_of(pipeline.instances[number].version, now)[name].wait
            assert wait is not None
            pipeline.give_up_waiting(now, name, number, deleted(wait), entry.now_ms)
    return {"count": min(len(lost), SLICE), "is_done": len(lost) <= SLICE}
