"""What of a delivery is handed out, by itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hadron.client.consuming.acks import AckRange
from hadron.client.consuming.channel import LazyBatch, Parcel, portions
from hadron.model.batch_building import encode_values
from hadron.model.limits import MAX_RANGES
from hadron.model.ranges import Range
from hadron.wire.messages import groups_pb2


def parcel_of(first: int, last: int, *, base_offset: int = 0) -> Parcel:
    """A delivery of some records of a batch, whose values are their offsets."""
    values = [str(offset).encode() for offset in range(base_offset, last + 3)]
    batch = LazyBatch("s", "local/p0", base_offset, memoryview(encode_values(values, 1)))
    channel: Any = SimpleNamespace(unread={}, call=SimpleNamespace(consumed=lambda _: None))
    message = groups_pb2.SubscribeEvent.Delivery(
        delivery=7, first_offset=first, last_offset=last, attempt=1
    )
    return Parcel(channel, message, batch, 10, ends_batch=False, since=0.0)


@pytest.mark.parametrize(
    ("skipped", "left"),
    [
        ([], [(102, 109)]),
        ([(102, 102)], [(103, 109)]),
        ([(105, 106), (104, 105)], [(102, 103), (107, 109)]),
        ([(106, 109), (102, 105)], []),
        # A revocation may name more than this delivery has, and much more.
        ([(0, 1 << 60)], []),
        ([(108, 1 << 60), (0, 101)], [(102, 107)]),
    ],
)
def test_what_is_skipped_is_not_handed_out(skipped: list[Range], left: list[Range]) -> None:
    parcel = parcel_of(102, 109, base_offset=100)
    for first, last in skipped:
        parcel.skip(first, last)
    assert list(parcel.ranges()) == left
    assert parcel.is_empty == (not left)
    offsets = [offset for first, last in left for offset in range(first, last + 1)]
    assert [(each.offset, each.value) for each in parcel.open()] == [
        (offset, str(offset).encode()) for offset in offsets
    ]
    if left:
        part = parcel.part(*left[-1])
        assert list(part.ranges()) == left[-1:]


def test_what_is_said_at_once_goes_in_several_messages() -> None:
    """A leader takes no more of it in one."""
    ranges = [AckRange(1, 2 * each, 2 * each) for each in range(12_000)]
    said = list(portions(ranges))
    assert max(map(len, said)) <= MAX_RANGES
    assert [each.first_offset for some in said for each in some] == [each.first for each in ranges]
    assert list(portions([])) == [[]], "all that the member holds, of an extension"
