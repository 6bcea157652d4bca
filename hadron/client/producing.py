"""From a producer's settings to a producer: looks the stream up and wires the parts together."""

from __future__ import annotations

import logging
from typing import Final

import anyio
import msgspec

from hadron.client.accumulator import PartitionAccumulator
from hadron.client.arguments import milliseconds_of, seconds_of, whole_of
from hadron.client.catalog import Catalog
from hadron.client.failover import FAILOVERS
from hadron.client.outgoing import OutgoingBatch
from hadron.client.partitioner import PARTITIONERS, partitions_in
from hadron.client.producer import Producer
from hadron.client.publishing import Publisher
from hadron.client.records import Serializer
from hadron.client.routing import Router
from hadron.client.sender import PartitionSender, Substitutes
from hadron.client.session import Session
from hadron.model.batch import CODECS
from hadron.model.errors import HadronError, NotFoundError, RequestError
from hadron.model.limits import MAX_BATCH_BYTES, MAX_RECORD_BYTES
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.wire.messages import streams_pb2

_log = logging.getLogger(__name__)

_ACKS: Final = {
    "majority": streams_pb2.ACKS_MAJORITY,
    "leader": streams_pb2.ACKS_LEADER,
    "all": streams_pb2.ACKS_ALL,
}

_MAX_BATCH_BYTES: Final = MAX_BATCH_BYTES - MAX_RECORD_BYTES
"""A batch that is not full yet must have room for one more record of the largest size."""

_SHORTEST_TIMEOUT_S: Final = 0.001

_WARM_UP_S: Final = 1.0
"""How long opening waits for the leaders, so that the first record finds a connection."""


DEFAULT_BATCH_BYTES: Final = 192 << 10
"""Measured against three nodes: 64 kB is 35 % slower, 128 to 512 kB are equal within the noise."""

DEFAULT_LINGER_MS: Final = 5.0
"""Measured against three nodes: 1 ms is 8 % slower for `send_soon`, 20 ms no faster. A lone `send`
never lingers."""

DEFAULT_MAX_BUFFER_BYTES: Final = 32 << 20
DEFAULT_DELIVERY_TIMEOUT_S: Final = 120.0


class ProducerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """See `Client.producer`."""

    acks: str
    partition: str | None
    region: str | None
    partitioner: str
    failover: str
    codec: str
    batch_bytes: int
    linger_ms: float
    max_buffer_bytes: int
    delivery_timeout_s: float
    value_serializer: Serializer | None

    def checked(self) -> ProducerSettings:
        """With plain numbers. Raises `RequestError` naming the setting that makes no sense."""
        for name, known in (("partitioner", PARTITIONERS), ("failover", FAILOVERS)):
            if getattr(self, name) not in known:
                raise RequestError(
                    f"{name} {getattr(self, name)!r} is unknown", f"use one of {', '.join(known)}"
                )
        if self.partition is not None and self.region is not None:
            raise RequestError(
                f"both the partition {self.partition!r} and the region {self.region!r} are given",
                "a partition lies in one region: leave one of them out",
            )
        if self.acks not in _ACKS:
            raise RequestError(f"acks {self.acks!r} is unknown", f"use one of {', '.join(_ACKS)}")
        if self.codec not in CODECS:
            raise RequestError(f"codec {self.codec!r} is unknown", f"use {' or '.join(CODECS)}")
        if self.value_serializer is not None and not callable(self.value_serializer):
            raise RequestError(
                f"value_serializer {self.value_serializer!r} cannot be called",
                "give a function from a value to bytes, str or anything JSON, such as json.dumps",
            )
        return msgspec.structs.replace(
            self,
            batch_bytes=whole_of("batch_bytes", self.batch_bytes, 1, _MAX_BATCH_BYTES),
            linger_ms=milliseconds_of("linger_ms", self.linger_ms, 0),
            max_buffer_bytes=whole_of("max_buffer_bytes", self.max_buffer_bytes, 1),
            delivery_timeout_s=seconds_of(
                "delivery_timeout_s", self.delivery_timeout_s, _SHORTEST_TIMEOUT_S
            ),
        )

    def choose(self, stream: SchemaObject) -> list[str]:
        """The stream's partitions that records may go to. Raises `NotFoundError` when none is in
        the region."""
        assert isinstance(stream.spec, StreamSpec)
        names = list(stream.spec.partitions)
        if self.partition is not None:
            return [self.partition]
        if self.region is None:
            return names
        return partitions_in(names, self.region, lambda: f"stream {stream.name!r}")


async def open_producer(
    session: Session, catalog: Catalog, stream: str, settings: ProducerSettings
) -> Producer:
    """Raises `NotFoundError` for an unknown stream, partition or region."""
    if settings.partition is not None:
        await catalog.partitions(stream, settings.partition)
    item = await catalog.stream(stream)
    names = settings.choose(item)
    opening = streams_pb2.ProduceRequest(
        namespace=session.endpoint.namespace,
        stream=stream,
        acks=_ACKS[settings.acks],
        stream_id=item.id,
        metadata_index=item.metadata_index,
    )
    publishers: list[Publisher] = []

    def resolved(batch: OutgoingBatch) -> None:
        publishers[0].resolved(batch)

    def make(partition: str, substitutes: Substitutes | None) -> PartitionSender:
        accumulator = PartitionAccumulator(
            stream,
            partition,
            new_producer_id=lambda: session.ports.random.token_bytes(16),
            on_resolved=resolved,
            batch_bytes=settings.batch_bytes,
            codec=settings.codec,
        )
        request = streams_pb2.ProduceRequest(partition=partition)
        request.MergeFrom(opening)
        return PartitionSender(
            session, accumulator, request, eager=settings.linger_ms <= 0, substitutes=substitutes
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
    _follow(session, catalog, opening, settings, router, publisher)
    return Producer(publisher)


def _follow(
    session: Session, catalog: Catalog, opening: streams_pb2.ProduceRequest,
    settings: ProducerSettings, router: Router, publisher: Publisher,
) -> None:
    """Use partitions that are added to the stream while the producer is open.

    `opening` is what senders are made with: from the index at which the stream has a partition on,
    so that a leader there which has not heard of it says that it is behind.
    """

    async def look() -> None:
        try:
            now = await catalog.stream(opening.stream)
        except NotFoundError as error:
            publisher.gone = error
            return
        except HadronError as error:
            _log.debug("stream %s was not looked up again: %s", opening.stream, error)
            return
        # Another stream of that name is none of this producer's business (PROTOCOL D3).
        if now.id != opening.stream_id:
            publisher.gone = NotFoundError(
                f"stream {opening.stream!r} was deleted; another one has its name now",
                "make another producer for that one",
            )
        if publisher.gone is not None or publisher.is_closed:
            return
        for request in (opening, *(sender.request for sender in router.senders)):
            request.metadata_index = now.metadata_index
        if router.extend(settings.choose(now)):
            _log.info("stream %s has the partitions %s now", opening.stream, router.partitions)
            publisher.grown()

    def changed() -> None:
        session.background.start(look)

    def not_found() -> None:
        catalog.forget(opening.stream)
        changed()

    publisher.stop_following = catalog.listen(changed)
    publisher.on_not_found = not_found


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
