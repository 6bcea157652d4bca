"""What of a delivery is handed out, by itself."""

from __future__ import annotations

from typing import Any

import pytest

from hadron.client.consuming.acks import AckRange, LateAcks
from hadron.client.consuming.channel import Channel, LazyBatch, Parcel, portions
from hadron.model.batch_building import encode_values
from hadron.model.limits import MAX_RANGES
from hadron.model.ranges import Range
from hadron.wire.messages import groups_pb2


class _Call:
    """Attributes:
    granted: of the call's window, again.
    """

    def __init__(self) -> None:
        self.granted = 0

    def consumed(self, size: int) -> None:
        self.granted += size


def channel_of(call: Any) -> Channel:
    return Channel(call, LateAcks(), lambda: None)


def parcel_of(
    first: int,
    last: int,
    *,
    base_offset: int = 0,
    channel: Channel | None = None,
    number: int | None = None,
) -> Parcel:
    """A delivery of some records of a batch, whose values are their offsets."""
    values = [str(offset).encode() for offset in range(base_offset, last + 3)]
    batch = LazyBatch("s", "local/p0", base_offset, memoryview(encode_values(values, 1)))
    message = groups_pb2.SubscribeEvent.Delivery(
        delivery=first if number is None else number,
        first_offset=first,
        last_offset=last,
        attempt=1,
    )
    channel = channel or channel_of(_Call())
    return Parcel(channel, message, batch, 10, ends_batch=False, since=0.0)


def offsets(parcel: Parcel) -> list[int]:
    return [offset for first, last in parcel.ranges() for offset in range(first, last + 1)]


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
    assert [(each.offset, each.value) for each in parcel.open()] == [
        (offset, str(offset).encode()) for offset in offsets(parcel)
    ]


def test_what_others_get_of_the_rest_is_no_part_of_what_was_opened() -> None:
    """A step acknowledges what it was made of, or is refused."""
    parcel = parcel_of(2, 9)
    parcel.skip(4, 4)
    head, records = parcel.open_first(3)
    assert [each.offset for each in records] == offsets(head) == [2, 3, 5]
    assert offsets(parcel) == [6, 7, 8, 9]
    parcel.channel.revoke(parcel.number, 2, 9)
    assert offsets(head) == [2, 3, 5]
    assert parcel.is_empty


def test_what_was_not_handed_out_lies_with_the_rest() -> None:
    parcel = parcel_of(2, 9)
    channel = parcel.channel
    head, _ = parcel.open_first(4)
    assert channel.put_back(head, [3, 5]) is None
    assert offsets(parcel) == [3, 5, 6, 7, 8, 9]
    channel.revoke(parcel.number, 5, 7)
    assert [each.offset for each in parcel.open()] == [3, 8, 9]
    assert not channel.unread
    again = channel.put_back(parcel, [8, 9])
    assert again is channel.unread[parcel.number]
    assert offsets(again) == [8, 9]


@pytest.mark.parametrize("way", ["opened", "given back"])
def test_a_batch_that_is_taken_in_any_way_makes_room_for_the_next(way: str) -> None:
    call = _Call()
    channel = channel_of(call)
    channel.call.send = lambda *_: None  # type: ignore[method-assign]
    for number in range(2):
        channel.gather(parcel_of(number, number, channel=channel))
    assert call.granted == 20
    batch = channel.complete()
    channel.gather(parcel_of(2, 2, channel=channel))
    assert call.granted == 20, "one waits already"
    for each in batch:
        if way == "opened":
            each.open()
        else:
            channel.give_back(each)
    assert call.granted == 30
    channel.gather(parcel_of(3, 3, channel=channel))
    assert call.granted == 40


def test_what_is_said_at_once_goes_in_several_messages() -> None:
    """A leader takes no more of it in one."""
    ranges = [AckRange(1, 2 * each, 2 * each) for each in range(12_000)]
    said = list(portions(ranges))
    assert max(map(len, said)) <= MAX_RANGES
    assert [each.first_offset for some in said for each in some] == [each.first for each in ranges]
    assert list(portions([])) == [[]], "all that the member holds, of an extension"


class _Unwalked(dict[int, Parcel]):
    def values(self) -> Any:
        raise AssertionError("all that lies here was looked at")


def acked(channel: Channel) -> list[tuple[int, int, int]]:
    return [(each.delivery, each.first, each.last) for each in channel.acks.take()]


def test_what_lies_here_again_is_found_without_a_look_at_all_that_lies_here() -> None:
    """128 that were acknowledged beside ten thousand that a member had not looked at took 2 s, in
    which nobody else on its loop had a turn."""
    channel = channel_of(_Call())
    channel.unread = _Unwalked()
    old = [parcel_of(offset, offset, channel=channel) for offset in range(100)]
    for each in old:
        channel.is_read(each.number)
    channel.revoke(0, 0, 99)
    again = [
        parcel_of(offset, offset, channel=channel, number=1_000 + offset) for offset in range(50)
    ]
    for each in old:
        channel.acknowledge(each, each.first, each.last)
    assert all(each.is_empty for each in again)
    assert acked(channel) == [
        *((number, number, number) for number in range(50, 100)),
        *((1_000 + offset, offset, offset) for offset in range(50)),
    ]


def test_what_lies_here_again_is_what_nobody_has_looked_at() -> None:
    channel = channel_of(_Call())
    whole = parcel_of(0, 19, channel=channel, number=1)
    whole.open()
    channel.revoke(1, 0, 19)
    first = parcel_of(2, 9, channel=channel, number=2)
    parcel_of(12, 15, channel=channel, number=3)
    head, _ = first.open_first(3)
    channel.acknowledge(whole, 0, 19)
    assert acked(channel) == [(1, 0, 4), (1, 10, 11), (1, 16, 19), (2, 5, 9), (3, 12, 15)]
    # What was handed out, and was not, lies here again.
    assert channel.put_back(head, [3, 4]) is None
    channel.acknowledge(whole, 2, 4)
    assert acked(channel) == [(1, 2, 2), (2, 3, 4)]
    # What has gone to others lies here no more, and may come once more.
    channel.revoke(3, 0, 1 << 60)
    parcel_of(14, 14, channel=channel, number=4)
    channel.acknowledge(whole, 12, 15)
    assert acked(channel) == [(1, 12, 13), (1, 15, 15), (4, 14, 14)]
    for number in (2, 3, 4):
        channel.is_read(number)
    channel.acknowledge(whole, 0, 19)
    assert acked(channel) == [(1, 0, 19)]
