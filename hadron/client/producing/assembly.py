"""From a producer's settings to a producer: looks the stream up and wires the parts together."""

from __future__ import annotations

import logging
from typing import Final

import anyio

from hadron.client.connecting.session import Session
from hadron.client.producing.accumulator import PartitionAccumulator
from hadron.client.producing.following import Following
from hadron.client.producing.naming import Naming
from hadron.client.producing.outgoing_batch import OutgoingBatch
from hadron.client.producing.producer import Producer
from hadron.client.producing.publisher import Publisher
from hadron.client.producing.router import Router
from hadron.client.producing.sender import PartitionSender, Substitutes
from hadron.client.producing.settings import ACKS, ProducerSettings
from hadron.client.schema.catalog import Catalog
from hadron.model.errors import HadronError
from hadron.wire.messages import streams_pb2

_log = logging.getLogger(__name__)

_WARM_UP_S: Final = 1.0
"""How long opening waits for the leaders, so that the first record finds a connection."""


async def open_producer(
    session: Session, catalog: Catalog, stream: str, settings: ProducerSettings
) -> Producer:
    """Raises `NotFoundError` for an unknown stream, partition or region."""
    if settings.partition is not None:
        await catalog.partitions(stream, settings.partition)
    item = await catalog.stream(stream)
    names = settings.choose(item)
    settings.check_keys(item, names)
    opening = streams_pb2.ProduceRequest(
        namespace=session.endpoint.namespace,
        stream=stream,
        acks=ACKS[settings.acks],
        stream_id=item.id,
        metadata_index=item.metadata_index,
    )
    following = Following(session, catalog, item, settings, opening)
    try:
        publisher = await _publisher(session, settings, opening, names, following)
    except BaseException:
        following.stop()
        raise
    return Producer(publisher)


async def _publisher(
    session: Session,
    settings: ProducerSettings,
    opening: streams_pb2.ProduceRequest,
    names: list[str],
    following: Following,
) -> Publisher:
    naming = await _named(session, settings, opening, names)
    publishers: list[Publisher] = []

    def resolved(batch: OutgoingBatch) -> None:
        publishers[0].resolved(batch)

    def make(partition: str, substitutes: Substitutes | None) -> PartitionSender:
        accumulator = PartitionAccumulator(
            opening.stream,
            partition,
            new_producer_id=lambda: session.ports.random.token_bytes(16),
            claim=naming.claims[partition] if naming is not None else None,
            on_resolved=resolved,
            batch_bytes=settings.batch_bytes,
            codec=settings.codec,
        )
        request = streams_pb2.ProduceRequest(partition=partition)
        request.MergeFrom(opening)
        return PartitionSender(
            session,
            accumulator,
            request,
            eager=settings.linger_ms <= 0,
            substitutes=substitutes,
            naming=naming,
            on_fenced=lambda error: publishers[0].end(error),
        )

    router = Router(
        make,
        names,
        failover=settings.failover,
        pinned=settings.partition is not None,
        by_key=settings.partitioner == "key",
        # Producers that start together should not all begin with the same partition.
        first=lambda count: int(session.ports.random.uniform(0, count)),
    )
    publisher = Publisher(
        session,
        router,
        linger_ms=settings.linger_ms,
        batch_bytes=settings.batch_bytes,
        max_buffer_bytes=settings.max_buffer_bytes,
        delivery_timeout_s=settings.delivery_timeout_s,
        serializer=settings.value_serializer,
    )
    publishers.append(publisher)
    await _warm_up(session, names)
    for sender in router.senders:
        if session.connection_now(sender.accumulator.partition) is None:
            sender.go_away("its leader was not found")
    following.begin(router, publisher, naming)
    return publisher


async def _named(
    session: Session,
    settings: ProducerSettings,
    opening: streams_pb2.ProduceRequest,
    partitions: list[str],
) -> Naming | None:
    """The producer's name, claimed at all of these, if it has one."""
    if settings.name is None:
        return None
    naming = Naming(session, settings.name)
    await naming.open(opening, partitions)
    return naming


async def _warm_up(session: Session, names: list[str]) -> None:
    """Dial all leaders at once; records wait for those that do not answer, or go elsewhere."""

    async def dial(name: str) -> None:
        try:
            await session.connect(name)
        except HadronError as error:
            _log.debug("the leader of %s cannot be dialed yet: %s", name, error)

    with anyio.move_on_after(_WARM_UP_S):
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(dial, name)
