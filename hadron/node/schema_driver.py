"""The part that changes the schema, with what it asks of other replica sets: which there are, and
what they have kept of a stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

import trio

from hadron.metadata.driver import SchemaDriver
from hadron.metadata.pusher import ReplicaSets
from hadron.model.errors import FrameError, MetadataBehindError, PeerError
from hadron.serving.leading import Leading
from hadron.state.streams.retention import Kept, kept
from hadron.wire.messages import Method, method, offsets_of, streams_pb2

_OFFSETS: Final = method("Offsets")

_ADOPTED_WITHIN_S: Final = 0.1
"""Until a set that is reached has adopted what has just been changed, mostly."""

AskLeader = Callable[[str, Method, Any], Awaitable[Any]]
"""Told (replica set, method, request); raises `HadronError` or `OSError`."""


def schema_driver(
    leading: Leading, owner: str, sets: ReplicaSets | None, ask: AskLeader | None
) -> SchemaDriver:
    """
    Args:
        owner: the replica set that the schema belongs to.
        sets: the others of the cluster; None when there are none.
        ask: asks the leader of one of them, once.
    """
    controller, name = leading.controller, leading.replica_set

    def known_sets() -> set[str]:
        others = sets.names() if sets is not None else ()
        return {name, *leading.catalog.replica_sets, *others}

    async def seek(names: Collection[str]) -> None:
        if sets is not None:
            await sets.seek(names)

    async def count_kept(partition: str, stream_id: int, before_ms: int) -> Kept:
        """`metadata.losses.CountKept`. Who does not know the stream yet is asked again, for as long
        as whoever wants to know has time: it may be behind a recovery, and have records."""
        if partition == name:
            return await controller.query(lambda db: kept(db, stream_id, before_ms))
        if ask is None:
            raise PeerError(f"{partition} is not known")
        request = streams_pb2.OffsetsRequest(
            stream_id=stream_id,
            partition=partition,
            at_ms=max(1, before_ms),
            with_bytes=True,
            # Another one may lead by now, whom nobody here has heard of, and keep more.
            confirmed=True,
            metadata_index=leading.catalog.metadata_index,
        )
        while True:
            try:
                answer = await ask(partition, _OFFSETS, request)
                break
            except MetadataBehindError:
                # It has not heard of this stream yet, and soon will have.
                await trio.sleep(_ADOPTED_WITHIN_S)
        return _kept_at(partition, answer)

    metadata = "" if owner == name else owner
    return SchemaDriver(controller, leading.catalog, known_sets, seek, count_kept, metadata)


def _kept_at(partition: str, answer: streams_pb2.OffsetsResponse) -> Kept:
    """As the leader of a partition tells. Raises `PeerError` where it does not."""
    there = offsets_of(partition, answer)
    if not there.HasField("bytes"):
        raise PeerError(f"{partition} does not tell how many bytes it has kept")
    if there.first_offset > min(there.at_offset, there.next_offset):
        # Less than nothing, it would be taken off what others have.
        raise FrameError(
            f"{partition} begins at offset {there.first_offset}, behind {there.at_offset} or "
            f"{there.next_offset}"
        )
    return Kept(
        there.next_offset - there.first_offset, there.at_offset - there.first_offset, there.bytes
    )
