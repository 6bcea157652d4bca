"""`POST /v1/streams/NAME`: records in, whatever they are written as."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from starlette.responses import Response

from hadron.client.client import Client
from hadron.client.producing.json_lines import JsonLines, Run
from hadron.client.producing.new_records import check_record
from hadron.client.terms.results import BatchReceipt, Receipt
from hadron.doors.clients import REQUEST_S
from hadron.doors.http import limits as bounds
from hadron.doors.http.bodies import (
    CE_BATCH,
    check_count,
    event_in,
    events_of,
    headers_for,
    json_of_body,
    line_of,
    turn,
    value_in,
)
from hadron.doors.http.call import NDJSON_TYPES, Call, DisconnectedError, Query, json_response
from hadron.doors.http.door import Door
from hadron.model.errors import HadronError, RequestError
from hadron.model.problems import shorten
from hadron.model.record import NewRecord

_BATCH_BYTES: Final = 256 << 10
"""Of a producer for NDJSON: as much as is read in one go."""

_MAX_ONCE_CHARACTERS: Final = 255

_MOST: Final = (1 << 63) - 1
Offset = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]


class PublishQuery(Query, frozen=True, kw_only=True):
    """
    Attributes:
        key: of the record; equal keys keep their order.
        type: its event type.
        id: its own id.
        timestamp_ms: its time; without one, now.
        partition: where it goes.
        expect_offset, expect_key_offset: what must be so, or it is not logged.
        lines: what a line of NDJSON is: a value, or a record (value, key, type, id, headers …).
    """

    key: str | None = None
    type: str = ""
    id: str = ""
    timestamp_ms: Annotated[int, msgspec.Meta(ge=-_MOST - 1, le=_MOST)] | None = None
    partition: str | None = None
    expect_offset: Offset | None = None
    expect_key_offset: Annotated[int, msgspec.Meta(ge=-1, le=_MOST)] | None = None
    lines: Literal["values", "records"] = "values"


class Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record, as a line of NDJSON with `lines=records`."""

    value: msgspec.Raw
    key: str | None = None
    type: str = ""
    id: str = ""
    timestamp_ms: int | None = None
    headers: dict[str, str] | None = None
    partition: str | None = None


class Published(msgspec.Struct, omit_defaults=True):
    """One record is in the log. `duplicate`: it was before, and this is where."""

    stream: str
    partition: str
    offset: int
    append_ms: int
    id: str
    duplicate: bool = False


class PublishedRun(msgspec.Struct):
    """Records of one partition. Others' may be between the first and the last."""

    partition: str
    count: int
    first_offset: int
    last_offset: int


class PublishedMany(msgspec.Struct, omit_defaults=True):
    """Several records are in the log."""

    stream: str
    count: int
    partitions: list[PublishedRun]
    duplicate: bool = False


async def publish(door: Door, call: Call, query: PublishQuery) -> Response:
    stream = call.path["stream"]
    client = await door.clients.of(query.namespace)
    once = _once(call)
    if once is not None:
        _refuse_conditions(query)
    if call.media in NDJSON_TYPES and once is None:
        return json_response(await _publish_lines(client, stream, call, query))
    if call.media in NDJSON_TYPES or call.media == CE_BATCH:
        return await _publish_many(client, stream, call, query, once)
    record = await _record(call, query)
    if once is not None:
        receipts = await client.send_once(stream, [record], key=once, partition=query.partition)
        return json_response(_one(receipts[0], record.id))
    receipt = await client.send(
        stream,
        record,
        partition=query.partition,
        expect_offset=query.expect_offset,
        expect_key_offset=query.expect_key_offset,
    )
    return json_response(_published(receipt, record.id))


def _published(receipt: Receipt, own_id: str) -> Published:
    return Published(
        receipt.stream,
        receipt.partition,
        receipt.offset,
        receipt.append_ms,
        own_id or receipt.id,
        receipt.duplicate,
    )


def _one(receipt: BatchReceipt, own_id: str) -> Published:
    return Published(
        receipt.stream,
        receipt.partition,
        receipt.base_offset,
        receipt.append_ms,
        own_id or f"{receipt.stream}/{receipt.partition}/{receipt.base_offset}",
        receipt.duplicate,
    )


# --- several ------------------------------------------------------------------------------------


async def _publish_lines(
    client: Client, stream: str, call: Call, query: PublishQuery
) -> PublishedMany:
    """As they come, and no faster than they are logged."""
    _refuse_for_many(query, but_partition=True)
    async with client.producer(
        stream, batch_bytes=_BATCH_BYTES, partition=query.partition, delivery_timeout_s=REQUEST_S
    ) as producer:
        lines = JsonLines(
            producer,
            to_record=_record_of_line if query.lines == "records" else None,
            max_line_bytes=bounds.MAX_LINE_BYTES,
        )
        try:
            while (data := await call.next_chunk()) is not None:
                await lines.feed(data)
            runs = await lines.finish()
        except HadronError as error:
            error.fates = await lines.fates()
            raise
        except DisconnectedError:
            # What was whole is published, and nobody is told.
            await lines.fates()
            raise
    return _many(stream, runs)


def _many(stream: str, runs: list[Run]) -> PublishedMany:
    return PublishedMany(
        stream,
        sum(run.count for run in runs),
        [PublishedRun(run.partition, run.count, run.first_offset, run.last_offset) for run in runs],
    )


async def _publish_many(
    client: Client, stream: str, call: Call, query: PublishQuery, once: str | None
) -> Response:
    """What is taken as a whole."""
    _refuse_for_many(query, but_partition=True)
    body = await call.body()
    records = await (events_of(body) if call.media == CE_BATCH else _lines(body, query))
    if once is not None:
        receipts = await client.send_once(stream, records, key=once, partition=query.partition)
    else:
        producer = client.producer(stream, partition=query.partition, delivery_timeout_s=REQUEST_S)
        async with producer as opened:
            receipts = await opened.send_many(records)
    runs: dict[str, Run] = {}
    for each in receipts:
        run = runs.setdefault(
            each.partition, Run(each.partition, 0, each.base_offset, each.base_offset)
        )
        run.count += each.count
        run.first_offset = min(run.first_offset, each.base_offset)
        run.last_offset = max(run.last_offset, each.next_offset - 1)
    answer = _many(stream, list(runs.values()))
    answer.duplicate = bool(receipts) and all(each.duplicate for each in receipts)
    return json_response(answer)


async def _lines(body: bytes, query: PublishQuery) -> list[NewRecord]:
    """Others have a turn meanwhile. Raises `RecordTooLargeError` before any record is made."""
    check_count(body.count(b"\n") + (not body.endswith(b"\n")), "lines")
    records = []
    for number, line in enumerate(body.split(b"\n"), 1):
        await turn(number)
        if line.strip():
            try:
                to_record = _record_of_line if query.lines == "records" else _json_record
                records.append(to_record(line.strip()))
            except RequestError as error:
                raise type(error)(f"line {number}: {error.message}", error.hint) from None
    return records


def _refuse_for_many(query: PublishQuery, *, but_partition: bool) -> None:
    given = {
        "key": query.key,
        "type": query.type or None,
        "id": query.id or None,
        "timestamp_ms": query.timestamp_ms,
        "expect_offset": query.expect_offset,
        "expect_key_offset": query.expect_key_offset,
        "partition": None if but_partition else query.partition,
    }
    wrong = [f"{name} {shorten(each)}" for name, each in given.items() if each is not None]
    if wrong:
        raise RequestError(
            f"{', '.join(wrong)} is of one record, and the body has several",
            "use lines=records, whose lines have a key, a type and so on, or CloudEvents",
        )


# --- one ----------------------------------------------------------------------------------------


def _once(call: Call) -> str | None:
    key = call.headers.get("idempotency-key")
    if key is None:
        return None
    # The draft of the IETF has it as a quoted text; nearly nobody writes it so.
    key = key.strip()
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if not 0 < len(key) <= _MAX_ONCE_CHARACTERS or not key.isprintable():
        raise RequestError(
            f"the Idempotency-Key {shorten(key)} is none",
            f"1 to {_MAX_ONCE_CHARACTERS} characters, such as a random UUID",
        )
    return key


def _refuse_conditions(query: PublishQuery) -> None:
    given = {"expect_offset": query.expect_offset, "expect_key_offset": query.expect_key_offset}
    wrong = [f"{name} {each}" for name, each in given.items() if each is not None]
    if wrong:
        raise RequestError(
            f"{' and '.join(wrong)} beside an Idempotency-Key: sent again, the record itself would "
            "have made it untrue",
            "give it one of the two: a record with a condition is logged once anyway",
        )


async def _record(call: Call, query: PublishQuery) -> NewRecord:
    """The one that the request is."""
    event = await event_in(call)
    if event is not None:
        return _with(query, event)
    return NewRecord(
        value=await value_in(call),
        key=query.key,
        type=query.type,
        timestamp_ms=query.timestamp_ms,
        headers=headers_for(call),
        id=query.id,
    )


def _with(query: PublishQuery, record: NewRecord) -> NewRecord:
    """An event says all that there is to say."""
    if query.type or query.id or query.timestamp_ms is not None:
        raise RequestError(
            "type, id or timestamp_ms is given beside an event", "an event has its own"
        )
    if query.key is not None:
        return msgspec.structs.replace(record, key=query.key)
    return record


def _json_record(line: bytes) -> NewRecord:
    return NewRecord(value=json_of_body(line))


def _record_of_line(line: bytes) -> NewRecord:
    given, value = line_of(line, Line, "record", '{"value": 1, "key": "a", "type": "b.c"}')
    return check_record(
        NewRecord(
            value=value,
            key=given.key,
            type=given.type,
            timestamp_ms=given.timestamp_ms,
            headers=given.headers,
            id=given.id,
            partition=given.partition,
        )
    )
