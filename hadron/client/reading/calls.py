"""The reading calls of a client: offsets, single fetches, and the sources of readers."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from hadron.client.connecting.session import Session
from hadron.client.reading.reader import Position, ReadPlan, SpanReader
from hadron.client.schema.catalog import Catalog
from hadron.client.terms.arguments import (
    check_deserializer,
    instant_ms,
    offset_of,
    text_of,
    utf8_of,
    whole_of,
)
from hadron.client.terms.results import Fetched, PartitionOffsets
from hadron.model.batch import StampedBatch, bytes_of, key_hash, partition_of
from hadron.model.errors import NotFoundError, PeerError, RequestError
from hadron.model.ids import Ballot
from hadron.model.limits import MAX_ATTACHMENT_BYTES, MAX_OFFSET
from hadron.model.problems import shorten
from hadron.model.record import Deserializer, Record, record_type
from hadron.model.record_batch import decode_batch
from hadron.model.schema import SchemaObject
from hadron.wire.messages import ballot_from, ballot_to, method, streams_pb2

FETCH_BYTES: Final = 4 << 20

_MAX_WAIT_MS: Final = (1 << 32) - 1
"""What the message holds; nodes answer long before."""

_FETCH: Final = method("Fetch")
_OFFSETS: Final = method("Offsets")
_LATEST: Final = method("Latest")


def _start_of(start: Position, offset: int | str | None) -> Position:
    """Where a read begins: `start`, or `offset` when that is given. Raises `RequestError` when
    both are."""
    if offset is None:
        return start
    if start != "earliest":
        raise RequestError(f"both start={start!r} and offset={offset!r} are given", "use one")
    return offset


def _at_ms(argument: str, at: int | datetime) -> int:
    """0 is none on the wire."""
    return max(1, instant_ms(argument, at))


class ReadCalls:
    """What `Client` answers about the contents of streams."""

    def __init__(self, session: Session, catalog: Catalog) -> None:
        self._session = session
        self._catalog = catalog
        self._namespace = session.endpoint.namespace

    def spans(
        self,
        stream: str,
        partition: str | None,
        start: Position,
        offset: int | str | None,
        limit: int | None,
        follow: bool,
        stream_id: int | None,
        deserializer: Deserializer | None,
    ) -> SpanReader:
        """The source of a reader. Raises `RequestError` for arguments that make no sense."""
        position = _start_of(start, offset)
        at_ms = _at_ms("start", position) if isinstance(position, datetime) else None
        check_deserializer(deserializer)
        stream = text_of("stream", stream)
        plan = ReadPlan(
            namespace=self._namespace,
            stream=stream,
            partition=partition,
            offset=position,
            limit=None if limit is None else whole_of("limit", limit, 0),
            follow=follow,
            stream_id=None
            if stream_id is None
            else whole_of("stream_id", stream_id, 0, MAX_OFFSET),
            record_type=record_type(deserializer),
            since_ms=at_ms or 0,
        )
        plan.check()
        return SpanReader(
            self._session,
            plan,
            self._catalog,
            lambda item, name: self._offsets_of(item, name, at_ms),
        )

    async def offsets(
        self,
        stream: str,
        partition: str | None,
        at: int | datetime | None,
        before: int | None = None,
        *,
        confirmed: bool = False,
    ) -> list[PartitionOffsets]:
        at_ms = None if at is None else _at_ms("at_ms", at)
        before = None if before is None else offset_of("before", before)
        try:
            return await self._offsets(stream, partition, at_ms, before, confirmed)
        except NotFoundError:
            # It may have been deleted, and created again, since it was looked up.
            self._catalog.forget(stream)
            return await self._offsets(stream, partition, at_ms, before, confirmed)

    async def _offsets(
        self,
        stream: str,
        partition: str | None,
        at_ms: int | None,
        before: int | None,
        confirmed: bool,
    ) -> list[PartitionOffsets]:
        names = await self._catalog.partitions(stream, partition)
        item = await self._catalog.stream(stream)
        return [
            each
            for name in names
            for each in await self._offsets_of(item, name, at_ms, before, confirmed)
        ]

    async def _offsets_of(
        self,
        item: SchemaObject,
        partition: str,
        at_ms: int | None,
        before: int | None = None,
        confirmed: bool = False,
    ) -> list[PartitionOffsets]:
        """Of the stream with that id, whatever has its name (PROTOCOL D3)."""
        request = streams_pb2.OffsetsRequest(
            namespace=self._namespace,
            stream=item.name,
            partition=partition,
            at_ms=at_ms or 0,
            stream_id=item.id,
            metadata_index=item.metadata_index,
            before=before,
            confirmed=confirmed,
        )
        answer, _ = await self._session.request(partition, _OFFSETS, request)
        return [
            PartitionOffsets(
                entry.partition,
                entry.first_offset,
                entry.next_offset,
                entry.at_offset,
                item.id,
                ballot_from(entry.ballot) if entry.HasField("ballot") else None,
            )
            for entry in answer.partitions
        ]

    async def latest(self, stream: str, key: Any, partition: str | None) -> Record | None:
        stream = text_of("stream", stream)
        if not isinstance(key, (str, bytes)):
            raise RequestError(
                f"key {shorten(key)} is of type {type(key).__name__}", "give bytes or str"
            )
        data = utf8_of("a key", key) if isinstance(key, str) else bytes(key)
        try:
            return await self._latest(stream, data, partition)
        except NotFoundError:
            # It may have been deleted, and created again, since it was looked up.
            self._catalog.forget(stream)
            return await self._latest(stream, data, partition)

    async def _latest(self, stream: str, key: bytes, partition: str | None) -> Record | None:
        names = await self._catalog.partitions(stream, partition)
        item = await self._catalog.stream(stream)
        name = partition_of(key, names)
        request = streams_pb2.LatestRequest(
            namespace=self._namespace,
            stream=stream,
            partition=name,
            stream_id=item.id,
            metadata_index=item.metadata_index,
            key_hash=key_hash(key),
        )
        answer, attachment = await self._session.request(name, _LATEST, request)
        if not answer.HasField("offset"):
            return None
        base_offset = answer.batch.base_offset
        batch = decode_batch(attachment, base_offset=base_offset, stream=stream, partition=name)
        (record,) = batch.records(answer.offset - base_offset, answer.offset - base_offset + 1)
        found = record.key
        if found is None or bytes_of(found) != key:
            raise RequestError(
                f"{shorten(key)} and {shorten(found)} have the same hash, and the latest record of "
                f"the two, at offset {answer.offset} of {name}, is the other one's",
                "the index is of hashes: look for the record in the stream",
            )
        return record

    async def fetch(
        self,
        stream: str,
        partition: str,
        offset: int,
        max_bytes: int,
        max_wait_ms: int,
        stream_id: int | None,
        after: Ballot | None,
        *,
        exists: bool = False,
    ) -> Fetched:
        stream, partition = text_of("stream", stream), text_of("partition", partition)
        request = streams_pb2.FetchRequest(
            namespace=self._namespace,
            stream=stream,
            partition=partition,
            offset=offset_of("offset", offset),
            max_bytes=whole_of("max_bytes", max_bytes, 1, MAX_ATTACHMENT_BYTES),
            max_wait_ms=whole_of("max_wait_ms", max_wait_ms, 0, _MAX_WAIT_MS),
            stream_id=whole_of("stream_id", stream_id or 0, 0, MAX_OFFSET),
            after=ballot_to(after) if after is not None else None,
            exists=exists,
        )
        if stream_id is not None:
            return await self._fetch(request)
        try:
            return await self._fetch(await self._identified(stream, request))
        except NotFoundError:
            # It may have been deleted, and created again, since it was looked up.
            self._catalog.forget(stream)
            return await self._fetch(await self._identified(stream, request))

    async def _identified(
        self, stream: str, request: streams_pb2.FetchRequest
    ) -> streams_pb2.FetchRequest:
        """`request` with the id of the stream that has the name now (PROTOCOL D3)."""
        item = await self._catalog.stream(stream)
        request.stream_id, request.metadata_index = item.id, item.metadata_index
        return request

    async def _fetch(self, request: streams_pb2.FetchRequest) -> Fetched:
        answer, attachment = await self._session.request(
            request.partition,
            _FETCH,
            request,
            timeout_s=self._session.request_timeout_s + request.max_wait_ms / 1000,
        )
        return Fetched(_split(answer, attachment, request), answer.first_offset, answer.next_offset)


def _split(
    answer: streams_pb2.FetchResponse, attachment: memoryview, request: streams_pb2.FetchRequest
) -> list[StampedBatch]:
    partition, offset = request.partition, request.offset
    batches = []
    start = 0
    for info in answer.batches:
        if info.base_offset + info.count <= offset:
            # Whoever goes on after them would ask for the same, for ever.
            raise PeerError(
                f"{partition} was asked for offset {offset} and answered with "
                f"{info.count} records from {info.base_offset} on",
                retryable=False,
            )
        offset = info.base_offset + info.count
        batches.append(
            StampedBatch(
                info.base_offset,
                info.count,
                info.append_ms,
                info.ballot.epoch,
                info.ballot.incarnation,
                attachment[start : start + info.length],
            )
        )
        start += info.length
    if start != len(attachment):
        raise PeerError(
            f"an answer from {partition} has {len(attachment)} bytes of batches, it says {start}",
            retryable=False,
        )
    return batches
