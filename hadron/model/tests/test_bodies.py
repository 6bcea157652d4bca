"""Bodies that are none: told at the door or by whoever reads, never by anything else."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from array import array
from itertools import accumulate

import msgspec
import pytest
import xxhash
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hadron.model.batch import BatchHead, judge_batch, read_head
from hadron.model.batch_building import BatchBuilder
from hadron.model.bodies import BadBodyError, _spans
from hadron.model.errors import CorruptionError, DamagedRecordError, InvalidRecordError
from hadron.model.record import NewRecord
from hadron.model.record_batch import RecordBatch, decode_batch
from hadron.model.tests import poison


@pytest.mark.parametrize("name", list(poison.AT_THE_DOOR))
def test_told_at_the_door(name: str) -> None:
    data = poison.AT_THE_DOOR[name]
    read_head(data)
    with pytest.raises(InvalidRecordError, match="its body is none: "):
        judge_batch(data)
    assert_damaged(decode_batch(data, base_offset=70))


@pytest.mark.parametrize("name", list(poison.INSIDE))
def test_told_by_readers(name: str) -> None:
    data = poison.INSIDE[name]
    judge_batch(data)
    assert_damaged(decode_batch(data, base_offset=70))


def assert_damaged(batch: RecordBatch) -> None:
    """Its records say what is wrong, and where; the head is known."""
    assert batch.damage
    records = batch.records()
    assert len(records) == len(batch)
    for index, record in enumerate(records[:10]):
        assert record.damage == batch.damage
        assert record.offset == 70 + index
        assert (record.type, record.timestamp_ms) == ("", 0)
        assert record.raw == batch.raw
        for name in ("value", "value_bytes"):
            with pytest.raises(DamagedRecordError, match=f"/{70 + index} is damaged"):
                getattr(record, name)
        assert "damage" in repr(record)
    with pytest.raises(DamagedRecordError):
        batch.value_bytes()


@pytest.mark.parametrize("name", list(poison.SINGLE))
def test_one_record_of_three(name: str) -> None:
    data = poison.SINGLE[name]
    judge_batch(data)
    batch = decode_batch(data, stream="s", partition="p")
    first, second, third = batch.records()
    assert (first.damage, third.damage, first.value, third.value) == ("", "", b"aa", b"cc")
    assert "is said to be" in second.damage
    assert second.raw == second.value_bytes
    with pytest.raises(DamagedRecordError, match="record s/p/1 is damaged at its source"):
        _ = second.value, second.key
    assert "damage" in repr(second)


def test_what_producers_build_is_judged_sound() -> None:
    for codec in ("none", "zstd"):
        builder = BatchBuilder()
        for number in range(3_000):
            builder.add(
                NewRecord(
                    value=(b"x", "text", {"a": [number]}, b"")[number % 4],
                    key=None if number % 3 else f"k{number}",
                    type=f"t{number % 7}",
                    id=str(number) if number % 5 else "",
                    headers={"h": "1"} if number % 2 else None,
                ),
                number,
            )
        data = builder.build(codec=codec)
        assert judge_batch(data).n == 3_000
        batch = decode_batch(data)
        assert not batch.damage
        assert not any(record.damage for record in batch.records())


@given(st.lists(st.integers(-(1 << 31), (1 << 31) - 1), min_size=2, max_size=60))
@example([0] * 20)
@example([0, -1] + [0] * 20)
@example([0] + [5] * 20 + [4, 5])
def test_offsets_are_in_order_or_not(numbers: list[int]) -> None:
    numbers[0] = 0
    length = numbers[-1]
    data = memoryview(array("i", numbers)).cast("B")
    expected = length >= 0 and numbers == sorted(numbers)
    assert _spans(data, len(numbers) - 1, max(length, 0)) == expected


@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=200), st.data())
def test_sound_offsets_until_one_is_changed(sizes: list[int], data: st.DataObject) -> None:
    numbers = list(accumulate(sizes, initial=0))
    count, length = len(sizes), numbers[-1]
    assert _spans(memoryview(array("i", numbers)).cast("B"), count, length)
    at = data.draw(st.integers(0, count))
    numbers[at] = data.draw(st.integers(-(1 << 31), (1 << 31) - 1))
    expected = numbers[0] == 0 and numbers[-1] == length and numbers == sorted(numbers)
    assert _spans(memoryview(array("i", numbers)).cast("B"), count, length) == expected


SEEDS = [
    *poison.AT_THE_DOOR.values(),
    *poison.INSIDE.values(),
    *poison.SINGLE.values(),
    poison.batch(),
    poison.batch(zstd=True),
]


@settings(max_examples=400)
@given(st.sampled_from(SEEDS), st.data())
def test_whatever_is_changed_readers_get_past_it(seed: bytes, data: st.DataObject) -> None:
    """Bytes are changed, cut out and put in, in the head and in the body, and the checksum is right
    again."""
    head_size = int.from_bytes(seed[16:20], "little")
    parts = [bytearray(seed[24 : 24 + head_size]), bytearray(seed[24 + head_size :])]
    for _ in range(data.draw(st.integers(1, 4))):
        part = parts[data.draw(st.integers(0, 1))]
        at = data.draw(st.integers(0, max(0, len(part) - 1)))
        stop = min(len(part), at + data.draw(st.integers(0, 4)))
        part[at:stop] = data.draw(st.binary(max_size=4))
    codec = data.draw(st.sampled_from([seed[12], 0, 1]))
    changed = _sealed(bytes(parts[0]), bytes(parts[1]), codec)
    with contextlib.suppress(CorruptionError, InvalidRecordError):
        judge_batch(changed)
    try:
        batch = decode_batch(changed)
    except CorruptionError:
        # Its head is none: no leader takes it.
        with pytest.raises(CorruptionError):
            read_head(changed)
        return
    assert len(batch.records()) == batch.count
    for record in batch.records()[:50]:
        sound = not record.damage
        try:
            _ = record.value, record.key, record.value_bytes
            assert sound
        except DamagedRecordError:
            assert not sound
        assert isinstance(record.raw, bytes)
        assert record.id
        assert isinstance(dict(record.headers), dict)
        repr(record)


def _sealed(head: bytes, body: bytes, codec: int) -> bytes:
    data = bytearray(
        struct.pack("<4sQB3xII", b"HRB1", 0, codec, len(head), len(body)) + head + body
    )
    struct.pack_into("<Q", data, 4, xxhash.xxh3_64_intdigest(memoryview(data)[12:]))
    return bytes(data)


def test_a_bomb_costs_no_memory() -> None:
    """Frames of a few bytes that say they hold a gigabyte, or hold one and do not say it."""
    gigabyte = zstandard.ZstdCompressor().compress(bytes(1 << 30))
    small = BatchHead(n=1, ts=memoryview(bytes(8)), raw=100)
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 28))
    for packed in (gigabyte, silent):
        data = poison.joined(small, packed, codec=1)
        tracemalloc.start()
        try:
            assert decode_batch(data).damage
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 4 << 20


def test_deep_nesting_is_no_recursion_error() -> None:
    deep = b"\x82\xa1n\x01\xa1?" + b"\x91" * 100_000 + b"\xc0"
    with pytest.raises(CorruptionError, match="head does not decode"):
        read_head(_sealed(deep, b"\x80", 0))
    body = msgspec.msgpack.encode({"vo": bytes(8), "ve": b"\0"})
    deep = b"\x83" + body[1:] + b"\xa1h" + b"\x91" * 100_000 + b"\xc0"
    data = poison.joined(BatchHead(n=1, ts=memoryview(bytes(8)), raw=len(deep)), deep)
    with pytest.raises(InvalidRecordError):
        judge_batch(data)
    assert decode_batch(data).damage


def test_the_error_of_a_body_is_no_error_of_users() -> None:
    assert not issubclass(BadBodyError, DamagedRecordError)
