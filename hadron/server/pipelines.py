"""Serves `hadron.v1.Pipelines`: stage runners, completions, instances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from hadron.model.errors import HadronError, NotFoundError, RequestError
from hadron.model.limits import MAX_MESSAGE_BYTES
from hadron.model.pipelines import PipelineSpec
from hadron.model.ports import Database
from hadron.model.schema import SchemaObject
from hadron.pipelines.driver import PipelineDriver, Pipelines
from hadron.pipelines.runners import Ended, RunnerSink
from hadron.serving.catalog import Catalog
from hadron.serving.entrance import led
from hadron.serving.leading import Leading
from hadron.state import pipeline_views as views
from hadron.wire.calls import Call
from hadron.wire.messages import common_pb2, pipelines_pb2

_INSTANCE_STATUS: Final = {1: "live", 2: "done", 3: "failed"}
_STAGE_STATUS: Final = {1: "ready", 2: "done", 3: "failed"}
_DEFAULT_LIMIT: Final = 100
_MAX_LIMIT: Final = 1_000
_Progress = pipelines_pb2.PipelineProgressResponse
_Instances = pipelines_pb2.ListInstancesResponse


_Run: TypeAlias = Call[pipelines_pb2.RunStagesRequest, pipelines_pb2.Invocations]
_Complete: TypeAlias = Call[
    pipelines_pb2.CompleteStagesRequest, pipelines_pb2.CompleteStagesResponse
]
_Fail: TypeAlias = Call[pipelines_pb2.FailStagesRequest, common_pb2.Empty]
_Retry: TypeAlias = Call[pipelines_pb2.RetryInstancesRequest, pipelines_pb2.RetryInstancesResponse]
_Look: TypeAlias = Call[pipelines_pb2.PipelineProgressRequest, _Progress]
_List: TypeAlias = Call[pipelines_pb2.ListInstancesRequest, _Instances]
_Named = (
    pipelines_pb2.RunStagesRequest
    | pipelines_pb2.RetryInstancesRequest
    | pipelines_pb2.PipelineProgressRequest
    | pipelines_pb2.ListInstancesRequest
)
"""What names a pipeline."""


class _Draft:
    """`pipelines.runners.Draft`: a message that goes on a runner's call."""

    def __init__(self, call: _Run, message: pipelines_pb2.Invocations) -> None:
        self._call = call
        self._message = message
        self.size = message.ByteSize()

    def send(self) -> None:
        self._call.send(self._message)


class CallSink:
    """`pipelines.runners.RunnerSink`: a runner is told on its call."""

    def __init__(self, call: _Run, catalog: Catalog, pipeline_id: int) -> None:
        self._call = call
        self._catalog = catalog
        self._pipeline_id = pipeline_id

    @property
    def on_writable(self) -> Callable[[], None]:
        return self._call.on_writable

    @on_writable.setter
    def on_writable(self, told: Callable[[], None]) -> None:
        self._call.on_writable = told

    @property
    def writable(self) -> bool:
        return self._call.writable

    def draft(self, stage: str, ready: Sequence[views.ReadyStage]) -> _Draft:
        message = pipelines_pb2.Invocations(
            stage=stage,
            pipeline_id=self._pipeline_id,
            invocations=[
                pipelines_pb2.Invocation(
                    instance_id=item.instance_id,
                    attempt=item.attempt,
                    attempts_before=item.attempts_before,
                    created_ms=item.created_ms,
                    root=_ref(self._catalog, item.root),
                    dependencies=[_ref(self._catalog, each) for each in item.dependencies],
                )
                for item in ready
            ],
        )
        return _Draft(self._call, message)

    def fail(self, error: HadronError) -> None:
        self._call.fail(error)


def _ref(catalog: Catalog, output: views.OutputRef) -> pipelines_pb2.RecordRef:
    """Where a record is, with its stream by name, also when that was deleted."""
    return pipelines_pb2.RecordRef(
        stream=catalog.name_of(output.stream_id),
        stream_id=output.stream_id,
        partition=output.partition,
        offset=output.offset,
    )


def ended_of(
    request: pipelines_pb2.CompleteStagesRequest | pipelines_pb2.FailStagesRequest,
) -> Ended:
    """Which attempts a runner says have ended."""
    return Ended(
        request.stage,
        tuple(request.instance_ids),
        tuple(request.attempts),
        tuple(request.created_ms),
    )


def _run_stages(
    leading: Leading, call: _Run, request: pipelines_pb2.RunStagesRequest, _attachment: memoryview
) -> None:
    driver = _driver(leading, request)
    sink: RunnerSink = CallSink(call, leading.catalog, driver.item.id)
    session = driver.join(
        sink, request.engine or "spark", set(request.stages), request.max_batch, request.credit
    )

    def on_message(message: pipelines_pb2.RunStagesRequest, _attachment: memoryview) -> None:
        driver.grant(session, message.credit)

    def on_end(_error: HadronError | None) -> None:
        driver.leave(session)
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
    done, after_id, more = await driver.retry(tuple(request.instance_ids), request.after_id)
    call.send(
        pipelines_pb2.RetryInstancesResponse(retried=done.retried, after_id=after_id, more=more),
        end=True,
    )


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
    async with call.room(MAX_MESSAGE_BYTES):
        found = await leading.controller.query(
            lambda db: [
                (
                    item,
                    views.counts(db, item.id),
                    [c for c in views.cursors(db) if c.pipeline_id == item.id],
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
    known = {name: code for code, name in _INSTANCE_STATUS.items()}
    if request.status and request.status not in known:
        raise RequestError(f"unknown status {request.status!r}", f"use one of {', '.join(known)}")
    call.spawn(_answer_instances, leading, call, request, known.get(request.status))


async def _answer_instances(
    leading: Leading, call: _List, request: pipelines_pb2.ListInstancesRequest, status: int | None
) -> None:
    driver = _driver(leading, request)
    limit = min(request.limit or _DEFAULT_LIMIT, _MAX_LIMIT)

    def read(db: Database) -> list[views.InstanceStatus]:
        return views.instances(
            db, driver.item.id, status=status, after_id=request.after_id, limit=limit
        )

    await leading.controller.confirm_leadership()
    async with call.room(MAX_MESSAGE_BYTES):
        found = await leading.controller.query(read)
        call.send(
            _Instances(
                instances=[_describe_instance(leading.catalog, driver, item) for item in found]
            ),
            end=True,
        )


def _find(leading: Leading, request: _Named) -> SchemaObject:
    return leading.find(
        "Pipeline", request.namespace, request.pipeline, request.pipeline_id, request.metadata_index
    )


def _describe(
    leading: Leading,
    item: SchemaObject,
    counts: views.PipelineCounts,
    cursors: list[views.InputCursor],
) -> pipelines_pb2.PipelineProgressResponse.Pipeline:
    try:
        driver: PipelineDriver | None = leading.part(Pipelines).driver(item.id)
    except NotFoundError:
        driver = None
    assert isinstance(item.spec, PipelineSpec)
    stages = []
    for stage in item.spec.stages:
        ready, done, failed = counts.stages.get(stage.name, (0, 0, 0))
        running = driver.dispatch.count(stage.name) if driver else 0
        stages.append(
            _Progress.Stage(
                name=stage.name,
                ready=max(ready - running, 0),
                running=running,
                done=done,
                failed=failed,
                runners=sum(
                    runner.runs(stage.name, stage.engine)
                    for runner in driver.dispatch.runners.values()
                )
                if driver
                else 0,
            )
        )
    return _Progress.Pipeline(
        namespace=item.namespace,
        name=item.name,
        id=item.id,
        instances=counts.live + counts.done + counts.failed,
        live=counts.live,
        done=counts.done,
        failed=counts.failed,
        input_offset=cursors[0].next_offset if cursors else 0,
        input_next_offset=(
            leading.visible.bounds(cursors[0].stream_id).next_offset if cursors else 0
        ),
        stages=stages,
        untyped=driver.untyped if driver else 0,
    )


def _describe_instance(
    catalog: Catalog, driver: PipelineDriver, item: views.InstanceStatus
) -> pipelines_pb2.ListInstancesResponse.Instance:
    begun = {stage.name: stage for stage in item.stages}
    stages = []
    for declared in driver.spec.stages:
        stage = begun.get(declared.name)
        if stage is None:
            stages.append(_Instances.Stage(name=declared.name, status="waiting"))
            continue
        status = _STAGE_STATUS[stage.status]
        if status == "ready" and driver.dispatch.is_out(stage.name, item.instance_id):
            status = "running"
        stages.append(
            _Instances.Stage(
                name=stage.name,
                status=status,
                attempts=stage.attempts,
                reason=stage.reason,
                output=None if stage.output is None else _ref(catalog, stage.output),
            )
        )
    return _Instances.Instance(
        id=item.instance_id,
        status=_INSTANCE_STATUS[item.status],
        root=_ref(catalog, item.root),
        created_ms=item.created_ms,
        stages=stages,
    )


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
)
