from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Value(_message.Message):
    __slots__ = ("data", "text", "json")
    DATA_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    text: str
    json: str
    def __init__(self, data: _Optional[bytes] = ..., text: _Optional[str] = ..., json: _Optional[str] = ...) -> None: ...

class Key(_message.Message):
    __slots__ = ("text", "data")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    text: str
    data: bytes
    def __init__(self, text: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class PublishedRecord(_message.Message):
    __slots__ = ("value", "key", "type", "timestamp_ms", "headers", "id", "partition", "expect_offset", "expect_key_offset")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VALUE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EXPECT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    EXPECT_KEY_OFFSET_FIELD_NUMBER: _ClassVar[int]
    value: Value
    key: Key
    type: str
    timestamp_ms: int
    headers: _containers.ScalarMap[str, str]
    id: str
    partition: str
    expect_offset: int
    expect_key_offset: int
    def __init__(self, value: _Optional[_Union[Value, _Mapping]] = ..., key: _Optional[_Union[Key, _Mapping]] = ..., type: _Optional[str] = ..., timestamp_ms: _Optional[int] = ..., headers: _Optional[_Mapping[str, str]] = ..., id: _Optional[str] = ..., partition: _Optional[str] = ..., expect_offset: _Optional[int] = ..., expect_key_offset: _Optional[int] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("namespace", "stream", "records")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    records: _containers.RepeatedCompositeFieldContainer[PublishedRecord]
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., records: _Optional[_Iterable[_Union[PublishedRecord, _Mapping]]] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    def __init__(self, runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("partition", "base_offset", "count", "append_ms", "duplicate")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    APPEND_MS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    partition: str
    base_offset: int
    count: int
    append_ms: int
    duplicate: bool
    def __init__(self, partition: _Optional[str] = ..., base_offset: _Optional[int] = ..., count: _Optional[int] = ..., append_ms: _Optional[int] = ..., duplicate: _Optional[bool] = ...) -> None: ...

class StoredRecord(_message.Message):
    __slots__ = ("stream", "partition", "offset", "timestamp_ms", "type", "key", "value", "headers", "id", "damage", "raw")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: str
    offset: int
    timestamp_ms: int
    type: str
    key: Key
    value: Value
    headers: _containers.ScalarMap[str, str]
    id: str
    damage: str
    raw: bytes
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[str] = ..., offset: _Optional[int] = ..., timestamp_ms: _Optional[int] = ..., type: _Optional[str] = ..., key: _Optional[_Union[Key, _Mapping]] = ..., value: _Optional[_Union[Value, _Mapping]] = ..., headers: _Optional[_Mapping[str, str]] = ..., id: _Optional[str] = ..., damage: _Optional[str] = ..., raw: _Optional[bytes] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("namespace", "stream", "partition", "start", "limit", "follow")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    partition: str
    start: str
    limit: int
    follow: bool
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., partition: _Optional[str] = ..., start: _Optional[str] = ..., limit: _Optional[int] = ..., follow: _Optional[bool] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("records",)
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[StoredRecord]
    def __init__(self, records: _Optional[_Iterable[_Union[StoredRecord, _Mapping]]] = ...) -> None: ...

class ConsumeRequest(_message.Message):
    __slots__ = ("open", "ack", "nack", "extend", "credit", "flush")
    class Open(_message.Message):
        __slots__ = ("namespace", "stream", "group", "start", "partitions", "max_in_flight", "credit", "order", "ack_deadline_ms", "max_attempts", "dead_letter", "ephemeral", "member")
        NAMESPACE_FIELD_NUMBER: _ClassVar[int]
        STREAM_FIELD_NUMBER: _ClassVar[int]
        GROUP_FIELD_NUMBER: _ClassVar[int]
        START_FIELD_NUMBER: _ClassVar[int]
        PARTITIONS_FIELD_NUMBER: _ClassVar[int]
        MAX_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
        CREDIT_FIELD_NUMBER: _ClassVar[int]
        ORDER_FIELD_NUMBER: _ClassVar[int]
        ACK_DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
        MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
        DEAD_LETTER_FIELD_NUMBER: _ClassVar[int]
        EPHEMERAL_FIELD_NUMBER: _ClassVar[int]
        MEMBER_FIELD_NUMBER: _ClassVar[int]
        namespace: str
        stream: str
        group: str
        start: str
        partitions: _containers.RepeatedScalarFieldContainer[str]
        max_in_flight: int
        credit: int
        order: str
        ack_deadline_ms: int
        max_attempts: int
        dead_letter: str
        ephemeral: bool
        member: str
        def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., group: _Optional[str] = ..., start: _Optional[str] = ..., partitions: _Optional[_Iterable[str]] = ..., max_in_flight: _Optional[int] = ..., credit: _Optional[int] = ..., order: _Optional[str] = ..., ack_deadline_ms: _Optional[int] = ..., max_attempts: _Optional[int] = ..., dead_letter: _Optional[str] = ..., ephemeral: _Optional[bool] = ..., member: _Optional[str] = ...) -> None: ...
    class Ack(_message.Message):
        __slots__ = ("ids",)
        IDS_FIELD_NUMBER: _ClassVar[int]
        ids: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...
    class Nack(_message.Message):
        __slots__ = ("ids", "delay_ms", "reason")
        IDS_FIELD_NUMBER: _ClassVar[int]
        DELAY_MS_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        ids: _containers.RepeatedScalarFieldContainer[int]
        delay_ms: int
        reason: str
        def __init__(self, ids: _Optional[_Iterable[int]] = ..., delay_ms: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...
    class Extend(_message.Message):
        __slots__ = ("ids",)
        IDS_FIELD_NUMBER: _ClassVar[int]
        ids: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...
    class Credit(_message.Message):
        __slots__ = ("records",)
        RECORDS_FIELD_NUMBER: _ClassVar[int]
        records: int
        def __init__(self, records: _Optional[int] = ...) -> None: ...
    class Flush(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    open: ConsumeRequest.Open
    ack: ConsumeRequest.Ack
    nack: ConsumeRequest.Nack
    extend: ConsumeRequest.Extend
    credit: ConsumeRequest.Credit
    flush: ConsumeRequest.Flush
    def __init__(self, open: _Optional[_Union[ConsumeRequest.Open, _Mapping]] = ..., ack: _Optional[_Union[ConsumeRequest.Ack, _Mapping]] = ..., nack: _Optional[_Union[ConsumeRequest.Nack, _Mapping]] = ..., extend: _Optional[_Union[ConsumeRequest.Extend, _Mapping]] = ..., credit: _Optional[_Union[ConsumeRequest.Credit, _Mapping]] = ..., flush: _Optional[_Union[ConsumeRequest.Flush, _Mapping]] = ...) -> None: ...

class ConsumeEvent(_message.Message):
    __slots__ = ("opened", "delivery", "flushed")
    class Opened(_message.Message):
        __slots__ = ("subscription",)
        SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
        subscription: str
        def __init__(self, subscription: _Optional[str] = ...) -> None: ...
    class Delivery(_message.Message):
        __slots__ = ("id", "record", "attempt")
        ID_FIELD_NUMBER: _ClassVar[int]
        RECORD_FIELD_NUMBER: _ClassVar[int]
        ATTEMPT_FIELD_NUMBER: _ClassVar[int]
        id: int
        record: StoredRecord
        attempt: int
        def __init__(self, id: _Optional[int] = ..., record: _Optional[_Union[StoredRecord, _Mapping]] = ..., attempt: _Optional[int] = ...) -> None: ...
    class Flushed(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    OPENED_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_FIELD_NUMBER: _ClassVar[int]
    opened: ConsumeEvent.Opened
    delivery: ConsumeEvent.Delivery
    flushed: ConsumeEvent.Flushed
    def __init__(self, opened: _Optional[_Union[ConsumeEvent.Opened, _Mapping]] = ..., delivery: _Optional[_Union[ConsumeEvent.Delivery, _Mapping]] = ..., flushed: _Optional[_Union[ConsumeEvent.Flushed, _Mapping]] = ...) -> None: ...

class StatementRequest(_message.Message):
    __slots__ = ("begin", "publish", "ack", "commit", "rollback")
    class Begin(_message.Message):
        __slots__ = ("namespace", "driver")
        NAMESPACE_FIELD_NUMBER: _ClassVar[int]
        DRIVER_FIELD_NUMBER: _ClassVar[int]
        namespace: str
        driver: str
        def __init__(self, namespace: _Optional[str] = ..., driver: _Optional[str] = ...) -> None: ...
    class Ack(_message.Message):
        __slots__ = ("subscription", "ids")
        SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
        IDS_FIELD_NUMBER: _ClassVar[int]
        subscription: str
        ids: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, subscription: _Optional[str] = ..., ids: _Optional[_Iterable[int]] = ...) -> None: ...
    class Commit(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class Rollback(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_FIELD_NUMBER: _ClassVar[int]
    begin: StatementRequest.Begin
    publish: PublishRequest
    ack: StatementRequest.Ack
    commit: StatementRequest.Commit
    rollback: StatementRequest.Rollback
    def __init__(self, begin: _Optional[_Union[StatementRequest.Begin, _Mapping]] = ..., publish: _Optional[_Union[PublishRequest, _Mapping]] = ..., ack: _Optional[_Union[StatementRequest.Ack, _Mapping]] = ..., commit: _Optional[_Union[StatementRequest.Commit, _Mapping]] = ..., rollback: _Optional[_Union[StatementRequest.Rollback, _Mapping]] = ...) -> None: ...

class StatementEvent(_message.Message):
    __slots__ = ("accepted", "committed", "rolled_back", "committing")
    class Accepted(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class Committing(_message.Message):
        __slots__ = ("transaction",)
        TRANSACTION_FIELD_NUMBER: _ClassVar[int]
        transaction: str
        def __init__(self, transaction: _Optional[str] = ...) -> None: ...
    class Committed(_message.Message):
        __slots__ = ("transaction", "receipts")
        TRANSACTION_FIELD_NUMBER: _ClassVar[int]
        RECEIPTS_FIELD_NUMBER: _ClassVar[int]
        transaction: str
        receipts: _containers.RepeatedCompositeFieldContainer[StatementEvent.Receipt]
        def __init__(self, transaction: _Optional[str] = ..., receipts: _Optional[_Iterable[_Union[StatementEvent.Receipt, _Mapping]]] = ...) -> None: ...
    class RolledBack(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class Receipt(_message.Message):
        __slots__ = ("stream", "partition", "offset")
        STREAM_FIELD_NUMBER: _ClassVar[int]
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        stream: str
        partition: str
        offset: int
        def __init__(self, stream: _Optional[str] = ..., partition: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    COMMITTING_FIELD_NUMBER: _ClassVar[int]
    accepted: StatementEvent.Accepted
    committed: StatementEvent.Committed
    rolled_back: StatementEvent.RolledBack
    committing: StatementEvent.Committing
    def __init__(self, accepted: _Optional[_Union[StatementEvent.Accepted, _Mapping]] = ..., committed: _Optional[_Union[StatementEvent.Committed, _Mapping]] = ..., rolled_back: _Optional[_Union[StatementEvent.RolledBack, _Mapping]] = ..., committing: _Optional[_Union[StatementEvent.Committing, _Mapping]] = ...) -> None: ...

class TransactionOutcomeRequest(_message.Message):
    __slots__ = ("transaction",)
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    transaction: str
    def __init__(self, transaction: _Optional[str] = ...) -> None: ...

class TransactionOutcomeResponse(_message.Message):
    __slots__ = ("state", "unfinished")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNSPECIFIED: _ClassVar[TransactionOutcomeResponse.State]
        OPEN: _ClassVar[TransactionOutcomeResponse.State]
        COMMITTED: _ClassVar[TransactionOutcomeResponse.State]
        ABORTED: _ClassVar[TransactionOutcomeResponse.State]
        FORGOTTEN: _ClassVar[TransactionOutcomeResponse.State]
    UNSPECIFIED: TransactionOutcomeResponse.State
    OPEN: TransactionOutcomeResponse.State
    COMMITTED: TransactionOutcomeResponse.State
    ABORTED: TransactionOutcomeResponse.State
    FORGOTTEN: TransactionOutcomeResponse.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    state: TransactionOutcomeResponse.State
    unfinished: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, state: _Optional[_Union[TransactionOutcomeResponse.State, str]] = ..., unfinished: _Optional[_Iterable[str]] = ...) -> None: ...
