from hadron.wire._pb import common_pb2 as _common_pb2
from hadron.wire._pb import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubscribeRequest(_message.Message):
    __slots__ = ("open", "ack", "nack")
    class Open(_message.Message):
        __slots__ = ("namespace", "stream", "partition", "group", "start", "max_in_flight")
        NAMESPACE_FIELD_NUMBER: _ClassVar[int]
        STREAM_FIELD_NUMBER: _ClassVar[int]
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        GROUP_FIELD_NUMBER: _ClassVar[int]
        START_FIELD_NUMBER: _ClassVar[int]
        MAX_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
        namespace: str
        stream: str
        partition: str
        group: str
        start: str
        max_in_flight: int
        def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., partition: _Optional[str] = ..., group: _Optional[str] = ..., start: _Optional[str] = ..., max_in_flight: _Optional[int] = ...) -> None: ...
    class Ack(_message.Message):
        __slots__ = ("ranges", "token")
        RANGES_FIELD_NUMBER: _ClassVar[int]
        TOKEN_FIELD_NUMBER: _ClassVar[int]
        ranges: _containers.RepeatedCompositeFieldContainer[Range]
        token: int
        def __init__(self, ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., token: _Optional[int] = ...) -> None: ...
    class Nack(_message.Message):
        __slots__ = ("ranges", "delay_ms")
        RANGES_FIELD_NUMBER: _ClassVar[int]
        DELAY_MS_FIELD_NUMBER: _ClassVar[int]
        ranges: _containers.RepeatedCompositeFieldContainer[Range]
        delay_ms: int
        def __init__(self, ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., delay_ms: _Optional[int] = ...) -> None: ...
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    open: SubscribeRequest.Open
    ack: SubscribeRequest.Ack
    nack: SubscribeRequest.Nack
    def __init__(self, open: _Optional[_Union[SubscribeRequest.Open, _Mapping]] = ..., ack: _Optional[_Union[SubscribeRequest.Ack, _Mapping]] = ..., nack: _Optional[_Union[SubscribeRequest.Nack, _Mapping]] = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("delivery", "first_offset", "last_offset")
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    delivery: int
    first_offset: int
    last_offset: int
    def __init__(self, delivery: _Optional[int] = ..., first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ...) -> None: ...

class SubscribeEvent(_message.Message):
    __slots__ = ("opened", "delivery", "acked")
    class Opened(_message.Message):
        __slots__ = ("ballot", "floor")
        BALLOT_FIELD_NUMBER: _ClassVar[int]
        FLOOR_FIELD_NUMBER: _ClassVar[int]
        ballot: _common_pb2.Ballot
        floor: int
        def __init__(self, ballot: _Optional[_Union[_common_pb2.Ballot, _Mapping]] = ..., floor: _Optional[int] = ...) -> None: ...
    class Delivery(_message.Message):
        __slots__ = ("delivery", "first_offset", "last_offset", "attempt", "batch")
        DELIVERY_FIELD_NUMBER: _ClassVar[int]
        FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
        LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
        ATTEMPT_FIELD_NUMBER: _ClassVar[int]
        BATCH_FIELD_NUMBER: _ClassVar[int]
        delivery: int
        first_offset: int
        last_offset: int
        attempt: int
        batch: _common_pb2.BatchInfo
        def __init__(self, delivery: _Optional[int] = ..., first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., attempt: _Optional[int] = ..., batch: _Optional[_Union[_common_pb2.BatchInfo, _Mapping]] = ...) -> None: ...
    class Acked(_message.Message):
        __slots__ = ("token", "refused")
        TOKEN_FIELD_NUMBER: _ClassVar[int]
        REFUSED_FIELD_NUMBER: _ClassVar[int]
        token: int
        refused: _containers.RepeatedCompositeFieldContainer[Range]
        def __init__(self, token: _Optional[int] = ..., refused: _Optional[_Iterable[_Union[Range, _Mapping]]] = ...) -> None: ...
    OPENED_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    ACKED_FIELD_NUMBER: _ClassVar[int]
    opened: SubscribeEvent.Opened
    delivery: SubscribeEvent.Delivery
    acked: SubscribeEvent.Acked
    def __init__(self, opened: _Optional[_Union[SubscribeEvent.Opened, _Mapping]] = ..., delivery: _Optional[_Union[SubscribeEvent.Delivery, _Mapping]] = ..., acked: _Optional[_Union[SubscribeEvent.Acked, _Mapping]] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("namespace", "stream")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    class Group(_message.Message):
        __slots__ = ("namespace", "stream", "partition", "group", "floor", "next_offset", "acknowledged_above", "in_flight", "members", "skipped")
        NAMESPACE_FIELD_NUMBER: _ClassVar[int]
        STREAM_FIELD_NUMBER: _ClassVar[int]
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        GROUP_FIELD_NUMBER: _ClassVar[int]
        FLOOR_FIELD_NUMBER: _ClassVar[int]
        NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
        ACKNOWLEDGED_ABOVE_FIELD_NUMBER: _ClassVar[int]
        IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
        MEMBERS_FIELD_NUMBER: _ClassVar[int]
        SKIPPED_FIELD_NUMBER: _ClassVar[int]
        namespace: str
        stream: str
        partition: str
        group: str
        floor: int
        next_offset: int
        acknowledged_above: int
        in_flight: int
        members: int
        skipped: int
        def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., partition: _Optional[str] = ..., group: _Optional[str] = ..., floor: _Optional[int] = ..., next_offset: _Optional[int] = ..., acknowledged_above: _Optional[int] = ..., in_flight: _Optional[int] = ..., members: _Optional[int] = ..., skipped: _Optional[int] = ...) -> None: ...
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[ListGroupsResponse.Group]
    def __init__(self, groups: _Optional[_Iterable[_Union[ListGroupsResponse.Group, _Mapping]]] = ...) -> None: ...
