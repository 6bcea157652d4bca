from hadron.wire._pb import common_pb2 as _common_pb2
from hadron.wire._pb import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RunStagesRequest(_message.Message):
    __slots__ = ("namespace", "pipeline", "stages", "engine", "max_batch", "credit", "pipeline_id", "metadata_index", "begun", "counts_invocations", "record_bytes", "runner", "code_version", "run_id")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    COUNTS_INVOCATIONS_FIELD_NUMBER: _ClassVar[int]
    RECORD_BYTES_FIELD_NUMBER: _ClassVar[int]
    RUNNER_FIELD_NUMBER: _ClassVar[int]
    CODE_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    pipeline: str
    stages: _containers.RepeatedScalarFieldContainer[str]
    engine: str
    max_batch: int
    credit: int
    pipeline_id: int
    metadata_index: int
    begun: _containers.RepeatedScalarFieldContainer[int]
    counts_invocations: bool
    record_bytes: int
    runner: str
    code_version: str
    run_id: bytes
    def __init__(self, namespace: _Optional[str] = ..., pipeline: _Optional[str] = ..., stages: _Optional[_Iterable[str]] = ..., engine: _Optional[str] = ..., max_batch: _Optional[int] = ..., credit: _Optional[int] = ..., pipeline_id: _Optional[int] = ..., metadata_index: _Optional[int] = ..., begun: _Optional[_Iterable[int]] = ..., counts_invocations: _Optional[bool] = ..., record_bytes: _Optional[int] = ..., runner: _Optional[str] = ..., code_version: _Optional[str] = ..., run_id: _Optional[bytes] = ...) -> None: ...

class RecordRef(_message.Message):
    __slots__ = ("stream", "partition", "offset", "stream_id")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: str
    offset: int
    stream_id: int
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[str] = ..., offset: _Optional[int] = ..., stream_id: _Optional[int] = ...) -> None: ...

class Invocation(_message.Message):
    __slots__ = ("instance_id", "attempt", "root", "dependencies", "attempts_before", "created_ms", "failed_stage", "failure")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    DEPENDENCIES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    FAILED_STAGE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    instance_id: int
    attempt: int
    root: RecordRef
    dependencies: _containers.RepeatedCompositeFieldContainer[RecordRef]
    attempts_before: int
    created_ms: int
    failed_stage: str
    failure: str
    def __init__(self, instance_id: _Optional[int] = ..., attempt: _Optional[int] = ..., root: _Optional[_Union[RecordRef, _Mapping]] = ..., dependencies: _Optional[_Iterable[_Union[RecordRef, _Mapping]]] = ..., attempts_before: _Optional[int] = ..., created_ms: _Optional[int] = ..., failed_stage: _Optional[str] = ..., failure: _Optional[str] = ...) -> None: ...

class Invocations(_message.Message):
    __slots__ = ("stage", "pipeline_id", "invocations", "number", "version", "spec", "batches", "runner", "code_version", "attachment")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    INVOCATIONS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    RUNNER_FIELD_NUMBER: _ClassVar[int]
    CODE_VERSION_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    stage: str
    pipeline_id: int
    invocations: _containers.RepeatedCompositeFieldContainer[Invocation]
    number: int
    version: int
    spec: str
    batches: _containers.RepeatedCompositeFieldContainer[RecordBatch]
    runner: str
    code_version: str
    attachment: bytes
    def __init__(self, stage: _Optional[str] = ..., pipeline_id: _Optional[int] = ..., invocations: _Optional[_Iterable[_Union[Invocation, _Mapping]]] = ..., number: _Optional[int] = ..., version: _Optional[int] = ..., spec: _Optional[str] = ..., batches: _Optional[_Iterable[_Union[RecordBatch, _Mapping]]] = ..., runner: _Optional[str] = ..., code_version: _Optional[str] = ..., attachment: _Optional[bytes] = ...) -> None: ...

class RecordBatch(_message.Message):
    __slots__ = ("stream_id", "partition", "info")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    partition: str
    info: _common_pb2.BatchInfo
    def __init__(self, stream_id: _Optional[int] = ..., partition: _Optional[str] = ..., info: _Optional[_Union[_common_pb2.BatchInfo, _Mapping]] = ...) -> None: ...

class CompleteStagesRequest(_message.Message):
    __slots__ = ("pipeline_id", "stage", "instance_ids", "attempts", "partition", "created_ms", "version", "took_ms", "runner", "code_version", "attachment")
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_IDS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOOK_MS_FIELD_NUMBER: _ClassVar[int]
    RUNNER_FIELD_NUMBER: _ClassVar[int]
    CODE_VERSION_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    pipeline_id: int
    stage: str
    instance_ids: _containers.RepeatedScalarFieldContainer[int]
    attempts: _containers.RepeatedScalarFieldContainer[int]
    partition: str
    created_ms: _containers.RepeatedScalarFieldContainer[int]
    version: int
    took_ms: _containers.RepeatedScalarFieldContainer[int]
    runner: str
    code_version: str
    attachment: bytes
    def __init__(self, pipeline_id: _Optional[int] = ..., stage: _Optional[str] = ..., instance_ids: _Optional[_Iterable[int]] = ..., attempts: _Optional[_Iterable[int]] = ..., partition: _Optional[str] = ..., created_ms: _Optional[_Iterable[int]] = ..., version: _Optional[int] = ..., took_ms: _Optional[_Iterable[int]] = ..., runner: _Optional[str] = ..., code_version: _Optional[str] = ..., attachment: _Optional[bytes] = ...) -> None: ...

class CompleteStagesResponse(_message.Message):
    __slots__ = ("base_offset", "stale_instance_ids", "append_ms")
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STALE_INSTANCE_IDS_FIELD_NUMBER: _ClassVar[int]
    APPEND_MS_FIELD_NUMBER: _ClassVar[int]
    base_offset: int
    stale_instance_ids: _containers.RepeatedScalarFieldContainer[int]
    append_ms: int
    def __init__(self, base_offset: _Optional[int] = ..., stale_instance_ids: _Optional[_Iterable[int]] = ..., append_ms: _Optional[int] = ...) -> None: ...

class FailStagesRequest(_message.Message):
    __slots__ = ("pipeline_id", "stage", "instance_ids", "attempts", "reason", "created_ms", "is_final", "took_ms", "runner", "code_version")
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_IDS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_FIELD_NUMBER: _ClassVar[int]
    TOOK_MS_FIELD_NUMBER: _ClassVar[int]
    RUNNER_FIELD_NUMBER: _ClassVar[int]
    CODE_VERSION_FIELD_NUMBER: _ClassVar[int]
    pipeline_id: int
    stage: str
    instance_ids: _containers.RepeatedScalarFieldContainer[int]
    attempts: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    created_ms: _containers.RepeatedScalarFieldContainer[int]
    is_final: bool
    took_ms: _containers.RepeatedScalarFieldContainer[int]
    runner: str
    code_version: str
    def __init__(self, pipeline_id: _Optional[int] = ..., stage: _Optional[str] = ..., instance_ids: _Optional[_Iterable[int]] = ..., attempts: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ..., created_ms: _Optional[_Iterable[int]] = ..., is_final: _Optional[bool] = ..., took_ms: _Optional[_Iterable[int]] = ..., runner: _Optional[str] = ..., code_version: _Optional[str] = ...) -> None: ...

class ListInstancesRequest(_message.Message):
    __slots__ = ("namespace", "pipeline", "status", "after_id", "limit", "pipeline_id", "metadata_index")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    AFTER_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    pipeline: str
    status: str
    after_id: int
    limit: int
    pipeline_id: int
    metadata_index: int
    def __init__(self, namespace: _Optional[str] = ..., pipeline: _Optional[str] = ..., status: _Optional[str] = ..., after_id: _Optional[int] = ..., limit: _Optional[int] = ..., pipeline_id: _Optional[int] = ..., metadata_index: _Optional[int] = ...) -> None: ...

class ListInstancesResponse(_message.Message):
    __slots__ = ("instances", "more")
    class Stage(_message.Message):
        __slots__ = ("name", "status", "attempts", "output", "reason", "waits_for", "tried", "runner", "running_ms", "code_version")
        NAME_FIELD_NUMBER: _ClassVar[int]
        STATUS_FIELD_NUMBER: _ClassVar[int]
        ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
        OUTPUT_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
        TRIED_FIELD_NUMBER: _ClassVar[int]
        RUNNER_FIELD_NUMBER: _ClassVar[int]
        RUNNING_MS_FIELD_NUMBER: _ClassVar[int]
        CODE_VERSION_FIELD_NUMBER: _ClassVar[int]
        name: str
        status: str
        attempts: int
        output: RecordRef
        reason: str
        waits_for: str
        tried: _containers.RepeatedCompositeFieldContainer[ListInstancesResponse.Attempt]
        runner: str
        running_ms: int
        code_version: str
        def __init__(self, name: _Optional[str] = ..., status: _Optional[str] = ..., attempts: _Optional[int] = ..., output: _Optional[_Union[RecordRef, _Mapping]] = ..., reason: _Optional[str] = ..., waits_for: _Optional[str] = ..., tried: _Optional[_Iterable[_Union[ListInstancesResponse.Attempt, _Mapping]]] = ..., runner: _Optional[str] = ..., running_ms: _Optional[int] = ..., code_version: _Optional[str] = ...) -> None: ...
    class Attempt(_message.Message):
        __slots__ = ("number", "ended_ms", "took_ms", "runner", "code_version", "reason")
        NUMBER_FIELD_NUMBER: _ClassVar[int]
        ENDED_MS_FIELD_NUMBER: _ClassVar[int]
        TOOK_MS_FIELD_NUMBER: _ClassVar[int]
        RUNNER_FIELD_NUMBER: _ClassVar[int]
        CODE_VERSION_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        number: int
        ended_ms: int
        took_ms: int
        runner: str
        code_version: str
        reason: str
        def __init__(self, number: _Optional[int] = ..., ended_ms: _Optional[int] = ..., took_ms: _Optional[int] = ..., runner: _Optional[str] = ..., code_version: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...
    class Instance(_message.Message):
        __slots__ = ("id", "status", "root", "created_ms", "stages")
        ID_FIELD_NUMBER: _ClassVar[int]
        STATUS_FIELD_NUMBER: _ClassVar[int]
        ROOT_FIELD_NUMBER: _ClassVar[int]
        CREATED_MS_FIELD_NUMBER: _ClassVar[int]
        STAGES_FIELD_NUMBER: _ClassVar[int]
        id: int
        status: str
        root: RecordRef
        created_ms: int
        stages: _containers.RepeatedCompositeFieldContainer[ListInstancesResponse.Stage]
        def __init__(self, id: _Optional[int] = ..., status: _Optional[str] = ..., root: _Optional[_Union[RecordRef, _Mapping]] = ..., created_ms: _Optional[int] = ..., stages: _Optional[_Iterable[_Union[ListInstancesResponse.Stage, _Mapping]]] = ...) -> None: ...
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    instances: _containers.RepeatedCompositeFieldContainer[ListInstancesResponse.Instance]
    more: bool
    def __init__(self, instances: _Optional[_Iterable[_Union[ListInstancesResponse.Instance, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class RetryInstancesRequest(_message.Message):
    __slots__ = ("namespace", "pipeline", "instance_ids", "after_id", "pipeline_id", "metadata_index", "from_start", "stage", "before_ms")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_IDS_FIELD_NUMBER: _ClassVar[int]
    AFTER_ID_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    FROM_START_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_MS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    pipeline: str
    instance_ids: _containers.RepeatedScalarFieldContainer[int]
    after_id: int
    pipeline_id: int
    metadata_index: int
    from_start: bool
    stage: str
    before_ms: int
    def __init__(self, namespace: _Optional[str] = ..., pipeline: _Optional[str] = ..., instance_ids: _Optional[_Iterable[int]] = ..., after_id: _Optional[int] = ..., pipeline_id: _Optional[int] = ..., metadata_index: _Optional[int] = ..., from_start: _Optional[bool] = ..., stage: _Optional[str] = ..., before_ms: _Optional[int] = ...) -> None: ...

class StartInstancesRequest(_message.Message):
    __slots__ = ("namespace", "pipeline", "stream", "partition", "offsets", "request", "pipeline_id", "metadata_index")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    pipeline: str
    stream: str
    partition: str
    offsets: _containers.RepeatedScalarFieldContainer[int]
    request: bytes
    pipeline_id: int
    metadata_index: int
    def __init__(self, namespace: _Optional[str] = ..., pipeline: _Optional[str] = ..., stream: _Optional[str] = ..., partition: _Optional[str] = ..., offsets: _Optional[_Iterable[int]] = ..., request: _Optional[bytes] = ..., pipeline_id: _Optional[int] = ..., metadata_index: _Optional[int] = ...) -> None: ...

class StartInstancesResponse(_message.Message):
    __slots__ = ("first_id",)
    FIRST_ID_FIELD_NUMBER: _ClassVar[int]
    first_id: int
    def __init__(self, first_id: _Optional[int] = ...) -> None: ...

class CancelInstancesRequest(_message.Message):
    __slots__ = ("namespace", "pipeline", "instance_ids", "after_id", "status", "stage", "before_ms", "pipeline_id", "metadata_index")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_IDS_FIELD_NUMBER: _ClassVar[int]
    AFTER_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_MS_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    pipeline: str
    instance_ids: _containers.RepeatedScalarFieldContainer[int]
    after_id: int
    status: str
    stage: str
    before_ms: int
    pipeline_id: int
    metadata_index: int
    def __init__(self, namespace: _Optional[str] = ..., pipeline: _Optional[str] = ..., instance_ids: _Optional[_Iterable[int]] = ..., after_id: _Optional[int] = ..., status: _Optional[str] = ..., stage: _Optional[str] = ..., before_ms: _Optional[int] = ..., pipeline_id: _Optional[int] = ..., metadata_index: _Optional[int] = ...) -> None: ...

class SignalInstanceRequest(_message.Message):
    __slots__ = ("namespace", "pipeline", "instance_id", "stage", "pipeline_id", "metadata_index", "attachment")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    pipeline: str
    instance_id: int
    stage: str
    pipeline_id: int
    metadata_index: int
    attachment: bytes
    def __init__(self, namespace: _Optional[str] = ..., pipeline: _Optional[str] = ..., instance_id: _Optional[int] = ..., stage: _Optional[str] = ..., pipeline_id: _Optional[int] = ..., metadata_index: _Optional[int] = ..., attachment: _Optional[bytes] = ...) -> None: ...

class SignalInstanceResponse(_message.Message):
    __slots__ = ("again",)
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    again: bool
    def __init__(self, again: _Optional[bool] = ...) -> None: ...

class CancelInstancesResponse(_message.Message):
    __slots__ = ("cancelled", "after_id", "more")
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    AFTER_ID_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    cancelled: int
    after_id: int
    more: bool
    def __init__(self, cancelled: _Optional[int] = ..., after_id: _Optional[int] = ..., more: _Optional[bool] = ...) -> None: ...

class RetryInstancesResponse(_message.Message):
    __slots__ = ("retried", "after_id", "more")
    RETRIED_FIELD_NUMBER: _ClassVar[int]
    AFTER_ID_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    retried: int
    after_id: int
    more: bool
    def __init__(self, retried: _Optional[int] = ..., after_id: _Optional[int] = ..., more: _Optional[bool] = ...) -> None: ...

class StartBackfillRequest(_message.Message):
    __slots__ = ("namespace", "pipeline", "partition", "from_offset", "to_offset", "per_s", "again", "request", "pipeline_id", "metadata_index")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TO_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PER_S_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    pipeline: str
    partition: str
    from_offset: int
    to_offset: int
    per_s: int
    again: bool
    request: bytes
    pipeline_id: int
    metadata_index: int
    def __init__(self, namespace: _Optional[str] = ..., pipeline: _Optional[str] = ..., partition: _Optional[str] = ..., from_offset: _Optional[int] = ..., to_offset: _Optional[int] = ..., per_s: _Optional[int] = ..., again: _Optional[bool] = ..., request: _Optional[bytes] = ..., pipeline_id: _Optional[int] = ..., metadata_index: _Optional[int] = ...) -> None: ...

class StartBackfillResponse(_message.Message):
    __slots__ = ("number", "to_offset")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TO_OFFSET_FIELD_NUMBER: _ClassVar[int]
    number: int
    to_offset: int
    def __init__(self, number: _Optional[int] = ..., to_offset: _Optional[int] = ...) -> None: ...

class ControlBackfillRequest(_message.Message):
    __slots__ = ("namespace", "pipeline", "number", "status", "pipeline_id", "metadata_index")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    pipeline: str
    number: int
    status: str
    pipeline_id: int
    metadata_index: int
    def __init__(self, namespace: _Optional[str] = ..., pipeline: _Optional[str] = ..., number: _Optional[int] = ..., status: _Optional[str] = ..., pipeline_id: _Optional[int] = ..., metadata_index: _Optional[int] = ...) -> None: ...

class ControlBackfillResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: str
    def __init__(self, status: _Optional[str] = ...) -> None: ...

class PipelineStartRequest(_message.Message):
    __slots__ = ("pipeline_id", "metadata_index", "awaited_stream_id")
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    AWAITED_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    pipeline_id: int
    metadata_index: int
    awaited_stream_id: int
    def __init__(self, pipeline_id: _Optional[int] = ..., metadata_index: _Optional[int] = ..., awaited_stream_id: _Optional[int] = ...) -> None: ...

class PipelineStartResponse(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class PipelineProgressRequest(_message.Message):
    __slots__ = ("namespace", "pipeline", "pipeline_id", "metadata_index", "with_pace")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    WITH_PACE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    pipeline: str
    pipeline_id: int
    metadata_index: int
    with_pace: bool
    def __init__(self, namespace: _Optional[str] = ..., pipeline: _Optional[str] = ..., pipeline_id: _Optional[int] = ..., metadata_index: _Optional[int] = ..., with_pace: _Optional[bool] = ...) -> None: ...

class PipelineProgressResponse(_message.Message):
    __slots__ = ("pipelines",)
    class Stage(_message.Message):
        __slots__ = ("name", "ready", "running", "done", "failed", "runners", "per_s", "p50_ms", "p95_ms", "waiting", "code_versions")
        NAME_FIELD_NUMBER: _ClassVar[int]
        READY_FIELD_NUMBER: _ClassVar[int]
        RUNNING_FIELD_NUMBER: _ClassVar[int]
        DONE_FIELD_NUMBER: _ClassVar[int]
        FAILED_FIELD_NUMBER: _ClassVar[int]
        RUNNERS_FIELD_NUMBER: _ClassVar[int]
        PER_S_FIELD_NUMBER: _ClassVar[int]
        P50_MS_FIELD_NUMBER: _ClassVar[int]
        P95_MS_FIELD_NUMBER: _ClassVar[int]
        WAITING_FIELD_NUMBER: _ClassVar[int]
        CODE_VERSIONS_FIELD_NUMBER: _ClassVar[int]
        name: str
        ready: int
        running: int
        done: int
        failed: int
        runners: int
        per_s: float
        p50_ms: int
        p95_ms: int
        waiting: int
        code_versions: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, name: _Optional[str] = ..., ready: _Optional[int] = ..., running: _Optional[int] = ..., done: _Optional[int] = ..., failed: _Optional[int] = ..., runners: _Optional[int] = ..., per_s: _Optional[float] = ..., p50_ms: _Optional[int] = ..., p95_ms: _Optional[int] = ..., waiting: _Optional[int] = ..., code_versions: _Optional[_Iterable[str]] = ...) -> None: ...
    class Pipeline(_message.Message):
        __slots__ = ("namespace", "name", "id", "instances", "live", "done", "failed", "input_offset", "input_next_offset", "stages", "untyped", "inputs", "skipped", "cancelled", "backfills", "triggered_per_s")
        NAMESPACE_FIELD_NUMBER: _ClassVar[int]
        NAME_FIELD_NUMBER: _ClassVar[int]
        ID_FIELD_NUMBER: _ClassVar[int]
        INSTANCES_FIELD_NUMBER: _ClassVar[int]
        LIVE_FIELD_NUMBER: _ClassVar[int]
        DONE_FIELD_NUMBER: _ClassVar[int]
        FAILED_FIELD_NUMBER: _ClassVar[int]
        INPUT_OFFSET_FIELD_NUMBER: _ClassVar[int]
        INPUT_NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
        STAGES_FIELD_NUMBER: _ClassVar[int]
        UNTYPED_FIELD_NUMBER: _ClassVar[int]
        INPUTS_FIELD_NUMBER: _ClassVar[int]
        SKIPPED_FIELD_NUMBER: _ClassVar[int]
        CANCELLED_FIELD_NUMBER: _ClassVar[int]
        BACKFILLS_FIELD_NUMBER: _ClassVar[int]
        TRIGGERED_PER_S_FIELD_NUMBER: _ClassVar[int]
        namespace: str
        name: str
        id: int
        instances: int
        live: int
        done: int
        failed: int
        input_offset: int
        input_next_offset: int
        stages: _containers.RepeatedCompositeFieldContainer[PipelineProgressResponse.Stage]
        untyped: int
        inputs: _containers.RepeatedCompositeFieldContainer[PipelineProgressResponse.Input]
        skipped: int
        cancelled: int
        backfills: _containers.RepeatedCompositeFieldContainer[PipelineProgressResponse.Backfill]
        triggered_per_s: float
        def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., id: _Optional[int] = ..., instances: _Optional[int] = ..., live: _Optional[int] = ..., done: _Optional[int] = ..., failed: _Optional[int] = ..., input_offset: _Optional[int] = ..., input_next_offset: _Optional[int] = ..., stages: _Optional[_Iterable[_Union[PipelineProgressResponse.Stage, _Mapping]]] = ..., untyped: _Optional[int] = ..., inputs: _Optional[_Iterable[_Union[PipelineProgressResponse.Input, _Mapping]]] = ..., skipped: _Optional[int] = ..., cancelled: _Optional[int] = ..., backfills: _Optional[_Iterable[_Union[PipelineProgressResponse.Backfill, _Mapping]]] = ..., triggered_per_s: _Optional[float] = ...) -> None: ...
    class Backfill(_message.Message):
        __slots__ = ("number", "partition", "from_offset", "next_offset", "to_offset", "per_s", "again", "status", "created")
        NUMBER_FIELD_NUMBER: _ClassVar[int]
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
        NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
        TO_OFFSET_FIELD_NUMBER: _ClassVar[int]
        PER_S_FIELD_NUMBER: _ClassVar[int]
        AGAIN_FIELD_NUMBER: _ClassVar[int]
        STATUS_FIELD_NUMBER: _ClassVar[int]
        CREATED_FIELD_NUMBER: _ClassVar[int]
        number: int
        partition: str
        from_offset: int
        next_offset: int
        to_offset: int
        per_s: int
        again: bool
        status: str
        created: int
        def __init__(self, number: _Optional[int] = ..., partition: _Optional[str] = ..., from_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., to_offset: _Optional[int] = ..., per_s: _Optional[int] = ..., again: _Optional[bool] = ..., status: _Optional[str] = ..., created: _Optional[int] = ...) -> None: ...
    class Input(_message.Message):
        __slots__ = ("partition", "offset", "next_offset", "trouble", "truncations")
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
        TROUBLE_FIELD_NUMBER: _ClassVar[int]
        TRUNCATIONS_FIELD_NUMBER: _ClassVar[int]
        partition: str
        offset: int
        next_offset: int
        trouble: str
        truncations: int
        def __init__(self, partition: _Optional[str] = ..., offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., trouble: _Optional[str] = ..., truncations: _Optional[int] = ...) -> None: ...
    PIPELINES_FIELD_NUMBER: _ClassVar[int]
    pipelines: _containers.RepeatedCompositeFieldContainer[PipelineProgressResponse.Pipeline]
    def __init__(self, pipelines: _Optional[_Iterable[_Union[PipelineProgressResponse.Pipeline, _Mapping]]] = ...) -> None: ...
