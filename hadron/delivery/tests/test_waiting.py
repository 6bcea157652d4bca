"""`Waiting` against a plain dict."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hadron.delivery.tries import Tries
from hadron.delivery.waiting import Again, Waiting
from hadron.model.ranges import Range

FIRST, MORE = st.integers(0, 40), st.integers(0, 12)
TRIES = st.builds(Tries, st.integers(1, 3), st.booleans(), st.integers(0, 2))


def members(ranges: list[Range]) -> set[int]:
    return {value for first, last in ranges for value in range(first, last + 1)}


class WaitingRecords(RuleBasedStateMachine):
    """`Waiting` against a plain dict: by offset its tries, the time and whom it avoids. What is
    cut off a piece on one side waits on at the other one, however many pieces are touched."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = Waiting()
        self.model: dict[int, tuple[Tries, float, int]] = {}
        self.now = 0.0

    @rule(first=FIRST, more=MORE, tries=TRIES, delay=st.integers(0, 3))
    def put(self, first: int, more: int, tries: Tries, delay: int) -> None:
        span = range(first, first + more + 1)
        if self.model.keys().isdisjoint(span):
            self.waiting.put(Again(span[0], span[-1], tries, self.now + delay, 7))
            self.model.update(dict.fromkeys(span, (tries, self.now + delay, 7)))

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
            last, tries = self.waiting.pop(due.first, self.now, below=below, count=count)
            gone = set(range(due.first, last + 1))
            assert gone
            assert all(self.model[each][0] == tries for each in gone)
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
            offset: (item.tries, item.not_before, item.avoid)
            for item in self.waiting._items.values()
            for offset in range(item.first, item.last + 1)
        }
        assert found == self.model
        assert self.waiting.records == len(self.model)
        assert members(self.waiting.ranges()) == self.model.keys()


TestWaiting = WaitingRecords.TestCase
