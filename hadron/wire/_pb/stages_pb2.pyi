from hadron.wire._pb import records_pb2 as _records_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkRequest(_message.Message):
    __slots__ = ("open", "complete", "fail")
    class Open(_message.Message):
        __slots__ = ("namespace", "pipeline", "stage", "max_in_flight", "runner", "code_version")
        NAMESPACE_FIELD_NUMBER: _ClassVar[int]
        PIPELINE_FIELD_NUMBER: _ClassVar[int]
        STAGE_FIELD_NUMBER: _ClassVar[int]
        MAX_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
        RUNNER_FIELD_NUMBER: _ClassVar[int]
        CODE_VERSION_FIELD_NUMBER: _ClassVar[int]
        namespace: str
        pipeline: str
        stage: str
        max_in_flight: int
        runner: str
        code_version: str
        def __init__(self, namespace: _Optional[str] = ..., pipeline: _Optional[str] = ..., stage: _Optional[str] = ..., max_in_flight: _Optional[int] = ..., runner: _Optional[str] = ..., code_version: _Optional[str] = ...) -> None: ...
    class Complete(_message.Message):
        __slots__ = ("id", "output")
        ID_FIELD_NUMBER: _ClassVar[int]
        OUTPUT_FIELD_NUMBER: _ClassVar[int]
        id: int
        output: _records_pb2.PublishedRecord
        def __init__(self, id: _Optional[int] = ..., output: _Optional[_Union[_records_pb2.PublishedRecord, _Mapping]] = ...) -> None: ...
    class Fail(_message.Message):
        __slots__ = ("id", "reason", "final")
        ID_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        FINAL_FIELD_NUMBER: _ClassVar[int]
        id: int
        reason: str
        final: bool
        def __init__(self, id: _Optional[int] = ..., reason: _Optional[str] = ..., final: _Optional[bool] = ...) -> None: ...
    OPEN_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    FAIL_FIELD_NUMBER: _ClassVar[int]
    open: WorkRequest.Open
    complete: WorkRequest.Complete
    fail: WorkRequest.Fail
    def __init__(self, open: _Optional[_Union[WorkRequest.Open, _Mapping]] = ..., complete: _Optional[_Union[WorkRequest.Complete, _Mapping]] = ..., fail: _Optional[_Union[WorkRequest.Fail, _Mapping]] = ...) -> None: ...

class WorkEvent(_message.Message):
    __slots__ = ("opened", "work", "ended", "refused")
    class Opened(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class Work(_message.Message):
        __slots__ = ("id", "instance_id", "attempt", "root", "outputs", "failed_stage", "failure")
        class OutputsEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: _records_pb2.StoredRecord
            def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_records_pb2.StoredRecord, _Mapping]] = ...) -> None: ...
        ID_FIELD_NUMBER: _ClassVar[int]
        INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
        ATTEMPT_FIELD_NUMBER: _ClassVar[int]
        ROOT_FIELD_NUMBER: _ClassVar[int]
        OUTPUTS_FIELD_NUMBER: _ClassVar[int]
        FAILED_STAGE_FIELD_NUMBER: _ClassVar[int]
        FAILURE_FIELD_NUMBER: _ClassVar[int]
        id: int
        instance_id: int
        attempt: int
        root: _records_pb2.StoredRecord
        outputs: _containers.MessageMap[str, _records_pb2.StoredRecord]
        failed_stage: str
        failure: str
        def __init__(self, id: _Optional[int] = ..., instance_id: _Optional[int] = ..., attempt: _Optional[int] = ..., root: _Optional[_Union[_records_pb2.StoredRecord, _Mapping]] = ..., outputs: _Optional[_Mapping[str, _records_pb2.StoredRecord]] = ..., failed_stage: _Optional[str] = ..., failure: _Optional[str] = ...) -> None: ...
    class Ended(_message.Message):
        __slots__ = ("id", "output")
        ID_FIELD_NUMBER: _ClassVar[int]
        OUTPUT_FIELD_NUMBER: _ClassVar[int]
        id: int
        output: _records_pb2.Run
        def __init__(self, id: _Optional[int] = ..., output: _Optional[_Union[_records_pb2.Run, _Mapping]] = ...) -> None: ...
    class Refused(_message.Message):
        __slots__ = ("id", "reason", "message", "hint", "is_over")
        ID_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        MESSAGE_FIELD_NUMBER: _ClassVar[int]
        HINT_FIELD_NUMBER: _ClassVar[int]
        IS_OVER_FIELD_NUMBER: _ClassVar[int]
        id: int
        reason: str
        message: str
        hint: str
        is_over: bool
        def __init__(self, id: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., hint: _Optional[str] = ..., is_over: _Optional[bool] = ...) -> None: ...
    OPENED_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    opened: WorkEvent.Opened
    work: WorkEvent.Work
    ended: WorkEvent.Ended
    refused: WorkEvent.Refused
    def __init__(self, opened: _Optional[_Union[WorkEvent.Opened, _Mapping]] = ..., work: _Optional[_Union[WorkEvent.Work, _Mapping]] = ..., ended: _Optional[_Union[WorkEvent.Ended, _Mapping]] = ..., refused: _Optional[_Union[WorkEvent.Refused, _Mapping]] = ...) -> None: ...
