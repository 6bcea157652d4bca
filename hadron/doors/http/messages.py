"""Messages of the wire as JSON: every field, numbers as numbers."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message


def plain(message: Message) -> dict[str, Any]:
    """By the fields' own names; bytes in hex digits. What may be missing, and is, is left out."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            found[field.name] = [_plain_value(field, each) for each in value]
        elif not field.has_presence or message.HasField(field.name):
            found[field.name] = _plain_value(field, value)
    return found


def _plain_value(field: Any, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return plain(value)
    if field.type == FieldDescriptor.TYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return known.name.removeprefix("ORDER_").lower() if known is not None else value
    return value.hex() if isinstance(value, bytes) else value
