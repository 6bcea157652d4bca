from hadron.wire._pb import records_pb2 as _records_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NewMessage(_message.Message):
    __slots__ = ("topic", "value", "key", "headers", "timestamp_ms")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    value: _records_pb2.Value
    key: _records_pb2.Key
    headers: _containers.ScalarMap[str, str]
    timestamp_ms: int
    def __init__(self, topic: _Optional[str] = ..., value: _Optional[_Union[_records_pb2.Value, _Mapping]] = ..., key: _Optional[_Union[_records_pb2.Key, _Mapping]] = ..., headers: _Optional[_Mapping[str, str]] = ..., timestamp_ms: _Optional[int] = ...) -> None: ...

class MessagesRequest(_message.Message):
    __slots__ = ("namespace", "exchange", "messages", "logged")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LOGGED_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    exchange: str
    messages: _containers.RepeatedCompositeFieldContainer[NewMessage]
    logged: bool
    def __init__(self, namespace: _Optional[str] = ..., exchange: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[NewMessage, _Mapping]]] = ..., logged: _Optional[bool] = ...) -> None: ...

class MessagesResponse(_message.Message):
    __slots__ = ("deliveries", "dropped", "runs")
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    deliveries: int
    dropped: int
    runs: _containers.RepeatedCompositeFieldContainer[_records_pb2.Run]
    def __init__(self, deliveries: _Optional[int] = ..., dropped: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[_records_pb2.Run, _Mapping]]] = ...) -> None: ...

class SubscriptionRequest(_message.Message):
    __slots__ = ("namespace", "exchange", "patterns", "group", "max_buffer_bytes")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    PATTERNS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MAX_BUFFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    exchange: str
    patterns: _containers.RepeatedScalarFieldContainer[str]
    group: str
    max_buffer_bytes: int
    def __init__(self, namespace: _Optional[str] = ..., exchange: _Optional[str] = ..., patterns: _Optional[_Iterable[str]] = ..., group: _Optional[str] = ..., max_buffer_bytes: _Optional[int] = ...) -> None: ...

class SubscriptionEvent(_message.Message):
    __slots__ = ("subscribed", "arrived")
    class Subscribed(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class Arrived(_message.Message):
        __slots__ = ("messages",)
        MESSAGES_FIELD_NUMBER: _ClassVar[int]
        messages: _containers.RepeatedCompositeFieldContainer[ArrivedMessage]
        def __init__(self, messages: _Optional[_Iterable[_Union[ArrivedMessage, _Mapping]]] = ...) -> None: ...
    SUBSCRIBED_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_FIELD_NUMBER: _ClassVar[int]
    subscribed: SubscriptionEvent.Subscribed
    arrived: SubscriptionEvent.Arrived
    def __init__(self, subscribed: _Optional[_Union[SubscriptionEvent.Subscribed, _Mapping]] = ..., arrived: _Optional[_Union[SubscriptionEvent.Arrived, _Mapping]] = ...) -> None: ...

class ArrivedMessage(_message.Message):
    __slots__ = ("topic", "value", "key", "headers", "timestamp_ms", "type", "missed", "interrupted", "damage", "raw")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    INTERRUPTED_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    topic: str
    value: _records_pb2.Value
    key: _records_pb2.Key
    headers: _containers.ScalarMap[str, str]
    timestamp_ms: int
    type: str
    missed: int
    interrupted: bool
    damage: str
    raw: bytes
    def __init__(self, topic: _Optional[str] = ..., value: _Optional[_Union[_records_pb2.Value, _Mapping]] = ..., key: _Optional[_Union[_records_pb2.Key, _Mapping]] = ..., headers: _Optional[_Mapping[str, str]] = ..., timestamp_ms: _Optional[int] = ..., type: _Optional[str] = ..., missed: _Optional[int] = ..., interrupted: _Optional[bool] = ..., damage: _Optional[str] = ..., raw: _Optional[bytes] = ...) -> None: ...
