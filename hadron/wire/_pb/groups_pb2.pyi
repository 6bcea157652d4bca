from hadron.wire._pb import common_pb2 as _common_pb2
from hadron.wire._pb import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Order(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ORDER_NONE: _ClassVar[Order]
    ORDER_STRICT: _ClassVar[Order]
    ORDER_KEY: _ClassVar[Order]
ORDER_NONE: Order
ORDER_STRICT: Order
ORDER_KEY: Order

class GroupOptions(_message.Message):
    __slots__ = ("order", "ack_deadline_ms", "max_attempts", "dead_letter_stream", "ephemeral")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    ACK_DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_STREAM_FIELD_NUMBER: _ClassVar[int]
    EPHEMERAL_FIELD_NUMBER: _ClassVar[int]
    order: Order
    ack_deadline_ms: int
    max_attempts: int
    dead_letter_stream: str
    ephemeral: bool
    def __init__(self, order: _Optional[_Union[Order, str]] = ..., ack_deadline_ms: _Optional[int] = ..., max_attempts: _Optional[int] = ..., dead_letter_stream: _Optional[str] = ..., ephemeral: _Optional[bool] = ...) -> None: ...

class SubscribeRequest(_message.Message):
    __slots__ = ("open", "ack", "nack", "extend", "heartbeat", "flow")
    class Open(_message.Message):
        __slots__ = ("namespace", "stream", "partition", "group", "start", "max_in_flight", "stream_id", "metadata_index", "options", "member", "heartbeat_interval_ms", "heartbeat_threshold", "batch_size", "batch_wait_ms", "resume_offset")
        NAMESPACE_FIELD_NUMBER: _ClassVar[int]
        STREAM_FIELD_NUMBER: _ClassVar[int]
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        GROUP_FIELD_NUMBER: _ClassVar[int]
        START_FIELD_NUMBER: _ClassVar[int]
        MAX_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
        STREAM_ID_FIELD_NUMBER: _ClassVar[int]
        METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
        OPTIONS_FIELD_NUMBER: _ClassVar[int]
        MEMBER_FIELD_NUMBER: _ClassVar[int]
        HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
        HEARTBEAT_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
        BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
        BATCH_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
        RESUME_OFFSET_FIELD_NUMBER: _ClassVar[int]
        namespace: str
        stream: str
        partition: str
        group: str
        start: str
        max_in_flight: int
        stream_id: int
        metadata_index: int
        options: GroupOptions
        member: str
        heartbeat_interval_ms: int
        heartbeat_threshold: int
        batch_size: int
        batch_wait_ms: int
        resume_offset: int
        def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., partition: _Optional[str] = ..., group: _Optional[str] = ..., start: _Optional[str] = ..., max_in_flight: _Optional[int] = ..., stream_id: _Optional[int] = ..., metadata_index: _Optional[int] = ..., options: _Optional[_Union[GroupOptions, _Mapping]] = ..., member: _Optional[str] = ..., heartbeat_interval_ms: _Optional[int] = ..., heartbeat_threshold: _Optional[int] = ..., batch_size: _Optional[int] = ..., batch_wait_ms: _Optional[int] = ..., resume_offset: _Optional[int] = ...) -> None: ...
    class Ack(_message.Message):
        __slots__ = ("ranges", "confirmation", "ballot")
        RANGES_FIELD_NUMBER: _ClassVar[int]
        CONFIRMATION_FIELD_NUMBER: _ClassVar[int]
        BALLOT_FIELD_NUMBER: _ClassVar[int]
        ranges: _containers.RepeatedCompositeFieldContainer[Range]
        confirmation: int
        ballot: _common_pb2.Ballot
        def __init__(self, ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., confirmation: _Optional[int] = ..., ballot: _Optional[_Union[_common_pb2.Ballot, _Mapping]] = ...) -> None: ...
    class Nack(_message.Message):
        __slots__ = ("ranges", "delay_ms", "reason", "unseen")
        RANGES_FIELD_NUMBER: _ClassVar[int]
        DELAY_MS_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        UNSEEN_FIELD_NUMBER: _ClassVar[int]
        ranges: _containers.RepeatedCompositeFieldContainer[Range]
        delay_ms: int
        reason: str
        unseen: bool
        def __init__(self, ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., delay_ms: _Optional[int] = ..., reason: _Optional[str] = ..., unseen: _Optional[bool] = ...) -> None: ...
    class Extend(_message.Message):
        __slots__ = ("ranges",)
        RANGES_FIELD_NUMBER: _ClassVar[int]
        ranges: _containers.RepeatedCompositeFieldContainer[Range]
        def __init__(self, ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ...) -> None: ...
    class Heartbeat(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class Flow(_message.Message):
        __slots__ = ("max_in_flight",)
        MAX_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
        max_in_flight: int
        def __init__(self, max_in_flight: _Optional[int] = ...) -> None: ...
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    FLOW_FIELD_NUMBER: _ClassVar[int]
    open: SubscribeRequest.Open
    ack: SubscribeRequest.Ack
    nack: SubscribeRequest.Nack
    extend: SubscribeRequest.Extend
    heartbeat: SubscribeRequest.Heartbeat
    flow: SubscribeRequest.Flow
    def __init__(self, open: _Optional[_Union[SubscribeRequest.Open, _Mapping]] = ..., ack: _Optional[_Union[SubscribeRequest.Ack, _Mapping]] = ..., nack: _Optional[_Union[SubscribeRequest.Nack, _Mapping]] = ..., extend: _Optional[_Union[SubscribeRequest.Extend, _Mapping]] = ..., heartbeat: _Optional[_Union[SubscribeRequest.Heartbeat, _Mapping]] = ..., flow: _Optional[_Union[SubscribeRequest.Flow, _Mapping]] = ...) -> None: ...

class DeliveryToken(_message.Message):
    __slots__ = ("ballot", "delivery")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    ballot: _common_pb2.Ballot
    delivery: int
    def __init__(self, ballot: _Optional[_Union[_common_pb2.Ballot, _Mapping]] = ..., delivery: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("opened", "delivery", "acked", "revoked", "heartbeat", "batch_end", "conflict", "attachment")
    class Opened(_message.Message):
        __slots__ = ("ballot", "floor", "options", "fence", "skipped")
        BALLOT_FIELD_NUMBER: _ClassVar[int]
        FLOOR_FIELD_NUMBER: _ClassVar[int]
        OPTIONS_FIELD_NUMBER: _ClassVar[int]
        FENCE_FIELD_NUMBER: _ClassVar[int]
        SKIPPED_FIELD_NUMBER: _ClassVar[int]
        ballot: _common_pb2.Ballot
        floor: int
        options: GroupOptions
        fence: DeliveryToken
        skipped: int
        def __init__(self, ballot: _Optional[_Union[_common_pb2.Ballot, _Mapping]] = ..., floor: _Optional[int] = ..., options: _Optional[_Union[GroupOptions, _Mapping]] = ..., fence: _Optional[_Union[DeliveryToken, _Mapping]] = ..., skipped: _Optional[int] = ...) -> None: ...
    class Delivery(_message.Message):
        __slots__ = ("delivery", "first_offset", "last_offset", "attempt", "batch", "ends_batch")
        DELIVERY_FIELD_NUMBER: _ClassVar[int]
        FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
        LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
        ATTEMPT_FIELD_NUMBER: _ClassVar[int]
        BATCH_FIELD_NUMBER: _ClassVar[int]
        ENDS_BATCH_FIELD_NUMBER: _ClassVar[int]
        delivery: int
        first_offset: int
        last_offset: int
        attempt: int
        batch: _common_pb2.BatchInfo
        ends_batch: bool
        def __init__(self, delivery: _Optional[int] = ..., first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., attempt: _Optional[int] = ..., batch: _Optional[_Union[_common_pb2.BatchInfo, _Mapping]] = ..., ends_batch: _Optional[bool] = ...) -> None: ...
    class Acked(_message.Message):
        __slots__ = ("confirmation", "refused", "floor")
        CONFIRMATION_FIELD_NUMBER: _ClassVar[int]
        REFUSED_FIELD_NUMBER: _ClassVar[int]
        FLOOR_FIELD_NUMBER: _ClassVar[int]
        confirmation: int
        refused: _containers.RepeatedCompositeFieldContainer[Range]
        floor: int
        def __init__(self, confirmation: _Optional[int] = ..., refused: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., floor: _Optional[int] = ...) -> None: ...
    class Revoked(_message.Message):
        __slots__ = ("ranges", "reason")
        RANGES_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        ranges: _containers.RepeatedCompositeFieldContainer[Range]
        reason: str
        def __init__(self, ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., reason: _Optional[str] = ...) -> None: ...
    class Heartbeat(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class Conflict(_message.Message):
        __slots__ = ("ranges", "transaction")
        RANGES_FIELD_NUMBER: _ClassVar[int]
        TRANSACTION_FIELD_NUMBER: _ClassVar[int]
        ranges: _containers.RepeatedCompositeFieldContainer[Range]
        transaction: str
        def __init__(self, ranges: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., transaction: _Optional[str] = ...) -> None: ...
    class BatchEnd(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    OPENED_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    ACKED_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    BATCH_END_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    opened: SubscribeEvent.Opened
    delivery: SubscribeEvent.Delivery
    acked: SubscribeEvent.Acked
    revoked: SubscribeEvent.Revoked
    heartbeat: SubscribeEvent.Heartbeat
    batch_end: SubscribeEvent.BatchEnd
    conflict: SubscribeEvent.Conflict
    attachment: bytes
    def __init__(self, opened: _Optional[_Union[SubscribeEvent.Opened, _Mapping]] = ..., delivery: _Optional[_Union[SubscribeEvent.Delivery, _Mapping]] = ..., acked: _Optional[_Union[SubscribeEvent.Acked, _Mapping]] = ..., revoked: _Optional[_Union[SubscribeEvent.Revoked, _Mapping]] = ..., heartbeat: _Optional[_Union[SubscribeEvent.Heartbeat, _Mapping]] = ..., batch_end: _Optional[_Union[SubscribeEvent.BatchEnd, _Mapping]] = ..., conflict: _Optional[_Union[SubscribeEvent.Conflict, _Mapping]] = ..., attachment: _Optional[bytes] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("namespace", "stream", "limit", "after_stream_id", "after_group")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_GROUP_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    limit: int
    after_stream_id: int
    after_group: str
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., limit: _Optional[int] = ..., after_stream_id: _Optional[int] = ..., after_group: _Optional[str] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups", "more", "last_stream_id", "last_group")
    class Group(_message.Message):
        __slots__ = ("namespace", "stream", "partition", "group", "floor", "next_offset", "acknowledged_above", "in_flight", "members", "skipped", "ephemeral", "dead_lettered", "oldest_append_ms", "oldest_age_ms", "dead_letter_stream", "trouble", "in_transactions", "oldest_transaction", "oldest_transaction_ms")
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
        EPHEMERAL_FIELD_NUMBER: _ClassVar[int]
        DEAD_LETTERED_FIELD_NUMBER: _ClassVar[int]
        OLDEST_APPEND_MS_FIELD_NUMBER: _ClassVar[int]
        OLDEST_AGE_MS_FIELD_NUMBER: _ClassVar[int]
        DEAD_LETTER_STREAM_FIELD_NUMBER: _ClassVar[int]
        TROUBLE_FIELD_NUMBER: _ClassVar[int]
        IN_TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
        OLDEST_TRANSACTION_FIELD_NUMBER: _ClassVar[int]
        OLDEST_TRANSACTION_MS_FIELD_NUMBER: _ClassVar[int]
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
        ephemeral: bool
        dead_lettered: int
        oldest_append_ms: int
        oldest_age_ms: int
        dead_letter_stream: str
        trouble: str
        in_transactions: int
        oldest_transaction: str
        oldest_transaction_ms: int
        def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., partition: _Optional[str] = ..., group: _Optional[str] = ..., floor: _Optional[int] = ..., next_offset: _Optional[int] = ..., acknowledged_above: _Optional[int] = ..., in_flight: _Optional[int] = ..., members: _Optional[int] = ..., skipped: _Optional[int] = ..., ephemeral: _Optional[bool] = ..., dead_lettered: _Optional[int] = ..., oldest_append_ms: _Optional[int] = ..., oldest_age_ms: _Optional[int] = ..., dead_letter_stream: _Optional[str] = ..., trouble: _Optional[str] = ..., in_transactions: _Optional[int] = ..., oldest_transaction: _Optional[str] = ..., oldest_transaction_ms: _Optional[int] = ...) -> None: ...
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    LAST_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_GROUP_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[ListGroupsResponse.Group]
    more: bool
    last_stream_id: int
    last_group: str
    def __init__(self, groups: _Optional[_Iterable[_Union[ListGroupsResponse.Group, _Mapping]]] = ..., more: _Optional[bool] = ..., last_stream_id: _Optional[int] = ..., last_group: _Optional[str] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("namespace", "stream", "partition", "group", "stream_id", "metadata_index")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    partition: str
    group: str
    stream_id: int
    metadata_index: int
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., partition: _Optional[str] = ..., group: _Optional[str] = ..., stream_id: _Optional[int] = ..., metadata_index: _Optional[int] = ...) -> None: ...

class DescribeGroupResponse(_message.Message):
    __slots__ = ("group", "options", "created_ms", "members", "waiting_again", "delayed", "behind_their_key", "attempts", "held_back")
    class Member(_message.Message):
        __slots__ = ("name", "peer", "connected_ms", "silent_ms", "max_in_flight", "credit", "in_flight", "oldest_delivery_ms", "heartbeat_interval_ms", "heartbeat_threshold", "is_blocked", "is_stalled", "delivered", "acknowledged", "gives_all_back", "is_alone")
        NAME_FIELD_NUMBER: _ClassVar[int]
        PEER_FIELD_NUMBER: _ClassVar[int]
        CONNECTED_MS_FIELD_NUMBER: _ClassVar[int]
        SILENT_MS_FIELD_NUMBER: _ClassVar[int]
        MAX_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
        CREDIT_FIELD_NUMBER: _ClassVar[int]
        IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
        OLDEST_DELIVERY_MS_FIELD_NUMBER: _ClassVar[int]
        HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
        HEARTBEAT_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
        IS_BLOCKED_FIELD_NUMBER: _ClassVar[int]
        IS_STALLED_FIELD_NUMBER: _ClassVar[int]
        DELIVERED_FIELD_NUMBER: _ClassVar[int]
        ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
        GIVES_ALL_BACK_FIELD_NUMBER: _ClassVar[int]
        IS_ALONE_FIELD_NUMBER: _ClassVar[int]
        name: str
        peer: str
        connected_ms: int
        silent_ms: int
        max_in_flight: int
        credit: int
        in_flight: int
        oldest_delivery_ms: int
        heartbeat_interval_ms: int
        heartbeat_threshold: int
        is_blocked: bool
        is_stalled: bool
        delivered: int
        acknowledged: int
        gives_all_back: bool
        is_alone: bool
        def __init__(self, name: _Optional[str] = ..., peer: _Optional[str] = ..., connected_ms: _Optional[int] = ..., silent_ms: _Optional[int] = ..., max_in_flight: _Optional[int] = ..., credit: _Optional[int] = ..., in_flight: _Optional[int] = ..., oldest_delivery_ms: _Optional[int] = ..., heartbeat_interval_ms: _Optional[int] = ..., heartbeat_threshold: _Optional[int] = ..., is_blocked: _Optional[bool] = ..., is_stalled: _Optional[bool] = ..., delivered: _Optional[int] = ..., acknowledged: _Optional[int] = ..., gives_all_back: _Optional[bool] = ..., is_alone: _Optional[bool] = ...) -> None: ...
    class Attempt(_message.Message):
        __slots__ = ("first_offset", "last_offset", "attempts")
        FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
        LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
        ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
        first_offset: int
        last_offset: int
        attempts: int
        def __init__(self, first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., attempts: _Optional[int] = ...) -> None: ...
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    WAITING_AGAIN_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    BEHIND_THEIR_KEY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_FIELD_NUMBER: _ClassVar[int]
    group: ListGroupsResponse.Group
    options: GroupOptions
    created_ms: int
    members: _containers.RepeatedCompositeFieldContainer[DescribeGroupResponse.Member]
    waiting_again: int
    delayed: int
    behind_their_key: int
    attempts: _containers.RepeatedCompositeFieldContainer[DescribeGroupResponse.Attempt]
    held_back: str
    def __init__(self, group: _Optional[_Union[ListGroupsResponse.Group, _Mapping]] = ..., options: _Optional[_Union[GroupOptions, _Mapping]] = ..., created_ms: _Optional[int] = ..., members: _Optional[_Iterable[_Union[DescribeGroupResponse.Member, _Mapping]]] = ..., waiting_again: _Optional[int] = ..., delayed: _Optional[int] = ..., behind_their_key: _Optional[int] = ..., attempts: _Optional[_Iterable[_Union[DescribeGroupResponse.Attempt, _Mapping]]] = ..., held_back: _Optional[str] = ...) -> None: ...

class ResetGroupRequest(_message.Message):
    __slots__ = ("namespace", "stream", "partition", "group", "to", "force", "stream_id", "metadata_index", "create")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    partition: str
    group: str
    to: str
    force: bool
    stream_id: int
    metadata_index: int
    create: bool
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., partition: _Optional[str] = ..., group: _Optional[str] = ..., to: _Optional[str] = ..., force: _Optional[bool] = ..., stream_id: _Optional[int] = ..., metadata_index: _Optional[int] = ..., create: _Optional[bool] = ...) -> None: ...

class ResetGroupResponse(_message.Message):
    __slots__ = ("floor_before", "floor")
    FLOOR_BEFORE_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    floor_before: int
    floor: int
    def __init__(self, floor_before: _Optional[int] = ..., floor: _Optional[int] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("namespace", "stream", "partition", "group", "force", "stream_id", "metadata_index")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    partition: str
    group: str
    force: bool
    stream_id: int
    metadata_index: int
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., partition: _Optional[str] = ..., group: _Optional[str] = ..., force: _Optional[bool] = ..., stream_id: _Optional[int] = ..., metadata_index: _Optional[int] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ("floor",)
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    floor: int
    def __init__(self, floor: _Optional[int] = ...) -> None: ...
