"""Acknowledgements on their way: as few ranges as can be, and none for another record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadron.client.consuming.acks import MAX_SETTLED, AckBuffer, AckRange, LateAcks
from hadron.model.ids import NO_BALLOT, Ballot


@given(order=st.permutations(range(12)), taken_after=st.sets(st.integers(0, 11)))
def test_acks_in_any_order_become_the_fewest_ranges(
    order: list[int], taken_after: set[int]
) -> None:
    buffer = AckBuffer()
    ranges: list[AckRange] = []
    for count, offset in enumerate(order):
        buffer.add(1 + offset // 6, offset, offset, NO_BALLOT)
        if count in taken_after:
            ranges.extend(buffer.take())
    assert buffer.count == sum(1 for count in range(12) if count > max(taken_after, default=-1))
    last = buffer.take()
    acked = [n for entry in (*ranges, *last) for n in range(entry.first, entry.last + 1)]
    assert sorted(acked) == list(range(12))
    assert all(entry.delivery == 1 + entry.first // 6 for entry in (*ranges, *last))
    if not taken_after:
        assert last == [AckRange(1, 0, 5), AckRange(2, 6, 11)]


@pytest.mark.parametrize("attempt", [1, 2])
def test_another_record_at_the_offset_is_not_the_one_that_was_dealt_with(attempt: int) -> None:
    """The log was restored, or has lost its tail: each batch there is of another ballot."""
    late, old, now = LateAcks(), Ballot(1, 3), Ballot(2, 2)
    late.add(old, [AckRange(7, 4, 5, Ballot(1, 1)), AckRange(8, 6, 9, old)])
    assert late.claim(0, 5, now, attempt, Ballot(1, 1)) == [4, 5]
    assert late.claim(6, 7, now, attempt, Ballot(2, 1)) == []
    assert late.claim(8, 9, now, attempt, old) == [8, 9]


def test_refusals_are_counted_of_more_than_is_remembered() -> None:
    late, ballot = LateAcks(), Ballot(1, 1)
    ranges = [AckRange(1, 0, MAX_SETTLED - 1), AckRange(2, MAX_SETTLED, MAX_SETTLED + 4)]
    late.add(ballot, ranges)
    assert late.take() == [(ballot, ranges)]
    late.answered(ranges, [(MAX_SETTLED, MAX_SETTLED + 4)], 0)
    assert late.lost == 5
