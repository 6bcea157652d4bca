from hadron.wire._pb import options_pb2 as _options_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SchemaObject(_message.Message):
    __slots__ = ("kind", "namespace", "name", "spec_json", "id", "metadata_index")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    kind: str
    namespace: str
    name: str
    spec_json: str
    id: int
    metadata_index: int
    def __init__(self, kind: _Optional[str] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., spec_json: _Optional[str] = ..., id: _Optional[int] = ..., metadata_index: _Optional[int] = ...) -> None: ...

class ApplySchemaRequest(_message.Message):
    __slots__ = ("objects", "dry_run", "allow_destructive", "since_index")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    ALLOW_DESTRUCTIVE_FIELD_NUMBER: _ClassVar[int]
    SINCE_INDEX_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[SchemaObject]
    dry_run: bool
    allow_destructive: bool
    since_index: int
    def __init__(self, objects: _Optional[_Iterable[_Union[SchemaObject, _Mapping]]] = ..., dry_run: _Optional[bool] = ..., allow_destructive: _Optional[bool] = ..., since_index: _Optional[int] = ...) -> None: ...

class ApplySchemaResponse(_message.Message):
    __slots__ = ("changes", "metadata_index")
    class Change(_message.Message):
        __slots__ = ("action", "before", "after")
        ACTION_FIELD_NUMBER: _ClassVar[int]
        BEFORE_FIELD_NUMBER: _ClassVar[int]
        AFTER_FIELD_NUMBER: _ClassVar[int]
        action: str
        before: SchemaObject
        after: SchemaObject
        def __init__(self, action: _Optional[str] = ..., before: _Optional[_Union[SchemaObject, _Mapping]] = ..., after: _Optional[_Union[SchemaObject, _Mapping]] = ...) -> None: ...
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[ApplySchemaResponse.Change]
    metadata_index: int
    def __init__(self, changes: _Optional[_Iterable[_Union[ApplySchemaResponse.Change, _Mapping]]] = ..., metadata_index: _Optional[int] = ...) -> None: ...

class GetObjectsRequest(_message.Message):
    __slots__ = ("kind", "namespace", "name", "min_index", "max_wait_ms", "limit", "after_id", "latest")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MIN_INDEX_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_ID_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    kind: str
    namespace: str
    name: str
    min_index: int
    max_wait_ms: int
    limit: int
    after_id: int
    latest: bool
    def __init__(self, kind: _Optional[str] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., min_index: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., limit: _Optional[int] = ..., after_id: _Optional[int] = ..., latest: _Optional[bool] = ...) -> None: ...

class GetObjectsResponse(_message.Message):
    __slots__ = ("objects", "metadata_index", "more")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[SchemaObject]
    metadata_index: int
    more: bool
    def __init__(self, objects: _Optional[_Iterable[_Union[SchemaObject, _Mapping]]] = ..., metadata_index: _Optional[int] = ..., more: _Optional[bool] = ...) -> None: ...

class DeleteObjectsRequest(_message.Message):
    __slots__ = ("names", "dry_run", "allow_destructive", "since_index")
    class Name(_message.Message):
        __slots__ = ("kind", "namespace", "name", "id")
        KIND_FIELD_NUMBER: _ClassVar[int]
        NAMESPACE_FIELD_NUMBER: _ClassVar[int]
        NAME_FIELD_NUMBER: _ClassVar[int]
        ID_FIELD_NUMBER: _ClassVar[int]
        kind: str
        namespace: str
        name: str
        id: int
        def __init__(self, kind: _Optional[str] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., id: _Optional[int] = ...) -> None: ...
    NAMES_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    ALLOW_DESTRUCTIVE_FIELD_NUMBER: _ClassVar[int]
    SINCE_INDEX_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedCompositeFieldContainer[DeleteObjectsRequest.Name]
    dry_run: bool
    allow_destructive: bool
    since_index: int
    def __init__(self, names: _Optional[_Iterable[_Union[DeleteObjectsRequest.Name, _Mapping]]] = ..., dry_run: _Optional[bool] = ..., allow_destructive: _Optional[bool] = ..., since_index: _Optional[int] = ...) -> None: ...

class DeleteObjectsResponse(_message.Message):
    __slots__ = ("deleted", "metadata_index")
    DELETED_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    deleted: _containers.RepeatedCompositeFieldContainer[SchemaObject]
    metadata_index: int
    def __init__(self, deleted: _Optional[_Iterable[_Union[SchemaObject, _Mapping]]] = ..., metadata_index: _Optional[int] = ...) -> None: ...

class DeletedObject(_message.Message):
    __slots__ = ("id", "kind", "namespace", "name", "metadata_index")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    id: int
    kind: str
    namespace: str
    name: str
    metadata_index: int
    def __init__(self, id: _Optional[int] = ..., kind: _Optional[str] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ..., metadata_index: _Optional[int] = ...) -> None: ...

class RegisteredSet(_message.Message):
    __slots__ = ("name", "uuid", "epoch", "metadata_index")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    name: str
    uuid: bytes
    epoch: int
    metadata_index: int
    def __init__(self, name: _Optional[str] = ..., uuid: _Optional[bytes] = ..., epoch: _Optional[int] = ..., metadata_index: _Optional[int] = ...) -> None: ...

class SchemaChanges(_message.Message):
    __slots__ = ("from_index", "to_index", "is_whole", "objects", "deleted", "replica_sets", "more_follows", "lost")
    FROM_INDEX_FIELD_NUMBER: _ClassVar[int]
    TO_INDEX_FIELD_NUMBER: _ClassVar[int]
    IS_WHOLE_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    REPLICA_SETS_FIELD_NUMBER: _ClassVar[int]
    MORE_FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    from_index: int
    to_index: int
    is_whole: bool
    objects: _containers.RepeatedCompositeFieldContainer[SchemaObject]
    deleted: _containers.RepeatedCompositeFieldContainer[DeletedObject]
    replica_sets: _containers.RepeatedCompositeFieldContainer[RegisteredSet]
    more_follows: bool
    lost: _containers.RepeatedCompositeFieldContainer[LostRange]
    def __init__(self, from_index: _Optional[int] = ..., to_index: _Optional[int] = ..., is_whole: _Optional[bool] = ..., objects: _Optional[_Iterable[_Union[SchemaObject, _Mapping]]] = ..., deleted: _Optional[_Iterable[_Union[DeletedObject, _Mapping]]] = ..., replica_sets: _Optional[_Iterable[_Union[RegisteredSet, _Mapping]]] = ..., more_follows: _Optional[bool] = ..., lost: _Optional[_Iterable[_Union[LostRange, _Mapping]]] = ...) -> None: ...

class LostRange(_message.Message):
    __slots__ = ("end_index", "above_index")
    END_INDEX_FIELD_NUMBER: _ClassVar[int]
    ABOVE_INDEX_FIELD_NUMBER: _ClassVar[int]
    end_index: int
    above_index: int
    def __init__(self, end_index: _Optional[int] = ..., above_index: _Optional[int] = ...) -> None: ...

class AdoptSchemaRequest(_message.Message):
    __slots__ = ("cluster", "metadata", "uuid", "epoch", "changes", "part", "is_last", "refusal", "lost")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    metadata: str
    uuid: bytes
    epoch: int
    changes: SchemaChanges
    part: int
    is_last: bool
    refusal: str
    lost: _containers.RepeatedCompositeFieldContainer[LostRange]
    def __init__(self, cluster: _Optional[str] = ..., metadata: _Optional[str] = ..., uuid: _Optional[bytes] = ..., epoch: _Optional[int] = ..., changes: _Optional[_Union[SchemaChanges, _Mapping]] = ..., part: _Optional[int] = ..., is_last: _Optional[bool] = ..., refusal: _Optional[str] = ..., lost: _Optional[_Iterable[_Union[LostRange, _Mapping]]] = ...) -> None: ...

class AdoptSchemaResponse(_message.Message):
    __slots__ = ("replica_set", "uuid", "epoch", "metadata_index", "source", "has_lost")
    REPLICA_SET_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    HAS_LOST_FIELD_NUMBER: _ClassVar[int]
    replica_set: str
    uuid: bytes
    epoch: int
    metadata_index: int
    source: bytes
    has_lost: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, replica_set: _Optional[str] = ..., uuid: _Optional[bytes] = ..., epoch: _Optional[int] = ..., metadata_index: _Optional[int] = ..., source: _Optional[bytes] = ..., has_lost: _Optional[_Iterable[str]] = ...) -> None: ...

class WatchSchemaRequest(_message.Message):
    __slots__ = ("from_index",)
    FROM_INDEX_FIELD_NUMBER: _ClassVar[int]
    from_index: int
    def __init__(self, from_index: _Optional[int] = ...) -> None: ...
