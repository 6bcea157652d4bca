"""Declared objects as the YAML that declares them: for `get`, `describe` and diffs.

What has its default is left out, so a document reads like what a person would have written, and
reading it again gives the same object.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from hadron.model.documents.fields import shown_fields
from hadron.model.documents.spellings import respell
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.schema import SchemaObject

_OTHER_BREAKS = re.compile("[\x85\u2028\u2029]")
"""Line breaks to YAML 1.1, which folds them away unless they are escaped."""


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block, so that a diff shows the line that changed."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    if _OTHER_BREAKS.search(text):
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def to_document(obj: SchemaObject) -> dict[str, Any]:
    """The object as the document that declares it; its id and index are not part of it."""
    document: dict[str, Any] = {"kind": obj.kind, "name": obj.name}
    if obj.namespace != DEFAULT_NAMESPACE:
        document["namespace"] = obj.namespace
    document |= shown_fields(obj.spec)
    respell(document, obj.spec.written)
    return document


def differences(has: SchemaObject, wanted: SchemaObject) -> str:
    """Each setting that differs, as it is and as it was asked for; "" when none does: `168h` is as
    long as `7d`."""
    one, other = shown_fields(has.spec), shown_fields(wanted.spec)
    return "; ".join(
        f"{name} is {_on_a_line(one.get(name))}, here it is {_on_a_line(other.get(name))}"
        for name in dict.fromkeys([*one, *other])
        if one.get(name) != other.get(name)
    )


def _on_a_line(value: Any) -> str:
    """A setting as a document has it: `true`, `{max_age: 7d}`."""
    if value is None:
        return "not set"
    if isinstance(value, str):
        return value
    text: str = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=10_000)
    return text.removesuffix("...\n").strip()


def to_yaml(obj: SchemaObject) -> str:
    """The object as one YAML document, without `---`."""
    text: str = yaml.dump(
        to_document(obj),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=100,
    )
    return text
