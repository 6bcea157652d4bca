"""Ballots, and the indexes of the schema that follow from them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hadron.model.ids import MAX_EPOCH, MAX_RECOVERIES, Ballot, last_index, last_index_beside

BALLOTS = st.builds(Ballot, st.integers(1, MAX_EPOCH), st.integers(1, 10**9))
CHANGES = 1 << 22


@given(BALLOTS, BALLOTS)
def test_whoever_begins_anew_goes_on_above_all_that_was_given_before(
    one: Ballot, other: Ballot
) -> None:
    low, high = sorted((one, other))
    if (low.epoch, low.recoveries) == (high.epoch, high.recoveries):
        assert low.first_index == high.first_index
    else:
        assert low.first_index + CHANGES <= high.first_index


@given(BALLOTS)
def test_a_recovery_is_above_every_ballot_before_it_and_is_told(ballot: Ballot) -> None:
    recovered = ballot.recovered()
    assert recovered > ballot
    assert recovered.recoveries == min(ballot.recoveries + 1, MAX_RECOVERIES)
    following = Ballot(ballot.epoch, recovered.incarnation + 1)
    assert following.first_index == recovered.first_index


def test_the_last_index_that_there_can_be_is_a_number_of_63_bits() -> None:
    last = Ballot(MAX_EPOCH, 10**18)
    assert last.recoveries == MAX_RECOVERIES
    assert last.first_index + CHANGES <= 1 << 63


@given(BALLOTS, st.integers(0, MAX_EPOCH))
def test_no_index_is_above_the_last_one_of_its_epoch(ballot: Ballot, earlier: int) -> None:
    assert ballot.first_index + CHANGES - 1 <= last_index(ballot.epoch) < 1 << 63
    before = last_index(max(0, ballot.epoch - 1 - earlier))
    assert before < last_index_beside(0, ballot.epoch), "of whoever was there before"


def test_a_restore_begins_with_the_epoch() -> None:
    assert Ballot(7, 1).first_index == 7 << 32
