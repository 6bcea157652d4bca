"""`GET /v1/streams/NAME/records`: records as JSON, NDJSON, or CloudEvents."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Final

import msgspec
from starlette.responses import Response

from hadron.client.client import Client
from hadron.client.reading.reader import Position, offsets_kept
from hadron.doors.http import limits as bounds
from hadron.doors.http.bodies import CE_BATCH, CE_JSON, quoted
from hadron.doors.http.call import JSON, NDJSON, Call, Query
from hadron.doors.http.door import Door
from hadron.doors.http.records import RecordAnswer, event_of, json_of
from hadron.doors.positions import Cursor, format_cursor, parse_position
from hadron.model import cloudevents
from hadron.model.errors import (
    DamagedRecordError,
    NotFoundError,
    OffsetOutOfRangeError,
    RequestError,
)
from hadron.model.limits import MAX_OFFSET
from hadron.model.problems import shorten
from hadron.model.record import Record

_DEFAULT_LIMIT: Final = 100
_PIECE_BYTES: Final = 64 << 10
"""Of NDJSON: written at once."""

_OFFSET: Final = re.compile(r"\d{1,19}", re.ASCII)

Limit = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]


class ReadQuery(Query, frozen=True, kw_only=True):
    """
    Attributes:
        from_: where to begin.
        partition: None reads all, one after the other.
        limit: so many records; of JSON 100, at most 10,000, of NDJSON all.
    """

    from_: str = msgspec.field(default="earliest", name="from")
    partition: str | None = None
    limit: Limit | None = None


class RecordQuery(Query, frozen=True, kw_only=True):
    """
    Attributes:
        partition: needed where the stream has several.
    """

    partition: str | None = None


class RecordsAnswer(msgspec.Struct):
    """Records, and where to go on: `from=` takes `next`."""

    records: list[RecordAnswer]
    next: str


async def read(door: Door, call: Call, query: ReadQuery) -> Response | None:
    media = call.choose(JSON, NDJSON, CE_BATCH, "application/jsonl", "application/ndjson")
    position = parse_position(query.from_, door.now_ms())
    client = await door.clients.of(query.namespace)
    source = Source(client, call.path["stream"], query.partition, position)
    if media in (JSON, CE_BATCH):
        limit = _DEFAULT_LIMIT if query.limit is None else query.limit
        if limit > bounds.MAX_RECORDS:
            raise RequestError(
                f"limit {limit} is over {bounds.MAX_RECORDS}", f"{NDJSON} may be of any length"
            )
        return await _whole(source, call, limit, media)
    await _stream(source, call, query.limit, media)
    return None


class Source:
    """Some partitions of a stream, one after the other, and how far each was read."""

    def __init__(
        self, client: Client, stream: str, partition: str | None, position: Position | Cursor
    ) -> None:
        self._client = client
        self.stream = stream
        self._partition = partition
        self._position = position
        self.cursor: Cursor = {}
        self.stream_id: int | None = None
        """Of the stream in which those places are (PROTOCOL D3)."""
        self.skipped: dict[str, tuple[int, int]] = {}
        """By partition, what was asked for and retention has dropped: from there, to here."""

    async def begin(self, *, pass_over_dropped: bool = False) -> None:
        """Find out where each partition begins. Raises `OffsetOutOfRangeError`."""
        position = self._position
        at = position if isinstance(position, datetime) else None
        found = await self._client.offsets(self.stream, partition=self._partition, at_ms=at)
        if isinstance(position, dict):
            unknown = set(position) - {each.partition for each in found}
            if unknown and self._partition is None:
                raise NotFoundError(
                    f"stream {self.stream!r} has no partition {min(unknown)!r}",
                    f"it has {', '.join(each.partition for each in found)}",
                )
        for each in found:
            self.stream_id = each.stream_id
            first, behind = each.first_offset, each.next_offset
            if isinstance(position, dict):
                start = position.get(each.partition, first)
            elif isinstance(position, datetime):
                start = each.at_offset
            elif position == "earliest":
                start = first
            elif position == "latest":
                start = behind
            else:
                number = int(position)
                start = max(first, behind + number) if number < 0 else number
            if start < first and pass_over_dropped:
                self.skipped[each.partition] = start, first
                start = first
            if not first <= start <= behind:
                raise OffsetOutOfRangeError(
                    f"there is no offset {start} in {self.stream}/{each.partition}, which has "
                    f"{offsets_kept(each)}",
                    "retention has dropped it: from=earliest begins at the first one that is kept"
                    if start < first
                    else f"the next record gets {behind}: from=latest begins there, from=earliest "
                    "at the first one that is kept",
                )
            self.cursor[each.partition] = start

    async def batches(self, limit: int | None) -> AsyncGenerator[list[Record], None]:
        """Records up to the ends as of now, some at a time."""
        for partition, start in list(self.cursor.items()):
            if limit is not None and limit <= 0:
                return
            # Closed, because what was fetched ahead of who stops half way is several megabytes.
            async with self._client.read_batches(
                self.stream, partition=partition, start=start, limit=limit, stream_id=self.stream_id
            ) as batches:
                async for batch in batches:
                    records = batch.records()
                    yield records
                    if limit is not None:
                        limit -= len(records)

    def took(self, record: Record) -> None:
        self.cursor[record.partition] = record.offset + 1


async def _whole(source: Source, call: Call, limit: int, media: str) -> Response:
    write: Callable[[Record], bytes] = json_of if media == JSON else event_of
    await source.begin()
    parts: list[bytes] = []
    size = passed_over = 0
    async with aclosing(source.batches(limit)) as batches:
        async for records in batches:
            for record in records:
                source.took(record)
                if media == JSON or not record.damage:
                    parts.append(write(record))
                    size += len(parts[-1])
                    call.hold_answer(size)
                else:
                    passed_over += 1
                if size >= bounds.MAX_ANSWER_BYTES:
                    break
            if size >= bounds.MAX_ANSWER_BYTES:
                break
    behind = format_cursor(source.cursor)
    before, after = b"[", b"]"
    if media == JSON:
        before, after = b'{"records":[', b'],"next":%b}' % msgspec.json.encode(behind)
    # It may be large: nothing of it is copied twice.
    parts = parts or [b""]
    parts[0] = before + parts[0]
    parts[-1] += after
    headers = {"hadron-next": behind}
    if passed_over:
        # Damaged records are no events, and there is no other place to say that they are there.
        headers["hadron-passed-over"] = str(passed_over)
    return Response(b",".join(parts), 200, headers, media)


async def _stream(source: Source, call: Call, limit: int | None, media: str) -> None:
    """All that there is, as it is read, and no faster than it is taken."""
    call.hold_answer(bounds.READING_BYTES)
    await source.begin()
    await call.send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-type", media.encode()), *SECURITY_HEADERS],
        }
    )
    piece = bytearray()
    if call.scope["method"] == "HEAD":
        # No body is sent, so that nobody would be noticed who has gone. How long it would be is not
        # known, as it is not said where there is one.
        await _send(call, b"", more=True)
        await _send(call, b"", more=False)
        return
    async with aclosing(source.batches(limit)) as batches:
        async for records in batches:
            for record in records:
                piece += json_of(record)
                piece += b"\n"
                if len(piece) >= _PIECE_BYTES:
                    await _send(call, bytes(piece), more=True)
                    piece.clear()
    await _send(call, bytes(piece), more=False)


SECURITY_HEADERS: Final = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
"""Of every answer: what is data is not to be taken for a page, nor kept by anybody on the way."""


async def _send(call: Call, body: bytes, *, more: bool) -> None:
    await call.send({"type": "http.response.body", "body": body, "more_body": more})


# --- one record ---------------------------------------------------------------------------------


async def read_one(door: Door, call: Call, query: RecordQuery) -> Response:
    """A record's value as the body, and the rest of it in headers: CloudEvents' binary mode."""
    stream, offset = call.path["stream"], _offset_in(call.path["offset"])
    client = await door.clients.of(query.namespace)
    partition = query.partition
    if partition is None:
        found = await client.offsets(stream)
        if len(found) > 1:
            raise RequestError(
                f"stream {stream!r} has {len(found)} partitions, and each has its offsets",
                f"give partition=, one of {', '.join(each.partition for each in found)}",
            )
        partition = found[0].partition
    async with client.read(stream, partition=partition, offset=offset, limit=1) as records:
        async for record in records:
            return _one(record, call)
    raise NotFoundError(f"{stream}/{partition} has no offset {offset} yet")


def _offset_in(text: str) -> int:
    """Looked at before it is a number: one of thousands of digits is none of Python's."""
    if _OFFSET.fullmatch(text) is None or int(text) > MAX_OFFSET:
        raise RequestError(
            f"{shorten(text)} is no offset", f"give a whole number from 0 to {MAX_OFFSET}"
        )
    return int(text)


def _one(record: Record, call: Call) -> Response:
    media = record.content_type if not record.damage else JSON
    chosen = call.choose("*/*", media.partition(";")[0].strip().lower(), JSON, CE_JSON)
    if chosen == CE_JSON:
        if damage := record.damage:
            where = f"{record.stream}/{record.partition}/{record.offset}"
            raise DamagedRecordError(
                f"record {where} is no event, because it is damaged at its source: {damage}",
                f"as {JSON} it has its bytes, in `raw_base64`",
                reason=damage,
            )
        return Response(event_of(record), 200, media_type=CE_JSON)
    if record.damage or (chosen == JSON and JSON in call.headers.get("accept", "").lower()):
        return Response(json_of(record, alone=True), 200, media_type=JSON)
    event = cloudevents.from_record(record)
    headers = {"ce-specversion": cloudevents.SPECVERSION}
    for name in ("id", "source", "type", "subject", "time", "dataschema"):
        if (text := getattr(event, name)) is not None:
            headers[f"ce-{name}"] = quoted(text)
    for name, value in event.extensions.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        headers[f"ce-{name}"] = quoted(text)
    body = b"" if event.data is cloudevents.ABSENT else record.value_bytes
    response = Response(body, 200, headers)
    if event.datacontenttype is not None and _is_header(event.datacontenttype):
        response.headers["content-type"] = event.datacontenttype
    return response


def _is_header(text: str) -> bool:
    return text.isascii() and text.isprintable()
