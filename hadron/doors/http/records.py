"""Records as JSON, in answers."""

from __future__ import annotations

import base64
from typing import Any, Protocol

import msgspec

from hadron.doors.damage import told_raw
from hadron.model.cloudevents import from_record, to_json
from hadron.model.errors import InvalidRecordError
from hadron.model.record import JSON, Record


class RecordAnswer(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A record. A value is JSON as it was sent, or text; other bytes are `value_base64`.

    Attributes:
        damage: why it cannot be read, though it is as its producer sent it; it has no value then.
        raw_base64: of a damaged one, the value's bytes as they are stored; where its whole batch
            cannot be taken apart, that batch's body, with the first of its records.
        delivery: by which a group's member acknowledges it.
    """

    stream: str
    partition: str
    offset: int
    id: str
    timestamp_ms: int
    type: str = ""
    key: str | None = None
    key_base64: str | None = None
    value: Any = msgspec.UNSET
    value_base64: str | None = None
    headers: dict[str, str] = {}
    damage: str = ""
    raw_base64: str = ""
    delivery: str = ""
    attempt: int | msgspec.UnsetType = msgspec.UNSET


def answer_of(record: Record, *, alone: bool = False) -> RecordAnswer:
    """The record as it is told, `alone` or among others. Values that are JSON are not taken
    apart."""
    if damage := record.damage:
        return RecordAnswer(
            stream=record.stream,
            partition=record.partition,
            offset=record.offset,
            id=f"{record.stream}/{record.partition}/{record.offset}",
            timestamp_ms=record.timestamp_ms,
            damage=damage,
            raw_base64=raw_base64(record, alone=alone),
        )
    answer = RecordAnswer(
        stream=record.stream,
        partition=record.partition,
        offset=record.offset,
        id=record.id,
        timestamp_ms=record.timestamp_ms,
        type=record.type,
        headers=dict(record.headers),
    )
    put_key_and_value(answer, record)
    return answer


def raw_base64(record: Record, *, alone: bool = False) -> str:
    return base64.b64encode(told_raw(record, alone=alone)).decode()


class _HasValue(Protocol):
    key: str | None
    key_base64: str | None
    value: Any
    value_base64: str | None


def put_key_and_value(answer: _HasValue, record: Record) -> None:
    """Each under the name that says what it is."""
    key = record.key
    if isinstance(key, str):
        answer.key = key
    elif key is not None:
        answer.key_base64 = base64.b64encode(key).decode()
    value = record.value
    if isinstance(value, bytes):
        answer.value_base64 = base64.b64encode(value).decode()
    elif record.encoding == JSON:
        # On one line: a text may have been sent with line ends between its parts.
        data = record.value_bytes
        answer.value = msgspec.Raw(data) if b"\n" not in data and b"\r" not in data else value
    else:
        answer.value = value


_encode = msgspec.json.Encoder().encode


def json_of(record: Record, *, alone: bool = False) -> bytes:
    """On one line."""
    return _encode(answer_of(record, alone=alone))


def event_of(record: Record) -> bytes:
    """As a CloudEvent in the JSON event format, on one line; as a record where an event around its
    value would be nested too deeply."""
    try:
        return to_json(from_record(record))
    except InvalidRecordError:
        return json_of(record)
