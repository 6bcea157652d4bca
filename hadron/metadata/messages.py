"""The schema's changes as messages, and what a peer may say in one."""

from __future__ import annotations

from typing import Any

from hadron.model.errors import FrameError
from hadron.model.schema import LostRange, RegisteredSet, Tombstone
from hadron.state.adoption import Changes, StoredObject
from hadron.wire.messages import check_number, schema_pb2

_UUID_BYTES = 16


def changes_to(changes: Changes) -> schema_pb2.SchemaChanges:
    return schema_pb2.SchemaChanges(
        from_index=changes.from_index,
        to_index=changes.to_index,
        is_whole=changes.is_whole,
        objects=[
            schema_pb2.SchemaObject(
                kind=item.kind,
                namespace=item.namespace,
                name=item.name,
                spec_json=item.spec_json,
                id=item.id,
                metadata_index=item.metadata_index,
            )
            for item in changes.objects
        ],
        deleted=[
            schema_pb2.DeletedObject(
                id=gone.id,
                kind=gone.kind,
                namespace=gone.namespace,
                name=gone.name,
                metadata_index=gone.metadata_index,
            )
            for gone in changes.deleted
        ],
        replica_sets=[
            schema_pb2.RegisteredSet(
                name=item.name, uuid=item.uuid, epoch=item.epoch, metadata_index=item.metadata_index
            )
            for item in changes.replica_sets
        ],
        lost=[
            schema_pb2.LostRange(end_index=each.end_index, above_index=each.above_index)
            for each in changes.lost
        ],
    )


def changes_from(message: Any) -> Changes:
    """Raises `FrameError` for numbers and identities that no node makes."""
    return Changes(
        check_index(message.from_index),
        check_index(message.to_index),
        message.is_whole,
        tuple(
            StoredObject(
                check_index(item.id),
                item.kind,
                item.namespace,
                item.name,
                item.spec_json,
                check_index(item.metadata_index),
            )
            for item in message.objects
        ),
        tuple(
            Tombstone(
                check_index(gone.metadata_index),
                check_index(gone.id),
                gone.kind,
                gone.namespace,
                gone.name,
            )
            for gone in message.deleted
        ),
        tuple(
            RegisteredSet(
                item.name,
                check_uuid(item.uuid),
                check_number("epoch", item.epoch),
                check_index(item.metadata_index),
            )
            for item in message.replica_sets
        ),
        tuple(
            LostRange(check_index(each.end_index), check_index(each.above_index))
            for each in message.lost
        ),
    )


def check_index(value: int) -> int:
    """Raises `FrameError`."""
    return check_number("metadata index", value)


def check_uuid(value: bytes) -> bytes:
    """Raises `FrameError`."""
    if len(value) != _UUID_BYTES:
        raise FrameError(f"{value.hex() or 'nothing'} is no replica set's identity")
    return value
