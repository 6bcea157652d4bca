"""Ranges against a plain set of integers."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hadron.model.ranges import Range, RangeSet, melted, runs, size

FIRST, MORE = st.integers(0, 40), st.integers(0, 12)


def members(ranges: list[Range]) -> set[int]:
    return {value for first, last in ranges for value in range(first, last + 1)}


class Ranges(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.set = RangeSet()
        self.model: set[int] = set()

    @rule(first=FIRST, more=MORE)
    def add(self, first: int, more: int) -> None:
        self.set.add(first, first + more)
        self.model |= set(range(first, first + more + 1))

    @rule(first=FIRST, more=MORE)
    def begin_anew(self, first: int, more: int) -> None:
        self.set = RangeSet.of(first, first + more)
        self.model = set(range(first, first + more + 1))

    @rule(first=FIRST, more=MORE)
    def remove(self, first: int, more: int) -> None:
        wanted = set(range(first, first + more + 1))
        removed = self.set.remove(first, first + more)
        assert members(removed) == wanted & self.model
        assert len(members(removed)) == sum(last - first + 1 for first, last in removed)
        self.model -= wanted

    @rule(bound=FIRST)
    def remove_below(self, bound: int) -> None:
        self.set.remove_below(bound)
        self.model = {value for value in self.model if value >= bound}

    @rule(value=st.integers(0, 60))
    def look(self, value: int) -> None:
        assert (value in self.set) == (value in self.model)
        assert self.set.next_gap(value) == next(n for n in range(value, 200) if n not in self.model)
        assert self.set.next_member(value) == min(
            (n for n in self.model if n >= value), default=None
        )

    @rule()
    def copy(self) -> None:
        self.set = RangeSet(reversed(self.set.ranges()))

    @invariant()
    def it_is_the_model(self) -> None:
        ranges = self.set.ranges()
        assert members(ranges) == self.model
        assert len(self.set) == len(self.model)
        assert bool(self.set) == bool(self.model)
        for (_, last), (first, _) in pairwise(ranges):
            assert last + 1 < first, "ranges neither overlap nor touch"


TestRanges = Ranges.TestCase


def test_ascending_integers_are_as_few_ranges_as_can_be() -> None:
    assert runs([]) == []
    assert runs(iter([3, 4, 5, 7, 9, 10])) == [(3, 5), (7, 7), (9, 10)]


@given(st.lists(st.tuples(FIRST, MORE)))
def test_melted_ranges_are_those_of_a_set(pairs: list[tuple[int, int]]) -> None:
    ranges = [(first, first + more) for first, more in pairs]
    before = list(ranges)
    found = melted(ranges)
    assert ranges == before, "somebody else's list"
    assert found == RangeSet(ranges).ranges() == runs(sorted(members(ranges)))
    assert size(found) == len(members(ranges))


@given(st.lists(st.tuples(FIRST, MORE)), FIRST, MORE)
def test_gaps_are_what_is_not_there(pairs: list[tuple[int, int]], first: int, more: int) -> None:
    ranges = [(start, start + length) for start, length in pairs]
    wanted = set(range(first, first + more + 1)) - members(ranges)
    assert RangeSet(ranges).gaps(first, first + more) == runs(sorted(wanted))
