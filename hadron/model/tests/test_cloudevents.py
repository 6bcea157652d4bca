"""CloudEvents become records and events again, with nothing lost on the way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadron.model.batch_building import BatchBuilder
from hadron.model.cloudevents import (
    ABSENT,
    CloudEvent,
    from_json,
    from_members,
    from_record,
    rfc3339,
    to_json,
    to_record,
)
from hadron.model.errors import InvalidRecordError
from hadron.model.record import NewRecord, Record
from hadron.model.record_batch import decode_batch

EXAMPLE = {
    "specversion": "1.0",
    "id": "A234-1234-1234",
    "source": "/mycontext",
    "subject": "sub",
    "type": "com.example.someevent",
    "time": "2018-04-05T17:31:00.1239+02:00",
    "comexampleextension1": "value",
    "comexampleothervalue": 5,
    "flag": False,
    "datacontenttype": "application/json",
    "dataschema": "https://e.org/s",
    "partitionkey": "customer-7",
    "data": {"much": ["wow", 1.5, None]},
}


def logged(record: NewRecord) -> Record:
    """The record as a reader gets it."""
    builder = BatchBuilder()
    builder.add(record, 5)
    data = builder.build(producer_id=b"", sequence=0, codec="none")
    batch = decode_batch(data, base_offset=7, stream="s", partition="eu/p0")
    [found] = batch.records()
    return found


def test_the_specifications_example_comes_back_as_it_was() -> None:
    record = to_record(from_json(json.dumps(EXAMPLE)))
    assert (record.id, record.type, record.key) == (
        "A234-1234-1234",
        "com.example.someevent",
        "customer-7",
    )
    assert record.timestamp_ms == 1_522_942_260_123
    found = logged(record)
    assert found.value == EXAMPLE["data"]
    assert found.content_type == "application/json"
    assert found.headers["comexampleothervalue"] == "5"
    assert json.loads(to_json(from_record(found))) == EXAMPLE


@pytest.mark.parametrize(
    ("members", "value"),
    [
        ({"data": "text"}, "text"),
        ({"data": "text", "datacontenttype": "text/plain"}, "text"),
        ({"data": "<a/>", "datacontenttype": "application/xml; charset=utf-8"}, "<a/>"),
        ({"data": None}, None),
        ({"data": 5, "datacontenttype": "application/geo+JSON"}, 5),
        ({"data_base64": "AP8="}, b"\x00\xff"),
        ({"data_base64": ""}, b""),
        ({}, b""),
    ],
)
def test_every_form_of_data_is_kept(members: dict[str, Any], value: Any) -> None:
    whole = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", **members}
    found = logged(to_record(from_json(json.dumps(whole))))
    assert found.value == value
    assert json.loads(to_json(from_record(found))) == whole


def test_a_json_string_is_stored_as_json_and_text_as_text() -> None:
    plain = CloudEvent(id="1", source="s", type="t", data="x", datacontenttype="text/plain")
    assert logged(to_record(plain)).value_bytes == b"x"
    assert logged(to_record(CloudEvent(id="1", source="s", type="t", data="x"))).value_bytes == (
        b'"x"'
    )


def test_a_record_that_is_no_event_becomes_one_and_loses_nothing() -> None:
    given_record = NewRecord(
        value="ü",
        key=b"\x00k",
        headers={"X-Trace": "1", "tenant": "a", "data": "odd"},
        timestamp_ms=-1,
    )
    event = from_record(logged(given_record))
    assert (event.id, event.source, event.type) == ("s/eu/p0/7", "/s/eu/p0", "hadron.record")
    assert (event.time, event.datacontenttype) == ("1969-12-31T23:59:59.999Z", "text/plain")
    assert event.extensions["tenant"] == "a"
    back = logged(to_record(from_json(to_json(event))))
    assert (back.value, back.key, back.timestamp_ms) == ("ü", b"\x00k", -1)
    assert given_record.headers is not None
    assert given_record.headers.items() <= back.headers.items()


WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
EXTENSIONS = st.dictionaries(
    st.from_regex(r"x[a-z0-9]{0,9}", fullmatch=True) | st.just("partitionkey"),
    st.text(max_size=9) | st.booleans() | st.integers(-(1 << 31), (1 << 31) - 1),
    max_size=4,
)


@given(
    st.builds(
        CloudEvent,
        id=WORDS,
        source=WORDS,
        type=WORDS,
        subject=st.none() | WORDS,
        time=st.none() | st.datetimes().map(lambda moment: moment.isoformat() + "Z"),
        datacontenttype=st.sampled_from([None, "application/json"]),
        dataschema=st.none() | WORDS,
        data=JSON | st.binary(max_size=20) | st.just(ABSENT),
        extensions=EXTENSIONS,
    )
)
def test_any_event_survives_a_log_and_the_json_format(event: CloudEvent) -> None:
    assert from_record(logged(to_record(event))) == event
    assert from_json(to_json(event)) == event


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"specversion": "0.3"}, "'0.3'"),
        ({"id": ""}, "id"),
        ({"source": 5}, "source"),
        ({"type": None}, "type"),
        ({"time": "yesterday"}, "'yesterday'"),
        ({"time": "2013-02-30T00:00:00Z"}, "2013-02-30"),
        ({"Upper": "x"}, "'Upper'"),
        ({"big": 1 << 31}, str(1 << 31)),
        ({"data_base64": "AP8="}, "both"),
        ({"data_base64": "%", "data": None}, "both"),
        ({"hadronheaders": "[]"}, "hadronheaders"),
        ({"hadronkey": "%"}, "hadronkey"),
    ],
)
def test_what_the_specification_does_not_allow_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRecordError, match=named):
        to_record(from_json(json.dumps(EXAMPLE | change)))


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "text", ["", "[]", "5", "{", "nonsense", "\ud800", DEEP, f'{{"data":{DEEP}}}']
)
def test_what_is_no_event_is_refused(text: str) -> None:
    with pytest.raises(InvalidRecordError):
        from_json(text)


def test_data_that_is_nested_too_deeply_is_refused() -> None:
    """However it comes: JSON libraries have different limits."""
    data: list[Any] = []
    for _ in range(10_000):
        data = [data]
    for content_type in ("application/json", "text/plain"):
        with pytest.raises(InvalidRecordError, match="nested too deeply"):
            to_json(from_members({**EXAMPLE, "datacontenttype": content_type, "data": data}))


@pytest.mark.parametrize(
    ("stamp", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_357_017_420_001, "2013-01-01T05:17:00.001Z"),
        (-62_135_596_800_000, "0001-01-01T00:00:00.000Z"),
        (1 << 62, "9999-12-31T23:59:59.904Z"),
    ],
)
def test_times_are_written_as_rfc_3339(stamp: int, text: str) -> None:
    assert rfc3339(stamp) == text


@pytest.mark.parametrize(
    ("text", "stamp"),
    [
        ("1970-01-01t00:00:00z", 0),
        ("1969-12-31T23:59:59.9995Z", -1),
        ("2016-12-31T23:59:60Z", 1_483_228_799_000),
        ("2013-01-01T05:17:00.5-05:00", 1_357_035_420_500),
    ],
)
def test_times_are_read_to_the_millisecond(text: str, stamp: int) -> None:
    event = CloudEvent(id="1", source="s", type="t", time=text)
    assert to_record(event).timestamp_ms == stamp
