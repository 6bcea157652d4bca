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
    __slots__ = ("objects", "dry_run", "allow_destructive")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    ALLOW_DESTRUCTIVE_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[SchemaObject]
    dry_run: bool
    allow_destructive: bool
    def __init__(self, objects: _Optional[_Iterable[_Union[SchemaObject, _Mapping]]] = ..., dry_run: _Optional[bool] = ..., allow_destructive: _Optional[bool] = ...) -> None: ...

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
    __slots__ = ("kind", "namespace", "name")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    kind: str
    namespace: str
    name: str
    def __init__(self, kind: _Optional[str] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class GetObjectsResponse(_message.Message):
    __slots__ = ("objects", "metadata_index")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    METADATA_INDEX_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[SchemaObject]
    metadata_index: int
    def __init__(self, objects: _Optional[_Iterable[_Union[SchemaObject, _Mapping]]] = ..., metadata_index: _Optional[int] = ...) -> None: ...
