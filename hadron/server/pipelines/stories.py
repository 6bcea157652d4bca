"""Instances as people see them: what each stage has done, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hadron.model.pipelines import StageSpec, branches_of
from hadron.model.units import format_time
from hadron.pipelines.driver import PipelineDriver
from hadron.serving.catalog import Catalog
from hadron.serving.leading import Leading
from hadron.state.pipelines import definitions, views
from hadron.state.pipelines.stories import Attempt
from hadron.state.pipelines.tables import InstanceStatus
from hadron.wire.messages import pipelines_pb2

INSTANCE_STATUS: Final = {1: "live", 2: "done", 3: "failed", 4: "cancelled"}
_STAGE_STATUS: Final = {
    0: "waiting",
    1: "ready",
    2: "done",
    3: "failed",
    4: "publishing",
    5: "skipped",
    6: "timed out",
}
_OVER: Final = ("done", "skipped", "timed out")
_Instances = pipelines_pb2.ListInstancesResponse


def ref_of(catalog: Catalog, output: views.OutputRef) -> pipelines_pb2.RecordRef:
    """Where a record is, with its stream by name, also when that was deleted."""
    return pipelines_pb2.RecordRef(
        stream=catalog.name_of(output.stream_id),
        stream_id=output.stream_id,
        partition=output.partition,
        offset=output.offset,
    )


def described(
    leading: Leading,
    driver: PipelineDriver,
    declared: definitions.Stages,
    item: views.InstanceStory,
    now_ms: int,
) -> pipelines_pb2.ListInstancesResponse.Instance:
    # What is done goes by the present definition, where its own is gone.
    stages = declared.get(item.version, driver.spec.stages)
    begun = {stage.name: stage for stage in item.stages}
    statuses = {each.name: _status(driver, item, each, begun.get(each.name)) for each in stages}
    shown = []
    for each in stages:
        stage = begun.get(each.name)
        waits_for = ""
        if item.status == InstanceStatus.LIVE:
            waits_for = _waits_for(driver, stages, each, stage, statuses, now_ms)
        known = _Instances.Stage(name=each.name, status=statuses[each.name], waits_for=waits_for)
        if stage is not None:
            known.attempts, known.reason = stage.attempts, stage.reason
            known.tried.extend(_tried(one) for one in stage.tried)
            if stage.output is not None:
                known.output.CopyFrom(ref_of(leading.catalog, stage.output))
        if statuses[each.name] == "running":
            work = driver.dispatcher.work_on(each.name, item.instance_id)
            known.runner, known.running_ms = work.runner, int((work.took_s or 0.0) * 1_000)
            known.code_version = work.code_version
        shown.append(known)
    return _Instances.Instance(
        id=item.instance_id,
        status=INSTANCE_STATUS[item.status],
        root=ref_of(leading.catalog, item.root),
        created_ms=item.created_ms,
        stages=shown,
    )


def _tried(attempt: Attempt) -> pipelines_pb2.ListInstancesResponse.Attempt:
    return _Instances.Attempt(
        number=attempt.number,
        ended_ms=attempt.ended_ms,
        took_ms=attempt.took_ms if attempt.took_ms >= 0 else None,
        runner=attempt.runner,
        code_version=attempt.code_version,
        reason=attempt.reason,
    )


def _status(
    driver: PipelineDriver,
    item: views.InstanceStory,
    stage: StageSpec,
    begun: views.StageStory | None,
) -> str:
    if begun is None:
        return "waiting"
    status = _STAGE_STATUS[begun.status]
    if status == "ready" and driver.dispatcher.assignments.is_out(stage.name, item.instance_id):
        return "running"
    if status == "ready" and stage.wait is not None:
        return "awaiting"
    return status


def _waits_for(
    driver: PipelineDriver,
    stages: Iterable[StageSpec],
    stage: StageSpec,
    begun: views.StageStory | None,
    statuses: dict[str, str],
    now_ms: int,
) -> str:
    """In words; "" for what runs, or has ended."""
    status = statuses[stage.name]
    if status == "waiting":
        if stage.name in branches_of(stages):
            return "that another stage waits for too long"
        before = dict.fromkeys((*stage.dependencies, *stage.after))
        left = [name for name in before if statuses.get(name) not in _OVER]
        return ", ".join(left) or "that an instance is given up"
    if begun is None or status not in ("ready", "awaiting"):
        return ""
    if status == "awaiting" and stage.wait is not None:
        what = "a signal"
        if stage.wait.stream:
            what = f"a record of {stage.wait.stream} with the key of the trigger"
        return f"{what}, until {format_time(begun.due_ms)}" if begun.due_ms else what
    if begun.ready_ms > now_ms:
        return f"its time: {format_time(begun.ready_ms)}"
    runners = driver.dispatcher.assignments.runners.values()
    if any(runner.runs(stage.name, stage.engine) for runner in runners):
        return "a runner that has room"
    return f"a runner with engine {stage.engine}: there is none"
