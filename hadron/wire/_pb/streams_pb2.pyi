from hadron.wire._pb import common_pb2 as _common_pb2
from hadron.wire._pb import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Acks(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACKS_MAJORITY: _ClassVar[Acks]
    ACKS_LEADER: _ClassVar[Acks]
    ACKS_ALL: _ClassVar[Acks]
ACKS_MAJORITY: Acks
ACKS_LEADER: Acks
ACKS_ALL: Acks

class ProduceRequest(_message.Message):
    __slots__ = ("namespace", "stream", "partition", "acks", "stream_id", "metadata_index", "expect_offset", "expect_key_offset", "last_sequence", "attachment")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    EXPECT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    EXPECT_KEY_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    partition: str
    acks: Acks
    stream_id: int
    metadata_index: int
    expect_offset: int
    expect_key_offset: int
    last_sequence: int
    attachment: bytes
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., partition: _Optional[str] = ..., acks: _Optional[_Union[Acks, str]] = ..., stream_id: _Optional[int] = ..., metadata_index: _Optional[int] = ..., expect_offset: _Optional[int] = ..., expect_key_offset: _Optional[int] = ..., last_sequence: _Optional[int] = ..., attachment: _Optional[bytes] = ...) -> None: ...

class ProduceResponse(_message.Message):
    __slots__ = ("base_offset", "append_ms", "duplicate", "mismatch")
    class Mismatch(_message.Message):
        __slots__ = ("message", "hint", "expected", "actual")
        MESSAGE_FIELD_NUMBER: _ClassVar[int]
        HINT_FIELD_NUMBER: _ClassVar[int]
        EXPECTED_FIELD_NUMBER: _ClassVar[int]
        ACTUAL_FIELD_NUMBER: _ClassVar[int]
        message: str
        hint: str
        expected: int
        actual: int
        def __init__(self, message: _Optional[str] = ..., hint: _Optional[str] = ..., expected: _Optional[int] = ..., actual: _Optional[int] = ...) -> None: ...
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    APPEND_MS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    MISMATCH_FIELD_NUMBER: _ClassVar[int]
    base_offset: int
    append_ms: int
    duplicate: bool
    mismatch: ProduceResponse.Mismatch
    def __init__(self, base_offset: _Optional[int] = ..., append_ms: _Optional[int] = ..., duplicate: _Optional[bool] = ..., mismatch: _Optional[_Union[ProduceResponse.Mismatch, _Mapping]] = ...) -> None: ...

class ClaimProducerRequest(_message.Message):
    __slots__ = ("namespace", "stream", "partition", "stream_id", "metadata_index", "name", "after", "token")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    partition: str
    stream_id: int
    metadata_index: int
    name: str
    after: int
    token: bytes
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., partition: _Optional[str] = ..., stream_id: _Optional[int] = ..., metadata_index: _Optional[int] = ..., name: _Optional[str] = ..., after: _Optional[int] = ..., token: _Optional[bytes] = ...) -> None: ...

class ClaimProducerResponse(_message.Message):
    __slots__ = ("claim", "last_sequence")
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    claim: int
    last_sequence: int
    def __init__(self, claim: _Optional[int] = ..., last_sequence: _Optional[int] = ...) -> None: ...

class LatestRequest(_message.Message):
    __slots__ = ("namespace", "stream", "partition", "stream_id", "metadata_index", "key_hash")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    KEY_HASH_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    partition: str
    stream_id: int
    metadata_index: int
    key_hash: int
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., partition: _Optional[str] = ..., stream_id: _Optional[int] = ..., metadata_index: _Optional[int] = ..., key_hash: _Optional[int] = ...) -> None: ...

class LatestResponse(_message.Message):
    __slots__ = ("batch", "offset", "attachment")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    batch: _common_pb2.BatchInfo
    offset: int
    attachment: bytes
    def __init__(self, batch: _Optional[_Union[_common_pb2.BatchInfo, _Mapping]] = ..., offset: _Optional[int] = ..., attachment: _Optional[bytes] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("namespace", "stream", "partition", "offset", "max_bytes", "max_wait_ms", "stream_id", "metadata_index", "after", "exists")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    EXISTS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    partition: str
    offset: int
    max_bytes: int
    max_wait_ms: int
    stream_id: int
    metadata_index: int
    after: _common_pb2.Ballot
    exists: bool
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., partition: _Optional[str] = ..., offset: _Optional[int] = ..., max_bytes: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., stream_id: _Optional[int] = ..., metadata_index: _Optional[int] = ..., after: _Optional[_Union[_common_pb2.Ballot, _Mapping]] = ..., exists: _Optional[bool] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("batches", "first_offset", "next_offset", "attachment")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[_common_pb2.BatchInfo]
    first_offset: int
    next_offset: int
    attachment: bytes
    def __init__(self, batches: _Optional[_Iterable[_Union[_common_pb2.BatchInfo, _Mapping]]] = ..., first_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., attachment: _Optional[bytes] = ...) -> None: ...

class OffsetsRequest(_message.Message):
    __slots__ = ("namespace", "stream", "partition", "at_ms", "stream_id", "metadata_index", "before", "with_bytes", "confirmed")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    WITH_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    partition: str
    at_ms: int
    stream_id: int
    metadata_index: int
    before: int
    with_bytes: bool
    confirmed: bool
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., partition: _Optional[str] = ..., at_ms: _Optional[int] = ..., stream_id: _Optional[int] = ..., metadata_index: _Optional[int] = ..., before: _Optional[int] = ..., with_bytes: _Optional[bool] = ..., confirmed: _Optional[bool] = ...) -> None: ...

class OffsetsResponse(_message.Message):
    __slots__ = ("partitions",)
    class Partition(_message.Message):
        __slots__ = ("partition", "first_offset", "next_offset", "at_offset", "ballot", "bytes")
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
        NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
        AT_OFFSET_FIELD_NUMBER: _ClassVar[int]
        BALLOT_FIELD_NUMBER: _ClassVar[int]
        BYTES_FIELD_NUMBER: _ClassVar[int]
        partition: str
        first_offset: int
        next_offset: int
        at_offset: int
        ballot: _common_pb2.Ballot
        bytes: int
        def __init__(self, partition: _Optional[str] = ..., first_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., at_offset: _Optional[int] = ..., ballot: _Optional[_Union[_common_pb2.Ballot, _Mapping]] = ..., bytes: _Optional[int] = ...) -> None: ...
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[OffsetsResponse.Partition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[OffsetsResponse.Partition, _Mapping]]] = ...) -> None: ...
