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
AUDIENCE_UNSPECIFIED: Audience
CLIENTS: Audience
NEIGHBOURS: Audience
MEMBERS: Audience
METHOD_NUMBER_FIELD_NUMBER: _ClassVar[int]
method_number: _descriptor.FieldDescriptor
AUDIENCE_FIELD_NUMBER: _ClassVar[int]
audience: _descriptor.FieldDescriptor
