"""Record batches as Arrow agree with the records that a client reads."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hadron.model.batch import encode_batch
from hadron.model.record import NewRecord
from hadron.model.record_batch import RecordBatch, decode_batch
from hadron.model.tests import poison
from hadron.spark.arrow import SCHEMA, coalesced, repeated, to_arrow, values
from hadron.spark.tests.fakes import build

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

records = st.lists(
    st.builds(
        NewRecord,
        value=st.one_of(st.binary(max_size=20), st.text(max_size=20), st.integers()),
        key=st.one_of(st.none(), st.just(""), st.text(max_size=5), st.binary(max_size=5)),
        type=st.sampled_from(["", "a", "b.c"]),
        timestamp_ms=st.integers(0, 4_000_000_000_000),
        headers=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    ),
    min_size=1,
    max_size=20,
)


def decoded(new: list[NewRecord], base_offset: int = 100) -> RecordBatch:
    data = build(new)
    return decode_batch(data, base_offset=base_offset, stream="flights", partition="local/p0")


@settings(deadline=None)  # the first example pays for loading Arrow
@given(records, st.data())
def test_every_column_says_what_the_records_say(new: list[NewRecord], data: st.DataObject) -> None:
    batch = decoded(new)
    start = data.draw(st.integers(0, batch.count - 1))
    stop = data.draw(st.integers(start + 1, batch.count))
    table = to_arrow(batch, SCHEMA.names, start, stop)
    table.validate(full=True)
    assert table.schema == SCHEMA
    rows = table.to_pylist()
    assert len(rows) == stop - start
    for row, record in zip(rows, batch.records(start, stop), strict=True):
        key = record.key.encode() if isinstance(record.key, str) else record.key
        assert row == {
            "key": key,
            "value": record.value_bytes,
            "stream": "flights",
            "partition": "local/p0",
            "offset": record.offset,
            "timestamp": _EPOCH + timedelta(milliseconds=record.timestamp_ms),
            "type": record.type,
            "headers": list(record.headers.items()),
        }


def test_values_are_not_copied() -> None:
    batch = decoded([NewRecord(value=b"abc"), NewRecord(value=b"defg")])
    assert values(batch).buffers()[2].address == pa.py_buffer(batch.body.v).address


def test_columns_can_be_chosen_and_headers_are_left_out_by_default() -> None:
    batch = decoded([NewRecord(value=b"abc", headers={"a": "b"})])
    assert to_arrow(batch).schema.names == SCHEMA.names[:-1]
    assert to_arrow(batch, ["offset", "value"]).to_pylist() == [{"offset": 100, "value": b"abc"}]


def test_times_beyond_spark_are_held_at_its_limit() -> None:
    column = to_arrow(decoded([NewRecord(value=b"", timestamp_ms=2**63 - 1)]), ["timestamp"])
    assert column["timestamp"].cast(pa.int64())[0].as_py() == (2**63 - 1) // 1000 * 1000


def test_offsets_that_point_outside_are_refused() -> None:
    batch = decoded([NewRecord(value=b"abc"), NewRecord(value=b"defg")])
    body = batch.body
    body.vo = memoryview(struct.pack("<3i", 0, 1_000_000, 7))
    damaged = decode_batch(encode_batch(batch.head, body, "none"))
    assert to_arrow(damaged)["value"].to_pylist() == [None, None]


@pytest.mark.parametrize("name", [*poison.AT_THE_DOOR, *poison.INSIDE])
def test_what_is_damaged_at_its_source_is_null(name: str) -> None:
    data = {**poison.AT_THE_DOOR, **poison.INSIDE}[name]
    batch = decode_batch(data, base_offset=7, stream="flights", partition="local/p0")
    rows = to_arrow(batch, SCHEMA.names).to_pylist()
    assert len(rows) == len(batch)
    assert {(row["key"], row["value"]) for row in rows} == {(None, None)}
    assert [row["offset"] for row in rows] == list(range(7, 7 + len(batch)))


def test_small_batches_are_joined() -> None:
    batches = [to_arrow(decoded([NewRecord(value=bytes([i]))], i), ["offset"]) for i in range(10)]
    joined = list(coalesced(iter(batches), rows=4))
    assert [each.num_rows for each in joined] == [4, 4, 2]
    assert [row for each in joined for row in each["offset"].to_pylist()] == list(range(10))


def test_large_batches_are_sent_as_they_are_and_in_order() -> None:
    def of(first: int, count: int) -> pa.RecordBatch:
        return to_arrow(decoded([NewRecord(value=b"x")] * count, first), ["offset", "value"])

    batches = [of(0, 1), of(1, 5), of(6, 2), of(8, 1), of(9, 6)]
    joined = list(coalesced(iter(batches), rows=8, alone=5))
    assert [each.num_rows for each in joined] == [1, 5, 3, 6]
    assert joined[1] is batches[1]
    assert [row for each in joined for row in each["offset"].to_pylist()] == list(range(15))


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b" * 100]), st.integers(0, 20_000))))
def test_what_is_the_same_for_all_is_repeated_often_enough(wanted: list[tuple[str, int]]) -> None:
    for text, count in wanted:
        made = repeated(text, count)
        assert (len(made), made.unique().to_pylist()) == (count, [text] if count else [])
