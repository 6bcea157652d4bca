"""Records as messages of `Records`, and back. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hadron.client.terms.results import BatchReceipt, Receipt
from hadron.doors.damage import told_raw
from hadron.model.errors import InvalidRecordError
from hadron.model.json_values import json_text
from hadron.model.record import BYTES, JSON, NewRecord, Record
from hadron.wire._pb import records_pb2 as pb


def value_of(message: pb.Value) -> Any:
    """JSON as it was written: numbers keep their digits. Raises `InvalidRecordError`."""
    kind = message.WhichOneof("kind")
    if kind == "data":
        return message.data
    if kind == "text":
        return message.text
    if kind == "json":
        try:
            return json_text(message.json)
        except ValueError as error:
            raise InvalidRecordError(f"a value's `json` is no JSON: {error}") from None
    raise InvalidRecordError("there is no value", "set one of `data`, `text`, `json`")


def value_message(encoding: int, data: bytes) -> pb.Value:
    """Of a value as it is sent: how it was given is kept."""
    if encoding == BYTES:
        return pb.Value(data=data)
    if encoding == JSON:
        return pb.Value(json=data.decode())
    return pb.Value(text=data.decode())


def key_of(message: Any) -> str | bytes | None:
    """Of anything that has a `key`."""
    kind = message.key.WhichOneof("kind") if message.HasField("key") else None
    if kind is None:
        return None
    key: pb.Key = message.key
    return key.text if kind == "text" else key.data


def new_record(message: pb.PublishedRecord) -> NewRecord:
    """Raises `InvalidRecordError`."""
    has = message.HasField
    return NewRecord(
        value_of(message.value),
        key=key_of(message),
        type=message.type,
        timestamp_ms=message.timestamp_ms if has("timestamp_ms") else None,
        headers=dict(message.headers) or None,
        id=message.id,
        partition=message.partition or None,
        expect_offset=message.expect_offset if has("expect_offset") else None,
        expect_key_offset=message.expect_key_offset if has("expect_key_offset") else None,
    )


def fields_of(record: NewRecord) -> dict[str, Any]:
    """As calls take them beside the value."""
    return {
        name: getattr(record, name)
        for name in (
            "key",
            "type",
            "timestamp_ms",
            "headers",
            "id",
            "partition",
            "expect_offset",
            "expect_key_offset",
        )
    }


def stored_record(record: Record) -> pb.StoredRecord:
    message = pb.StoredRecord(
        stream=record.stream,
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
    )
    if damage := record.damage:
        message.damage = damage
        message.raw = told_raw(record)
        return message
    message.type = record.type
    message.id = record.id
    set_key(message, record.key)
    message.value.CopyFrom(value_message(record.encoding, record.value_bytes))
    for name, text in record.headers.items():
        message.headers[name] = text
    return message


def set_key(message: Any, key: str | bytes | None) -> None:
    if isinstance(key, str):
        message.key.text = key
    elif key is not None:
        message.key.data = key


def run_of(receipt: Receipt) -> pb.Run:
    return pb.Run(
        partition=receipt.partition,
        base_offset=receipt.offset,
        count=1,
        append_ms=receipt.append_ms,
        duplicate=receipt.duplicate,
    )


def runs_of(receipts: Iterable[BatchReceipt]) -> list[pb.Run]:
    return [
        pb.Run(
            partition=each.partition,
            base_offset=each.base_offset,
            count=each.count,
            append_ms=each.append_ms,
            duplicate=each.duplicate,
        )
        for each in receipts
    ]
