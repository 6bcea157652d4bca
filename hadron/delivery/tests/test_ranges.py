"""`RangeSet` against a plain set of integers, `Waiting` against a plain dict."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hadron.delivery.ranges import Range, RangeSet
from hadron.delivery.waiting import Again, Waiting

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
        assert self.set.next_gap(value) == next(
            n for n in range(value, 200) if n not in self.model
        )
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


class WaitingRecords(RuleBasedStateMachine):
    """`Waiting` against a plain dict: by offset the attempt, the time and whom it avoids. What is
    cut off a piece on one side waits on at the other one, however many pieces are touched."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = Waiting()
        self.model: dict[int, tuple[int, float, int]] = {}
        self.now = 0.0

    @rule(first=FIRST, more=MORE, attempt=st.integers(1, 3), delay=st.integers(0, 3))
    def put(self, first: int, more: int, attempt: int, delay: int) -> None:
        span = range(first, first + more + 1)
        if self.model.keys().isdisjoint(span):
            self.waiting.put(Again(span[0], span[-1], attempt, self.now + delay, 7))
            self.model.update(dict.fromkeys(span, (attempt, self.now + delay, 7)))

    @rule(first=FIRST, more=st.integers(0, 40))
    def take(self, first: int, more: int) -> None:
        wanted = self.model.keys() & set(range(first, first + more + 1))
        taken = self.waiting.take(first, first + more)
        assert members(taken) == wanted
        assert len(wanted) == sum(b - a + 1 for a, b in taken)
        self._gone(wanted)

    @rule(bound=FIRST)
    def take_below(self, bound: int) -> None:
        wanted = {offset for offset in self.model if offset < bound}
        assert members(self.waiting.take_below(bound)) == wanted
        self._gone(wanted)

    @rule(count=st.integers(1, 9), below=FIRST)
    def pop(self, count: int, below: int) -> None:
        due = self.waiting.due(self.now)
        assert (due is None) == all(at > self.now for _, at, _ in self.model.values())
        if due is not None and due.first < below:
            first, last, attempt = self.waiting.pop(
                due.first, self.now, below=below, count=count
            )
            assert first == due.first
            gone = set(range(first, last + 1))
            assert gone
            assert all(self.model[each][0] == attempt for each in gone)
            assert all(self.model[each][1] <= self.now for each in gone)
            self._gone(gone)

    @rule(seconds=st.integers(1, 3))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    def _gone(self, offsets: set[int]) -> None:
        for offset in offsets:
            del self.model[offset]

    @invariant()
    def each_is_there_as_it_came(self) -> None:
        found = {
            offset: (item.attempt, item.not_before, item.avoid)
            for item in self.waiting._items.values()
            for offset in range(item.first, item.last + 1)
        }
        assert found == self.model
        assert self.waiting.records == len(self.model)
        assert members(self.waiting.ranges()) == self.model.keys()


TestWaiting = WaitingRecords.TestCase
