"""One request, as handlers see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

import msgspec
import trio
from starlette.responses import Response

from hadron.doors.callers import who_calls
from hadron.doors.held import Held
from hadron.doors.http import fields
from hadron.doors.http import limits as bounds
from hadron.doors.http.asgi import Receive, Scope, Send
from hadron.doors.http.problems import HttpError
from hadron.model.errors import (
    OutcomeUnknownError,
    OverloadedError,
    RecordTooLargeError,
    RequestError,
)
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.problems import did_you_mean, shorten
from hadron.wire.sockets import format_address

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
NDJSON_TYPES: Final = frozenset({NDJSON, "application/ndjson", "application/jsonl"})

_MAX_PARAMETERS: Final = 50


class DisconnectedError(Exception):
    """Whoever asked is gone: nobody is answered."""


class Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may stand behind the `?` of every request about a namespace's objects."""

    namespace: str = DEFAULT_NAMESPACE


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of requests that have no parameters."""


class Room(NamedTuple):
    """What all requests of a door may hold, each apart: who reads no answers is in nobody's way who
    sends."""

    bodies: Held
    answers: Held
    body_s: float
    """For all of a body that is taken as a whole, and of an answer that is given so."""


def room_of(limits: bounds.Limits) -> Room:
    return Room(
        Held(
            limits.held_bytes,
            "bodies on their way to this node's HTTP door",
            "send less at once, or to another node",
            small_bytes=limits.held_bytes,
        ),
        Held(
            limits.answer_bytes,
            "answers that this node's HTTP door is writing",
            f"read what was asked for, ask for less with `limit` or as {NDJSON}, or use another "
            "node",
            small_bytes=limits.answer_bytes,
        ),
        limits.body_s,
    )


class Call:
    """A request, and the way to its answer.

    Attributes:
        path: the path's parameters by name.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, room: Room) -> None:
        self.scope = scope
        self._body_s = room.body_s
        self._body = room.bodies.share()
        self._answer = room.answers.share()
        self._receive = receive
        self.send = send
        self.path: Mapping[str, Any] = scope.get("path_params", {})
        self.headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            text, said = name.decode("latin-1"), value.decode("latin-1")
            if text in self.headers:
                if text in _ONCE:
                    raise HttpError(400, f"the header {text} is given twice", "give it once")
                # One that is a list may be sent in parts (RFC 9110, 5.3).
                said = f"{self.headers[text]}, {said}"
            self.headers[text] = said
        coding = self.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("", "identity"):
            raise HttpError(
                415, f"a body in {shorten(coding)} is not unpacked here", "send it as it is"
            )
        self.media = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        self._is_told = False

    @property
    def address(self) -> str:
        """Of who asks, without its port; "" where that is not known."""
        host, _ = self.scope.get("client") or ("", 0)
        return str(host)

    @property
    def who(self) -> str:
        """Who asks, in words."""
        host, port = self.scope.get("client") or ("", 0)
        address = format_address(host, port) if host else "unknown"
        return who_calls("HTTP", address, self.headers.get("user-agent", ""))

    # --- what was asked -------------------------------------------------------------------------

    def query(self, kind: type[Any]) -> Any:
        """The parameters. Raises `RequestError` naming the one that is unknown or wrong."""
        text = self.scope["query_string"]
        if not text:
            return msgspec.convert({}, kind)
        try:
            pairs = parse_qsl(
                text.decode("ascii"),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=_MAX_PARAMETERS,
            )
        except ValueError as error:
            shown = shorten(text.decode(errors="replace"))
            raise RequestError(
                f"the query {shown} is no list of parameters: {error}",
                "write name=value&…, with UTF-8 percent-encoded",
            ) from None
        given: dict[str, str] = {}
        known = [field.encode_name for field in msgspec.structs.fields(kind)]
        for name, value in pairs:
            if name not in known:
                raise RequestError(
                    f"{shorten(name)} is no parameter of this{did_you_mean(name, known)}",
                    f"it has {', '.join(known) or 'none'}",
                )
            if name in given:
                raise RequestError(f"the parameter {name} is given twice", "give it once")
            given[name] = value
        return _parameters(given, kind)

    def choose(self, *offers: str) -> str:
        """The media type of the answer: the first that is accepted, else the first of all. Raises
        `HttpError` when none of them is."""
        wanted = self.headers.get("accept", "")
        if not wanted:
            return offers[0]
        parts = [(part.partition(";")[0].strip(), part) for part in wanted.lower().split(",")]
        refused = {media for media, part in parts if not _unwanted(part)}
        for media, _ in sorted(parts, key=lambda each: _unwanted(each[1])):
            for offer in offers:
                ways = (offer, f"{offer.partition('/')[0]}/*", "*/*")
                if media in ways and not refused.intersection(ways[: ways.index(media) + 1]):
                    return offer
        raise HttpError(406, f"{shorten(wanted)} is not available", f"accept {', '.join(offers)}")

    # --- its body -------------------------------------------------------------------------------

    async def next_chunk(self) -> bytes | None:
        """Some of the body; None at its end. Raises `HttpError` where it stalls or is none, and
        `DisconnectedError`."""
        if self._is_told:
            return None
        message = await self._receive()
        if message["type"] != "http.request":
            raise message.get("refusal") or DisconnectedError
        self._is_told = not message.get("more_body", False)
        data: bytes = message.get("body", b"")
        return data

    async def body(self, limit: int = bounds.MAX_BODY_BYTES) -> bytes:
        """All of it. Raises `RecordTooLargeError` over the limit, `OverloadedError` where others
        have all the room, `HttpError` when it takes too long or is none, and
        `DisconnectedError`."""
        length = self.headers.get("content-length", "")
        if length.isdecimal() and int(length) > limit:
            raise _too_large(int(length), limit)
        parts: list[bytes] = []
        with trio.move_on_after(self._body_s) as scope:
            while (data := await self.next_chunk()) is not None:
                parts.append(data)
                is_small = self._body.bytes + len(data) <= bounds.SMALL_BYTES
                self._body.take(len(data), anyway=is_small)
                if self._body.bytes > limit:
                    raise _too_large(self._body.bytes, limit)
        if scope.cancelled_caught:
            raise HttpError(
                408, f"the body was not complete within {self._body_s:g} s", "send it faster"
            )
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def hold_answer(self, size: int) -> None:
        """The answer takes so much by now. Raises `OverloadedError`."""
        self._answer.give(self._answer.bytes)
        if size <= bounds.SMALL_BYTES:
            self._answer.take(size, anyway=True)
        else:
            # As much is left for others: who asks for little passes those who ask for much.
            self._answer.take(size, leaving=size)

    async def respond(self, response: Response, *, is_done: bool) -> None:
        """Raises `OverloadedError` where others have all the room for it; `OutcomeUnknownError` of
        what `is_done` by then, whoever knows of it; and `OSError` where it is read too slowly."""
        try:
            self.hold_answer(len(response.body))
        except OverloadedError as error:
            if not is_done:
                raise
            raise OutcomeUnknownError(
                f"it was done, but its answer is dropped: {error.message}", error.hint
            ) from None
        with trio.move_on_after(self._body_s) as scope:
            await response(self.scope, self._receive, self.send)
        if scope.cancelled_caught:
            # Who reads a byte now and then holds what others have no room for.
            raise OSError(f"the answer was not read within {self._body_s:g} s")

    def let_go(self) -> None:
        """It is answered."""
        self._body.end()
        self._answer.end()

    async def json(self, kind: type[Any]) -> Any:
        """The body, which must be JSON and say so: no page of somebody else's can send that type
        without asking first. Raises `RequestError`."""
        if self.media != JSON:
            raise HttpError(
                415,
                f"the content type is {shorten(self.media or 'none')}",
                f"send content-type: {JSON}",
            )
        data = await self.body()
        return decoded(data, kind)

    async def wait_gone(self) -> None:
        """Until whoever asked is gone, while none of the body is taken: what comes of it is kept,
        as far as that has a bound. Who sends more behind is noticed once that is taken."""
        await self.scope.get("wait_gone", trio.sleep_forever)()

    async def wait_disconnected(self) -> None:
        """Until whoever asked is gone; what is left of the body is dropped."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return


_ONCE: Final = frozenset({"host", "origin", "content-type", "idempotency-key", "content-length"})


def _unwanted(part: str) -> float:
    """What sorts the most wanted first, in the given order; 0 of what is refused."""
    for parameter in part.split(";")[1:]:
        name, _, value = parameter.strip().partition("=")
        if name == "q":
            try:
                return -float(value)
            except ValueError:
                return 0.0
    return -1.0


def _too_large(size: int, limit: int) -> RecordTooLargeError:
    return RecordTooLargeError(
        f"a body of {size} bytes is over the limit of {limit}",
        f"send less at once, or {NDJSON} where it is taken: that may have any number of lines",
    )


def decoded(data: bytes | str, kind: type[Any]) -> Any:
    """JSON as something. Raises `RequestError`."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise RequestError(
            f"the body is not as it should be: {error}", fields.hint(error, kind)
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the body is no JSON: {error}") from None


def _parameters(given: dict[str, str], kind: type[Any]) -> Any:
    """Each as what it has to be. Raises `RequestError` with its bounds."""
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        name = str(error).rpartition("`$.")[2].rstrip("`")
        if name not in given:
            raise RequestError(f"the parameters are not as they should be: {error}") from None
        said = fields.purposes(kind).get(name)
        raise RequestError(
            f"the parameter {name} is {shorten(given[name])}, and has to be "
            f"{fields.form(kind, name)}",
            f"{name}: {said}" if said else "",
        ) from None


def json_response(value: Any, status: int = 200, media: str = JSON) -> Response:
    return Response(msgspec.json.encode(value), status, media_type=media)
