"""Instances as people see them: what each stage has done, and what it waits for."""

from __future__ import annotations

from collections.abc import Mapping
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
_ENDED: Final = (InstanceStatus.DONE, InstanceStatus.CANCELLED)
"""For good: a failed one may be retried."""
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
    # Of one that has ended its definition may be gone; others have their own.
    stages = {each.name: each for each in declared.get(item.version, driver.spec.stages)}
    begun = {stage.name: stage for stage in item.stages}
    names = list(stages)
    if item.status in _ENDED:
        # It has what it has had, and nothing of it runs any more.
        order = {name: at for at, name in enumerate(names)}
        names = sorted(begun, key=lambda name: (order.get(name, len(order)), name))
    statuses = {each: _status(driver, item, stages.get(each), begun.get(each)) for each in names}
    shown = []
    for name in names:
        stage = begun.get(name)
        waits_for = ""
        if item.status not in _ENDED:
            waits_for = _waits_for(driver, item, stages, stages[name], statuses, now_ms)
        known = _Instances.Stage(name=name, status=statuses[name], waits_for=waits_for)
        if stage is not None:
            known.attempts, known.reason = stage.attempts, stage.reason
            known.tried.extend(_tried(one) for one in stage.tried)
            if stage.output is not None:
                known.output.CopyFrom(ref_of(leading.catalog, stage.output))
        if statuses[name] == "running":
            work = driver.dispatcher.work_on(name, item.instance_id)
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
    stage: StageSpec | None,
    begun: views.StageStory | None,
) -> str:
    status = _STAGE_STATUS[begun.status] if begun is not None else "waiting"
    if status == "waiting" and item.status in _ENDED:
        return "not run"
    if status != "ready" or stage is None:
        return status
    if driver.dispatcher.assignments.has_begun(stage.name, item.instance_id):
        return "running"
    return "awaiting" if stage.wait is not None else status


def _waits_for(
    driver: PipelineDriver,
    item: views.InstanceStory,
    stages: Mapping[str, StageSpec],
    stage: StageSpec,
    statuses: Mapping[str, str],
    now_ms: int,
) -> str:
    """In words; "" for what runs, or has ended."""
    came = ""
    if stage.wait is not None and stage.name in item.came:
        came = "what it awaits has come" if stage.wait.stream else "its signal has come"
    if statuses[stage.name] == "waiting":
        before = _before(item, stages, stage, statuses)
        return "; ".join(each for each in (before, came) if each)
    (begun,) = (each for each in item.stages if each.name == stage.name)
    if item.status != InstanceStatus.LIVE:
        return ""
    if statuses[stage.name] == "awaiting" and stage.wait is not None:
        what = "a signal"
        if stage.wait.stream:
            what = f"a record of {stage.wait.stream} with the key of the trigger"
        return f"{what}, until {format_time(begun.due_ms)}" if begun.due_ms else what
    if statuses[stage.name] != "ready":
        return ""
    return _waits_to_run(driver, item, stage, begun, now_ms)


def _before(
    item: views.InstanceStory,
    stages: Mapping[str, StageSpec],
    stage: StageSpec,
    statuses: Mapping[str, str],
) -> str:
    """What is to happen first, while it is not its turn."""
    if item.status != InstanceStatus.LIVE:
        return ""
    if stage.name in branches_of(stages.values()):
        return "that another stage waits for too long"
    before = dict.fromkeys((*stage.dependencies, *stage.after))
    left = [name for name in before if statuses.get(name) not in _OVER]
    return ", ".join(left) or "that an instance is given up"


def _waits_to_run(
    driver: PipelineDriver,
    item: views.InstanceStory,
    stage: StageSpec,
    begun: views.StageStory,
    now_ms: int,
) -> str:
    """Its turn has come."""
    if driver.dispatcher.assignments.is_out(stage.name, item.instance_id):
        name = driver.dispatcher.work_on(stage.name, item.instance_id).runner
        return f"its runner, which works on others: {name}" if name else "its runner"
    if begun.ready_ms > now_ms:
        return f"its time: {format_time(begun.ready_ms)}"
    runners = driver.dispatcher.assignments.runners.values()
    if any(runner.runs(stage.name, stage.engine) for runner in runners):
        return "a runner that has room"
    return f"a runner with engine {stage.engine}: there is none"
