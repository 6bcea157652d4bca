"""Schema objects: what a user declares, with every default filled in.

One object is (kind, namespace, name) and a specification. Specifications are stored as JSON of
these structs; fields are only ever added, with a default that means what was before.

Here is what all kinds have, streams and namespaces; `pipelines` and `services` beside this have the
others. A field is declared in its struct and nowhere else: `documents.fields` takes a document's
keys, in the same order, from there, and shows them again. What values it may have, the `check` of
its kind says (`kinds`).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.units import DURATION, SIZE, TIME

Duration = Annotated[int, msgspec.Meta(extra={"quantity": DURATION})]
"""Milliseconds; a document's key has no `_ms`."""
Size = Annotated[int, msgspec.Meta(extra={"quantity": SIZE})]
"""Bytes."""
Time = Annotated[int, msgspec.Meta(extra={"quantity": TIME})]
"""Milliseconds since the Unix epoch; a document's key has no `_ms`."""


INDEXED = "indexed"
"""How a stream's keys may be kept."""


class Spec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an object declares. Each kind has its own: `hadron.model.kinds` lists them."""

    description: str = ""
    written: tuple[tuple[str, str], ...] = ()
    """(path, text) of quantities that were written otherwise than they would be shown."""


class Retention(msgspec.Struct, frozen=True, omit_defaults=True):
    """How long whole batches are kept; 0 means without limit."""

    max_age_ms: Duration = 0
    max_bytes: Size = 0


class StreamSpec(Spec, frozen=True, kw_only=True):
    """A durable stream; its partitions are replica sets, by name."""

    partitions: tuple[str, ...]
    retention: Retention = Retention()
    keys: str = ""
    """"indexed": which record of a key is the latest is known. Nothing else for now."""

    @property
    def has_key_index(self) -> bool:
        return self.keys == INDEXED


class NamespaceSpec(Spec, frozen=True, kw_only=True):
    """Names stand in it."""


def label_of(kind: str, namespace: str, name: str) -> str:
    """`Stream default/flights`, for messages. A namespace stands in none."""
    return f"{kind} {name}" if kind == "Namespace" else f"{kind} {namespace}/{name}"


class SchemaObject(msgspec.Struct, frozen=True, kw_only=True):
    """A declared object. `id` is the metadata index of its creation, for ever (PROTOCOL D3)."""

    kind: str
    name: str
    spec: Spec
    namespace: str = DEFAULT_NAMESPACE
    id: int = 0
    metadata_index: int = 0

    @property
    def label(self) -> str:
        """`Stream default/flights`, for messages."""
        return label_of(self.kind, self.namespace, self.name)


def spec_to_json(spec: Spec) -> bytes:
    """Canonical JSON: keys in declaration order, defaults left out."""
    return msgspec.json.encode(spec)


class LostRange(msgspec.Struct, frozen=True, array_like=True):
    """Metadata indexes that were given and are known no more: the log had lost its end (`recover`),
    and went on above them. What others have of them stays there (CLUSTER R7)."""

    end_index: int
    """The last one that is known."""
    above_index: int
    """What came after has a higher one."""

    def __contains__(self, index: int) -> bool:
        return self.end_index < index <= self.above_index


class Tombstone(msgspec.Struct, frozen=True, array_like=True):
    """An object that was deleted."""

    metadata_index: int
    """Of its deletion."""
    id: int
    kind: str
    namespace: str
    name: str

    @property
    def label(self) -> str:
        """`Stream default/flights`, for messages."""
        return label_of(self.kind, self.namespace, self.name)


class RegisteredSet(msgspec.Struct, frozen=True, array_like=True):
    """Which replica set a name belongs to."""

    name: str
    uuid: bytes
    epoch: int
    metadata_index: int
    """Of the last change."""
