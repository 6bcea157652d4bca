"""The group's machine: every offset in one place, whoever comes, goes, acknowledges or refuses."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hadron.delivery.effects import Assignment, Exhausted
from hadron.delivery.machine import Group
from hadron.delivery.members import Member
from hadron.delivery.patience import again_after_s
from hadron.model.ranges import Range

BATCH = 8
"""Records of each batch in these tests."""


def span(first: int, last: int) -> set[int]:
    return set(range(first, last + 1))


def spans(ranges: Iterable[Range]) -> set[int]:
    return {offset for first, last in ranges for offset in span(first, last)}


def deliver(group: Group, end: int, now: float = 0.0, *, batch: int = BATCH) -> Assignment | None:
    chosen = group.choose(end, now)
    if chosen is None:
        return None
    found = group.assign(chosen, (chosen.next.offset // batch + 1) * batch, end, now)
    assert not isinstance(found, Exhausted), "there is no limit"
    return found


def drain(group: Group, end: int, now: float = 0.0) -> list[Assignment]:
    found = []
    while (assignment := deliver(group, end, now)) is not None:
        found.append(assignment)
    return found


def join(group: Group, credit: int) -> Member:
    return group.join(credit, lambda: True)


class TestScenes:
    def test_offsets_are_cut_at_batches_and_credit(self) -> None:
        group = Group(3, ())
        join(group, 12)
        assert [(a.first, a.last) for a in drain(group, 100)] == [(3, 7), (8, 14)]

    def test_members_take_turns(self) -> None:
        group = Group(0, ())
        members = [join(group, 16) for _ in range(3)]
        order = [a.member for a in drain(group, 100)]
        assert order == [m.number for m in members] * 2

    def test_what_was_acknowledged_before_is_skipped(self) -> None:
        group = Group(2, [(3, 4), (6, 20)])
        join(group, 100)
        assert [(a.first, a.last) for a in drain(group, 24)] == [(2, 2), (5, 5), (21, 23)]

    def test_a_member_that_leaves_gives_back_what_it_held(self) -> None:
        group = Group(0, ())
        first = join(group, 8)
        drain(group, 100)
        assert group.acknowledge(first.number, 1, 2, 3) == [(2, 3)]
        second = join(group, 8)
        group.leave(first.number, 5.0)
        found = drain(group, 100, 5.0)
        assert [(a.member, a.first, a.last, a.attempt) for a in found] == [
            (second.number, 0, 1, 2),
            (second.number, 4, 7, 2),
            (second.number, 8, 9, 1),
        ]

    def test_a_late_acknowledgement_counts_while_nobody_holds_the_record(self) -> None:
        group = Group(0, ())
        gone = join(group, 8)
        drain(group, 8)
        group.leave(gone.number, 0.0)
        assert group.acknowledge(gone.number, 1, 0, 3) == [(0, 3)]
        other = join(group, 8)
        assert [(a.first, a.last) for a in drain(group, 8)] == [(4, 7)]
        assert group.acknowledge(gone.number, 1, 4, 7) == [], "somebody else holds them now"
        assert group.acknowledge(other.number, 2, 4, 7) == [(4, 7)]

    def test_the_own_record_counts_also_after_it_was_refused(self) -> None:
        group = Group(0, ())
        member = join(group, 8)
        drain(group, 8)
        group.refuse(member.number, 1, 2, 3, now=0.0, delay_s=60.0)
        assert group.acknowledge(member.number, 1, 0, 7) == [(0, 1), (4, 7), (2, 3)]
        assert (group.in_flight, group.next_due(0.0), member.credit) == (0, None, 8)

    def test_nobody_else_can_acknowledge_or_refuse(self) -> None:
        group = Group(0, ())
        holder, other = join(group, 8), join(group, 8)
        drain(group, 8)
        assert group.acknowledge(other.number, 1, 0, 7) == []
        group.refuse(other.number, 1, 0, 7, now=0.0, delay_s=0.0)
        assert (group.in_flight, holder.credit) == (8, 0)

    def test_a_refused_record_waits_for_its_time(self) -> None:
        group = Group(0, ())
        member = join(group, 8)
        drain(group, 8)
        group.refuse(member.number, 1, 2, 3, now=0.0, delay_s=10.0)
        group.refuse(member.number, 1, 5, 5, now=0.0, delay_s=4.0)
        assert (drain(group, 8, 3.9), group.next_due(3.9)) == ([], 4.0)
        (early,) = drain(group, 8, 4.0)
        assert (early.first, early.last, early.attempt) == (5, 5, 2)
        assert group.next_due(4.0) == 10.0
        (late,) = drain(group, 8, 10.0)
        assert (late.first, late.last, late.attempt) == (2, 3, 2)

    def test_a_member_that_cannot_be_written_to_gets_nothing(self) -> None:
        group = Group(0, ())
        writable = False
        member = group.join(8, lambda: writable)
        assert deliver(group, 8) is None
        writable = True
        group.became_writable(member.number)
        assert deliver(group, 8) is not None
        assert member.credit == 0

    def test_small_deliveries_wait_until_they_are_worth_a_message(self) -> None:
        group = Group(0, ())
        member = join(group, 8)
        drain(group, 100)
        group.acknowledge(member.number, 1, 0, 0)
        assert deliver(group, 100) is None
        group.acknowledge(member.number, 1, 1, 1)
        found = deliver(group, 100)
        assert found is not None
        assert (found.first, found.last) == (8, 9)

    def test_nothing_above_the_visible_end(self) -> None:
        group = Group(0, ())
        join(group, 100)
        assert [(a.first, a.last) for a in drain(group, 5)] == [(0, 4)]
        assert [(a.first, a.last) for a in drain(group, 9)] == [(5, 7), (8, 8)]


class Deliveries(RuleBasedStateMachine):
    """The model: where each offset is, and how often it was delivered."""

    @initialize(floor=st.integers(0, 5), above=st.sets(st.integers(6, 30), max_size=10))
    def begin(self, floor: int, above: set[int]) -> None:
        self.group = Group(floor, [(offset, offset) for offset in sorted(above)])
        self.acknowledged = span(0, floor - 1) | above
        self.logged = set(self.acknowledged)
        self.members: dict[int, Member] = {}
        self.gone: list[int] = []
        self.writable: dict[int, bool] = {}
        self.held: dict[int, tuple[int, set[int]]] = {}
        self.every: list[tuple[int, int, int, int]] = []
        self.waiting: dict[int, float] = {}
        self.attempts: dict[int, int] = {}
        self.end = 0
        self.now = 0.0

    @rule(count=st.integers(1, 20))
    def append(self, count: int) -> None:
        self.end += count

    @rule(seconds=st.integers(1, 5))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule(max_in_flight=st.sampled_from((1, 2, 5, 30)))
    def join(self, max_in_flight: int) -> None:
        number = len(self.writable) + 1
        self.writable[number] = True
        member = self.group.join(max_in_flight, lambda: self.writable[number])
        assert member.number == number
        self.members[number] = member

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.members)))
        del self.members[number]
        self.gone.append(number)
        self.group.leave(number, self.now)
        for delivery, (holder, offsets) in list(self.held.items()):
            if holder == number:
                self.waiting.update(dict.fromkeys(offsets, self.now))
                del self.held[delivery]

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def fill_or_drain_the_socket(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.members)))
        self.writable[number] = not self.writable[number]
        if self.writable[number]:
            self.group.became_writable(number)

    @rule(times=st.integers(1, 9))
    def deliver(self, times: int) -> None:
        for _ in range(times):
            self.group.takers.wake(self.now)
            takers = [n for n, m in self.members.items() if m.takes_more]
            due = [offset for offset, at in self.waiting.items() if at <= self.now]
            found = deliver(self.group, self.end, self.now)
            if found is None:
                left = span(0, self.end - 1) - self.acknowledged - set(self.waiting)
                left -= set().union(*(offsets for _, offsets in self.held.values()))
                assert not takers or not (due or left), "who can take gets what there is"
                return
            self.check(found, takers, due)

    def check(self, found: Assignment, takers: list[int], due: list[int]) -> None:
        offsets = span(found.first, found.last)
        assert found.member in takers
        assert found.last < self.end
        assert found.first // BATCH == found.last // BATCH, "all of one batch"
        for offset in offsets:
            assert self.attempts.get(offset, 0) < found.attempt
            self.attempts[offset] = found.attempt
        if due:
            assert offsets <= set(due), "what waits goes first"
        else:
            assert found.attempt == 1
        assert not offsets & self.acknowledged
        for _, others in self.held.values():
            assert not offsets & others, "no record is with two members"
        for offset in offsets:
            self.waiting.pop(offset, None)
        assert found.delivery not in self.held
        self.held[found.delivery] = (found.member, offsets)
        self.every.append((found.member, found.delivery, found.first, found.last))

    def some_range(self, data: st.DataObject) -> tuple[int, int, int, int]:
        """Of a delivery, current or not, perhaps claimed by another member."""
        member, delivery, first, last = data.draw(st.sampled_from(self.every))
        if data.draw(st.integers(0, 9)) == 0:
            member = data.draw(st.sampled_from(sorted(self.writable)))
        low = data.draw(st.integers(max(first - 1, 0), last))
        return member, delivery, low, data.draw(st.integers(low, last + 1))

    @precondition(lambda self: self.every)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        member, delivery, first, last = self.some_range(data)
        holder, offsets = self.held.get(delivery, (0, set()))
        expected = set(self.waiting) & span(first, last)
        if holder == member:
            expected |= offsets & span(first, last)
            offsets -= expected
        counted = self.group.acknowledge(member, delivery, first, last)
        assert spans(counted) == expected
        self.acknowledged |= expected
        for offset in expected:
            self.waiting.pop(offset, None)

    @precondition(lambda self: self.every)
    @rule(data=st.data(), delay=st.sampled_from((0, 3, 20)))
    def refuse(self, data: st.DataObject, delay: int) -> None:
        member, delivery, first, last = self.some_range(data)
        self.group.refuse(member, delivery, first, last, self.now, delay_s=delay)
        holder, offsets = self.held.get(delivery, (0, set()))
        if holder == member:
            back = offsets & span(first, last)
            offsets -= back
            for offset in back:
                again_s = again_after_s(self.attempts[offset], delay, 1.0)
                self.waiting[offset] = self.now + again_s

    @rule()
    def progress_is_committed(self) -> None:
        self.logged = set(self.acknowledged)
        floor = next(n for n in range(10_000) if n not in self.logged)
        self.group.raise_floor(floor)
        assert self.group.floor == floor

    @invariant()
    def every_offset_is_in_one_place(self) -> None:
        if not hasattr(self, "group"):
            return
        held = [offsets for _, offsets in self.held.values()]
        assert self.group.in_flight == sum(map(len, held))
        assert len(set().union(*held)) == sum(map(len, held))
        waiting = [span(first, last) for first, last in self.group.waiting.ranges()]
        assert self.group.waiting.records == len(self.waiting)
        assert sum(map(len, waiting)) == len(self.waiting)
        assert set().union(*waiting) == set(self.waiting)
        assert not set(self.waiting) & set().union(*held)
        reached = span(0, self.group.frontier.cursor - 1)
        assert reached <= self.acknowledged | set(self.waiting) | set().union(*held)
        cursor = self.group.frontier.cursor
        assert spans(self.group.frontier.ahead.ranges()) == {
            offset for offset in self.acknowledged if offset >= cursor
        }
        pieces = len(waiting) + sum(
            sum(offset - 1 not in offsets for offset in offsets) for offsets in held
        )
        assert self.group.unsettled == pieces

    @invariant()
    def credit_is_what_is_not_in_flight(self) -> None:
        if not hasattr(self, "group"):
            return
        for number, member in self.members.items():
            holds = sum(len(offsets) for holder, offsets in self.held.values() if holder == number)
            assert member.credit == member.max_in_flight - holds
            assert 0 <= member.credit <= member.max_in_flight

    def teardown(self) -> None:
        """With members that take and acknowledge everything, everything is acknowledged."""
        if not hasattr(self, "group"):
            return
        for number in list(self.members):
            self.group.leave(number, self.now)
        member = join(self.group, 1_000)
        self.now += 1_000
        for found in drain(self.group, self.end, self.now):
            self.acknowledged |= spans(
                self.group.acknowledge(member.number, found.delivery, found.first, found.last)
            )
        assert self.acknowledged >= span(0, self.end - 1)
        assert (self.group.in_flight, self.group.next_due(self.now)) == (0, None)


TestDeliveries = Deliveries.TestCase
TestDeliveries.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


class TestRetention:
    def test_what_was_dropped_is_not_delivered_again(self) -> None:
        group = Group(0, [])
        member = group.join(10, lambda: True)
        first = deliver(group, 100, batch=10)
        assert first is not None
        assert (first.first, first.last) == (0, 9)
        group.refuse(member.number, first.delivery, 0, 4, now=0.0, delay_s=0.0)
        group.skip_below(7)
        following = group.choose(100, 0.0)
        assert following is not None
        assert (group.floor, following.next.offset) == (7, 10)
        group.leave(member.number, 1.0)
        other = group.join(10, lambda: True)
        again = deliver(group, 100, 1.0, batch=10)
        assert again is not None
        assert (again.member, again.first, again.last) == (other.number, 7, 9)

    def test_the_cursor_moves_over_the_gap_and_what_is_acknowledged_behind_it(self) -> None:
        group = Group(0, [(20, 25)])
        group.join(100, lambda: True)
        group.skip_below(20)
        assert (group.floor, group.frontier.cursor) == (20, 26)
        group.skip_below(5)
        assert (group.floor, group.frontier.cursor) == (20, 26)
