"""The group's machine under whatever may come, in any order: nothing is lost, and nobody has what
others have."""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hadron.delivery.effects import Assignment, Effects, Exhausted, Rules
from hadron.delivery.machine import Group
from hadron.delivery.members import Member
from hadron.delivery.tests.test_rules import deliver, join, key_of
from hadron.model.ranges import Range, RangeSet, runs
from hadron.model.transactions import TransactionId


class Ordered(RuleBasedStateMachine):
    """A group with every rule, that moves from leader to leader: what the log holds goes with it.

    The model knows who holds what, what is committed, and how far each key has got.
    """

    @initialize(
        order=st.sampled_from(("none", "strict", "key")),
        max_attempts=st.sampled_from((0, 2)),
        deadline=st.sampled_from((None, 5.0)),
    )
    def begin(self, order: str, max_attempts: int, deadline: float | None) -> None:
        self.kind = Rules(order == "strict", order == "key", deadline, max_attempts)
        self.end = 0
        self.now = 0.0
        self.committed: set[int] = set()
        self.uncommitted: list[Range] = []
        self.attempts: dict[int, int] = {}
        self.numbers = itertools.count(1)
        self.dropped = 0
        self.open: dict[TransactionId, set[int]] = {}
        self.lead()

    def lead(self) -> None:
        """A leader takes over; what the last one had not logged is forgotten."""
        self.members: list[Member] = []
        self.reads: list[bool] = []
        self.places: dict[int, int] = {}
        self.held: dict[int, int] = {}
        self.lent: dict[int, tuple[int, int]] = {}
        """Offsets that are taken: by which delivery, and which member, they are held."""
        self.dying: list[Exhausted] = []
        self.uncommitted = []
        self.group = Group(
            self.floor, [], [], window_end=self.floor, rules=self.kind, numbers=self.numbers
        )
        for transaction, offsets in self.open.items():
            self.group.take(transaction, runs(sorted(offsets)), self.now)
        self.read_window()
        self.carry_out(self.group.skip_below(self.dropped, self.now))

    @property
    def taken(self) -> set[int]:
        return {offset for offsets in self.open.values() for offset in offsets}

    @property
    def floor(self) -> int:
        return next(n for n in itertools.count() if n not in self.committed)

    def read_window(self) -> None:
        offset = self.group.frontier.cursor
        known = RangeSet((n, n) for n in sorted(self.committed) if n >= offset).ranges()[:3]
        end = known[-1][1] + 1 if len(known) == 3 else None
        tried = [
            (n, n, times)
            for n, times in sorted(self.attempts.items())
            if n >= offset and n not in self.committed and (end is None or n < end)
        ]
        self.group.frontier.resume(known, tried, end)

    @invariant()
    def room_for_keys_is_known(self) -> None:
        lines = self.group.keys if hasattr(self, "group") else None
        if lines is not None:
            assert lines.room.records == len(lines._current) + len(lines._parked)

    @rule(count=st.integers(1, 20))
    def append(self, count: int) -> None:
        self.end += count

    @precondition(lambda self: self.end > self.dropped)
    @rule(data=st.data())
    def retention(self, data: st.DataObject) -> None:
        """What members hold of it they keep, and nobody gets it again. It may end within what one
        of them holds."""
        above = [offset for offset in sorted(self.held) if offset > self.dropped]
        anywhere = st.integers(self.dropped + 1, self.end)
        self.dropped = data.draw(st.sampled_from(above) | anywhere if above else anywhere)
        self.committed.update(range(self.dropped))
        self.carry_out(self.group.skip_below(self.dropped, self.now))
        self.group.raise_floor(self.floor)

    @rule(seconds=st.integers(1, 3))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        effects = self.group.expire(self.now)
        for expired in effects.expired:
            for first, last in expired.ranges:
                for offset in range(first, last + 1):
                    assert self.held.pop(offset) == expired.delivery
        self.carry_out(effects)

    @precondition(lambda self: len(self.members) < 4)
    @rule(credit=st.sampled_from((1, 4, 30)), size=st.sampled_from((0, 0, 6)))
    def join(self, credit: int, size: int) -> None:
        place = len(self.reads)
        self.reads.append(True)
        member = self.group.join(
            credit, lambda: self.reads[place], batch_size=size, batch_wait_s=1.0
        )
        self.members.append(member)
        self.places[member.number] = place

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def stop_or_go_on_reading(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.members)).number
        place = self.places[number]
        self.reads[place] = not self.reads[place]
        if self.reads[place]:
            self.group.became_writable(number)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.members))
        self.members.remove(member)
        for delivery in member.deliveries:
            self.held = {n: number for n, number in self.held.items() if number != delivery}
        self.carry_out(self.group.leave(member.number, self.now))

    @precondition(lambda self: self.end and len(self.open) < 3)
    @rule(data=st.data(), length=st.integers(1, 4))
    def prepare(self, data: st.DataObject, length: int) -> None:
        """A transaction takes records, wherever they are: those that others hold as well. Nobody
        holds what is on its way to the dead letters."""
        first = data.draw(st.integers(0, self.end - 1))
        unlogged = {n for a, b in self.uncommitted for n in range(a, b + 1)}
        wanted = set(range(first, min(first + length, self.end)))
        dying = {n for dead in self.dying for n in range(dead.first, dead.last + 1)}
        wanted -= self.committed | unlogged | self.taken | dying
        if not wanted:
            return
        transaction = TransactionId("local/p1", 1, 1, next(self.numbers))
        holders = {n: m.number for m in self.members for n in m.deliveries}
        for offset in wanted & self.held.keys():
            number = self.held.pop(offset)
            self.lent[offset] = number, holders[number]
        self.open[transaction] = wanted
        self.group.take(transaction, runs(sorted(wanted)), self.now)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        transaction = data.draw(st.sampled_from(sorted(self.open)))
        offsets = self.open.pop(transaction)
        self.committed |= offsets
        self.lent = {n: lent for n, lent in self.lent.items() if n not in offsets}
        self.carry_out(self.group.finish(runs(sorted(offsets)), self.now))
        assert self.group.untake(transaction, runs(sorted(offsets)), self.now) == Effects()
        self.group.raise_floor(self.floor)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        """Who held them and is still here has them again."""
        self.abort(data.draw(st.sampled_from(sorted(self.open))))

    def abort(self, transaction: TransactionId) -> None:
        offsets = self.open.pop(transaction)
        here = {member.number for member in self.members}
        for offset in offsets & self.lent.keys():
            number, member = self.lent.pop(offset)
            if member in here:
                self.held[offset] = number
        self.carry_out(self.group.untake(transaction, runs(sorted(offsets)), self.now))

    @rule()
    def change_leaders(self) -> None:
        self.lead()

    @rule()
    def deliver(self) -> None:
        for _ in range(20):
            if self.group.frontier.needs_window:
                self.read_window()
            dead: list[Exhausted] = []
            found = deliver(self.group, self.end, self.now, dead)
            self.carry_out(Effects(exhausted=dead))
            if found is None:
                break
            for offset in range(found.first, found.last + 1):
                assert offset not in self.held, "with one member at a time"
                assert not any(each.first <= offset <= each.last for each in self.dying)
                assert offset not in self.committed
                assert offset not in self.taken, "it may be acknowledged any moment"
                assert found.attempt > self.attempts.get(offset, 0) or self.kind.max_attempts
                self.held[offset] = found.delivery
            self.check_order(found)

    def check_order(self, found: Assignment) -> None:
        kept = [offset for offset in self.held if offset >= self.dropped]
        if self.kind.is_strict:
            assert len(kept) == 1
            assert found.first == self.floor, "nothing passes"
        if self.kind.is_by_key:
            keys = [key_of(offset) for offset in kept if key_of(offset)]
            assert len(keys) == len(set(keys)), "one of each key"
            for offset in range(found.first, found.last + 1):
                earlier = {n for n in range(offset) if key_of(n) == key_of(offset) != 0}
                assert earlier <= self.committed, "one of a key after another"

    def carry_out(self, effects: Effects) -> None:
        for first, last, times in effects.ended:
            self.attempts.update(dict.fromkeys(range(first, last + 1), times))
        for each in effects.exhausted:
            offsets = range(each.first, each.last + 1)
            assert not set(offsets) & (self.held.keys() | self.taken)
            assert not {n for n in offsets if n >= self.dropped} & self.committed
            before = self.dying[-1] if self.dying else None
            if before and (before.last + 1, before.attempts) == (each.first, each.attempts):
                # Neighbours are written together, of whatever batches they are.
                self.dying[-1] = Exhausted(before.first, each.last, each.attempts, each.reason)
            else:
                self.dying.append(each)

    def write(self, first: int, last: int) -> None:
        """These are dead letters now, or retention has overtaken them."""
        self.committed.update(range(first, last + 1))
        self.carry_out(self.group.settled([(first, last)], self.now))
        self.group.raise_floor(self.floor)

    @precondition(lambda self: self.dying)
    @rule(data=st.data(), delay=st.sampled_from((0, 2)))
    def letters(self, data: st.DataObject, delay: int) -> None:
        """Of some that stand together the first are written, and the others cannot be."""
        dead = self.dying.pop(0)
        written = data.draw(st.integers(dead.first, dead.last + 1))
        if written > dead.first:
            self.write(dead.first, written - 1)
        if written <= dead.last:
            rest = Exhausted(written, dead.last, dead.attempts, dead.reason)
            self.carry_out(self.group.put_back(rest, self.now + delay))

    def a_held_one(self, data: st.DataObject) -> tuple[int, int, int]:
        offset = data.draw(st.sampled_from(sorted(self.held)))
        number = self.held[offset]
        return next(m.number for m in self.members if number in m.deliveries), number, offset

    @precondition(lambda self: self.held)
    @rule(data=st.data(), length=st.integers(0, 6))
    def acknowledge(self, data: st.DataObject, length: int) -> None:
        member, number, offset = self.a_held_one(data)
        before = dict(self.held)
        counted = self.group.acknowledge(member, number, offset, offset + length, self.now)
        for first, last in counted:
            for each in range(first, last + 1):
                assert self.held.pop(each, number) == number, "nobody else's"
                assert each not in self.taken
        assert before.keys() - self.held.keys() >= {offset}
        self.uncommitted += counted

    @precondition(lambda self: self.end)
    @rule(data=st.data())
    def acknowledge_late(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(0, self.end - 1))
        for a, b in self.group.acknowledge_late(first, data.draw(st.integers(first, self.end - 1))):
            others = self.held.keys() | self.taken
            assert not others & set(range(a, b + 1)), "somebody holds it"
            self.uncommitted.append((a, b))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), delay=st.sampled_from((0, 2)), unseen=st.booleans())
    def refuse(self, data: st.DataObject, delay: int, unseen: bool) -> None:
        member, number, offset = self.a_held_one(data)
        effects = self.group.refuse(
            member, number, offset, offset, self.now, delay_s=delay, is_unseen=unseen
        )
        del self.held[offset]
        self.carry_out(effects)

    @rule()
    def commit(self) -> None:
        ranges, self.uncommitted = self.uncommitted, []
        for first, last in ranges:
            self.committed.update(range(first, last + 1))
        self.carry_out(self.group.settled(ranges, self.now))
        self.group.raise_floor(self.floor)

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "group"):
            assert self.group.in_flight == len(self.held)
            for member in self.members:
                holds = sum(len(each.held) for each in member.deliveries.values())
                lent = [holder for _, holder in self.lent.values()].count(member.number)
                assert member.credit == member.max_in_flight - holds - lent
            assert self.group.taken.records == len(self.taken)
            held = [(*each, member.number) for member in self.members for each in member.holds()]
            found = [(a, b, each.member) for a, b, each in self.group.held.within(0, self.end)]
            assert {(n, m) for a, b, m in found for n in range(a, b + 1)} == {
                (n, m) for a, b, m in held for n in range(a, b + 1)
            }

    def teardown(self) -> None:
        """With a member that acknowledges everything, everything is dealt with."""
        if not hasattr(self, "group"):
            return
        for transaction in list(self.open):
            self.abort(transaction)
        self.held.clear()
        for member in list(self.members):
            self.carry_out(self.group.leave(member.number, self.now))
        self.members = [join(self.group, 100)]
        for _ in range(4 * self.end + 10):
            self.now += 3
            self.deliver()
            for offset, number in sorted(self.held.items()):
                self.uncommitted += self.group.acknowledge(
                    self.members[0].number, number, offset, offset, self.now
                )
            self.held.clear()
            self.commit()
            while self.dying:
                dead = self.dying.pop(0)
                self.write(dead.first, dead.last)
            if self.floor >= self.end:
                break
        assert self.floor >= self.end
        assert (self.group.in_flight, self.group.unsettled) == (0, 0)


TestOrdered = Ordered.TestCase
TestOrdered.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
