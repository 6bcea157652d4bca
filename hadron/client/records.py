"""From what a user passes to `send` to a record that is sure to encode. Pure.

Everything that a batch could choke on is refused here, where only one record is at stake:
a batch that fails to encode would take its neighbours with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from hadron.model.cloudevents import CloudEvent, to_record
from hadron.model.errors import InvalidRecordError
from hadron.model.record import NewRecord

MAX_TYPE_BYTES: Final = 255
"""An event type stands in every batch's dictionary."""

MAX_ID_BYTES: Final = 1024

_INT64: Final = 1 << 63


def new_record(
    value: Any,
    key: bytes | str | None,
    event_type: str,
    timestamp_ms: int | None,
    headers: Mapping[str, str] | None,
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
        value=value, key=key, type=event_type, timestamp_ms=timestamp_ms, headers=headers,
        id=record_id, partition=partition,
    )
    return check_record(record)


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
            f"{stamp!r} is not a timestamp", "give milliseconds since the Unix epoch as an int"
        )
    if record.type:
        _check_text("a type", record.type, MAX_TYPE_BYTES)
    if record.partition is not None:
        _check_text("a partition", record.partition)
    if record.id:
        _check_text("an id", record.id, MAX_ID_BYTES)
    if record.headers:
        for name, text in record.headers.items():
            _check_text("a header's name", name)
            _check_text(f"header {name!r}", text)
    return record


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
