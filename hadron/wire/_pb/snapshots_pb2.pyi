from hadron.wire._pb import common_pb2 as _common_pb2
from hadron.wire._pb import options_pb2 as _options_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OpenSnapshotRequest(_message.Message):
    __slots__ = ("min_lsn", "hash", "promised", "leads")
    MIN_LSN_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    LEADS_FIELD_NUMBER: _ClassVar[int]
    min_lsn: int
    hash: str
    promised: _common_pb2.Ballot
    leads: bool
    def __init__(self, min_lsn: _Optional[int] = ..., hash: _Optional[str] = ..., promised: _Optional[_Union[_common_pb2.Ballot, _Mapping]] = ..., leads: _Optional[bool] = ...) -> None: ...

class OpenSnapshotResponse(_message.Message):
    __slots__ = ("manifest",)
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    manifest: bytes
    def __init__(self, manifest: _Optional[bytes] = ...) -> None: ...

class ReadSnapshotRequest(_message.Message):
    __slots__ = ("hash", "offset", "max_bytes")
    HASH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    hash: str
    offset: int
    max_bytes: int
    def __init__(self, hash: _Optional[str] = ..., offset: _Optional[int] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class ReadSnapshotResponse(_message.Message):
    __slots__ = ("hash",)
    HASH_FIELD_NUMBER: _ClassVar[int]
    hash: bytes
    def __init__(self, hash: _Optional[bytes] = ...) -> None: ...
