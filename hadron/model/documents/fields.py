"""What stands in a document beside its name, taken from the specification that it makes.

The structs of `schema` declare each field once: its key is the field's name without the unit of a
quantity, its type says how it is written, and its default is what is left out. So nothing is to be
added here with a field, nor with a kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import inspect

from hadron.model.marked_fields import Fields
from hadron.model.units import Quantity

_NEVER_WRITTEN: Final = ("written",)
"""What a specification keeps of how its document was written."""


@dataclass(frozen=True, slots=True)
class _Field:
    """
    Attributes:
        blank: what the field has where a document says nothing.
        inner: the struct of a nested mapping, or of each one in a list.
        is_required: shown always, as a field that has no default.
    """

    name: str
    key: str
    blank: Any
    quantity: Quantity | None
    inner: type[msgspec.Struct] | None
    is_list: bool
    is_optional: bool
    is_whole: bool
    is_flag: bool
    is_mapping: bool
    is_required: bool


@cache
def _fields_of(cls: type[msgspec.Struct]) -> tuple[_Field, ...]:
    """In the order in which they are read and shown."""
    described = inspect.type_info(cls)
    assert isinstance(described, inspect.StructType)
    return tuple(_field(each) for each in described.fields if each.name not in _NEVER_WRITTEN)


def _field(declared: inspect.Field) -> _Field:
    what = declared.type
    quantity: Quantity | None = None
    if isinstance(what, inspect.Metadata):
        quantity = (what.extra or {})["quantity"]
        what = what.type
    unit = quantity.unit if quantity is not None else ""
    assert declared.name.endswith("_ms") == (unit == "_ms"), f"the unit of {declared.name}"
    is_optional = isinstance(what, inspect.UnionType)
    if isinstance(what, inspect.UnionType):
        (what,) = (each for each in what.types if not isinstance(each, inspect.NoneType))
    is_list = isinstance(what, inspect.VarTupleType)
    item = what.item_type if isinstance(what, inspect.VarTupleType) else what
    inner = item.cls if isinstance(item, inspect.StructType) else None
    is_mapping = isinstance(item, inspect.DictType) and all(
        isinstance(each, inspect.StrType) for each in (item.key_type, item.value_type)
    )
    simple = inspect.StrType | inspect.IntType | inspect.BoolType
    assert inner or is_mapping or isinstance(item, simple), declared
    blank: Any
    if is_mapping:
        blank = {}
    elif not declared.required:
        blank = declared.default
    elif is_list:
        blank = ()
    elif inner is not None:
        blank = _blank(inner)
    elif isinstance(item, inspect.BoolType):
        blank = False
    else:
        blank = 0 if isinstance(item, inspect.IntType) else ""
    return _Field(
        declared.name,
        declared.encode_name.removesuffix(unit),
        blank,
        quantity,
        inner,
        is_list,
        is_optional,
        isinstance(item, inspect.IntType),
        isinstance(item, inspect.BoolType),
        is_mapping,
        declared.required,
    )


def _blank(cls: type[msgspec.Struct]) -> msgspec.Struct:
    return cls(**{field.name: field.blank for field in _fields_of(cls)})


# --- reading ------------------------------------------------------------------------------------


def read_fields(cls: type[msgspec.Struct], fields: Fields) -> Any:
    """One of `cls`. What is absent gets its default; what cannot be read is noted where it stands,
    and reading goes on. `fields` is left unfinished."""
    return cls(**{field.name: _read(field, fields) for field in _fields_of(cls)})


def _read(field: _Field, fields: Fields) -> Any:
    key = field.key
    if field.inner is not None and field.is_list:
        return tuple(_nested(field.inner, each) for each in fields.tables(key) or ())
    if field.inner is not None:
        found = fields.table(key)
        if found is not None:
            return _nested(field.inner, found)
        # One that cannot be read is still one: stages that depend on it are not at fault.
        return _blank(field.inner) if field.is_optional and fields.has(key) else field.blank
    if field.is_list:
        return fields.texts(key)
    if field.is_mapping:
        return fields.texts_by_key(key)
    if field.quantity is not None:
        return fields.parsed(key, field.quantity.parse, field.blank, field.quantity.form)
    if field.is_flag:
        return fields.flag(key, field.blank)
    return fields.whole(key, field.blank) if field.is_whole else fields.text(key, field.blank)


def _nested(cls: type[msgspec.Struct], fields: Fields) -> Any:
    found = read_fields(cls, fields)
    fields.finish()
    return found


# --- showing ------------------------------------------------------------------------------------


def keys_of(cls: type[msgspec.Struct]) -> tuple[str, ...]:
    """What a document may have of it."""
    return tuple(field.key for field in _fields_of(cls))


def shown_fields(spec: msgspec.Struct) -> dict[str, Any]:
    """The keys and values of a document that `read_fields` makes the same of; defaults are left
    out."""
    config = spec.__struct_config__
    mode = {config.tag_field: config.tag} if config.tag_field is not None else {}
    return mode | {
        field.key: _shown(field, value)
        for field in _fields_of(type(spec))
        if (value := getattr(spec, field.name)) != field.blank or field.is_required
    }


def _shown(field: _Field, value: Any) -> Any:
    if field.quantity is not None:
        return field.quantity.format(value)
    if field.inner is not None:
        return [shown_fields(each) for each in value] if field.is_list else shown_fields(value)
    if field.is_mapping:
        return dict(value)
    return list(value) if field.is_list else value
