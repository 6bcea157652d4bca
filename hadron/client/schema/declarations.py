"""Declaring objects from a program: what the calls of `catalog` take, made of what people write."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hadron.client.connecting.session import Session
from hadron.client.schema.catalog import Catalog
from hadron.client.terms.arguments import (
    ObjectName,
    flag_of,
    kind_or_none_of,
    names_of,
    objects_of,
    text_of,
    text_or_none_of,
)
from hadron.client.terms.results import Applied
from hadron.model.documents.reading import Declared, declared
from hadron.model.documents.rendering import differences, to_document
from hadron.model.errors import RequestError, SchemaError
from hadron.model.kinds import only_stored
from hadron.model.schema import SchemaObject

_log = logging.getLogger(__name__)

HOW_TO_CHANGE: Final = "`apply` changes it"
"""What is told of an object that exists otherwise; doors have another word for it."""


class Declarations:
    """What `Client` declares, and finds declared."""

    def __init__(self, session: Session, catalog: Catalog) -> None:
        self._session = session
        self._catalog = catalog

    async def apply(self, given: Declared, *, dry_run: bool, allow_destructive: bool) -> Applied:
        flag_of("dry_run", dry_run), flag_of("allow_destructive", allow_destructive)
        objects = declared(given)
        applied = await self._catalog.apply(
            objects, dry_run=dry_run, allow_destructive=allow_destructive
        )
        for note in only_stored(objects):
            _log.warning("%s", note)
        return applied

    async def delete(
        self, names: Sequence[ObjectName] | ObjectName, *, dry_run: bool, allow_destructive: bool
    ) -> list[SchemaObject]:
        flag_of("dry_run", dry_run), flag_of("allow_destructive", allow_destructive)
        return await self._catalog.delete(
            objects_of(names), dry_run=dry_run, allow_destructive=allow_destructive
        )

    async def find(self, kind: str, namespace: str, name: str) -> list[SchemaObject]:
        kind = kind_or_none_of(kind)
        # A namespace stands in none.
        within = "" if kind == "Namespace" else text_or_none_of("namespace", namespace)
        found = await self._catalog.objects(
            kind, text_or_none_of("namespace", namespace), text_or_none_of("name", name)
        )
        return await self._catalog.listed(found, within)

    async def create(
        self, kind: str, name: str, fields: Mapping[str, Any], *, where: str
    ) -> SchemaObject:
        """Declare an object with these fields; one that is there already is returned.

        Args:
            where: the field that says on which replica sets it is. Where that is None they are
                those that it has, or else the cluster's only one.
        """
        name = text_of("name", name)
        namespace = self._session.endpoint.namespace
        several = where == "partitions"
        chosen: list[str] | None = None
        if several:
            chosen = names_of(where, fields[where])
        elif fields[where] is not None:
            chosen = [text_of(where, fields[where])]

        async def wanted(known: Sequence[SchemaObject]) -> SchemaObject:
            given: dict[str, Any] = {"kind": kind, "namespace": namespace, "name": name}
            given |= {key: value for key, value in fields.items() if value is not None}
            if chosen is None and known:
                given[where] = to_document(known[0])[where]
            else:
                sets = list(await self._only_set(name, where) if chosen is None else chosen)
                given[where] = sets if several else sets[0]
            (item,) = declared(given)
            return item

        # Any node says so where it is there already: a program may start while the leader is away.
        known = await self._catalog.objects(kind, namespace, name)
        if known and not differences(known[0], await wanted(known)):
            return known[0]
        known, since = await self._catalog.latest(kind, namespace, name)
        item = await wanted(known)
        if not known:
            try:
                applied = await self._catalog.apply(
                    [item], dry_run=False, allow_destructive=False, since=since
                )
            except SchemaError:
                known, _ = await self._catalog.latest(kind, namespace, name)
                if not known:
                    raise
                # Somebody else was quicker.
            else:
                created = applied.changes[0].after
                assert created is not None
                return created
        if other := differences(known[0], item):
            raise SchemaError(f"{item.label} exists with other settings: {other}", HOW_TO_CHANGE)
        return known[0]

    async def _only_set(self, name: str, where: str) -> Sequence[str]:
        """The cluster's replica set, if it has one only: where data lies is not to be guessed."""
        await self._session.refresh()
        names = self._session.topology.names()
        if len(names) != 1:
            raise RequestError(
                f"the cluster has {len(names)} replica sets: {', '.join(names)}",
                f"say on which {name!r} shall be: {where}={'[...]' if where[-1] == 's' else '...'}",
            )
        return names
