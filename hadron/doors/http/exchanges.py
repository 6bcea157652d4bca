"""`/v1/exchanges/NAME`: messages in, and `/messages`: those that come, for as long as somebody
reads them.

Who reads too slowly is told how many messages it has missed, before the next one; what waits for it
is bounded, and who takes nothing is cut off, as any other subscriber (EXCHANGES X3, X4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import msgspec
import trio
from starlette.responses import Response

from hadron.client.exchanges.exchange import Exchange
from hadron.client.exchanges.message import Message
from hadron.client.exchanges.messages import Messages, take_ready
from hadron.client.terms.results import Dispatched
from hadron.doors.http import limits as bounds
from hadron.doors.http.bodies import (
    CE_BATCH,
    event_in,
    events_of,
    headers_for,
    json_of_body,
    line_of,
    value_in,
)
from hadron.doors.http.call import NDJSON, NDJSON_TYPES, Call, Query, json_response
from hadron.doors.http.door import Door
from hadron.doors.http.live import EVENTS, PIECE_BYTES, RETRY_MS, Live
from hadron.doors.http.messages import plain
from hadron.doors.http.records import put_key_and_value, raw_base64
from hadron.model.errors import HadronError, OutcomeUnknownError, RecordFates, RequestError
from hadron.model.lines import Lines
from hadron.model.problems import shorten
from hadron.model.record import NewRecord

_BUFFER_BYTES: Final = 1 << 20
"""What waits for one reader: a largest message. All that may be open have 200 MiB."""

_AT_ONCE: Final = 1_000
"""Messages that are written together, at most."""

_CALL_MESSAGES: Final = 500
_CALL_BYTES: Final = 64 << 10
"""Of NDJSON, what is published together, in one call: so much is known to be published, or not."""

_LIVE: Final = "live"
"""The id of all events: who comes back with it was away, and nobody knows what it has missed."""


class SendQuery(Query, frozen=True, kw_only=True):
    """
    Attributes:
        topic: on which it is published; an event has its type instead.
        key: of the message.
        logged: wait until it is in the exchange's to_stream, on a majority of disks.
        lines: what a line of NDJSON is: a value, or a message (topic, value, key, headers).
    """

    topic: str = ""
    key: str | None = None
    logged: bool = False
    lines: Literal["values", "messages"] = "values"


class MessagesQuery(Query, frozen=True, kw_only=True):
    """
    Attributes:
        pattern: topics, such as eu.*; several are separated by blanks.
        group: of all subscriptions of a group, one gets each message.
    """

    pattern: str = ">"
    group: str | None = None


class MessageLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message, as a line of NDJSON with `lines=messages`."""

    value: msgspec.Raw
    topic: str = ""
    key: str | None = None
    headers: dict[str, str] | None = None


class Logged(msgspec.Struct):
    """Where messages are in the exchange's `to_stream`. Others may be between the first and the
    last."""

    stream: str
    partition: str
    count: int
    first_offset: int
    last_offset: int


class Sent(msgspec.Struct, omit_defaults=True):
    """Messages are on their way.

    Attributes:
        deliveries: to so many subscriptions, counted per message; 0: nobody was there.
        dropped: not to so many, which do not read what they have got before.
    """

    exchange: str
    messages: int
    deliveries: int
    dropped: int
    logged: Logged | None = None


class MessageAnswer(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A message. A value is JSON as it was sent, or text; other bytes are `value_base64`.

    Attributes:
        damage: why it cannot be read, though it is as its publisher sent it.
        raw_base64: its bytes then, as a record's.
    """

    topic: str
    timestamp_ms: int
    type: str = ""
    key: str | None = None
    key_base64: str | None = None
    value: Any = msgspec.UNSET
    value_base64: str | None = None
    headers: dict[str, str] = {}
    damage: str = ""
    raw_base64: str = ""


async def describe(door: Door, call: Call, query: Query) -> Response:
    client = await door.clients.of(query.namespace)
    return json_response(plain(await client.exchange(call.path["exchange"]).describe()))


# --- in -----------------------------------------------------------------------------------------


async def publish(door: Door, call: Call, query: SendQuery) -> Response:
    name = call.path["exchange"]
    client = await door.clients.of(query.namespace)
    sending = _Sending(client.exchange(name), name, logged=query.logged)
    if call.media in NDJSON_TYPES:
        if query.key is not None:
            raise RequestError(
                f"key {shorten(query.key)} is of one message, and the body has several",
                "use lines=messages, whose lines have a topic, a key and headers",
            )
        await sending.lines(call, query)
    elif call.media == CE_BATCH:
        _refuse_beside_events(query)
        await sending.all(await events_of(await call.body()))
    else:
        await sending.all([await _one(call, query)])
    return json_response(sending.sent)


async def _one(call: Call, query: SendQuery) -> NewRecord:
    event = await event_in(call)
    if event is not None:
        _refuse_beside_events(query)
        return event
    return NewRecord(
        value=await value_in(call),
        key=query.key,
        type=_topic(query.topic),
        headers=headers_for(call),
    )


def _topic(topic: str) -> str:
    if not topic:
        raise RequestError("no topic is given", "add ?topic=, such as eu.ibm")
    return topic


def _refuse_beside_events(query: SendQuery) -> None:
    if query.topic or query.key is not None:
        raise RequestError("topic or key is given beside an event", "an event's type is its topic")


class _Sending:
    """Messages of one request, and what became of them."""

    def __init__(self, exchange: Exchange, name: str, *, logged: bool) -> None:
        self._exchange = exchange
        self._logged = logged
        self.sent = Sent(name, 0, 0, 0)

    async def lines(self, call: Call, query: SendQuery) -> None:
        """All of the body, as it comes. Raises what is wrong, with what became of lines before."""
        lines, sending = Lines(bounds.MAX_LINE_BYTES), 0
        data: bytes | None = b""
        try:
            while data is not None:
                data = await call.next_chunk()
                latest = lines.finish() if data is None else lines.feed(data)
                for messages in _parted(lines, latest, query):
                    sending = len(messages)
                    await self.all(messages)
                    sending = 0
        except HadronError as error:
            unknown = sending if isinstance(error, OutcomeUnknownError) else 0
            error.fates = RecordFates(self.sent.messages, unknown, sending - unknown)
            raise

    async def all(self, messages: list[NewRecord]) -> None:
        found = await self._exchange.publish_many(messages, logged=self._logged)
        sent = self.sent
        sent.messages += len(messages)
        sent.deliveries += found.deliveries
        sent.dropped += found.dropped
        self._note(found)

    def _note(self, found: Dispatched) -> None:
        for each in found.receipts:
            logged = self.sent.logged
            if logged is None:
                logged = self.sent.logged = Logged(
                    each.stream, each.partition, 0, each.base_offset, 0
                )
            logged.count += each.count
            logged.last_offset = each.next_offset - 1


def _parted(lines: Lines, latest: Sequence[bytes], query: SendQuery) -> Iterator[list[NewRecord]]:
    """The latest lines as messages, in parts each of which is one call."""
    part: list[NewRecord] = []
    size = 0
    for number, line in enumerate(latest, lines.seen - len(latest) + 1):
        if not line:
            continue
        if part and (size + len(line) > _CALL_BYTES or len(part) >= _CALL_MESSAGES):
            yield part
            part, size = [], 0
        try:
            part.append(_message(line, query))
        except RequestError as error:
            raise type(error)(f"line {number}: {error.message}", error.hint) from None
        size += len(line)
    if part:
        yield part


def _message(line: bytes, query: SendQuery) -> NewRecord:
    if query.lines == "values":
        return NewRecord(value=json_of_body(line), type=_topic(query.topic))
    given, value = line_of(line, MessageLine, "message", '{"topic": "eu.ibm", "value": 1}')
    return NewRecord(
        value=value, key=given.key, type=_topic(given.topic or query.topic), headers=given.headers
    )


# --- out ----------------------------------------------------------------------------------------


async def messages(door: Door, call: Call, query: MessagesQuery) -> None:
    """Until whoever reads is gone, the exchange is, or the node stops."""
    media = call.choose(EVENTS, NDJSON)
    client = await door.clients.of(query.namespace)
    exchange = client.exchange(call.path["exchange"])
    live = Live(call, door.limits, media)
    with live.open_at(door):
        was_here = call.headers.get("last-event-id", "").strip() == _LIVE

        async def work() -> None:
            subscription = exchange.subscribe(
                query.pattern.split(), group=query.group, max_buffer_bytes=_BUFFER_BYTES
            )
            async with subscription as found:
                await live.say(_begin(live, was_here=was_here))
                await _write_all(live, found, door.limits.heartbeat_s)

        await live.run(work, call.wait_disconnected)


def _begin(live: Live, *, was_here: bool) -> bytes:
    """From here on everything comes. `EventSource` connects again by itself, which is a gap."""
    begun = f"retry: {RETRY_MS}\nid: {_LIVE}\n\n".encode() if live.is_events else b""
    return begun + (_interrupted(live) if was_here else b"")


async def _write_all(live: Live, messages: Messages, look_s: float) -> None:
    """Until the client is closed. Every `look_s` of silence it is looked at what was missed behind
    the last message."""
    handed = told = 0
    while True:
        first = None
        with trio.move_on_after(look_s) as waiting:
            first = await anext(messages, None)
        if first is None and not waiting.cancelled_caught:
            return
        piece = bytearray()
        for message in (first, *take_ready(messages, _AT_ONCE - 1)) if first is not None else ():
            if message.interrupted:
                piece += _interrupted(live)
            handed += message.missed
            if handed > told:
                piece += _missed(live, handed - told)
                told = handed
            piece += live.word("", msgspec.json.encode(_answer_of(message)))
            if len(piece) >= PIECE_BYTES:
                await live.say(bytes(piece))
                piece.clear()
        if first is None and messages.missed > told:
            piece += _missed(live, messages.missed - told)
            told = messages.missed
        if piece:
            await live.say(bytes(piece))


def _missed(live: Live, count: int) -> bytes:
    return _told(live, "missed", {"messages": count})


def _interrupted(live: Live) -> bytes:
    return _told(live, "interrupted", {})


def _told(live: Live, kind: str, what: dict[str, int]) -> bytes:
    """What is no message. As a line it has its kind as the only member."""
    return live.word(kind, msgspec.json.encode(what if live.is_events else {kind: what}))


def _answer_of(message: Message) -> MessageAnswer:
    record = message._record
    if damage := record.damage:
        return MessageAnswer(
            topic=message.topic,
            timestamp_ms=record.timestamp_ms,
            damage=damage,
            raw_base64=raw_base64(record),
        )
    answer = MessageAnswer(
        topic=message.topic, timestamp_ms=record.timestamp_ms, headers=dict(record.headers)
    )
    if record.type != answer.topic:
        answer.type = record.type
    put_key_and_value(answer, record)
    return answer
