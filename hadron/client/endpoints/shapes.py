"""Types of handlers and answers in words, for who has sent a value that is none of them. Pure."""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import msgspec.inspect

_MOST_FIELDS: Final = 20
"""That are named: a hint is read, and goes over the wire."""

_Field = tuple[str, str, bool]
"""Its name, its type in words, and whether it may be left out."""


def described(kind: Any) -> str:
    """`Order: amount (int); optional: item (str)`; of plain types their name alone."""
    name, fields = type_name(kind), list(_fields_within(kind))
    needed = [f"{field} ({of})" for field, of, may_lack in fields if not may_lack]
    others = [f"{field} ({of})" for field, of, may_lack in fields if may_lack]
    parts = [_listed(needed)] if needed else []
    parts += [f"optional: {_listed(others)}"] if others else []
    return f"{name}: {'; '.join(parts)}" if parts else name


def type_name(kind: Any) -> str:
    """As a program's annotation has it: `Order`, `int | None`, `list[Order]`."""
    if isinstance(kind, type) and not typing.get_args(kind):
        return kind.__name__
    arguments = [type_name(each) for each in typing.get_args(kind)]
    origin = typing.get_origin(kind)
    if isinstance(origin, type) and arguments and origin.__module__ != "types":
        return f"{origin.__name__}[{', '.join(arguments)}]"
    return " | ".join(arguments).replace("NoneType", "None") or str(kind).replace("typing.", "")


def why_unusable(kind: Any) -> str:
    """What is wrong with a type that no value can be made into; "" where nothing is."""
    try:
        return _why_unusable(kind)
    except TypeError:
        # It has no hash: a type with metadata, or none at all.
        return _why_unusable.__wrapped__(kind)


@functools.lru_cache(256)
def _why_unusable(kind: Any) -> str:
    if callable(getattr(kind, "model_validate", None)):
        # A model of pydantic, known by what it can do: the library is not needed here.
        return ""
    try:
        msgspec.json.Decoder(kind)
    except (TypeError, NameError) as error:
        return str(error)
    return ""


def _listed(fields: list[str]) -> str:
    more = len(fields) - _MOST_FIELDS
    return ", ".join(fields[:_MOST_FIELDS]) + (f" and {more} more" if more > 0 else "")


def _fields_within(kind: Any) -> Iterator[_Field]:
    """Of the type; or, where it has none, of the first in it that has: of `list[Order]`, those of
    an `Order`."""
    fields = list(_fields(kind))
    for inner in typing.get_args(kind):
        fields = fields or list(_fields_within(inner))
    yield from fields


def _fields(kind: Any) -> Iterator[_Field]:
    models = getattr(kind, "model_fields", None)
    if isinstance(models, dict):
        # A model of pydantic, known by what it has: the library is not needed here.
        for name, field in models.items():
            yield field.alias or name, type_name(field.annotation), not field.is_required()
        return
    try:
        info = msgspec.inspect.type_info(kind)
        hints = typing.get_type_hints(kind)
    except (TypeError, NameError):
        return
    for each in getattr(info, "fields", ()):
        of = type_name(hints[each.name]) if each.name in hints else "anything"
        yield each.encode_name, of, not each.required
