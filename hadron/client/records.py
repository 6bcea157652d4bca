"""From what a user passes to `send` to a record that is sure to encode. Pure.

Everything that a batch could choke on is refused here, where only one record is at stake:
a batch that fails to encode would take its neighbours with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from hadron.model.cloudevents import CloudEvent, to_record
from hadron.model.errors import InvalidRecordError
from hadron.model.record import Headers, NewRecord

MAX_TYPE_BYTES: Final = 255
"""An event type stands in every batch's dictionary."""

MAX_ID_BYTES: Final = 1024

_INT64: Final = 1 << 63

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
) -> NewRecord:
    """The record to send; `value` may itself be a `NewRecord` or a `CloudEvent`, of which only the
    partition may be given besides. Raises `InvalidRecordError`."""
    if isinstance(value, CloudEvent):
        value = to_record(value)
    if isinstance(value, NewRecord):
        if key is not None or event_type or timestamp_ms is not None or headers or record_id:
            raise InvalidRecordError(
                "a whole record was given together with key, type, timestamp_ms, headers or id",
                "put them into the NewRecord or the CloudEvent",
            )
        if partition is not None:
            value = msgspec.structs.replace(value, partition=partition)
        return check_record(value)
    record = NewRecord(
        value=value, key=key, type=event_type, timestamp_ms=timestamp_ms,
        headers=_from_pairs(headers) if isinstance(headers, Sequence) else headers,
        id=record_id, partition=partition,
    )
    return check_record(record)


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
    """Return `record`, or raise `InvalidRecordError` naming the part that cannot be sent."""
    value = record.value
    # Users are not held to the annotations.
    key: Any = record.key
    stamp: Any = record.timestamp_ms
    if type(value) is str:
        _check_text("a value", value)
    if key is not None:
        if isinstance(key, str):
            _check_text("a key", key)
        elif not isinstance(key, (bytes, bytearray, memoryview)):
            raise InvalidRecordError(
                f"a key of type {type(key).__name__} cannot be sent: {key!r}",
                "use bytes, str or None",
            )
    if stamp is not None and not (isinstance(stamp, int) and -_INT64 <= stamp < _INT64):
        raise InvalidRecordError(
            f"{stamp!r} is not a timestamp",
            "give milliseconds since the Unix epoch as an int: round(moment.timestamp() * 1000)",
        )
    if record.type:
        _check_text("a type", record.type, MAX_TYPE_BYTES)
    if record.partition is not None:
        _check_text("a partition", record.partition)
    if record.id:
        _check_text("an id", record.id, MAX_ID_BYTES)
    if record.headers:
        return _with_checked_headers(record)
    return record


def _with_checked_headers(record: NewRecord) -> NewRecord:
    # Users are not held to the annotations.
    headers: Any = record.headers
    if not isinstance(headers, Mapping):
        headers = _from_pairs(headers)
        record = msgspec.structs.replace(record, headers=headers)
    for name, text in headers.items():
        _check_text("a header's name", name)
        _check_text(f"header {name!r}", text)
    return record


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


def _check_text(what: str, text: object, limit: int | None = None) -> None:
    if not isinstance(text, str):
        raise InvalidRecordError(
            f"{what} of type {type(text).__name__} cannot be sent: {text!r}", "use str"
        )
    if text.isascii():
        size = len(text)
    else:
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise InvalidRecordError(f"{what} is not valid Unicode: {error}") from error
    if limit is not None and size > limit:
        raise InvalidRecordError(f"{what} of {size} bytes is over the limit of {limit}")
