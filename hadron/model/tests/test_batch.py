"""The record batch: what goes in comes out, and damage never does."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadron.model import limits
from hadron.model.batch import check_body, key_hash, matching_indexes, read_head, split_batches
from hadron.model.batch_building import BatchBuilder, encode_values
from hadron.model.errors import CorruptionError, InvalidRecordError, RecordTooLargeError
from hadron.model.record import NewRecord
from hadron.model.record_batch import decode_batch

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
values = st.binary() | st.text() | json_values
types = st.sampled_from(["", "a", "a.b", "flight.departed"])
records = st.builds(
    NewRecord,
    value=values,
    key=st.none() | st.text() | st.binary(),
    type=types,
    timestamp_ms=st.integers(0, 2**42),
    headers=st.none() | st.dictionaries(st.text(), st.text(), max_size=2),
    id=st.text(string.ascii_letters, max_size=5),
)


def build(given_records: list[NewRecord], **options: Any) -> bytes:
    builder = BatchBuilder()
    for record in given_records:
        builder.add(record, now_ms=7)
    return builder.build(**options)


@given(st.lists(st.lists(records, min_size=1, max_size=4), min_size=1, max_size=5))
def test_batches_that_are_put_together_are_one_of_all_their_records(
    sent: list[list[NewRecord]],
) -> None:
    together = BatchBuilder()
    for some in sent:
        builder = BatchBuilder()
        for record in some:
            builder.add(record, now_ms=7)
        at = len(together)
        assert together.extend(builder) == at
    assert together.build() == build([record for some in sent for record in some])


@given(st.lists(records, min_size=1, max_size=20), st.sampled_from(["none", "zstd"]))
def test_records_are_read_back_as_sent(sent: list[NewRecord], codec: str) -> None:
    data = build(sent, producer_id=b"p" * 16, producer_epoch=3, sequence=5, codec=codec)
    batch = decode_batch(data, base_offset=100, stream="s", partition="local/p0")
    assert (batch.head.pid, batch.head.pep, batch.head.seq) == (b"p" * 16, 3, 5)
    assert len(batch) == len(sent)
    for index, (record, new) in enumerate(zip(batch.records(), sent, strict=True)):
        assert record.value == new.value
        assert type(record.value) is type(new.value)
        assert record.key == new.key
        assert type(record.key) is type(new.key)
        assert record.type == new.type
        assert record.timestamp_ms == new.timestamp_ms
        assert dict(record.headers) == dict(new.headers or {})
        assert record.offset == 100 + index
        assert record.id == (new.id or f"s/local/p0/{100 + index}")


@given(st.lists(records, min_size=1, max_size=5), st.data())
def test_a_flipped_bit_is_found_wherever_it_is(sent: list[NewRecord], data: st.DataObject) -> None:
    damaged = bytearray(build(sent))
    position = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[position // 8] ^= 1 << position % 8
    with pytest.raises(CorruptionError):
        decode_batch(bytes(damaged))
    with pytest.raises(CorruptionError):
        read_head(bytes(damaged))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_corruption(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_batch(data)


@given(st.lists(records, min_size=1, max_size=5), st.data())
def test_a_truncated_batch_is_found(sent: list[NewRecord], data: st.DataObject) -> None:
    whole = build(sent)
    with pytest.raises(CorruptionError):
        decode_batch(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=50))
def test_the_fast_way_gives_what_the_builder_gives(sent: list[bytes]) -> None:
    fast = encode_values(sent, 7, producer_id=b"p" * 16, sequence=1)
    slow = build([NewRecord(value=value) for value in sent], producer_id=b"p" * 16, sequence=1)
    assert fast == slow


def test_the_head_is_readable_without_the_body() -> None:
    data = build([NewRecord(value=1, key="k", type="a"), NewRecord(value=2, type="b")])
    head = read_head(data)
    assert head.n == 2
    assert head.t == ["a", "b"]
    assert list(head.kh.cast("Q")) == [key_hash(b"k"), 0]
    assert list(matching_indexes(head, lambda name: name == "b")) == [1]


@pytest.mark.parametrize(
    ("names", "wanted", "expected"),
    [
        (["", ""], "", [0, 1]),
        (["", ""], "a", []),
        (["a", "a"], "a", [0, 1]),
        (["", "a"], "", [0]),
        (["", "a"], "a", [1]),
        (["a", "", "b"], "", [1]),
    ],
)
def test_types_are_matched_from_the_index_section(
    names: list[str], wanted: str, expected: list[int]
) -> None:
    head = read_head(build([NewRecord(value=0, type=name) for name in names]))
    assert list(matching_indexes(head, lambda name: name == wanted)) == expected


def test_a_record_over_the_limit_is_refused_and_leaves_the_batch_whole() -> None:
    builder = BatchBuilder()
    builder.add(NewRecord(value=b"first", key="k"), 7)
    for large in (
        NewRecord(value=b"x" * limits.MAX_RECORD_BYTES),
        NewRecord(value=b"", key=b"x" * limits.MAX_RECORD_BYTES),
        NewRecord(value=b"", headers={"h": "x" * limits.MAX_RECORD_BYTES}),
    ):
        with pytest.raises(RecordTooLargeError, match=str(limits.MAX_RECORD_BYTES)):
            builder.add(large, 7)
    builder.add(NewRecord(value=b"last"), 7)
    batch = decode_batch(builder.build())
    assert [(record.value, record.key) for record in batch.records()] == [
        (b"first", "k"),
        (b"last", None),
    ]


def test_a_value_that_just_does_not_fit_is_told_with_a_size_that_is_over_the_limit() -> None:
    fits, large = b"x" * limits.MAX_VALUE_BYTES, b"x" * (limits.MAX_VALUE_BYTES + 1)
    told = f"a record of {limits.MAX_RECORD_BYTES + 1} bytes is over the limit"
    with pytest.raises(RecordTooLargeError, match=told):
        encode_values([b"first", large], 7)
    with pytest.raises(RecordTooLargeError, match=told):
        BatchBuilder().add(NewRecord(value=large), 7)
    assert decode_batch(encode_values([fits], 7)).records()[0].value == fits
    assert BatchBuilder().add(NewRecord(value=fits), 7) == 0


@pytest.mark.parametrize(
    ("key", "value", "said", "way_out"),
    [
        ("k", b"x" * (1 << 20), "; its key is 'k'", "store large objects elsewhere"),
        ("ü" * (1 << 20), b"x", "...', of 2097152 bytes", "a shorter key"),
        (b"z" * (1 << 21), b"x", "...', of 2097152 bytes", "a shorter key"),
    ],
)
def test_a_record_that_is_too_large_is_known_by_its_key(
    key: str | bytes, value: bytes, said: str, way_out: str
) -> None:
    with pytest.raises(RecordTooLargeError) as caught:
        BatchBuilder().add(NewRecord(value=value, key=key), 7)
    assert caught.value.message.endswith(said)
    assert len(caught.value.message) < 250
    assert way_out in caught.value.hint


def test_a_value_that_json_cannot_hold_is_refused_by_name() -> None:
    with pytest.raises(InvalidRecordError, match="object"):
        BatchBuilder().add(NewRecord(value=object()), 7)


@pytest.mark.parametrize("value", [float("nan"), {"a": [1, float("inf")]}, (None, -float("inf"))])
def test_a_number_that_json_does_not_have_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRecordError, match="NaN or an infinity"):
        BatchBuilder().add(NewRecord(value=value), 7)


def test_null_is_a_value() -> None:
    builder = BatchBuilder()
    for value in (None, {"a": None}, ["null", 1.5]):
        builder.add(NewRecord(value=value), 7)
    records = decode_batch(builder.build()).records()
    assert [record.value for record in records] == [None, {"a": None}, ["null", 1.5]]


def test_an_empty_batch_and_an_unknown_codec_are_refused() -> None:
    with pytest.raises(InvalidRecordError, match="at least one"):
        BatchBuilder().build()
    with pytest.raises(InvalidRecordError, match="lz4"):
        build([NewRecord(value=1)], codec="lz4")


def test_a_body_larger_than_it_says_is_not_inflated() -> None:
    data = build([NewRecord(value=b"\0" * 100_000)], codec="zstd")
    head = read_head(data)
    assert head.raw > 100_000
    assert len(data) < 1_000
    assert decode_batch(data).records()[0].value == b"\0" * 100_000


@given(st.lists(records, min_size=1, max_size=5), st.data())
def test_batches_one_after_the_other_are_told_apart(
    items: list[NewRecord], data: st.DataObject
) -> None:
    parts = [build([item]) for item in items]
    body = b"".join(parts)
    assert [bytes(part) for part in split_batches(body)] == parts
    assert check_body(body) == len(parts)
    place = data.draw(st.integers(0, len(body) - 1))
    damaged = bytearray(body)
    damaged[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptionError):
        check_body(bytes(damaged))
    with pytest.raises(CorruptionError):
        check_body(body[:-1])


@given(st.binary(max_size=100))
def test_whatever_the_bytes_all_of_them_are_in_some_part(data: bytes) -> None:
    assert b"".join(split_batches(data)) == data
    with pytest.raises(CorruptionError):
        check_body(data)


def test_the_bytes_are_what_they_were() -> None:
    """The format is a promise: these bytes were written by the first version."""
    data = build(
        [NewRecord(value={"n": 1}, key="k", type="t", timestamp_ms=5), NewRecord(value=b"v")],
        producer_id=bytes(range(16)),
        sequence=3,
    )
    assert data.hex() == GOLDEN


GOLDEN = (
    "48524231972ee29c7de61cb0000000005d0000004200000088a16e02a3706964c41000010203040506070809"
    "0a0b0c0d0e0fa373657103a27473c41005000000000000000700000000000000a17492a174a0a27463c40400"
    "000100a26b68c4101d88da4f70e321a90000000000000000a37261774286a176c4087b226e223a317d76a276"
    "6fc40c000000000700000008000000a27665c4020200a16bc4016ba26b6fc40c000000000100000001000000"
    "a26b65c4020100"
)
