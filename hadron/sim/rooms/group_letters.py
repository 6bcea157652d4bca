"""Records of a world of groups, with all that a record may have, and what dead letters say of them.

A record is known by its number: what it says follows from that, so that a letter can be held
against it (GROUPS G4).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from hadron.delivery.letters import (
    ATTEMPTS,
    GROUP,
    ORIGIN_OFFSET,
    ORIGIN_PARTITION,
    ORIGIN_STREAM,
    REASON,
)
from hadron.model.record import NewRecord, Record
from hadron.model.record_batch import decode_batch

STREAM: Final = "s"
PARTITION: Final = "local/p0"

_TIME_MS: Final = 1_000_000


class Letter(NamedTuple):
    """A letter, but for its reason; `has_reason` says whether there is one."""

    number: int
    key: str
    type: str
    timestamp_ms: int
    id: str
    headers: dict[str, str]
    has_reason: bool = True


def record_of(number: int, key: str) -> NewRecord:
    """Every second one has headers, every third one an id, and so on."""
    return NewRecord(
        str(number),
        key=key or None,
        type=_type(number),
        timestamp_ms=_TIME_MS + number,
        headers=_headers(number),
        id=_id(number),
    )


def _type(number: int) -> str:
    return f"t{number % 3}" if number % 5 else ""


def _id(number: int) -> str:
    return f"id-{number}" if number % 3 else ""


def _headers(number: int) -> dict[str, str]:
    return {"number": str(number)} if number % 2 else {}


def letter_of(number: int, key: str, group: str, offset: int, attempts: int) -> Letter:
    """What the letter of a record is to say."""
    own = {
        ATTEMPTS: str(attempts),
        ORIGIN_STREAM: STREAM,
        ORIGIN_PARTITION: PARTITION,
        ORIGIN_OFFSET: str(offset),
        GROUP: group,
    }
    headers = _headers(number) | own
    return Letter(number, key, _type(number), _TIME_MS + number, _id(number), headers)


def letters_in(body: bytes) -> Iterator[Letter]:
    """What they say."""
    batch = decode_batch(body)
    for index in range(batch.count):
        record, headers = Record(batch, index), dict(batch.headers(index))
        has_reason = bool(headers.pop(REASON, ""))
        yield Letter(
            int(record.raw),
            str(record.key or ""),
            record.type,
            record.timestamp_ms,
            batch.id(index),
            headers,
            has_reason,
        )
