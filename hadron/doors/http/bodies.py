"""What the body of a request is: a value, by its content type, or a CloudEvent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec
import trio

from hadron.doors.http import fields
from hadron.doors.http import limits as bounds
from hadron.doors.http.call import Call
from hadron.doors.http.problems import HttpError
from hadron.model import cloudevents
from hadron.model.cloudevents import ABSENT, CloudEvent
from hadron.model.errors import InvalidRecordError, RecordTooLargeError, RequestError
from hadron.model.json_values import json_text
from hadron.model.limits import MAX_RECORD_BYTES
from hadron.model.problems import shorten
from hadron.model.record import NewRecord

CE_JSON: Final = cloudevents.CONTENT_TYPE
CE_BATCH: Final = "application/cloudevents-batch+json"

_FORM: Final = "application/x-www-form-urlencoded"
"""What `curl -d` says when it is told nothing: text."""

_PLAIN_TYPES: Final = frozenset(
    {"application/json", "text/plain", "application/octet-stream", _FORM}
)
_FIELD: Final = re.compile(r"at `\$\.(\w+)`$")
"""How the library says where a field of the wrong type is."""

_CE: Final = "ce-"
_CE_ATTRIBUTES: Final = ("subject", "time", "dataschema")


async def value_in(call: Call, max_bytes: int = MAX_RECORD_BYTES) -> Any:
    """The value that the request is: JSON, text, or bytes. Raises what `Call.body` does, before any
    of it is decoded."""
    body = await call.body(max_bytes)
    if call.media and cloudevents.is_json(call.media):
        return json_of_body(body)
    if call.media.startswith("text/") or call.media == _FORM:
        return _text(body, call.headers.get("content-type", ""))
    return body


def headers_for(call: Call) -> dict[str, str] | None:
    """With which a value is read back as what it was."""
    if not call.media or call.media in _PLAIN_TYPES:
        return None
    return {"datacontenttype": call.headers["content-type"].strip()}


async def event_in(call: Call) -> NewRecord | None:
    """The CloudEvent that the request is, in either mode, as a record; None where it is none."""
    if "ce-specversion" in call.headers:
        return cloudevents.to_record(_binary_event(call.headers, await call.body(MAX_RECORD_BYTES)))
    if call.media == CE_JSON:
        return cloudevents.to_record(cloudevents.from_json(await call.body()))
    if call.media.startswith("application/cloudevents"):
        raise HttpError(
            415,
            f"the event format {shorten(call.media)} is not known",
            f"send {CE_JSON}, {CE_BATCH}, or an event in headers (binary mode)",
        )
    return None


async def events_of(body: bytes) -> list[NewRecord]:
    """A batch of CloudEvents as records. Others have a turn meanwhile."""
    try:
        events = msgspec.json.decode(body, type=list[dict[str, Any]])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"no batch of CloudEvents: {error}", "give a JSON array") from None
    check_count(len(events), "events")
    records = []
    for number, event in enumerate(events, 1):
        await turn(number)
        try:
            records.append(cloudevents.to_record(cloudevents.from_members(event)))
        except InvalidRecordError as error:
            raise InvalidRecordError(f"event {number}: {error.message}", error.hint) from error
    return records


def check_count(count: int, of_what: str) -> None:
    """Of a body that is taken as a whole. Raises `RecordTooLargeError`."""
    if count > bounds.MAX_WHOLE_RECORDS:
        raise RecordTooLargeError(
            f"a body of {count} {of_what}, {bounds.MAX_WHOLE_RECORDS} at most",
            "send parts of them, each with a key of its own where they have one",
        )


async def turn(number: int) -> None:
    """Others go on before the next record is made, if enough were in a row."""
    if number % bounds.RECORDS_AT_ONCE == 0:
        await trio.lowlevel.checkpoint()


def _binary_event(headers: Mapping[str, str], body: bytes) -> CloudEvent:
    """An event in HTTP's binary mode: its attributes are headers, its data the body."""
    given = {
        name.removeprefix(_CE): unquoted(name, value)
        for name, value in headers.items()
        if name.startswith(_CE)
    }
    content_type = headers.get("content-type")
    if (version := given.pop("specversion")) != cloudevents.SPECVERSION:
        raise InvalidRecordError(
            f"the event has the specversion {version!r}",
            f"CloudEvents {cloudevents.SPECVERSION} is understood",
        )
    own: dict[str, Any] = {name: given.pop(name, "") for name in ("id", "source", "type")}
    own |= {name: given.pop(name, None) for name in _CE_ATTRIBUTES}
    if "datacontenttype" in given:
        raise InvalidRecordError(
            "the attribute datacontenttype is given as a header of its own",
            "in binary mode it is the content-type",
        )
    data: Any = body
    if not body and content_type is None:
        data = ABSENT
    elif content_type is not None and cloudevents.is_json(content_type):
        data = json_of_body(body)
    elif content_type is not None and content_type.lower().startswith("text/"):
        try:
            data = _text(body, content_type)
        except InvalidRecordError:
            data = body
    return CloudEvent(data=data, datacontenttype=content_type, extensions=given, **own)


_SAFE: Final = "".join(chr(each) for each in range(0x21, 0x7F) if chr(each) not in '"%')
"""What a header's value may have as it is; CloudEvents percent-encodes the rest, and so do we."""


def quoted(text: str) -> str:
    """Any text as a header's value."""
    return quote(text, safe=_SAFE)


def unquoted(name: str, value: str) -> str:
    """A text as it was before it became a header's value. Raises `InvalidRecordError`."""
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError:
        raise InvalidRecordError(
            f"the header {name} is not percent-encoded UTF-8: {shorten(value)}"
        ) from None


def json_of_body(body: bytes) -> msgspec.Raw:
    """The value as it was written; numbers keep their digits. Raises `InvalidRecordError`."""
    try:
        return json_text(body)
    except ValueError as error:
        raise InvalidRecordError(
            f"the body is no JSON: {error}",
            "one JSON value; application/x-ndjson has one a line, text/plain is text",
        ) from None


def _text(body: bytes, content_type: str) -> str:
    charset = "utf-8"
    for parameter in content_type.split(";")[1:]:
        name, _, value = parameter.strip().partition("=")
        if name.lower() == "charset":
            charset = value.strip('"').lower()
    if charset not in ("utf-8", "utf8", "us-ascii", "ascii"):
        raise HttpError(415, f"the charset is {shorten(charset)}", "send UTF-8")
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise InvalidRecordError(
            f"the body is no text in UTF-8: {error}", "application/octet-stream is for any bytes"
        ) from None


def line_of(line: bytes, kind: type[Any], what: str, such_as: str) -> tuple[Any, msgspec.Raw]:
    """A line of NDJSON that is a struct, and the value in it. Raises `InvalidRecordError`."""
    try:
        given = msgspec.json.decode(line, type=kind)
        return given, json_of_body(bytes(given.value))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        given = _field_in(line, str(error))
        hint = f"such as {such_as}"
        if isinstance(error, msgspec.ValidationError) and (known := fields.hint(error, kind)):
            hint = f"{known}; {hint}"
        raise InvalidRecordError(f"no {what}: {error}{given}", hint) from None


def _field_in(line: bytes, message: str) -> str:
    """What a line has where `message` says that something else was expected."""
    named = _FIELD.search(message)
    if named is None:
        return ""
    try:
        found = msgspec.json.decode(line)[named[1]]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # There is more amiss behind it.
        return ""
    return f", which is {shorten(found)}"
