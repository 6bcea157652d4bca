"""What readers get of a value that goes as JSON: `NewRecord` says so."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from hadron.model.json_values import encode_json, json_text


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ({"x"}, ["x"]),
        ((1, 2), [1, 2]),
        ({1: "a", 2.5: "b"}, {"1": "a", "2.5": "b"}),
        (datetime(2026, 1, 31, 12), "2026-01-31T12:00:00"),
        (datetime(2026, 1, 31, 12, tzinfo=UTC), "2026-01-31T12:00:00Z"),
        (date(2026, 1, 31), "2026-01-31"),
        (timedelta(seconds=5), "PT5S"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Decimal("1.50"), "1.50"),
        ({"raw": b"x"}, {"raw": "eA=="}),
    ],
)
def test_what_json_has_not_comes_back_as_what_it_has(sent: Any, read: Any) -> None:
    assert json.loads(encode_json(sent)) == read


def test_a_json_text_stays_as_it_was_written() -> None:
    for text in ('{"a": 1.50, "b": 1e2}', "12345678901234567890123", "null"):
        assert bytes(json_text(f" {text}\n")) == bytes(json_text(text.encode())) == text.encode()


@pytest.mark.parametrize(
    "text",
    ["", "{", "1 2", "NaN", '{"a":1e999}', "1" * 5_000, '"\\ud800"', "\ud800", b'"\xff"',
     "[" * 5_000 + "]" * 5_000],
)  # fmt: skip
def test_what_some_reader_could_not_decode_is_no_json_text(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        json_text(text)
