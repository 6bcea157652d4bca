from hadron.wire._pb import options_pb2 as _options_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ForwardRequest(_message.Message):
    __slots__ = ("replica_set", "method", "message", "caller")
    class Caller(_message.Message):
        __slots__ = ("peer", "replica_set", "node")
        PEER_FIELD_NUMBER: _ClassVar[int]
        REPLICA_SET_FIELD_NUMBER: _ClassVar[int]
        NODE_FIELD_NUMBER: _ClassVar[int]
        peer: str
        replica_set: str
        node: str
        def __init__(self, peer: _Optional[str] = ..., replica_set: _Optional[str] = ..., node: _Optional[str] = ...) -> None: ...
    REPLICA_SET_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    replica_set: str
    method: int
    message: bytes
    caller: ForwardRequest.Caller
    def __init__(self, replica_set: _Optional[str] = ..., method: _Optional[int] = ..., message: _Optional[bytes] = ..., caller: _Optional[_Union[ForwardRequest.Caller, _Mapping]] = ...) -> None: ...

class ForwardResponse(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: bytes
    def __init__(self, message: _Optional[bytes] = ...) -> None: ...
