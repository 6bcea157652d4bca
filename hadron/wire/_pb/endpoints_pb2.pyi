from hadron.wire._pb import common_pb2 as _common_pb2
from hadron.wire._pb import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CallItem(_message.Message):
    __slots__ = ("number", "kind", "length", "encoding", "end", "credit", "open", "error", "error_type", "headers")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNSPECIFIED: _ClassVar[CallItem.Kind]
        OPEN: _ClassVar[CallItem.Kind]
        VALUE: _ClassVar[CallItem.Kind]
        END: _ClassVar[CallItem.Kind]
        ERROR: _ClassVar[CallItem.Kind]
        CANCEL: _ClassVar[CallItem.Kind]
        CREDIT: _ClassVar[CallItem.Kind]
        REFUSE: _ClassVar[CallItem.Kind]
    UNSPECIFIED: CallItem.Kind
    OPEN: CallItem.Kind
    VALUE: CallItem.Kind
    END: CallItem.Kind
    ERROR: CallItem.Kind
    CANCEL: CallItem.Kind
    CREDIT: CallItem.Kind
    REFUSE: CallItem.Kind
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_TYPE_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    number: int
    kind: CallItem.Kind
    length: int
    encoding: int
    end: bool
    credit: int
    open: CallOpening
    error: _common_pb2.Error
    error_type: str
    headers: _containers.ScalarMap[str, str]
    def __init__(self, number: _Optional[int] = ..., kind: _Optional[_Union[CallItem.Kind, str]] = ..., length: _Optional[int] = ..., encoding: _Optional[int] = ..., end: _Optional[bool] = ..., credit: _Optional[int] = ..., open: _Optional[_Union[CallOpening, _Mapping]] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., error_type: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ...) -> None: ...

class CallOpening(_message.Message):
    __slots__ = ("namespace", "endpoint", "metadata_index", "timeout_ms", "region", "headers", "caller", "attempt", "has_value", "is_single")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    HAS_VALUE_FIELD_NUMBER: _ClassVar[int]
    IS_SINGLE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    endpoint: str
    metadata_index: int
    timeout_ms: int
    region: str
    headers: _containers.ScalarMap[str, str]
    caller: str
    attempt: int
    has_value: bool
    is_single: bool
    def __init__(self, namespace: _Optional[str] = ..., endpoint: _Optional[str] = ..., metadata_index: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., region: _Optional[str] = ..., headers: _Optional[_Mapping[str, str]] = ..., caller: _Optional[str] = ..., attempt: _Optional[int] = ..., has_value: _Optional[bool] = ..., is_single: _Optional[bool] = ...) -> None: ...

class CallRequest(_message.Message):
    __slots__ = ("items", "attachment")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[CallItem]
    attachment: bytes
    def __init__(self, items: _Optional[_Iterable[_Union[CallItem, _Mapping]]] = ..., attachment: _Optional[bytes] = ...) -> None: ...

class CallResponse(_message.Message):
    __slots__ = ("items", "attachment")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[CallItem]
    attachment: bytes
    def __init__(self, items: _Optional[_Iterable[_Union[CallItem, _Mapping]]] = ..., attachment: _Optional[bytes] = ...) -> None: ...

class ServeRequest(_message.Message):
    __slots__ = ("open", "drain", "items", "attachment")
    class Open(_message.Message):
        __slots__ = ("namespace", "endpoint", "metadata_index", "max_in_flight", "region", "name", "heartbeat_ms", "heartbeat_misses", "input", "output")
        NAMESPACE_FIELD_NUMBER: _ClassVar[int]
        ENDPOINT_FIELD_NUMBER: _ClassVar[int]
        METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
        MAX_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
        REGION_FIELD_NUMBER: _ClassVar[int]
        NAME_FIELD_NUMBER: _ClassVar[int]
        HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
        HEARTBEAT_MISSES_FIELD_NUMBER: _ClassVar[int]
        INPUT_FIELD_NUMBER: _ClassVar[int]
        OUTPUT_FIELD_NUMBER: _ClassVar[int]
        namespace: str
        endpoint: str
        metadata_index: int
        max_in_flight: int
        region: str
        name: str
        heartbeat_ms: int
        heartbeat_misses: int
        input: str
        output: str
        def __init__(self, namespace: _Optional[str] = ..., endpoint: _Optional[str] = ..., metadata_index: _Optional[int] = ..., max_in_flight: _Optional[int] = ..., region: _Optional[str] = ..., name: _Optional[str] = ..., heartbeat_ms: _Optional[int] = ..., heartbeat_misses: _Optional[int] = ..., input: _Optional[str] = ..., output: _Optional[str] = ...) -> None: ...
    OPEN_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    open: ServeRequest.Open
    drain: bool
    items: _containers.RepeatedCompositeFieldContainer[CallItem]
    attachment: bytes
    def __init__(self, open: _Optional[_Union[ServeRequest.Open, _Mapping]] = ..., drain: _Optional[bool] = ..., items: _Optional[_Iterable[_Union[CallItem, _Mapping]]] = ..., attachment: _Optional[bytes] = ...) -> None: ...

class ServeResponse(_message.Message):
    __slots__ = ("items", "attachment")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[CallItem]
    attachment: bytes
    def __init__(self, items: _Optional[_Iterable[_Union[CallItem, _Mapping]]] = ..., attachment: _Optional[bytes] = ...) -> None: ...

class DescribeEndpointsRequest(_message.Message):
    __slots__ = ("namespace", "endpoint")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    endpoint: str
    def __init__(self, namespace: _Optional[str] = ..., endpoint: _Optional[str] = ...) -> None: ...

class DescribeEndpointsResponse(_message.Message):
    __slots__ = ("endpoints",)
    class Server(_message.Message):
        __slots__ = ("name", "peer", "region", "max_in_flight", "in_flight", "answered", "failed", "p50_us", "p99_us", "is_draining")
        NAME_FIELD_NUMBER: _ClassVar[int]
        PEER_FIELD_NUMBER: _ClassVar[int]
        REGION_FIELD_NUMBER: _ClassVar[int]
        MAX_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
        IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
        ANSWERED_FIELD_NUMBER: _ClassVar[int]
        FAILED_FIELD_NUMBER: _ClassVar[int]
        P50_US_FIELD_NUMBER: _ClassVar[int]
        P99_US_FIELD_NUMBER: _ClassVar[int]
        IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
        name: str
        peer: str
        region: str
        max_in_flight: int
        in_flight: int
        answered: int
        failed: int
        p50_us: int
        p99_us: int
        is_draining: bool
        def __init__(self, name: _Optional[str] = ..., peer: _Optional[str] = ..., region: _Optional[str] = ..., max_in_flight: _Optional[int] = ..., in_flight: _Optional[int] = ..., answered: _Optional[int] = ..., failed: _Optional[int] = ..., p50_us: _Optional[int] = ..., p99_us: _Optional[int] = ..., is_draining: _Optional[bool] = ...) -> None: ...
    class Endpoint(_message.Message):
        __slots__ = ("namespace", "name", "servers", "in_flight", "waiting", "waiting_bytes", "answered", "failed", "p50_us", "p99_us", "more_servers")
        NAMESPACE_FIELD_NUMBER: _ClassVar[int]
        NAME_FIELD_NUMBER: _ClassVar[int]
        SERVERS_FIELD_NUMBER: _ClassVar[int]
        IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
        WAITING_FIELD_NUMBER: _ClassVar[int]
        WAITING_BYTES_FIELD_NUMBER: _ClassVar[int]
        ANSWERED_FIELD_NUMBER: _ClassVar[int]
        FAILED_FIELD_NUMBER: _ClassVar[int]
        P50_US_FIELD_NUMBER: _ClassVar[int]
        P99_US_FIELD_NUMBER: _ClassVar[int]
        MORE_SERVERS_FIELD_NUMBER: _ClassVar[int]
        namespace: str
        name: str
        servers: _containers.RepeatedCompositeFieldContainer[DescribeEndpointsResponse.Server]
        in_flight: int
        waiting: int
        waiting_bytes: int
        answered: int
        failed: int
        p50_us: int
        p99_us: int
        more_servers: int
        def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., servers: _Optional[_Iterable[_Union[DescribeEndpointsResponse.Server, _Mapping]]] = ..., in_flight: _Optional[int] = ..., waiting: _Optional[int] = ..., waiting_bytes: _Optional[int] = ..., answered: _Optional[int] = ..., failed: _Optional[int] = ..., p50_us: _Optional[int] = ..., p99_us: _Optional[int] = ..., more_servers: _Optional[int] = ...) -> None: ...
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    endpoints: _containers.RepeatedCompositeFieldContainer[DescribeEndpointsResponse.Endpoint]
    def __init__(self, endpoints: _Optional[_Iterable[_Union[DescribeEndpointsResponse.Endpoint, _Mapping]]] = ...) -> None: ...
