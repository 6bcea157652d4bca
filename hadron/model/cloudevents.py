"""CloudEvents 1.0 and records: one made of the other, without loss, and the JSON event format.

Where attributes stand in a record, as a promise: `id` and `type` are the record's; `time` is its
timestamp, rounded down to a millisecond, and stands as it was written in the header `time`; the
extension `partitionkey` is the key; every other attribute is the header of its name, as text. The
header `specversion` says that the record is an event. The header `hadron.ce`, which no extension
can be called, says what text alone does not: `n:i` an extension `n` that is an integer, `n:b` one
that is a boolean, `-` that there is no data.

A record that is not an event becomes one whose `source` is where it stands. What events have no
place for goes into extensions that come back as what they were: a key that is not text
(`hadronkey`, base64), headers that cannot be called so (`hadronheaders`, JSON).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import msgspec

from hadron.model.errors import InvalidRecordError
from hadron.model.record import NewRecord, Record

SPECVERSION: Final = "1.0"
CONTENT_TYPE: Final = "application/cloudevents+json"

_MARK: Final = "hadron.ce"
_KEY, _BINARY_KEY, _HEADERS = "partitionkey", "hadronkey", "hadronheaders"
_NO_DATA: Final = "-"
_OPTIONAL: Final = ("subject", "time", "datacontenttype", "dataschema")
_ATTRIBUTES: Final = ("specversion", "id", "source", "type", *_OPTIONAL)
_NAME: Final = re.compile(r"[a-z0-9]+")
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d):(\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_PLAIN_TYPE: Final = "hadron.record"
"""Of a record that was given no type: events must have one."""


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()
"""An event without data; JSON's null is data."""


class CloudEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event, as https://github.com/cloudevents/spec has it (version 1.0).

    Attributes:
        time: RFC 3339, as it was written.
        data: bytes; str where `datacontenttype` is not JSON; else anything JSON; or `ABSENT`.
        extensions: names of a-z and 0-9; text, booleans, 32-bit integers.
    """

    id: str
    source: str
    type: str
    subject: str | None = None
    time: str | None = None
    datacontenttype: str | None = None
    dataschema: str | None = None
    data: Any = ABSENT
    extensions: Mapping[str, str | int | bool] = {}


# --- to and from records ------------------------------------------------------------------------


def to_record(event: CloudEvent) -> NewRecord:
    """The record that holds an event. Raises `InvalidRecordError` naming the attribute that is
    missing or wrong."""
    timestamp_ms = check_event(event)
    headers = {"specversion": SPECVERSION, "source": event.source}
    for name in _OPTIONAL:
        if (text := getattr(event, name)) is not None:
            headers[name] = text
    key: bytes | str | None = None
    marks: list[str] = []
    for name, value in event.extensions.items():
        if name == _KEY and isinstance(value, str):
            key = value
        elif name == _BINARY_KEY and isinstance(value, str):
            key = _from_base64(name, value)
        elif name == _HEADERS and isinstance(value, str):
            headers |= _more_headers(value)
        elif isinstance(value, str):
            headers[name] = value
        else:
            marks.append(f"{name}:{'b' if isinstance(value, bool) else 'i'}")
            headers[name] = str(value).lower()
    data = event.data
    if data is ABSENT:
        marks.append(_NO_DATA)
        data = b""
    elif isinstance(data, str) and is_json(event.datacontenttype):
        # A JSON string, not plain text.
        data = msgspec.Raw(msgspec.json.encode(data))
    if marks:
        headers[_MARK] = ",".join(marks)
    return NewRecord(
        value=data,
        key=key,
        type=event.type,
        timestamp_ms=timestamp_ms,
        headers=headers,
        id=event.id,
    )


def from_record(record: Record) -> CloudEvent:
    """The event that a record holds, or the record as an event."""
    headers = dict(record.headers)
    is_event = headers.pop("specversion", "") == SPECVERSION
    marks = headers.pop(_MARK, "").split(",")
    kinds = dict(mark.split(":", 1) for mark in marks if ":" in mark)
    fields: dict[str, Any] = {name: headers.pop(name, None) for name in ("source", *_OPTIONAL)}
    extensions: dict[str, str | int | bool] = {}
    others: dict[str, str] = {}
    for name, text in headers.items():
        if name in _ATTRIBUTES or name == "data" or not _NAME.fullmatch(name):
            others[name] = text
        else:
            extensions[name] = _typed(text, kinds.get(name, ""))
    if others:
        extensions[_HEADERS] = msgspec.json.encode(others).decode()
    if isinstance(record.key, str):
        extensions[_KEY] = record.key
    elif record.key is not None:
        extensions[_BINARY_KEY] = base64.b64encode(record.key).decode()
    if not is_event:
        fields["time"] = fields["time"] or rfc3339(record.timestamp_ms)
        fields["datacontenttype"] = record.content_type
    fields["source"] = fields["source"] or quote(f"/{record.stream}/{record.partition}")
    return CloudEvent(
        id=record.id,
        type=record.type or _PLAIN_TYPE,
        extensions=extensions,
        data=ABSENT if _NO_DATA in marks else record.value,
        **fields,
    )


def check_event(event: CloudEvent) -> int | None:
    """The event's time in milliseconds since the Unix epoch, if it has one. Raises
    `InvalidRecordError` naming what the specification does not allow."""
    for name in ("id", "source", "type"):
        _check_text(name, getattr(event, name))
    for name in _OPTIONAL:
        if getattr(event, name) is not None:
            _check_text(name, getattr(event, name))
    extensions: Mapping[str, Any] = event.extensions
    for name, value in extensions.items():
        if not _NAME.fullmatch(name) or name in _ATTRIBUTES or name == "data":
            raise InvalidRecordError(
                f"{name!r} cannot be the name of a CloudEvents extension",
                "use a-z and 0-9, and none of the specification's own names",
            )
        if not isinstance(value, str | bool | int) or (
            isinstance(value, int) and not -(1 << 31) <= value < 1 << 31
        ):
            raise InvalidRecordError(
                f"the extension {name} is {value!r}", "give text, a boolean or a 32-bit integer"
            )
    return None if event.time is None else _milliseconds(event.time)


# --- the JSON event format ----------------------------------------------------------------------


def from_json(data: bytes | str) -> CloudEvent:
    """An event in the JSON event format. Raises `InvalidRecordError`."""
    try:
        members = msgspec.json.decode(data)
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidRecordError(f"not JSON: {error}", "give one event as a JSON object") from error
    return from_members(members)


def from_members(members: Any) -> CloudEvent:
    """An event from the members of its JSON object. Raises `InvalidRecordError`."""
    if not isinstance(members, dict):
        raise InvalidRecordError("not a CloudEvent: not a JSON object", "see cloudevents.io")
    given = {name: value for name, value in members.items() if value is not None or name == "data"}
    if given.pop("specversion", None) != SPECVERSION:
        raise InvalidRecordError(
            f"the event has the specversion {members.get('specversion')!r}",
            f"CloudEvents {SPECVERSION} is understood",
        )
    value = given.pop("data", ABSENT)
    if "data_base64" in given:
        if value is not ABSENT:
            raise InvalidRecordError("the event has both data and data_base64", "leave one out")
        value = _from_base64("data_base64", given.pop("data_base64"))
    fields = {name: given.pop(name, None) for name in _ATTRIBUTES[1:]}
    if not isinstance(value, str | bytes | _Absent) and not is_json(fields["datacontenttype"]):
        # As the format asks: what is not text stands for its JSON.
        value = _encoded(value).decode()
    event = CloudEvent(data=value, extensions=given, **fields)
    check_event(event)
    return event


def to_members(event: CloudEvent) -> dict[str, Any]:
    """The members of the event's JSON object."""
    members: dict[str, Any] = {
        "specversion": SPECVERSION,
        "id": event.id,
        "source": event.source,
        "type": event.type,
    }
    for name in _OPTIONAL:
        if (text := getattr(event, name)) is not None:
            members[name] = text
    members |= event.extensions
    if isinstance(event.data, bytes):
        members["data_base64"] = base64.b64encode(event.data).decode()
    elif event.data is not ABSENT:
        members["data"] = event.data
    return members


def to_json(event: CloudEvent) -> bytes:
    """The event in the JSON event format. Raises `InvalidRecordError`."""
    return _encoded(to_members(event))


def _encoded(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except RecursionError:
        raise _too_deep() from None


def _too_deep() -> InvalidRecordError:
    return InvalidRecordError("the event is nested too deeply", "some hundred levels are read")


# --- parts --------------------------------------------------------------------------------------


def is_json(content_type: str | None) -> bool:
    """Whether data of this media type is JSON; an event that names none has JSON."""
    if content_type is None:
        return True
    media = content_type.partition(";")[0].strip().lower()
    return media.endswith(("/json", "+json"))


def rfc3339(timestamp_ms: int) -> str:
    """Milliseconds since the Unix epoch as text in UTC; the nearest year that can be written."""
    seconds, milliseconds = divmod(timestamp_ms, 1000)
    lowest, highest = -62_135_596_800, 253_402_300_799
    moment = datetime.fromtimestamp(min(max(seconds, lowest), highest), UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds:03}Z".rjust(24, "0")


def _milliseconds(text: str) -> int:
    found = _TIME.fullmatch(text)
    try:
        if found is None:
            raise ValueError("not of that form")
        day, minute, second, fraction, zone = found.groups()
        # A leap second counts as the one before it.
        moment = datetime.fromisoformat(
            f"{day}T{minute}:{min(int(second), 59):02}{'+00:00' if zone in 'Zz' else zone}"
        )
        if int(second) > 60:
            raise ValueError("a minute has no such second")
    except ValueError as error:
        raise InvalidRecordError(
            f"the time {text!r} is not RFC 3339: {error}", "write it as 2013-01-01T05:17:00Z"
        ) from error
    whole = int((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
    return whole * 1000 + int(f"{fraction or '':0<3}"[:3])


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidRecordError(
            f"the CloudEvents attribute {name} is " + ("missing" if value is None else repr(value)),
            "it must be text that is not empty",
        )


def _typed(text: str, kind: str) -> str | int | bool:
    if kind == "b":
        return text == "true"
    try:
        return int(text) if kind == "i" else text
    except ValueError:
        # Somebody else's idea of our headers.
        return text


def _from_base64(name: str, value: object) -> bytes:
    try:
        if not isinstance(value, str):
            raise ValueError("not text")
        return base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error) as error:
        raise InvalidRecordError(f"{name} is not base64: {error}") from error


def _more_headers(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidRecordError(
            f"the extension {_HEADERS} is no JSON object of texts: {error}"
        ) from error
