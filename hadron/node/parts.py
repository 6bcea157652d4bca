"""What a leader does beside its log: the one list, in which a feature has a line."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

from hadron.delivery.groups import Groups
from hadron.metadata.adopter import Allegiance, SchemaAdopter
from hadron.metadata.driver import SchemaChanges
from hadron.metadata.pusher import Introduction, ReplicaSets, SchemaPusher, Wires
from hadron.model.errors import MetadataBehindError, PeerError
from hadron.model.ports import Clock, Random
from hadron.node.replica_set import ReplicaSetConfig
from hadron.pipelines.driver import Pipelines
from hadron.serving.digests import DigestDriver
from hadron.serving.dropping import DropDriver
from hadron.serving.leading import Leading, Part
from hadron.serving.retention import RetentionDriver
from hadron.state.retention import Kept, kept
from hadron.wire.messages import Method, method, streams_pb2

_OFFSETS: Final = method("Offsets")

AskLeader = Callable[[str, Method, Any], Awaitable[Any]]
"""Told (replica set, method, request); raises `HadronError` or `OSError`."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What parts are given beside the leadership itself.

    Attributes:
        clock: of the log.
        sets: the other replica sets of the cluster; None when there are none.
        wires: how they are reached.
        ask: asks the leader of one of them, once.
    """

    config: ReplicaSetConfig
    uuid: bytes
    epoch: int
    clock: Clock
    random: Random
    sets: ReplicaSets | None
    wires: Wires | None
    ask: AskLeader | None


def parts_of(leading: Leading, around: Surroundings) -> Iterator[Part]:
    """Everything that this leader does, in the order in which it ends."""
    controller, catalog, visible = leading.controller, leading.catalog, leading.visible
    name, settings = around.config.name, around.config.settings
    yield Groups(controller, visible, catalog, name, around.random, leading.locks)
    yield Pipelines(controller, catalog, visible, around.clock, name, leading.locks)
    yield (schema := _schema_changes(leading, around))
    yield SchemaAdopter(
        Allegiance(around.config.cluster, name, around.uuid, around.epoch, around.config.metadata),
        controller,
    )
    if around.config.metadata == name and around.sets is not None and around.wires is not None:
        own = Introduction(around.config.cluster, name, around.uuid, around.epoch)
        yield SchemaPusher(own, controller, catalog, schema, around.sets, around.wires)
    yield DropDriver(controller, catalog)
    yield RetentionDriver(controller, catalog)
    yield DigestDriver(controller, settings.state_digest_interval_s)


def _schema_changes(leading: Leading, around: Surroundings) -> SchemaChanges:
    controller, name, sets = leading.controller, leading.replica_set, around.sets

    def known_sets() -> set[str]:
        others = sets.names() if sets is not None else ()
        return {name, *leading.catalog.replica_sets, *others}

    async def seek(names: Collection[str]) -> None:
        if sets is not None:
            await sets.seek(names)

    async def count_kept(partition: str, stream_id: int, before_ms: int) -> Kept:
        """`metadata.losses.CountKept`."""
        if partition == name:
            return await controller.query(lambda db: kept(db, stream_id, before_ms))
        if around.ask is None:
            raise PeerError(f"{partition} is not known")
        request = streams_pb2.OffsetsRequest(
            stream_id=stream_id,
            partition=partition,
            at_ms=max(1, before_ms),
            with_bytes=True,
            metadata_index=leading.catalog.metadata_index,
        )
        try:
            answer = await around.ask(partition, _OFFSETS, request)
        except MetadataBehindError:
            # It has not heard of this stream yet, or of its part in it, and so has nothing of it.
            # NotFoundError is another thing: it knows as much as is known here, but not the stream.
            return Kept(0, 0, 0)
        (there,) = answer.partitions
        if not there.HasField("bytes"):
            raise PeerError(f"{partition} is led by an older version, and does not tell bytes")
        return Kept(
            there.next_offset - there.first_offset,
            there.at_offset - there.first_offset,
            there.bytes,
        )

    owner = around.config.metadata
    return SchemaChanges(
        controller, leading.catalog, known_sets, seek, count_kept, "" if owner == name else owner
    )
