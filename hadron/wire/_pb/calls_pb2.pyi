from hadron.wire._pb import records_pb2 as _records_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SingleCallRequest(_message.Message):
    __slots__ = ("namespace", "endpoint", "value", "headers", "region")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    endpoint: str
    value: _records_pb2.Value
    headers: _containers.ScalarMap[str, str]
    region: str
    def __init__(self, namespace: _Optional[str] = ..., endpoint: _Optional[str] = ..., value: _Optional[_Union[_records_pb2.Value, _Mapping]] = ..., headers: _Optional[_Mapping[str, str]] = ..., region: _Optional[str] = ...) -> None: ...

class SingleCallResponse(_message.Message):
    __slots__ = ("value", "headers")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VALUE_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    value: _records_pb2.Value
    headers: _containers.ScalarMap[str, str]
    def __init__(self, value: _Optional[_Union[_records_pb2.Value, _Mapping]] = ..., headers: _Optional[_Mapping[str, str]] = ...) -> None: ...

class StreamCallRequest(_message.Message):
    __slots__ = ("open", "value", "end")
    class Open(_message.Message):
        __slots__ = ("namespace", "endpoint", "value", "headers", "region")
        class HeadersEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: str
            def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
        NAMESPACE_FIELD_NUMBER: _ClassVar[int]
        ENDPOINT_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        HEADERS_FIELD_NUMBER: _ClassVar[int]
        REGION_FIELD_NUMBER: _ClassVar[int]
        namespace: str
        endpoint: str
        value: _records_pb2.Value
        headers: _containers.ScalarMap[str, str]
        region: str
        def __init__(self, namespace: _Optional[str] = ..., endpoint: _Optional[str] = ..., value: _Optional[_Union[_records_pb2.Value, _Mapping]] = ..., headers: _Optional[_Mapping[str, str]] = ..., region: _Optional[str] = ...) -> None: ...
    class End(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    OPEN_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    open: StreamCallRequest.Open
    value: _records_pb2.Value
    end: StreamCallRequest.End
    def __init__(self, open: _Optional[_Union[StreamCallRequest.Open, _Mapping]] = ..., value: _Optional[_Union[_records_pb2.Value, _Mapping]] = ..., end: _Optional[_Union[StreamCallRequest.End, _Mapping]] = ...) -> None: ...

class StreamCallEvent(_message.Message):
    __slots__ = ("value", "headers")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VALUE_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    value: _records_pb2.Value
    headers: _containers.ScalarMap[str, str]
    def __init__(self, value: _Optional[_Union[_records_pb2.Value, _Mapping]] = ..., headers: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ServerRequest(_message.Message):
    __slots__ = ("open", "answer", "end", "failure", "drain", "alive")
    class Open(_message.Message):
        __slots__ = ("namespace", "endpoint", "max_in_flight", "name", "region", "silence_ms")
        NAMESPACE_FIELD_NUMBER: _ClassVar[int]
        ENDPOINT_FIELD_NUMBER: _ClassVar[int]
        MAX_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
        NAME_FIELD_NUMBER: _ClassVar[int]
        REGION_FIELD_NUMBER: _ClassVar[int]
        SILENCE_MS_FIELD_NUMBER: _ClassVar[int]
        namespace: str
        endpoint: str
        max_in_flight: int
        name: str
        region: str
        silence_ms: int
        def __init__(self, namespace: _Optional[str] = ..., endpoint: _Optional[str] = ..., max_in_flight: _Optional[int] = ..., name: _Optional[str] = ..., region: _Optional[str] = ..., silence_ms: _Optional[int] = ...) -> None: ...
    class Answer(_message.Message):
        __slots__ = ("id", "value", "headers")
        class HeadersEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: str
            def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
        ID_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        HEADERS_FIELD_NUMBER: _ClassVar[int]
        id: int
        value: _records_pb2.Value
        headers: _containers.ScalarMap[str, str]
        def __init__(self, id: _Optional[int] = ..., value: _Optional[_Union[_records_pb2.Value, _Mapping]] = ..., headers: _Optional[_Mapping[str, str]] = ...) -> None: ...
    class End(_message.Message):
        __slots__ = ("id", "headers")
        class HeadersEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: str
            def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
        ID_FIELD_NUMBER: _ClassVar[int]
        HEADERS_FIELD_NUMBER: _ClassVar[int]
        id: int
        headers: _containers.ScalarMap[str, str]
        def __init__(self, id: _Optional[int] = ..., headers: _Optional[_Mapping[str, str]] = ...) -> None: ...
    class Failure(_message.Message):
        __slots__ = ("id", "type", "message", "hint", "retryable", "headers")
        class HeadersEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: str
            def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
        ID_FIELD_NUMBER: _ClassVar[int]
        TYPE_FIELD_NUMBER: _ClassVar[int]
        MESSAGE_FIELD_NUMBER: _ClassVar[int]
        HINT_FIELD_NUMBER: _ClassVar[int]
        RETRYABLE_FIELD_NUMBER: _ClassVar[int]
        HEADERS_FIELD_NUMBER: _ClassVar[int]
        id: int
        type: str
        message: str
        hint: str
        retryable: bool
        headers: _containers.ScalarMap[str, str]
        def __init__(self, id: _Optional[int] = ..., type: _Optional[str] = ..., message: _Optional[str] = ..., hint: _Optional[str] = ..., retryable: _Optional[bool] = ..., headers: _Optional[_Mapping[str, str]] = ...) -> None: ...
    class Drain(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class Alive(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    open: ServerRequest.Open
    answer: ServerRequest.Answer
    end: ServerRequest.End
    failure: ServerRequest.Failure
    drain: ServerRequest.Drain
    alive: ServerRequest.Alive
    def __init__(self, open: _Optional[_Union[ServerRequest.Open, _Mapping]] = ..., answer: _Optional[_Union[ServerRequest.Answer, _Mapping]] = ..., end: _Optional[_Union[ServerRequest.End, _Mapping]] = ..., failure: _Optional[_Union[ServerRequest.Failure, _Mapping]] = ..., drain: _Optional[_Union[ServerRequest.Drain, _Mapping]] = ..., alive: _Optional[_Union[ServerRequest.Alive, _Mapping]] = ...) -> None: ...

class ServerEvent(_message.Message):
    __slots__ = ("opened", "call", "input", "input_ended", "cancelled")
    class Opened(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class Incoming(_message.Message):
        __slots__ = ("id", "value", "headers", "attempt", "left_ms", "caller")
        class HeadersEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: str
            def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
        ID_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        HEADERS_FIELD_NUMBER: _ClassVar[int]
        ATTEMPT_FIELD_NUMBER: _ClassVar[int]
        LEFT_MS_FIELD_NUMBER: _ClassVar[int]
        CALLER_FIELD_NUMBER: _ClassVar[int]
        id: int
        value: _records_pb2.Value
        headers: _containers.ScalarMap[str, str]
        attempt: int
        left_ms: int
        caller: str
        def __init__(self, id: _Optional[int] = ..., value: _Optional[_Union[_records_pb2.Value, _Mapping]] = ..., headers: _Optional[_Mapping[str, str]] = ..., attempt: _Optional[int] = ..., left_ms: _Optional[int] = ..., caller: _Optional[str] = ...) -> None: ...
    class Input(_message.Message):
        __slots__ = ("id", "value")
        ID_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        id: int
        value: _records_pb2.Value
        def __init__(self, id: _Optional[int] = ..., value: _Optional[_Union[_records_pb2.Value, _Mapping]] = ...) -> None: ...
    class InputEnded(_message.Message):
        __slots__ = ("id",)
        ID_FIELD_NUMBER: _ClassVar[int]
        id: int
        def __init__(self, id: _Optional[int] = ...) -> None: ...
    class Cancelled(_message.Message):
        __slots__ = ("id",)
        ID_FIELD_NUMBER: _ClassVar[int]
        id: int
        def __init__(self, id: _Optional[int] = ...) -> None: ...
    OPENED_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    INPUT_ENDED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    opened: ServerEvent.Opened
    call: ServerEvent.Incoming
    input: ServerEvent.Input
    input_ended: ServerEvent.InputEnded
    cancelled: ServerEvent.Cancelled
    def __init__(self, opened: _Optional[_Union[ServerEvent.Opened, _Mapping]] = ..., call: _Optional[_Union[ServerEvent.Incoming, _Mapping]] = ..., input: _Optional[_Union[ServerEvent.Input, _Mapping]] = ..., input_ended: _Optional[_Union[ServerEvent.InputEnded, _Mapping]] = ..., cancelled: _Optional[_Union[ServerEvent.Cancelled, _Mapping]] = ...) -> None: ...
