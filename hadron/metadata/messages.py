"""The schema's changes as messages, and what a peer may say in one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hadron.model.errors import FrameError
from hadron.model.ids import MAX_EPOCH, last_index
from hadron.model.schema import LostRange, RegisteredSet, Tombstone
from hadron.state.adoption import Changes, StoredObject
from hadron.wire.messages import check_epoch, schema_pb2

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
        lost=lost_to(changes.lost),
    )


def lost_to(ranges: Iterable[LostRange]) -> list[schema_pb2.LostRange]:
    return [
        schema_pb2.LostRange(end_index=each.end_index, above_index=each.above_index)
        for each in ranges
    ]


def changes_from(message: Any, epoch: int) -> Changes:
    """What a metadata set in this epoch has changed. Raises `FrameError` for numbers and identities
    that no node makes."""

    def check(value: int) -> int:
        return check_index(value, last_index(epoch))

    return Changes(
        check(message.from_index),
        check(message.to_index),
        message.is_whole,
        tuple(
            StoredObject(
                check(item.id),
                item.kind,
                item.namespace,
                item.name,
                item.spec_json,
                check(item.metadata_index),
            )
            for item in message.objects
        ),
        tuple(
            Tombstone(
                check(gone.metadata_index), check(gone.id), gone.kind, gone.namespace, gone.name
            )
            for gone in message.deleted
        ),
        tuple(
            RegisteredSet(
                item.name,
                check_uuid(item.uuid),
                check_epoch(item.epoch),
                check(item.metadata_index),
            )
            for item in message.replica_sets
        ),
        lost_from(message.lost, epoch),
    )


def lost_from(messages: Iterable[Any], epoch: int) -> tuple[LostRange, ...]:
    """What a metadata set in this epoch has lost. Raises `FrameError` as `changes_from` does."""
    last = last_index(epoch)
    return tuple(
        LostRange(check_index(each.end_index, last), check_index(each.above_index, last))
        for each in messages
    )


def check_index(value: int, last: int = last_index(MAX_EPOCH)) -> int:
    """Raises `FrameError` for one above the last that there can be."""
    if value > last:
        raise FrameError(f"metadata index {value} is out of range, the highest is {last}")
    return value


def check_uuid(value: bytes) -> bytes:
    """Raises `FrameError`."""
    if len(value) != _UUID_BYTES:
        raise FrameError(f"{value.hex() or 'nothing'} is no replica set's identity")
    return value
