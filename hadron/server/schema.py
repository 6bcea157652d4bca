"""Serves `hadron.v1.Schema`: changes on the metadata set's leader, adoption on the others', and
questions at every node, from its own copy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import trio

from hadron.metadata.adopter import SchemaAdopter
from hadron.metadata.driver import SchemaDriver
from hadron.metadata.judging import Key
from hadron.metadata.messages import changes_to, check_index
from hadron.metadata.watching import Part, Watch
from hadron.model.errors import RequestError
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.kinds import spec_from_json
from hadron.model.limits import MAX_MESSAGE_BYTES
from hadron.model.schema import SchemaObject, spec_to_json
from hadron.serving.catalog import Catalog
from hadron.serving.entrance import Led, led
from hadron.serving.leading import Door, Leading
from hadron.serving.schema_copy import SchemaCopy
from hadron.state.adoption import PART_BYTES
from hadron.wire.calls import Call
from hadron.wire.messages import schema_pb2
from hadron.wire.services import Served, served

_MAX_OBJECTS: Final = 10_000
_MAX_WAIT_MS: Final = 60_000

_PAGE_BYTES: Final = MAX_MESSAGE_BYTES * 3 // 4
"""Of objects in one answer; the largest one alone still fits into a frame."""


_Apply: TypeAlias = Call[schema_pb2.ApplySchemaRequest, schema_pb2.ApplySchemaResponse]
_Get: TypeAlias = Call[schema_pb2.GetObjectsRequest, schema_pb2.GetObjectsResponse]
_Delete: TypeAlias = Call[schema_pb2.DeleteObjectsRequest, schema_pb2.DeleteObjectsResponse]
_Adopt: TypeAlias = Call[schema_pb2.AdoptSchemaRequest, schema_pb2.AdoptSchemaResponse]
_Watch: TypeAlias = Call[schema_pb2.WatchSchemaRequest, schema_pb2.SchemaChanges]


class SchemaService:
    def __init__(self, door: Door, copy: SchemaCopy) -> None:
        self._door = door
        self._copy = copy

    def methods(self) -> tuple[Served | Led, ...]:
        pb = schema_pb2
        return (
            led("ApplySchema", pb.ApplySchemaRequest, pb.ApplySchemaResponse, self._apply),
            served("GetObjects", pb.GetObjectsRequest, pb.GetObjectsResponse, self._get),
            led("DeleteObjects", pb.DeleteObjectsRequest, pb.DeleteObjectsResponse, self._delete),
            led("AdoptSchema", pb.AdoptSchemaRequest, pb.AdoptSchemaResponse, self._adopt),
            served("WatchSchema", pb.WatchSchemaRequest, pb.SchemaChanges, self._watch),
        )

    def _apply(
        self,
        leading: Leading,
        call: _Apply,
        request: schema_pb2.ApplySchemaRequest,
        _attachment: memoryview,
    ) -> None:
        if len(request.objects) > _MAX_OBJECTS:
            raise RequestError(
                f"{len(request.objects)} objects in one apply are more than {_MAX_OBJECTS}"
            )
        objects = [from_message(message) for message in request.objects]
        call.spawn(self._answer_apply, leading, call, objects, request)

    async def _answer_apply(
        self,
        leading: Leading,
        call: _Apply,
        objects: list[SchemaObject],
        request: schema_pb2.ApplySchemaRequest,
    ) -> None:
        changes, index = await leading.part(SchemaDriver).apply(
            objects,
            dry_run=request.dry_run,
            allow_destructive=request.allow_destructive,
            since=_since(request),
        )
        call.send(
            schema_pb2.ApplySchemaResponse(
                changes=[
                    schema_pb2.ApplySchemaResponse.Change(
                        action=change.action,
                        before=None if change.before is None else to_message(change.before),
                        after=to_message(change.after),
                    )
                    for change in changes
                ],
                metadata_index=index,
            ),
            end=True,
        )

    def _delete(
        self,
        leading: Leading,
        call: _Delete,
        request: schema_pb2.DeleteObjectsRequest,
        _attachment: memoryview,
    ) -> None:
        if len(request.names) > _MAX_OBJECTS:
            raise RequestError(
                f"{len(request.names)} objects in one deletion are more than {_MAX_OBJECTS}"
            )
        call.spawn(self._answer_delete, leading, call, request)

    async def _answer_delete(
        self, leading: Leading, call: _Delete, request: schema_pb2.DeleteObjectsRequest
    ) -> None:
        deleted, index = await leading.part(SchemaDriver).delete(
            [(_key(name), name.id) for name in request.names],
            dry_run=request.dry_run,
            allow_destructive=request.allow_destructive,
            since=_since(request),
        )
        call.send(
            schema_pb2.DeleteObjectsResponse(deleted=to_messages(deleted), metadata_index=index),
            end=True,
        )

    def _adopt(
        self,
        leading: Leading,
        call: _Adopt,
        request: schema_pb2.AdoptSchemaRequest,
        _attachment: memoryview,
    ) -> None:
        call.spawn(self._answer_adopt, leading, call, request)

    async def _answer_adopt(
        self, leading: Leading, call: _Adopt, request: schema_pb2.AdoptSchemaRequest
    ) -> None:
        call.send(await leading.part(SchemaAdopter).adopt(request), end=True)

    def _check_known(self) -> None:
        """Raises what this node does not serve for, while it does not know the schema."""
        if not self._copy.is_known:
            self._door.leading()

    def _get(
        self, call: _Get, request: schema_pb2.GetObjectsRequest, _attachment: memoryview
    ) -> None:
        if request.latest:
            call.spawn(self._confirm_and_get, call, request, self._door.leading())
            return
        self._check_known()
        if request.min_index > self._copy.index and request.max_wait_ms:
            call.spawn(self._wait_and_get, call, request)
            return
        self._copy.catalog.check_index(request.min_index)
        if call.writable:
            self._answer_get(call, request)
        else:
            # It has not taken yet what it was sent before (BOUNDS W3).
            call.spawn(self._wait_and_get, call, request)

    async def _confirm_and_get(
        self, call: _Get, request: schema_pb2.GetObjectsRequest, leading: Leading
    ) -> None:
        await leading.controller.confirm_leadership()
        async with call.room(MAX_MESSAGE_BYTES):
            self._answer_get(call, request)

    async def _wait_and_get(self, call: _Get, request: schema_pb2.GetObjectsRequest) -> None:
        await self._copy.at_least(request.min_index, min(request.max_wait_ms, _MAX_WAIT_MS) / 1_000)
        async with call.room(MAX_MESSAGE_BYTES):
            self._answer_get(call, request)

    def _answer_get(self, call: _Get, request: schema_pb2.GetObjectsRequest) -> None:
        catalog = self._copy.catalog
        wanted = (request.kind, request.namespace, request.name)
        limit = request.limit or _MAX_OBJECTS
        page: list[schema_pb2.SchemaObject] = []
        size, more = 0, False
        for item in _candidates(catalog, wanted, request):
            if not _matches(item, wanted):
                continue
            message = to_message(item)
            size += message.ByteSize()
            if len(page) >= limit or (page and size > _PAGE_BYTES):
                more = True
                break
            page.append(message)
        call.send(
            schema_pb2.GetObjectsResponse(
                objects=page, metadata_index=catalog.metadata_index, more=more
            ),
            end=True,
        )

    def _watch(
        self, call: _Watch, request: schema_pb2.WatchSchemaRequest, _attachment: memoryview
    ) -> None:
        self._check_known()
        call.spawn(self._tell_changes, call, check_index(request.from_index))

    async def _tell_changes(self, call: _Watch, index: int) -> None:
        """The first message comes at once, also when it holds nothing but the index."""
        watch = Watch(index)
        is_first = True
        while call.is_open:
            changed = self._copy.changed
            part = await self._tell_part(call, watch, is_first=is_first)
            if part is None:
                await self._copy.settled()
                continue
            is_first = False
            if part.following is None:
                await changed.wait()

    async def _tell_part(self, call: _Watch, watch: Watch, *, is_first: bool) -> Part | None:
        """A part is read once the watcher takes it, within room for it: who reads slowly costs one,
        and not the schema (BOUNDS W3). None when it may not be told yet; a majority, which may be
        away, is waited for without room."""
        await _until_writable(call)
        async with call.room(PART_BYTES):
            part = await self._copy.query(watch.read)
            if part is None:
                return None
            if part.changes.to_index > watch.from_index or is_first:
                message = changes_to(part.changes)
                message.more_follows = part.following is not None
                call.send(message)
            watch.told(part)
            return part


async def _until_writable(call: _Watch) -> None:
    while not call.writable:
        room = trio.Event()
        call.on_writable = room.set
        # Another call may have taken it by the time that this one is woken.
        await room.wait()


def _since(request: schema_pb2.ApplySchemaRequest | schema_pb2.DeleteObjectsRequest) -> int | None:
    return request.since_index if request.HasField("since_index") else None


def _key(name: schema_pb2.DeleteObjectsRequest.Name) -> Key:
    """A namespace stands in none; its name does for it."""
    if name.kind == "Namespace":
        return name.kind, DEFAULT_NAMESPACE, name.name
    return name.kind, name.namespace or DEFAULT_NAMESPACE, name.name


def _candidates(
    catalog: Catalog, wanted: tuple[str, str, str], request: schema_pb2.GetObjectsRequest
) -> Iterable[SchemaObject]:
    """Ascending; one that is named in full is not looked for among all others."""
    after_id = request.after_id if request.HasField("after_id") else None
    if not all(wanted):
        return catalog.ascending(after_id)
    found = catalog.find(*wanted)
    return () if found is None or (after_id is not None and found.id <= after_id) else (found,)


def _matches(item: SchemaObject, wanted: tuple[str, str, str]) -> bool:
    # Asked of all objects that there are: a tenth of a microsecond each.
    kind, namespace, name = wanted
    return (
        (not kind or item.kind == kind)
        and (not name or item.name == name)
        and (not namespace or item.namespace == namespace)
    )


def to_messages(items: Iterable[SchemaObject]) -> list[schema_pb2.SchemaObject]:
    return [to_message(item) for item in items]


def to_message(item: SchemaObject) -> schema_pb2.SchemaObject:
    return schema_pb2.SchemaObject(
        kind=item.kind,
        namespace=item.namespace,
        name=item.name,
        spec_json=spec_to_json(item.spec).decode(),
        id=item.id,
        metadata_index=item.metadata_index,
    )


def from_message(message: schema_pb2.SchemaObject) -> SchemaObject:
    """Raises `SchemaError` when the specification is malformed."""
    return SchemaObject(
        kind=message.kind,
        namespace=message.namespace or DEFAULT_NAMESPACE,
        name=message.name,
        spec=spec_from_json(message.kind, message.spec_json),
    )
