"""One specification per kind, read from the fields of its document: keys, types and units.

What is absent gets its default; what cannot be read is noted where it stands, and reading goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hadron.model.marked_fields import Fields
from hadron.model.schema import (
    SPECS,
    EndpointSpec,
    ExchangeSpec,
    Lane,
    NamespaceSpec,
    Output,
    PipelineSpec,
    QueueSpec,
    Retention,
    Retry,
    ScheduleSpec,
    Spec,
    StageSpec,
    StreamSpec,
    Target,
    TokenSpec,
)
from hadron.model.units import (
    DURATION_FORM,
    SIZE_FORM,
    TIME_FORM,
    parse_duration_ms,
    parse_size,
    parse_time_ms,
)

_PIPELINE: Final = PipelineSpec(replica_set="", input="", stages=())
_STAGE: Final = StageSpec(name="")
_QUEUE: Final = QueueSpec(replica_set="")
_LANE: Final = Lane(name="")
_TARGET: Final = Target()
_SCHEDULE: Final = ScheduleSpec(cron="", target=_TARGET)


def _read_namespace(fields: Fields) -> Spec:
    return NamespaceSpec(description=fields.text("description"))


def _read_stream(fields: Fields) -> Spec:
    description = fields.text("description")
    partitions = fields.texts("partitions")
    if fields.is_empty_list("partitions"):
        # Left out, they are where the stream lies already, or the cluster's only replica set.
        fields.note("partitions", "partitions: no partitions", "at least one replica set's name")
    retention = Retention()
    nested = fields.table("retention")
    if nested is not None:
        retention = Retention(
            max_age_ms=nested.parsed("max_age", parse_duration_ms, 0, DURATION_FORM),
            max_bytes=nested.parsed("max_bytes", parse_size, 0, SIZE_FORM),
        )
        nested.finish()
    return StreamSpec(partitions=partitions, retention=retention, description=description)


def _read_pipeline(fields: Fields) -> Spec:
    return PipelineSpec(
        description=fields.text("description"),
        replica_set=fields.text("replica_set"),
        input=fields.text("input"),
        triggers=fields.texts("triggers"),
        start=fields.text("start", _PIPELINE.start),
        max_parallel=fields.whole("max_parallel", _PIPELINE.max_parallel),
        stages=tuple(_read_stage(stage) for stage in fields.tables("stages") or ()),
    )


def _read_stage(fields: Fields) -> StageSpec:
    stage = StageSpec(
        name=fields.text("name"),
        engine=fields.text("engine", _STAGE.engine),
        run=fields.text("run"),
        schema=fields.text("schema"),
        dependencies=fields.texts("dependencies"),
        after=fields.texts("after"),
        delay_ms=fields.parsed("delay", parse_duration_ms, _STAGE.delay_ms, DURATION_FORM),
        timeout_ms=fields.parsed("timeout", parse_duration_ms, _STAGE.timeout_ms, DURATION_FORM),
        retry=_read_retry(fields.table("retry")),
        output=_read_output(fields),
    )
    fields.finish()
    return stage


def _read_retry(fields: Fields | None) -> Retry:
    if fields is None:
        return Retry()
    default = Retry()
    retry = Retry(
        max_attempts=fields.whole("max_attempts", default.max_attempts),
        backoff_ms=fields.parsed("backoff", parse_duration_ms, default.backoff_ms, DURATION_FORM),
    )
    fields.finish()
    return retry


def _read_output(stage: Fields) -> Output | None:
    fields = stage.table("output")
    if fields is None:
        # One that cannot be read is still one: stages that depend on it are not at fault.
        return Output(stream="") if stage.has("output") else None
    output = Output(stream=fields.text("stream"), partition=fields.text("partition"))
    fields.finish()
    return output


def _read_queue(fields: Fields) -> Spec:
    return QueueSpec(
        description=fields.text("description"),
        replica_set=fields.text("replica_set"),
        lanes=tuple(_read_lane(lane) for lane in fields.tables("lanes") or ()),
        max_attempts=fields.whole("max_attempts", _QUEUE.max_attempts),
        lease_ms=fields.parsed("lease", parse_duration_ms, _QUEUE.lease_ms, DURATION_FORM),
        backoff_ms=fields.parsed("backoff", parse_duration_ms, _QUEUE.backoff_ms, DURATION_FORM),
        result_ttl_ms=fields.parsed(
            "result_ttl", parse_duration_ms, _QUEUE.result_ttl_ms, DURATION_FORM
        ),
    )


def _read_lane(fields: Fields) -> Lane:
    lane = Lane(name=fields.text("name"), weight=fields.whole("weight", _LANE.weight))
    fields.finish()
    return lane


def _read_schedule(fields: Fields) -> Spec:
    return ScheduleSpec(
        description=fields.text("description"),
        cron=fields.text("cron"),
        target=_read_target(fields.table("target")),
        value=fields.text("value"),
        catch_up=fields.text("catch_up", _SCHEDULE.catch_up),
    )


def _read_target(fields: Fields | None) -> Target:
    if fields is None:
        return Target()
    target = Target(
        queue=fields.text("queue"),
        lane=fields.text("lane"),
        priority=fields.whole("priority", _TARGET.priority),
        stream=fields.text("stream"),
        partition=fields.text("partition"),
        type=fields.text("type"),
        key=fields.text("key"),
    )
    fields.finish()
    return target


def _read_exchange(fields: Fields) -> Spec:
    return ExchangeSpec(
        description=fields.text("description"), replica_set=fields.text("replica_set")
    )


def _read_endpoint(fields: Fields) -> Spec:
    return EndpointSpec(
        description=fields.text("description"), replica_set=fields.text("replica_set")
    )


def _read_token(fields: Fields) -> Spec:
    return TokenSpec(
        description=fields.text("description"),
        access=fields.text("access"),
        namespaces=fields.texts("namespaces"),
        expires_ms=fields.parsed("expires", parse_time_ms, 0, TIME_FORM),
        sha256=fields.text("sha256"),
    )


READERS: Final[dict[str, Callable[[Fields], Spec]]] = {
    "Namespace": _read_namespace,
    "Stream": _read_stream,
    "Pipeline": _read_pipeline,
    "Queue": _read_queue,
    "Schedule": _read_schedule,
    "Exchange": _read_exchange,
    "Endpoint": _read_endpoint,
    "Token": _read_token,
}
"""By kind."""
assert READERS.keys() == SPECS.keys()
