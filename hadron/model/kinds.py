"""The kinds of objects that exist: the one list, in which each has a line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from hadron.model.documents import pipelines, services, streams
from hadron.model.documents.kind import Kind
from hadron.model.errors import RequestError, SchemaError
from hadron.model.ids import DEFAULT_NAMESPACE, is_valid_name
from hadron.model.problems import did_you_mean
from hadron.model.schema import NamespaceSpec, SchemaObject, Spec


class _Mode(msgspec.Struct):
    """What a specification says of its mode, whatever else it has."""

    mode: str = ""


KINDS: Final = {
    kind.name: kind
    for kind in (
        Kind(name="Namespace", spec=NamespaceSpec, stands_in_none=True),
        streams.KIND,
        pipelines.KIND,
        *services.KINDS,
    )
}
"""By name, in the order in which they are told."""

CREATED: Final = ("Stream", "Endpoint", "Exchange", "Namespace")
"""Those that `hadron create` makes."""

_AS_WRITTEN: Final = {
    written: kind for kind in KINDS for written in (kind.lower(), f"{kind.lower()}s")
}
"""Each kind by what people write for it, in lower case."""


def proper_kind(written: str) -> str:
    """`Stream` for `stream`, `Streams` and `STREAM`. Raises `RequestError`."""
    kind = _AS_WRITTEN.get(written.lower())
    if kind is None:
        meant = did_you_mean(written.lower(), _AS_WRITTEN)
        raise RequestError(f"{written!r} is no kind{meant}", f"there are {', '.join(KINDS)}")
    return kind


def how_to_make(kind: str, namespace: str, name: str) -> str:
    """How an object that is not there comes to be, for hints: a command where one makes it."""
    if kind not in CREATED:
        return "declare it with `hadron apply`"
    there = f" --namespace {namespace}" if namespace != DEFAULT_NAMESPACE else ""
    given = name if is_valid_name(name) else "NAME"
    create = f"hadron create {kind.lower()} {given}{'' if kind == 'Namespace' else there}"
    return f"create it with `{create}`, declare it with `hadron apply`"


def only_stored(objects: Iterable[SchemaObject]) -> list[str]:
    """What to say to who declares these: of which kinds this version of Hadron does nothing."""
    return [
        f"kind {name} is only stored by this version of Hadron: {KINDS[name].missing} yet"
        for name in dict.fromkeys(each.kind for each in objects)
        if name in KINDS and KINDS[name].missing
    ]


def spec_from_json(kind: str, data: bytes | str) -> Spec:
    """Raises `SchemaError` naming the kind, the mode or the field."""
    known = KINDS.get(kind)
    if known is None:
        raise SchemaError(f"unknown kind {kind!r}", f"this version knows {', '.join(KINDS)}")
    try:
        if not known.modes:
            return msgspec.json.decode(data, type=known.spec)
        mode = msgspec.json.decode(data, type=_Mode).mode
        if mode and mode not in known.modes:
            raise SchemaError(
                f"unknown mode {mode!r} of a {kind}", f"this version knows {', '.join(known.modes)}"
            )
        return msgspec.json.decode(data, type=known.modes[mode] if mode else known.spec)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise SchemaError(f"the specification of a {kind} is malformed: {error}") from error
