from hadron.wire._pb import common_pb2 as _common_pb2
from hadron.wire._pb import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttendRequest(_message.Message):
    __slots__ = ("open", "subscribe", "unsubscribe", "dropped")
    class Open(_message.Message):
        __slots__ = ("namespace", "exchange", "exchange_id", "metadata_index")
        NAMESPACE_FIELD_NUMBER: _ClassVar[int]
        EXCHANGE_FIELD_NUMBER: _ClassVar[int]
        EXCHANGE_ID_FIELD_NUMBER: _ClassVar[int]
        METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
        namespace: str
        exchange: str
        exchange_id: int
        metadata_index: int
        def __init__(self, namespace: _Optional[str] = ..., exchange: _Optional[str] = ..., exchange_id: _Optional[int] = ..., metadata_index: _Optional[int] = ...) -> None: ...
    class Subscription(_message.Message):
        __slots__ = ("id", "patterns", "group")
        ID_FIELD_NUMBER: _ClassVar[int]
        PATTERNS_FIELD_NUMBER: _ClassVar[int]
        GROUP_FIELD_NUMBER: _ClassVar[int]
        id: int
        patterns: _containers.RepeatedScalarFieldContainer[str]
        group: str
        def __init__(self, id: _Optional[int] = ..., patterns: _Optional[_Iterable[str]] = ..., group: _Optional[str] = ...) -> None: ...
    class Subscribe(_message.Message):
        __slots__ = ("subscriptions",)
        SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
        subscriptions: _containers.RepeatedCompositeFieldContainer[AttendRequest.Subscription]
        def __init__(self, subscriptions: _Optional[_Iterable[_Union[AttendRequest.Subscription, _Mapping]]] = ...) -> None: ...
    class Unsubscribe(_message.Message):
        __slots__ = ("ids",)
        IDS_FIELD_NUMBER: _ClassVar[int]
        ids: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...
    OPEN_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    UNSUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    open: AttendRequest.Open
    subscribe: AttendRequest.Subscribe
    unsubscribe: AttendRequest.Unsubscribe
    dropped: Missed
    def __init__(self, open: _Optional[_Union[AttendRequest.Open, _Mapping]] = ..., subscribe: _Optional[_Union[AttendRequest.Subscribe, _Mapping]] = ..., unsubscribe: _Optional[_Union[AttendRequest.Unsubscribe, _Mapping]] = ..., dropped: _Optional[_Union[Missed, _Mapping]] = ...) -> None: ...

class Missed(_message.Message):
    __slots__ = ("gaps",)
    class Gap(_message.Message):
        __slots__ = ("id", "messages")
        ID_FIELD_NUMBER: _ClassVar[int]
        MESSAGES_FIELD_NUMBER: _ClassVar[int]
        id: int
        messages: int
        def __init__(self, id: _Optional[int] = ..., messages: _Optional[int] = ...) -> None: ...
    GAPS_FIELD_NUMBER: _ClassVar[int]
    gaps: _containers.RepeatedCompositeFieldContainer[Missed.Gap]
    def __init__(self, gaps: _Optional[_Iterable[_Union[Missed.Gap, _Mapping]]] = ...) -> None: ...

class AttendEvent(_message.Message):
    __slots__ = ("opened", "messages", "missed", "subscribed", "refused", "attachment")
    class Opened(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class Subscribed(_message.Message):
        __slots__ = ("ids",)
        IDS_FIELD_NUMBER: _ClassVar[int]
        ids: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...
    class Refused(_message.Message):
        __slots__ = ("id", "error")
        ID_FIELD_NUMBER: _ClassVar[int]
        ERROR_FIELD_NUMBER: _ClassVar[int]
        id: int
        error: _common_pb2.Error
        def __init__(self, id: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...
    class Messages(_message.Message):
        __slots__ = ("batches", "at", "firsts", "lasts", "to", "recipients")
        class Batch(_message.Message):
            __slots__ = ("length", "template", "stream", "partition")
            LENGTH_FIELD_NUMBER: _ClassVar[int]
            TEMPLATE_FIELD_NUMBER: _ClassVar[int]
            STREAM_FIELD_NUMBER: _ClassVar[int]
            PARTITION_FIELD_NUMBER: _ClassVar[int]
            length: int
            template: str
            stream: str
            partition: str
            def __init__(self, length: _Optional[int] = ..., template: _Optional[str] = ..., stream: _Optional[str] = ..., partition: _Optional[str] = ...) -> None: ...
        class Recipients(_message.Message):
            __slots__ = ("ids",)
            IDS_FIELD_NUMBER: _ClassVar[int]
            ids: _containers.RepeatedScalarFieldContainer[int]
            def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...
        BATCHES_FIELD_NUMBER: _ClassVar[int]
        AT_FIELD_NUMBER: _ClassVar[int]
        FIRSTS_FIELD_NUMBER: _ClassVar[int]
        LASTS_FIELD_NUMBER: _ClassVar[int]
        TO_FIELD_NUMBER: _ClassVar[int]
        RECIPIENTS_FIELD_NUMBER: _ClassVar[int]
        batches: _containers.RepeatedCompositeFieldContainer[AttendEvent.Messages.Batch]
        at: _containers.RepeatedScalarFieldContainer[int]
        firsts: _containers.RepeatedScalarFieldContainer[int]
        lasts: _containers.RepeatedScalarFieldContainer[int]
        to: _containers.RepeatedScalarFieldContainer[int]
        recipients: _containers.RepeatedCompositeFieldContainer[AttendEvent.Messages.Recipients]
        def __init__(self, batches: _Optional[_Iterable[_Union[AttendEvent.Messages.Batch, _Mapping]]] = ..., at: _Optional[_Iterable[int]] = ..., firsts: _Optional[_Iterable[int]] = ..., lasts: _Optional[_Iterable[int]] = ..., to: _Optional[_Iterable[int]] = ..., recipients: _Optional[_Iterable[_Union[AttendEvent.Messages.Recipients, _Mapping]]] = ...) -> None: ...
    OPENED_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    opened: AttendEvent.Opened
    messages: AttendEvent.Messages
    missed: Missed
    subscribed: AttendEvent.Subscribed
    refused: AttendEvent.Refused
    attachment: bytes
    def __init__(self, opened: _Optional[_Union[AttendEvent.Opened, _Mapping]] = ..., messages: _Optional[_Union[AttendEvent.Messages, _Mapping]] = ..., missed: _Optional[_Union[Missed, _Mapping]] = ..., subscribed: _Optional[_Union[AttendEvent.Subscribed, _Mapping]] = ..., refused: _Optional[_Union[AttendEvent.Refused, _Mapping]] = ..., attachment: _Optional[bytes] = ...) -> None: ...

class PublishMessagesRequest(_message.Message):
    __slots__ = ("namespace", "exchange", "exchange_id", "metadata_index", "wait_logged", "attachment")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    WAIT_LOGGED_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    exchange: str
    exchange_id: int
    metadata_index: int
    wait_logged: bool
    attachment: bytes
    def __init__(self, namespace: _Optional[str] = ..., exchange: _Optional[str] = ..., exchange_id: _Optional[int] = ..., metadata_index: _Optional[int] = ..., wait_logged: _Optional[bool] = ..., attachment: _Optional[bytes] = ...) -> None: ...

class PublishMessagesResponse(_message.Message):
    __slots__ = ("deliveries", "dropped", "logged", "stream", "partition")
    class Logged(_message.Message):
        __slots__ = ("base_offset", "count", "append_ms")
        BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
        COUNT_FIELD_NUMBER: _ClassVar[int]
        APPEND_MS_FIELD_NUMBER: _ClassVar[int]
        base_offset: int
        count: int
        append_ms: int
        def __init__(self, base_offset: _Optional[int] = ..., count: _Optional[int] = ..., append_ms: _Optional[int] = ...) -> None: ...
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    LOGGED_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    deliveries: int
    dropped: int
    logged: _containers.RepeatedCompositeFieldContainer[PublishMessagesResponse.Logged]
    stream: str
    partition: str
    def __init__(self, deliveries: _Optional[int] = ..., dropped: _Optional[int] = ..., logged: _Optional[_Iterable[_Union[PublishMessagesResponse.Logged, _Mapping]]] = ..., stream: _Optional[str] = ..., partition: _Optional[str] = ...) -> None: ...

class DescribeExchangeRequest(_message.Message):
    __slots__ = ("namespace", "exchange")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    exchange: str
    def __init__(self, namespace: _Optional[str] = ..., exchange: _Optional[str] = ...) -> None: ...

class DescribeExchangeResponse(_message.Message):
    __slots__ = ("published", "deliveries", "dropped", "cut_off", "published_per_s", "deliveries_per_s", "dropped_per_s", "subscriptions", "clients", "listed", "without_topic", "not_logged", "replica_set", "trouble")
    class Subscription(_message.Message):
        __slots__ = ("patterns", "group", "peer", "dropped", "dropped_by_client", "waiting_bytes")
        PATTERNS_FIELD_NUMBER: _ClassVar[int]
        GROUP_FIELD_NUMBER: _ClassVar[int]
        PEER_FIELD_NUMBER: _ClassVar[int]
        DROPPED_FIELD_NUMBER: _ClassVar[int]
        DROPPED_BY_CLIENT_FIELD_NUMBER: _ClassVar[int]
        WAITING_BYTES_FIELD_NUMBER: _ClassVar[int]
        patterns: _containers.RepeatedScalarFieldContainer[str]
        group: str
        peer: str
        dropped: int
        dropped_by_client: int
        waiting_bytes: int
        def __init__(self, patterns: _Optional[_Iterable[str]] = ..., group: _Optional[str] = ..., peer: _Optional[str] = ..., dropped: _Optional[int] = ..., dropped_by_client: _Optional[int] = ..., waiting_bytes: _Optional[int] = ...) -> None: ...
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    CUT_OFF_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_PER_S_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_PER_S_FIELD_NUMBER: _ClassVar[int]
    DROPPED_PER_S_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    LISTED_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_TOPIC_FIELD_NUMBER: _ClassVar[int]
    NOT_LOGGED_FIELD_NUMBER: _ClassVar[int]
    REPLICA_SET_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    published: int
    deliveries: int
    dropped: int
    cut_off: int
    published_per_s: float
    deliveries_per_s: float
    dropped_per_s: float
    subscriptions: int
    clients: int
    listed: _containers.RepeatedCompositeFieldContainer[DescribeExchangeResponse.Subscription]
    without_topic: int
    not_logged: int
    replica_set: str
    trouble: str
    def __init__(self, published: _Optional[int] = ..., deliveries: _Optional[int] = ..., dropped: _Optional[int] = ..., cut_off: _Optional[int] = ..., published_per_s: _Optional[float] = ..., deliveries_per_s: _Optional[float] = ..., dropped_per_s: _Optional[float] = ..., subscriptions: _Optional[int] = ..., clients: _Optional[int] = ..., listed: _Optional[_Iterable[_Union[DescribeExchangeResponse.Subscription, _Mapping]]] = ..., without_topic: _Optional[int] = ..., not_logged: _Optional[int] = ..., replica_set: _Optional[str] = ..., trouble: _Optional[str] = ...) -> None: ...
