"""Records that are sent once under a key, whoever sends them, and through whichever node.

Nothing new remembers that: the key's hash is the id of a producer that has this one batch at each
partition, with the sequence 0. A leader knows it by that for a day (PROTOCOL D1, D7), gives who
sends it again the first answer, and refuses another number of records. Whether they are the same
ones is looked up here, where they are found to be a repetition.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any, Final, Protocol

import anyio.lowlevel

from hadron.client.connecting.session import Session
from hadron.client.producing.bulk import check_many
from hadron.client.producing.new_records import whole_record
from hadron.client.schema.catalog import Catalog
from hadron.client.terms.arguments import text_of
from hadron.client.terms.results import BatchReceipt, Fetched
from hadron.model.batch import once_id_of, partition_of
from hadron.model.batch_building import BatchBuilder
from hadron.model.errors import (
    KeyReusedError,
    NotFoundError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    PeerError,
    RecordTooLargeError,
    RequestError,
    SequenceError,
)
from hadron.model.ids import Ballot
from hadron.model.limits import MAX_BATCH_BYTES, MAX_BATCH_RECORDS
from hadron.model.problems import shorten
from hadron.model.record import NewRecord, Record
from hadron.model.record_batch import decode_batch
from hadron.wire.messages import method, streams_pb2

_PRODUCE: Final = method("Produce")

_RECORDS_PER_CHECKPOINT: Final = 128


class Fetches(Protocol):
    """Who reads what is there."""

    async def fetch(
        self,
        stream: str,
        partition: str,
        offset: int,
        max_bytes: int,
        max_wait_ms: int,
        stream_id: int | None,
        after: Ballot | None,
    ) -> Fetched: ...


class OnceCalls:
    """Of one client."""

    def __init__(self, session: Session, catalog: Catalog, reading: Fetches) -> None:
        self._session = session
        self._catalog = catalog
        self._reading = reading

    async def send(
        self, stream: str, values: Sequence[Any], key: str, partition: str | None
    ) -> list[BatchReceipt]:
        """See `Client.send_once`."""
        check_many(values, "send_once", "send")
        records = []
        for value in values:
            records.append(_checked(value))
            await _turn(records)
        if not records:
            return []
        try:
            return await self._send(stream, records, key, partition)
        except NotFoundError:
            # It may have been deleted, and created again, since it was looked up.
            self._catalog.forget(stream)
            return await self._send(stream, records, key, partition)

    async def _send(
        self, stream: str, records: list[NewRecord], key: str, partition: str | None
    ) -> list[BatchReceipt]:
        names = await self._catalog.partitions(stream, partition)
        item = await self._catalog.stream(stream)
        parts: dict[str, list[NewRecord]] = {}
        for record in records:
            home = record.partition or partition_of(
                key if record.key is None else record.key, names
            )
            if home not in names:
                raise NotFoundError(
                    f"stream {stream!r} has no partition {home!r}", f"it has {', '.join(names)}"
                )
            parts.setdefault(home, []).append(record)
        now_ms = self._session.ports.clock.now_ms()
        batches = {name: await _batch(part, key, now_ms) for name, part in parts.items()}
        receipts: list[BatchReceipt] = []
        for name, batch in batches.items():
            request = streams_pb2.ProduceRequest(
                namespace=self._session.endpoint.namespace,
                stream=stream,
                partition=name,
                acks=streams_pb2.ACKS_MAJORITY,
                stream_id=item.id,
                metadata_index=item.metadata_index,
            )
            try:
                receipts.append(await self._send_part(request, batch, parts[name], key))
            except KeyReusedError as error:
                if not receipts:
                    raise
                logged = ", ".join(each.partition for each in receipts)
                raise KeyReusedError(
                    f"{error.message}; those for {logged} are in the log", error.hint
                ) from error
        return receipts

    async def _send_part(
        self, request: streams_pb2.ProduceRequest, batch: bytes, records: list[NewRecord], key: str
    ) -> BatchReceipt:
        """What goes to one partition."""
        answer = await self._produce(request, batch, key)
        receipt = BatchReceipt(
            request.stream,
            request.partition,
            answer.base_offset,
            len(records),
            answer.append_ms,
            answer.duplicate,
        )
        if receipt.duplicate:
            await self._check_same(receipt, records, key, request.stream_id)
        return receipt

    async def _produce(
        self, request: streams_pb2.ProduceRequest, batch: bytes, key: str
    ) -> streams_pb2.ProduceResponse:
        try:
            answer, _ = await self._session.request(request.partition, _PRODUCE, request, [batch])
        except SequenceError as error:
            raise _reused(key, request.stream, request.partition, "another number") from error
        except PeerError as error:
            raise OutcomeUnknownError(
                f"what was sent under the key {shorten(key)} may or may not be in the log: "
                f"{error.message}",
                "send it again under the same key: it is logged once",
                retryable=True,
            ) from error
        assert isinstance(answer, streams_pb2.ProduceResponse)
        return answer

    async def _check_same(
        self, receipt: BatchReceipt, records: list[NewRecord], key: str, stream_id: int
    ) -> None:
        """That these records are what was logged under the key then. What is dropped by now cannot
        be compared."""
        stream, partition = receipt.stream, receipt.partition
        try:
            fetched = await self._reading.fetch(
                stream, partition, receipt.base_offset, 1, 0, stream_id, None
            )
        except OffsetOutOfRangeError:
            return
        batch = next(iter(fetched.batches), None)
        if batch is None:
            return
        logged = decode_batch(
            batch.data, base_offset=batch.base_offset, stream=stream, partition=partition
        )
        if batch.base_offset != receipt.base_offset or logged.damage:
            return
        builder = await _built(records, 0)
        given = decode_batch(builder.build(), base_offset=receipt.base_offset, stream=stream)
        for was, now in zip(logged.records(0, receipt.count), given.records(), strict=False):
            if _content(was) != _content(now):
                raise _reused(key, stream, partition, "other content")


class OnceMethods:
    """What `Client` has of it."""

    _once: OnceCalls

    async def send_once(
        self, stream: str, values: Sequence[Any], *, key: str, partition: str | None = None
    ) -> list[BatchReceipt]:
        """Publish records that this key is given to, once: sent again under the same key within a
        day, by whatever client, they are not logged again, and the receipts say where they are and
        that they are a `duplicate`. For what nobody can send a second time by mistake: requests of
        programs that do not remember what they have sent.

        Args:
            values: what `send` takes as `value`, few enough for one batch.
            key: any text, such as a random UUID; of each stream by itself.
            partition: where they all go. Without it those with a key of their own go where that
                leads, the others where this one does. Where partitions are added meanwhile,
                records may be logged once more, at the new one.

        Raises `KeyReusedError` when the key was given to other records, naming the partitions, if
        any, that have logged theirs before another one refused, and `OutcomeUnknownError` when
        nobody answers in time: send them again under the same key.
        """
        key = text_of("key", key)
        return await self._once.send(text_of("stream", stream), values, key, partition)


def _checked(value: Any) -> NewRecord:
    record = whole_record(value)
    if (
        record.expect_offset is not None
        or record.expect_key_offset is not None
        or record.sequence is not None
    ):
        raise RequestError(
            "a record that is sent once has a condition or a sequence", "give it one of the three"
        )
    return record


async def _turn(so_far: Sized) -> None:
    """Other tasks go on, once enough was done in a row."""
    if len(so_far) % _RECORDS_PER_CHECKPOINT == 0:
        await anyio.lowlevel.checkpoint()


async def _built(records: list[NewRecord], now_ms: int) -> BatchBuilder:
    if len(records) > MAX_BATCH_RECORDS:
        raise RecordTooLargeError(
            f"{len(records)} records for one partition under one key, {MAX_BATCH_RECORDS} at most",
            "give parts of them keys of their own",
        )
    builder = BatchBuilder()
    for record in records:
        builder.add(record, now_ms)
        await _turn(builder)
    return builder


async def _batch(records: list[NewRecord], key: str, now_ms: int) -> bytes:
    builder = await _built(records, now_ms)
    data = builder.build(producer_id=once_id_of(key), sequence=0)
    if len(data) > MAX_BATCH_BYTES:
        raise RecordTooLargeError(
            f"{len(records)} records for one partition under one key make a batch of {len(data)} "
            f"bytes, over the limit of {MAX_BATCH_BYTES}",
            "give parts of them keys of their own",
        )
    return data


def _content(record: Record) -> tuple[object, ...]:
    """But for its time: the second sending is later."""
    return (record.encoding, record.value_bytes, record.key, record.type, dict(record.headers))


def _reused(key: str, stream: str, partition: str, what: str) -> KeyReusedError:
    return KeyReusedError(
        f"the key {shorten(key)} was given to other records of {stream}/{partition} before, with "
        f"{what}",
        "give what is new a key of its own",
    )
