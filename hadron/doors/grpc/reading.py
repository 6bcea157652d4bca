"""Read: records of a stream, in order."""

from __future__ import annotations

from collections.abc import Callable

from hadron.doors.clients import Clients
from hadron.doors.grpc.limits import READ_BYTES, READ_RECORDS
from hadron.doors.grpc.messages import stored_record
from hadron.doors.grpc.requests import receive_one
from hadron.doors.grpc.rpc import Talk
from hadron.doors.positions import Place, parse_position
from hadron.model.errors import RequestError
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.record_batch import RecordBatch
from hadron.wire._pb import records_pb2 as pb


def position_of(text: str, now_ms: int) -> Place:
    """Raises `RequestError`."""
    position = parse_position(text or "earliest", now_ms)
    if isinstance(position, dict):
        raise RequestError(f"start={text!r} is a place in several partitions", "read one by one")
    return position


class Reading:
    """At one door."""

    def __init__(self, clients: Clients, now_ms: Callable[[], int]) -> None:
        self._clients = clients
        self._now_ms = now_ms

    async def read(self, talk: Talk) -> None:
        request = await receive_one(talk, pb.ReadRequest)
        client = await self._clients.of(request.namespace or DEFAULT_NAMESPACE)
        async with client.read_batches(
            request.stream,
            partition=request.partition or None,
            start=position_of(request.start, self._now_ms()),
            limit=request.limit if request.HasField("limit") else None,
            follow=request.follow,
        ) as batches:
            async for batch in batches:
                await _send(talk, batch)


async def _send(talk: Talk, batch: RecordBatch) -> None:
    answer, size = pb.ReadResponse(), 0
    for record in batch.records():
        message = stored_record(record)
        answer.records.append(message)
        size += message.ByteSize()
        if size >= READ_BYTES or len(answer.records) >= READ_RECORDS:
            await talk.send(answer.SerializeToString())
            answer, size = pb.ReadResponse(), 0
    if answer.records:
        await talk.send(answer.SerializeToString())
