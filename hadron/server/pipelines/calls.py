"""Serves `hadron.v1.Pipelines`: stage runners, completions, instances."""

from __future__ import annotations

import contextlib
from typing import Final, TypeAlias

from hadron.model.errors import HadronError, NotFoundError, NotReadyError, RequestError
from hadron.model.limits import MAX_MESSAGE_BYTES
from hadron.model.pipelines import PipelineSpec, StageSpec
from hadron.model.ports import Database
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.model.transactions import TransactionId
from hadron.pipelines.assignments import Assignments
from hadron.pipelines.driver import PipelineDriver, Pipelines
from hadron.pipelines.runners import CODE_CHARACTERS, NAME_CHARACTERS, Ended, RunnerSink
from hadron.server.pipelines.backfills import shown
from hadron.server.pipelines.runners import CallSink, RunnerCall
from hadron.server.pipelines.stories import INSTANCE_STATUS, described
from hadron.server.statements import Reader
from hadron.serving.entrance import led
from hadron.serving.leading import Leading
from hadron.state.pipelines import definitions, stories, views, wait_inputs
from hadron.state.pipelines import inputs as pipeline_inputs
from hadron.state.pipelines.backfills import Backfill, backfills
from hadron.state.pipelines.stage_runs import CompleteStages, FailStages
from hadron.state.pipelines.tables import InstanceStatus
from hadron.state.streams.skips import skips
from hadron.wire.calls import Call
from hadron.wire.messages import (
    check_count,
    check_number,
    common_pb2,
    pipelines_pb2,
    transactions_pb2,
)

_DEFAULT_LIMIT: Final = 100
_MAX_LIMIT: Final = 1_000
_PAGE_BYTES: Final = MAX_MESSAGE_BYTES * 3 // 4
"""Of instances in one answer: reasons of failures are long, and a stage may have several."""
_Progress = pipelines_pb2.PipelineProgressResponse
_Instances = pipelines_pb2.ListInstancesResponse


_Complete: TypeAlias = Call[
    pipelines_pb2.CompleteStagesRequest, pipelines_pb2.CompleteStagesResponse
]
_Fail: TypeAlias = Call[pipelines_pb2.FailStagesRequest, common_pb2.Empty]
_Retry: TypeAlias = Call[pipelines_pb2.RetryInstancesRequest, pipelines_pb2.RetryInstancesResponse]
_Look: TypeAlias = Call[pipelines_pb2.PipelineProgressRequest, _Progress]
_List: TypeAlias = Call[pipelines_pb2.ListInstancesRequest, _Instances]
_Start: TypeAlias = Call[pipelines_pb2.PipelineStartRequest, pipelines_pb2.PipelineStartResponse]
_StartInstances: TypeAlias = Call[
    pipelines_pb2.StartInstancesRequest, pipelines_pb2.StartInstancesResponse
]
_Cancel: TypeAlias = Call[
    pipelines_pb2.CancelInstancesRequest, pipelines_pb2.CancelInstancesResponse
]
_Named = (
    pipelines_pb2.RunStagesRequest
    | pipelines_pb2.RetryInstancesRequest
    | pipelines_pb2.StartInstancesRequest
    | pipelines_pb2.CancelInstancesRequest
    | pipelines_pb2.PipelineProgressRequest
    | pipelines_pb2.ListInstancesRequest
)
"""What names a pipeline."""


def ended_of(
    request: pipelines_pb2.CompleteStagesRequest | pipelines_pb2.FailStagesRequest,
) -> Ended:
    """Which attempts a runner says have ended."""
    return Ended(
        request.stage,
        tuple(request.instance_ids),
        tuple(request.attempts),
        tuple(request.created_ms),
        request.version if isinstance(request, pipelines_pb2.CompleteStagesRequest) else 0,
        tuple(request.took_ms),
        isinstance(request, pipelines_pb2.FailStagesRequest) and request.is_final,
        request.runner[:NAME_CHARACTERS],
        request.code_version[:CODE_CHARACTERS],
    )


def _run_stages(
    leading: Leading,
    call: RunnerCall,
    request: pipelines_pb2.RunStagesRequest,
    _attachment: memoryview,
) -> None:
    driver = _driver(leading, request)
    sink: RunnerSink = CallSink(
        call,
        leading.catalog,
        driver.item.id,
        leading.visible,
        leading.replica_set,
        request.record_bytes,
    )
    dispatcher = driver.dispatcher
    session = dispatcher.join(
        sink,
        request.engine or "spark",
        set(request.stages),
        request.max_batch,
        request.credit,
        driver.spec.stages,
        counts_invocations=request.counts_invocations,
        name=request.runner,
        code_version=request.code_version,
        run_id=request.run_id,
    )

    def on_message(message: pipelines_pb2.RunStagesRequest, _attachment: memoryview) -> None:
        if message.credit:
            dispatcher.grant(session, message.credit)
        check_count("micro-batches", len(message.begun))
        if message.begun:
            dispatcher.begin(session, message.begun, message.code_version)
        call.consumed(message.ByteSize())

    def on_end(error: HadronError | None) -> None:
        # Who goes says END before.
        dispatcher.leave(session, is_lost=error is not None)
        call.end()

    call.on_message = on_message
    call.on_end = on_end


def _driver(leading: Leading, request: _Named) -> PipelineDriver:
    return leading.part(Pipelines).driver(_find(leading, request).id)


def _complete(
    leading: Leading,
    call: _Complete,
    request: pipelines_pb2.CompleteStagesRequest,
    attachment: memoryview,
) -> None:
    call.spawn(_answer_complete, leading, call, request, attachment)


async def _answer_complete(
    leading: Leading,
    call: _Complete,
    request: pipelines_pb2.CompleteStagesRequest,
    attachment: memoryview,
) -> None:
    driver = leading.part(Pipelines).driver(request.pipeline_id)
    completed = await driver.complete(ended_of(request), attachment, request.partition)
    appended = completed.appended
    call.send(
        pipelines_pb2.CompleteStagesResponse(
            base_offset=appended.base_offset if appended is not None else 0,
            stale_instance_ids=completed.stale,
            append_ms=appended.append_ms if appended is not None else 0,
        ),
        end=True,
    )


def _fail(
    leading: Leading, call: _Fail, request: pipelines_pb2.FailStagesRequest, _attachment: memoryview
) -> None:
    call.spawn(_answer_fail, leading, call, request)


async def _answer_fail(
    leading: Leading, call: _Fail, request: pipelines_pb2.FailStagesRequest
) -> None:
    driver = leading.part(Pipelines).driver(request.pipeline_id)
    await driver.fail(ended_of(request), request.reason)
    call.send(common_pb2.Empty(), end=True)


def _retry(
    leading: Leading,
    call: _Retry,
    request: pipelines_pb2.RetryInstancesRequest,
    _attachment: memoryview,
) -> None:
    call.spawn(_answer_retry, leading, call, request)


async def _answer_retry(
    leading: Leading, call: _Retry, request: pipelines_pb2.RetryInstancesRequest
) -> None:
    driver = _driver(leading, request)
    # Which ones have failed is read, not logged, where nothing is to be done.
    await leading.controller.confirm_leadership()
    done, after_id, more = await driver.retry(
        tuple(request.instance_ids),
        views.Chosen(InstanceStatus.FAILED, max(0, request.before_ms), failed_stage=request.stage),
        request.after_id,
        from_start=request.from_start,
    )
    call.send(
        pipelines_pb2.RetryInstancesResponse(retried=done.retried, after_id=after_id, more=more),
        end=True,
    )


def _start_instances(
    leading: Leading,
    call: _StartInstances,
    request: pipelines_pb2.StartInstancesRequest,
    _attachment: memoryview,
) -> None:
    async def answer() -> None:
        started = await _driver(leading, request).start(
            request.stream, request.partition, tuple(request.offsets), request.request
        )
        call.send(pipelines_pb2.StartInstancesResponse(first_id=started.first_id), end=True)

    call.spawn(answer)


def _cancel(
    leading: Leading,
    call: _Cancel,
    request: pipelines_pb2.CancelInstancesRequest,
    _attachment: memoryview,
) -> None:
    statuses = {"live": InstanceStatus.LIVE, "failed": InstanceStatus.FAILED}
    if not request.instance_ids and request.status not in statuses:
        raise RequestError(
            f"instances with status {request.status!r} cannot be cancelled",
            f"use {' or '.join(statuses)}, or name instances",
        )
    chosen = views.Chosen(
        statuses.get(request.status, InstanceStatus.LIVE), max(0, request.before_ms), request.stage
    )

    async def answer() -> None:
        driver = _driver(leading, request)
        # Which ones there are is read, not logged, where nothing is to be done.
        await leading.controller.confirm_leadership()
        done, after_id, more = await driver.cancel(
            tuple(request.instance_ids), chosen, request.after_id
        )
        call.send(
            pipelines_pb2.CancelInstancesResponse(
                cancelled=done.cancelled, after_id=after_id, more=more
            ),
            end=True,
        )

    call.spawn(answer)


# --- in transactions ------------------------------------------------------------------------


def _completion(
    leading: Leading,
    _transaction: TransactionId,
    statement: transactions_pb2.Statement,
    batch: memoryview,
) -> CompleteStages:
    complete = statement.complete
    driver = leading.part(Pipelines).driver(complete.pipeline_id)
    return driver.completion(ended_of(complete), batch, complete.partition)


def _failure(
    leading: Leading,
    _transaction: TransactionId,
    statement: transactions_pb2.Statement,
    _batch: memoryview,
) -> FailStages:
    driver = leading.part(Pipelines).driver(statement.fail.pipeline_id)
    return driver.completions.failure(ended_of(statement.fail), statement.fail.reason)


# --- what there is to know ------------------------------------------------------------------


def _progress(
    leading: Leading,
    call: _Look,
    request: pipelines_pb2.PipelineProgressRequest,
    _attachment: memoryview,
) -> None:
    call.spawn(_answer_progress, leading, call, request)


async def _answer_progress(
    leading: Leading, call: _Look, request: pipelines_pb2.PipelineProgressRequest
) -> None:
    wanted = _find(leading, request).id if request.pipeline or request.pipeline_id else None
    items = [
        item
        for item in leading.catalog.all()
        if isinstance(item.spec, PipelineSpec)
        and item.spec.replica_set == leading.replica_set
        and request.namespace in ("", item.namespace)
        and wanted in (None, item.id)
    ]
    await leading.controller.confirm_leadership()
    now_ms = leading.controller.log_now_ms()
    async with call.room(MAX_MESSAGE_BYTES):
        found = await leading.controller.query(
            lambda db: [
                (
                    item,
                    views.counts(db, item.id),
                    views.cursors(db, item.id),
                    skips(db).get(("pipeline", item.id), 0),
                    definitions.all_stages(db, item.id),
                    backfills(db, item.id),
                    stories.paces(db, item.id, definitions.all_stages(db, item.id), now_ms)
                    if request.with_pace
                    else None,
                )
                for item in items
            ]
        )
        call.send(_Progress(pipelines=[_describe(leading, *facts) for facts in found]), end=True)


def _list_instances(
    leading: Leading,
    call: _List,
    request: pipelines_pb2.ListInstancesRequest,
    _attachment: memoryview,
) -> None:
    known = {name: code for code, name in INSTANCE_STATUS.items()}
    if request.status and request.status not in known:
        raise RequestError(f"unknown status {request.status!r}", f"use one of {', '.join(known)}")
    call.spawn(_answer_instances, leading, call, request, known.get(request.status))


async def _answer_instances(
    leading: Leading, call: _List, request: pipelines_pb2.ListInstancesRequest, status: int | None
) -> None:
    driver = _driver(leading, request)
    limit = min(request.limit or _DEFAULT_LIMIT, _MAX_LIMIT)

    def read(db: Database) -> tuple[list[views.InstanceStory], definitions.Stages]:
        found = views.instances(
            db, driver.item.id, status=status, after_id=request.after_id, limit=limit + 1
        )
        return found, definitions.all_stages(db, driver.item.id)

    await leading.controller.confirm_leadership()
    async with call.room(MAX_MESSAGE_BYTES):
        found, declared = await leading.controller.query(read)
        now_ms = leading.controller.log_now_ms()
        page: list[_Instances.Instance] = []
        size = 0
        for item in found[:limit]:
            message = described(leading, driver, declared, item, now_ms)
            size += message.ByteSize()
            if page and size > _PAGE_BYTES:
                break
            page.append(message)
        call.send(_Instances(instances=page, more=len(page) < len(found)), end=True)


def _find(leading: Leading, request: _Named) -> SchemaObject:
    return leading.find(
        "Pipeline", request.namespace, request.pipeline, request.pipeline_id, request.metadata_index
    )


def _describe(
    leading: Leading,
    item: SchemaObject,
    counts: views.PipelineCounts,
    cursors: list[views.InputCursor],
    skipped: int,
    declared: definitions.Stages,
    filling: list[Backfill],
    paces: stories.Paces | None,
) -> pipelines_pb2.PipelineProgressResponse.Pipeline:
    try:
        driver: PipelineDriver | None = leading.part(Pipelines).driver(item.id)
    except (NotFoundError, NotReadyError):
        driver = None
    assert isinstance(item.spec, PipelineSpec)
    stages = []
    for stage in _all_stages(item.spec, declared):
        ready, done, failed = counts.stages.get(stage.name, (0, 0, 0))
        assignments = driver.dispatcher.assignments if driver else Assignments()
        running = assignments.count_begun(stage.name)
        running += counts.publishing.get(stage.name, 0)
        stages.append(
            _Progress.Stage(
                name=stage.name,
                ready=max(ready - running, 0),
                running=running,
                done=done,
                failed=failed,
                runners=sum(
                    runner.runs(stage.name, stage.engine) for runner in assignments.runners.values()
                ),
                waiting=max(ready - running, 0) if stage.wait is not None else 0,
                code_versions=sorted(assignments.codes(stage.name, stage.engine, stage.run)),
            )
        )
        if paces is not None:
            _tell_pace(stages[-1], paces.stages.get(stage.name, stories.Pace()))
    inputs = _inputs(leading, item, driver, cursors)
    return _Progress.Pipeline(
        namespace=item.namespace,
        name=item.name,
        id=item.id,
        instances=counts.live + counts.done + counts.failed + counts.cancelled,
        cancelled=counts.cancelled,
        live=counts.live,
        done=counts.done,
        failed=counts.failed,
        input_offset=sum(each.offset for each in inputs),
        input_next_offset=sum(each.next_offset for each in inputs),
        inputs=inputs,
        skipped=skipped,
        backfills=shown(filling),
        stages=stages,
        untyped=driver.consumer.untyped if driver else 0,
        triggered_per_s=paces.triggered_per_s if paces is not None else 0.0,
    )


def _tell_pace(stage: pipelines_pb2.PipelineProgressResponse.Stage, pace: stories.Pace) -> None:
    stage.per_s, stage.waiting = pace.per_s, pace.waiting
    if pace.p50_ms >= 0:
        stage.p50_ms, stage.p95_ms = pace.p50_ms, pace.p95_ms


def _inputs(
    leading: Leading,
    item: SchemaObject,
    driver: PipelineDriver | None,
    cursors: list[views.InputCursor],
) -> list[pipelines_pb2.PipelineProgressResponse.Input]:
    """Every partition of the input, how far it was looked at, and how far it goes."""
    assert isinstance(item.spec, PipelineSpec)
    known = {each.partition: each for each in cursors}
    names = set(known)
    with contextlib.suppress(NotFoundError):
        _, stream = leading.catalog.stream(item.namespace, item.spec.input)
        assert isinstance(stream, StreamSpec)
        names.update(stream.partitions)
    found = []
    for name in sorted(names):
        cursor = known.get(name)
        offset = cursor.next_offset if cursor is not None else 0
        follower = driver.consumer.followers.get(name) if driver is not None else None
        trouble = follower.trouble if follower is not None else ""
        following = offset + 1
        if follower is not None and follower.source is not None and not trouble:
            with contextlib.suppress(NotFoundError):
                following = max(follower.source.next_offset, offset)
        found.append(
            _Progress.Input(
                partition=name,
                offset=offset,
                next_offset=following,
                trouble=trouble,
                truncations=cursor.truncations if cursor is not None else 0,
            )
        )
    return found


def _all_stages(spec: PipelineSpec, declared: definitions.Stages) -> list[StageSpec]:
    """Those that are declared, and those that instances have which began with others."""
    stages = {stage.name: stage for stage in spec.stages}
    for version in sorted(declared, reverse=True):
        for stage in declared[version]:
            stages.setdefault(stage.name, stage)
    return list(stages.values())


def _start(
    leading: Leading,
    call: _Start,
    request: pipelines_pb2.PipelineStartRequest,
    _attachment: memoryview,
) -> None:
    call.spawn(_answer_start, leading, call, request)


async def _answer_start(
    leading: Leading, call: _Start, request: pipelines_pb2.PipelineStartRequest
) -> None:
    item = leading.catalog.by_id(request.pipeline_id, request.metadata_index)
    await leading.controller.confirm_leadership()
    # Noted once, in the entry in which this set has heard of it.
    pipeline_id = request.pipeline_id
    awaited = check_number("stream", request.awaited_stream_id)
    offset = await leading.controller.query(
        lambda db: (
            wait_inputs.start_of(db, pipeline_id, awaited)
            if awaited
            else pipeline_inputs.start_of(db, pipeline_id)
        )
    )
    if offset is None and awaited:
        # What is declared waits for it no more, and instances do that began before.
        offset = leading.visible.bounds(awaited).next_offset
    if offset is None:
        raise NotFoundError(f"{item.label} consumes no partition on {leading.replica_set}")
    call.send(pipelines_pb2.PipelineStartResponse(offset=offset), end=True)


METHODS: Final = (
    led("RunStages", pipelines_pb2.RunStagesRequest, pipelines_pb2.Invocations, _run_stages),
    led(
        "CompleteStages",
        pipelines_pb2.CompleteStagesRequest,
        pipelines_pb2.CompleteStagesResponse,
        _complete,
    ),
    led("FailStages", pipelines_pb2.FailStagesRequest, common_pb2.Empty, _fail),
    led("ListInstances", pipelines_pb2.ListInstancesRequest, _Instances, _list_instances),
    led("PipelineProgress", pipelines_pb2.PipelineProgressRequest, _Progress, _progress),
    led(
        "RetryInstances",
        pipelines_pb2.RetryInstancesRequest,
        pipelines_pb2.RetryInstancesResponse,
        _retry,
    ),
    led(
        "StartInstances",
        pipelines_pb2.StartInstancesRequest,
        pipelines_pb2.StartInstancesResponse,
        _start_instances,
    ),
    led(
        "CancelInstances",
        pipelines_pb2.CancelInstancesRequest,
        pipelines_pb2.CancelInstancesResponse,
        _cancel,
    ),
    led(
        "PipelineStart",
        pipelines_pb2.PipelineStartRequest,
        pipelines_pb2.PipelineStartResponse,
        _start,
    ),
)

STATEMENTS: Final = {"complete": Reader(_completion, takes_batch=True), "fail": Reader(_failure)}
