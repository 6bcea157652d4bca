"""Declaring objects from a program: what the calls of `catalog` take, made of what people write."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from hadron.client.arguments import names_of, text_of
from hadron.client.catalog import Catalog
from hadron.client.results import Applied
from hadron.client.session import Session
from hadron.model.documents.reading import Declared, declared
from hadron.model.documents.rendering import to_document
from hadron.model.errors import RequestError, SchemaError
from hadron.model.schema import NOT_BUILT, SchemaObject, StreamSpec, not_built

_log = logging.getLogger(__name__)


class Declaring:
    """What `Client` declares."""

    def __init__(self, session: Session, catalog: Catalog) -> None:
        self._session = session
        self._catalog = catalog

    async def apply(self, given: Declared, *, dry_run: bool, allow_destructive: bool) -> Applied:
        objects = declared(given)
        applied = await self._catalog.apply(
            objects, dry_run=dry_run, allow_destructive=allow_destructive
        )
        for kind in dict.fromkeys(each.kind for each in objects if each.kind in NOT_BUILT):
            _log.warning("%s", not_built(kind))
        return applied

    async def create_stream(
        self,
        name: str,
        partitions: str | Sequence[str] | None,
        retention: Mapping[str, str] | None,
        description: str,
    ) -> SchemaObject:
        name = text_of("name", name)
        chosen = names_of("partitions", partitions)
        namespace = self._session.endpoint.namespace
        known = await self._catalog.objects("Stream", namespace, name)
        if chosen is None:
            chosen = list(_partitions_of(known[0]) if known else await self._only_set(name))
        document: dict[str, Any] = {
            "kind": "Stream", "namespace": namespace, "name": name, "description": description,
            "partitions": chosen,
            "retention": retention,
        }
        (wanted,) = declared(document)
        if known:
            if known[0].spec != wanted.spec:
                raise SchemaError(
                    f"{wanted.label} exists with another {_differences(known[0], wanted)}",
                    "`apply` changes it",
                )
            return known[0]
        applied = await self._catalog.apply([wanted], dry_run=False, allow_destructive=False)
        created = applied.changes[0].after
        assert created is not None
        return created

    async def _only_set(self, name: str) -> Sequence[str]:
        """The cluster's replica set, if it has one only: where records lie is not to be guessed."""
        await self._session.refresh()
        names = self._session.topology.names()
        if len(names) != 1:
            raise RequestError(
                f"the cluster has {len(names)} replica sets: {', '.join(names)}",
                f"say where the records of {name!r} shall lie: partitions=[...]",
            )
        return names


def _differences(has: SchemaObject, wanted: SchemaObject) -> str:
    """Each setting that differs, as it is and as it was asked for."""
    one, other = to_document(has), to_document(wanted)
    return "; ".join(
        f"{name}: it has {one.get(name, 'none')}, not {other.get(name, 'none')}"
        for name in dict.fromkeys([*one, *other]) if one.get(name) != other.get(name)
    )


def _partitions_of(stream: SchemaObject) -> Sequence[str]:
    assert isinstance(stream.spec, StreamSpec)
    return stream.spec.partitions
