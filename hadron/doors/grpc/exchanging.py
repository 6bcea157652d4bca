"""Messages: to publish on exchanges, and to subscribe to them."""

from __future__ import annotations

from typing import Final

import trio

from hadron.client.exchanges.inbox import CUT_S
from hadron.client.exchanges.message import Message
from hadron.client.exchanges.messages import Messages, take_one, take_ready
from hadron.client.producing.new_records import check_record
from hadron.doors.clients import Clients
from hadron.doors.damage import told_raw
from hadron.doors.grpc.limits import READ_BYTES, READ_RECORDS, Limits
from hadron.doors.grpc.messages import key_of, runs_of, set_key, value_message, value_of
from hadron.doors.grpc.requests import parse, published, receive_one, whole
from hadron.doors.grpc.rpc import Talk
from hadron.doors.grpc.turns import Turns
from hadron.doors.held import Held
from hadron.model.errors import RequestError
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.record import NewRecord
from hadron.model.topics import check_topic
from hadron.wire._pb import messages_pb2 as pb

_DEFAULT_BUFFER_BYTES: Final = 1 << 20
_MAX_BUFFER_BYTES: Final = 4 << 20


class Exchanging:
    """At one door."""

    def __init__(self, clients: Clients, limits: Limits) -> None:
        self._clients = clients
        self._buffers = Held(
            limits.buffer_bytes,
            "subscriptions at this node's gRPC door",
            "subscribe with several patterns at once, with less `max_buffer_bytes`, or at another "
            "node",
        )

    async def publish(self, talk: Talk) -> None:
        # It counts as held until the call is over.
        data, what = await whole(talk.take()), "a request with {} messages"
        request, parts = published(pb.MessagesRequest, "messages", data, what)
        messages, turns = [], Turns()
        for part in parts:
            # All of them before the first is published.
            await turns.step(len(part))
            message = new_message(parse(pb.NewMessage, part))
            check_topic(message.type)
            check_record(message)
            messages.append(message)
        client = await self._clients.of(request.namespace or DEFAULT_NAMESPACE)
        exchange = client.exchange(request.exchange)
        found = await exchange.publish_many(messages, logged=request.logged)
        response = pb.MessagesResponse(
            deliveries=found.deliveries, dropped=found.dropped, runs=runs_of(found.receipts)
        )
        await talk.send(response.SerializeToString())

    async def subscribe(self, talk: Talk) -> None:
        request = await receive_one(talk, pb.SubscriptionRequest)
        client = await self._clients.of(request.namespace or DEFAULT_NAMESPACE)
        size = request.max_buffer_bytes or _DEFAULT_BUFFER_BYTES
        if size > _MAX_BUFFER_BYTES:
            raise RequestError(
                f"max_buffer_bytes is {size}", f"at most {_MAX_BUFFER_BYTES}, for each subscription"
            )
        room = self._buffers.share()
        room.take(size)
        try:
            async with client.exchange(request.exchange).subscribe(
                list(request.patterns) or ">", group=request.group or None, max_buffer_bytes=size
            ) as messages:
                subscribed = pb.SubscriptionEvent(subscribed=pb.SubscriptionEvent.Subscribed())
                await talk.send(subscribed.SerializeToString())
                while (first := await take_one(messages)) is not None:
                    await _send(talk, messages, first)
        finally:
            room.end()


async def _send(talk: Talk, messages: Messages, first: Message) -> None:
    """What is here, in as few events as it fits into."""
    event, size = pb.SubscriptionEvent(), 0
    for each in (first, *take_ready(messages, READ_RECORDS - 1)):
        message = arrived(each)
        event.arrived.messages.append(message)
        size += message.ByteSize()
        if size >= READ_BYTES:
            await send_or_end(talk, messages, event.SerializeToString())
            event, size = pb.SubscriptionEvent(), 0
    if size:
        await send_or_end(talk, messages, event.SerializeToString())


async def send_or_end(talk: Talk, messages: Messages, data: bytes) -> None:
    """Raises what has ended a subscription meanwhile whose program does not read."""
    while True:
        with trio.move_on_after(CUT_S) as waiting:
            await talk.send(data)
        if not waiting.cancelled_caught:
            return
        if (failure := messages._inbox.failure) is not None:
            raise failure


def new_message(message: pb.NewMessage) -> NewRecord:
    """Raises `InvalidRecordError`."""
    return NewRecord(
        value_of(message.value),
        key=key_of(message),
        type=message.topic,
        timestamp_ms=message.timestamp_ms if message.HasField("timestamp_ms") else None,
        headers=dict(message.headers) or None,
    )


def arrived(message: Message) -> pb.ArrivedMessage:
    found = pb.ArrivedMessage(
        topic=message.topic,
        timestamp_ms=message.timestamp_ms,
        type=message.type,
        missed=message.missed,
        interrupted=message.interrupted,
    )
    record = message._record
    if damage := record.damage:
        found.damage = damage
        found.raw = told_raw(record)
        return found
    set_key(found, message.key)
    found.value.CopyFrom(value_message(record.encoding, message.value_bytes))
    found.headers.update(message.headers)
    return found
