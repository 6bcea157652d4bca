from hadron.wire._pb import options_pb2 as _options_pb2
from hadron.wire._pb import replication_pb2 as _replication_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReadCopyRequest(_message.Message):
    __slots__ = ("lsn",)
    LSN_FIELD_NUMBER: _ClassVar[int]
    lsn: int
    def __init__(self, lsn: _Optional[int] = ...) -> None: ...

class ReadCopyResponse(_message.Message):
    __slots__ = ("previous", "entry")
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    previous: _replication_pb2.LogPosition
    entry: _replication_pb2.Entry
    def __init__(self, previous: _Optional[_Union[_replication_pb2.LogPosition, _Mapping]] = ..., entry: _Optional[_Union[_replication_pb2.Entry, _Mapping]] = ...) -> None: ...
