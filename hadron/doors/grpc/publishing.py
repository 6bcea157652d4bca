"""Publish and PublishStream, with the producer that a client keeps for each stream.

Rule: a request counts as held by the door until all of its records are in the producer's buffer,
which is bounded as well, and one of Publish until it is answered. What has found no room there when
it is late was not sent, and is told so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

import trio

from hadron.client.producing.bulk import Segment, finish_bulk, send_bulk
from hadron.client.producing.new_records import check_record
from hadron.client.producing.publisher import Pending, Publisher
from hadron.doors.clients import REQUEST_S, Clients
from hadron.doors.grpc.limits import MAX_PIPELINED
from hadron.doors.grpc.messages import new_record, run_of, runs_of
from hadron.doors.grpc.requests import parse, published, whole
from hadron.doors.grpc.rpc import Talk
from hadron.doors.grpc.turns import Turns
from hadron.model.errors import DeadlineExceededError, HadronError, InvalidRecordError, RequestError
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.record import NewRecord
from hadron.model.words import counted
from hadron.wire._pb import records_pb2 as pb

_Outcome: TypeAlias = Callable[[], Awaitable[pb.PublishResponse]]
"""Waits for the answer to a request whose records are in the buffer."""


class Publishing:
    """At one door."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def publish(self, talk: Talk) -> None:
        # It counts as held until the call is over.
        outcome = await self._begin(await whole(talk.take()))
        await talk.send((await outcome()).SerializeToString())

    async def publish_stream(self, talk: Talk) -> None:
        send, receive = trio.open_memory_channel[_Outcome](MAX_PIPELINED)

        async def answer() -> None:
            async with receive:
                async for outcome in receive:
                    await talk.send((await outcome()).SerializeToString())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            async with send:
                while (data := await talk.take()) is not None:
                    try:
                        outcome = await self._begin(data)
                    except HadronError as error:
                        # In its turn: those before it are answered first.
                        await send.send(partial(_refuse, error))
                        break
                    talk.rpc.consumed(len(data))
                    await send.send(outcome)

    async def _begin(self, data: bytes) -> _Outcome:
        """Hand the records to the producer, behind those that it has."""
        request, parts = published(pb.PublishRequest, "records", data, "a request with {} records")
        count, turns = len(parts), Turns()
        records = []
        for number, part in enumerate(parts, 1):
            # All of them before the first is sent.
            await turns.step(len(part))
            records.append(_checked(part, number, count))
        client = await self._clients.of(request.namespace or DEFAULT_NAMESPACE)
        if not request.stream:
            raise RequestError("a request names no stream", "set `stream`")
        publisher = (await client._standing.producer(request.stream))._publisher
        if count == 1:
            return await self._one(publisher, records[0])
        if any(not (each.expect_offset is each.expect_key_offset is None) for each in records):
            raise RequestError(
                "a record with `expect_offset` or `expect_key_offset` is one of several",
                "publish it alone: a request may be done in part",
            )
        return await self._several(publisher, records)

    async def _one(self, publisher: Publisher, record: NewRecord) -> _Outcome:
        with trio.move_on_after(REQUEST_S) as waiting:
            sender = await publisher.wait_room(record.key, record.partition)
        if waiting.cancelled_caught:
            raise _late(1, retryable=True)
        pending = Pending(*publisher.add(record, sender))

        async def outcome() -> pb.PublishResponse:
            return pb.PublishResponse(runs=[run_of(await pending.wait())])

        return outcome

    async def _several(self, publisher: Publisher, records: list[NewRecord]) -> _Outcome:
        segments: list[Segment] = []
        trouble: Exception | None = None
        try:
            with trio.move_on_after(REQUEST_S):
                await send_bulk(publisher, records, segments)
        except HadronError as error:
            trouble = error
        unsent = len(records) - sum(segment.count for segment in segments)
        if unsent and trouble is None:
            trouble = _late(unsent, retryable=not segments)

        async def outcome() -> pb.PublishResponse:
            try:
                receipts = await finish_bulk(publisher, segments, trouble)
            except HadronError as error:
                if error.fates is not None:
                    error.fates = error.fates._replace(lost=error.fates.lost + unsent)
                raise
            return pb.PublishResponse(runs=runs_of(receipts))

        return outcome


def _checked(data: bytes, number: int, count: int) -> NewRecord:
    """Raises `InvalidRecordError`, and `RequestError` for what is no record."""
    message = parse(pb.PublishedRecord, data)
    try:
        return check_record(new_record(message))
    except InvalidRecordError as error:
        if count == 1:
            raise
        raise InvalidRecordError(
            f"record {number} of {count}: {error.message}", error.hint
        ) from None


def _late(unsent: int, *, retryable: bool) -> DeadlineExceededError:
    return DeadlineExceededError(
        f"{counted(unsent, 'record was', 'records were')} not sent: the stream's partitions have "
        f"made no room for {REQUEST_S:g} s",
        "publish them again",
        retryable=retryable,
    )


async def _refuse(error: HadronError) -> pb.PublishResponse:
    raise error
