"""Serves `hadron.v1.Streams`: produce, fetch, offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import trio

from hadron.model.batch import StampedBatch, judge_batch
from hadron.model.errors import HadronError, RecordTooLargeError, RequestError
from hadron.model.ids import Ballot
from hadron.model.limits import MAX_ATTACHMENT_BYTES, MAX_BATCH_BYTES
from hadron.model.schema import SchemaObject
from hadron.serving.leading import Door, Leading
from hadron.state.retention import kept_bytes
from hadron.state.streams import AppendBatch
from hadron.wire.calls import Call, Handler
from hadron.wire.messages import ballot_from, ballot_to, common_pb2, method, streams_pb2

_DEFAULT_FETCH_BYTES: Final = 1 << 20
_MAX_FETCH_BYTES: Final = MAX_ATTACHMENT_BYTES - MAX_BATCH_BYTES
"""A fetch may end with a batch that goes over what was asked for."""

_MAX_WAIT_MS: Final = 60_000


class StreamsService:
    def __init__(self, door: Door) -> None:
        self._door = door

    def handlers(self) -> dict[int, Handler]:
        return {
            method("Produce").number: self._produce,
            method("Fetch").number: self._fetch,
            method("Offsets").number: self._offsets,
        }

    def _produce(self, call: Call, request: Any, attachment: memoryview) -> None:
        leading = self._door.enter()
        item = _partition(leading, request)
        if len(attachment) > MAX_BATCH_BYTES:
            raise RecordTooLargeError(
                f"a batch of {len(attachment)} bytes is over the limit of {MAX_BATCH_BYTES}",
                "send fewer or smaller records per batch",
            )
        if request.acks not in streams_pb2.Acks.values():
            raise RequestError(f"unknown acks {request.acks}", "use leader, majority or all")
        head = judge_batch(attachment)

        def done(appended: Any, error: HadronError | None) -> None:
            if error is not None:
                call.fail(error)
            else:
                call.send(
                    streams_pb2.ProduceResponse(
                        base_offset=appended.base_offset,
                        append_ms=appended.append_ms,
                        duplicate=appended.duplicate,
                    ),
                    end=True,
                )

        leading.controller.submit(
            AppendBatch.of(item.id, head, len(attachment)), attachment, acks=request.acks, done=done
        )

    def _fetch(self, call: Call, request: Any, _attachment: memoryview) -> None:
        leading = self._door.enter()
        item = _partition(leading, request)
        max_bytes = min(request.max_bytes or _DEFAULT_FETCH_BYTES, _MAX_FETCH_BYTES)
        if request.HasField("after"):
            after = ballot_from(request.after)
            if leading.visible.recent_ballot(item.id, request.offset - 1) != after:
                call.spawn(self._read_after, leading, call, item.id, request, max_bytes, after)
                return
        leading.visible.check(item.id, request.offset)
        found = leading.visible.recent(item.id, request.offset, max_bytes)
        if found is None or (found and not call.connection.takes_more):
            call.spawn(self._read, leading, call, item.id, request.offset, max_bytes)
        elif found or not request.max_wait_ms:
            _answer_fetch(leading, call, item.id, found)
        else:
            call.spawn(self._wait_and_read, leading, call, item.id, request, max_bytes)

    async def _read_after(
        self, leading: Leading, call: Call, stream_id: int, request: Any, max_bytes: int,
        after: Ballot,
    ) -> None:
        await leading.visible.check_after(stream_id, request.offset, after)
        leading.visible.check(stream_id, request.offset)
        await self._wait_and_read(leading, call, stream_id, request, max_bytes)

    async def _read(
        self, leading: Leading, call: Call, stream_id: int, offset: int, max_bytes: int
    ) -> None:
        async with call.room(max_bytes) as size:
            batches = await leading.visible.read(stream_id, offset, size)
            _answer_fetch(leading, call, stream_id, batches)

    async def _wait_and_read(
        self, leading: Leading, call: Call, stream_id: int, request: Any, max_bytes: int
    ) -> None:
        changed = trio.Event()

        def woken() -> None:
            # A new one: retention moves the bounds too, and nothing has arrived by that.
            nonlocal changed
            changed.set()
            changed = trio.Event()

        unwatch = leading.visible.watch(stream_id, woken)
        try:
            with trio.move_on_after(min(request.max_wait_ms, _MAX_WAIT_MS) / 1000):
                while leading.visible.bounds(stream_id).next_offset <= request.offset:
                    await changed.wait()
        finally:
            unwatch()
        await self._read(leading, call, stream_id, request.offset, max_bytes)

    def _offsets(self, call: Call, request: Any, _attachment: memoryview) -> None:
        leading = self._door.enter()
        item = _partition(leading, request)
        call.spawn(self._answer_offsets, leading, call, item.id, request)

    async def _answer_offsets(
        self, leading: Leading, call: Call, stream_id: int, request: Any
    ) -> None:
        at_ms = request.at_ms
        limits = leading.visible.bounds(stream_id)
        at_offset = await leading.visible.offset_at(stream_id, at_ms) if at_ms > 0 else 0
        size = None
        if request.with_bytes:
            size = await leading.controller.query(lambda db: kept_bytes(db, stream_id))
        before = request.before if request.HasField("before") else limits.next_offset
        ballot = await leading.visible.ballot_before(stream_id, before)
        call.send(
            streams_pb2.OffsetsResponse(
                partitions=[
                    streams_pb2.OffsetsResponse.Partition(
                        partition=leading.replica_set,
                        first_offset=limits.first_offset,
                        next_offset=limits.next_offset,
                        at_offset=at_offset,
                        ballot=ballot_to(ballot) if ballot is not None else None,
                        bytes=size,
                    )
                ]
            ),
            end=True,
        )


def _partition(leading: Leading, request: Any) -> SchemaObject:
    return leading.partition(
        request.namespace, request.stream, request.partition, request.stream_id,
        request.metadata_index,
    )


def _answer_fetch(
    leading: Leading, call: Call, stream_id: int, batches: Sequence[StampedBatch]
) -> None:
    limits = leading.visible.bounds(stream_id)
    call.send(
        streams_pb2.FetchResponse(
            batches=[batch_info(batch) for batch in batches],
            first_offset=limits.first_offset,
            next_offset=limits.next_offset,
        ),
        [batch.data for batch in batches],
        end=True,
    )


def batch_info(batch: StampedBatch) -> common_pb2.BatchInfo:
    """How a batch is announced beside its bytes."""
    return common_pb2.BatchInfo(
        base_offset=batch.base_offset,
        count=batch.count,
        append_ms=batch.append_ms,
        ballot=common_pb2.Ballot(epoch=batch.epoch, incarnation=batch.incarnation),
        length=len(batch.data),
    )
