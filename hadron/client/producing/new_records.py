"""From what a user passes to `send` to a record that a batch takes. Pure.

What a batch could choke on is refused here, but for the value and the size, which it refuses
itself as it encodes them (`model/batch_building`): a batch that failed later would take its
neighbours with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

import msgspec

from hadron.client.terms.arguments import instant_ms, utf8_of, whole_of
from hadron.model.cloudevents import CloudEvent, to_record
from hadron.model.errors import InvalidRecordError, RequestError
from hadron.model.ids import EVENT_TYPE_FORM, is_event_type
from hadron.model.problems import shorten
from hadron.model.record import Headers, NewRecord

MAX_TYPE_BYTES: Final = 255
"""An event type stands in every batch's dictionary."""

MAX_ID_BYTES: Final = 1024

_INT64: Final = 1 << 63

_NOT_GIVEN: Final = ""
"""A type or an id that is this very object needs no look: most records have neither."""

Serializer: TypeAlias = Callable[[Any], Any]
"""From a program's own values to bytes, str or anything JSON."""


def new_record(
    value: Any,
    key: bytes | str | None,
    event_type: str,
    timestamp_ms: int | None,
    headers: Headers | None,
    record_id: str,
    partition: str | None = None,
    timestamp: datetime | None = None,
    expect_offset: int | None = None,
    expect_key_offset: int | None = None,
    sequence: int | None = None,
) -> NewRecord:
    """The record to send; `value` may itself be a `NewRecord` or a `CloudEvent`, of which only the
    partition, conditions and the sequence may be given besides. Raises `InvalidRecordError`."""
    if (
        type(value) is bytes
        and key is None
        and event_type is _NOT_GIVEN
        and record_id is _NOT_GIVEN
        and timestamp_ms is None
        and timestamp is None
        and not headers
        and partition is None
        and expect_offset is None
        and expect_key_offset is None
        and sequence is None
    ):
        return NewRecord(value=value)  # Most are so, and there is nothing to check.
    if timestamp is not None:
        timestamp_ms = _stamp_of(timestamp, timestamp_ms)
    if isinstance(value, CloudEvent):
        value = to_record(value)
    if isinstance(value, NewRecord):
        if key is not None or event_type or timestamp_ms is not None or headers or record_id:
            raise InvalidRecordError(
                "a whole record was given together with key, type, timestamp_ms, headers or id",
                "put them into the NewRecord or the CloudEvent",
            )
        besides = {
            "partition": partition,
            "expect_offset": expect_offset,
            "expect_key_offset": expect_key_offset,
            "sequence": sequence,
        }
        if any(each is not None for each in besides.values()):
            given = {name: each for name, each in besides.items() if each is not None}
            value = msgspec.structs.replace(value, **given)
        return check_record(value)
    # Most have none: to ask an abstract class of it costs more than all the rest here.
    if headers is not None and isinstance(headers, Sequence):
        headers = _from_pairs(headers)
    return check_record(
        NewRecord(
            value=value,
            key=key,
            type=event_type,
            timestamp_ms=timestamp_ms,
            headers=headers,
            id=record_id,
            partition=partition,
            expect_offset=expect_offset,
            expect_key_offset=expect_key_offset,
            sequence=sequence,
        )
    )


def _stamp_of(timestamp: datetime, timestamp_ms: int | None) -> int:
    if timestamp_ms is not None:
        raise InvalidRecordError("both timestamp and timestamp_ms are given", "give one")
    if not isinstance(timestamp, datetime):
        raise InvalidRecordError(
            f"timestamp {timestamp!r} is of type {type(timestamp).__name__}",
            "give a datetime with a time zone, or milliseconds since the Unix epoch as "
            "timestamp_ms",
        )
    return _plain_stamp(timestamp, "timestamp")


def serialized(serializer: Serializer, value: Any, *others: Any) -> NewRecord:
    """`new_record` with a value that the producer's serializer has gone over first."""
    return new_record(serialized_whole(serializer, value), *others)


def serialized_whole(serializer: Serializer, value: Any) -> Any:
    """The value as it is sent; of a `NewRecord` or a `CloudEvent`, that with its value so. Raises
    `InvalidRecordError` when the serializer raises."""
    if isinstance(value, CloudEvent):
        value = to_record(value)
    if isinstance(value, NewRecord):
        return msgspec.structs.replace(value, value=serialized_whole(serializer, value.value))
    try:
        return serializer(value)
    except Exception as error:
        raise InvalidRecordError(
            f"the value_serializer failed on a value of type {type(value).__name__}: "
            f"{type(error).__name__}: {error}",
            "it is called with what is given to `send`",
        ) from error


def whole_record(value: Any) -> NewRecord:
    """The record that `value` is, or is the value of. Raises `InvalidRecordError`."""
    if isinstance(value, CloudEvent):
        value = to_record(value)
    return check_record(value if isinstance(value, NewRecord) else NewRecord(value=value))


def check_record(record: NewRecord) -> NewRecord:
    """The record with plain parts: subclasses of str and int are what they are, a batch holds none.
    What may change is copied, but for the value. Raises `InvalidRecordError` naming the part that
    cannot be sent."""
    changes: dict[str, Any] = {}
    plain: Any
    # Users are not held to the annotations.
    value: Any = record.value
    key: Any = record.key
    stamp: Any = record.timestamp_ms
    if type(value) is not bytes and isinstance(value, str):
        _plain_text("a value", value)
    if key is not None:
        if isinstance(key, str):
            plain = _plain_text("a key", key)
        elif isinstance(key, (bytes, bytearray, memoryview)):
            plain = bytes(key)
        else:
            raise InvalidRecordError(
                f"a key of type {type(key).__name__} cannot be sent: {shorten(key)}",
                "use bytes, str or None",
            )
        if plain is not key:
            changes["key"] = plain
    if stamp is not None and not (type(stamp) is int and -_INT64 <= stamp < _INT64):
        changes["timestamp_ms"] = _plain_stamp(stamp)
    if record.type is not _NOT_GIVEN:
        plain = _text_or_none("a type", record.type, MAX_TYPE_BYTES)
        if plain and not is_event_type(plain):
            raise InvalidRecordError(f"{plain!r} is not a type", EVENT_TYPE_FORM)
        if plain is not record.type:
            changes["type"] = plain
    if record.id is not _NOT_GIVEN:
        plain = _text_or_none("an id", record.id, MAX_ID_BYTES)
        if plain is not record.id:
            changes["id"] = plain
    if record.partition is not None:
        _plain_text("a partition", record.partition)
    if record.expect_offset is not None:
        changes["expect_offset"] = _plain_offset("expect_offset", record.expect_offset, 0)
    if record.expect_key_offset is not None:
        changes["expect_key_offset"] = _plain_offset(
            "expect_key_offset", record.expect_key_offset, -1
        )
        if key is None:
            raise InvalidRecordError(
                f"expect_key_offset {record.expect_key_offset} of a record without a key",
                "give its key",
            )
    if record.sequence is not None:
        changes["sequence"] = _plain_offset("sequence", record.sequence, 0)
    if record.headers:
        changes["headers"] = _plain_headers(record.headers)
    return msgspec.structs.replace(record, **changes) if changes else record


def _plain_stamp(stamp: object, name: str = "timestamp_ms") -> int:
    try:
        return instant_ms(name, stamp)
    except RequestError as error:
        raise InvalidRecordError(error.message, error.hint) from None


def _plain_offset(name: str, offset: object, least: int) -> int:
    try:
        return whole_of(name, offset, least, _INT64 - 1)
    except RequestError as error:
        raise InvalidRecordError(error.message, error.hint) from None


def _plain_headers(headers: Any) -> Mapping[str, str]:
    given = headers if isinstance(headers, Mapping) else _from_pairs(headers)
    plain = {
        _plain_text("a header's name", name): _plain_text(f"header {name!r}", text)
        for name, text in given.items()
    }
    if len(plain) < len(given):
        raise InvalidRecordError("a header is given twice", "a record has one of each name")
    return plain


def _from_pairs(pairs: Any) -> dict[str, str]:
    headers: dict[str, str] = {}
    try:
        for name, text in pairs:
            if name in headers:
                raise InvalidRecordError(
                    f"the header {name!r} is given twice", "a record has one of each name"
                )
            headers[name] = text
    except (TypeError, ValueError) as error:
        raise InvalidRecordError(
            f"headers of type {type(pairs).__name__} cannot be sent: {pairs!r}",
            "give a mapping of names to texts, or a list of (name, text)",
        ) from error
    return headers


def _text_or_none(what: str, text: object, limit: int) -> str:
    return "" if text is None else _plain_text(what, text, limit)


def _plain_text(what: str, text: object, limit: int | None = None) -> str:
    if not isinstance(text, str):
        raise InvalidRecordError(
            f"{what} of type {type(text).__name__} cannot be sent: {shorten(text)}", "use str"
        )
    if type(text) is not str:
        text = str.__str__(text)
    size = len(text) if text.isascii() else len(utf8_of(what, text, InvalidRecordError))
    if limit is not None and size > limit:
        raise InvalidRecordError(
            f"{what} of {size} bytes is over the limit of {limit}: {shorten(text)}",
            "give a shorter one",
        )
    return text
