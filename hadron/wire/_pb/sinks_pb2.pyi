from hadron.wire._pb import common_pb2 as _common_pb2
from hadron.wire._pb import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StageRequest(_message.Message):
    __slots__ = ("stream_id", "metadata_index", "write_id", "attempt", "first", "lengths", "kept_ms", "label", "attachment")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    WRITE_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    KEPT_MS_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENT_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    metadata_index: int
    write_id: bytes
    attempt: bytes
    first: int
    lengths: _containers.RepeatedScalarFieldContainer[int]
    kept_ms: int
    label: str
    attachment: bytes
    def __init__(self, stream_id: _Optional[int] = ..., metadata_index: _Optional[int] = ..., write_id: _Optional[bytes] = ..., attempt: _Optional[bytes] = ..., first: _Optional[int] = ..., lengths: _Optional[_Iterable[int]] = ..., kept_ms: _Optional[int] = ..., label: _Optional[str] = ..., attachment: _Optional[bytes] = ...) -> None: ...

class GiveUpStagedRequest(_message.Message):
    __slots__ = ("write_id",)
    WRITE_ID_FIELD_NUMBER: _ClassVar[int]
    write_id: bytes
    def __init__(self, write_id: _Optional[bytes] = ...) -> None: ...

class ListSinksRequest(_message.Message):
    __slots__ = ("namespace", "name")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ListSinksResponse(_message.Message):
    __slots__ = ("sinks",)
    class Sink(_message.Message):
        __slots__ = ("name", "query", "batch", "published_ms")
        NAME_FIELD_NUMBER: _ClassVar[int]
        QUERY_FIELD_NUMBER: _ClassVar[int]
        BATCH_FIELD_NUMBER: _ClassVar[int]
        PUBLISHED_MS_FIELD_NUMBER: _ClassVar[int]
        name: str
        query: str
        batch: int
        published_ms: int
        def __init__(self, name: _Optional[str] = ..., query: _Optional[str] = ..., batch: _Optional[int] = ..., published_ms: _Optional[int] = ...) -> None: ...
    SINKS_FIELD_NUMBER: _ClassVar[int]
    sinks: _containers.RepeatedCompositeFieldContainer[ListSinksResponse.Sink]
    def __init__(self, sinks: _Optional[_Iterable[_Union[ListSinksResponse.Sink, _Mapping]]] = ...) -> None: ...

class ListStagedRequest(_message.Message):
    __slots__ = ("after",)
    AFTER_FIELD_NUMBER: _ClassVar[int]
    after: int
    def __init__(self, after: _Optional[int] = ...) -> None: ...

class ListStagedResponse(_message.Message):
    __slots__ = ("attempts", "next")
    class Attempt(_message.Message):
        __slots__ = ("write_id", "attempt", "label", "stream_id", "batches", "records", "bytes", "age_ms", "left_ms")
        WRITE_ID_FIELD_NUMBER: _ClassVar[int]
        ATTEMPT_FIELD_NUMBER: _ClassVar[int]
        LABEL_FIELD_NUMBER: _ClassVar[int]
        STREAM_ID_FIELD_NUMBER: _ClassVar[int]
        BATCHES_FIELD_NUMBER: _ClassVar[int]
        RECORDS_FIELD_NUMBER: _ClassVar[int]
        BYTES_FIELD_NUMBER: _ClassVar[int]
        AGE_MS_FIELD_NUMBER: _ClassVar[int]
        LEFT_MS_FIELD_NUMBER: _ClassVar[int]
        write_id: bytes
        attempt: bytes
        label: str
        stream_id: int
        batches: int
        records: int
        bytes: int
        age_ms: int
        left_ms: int
        def __init__(self, write_id: _Optional[bytes] = ..., attempt: _Optional[bytes] = ..., label: _Optional[str] = ..., stream_id: _Optional[int] = ..., batches: _Optional[int] = ..., records: _Optional[int] = ..., bytes: _Optional[int] = ..., age_ms: _Optional[int] = ..., left_ms: _Optional[int] = ...) -> None: ...
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    attempts: _containers.RepeatedCompositeFieldContainer[ListStagedResponse.Attempt]
    next: int
    def __init__(self, attempts: _Optional[_Iterable[_Union[ListStagedResponse.Attempt, _Mapping]]] = ..., next: _Optional[int] = ...) -> None: ...
