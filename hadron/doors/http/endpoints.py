"""`POST /v1/endpoints/NAME`: a call, whose input and answer may be streams; and what lives there.

A call is the client's, with all that it promises of deadlines and of what is run again. Whoever
hangs up has cancelled it, down to its handler; whoever does not read holds its handler back.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
import trio
from starlette.responses import Response

from hadron.client.client import Client
from hadron.client.endpoints.calls import MAX_TIMEOUT_S, Told, spec_of, told
from hadron.client.endpoints.incoming import TRACE_HEADERS
from hadron.client.endpoints.items import Packed, pack
from hadron.client.endpoints.methods import CALL_TIMEOUT_S, STREAM_TIMEOUT_S
from hadron.client.endpoints.stream import CallStream, take_some
from hadron.doors.clients import REQUEST_S
from hadron.doors.http import limits as bounds
from hadron.doors.http.bodies import json_of_body, quoted, unquoted, value_in
from hadron.doors.http.call import JSON, NDJSON, NDJSON_TYPES, Call, Query, json_response
from hadron.doors.http.door import Door
from hadron.doors.http.live import EVENTS, PIECE_BYTES, Live, unless_gone
from hadron.doors.http.problems import HttpError
from hadron.model.errors import (
    CallFailedError,
    DeadlineExceededError,
    HadronError,
    InvalidRecordError,
    NotReadyError,
)
from hadron.model.limits import MAX_CALL_MESSAGE_BYTES
from hadron.model.lines import Lines
from hadron.model.problems import shorten
from hadron.model.record import JSON as JSON_VALUE
from hadron.model.record import TEXT as TEXT_VALUE
from hadron.model.services import STREAM, EndpointSpec

TEXT: Final = "text/plain; charset=utf-8"
BYTES: Final = "application/octet-stream"

_PREFIX: Final = "call-"
_TOKEN: Final = "!#$&'*+.^`|"
"""What a header's name may have besides letters, digits and what is never quoted; but for %."""


class CallQuery(Query, frozen=True, kw_only=True):
    """
    Attributes:
        timeout_s: after so long nobody works for it any more; None is 30 seconds, an hour where
            something of it is a stream.
        region: servers there come first; a name's beginning, up to a / or a dot.
    """

    timeout_s: Annotated[float, msgspec.Meta(ge=0.001, le=MAX_TIMEOUT_S)] | None = None
    region: str = ""


async def describe(door: Door, call: Call, query: Query) -> Response:
    client = await door.clients.of(query.namespace)
    name = call.path["endpoint"]
    found = await client.endpoints(name)
    if not found:
        raise NotReadyError(f"the leader of endpoint {name!r} does not know it yet", "ask again")
    return json_response(found[0])


async def invoke(door: Door, call: Call, query: CallQuery) -> Response | None:
    name = call.path["endpoint"]
    client = await door.clients.of(query.namespace)
    spec = spec_of(await client._endpoints.recent(name))
    has_streams = STREAM in (spec.input, spec.output)
    timeout_s = query.timeout_s or (STREAM_TIMEOUT_S if has_streams else CALL_TIMEOUT_S)
    asked = told(name, timeout_s, query.region, _headers_in(call), call.who)
    if has_streams:
        with door.following():
            return await _Streams(door, call, client, spec, asked).run()
    given = pack(await _one_value(call))
    packed, headers = await unless_gone(
        lambda: client._endpoints.call(asked, given), call.wait_disconnected
    )
    return _one_answer(call, packed, headers)


async def _one_value(call: Call) -> Any:
    """Of a request that says nothing, null: what a program gives that gives none."""
    value = await value_in(call, MAX_CALL_MESSAGE_BYTES)
    return None if value == b"" and not call.media else value


def _one_answer(call: Call, packed: Packed, headers: Mapping[str, str]) -> Response:
    encoding, data = packed
    if encoding == TEXT_VALUE and _asks_for_json(call):
        encoding, data = JSON_VALUE, msgspec.json.encode(str(data, "utf-8"))
    media = JSON if encoding == JSON_VALUE else TEXT if encoding == TEXT_VALUE else BYTES
    response = Response(bytes(data), 200, media_type=media)
    response.raw_headers += _headers_out(headers)
    return response


def _asks_for_json(call: Call) -> bool:
    """First of all. Text is a value of JSON's, too: a program need not know which one it gets."""
    first = call.headers.get("accept", "").lower().partition(",")[0]
    return first.partition(";")[0].strip() == JSON


# --- headers ------------------------------------------------------------------------------------


def _headers_in(call: Call) -> dict[str, str]:
    """Those that are the call's: `call-NAME` is NAME, and what says where a trace goes on."""
    found = {
        name.removeprefix(_PREFIX): unquoted(name, value)
        for name, value in call.headers.items()
        if name.startswith(_PREFIX)
    }
    return found | {name: call.headers[name] for name in TRACE_HEADERS if name in call.headers}


def _headers_out(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    found = []
    for name, text in headers.items():
        name = name.lower()
        if name not in TRACE_HEADERS:
            found.append((f"{_PREFIX}{quote(name, safe=_TOKEN)}".encode(), quoted(text).encode()))
        elif text.isascii() and text.isprintable():
            found.append((name.encode(), text.encode()))
    return found


# --- streams ------------------------------------------------------------------------------------


class _Streams:
    """One call of which something is a stream."""

    def __init__(
        self, door: Door, call: Call, client: Client, spec: EndpointSpec, asked: Told
    ) -> None:
        self._call = call
        self._client = client
        self._asked = asked
        self._takes_stream = spec.input == STREAM
        self._gives_stream = spec.output == STREAM
        media = _streamed_media(call) if self._gives_stream else NDJSON
        self._live = Live(call, door.limits, media)
        self._stream: CallStream | None = None
        self._opened = trio.Event()

    async def run(self) -> Response | None:
        given: Packed | None = None
        if not self._takes_stream:
            given = pack(await _one_value(self._call))
        elif self._call.media and self._call.media not in NDJSON_TYPES:
            raise HttpError(
                415,
                f"endpoint {self._asked.endpoint!r} (input: stream) takes a stream, and the "
                f"content type is {shorten(self._call.media)}: it was not run",
                f"send content-type: {NDJSON}, a JSON value a line",
            )
        gone = self._feed if self._takes_stream else self._call.wait_disconnected
        async with AsyncExitStack() as stack:
            if self._gives_stream:
                await self._live.run(lambda: self._answer_all(stack, given), gone)
                return None
            return await unless_gone(lambda: self._answer(stack, given), gone)

    async def _open(self, stack: AsyncExitStack, given: Packed | None) -> CallStream:
        asked = self._asked
        stream = CallStream(self._client._endpoints, asked, given, None)
        # Streams have an hour; nobody waits so long for a status.
        with trio.move_on_after(REQUEST_S):
            self._stream = await stack.enter_async_context(stream)
        if self._stream is None:
            raise DeadlineExceededError(
                f"the leader of endpoint {asked.endpoint!r} was not reached within {REQUEST_S:g} s",
                "see `hadron status`; the call was not run",
            )
        self._opened.set()
        return self._stream

    async def _answer(self, stack: AsyncExitStack, given: Packed | None) -> Response:
        """To a stream, with one value."""
        stream = await self._open(stack, given)
        found = await take_some(stream, 0)
        if not found or await take_some(stream, 0):
            raise CallFailedError(
                "the answer is not one value",
                "that is a mistake in what serves the endpoint",
                type="BadAnswer",
            )
        return _one_answer(self._call, found[0], stream.headers)

    async def _answer_all(self, stack: AsyncExitStack, given: Packed | None) -> None:
        """Values as they come, and no faster than they are read."""
        stream, live = await self._open(stack, given), self._live
        while values := await take_some(stream, PIECE_BYTES):
            headers = () if live.has_started else _headers_out(stream.headers)
            await live.say(b"".join(live.word("", _line(each)) for each in values), headers)
        if not live.has_started:
            await live.say(b"", _headers_out(stream.headers))

    async def _feed(self) -> None:
        """The lines of the body as they come, and no faster than the handler takes them; then until
        whoever asked is gone."""
        await self._opened.wait()
        lines = Lines(bounds.MAX_LINE_BYTES)
        wanted = True
        try:
            while wanted and (data := await self._call.next_chunk()) is not None:
                wanted = await self._pass_on(lines, lines.feed(data))
        except HttpError as error:
            # It was run, with what came before.
            error.retryable = False
            raise
        if wanted and await self._pass_on(lines, lines.finish()):
            assert self._stream is not None
            await self._stream.end()
        await self._call.wait_disconnected()

    async def _pass_on(self, lines: Lines, given: Sequence[bytes]) -> bool:
        """The handler may hold them back for as long as the call lasts."""
        return await unless_gone(partial(self._send, lines, given), self._call.wait_gone)

    async def _send(self, lines: Lines, given: Sequence[bytes]) -> bool:
        """The latest lines; whether more are wanted. Raises `InvalidRecordError`."""
        assert self._stream is not None
        for number, line in enumerate(given, lines.seen - len(given) + 1):
            if not line:
                continue
            try:
                await self._stream.send(json_of_body(line))
            except InvalidRecordError as error:
                raise InvalidRecordError(
                    f"line {number}: {error.message}", "one JSON value a line"
                ) from None
            except HadronError:
                # The call is over, which its answer says better.
                return False
        return True


def _streamed_media(call: Call) -> str:
    try:
        return call.choose(NDJSON, EVENTS)
    except HttpError:
        # As `curl --json` says: lines of it are the nearest.
        if JSON in call.headers["accept"].lower():
            return NDJSON
        raise


def _line(packed: Packed) -> bytes:
    """A value on a line: JSON as it is, text as JSON, too, so that it is one line."""
    encoding, data = packed
    if encoding == JSON_VALUE:
        # Line ends stand between its parts only; within a text they are escaped.
        return bytes(data).replace(b"\n", b" ").replace(b"\r", b" ")
    if encoding == TEXT_VALUE:
        return msgspec.json.encode(bytes(data).decode(errors="replace"))
    return msgspec.json.encode({"value_base64": base64.b64encode(data).decode()})
