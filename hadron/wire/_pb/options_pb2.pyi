from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

class Audience(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AUDIENCE_UNSPECIFIED: _ClassVar[Audience]
    CLIENTS: _ClassVar[Audience]
    NEIGHBOURS: _ClassVar[Audience]
    MEMBERS: _ClassVar[Audience]

class Scope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCOPE_UNSPECIFIED: _ClassVar[Scope]
    READ: _ClassVar[Scope]
    WRITE: _ClassVar[Scope]
    CONSUME: _ClassVar[Scope]
    DECLARE: _ClassVar[Scope]
    OPERATE: _ClassVar[Scope]
    MEMBER: _ClassVar[Scope]
AUDIENCE_UNSPECIFIED: Audience
CLIENTS: Audience
NEIGHBOURS: Audience
MEMBERS: Audience
SCOPE_UNSPECIFIED: Scope
READ: Scope
WRITE: Scope
CONSUME: Scope
DECLARE: Scope
OPERATE: Scope
MEMBER: Scope
METHOD_NUMBER_FIELD_NUMBER: _ClassVar[int]
method_number: _descriptor.FieldDescriptor
AUDIENCE_FIELD_NUMBER: _ClassVar[int]
audience: _descriptor.FieldDescriptor
SCOPE_FIELD_NUMBER: _ClassVar[int]
scope: _descriptor.FieldDescriptor
