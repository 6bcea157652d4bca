"""A part of a record batch has exactly its records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadron.client.reading.slices import slice_batch
from hadron.model.batch_building import BatchBuilder
from hadron.model.record import NewRecord
from hadron.model.record_batch import decode_batch

_records = st.lists(
    st.builds(
        NewRecord,
        value=st.one_of(st.binary(max_size=5), st.text(max_size=5), st.integers(-9, 9)),
        key=st.one_of(st.none(), st.binary(max_size=3), st.text(max_size=3)),
        type=st.sampled_from(["", "a", "b.c"]),
        timestamp_ms=st.sampled_from([1, 2]),
        headers=st.sampled_from([None, {"h": "1"}]),
        id=st.sampled_from(["", "id"]),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.long
@given(records=_records, data=st.data(), codec=st.sampled_from(["none", "zstd"]))
def test_a_slice_has_exactly_its_records(
    records: list[NewRecord], data: st.DataObject, codec: str
) -> None:
    builder = BatchBuilder()
    for record in records:
        builder.add(record, 7)
    whole = decode_batch(builder.build(codec=codec), base_offset=100, stream="s", partition="p")
    start = data.draw(st.integers(0, len(records) - 1))
    stop = data.draw(st.integers(start + 1, len(records)))
    part = slice_batch(whole, start, stop)

    def seen(records: list[Any]) -> list[Any]:
        return [
            (r.value, r.key, r.type, r.timestamp_ms, dict(r.headers), r.id, r.offset)
            for r in records
        ]

    assert seen(part.records()) == seen(whole.records(start, stop))
    assert part.value_bytes() == whole.value_bytes()[start:stop]
