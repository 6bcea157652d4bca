"""Durations, sizes and times: exact both ways, and refused with the value in the message."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadron.model.errors import RequestError
from hadron.model.units import (
    format_duration,
    format_size,
    parse_duration_ms,
    parse_size,
    parse_time_ms,
)

_INT63 = (1 << 63) - 1


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("0s", 0),
        ("500ms", 500),
        ("1.5s", 1_500),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("7d", 604_800_000),
        ("1h30m", 5_400_000),
        ("1d2h3m4s5ms", 93_784_005),
        (" 5s ", 5_000),
        ("0.001s", 1),
    ],
)
def test_duration_is_read(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "5 s",
        "-5s",
        "5x",
        "5M",
        "s",
        "1.s",
        ".5s",
        "5s5s",
        "30m1h",
        "0.5ms",
        "1e3s",
        "99999999999999999d",
        "٣s",
        "5s\n5m",
        "1" * 400 + "s",
    ],
)
def test_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_duration_ms(text)
    assert repr(text.strip())[:50] in caught.value.message
    assert caught.value.hint.startswith("expected ")


@given(st.integers(0, _INT63))
def test_duration_round_trip(ms: int) -> None:
    assert parse_duration_ms(format_duration(ms)) == ms


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0s"),
        (1, "1ms"),
        (1_500, "1500ms"),
        (90_000, "90s"),
        (300_000, "5m"),
        (86_400_000, "1d"),
    ],
)
def test_duration_is_written_with_one_unit(ms: int, text: str) -> None:
    assert format_duration(ms) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("512", 512),
        ("512B", 512),
        ("1MB", 1_000_000),
        ("1kB", 1_000),
        ("64KiB", 65_536),
        ("32MiB", 32 << 20),
        ("10GiB", 10 << 30),
        ("10gib", 10 << 30),
        ("1.5 GiB", 3 << 29),
        ("2TiB", 2 << 40),
    ],
)
def test_size_is_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "-1", "1.5", "10 giga", "10G", "GiB", "0x10", "1_000", "99999999TiB", "1e6"]
)
def test_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_size(text)
    assert repr(text) in caught.value.message
    assert caught.value.hint.startswith("expected ")


@given(st.integers(0, _INT63))
def test_size_round_trip(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0"),
        (512, "512"),
        (65_536, "64KiB"),
        (1_000_000, "1MB"),
        (10 << 30, "10GiB"),
        (1001, "1001"),
    ],
)
def test_size_is_written_with_the_largest_exact_unit(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2013-01-01T05:00:00Z", 1_357_016_400_000),
        ("2013-01-01t05:00:00.25z", 1_357_016_400_250),
        ("2013-01-01 06:00:00+01:00", 1_357_016_400_000),
        ("2013-01-01T05:00:00.123456789Z", 1_357_016_400_123),
        ("1969-12-31T23:59:59.999Z", -1),
        ("0001-01-01T00:00:00+23:59", -62_135_683_140_000),
    ],
)
def test_time_is_read(text: str, ms: int) -> None:
    assert parse_time_ms(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2013-01-01",
        "2013-01-01T05:00:00",
        "2013-13-01T05:00:00Z",
        "0000-01-01T00:00:00Z",
        "2013-01-01T25:00:00Z",
        "2013-01-01T05:00:00+99:00",
        "20130101T050000Z",
    ],
)
def test_time_is_refused_by_name(text: str) -> None:
    with pytest.raises(RequestError, match="is not a time") as caught:
        parse_time_ms(text)
    assert repr(text) in caught.value.message
    assert "RFC 3339" in caught.value.hint


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_duration_ms, parse_size, parse_time_ms):
        with suppress(RequestError):
            assert isinstance(parse(text), int)
