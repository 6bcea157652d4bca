"""What is declared: looking at it, and applying documents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal

import msgspec
import trio
from starlette.responses import Response

from hadron.client.schema.declarations import HOW_TO_CHANGE
from hadron.doors.http.call import JSON, Call, Query, decoded, json_response
from hadron.doors.http.door import Door
from hadron.doors.http.problems import HttpError
from hadron.model.documents.reading import declared
from hadron.model.documents.rendering import to_document
from hadron.model.errors import NotFoundError, RequestError, SchemaError
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.kinds import proper_kind
from hadron.model.problems import shorten
from hadron.model.schema import SchemaObject

YAML: Final = "application/yaml"
_MAX_SCHEMA_BYTES: Final = 1 << 20
"""The wire's messages have 4 MiB."""


class SchemaQuery(Query, frozen=True, kw_only=True):
    """
    Attributes:
        kind, name: "" is any.
    """

    kind: str = ""
    name: str = ""


class ApplyQuery(Query, frozen=True, kw_only=True):
    """
    Attributes:
        dry_run: only say what would change.
        allow_destructive: also what loses data.
    """

    dry_run: bool = False
    allow_destructive: bool = False


class NewStream(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Attributes:
        partitions: replica sets by name; None is the cluster's only one.
        retention: max_age, max_bytes, or both.
        keys: "indexed" keeps the latest record of each key known.
    """

    partitions: list[str] | None = None
    retention: dict[str, str] | None = None
    description: str = ""
    keys: Literal["", "indexed"] = ""


class ObjectsAnswer(msgspec.Struct):
    """Objects as documents, as `apply` takes them."""

    objects: list[dict[str, Any]]


class ChangeAnswer(msgspec.Struct):
    """What applying did to one object."""

    action: str
    kind: str
    namespace: str
    name: str
    secret: str = ""


class ApplyAnswer(msgspec.Struct, omit_defaults=True):
    """In the order of the documents. `dry_run`: nothing was done, these are what would be."""

    changes: list[ChangeAnswer]
    metadata_index: int
    dry_run: bool = False


class DeleteAnswer(msgspec.Struct, omit_defaults=True):
    """What is gone, as it was. `dry_run`: nothing was done, this is what would be gone."""

    objects: list[dict[str, Any]]
    dry_run: bool = False


async def objects(door: Door, _call: Call, query: SchemaQuery) -> Response:
    client = await door.clients.of(query.namespace)
    found = await client.objects(query.kind, query.namespace, query.name)
    return json_response(_listed(found))


def of_kind(kind: str) -> Callable[[Door, Call, Query], Awaitable[Response]]:
    """Lists what is declared of one kind in a namespace."""

    async def listing(door: Door, _call: Call, query: Query) -> Response:
        client = await door.clients.of(query.namespace)
        return json_response(_listed(await client.objects(kind, query.namespace)))

    return listing


async def stream(door: Door, call: Call, query: Query) -> Response:
    """One stream, as it is declared."""
    name = call.path["stream"]
    client = await door.clients.of(query.namespace)
    found = await client.objects("Stream", query.namespace, name)
    if not found:
        raise NotFoundError(
            f"no stream is called {shorten(name)} in namespace {query.namespace!r}",
            "PUT creates it",
        )
    return json_response(to_document(found[0]))


async def create(door: Door, call: Call, query: Query) -> Response:
    """Declare a stream; one that is there already, with these settings, is left as it is."""
    body = await call.body(_MAX_SCHEMA_BYTES)
    wanted = NewStream()
    if body.strip():
        _require(call, JSON)
        wanted = decoded(body, NewStream)
    client = await door.clients.of(query.namespace)
    try:
        made = await client.create_stream(
            call.path["stream"],
            partitions=wanted.partitions,
            retention=wanted.retention,
            description=wanted.description,
            keys=wanted.keys,
        )
    except SchemaError as error:
        if error.hint != HOW_TO_CHANGE:
            raise
        raise SchemaError(
            error.message, "POST /v1/schema with the stream as a document changes it"
        ) from None
    return json_response(to_document(made))


async def apply(door: Door, call: Call, query: ApplyQuery) -> Response:
    """All of the documents, or none."""
    _require(call, JSON, YAML)
    body = await call.body(_MAX_SCHEMA_BYTES)
    given: Any
    if call.media == JSON:
        kind: Any = dict[str, Any] | list[dict[str, Any]]
        given = decoded(body, kind)
    else:
        try:
            given = body.decode()
        except UnicodeDecodeError as error:
            raise RequestError(f"the body is no text in UTF-8: {error}") from None
    # Seconds of it, where somebody sends as much as may be.
    objects = await trio.to_thread.run_sync(
        declared, given, abandon_on_cancel=True, limiter=door.documents
    )
    # Documents say themselves where they belong, and may make that namespace.
    client = await door.clients.of(DEFAULT_NAMESPACE)
    applied = await client.apply(
        objects, dry_run=query.dry_run, allow_destructive=query.allow_destructive
    )
    changes = []
    for each in applied.changes:
        about = each.after or each.before
        assert about is not None
        changes.append(
            ChangeAnswer(each.action, about.kind, about.namespace, about.name, each.secret)
        )
    return json_response(ApplyAnswer(changes, applied.metadata_index, query.dry_run))


async def delete(door: Door, call: Call, query: ApplyQuery) -> Response:
    kind = proper_kind(call.path["kind"])
    client = await door.clients.of(query.namespace)
    gone = await client.delete(
        (kind, query.namespace, call.path["name"]),
        dry_run=query.dry_run,
        allow_destructive=query.allow_destructive,
    )
    return json_response(DeleteAnswer([to_document(each) for each in gone], query.dry_run))


def _listed(found: Sequence[SchemaObject]) -> ObjectsAnswer:
    return ObjectsAnswer([to_document(each) for each in found])


def _require(call: Call, *media: str) -> None:
    """Types that no page of somebody else's can send without asking first."""
    if call.media not in media:
        raise HttpError(
            415,
            f"the content type is {shorten(call.media or 'none')}",
            f"send content-type: {' or '.join(media)}",
        )
