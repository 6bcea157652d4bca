"""Publish and PublishStream, with the producer that a client keeps for each stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from hadron.client.producing.producer import Producer
from hadron.doors.clients import Clients
from hadron.doors.grpc.limits import MAX_PIPELINED
from hadron.doors.grpc.messages import fields_of, new_record, run_of, runs_of
from hadron.doors.grpc.requests import check_count, parse, receive_one
from hadron.doors.grpc.rpc import Talk
from hadron.model.errors import HadronError, RequestError
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.record import NewRecord
from hadron.wire._pb import records_pb2 as pb


class Publishing:
    """At one door."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def publish(self, talk: Talk) -> None:
        request = await receive_one(talk, pb.PublishRequest)
        outcome = await self._begin(request)
        await talk.send((await outcome()).SerializeToString())

    async def publish_stream(self, talk: Talk) -> None:
        send, receive = trio.open_memory_channel[Callable[[], Awaitable[pb.PublishResponse]]](
            MAX_PIPELINED
        )

        async def answer() -> None:
            async with receive:
                async for outcome in receive:
                    await talk.send((await outcome()).SerializeToString())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            async with send:
                while (data := await talk.receive()) is not None:
                    try:
                        outcome = await self._begin(parse(pb.PublishRequest, data))
                    except HadronError as error:
                        # In its turn: those before it are answered first.
                        await send.send(partial(_refuse, error))
                        break
                    await send.send(outcome)

    async def _begin(
        self, request: pb.PublishRequest
    ) -> Callable[[], Awaitable[pb.PublishResponse]]:
        """Hand the records to the producer, behind those that it has; what is returned waits."""
        check_count("a request with {} records", len(request.records))
        records = [new_record(each) for each in request.records]
        client = await self._clients.of(request.namespace or DEFAULT_NAMESPACE)
        if not request.stream:
            raise RequestError("a request names no stream", "set `stream`")
        producer = await client._standing.producer(request.stream)
        if len(records) == 1:
            return await self._one(producer, records[0])
        if any(not (each.expect_offset is each.expect_key_offset is None) for each in records):
            raise RequestError(
                "a record with `expect_offset` or `expect_key_offset` is one of several",
                "publish it alone: a request may be done in part",
            )
        return await self._several(producer, records)

    async def _one(
        self, producer: Producer, record: NewRecord
    ) -> Callable[[], Awaitable[pb.PublishResponse]]:
        pending = await producer.send_soon(record.value, **fields_of(record))

        async def outcome() -> pb.PublishResponse:
            return pb.PublishResponse(runs=[run_of(await pending.wait())])

        return outcome

    async def _several(
        self, producer: Producer, records: list[NewRecord]
    ) -> Callable[[], Awaitable[pb.PublishResponse]]:
        receipts = await producer.send_many(records)

        async def outcome() -> pb.PublishResponse:
            return pb.PublishResponse(runs=runs_of(receipts))

        return outcome


async def _refuse(error: HadronError) -> pb.PublishResponse:
    raise error
