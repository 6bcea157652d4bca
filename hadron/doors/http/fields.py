"""What a struct's fields are for and may be, in words: for the OpenAPI document, and for who has
sent another one. The words are its docstring's; the bounds are those it is checked by."""

from __future__ import annotations

import inspect
import re
from typing import Any, Final

import msgspec

from hadron.model.problems import one_of

_KINDS: Final = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}
_MISSING: Final = re.compile(r"missing required field `(\w+)`")


def purposes(kind: type[Any]) -> dict[str, str]:
    """By field, what the docstrings say of it."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        text = inspect.cleandoc(each.__doc__ or "") if each.__dict__.get("__doc__") else ""
        _, _, listed = text.partition("Attributes:\n")
        for names, said in re.findall(r"^ {4}(\w[\w, ]*): (.+(?:\n {8}.+)*)", listed, re.MULTILINE):
            for name in names.split(", "):
                found[name.rstrip("_")] = re.sub(r"\s+", " ", said)
    return found


def schemas(kind: type[Any]) -> tuple[dict[str, Any], list[str]]:
    """The JSON schema of each field, and which of them must be there."""
    fields = msgspec.json.schema(kind)["$defs"][kind.__name__]
    found = {name: _without_null(its) for name, its in fields["properties"].items()}
    return found, fields.get("required", [])


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter is left out, and never null."""
    choices = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    return choices[0] if len(choices) == 1 else schema


def form(kind: type[Any], name: str) -> str:
    """What a field takes: `a whole number from 1 to 10`."""
    schema = schemas(kind)[0][name]
    if "enum" in schema:
        return one_of(schema["enum"])
    least, most = schema.get("minimum"), schema.get("maximum")
    bounds = "" if least is None else f" from {_number(least)}"
    if most is not None:
        bounds += f" to {_number(most)}"
    return f"{_KINDS.get(schema['type'], 'text')}{bounds}"


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value}"


def hint(error: msgspec.ValidationError, kind: Any) -> str:
    """Which fields there are, where the error is about one that there is not; what one is for that
    is missing."""
    if not hasattr(kind, "__struct_encode_fields__"):
        return ""
    if "unknown field" in f"{error}":
        return f"there are: {', '.join(kind.__struct_encode_fields__)}"
    if missing := _MISSING.search(f"{error}"):
        said = purposes(kind).get(missing[1])
        return f"{missing[1]}: {said}" if said else ""
    return ""
