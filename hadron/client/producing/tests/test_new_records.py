"""What a program passes to `send` becomes plain, or is refused alone."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum
from typing import Any

import pytest

from hadron.client.producing.new_records import check_record, new_record
from hadron.model.errors import InvalidRecordError
from hadron.model.record import NewRecord, decode_value, encode_value


class Name(str):
    """As of Django, numpy and the like: a str to `isinstance`, and no type that msgspec encodes."""

    __slots__ = ()


class Octets(bytes):
    pass


class Number(int):
    pass


class Mode(str, Enum):  # noqa: UP042 - an older one's str() is not its text
    FAST = "fast"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"value": 1, "key": 5}, "int"),
        ({"value": 1, "type": 5}, "type"),
        ({"value": 1, "type": "x" * 300}, "300"),
        ({"value": 1, "headers": {"a": 1}}, "'a'"),
        ({"value": 1, "headers": {1: "a"}}, "header"),
        ({"value": 1, "timestamp_ms": 1 << 63}, str(1 << 63)),
        ({"value": 1, "timestamp_ms": "now"}, "'now'"),
        ({"value": "\ud800"}, "Unicode"),
        ({"value": 1, "key": "\ud800"}, "Unicode"),
        ({"value": 1, "id": b"x"}, "id"),
        ({"value": 1, "type": b""}, "type"),
        *(
            ({"value": 1, "type": wrong}, "is not a type")
            for wrong in ("bad type", "a..b", ".a", "a.", "*", ">", "a.*", "a.>", "a\tb", "a\n")
        ),
        ({"value": 1, "timestamp_ms": True}, "bool"),
        ({"value": 1, "timestamp_ms": 1.5}, "timestamp_ms 1.5"),
        ({"value": 1, "timestamp_ms": datetime(2013, 1, 1)}, "time zone"),
        ({"value": Name("\ud800")}, "Unicode"),
    ],
)
def test_records_that_would_not_encode_are_refused_alone(
    fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidRecordError, match=named):
        check_record(NewRecord(**fields))


@pytest.mark.parametrize(
    ("key", "named", "way_out"),
    [
        (5, "a key of type int cannot be sent: 5", "bytes"),
        (["x" * 1_000], "a key of type list cannot be sent: ['xxx", "bytes"),
        ("order-\ud800", "a key is not valid Unicode: 'order-\\ud800'", "bytes"),
        ("y" * 1_000 + "\ud800", "a key is not valid Unicode: 'yyy", "bytes"),
    ],
)
def test_a_key_that_is_refused_is_shown(key: Any, named: str, way_out: str) -> None:
    with pytest.raises(InvalidRecordError) as caught:
        check_record(NewRecord(value=1, key=key))
    assert caught.value.message.startswith(named)
    assert len(caught.value.message) < 250
    assert way_out in (caught.value.hint or "")


@pytest.mark.parametrize("good", ["a", "order.placed", "urn:a/b#1", "größe.neu", "a-b_c.D9"])
def test_types_that_others_have_are_types(good: str) -> None:
    assert check_record(NewRecord(value=1, type=good)).type == good


def test_parts_of_a_record_are_plain_whatever_they_were_given_as() -> None:
    key: Any = bytearray(b"k")
    record = check_record(
        NewRecord(
            value=1,
            key=key,
            type=Mode.FAST,
            id=Name("i"),
            timestamp_ms=Number(7),
            headers={Name("a"): Name("b")},
        )
    )
    assert record == NewRecord(
        value=1, key=b"k", type="fast", id="i", timestamp_ms=7, headers={"a": "b"}
    )
    assert record.headers is not None
    parts = [record.key, record.type, record.id, record.timestamp_ms, *record.headers.items()]
    kinds = [set(map(type, part)) if isinstance(part, tuple) else type(part) for part in parts]
    assert kinds == [bytes, str, str, int, {str}]
    for sent, plain in ((Name("k"), "k"), (Octets(b"k"), b"k"), (memoryview(b"k"), b"k")):
        found = check_record(NewRecord(value=1, key=sent)).key  # type: ignore[arg-type]
        assert found == plain
        assert type(found) is type(plain)
    noon = datetime(2013, 1, 1, 12, tzinfo=UTC)
    fields: dict[str, Any] = {"value": 1, "type": None, "id": None, "timestamp_ms": noon}
    assert check_record(NewRecord(**fields)) == NewRecord(value=1, timestamp_ms=1_357_041_600_000)
    ours = NewRecord(value=1, key="k", type="t", id="i", timestamp_ms=7, partition="p")
    assert check_record(ours) is ours


def test_subclasses_of_text_and_bytes_are_values() -> None:
    for sent, plain in (
        (Name("x"), "x"),
        (Mode.FAST, "fast"),
        (Octets(b"x"), b"x"),
        (memoryview(b"x"), b"x"),
        ({"a": [Name("x")]}, {"a": ["x"]}),
        ({Name("a"): 1}, {"a": 1}),
        ({1: 2}, {"1": 2}),
        ({"a": Octets(b"x")}, {"a": "eA=="}),
        ({"1": 1, 2: None}, {"1": 1, "2": None}),
    ):
        found = decode_value(*encode_value(sent))
        assert found == plain
        assert type(found) is type(plain)


class Broken:
    def model_dump(self, **_: Any) -> Any:
        raise KeyError("nothing")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({(1, 2): 3}, r"its key \(1, 2\) is no text but tuple"),
        ({None: 1}, "its key None is no text but NoneType"),
        ({"a": {True: 1}}, r"at \['a'\]: its key True is no text but bool"),
        ([{1: "a", "1": "b"}], r"at \[0\]: its keys 1 and '1' are the same in JSON"),
        ({"a": {"b": [0, object()]}}, r"at \['a'\]\['b'\]\[1\]: object is no JSON value"),
        ({"a": [None, float("nan")]}, r"at \['a'\]\[1\]: .* NaN"),
        ({"a": "\ud800"}, r"at \['a'\]: .*surrogates"),
        (Broken(), "nothing"),
    ],
)
def test_what_is_no_json_is_named_with_its_place(value: Any, why: str) -> None:
    with pytest.raises(InvalidRecordError, match=why):
        encode_value(value)


def test_a_new_record_is_not_given_its_fields_twice() -> None:
    record = NewRecord(value=1, key="k")
    assert new_record(record, None, "", None, None, "") is record
    with pytest.raises(InvalidRecordError):
        new_record(record, "other", "", None, None, "")
