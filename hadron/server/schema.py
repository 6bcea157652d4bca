"""Serves `hadron.v1.Schema`: apply and get."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from hadron.model.errors import RequestError
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.schema import SchemaObject, spec_from_json, spec_to_json
from hadron.server.leading import Door, Leading
from hadron.wire.calls import Call, Handler
from hadron.wire.messages import method, schema_pb2

_MAX_OBJECTS: Final = 10_000


class SchemaService:
    def __init__(self, door: Door) -> None:
        self._door = door

    def handlers(self) -> dict[int, Handler]:
        return {
            method("ApplySchema").number: self._apply,
            method("GetObjects").number: self._get,
        }

    def _apply(self, call: Call, request: Any, _attachment: memoryview) -> None:
        leading = self._door.enter()
        if len(request.objects) > _MAX_OBJECTS:
            raise RequestError(
                f"{len(request.objects)} objects in one apply are more than {_MAX_OBJECTS}"
            )
        objects = [from_message(message) for message in request.objects]
        call.spawn(self._answer_apply, leading, call, objects, request)

    async def _answer_apply(
        self, leading: Leading, call: Call, objects: list[SchemaObject], request: Any
    ) -> None:
        changes, index = await leading.schema.apply(
            objects, dry_run=request.dry_run, allow_destructive=request.allow_destructive
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

    def _get(self, call: Call, request: Any, _attachment: memoryview) -> None:
        leading = self._door.enter()
        wanted = (request.kind, request.namespace, request.name)
        found = [item for item in leading.catalog.all() if _matches(item, wanted)]
        call.send(
            schema_pb2.GetObjectsResponse(
                objects=to_messages(found), metadata_index=leading.catalog.metadata_index
            ),
            end=True,
        )


def _matches(item: SchemaObject, wanted: tuple[str, str, str]) -> bool:
    have = (item.kind, item.namespace, item.name)
    return all(want in ("", has) for want, has in zip(wanted, have, strict=True))


def to_messages(items: Iterable[SchemaObject]) -> list[schema_pb2.SchemaObject]:
    return [to_message(item) for item in items]


def to_message(item: SchemaObject) -> schema_pb2.SchemaObject:
    return schema_pb2.SchemaObject(
        kind=item.kind, namespace=item.namespace, name=item.name,
        spec_json=spec_to_json(item.spec).decode(), id=item.id, metadata_index=item.metadata_index,
    )


def from_message(message: schema_pb2.SchemaObject) -> SchemaObject:
    """Raises `SchemaError` when the specification is malformed."""
    return SchemaObject(
        kind=message.kind, namespace=message.namespace or DEFAULT_NAMESPACE, name=message.name,
        spec=spec_from_json(message.kind, message.spec_json),
    )
