"""The group's machine with deadlines, attempts, batches, order, windows and bounds."""

from __future__ import annotations

import pytest

from hadron.delivery import machine
from hadron.delivery.effects import Assignment, Effects, Exhausted, Rules
from hadron.delivery.keys import BatchKeys
from hadron.delivery.machine import Group
from hadron.delivery.members import Member
from hadron.delivery.patience import again_after_s
from hadron.delivery.telling import held_back
from hadron.delivery.tries import Tries
from hadron.delivery.waiting import Again

BATCH = 8


def key_of(offset: int) -> int:
    """Three keys, and none for every fifth record."""
    return 0 if offset % 5 == 0 else offset % 3 + 1


def deliver(
    group: Group, end: int, now: float = 0.0, dead: list[Exhausted] | None = None
) -> Assignment | None:
    """The next delivery, over whatever only has to be set aside; `dead` takes what has no attempts
    left."""
    while (chosen := group.choose(end, now)) is not None:
        base = chosen.next.offset // BATCH * BATCH
        hashes = [key_of(n) for n in range(base, base + BATCH)]
        keys = BatchKeys(base, hashes) if group.rules.is_by_key else None
        found = group.assign(chosen, base + BATCH, end, now, keys)
        if isinstance(found, Exhausted):
            assert dead is not None
            dead.append(found)
        elif found is not None:
            return found
    return None


def drain(group: Group, end: int, now: float = 0.0) -> list[tuple[int, int, int]]:
    found = []
    while (assignment := deliver(group, end, now)) is not None:
        found.append((assignment.member, assignment.first, assignment.last))
    return found


def join(group: Group, credit: int = 100, *, size: int = 0, wait_s: float = 0.0) -> Member:
    return group.join(credit, lambda: True, batch_size=size, batch_wait_s=wait_s)


class TestDeadlines:
    def test_what_is_not_acknowledged_in_time_goes_to_somebody_else(self) -> None:
        group = Group(0, (), rules=Rules(deadline_s=10.0))
        slow, quick = join(group, 4), join(group, 4)
        assert drain(group, 8, 1.0) == [(1, 0, 3), (2, 4, 7)]
        assert group.next_due(1.0) == 11.0
        assert group.acknowledge(quick.number, 2, 4, 7, 2.0) == [(4, 7)]
        assert group.expire(10.9) == Effects()
        effects = group.expire(11.0)
        (expired,) = effects.expired
        assert (expired.member, expired.delivery, expired.ranges) == (slow.number, 1, ((0, 3),))
        assert (effects.ended, effects.exhausted) == ([(0, 3, 1)], [])
        assert drain(group, 8, 11.0) == [(2, 0, 3)]
        assert group.acknowledge(slow.number, 1, 0, 3, 12.0) == [], "it is somebody else's now"

    def test_what_it_is_still_at_work_on_is_nothing_that_it_waits_for(self) -> None:
        group = Group(0, (), rules=Rules(deadline_s=10.0))
        member = join(group, 4)
        assert drain(group, 1, 0.0) == [(1, 0, 0)]
        assert drain(group, 8, 0.0) == [(1, 1, 3)]
        assert group.extend(member.number, 1, 9.0)
        assert group.expire(10.0).expired
        assert member.is_stalled
        assert drain(group, 8, 10.0) == [(1, 4, 4)], "one at a time, beside it"
        assert group.acknowledge(member.number, 3, 4, 4, 11.0)
        assert [each[1:] for each in drain(group, 8, 11.0)] == [(1, 3)]

    def test_alone_it_is_given_one_at_a_time_until_it_settles_something(self) -> None:
        group = Group(0, (), rules=Rules(deadline_s=10.0))
        member = join(group, 4)
        drain(group, 8, 0.0)
        group.expire(10.0)
        assert drain(group, 8, 10.0) == [(1, 4, 4)]
        group.acknowledge(member.number, 2, 4, 4, 11.0)
        assert drain(group, 8, 11.0) == [(1, 0, 3)]

    def test_who_is_still_at_work_keeps_what_it_has(self) -> None:
        group = Group(0, (), rules=Rules(deadline_s=10.0))
        member = join(group, 8)
        drain(group, 16, 0.0)
        assert group.extend(member.number, 1, 6.0)
        assert group.expire(15.9) == Effects()
        assert group.acknowledge(member.number, 1, 0, 0, 15.9), "progress is a sign of life too"
        assert group.expire(25.0) == Effects()
        assert [e.ranges for e in group.expire(26.0).expired] == [((1, 7),)]
        assert not group.extend(member.number, 1, 26.0)

    def test_what_comes_first_may_change_while_members_are_asked(self) -> None:
        """What waits is not to go to who could not deal with it, but the other one does not read:
        then something new comes first, from another batch."""
        group = Group(0, (), rules=Rules(deadline_s=10.0))
        join(group, 4)
        drain(group, 4, 0.0)
        reads = True
        group.join(4, lambda: reads)
        group.expire(10.0)
        reads = False
        assert group.frontier.cursor == 4
        assert drain(group, 16, 10.0) == [(1, 4, 4)]

    def test_who_froze_after_its_last_acknowledgement_is_given_one_at_a_time(self) -> None:
        """The deadline begins again in that very moment, whatever its digits."""
        for deadline_s, acknowledged in ((30.0, 10.1), (1.0, 0.7), (60.0, 33.3)):
            group = Group(0, (), rules=Rules(deadline_s=deadline_s))
            member = join(group, 8)
            drain(group, 16, 0.0)
            assert group.acknowledge(member.number, 1, 0, 0, acknowledged)
            lingered = group.next_due(acknowledged)
            assert lingered is not None
            assert drain(group, 8, lingered) == []
            due = group.next_due(lingered)
            assert due is not None
            group.expire(due)
            assert member.is_stalled
            assert [last - first for _, first, last in drain(group, 16, due)] == [0]

    def test_who_has_dealt_with_something_since_is_not_given_one_at_a_time(self) -> None:
        """Whatever a delivery has lost in its middle: its pieces are given back one by one."""
        group = Group(0, (), rules=Rules(deadline_s=10.0))
        member = join(group, 16)
        assert drain(group, 8, 0.0) == [(1, 0, 7)]
        assert drain(group, 16, 1.0) == [(1, 8, 15)]
        assert group.acknowledge(member.number, 1, 3, 3, 2.0)
        assert group.acknowledge(member.number, 2, 8, 8, 3.0)
        assert [e.ranges for e in group.expire(12.0).expired] == [((0, 2), (4, 7))]
        assert not member.is_stalled

    def test_who_is_still_at_work_does_not_put_off_the_others_deadlines(self) -> None:
        group = Group(0, (), rules=Rules(deadline_s=10.0))
        busy = join(group, 4)
        drain(group, 8, 0.0)
        stuck = join(group, 4)
        drain(group, 8, 1.0)
        assert group.extend(busy.number, 1, 6.0)
        assert group.next_due(6.0) == 11.0
        assert [e.member for e in group.expire(11.0).expired] == [stuck.number]


class TestAttempts:
    def test_the_last_one_makes_a_dead_letter(self) -> None:
        group = Group(0, (), rules=Rules(max_attempts=2))
        member = join(group)
        assert drain(group, 4) == [(1, 0, 3)]
        effects = group.refuse(
            member.number, 1, 1, 2, now=0.0, delay_s=0.0, reason="no such flight"
        )
        assert effects == Effects(ended=[(1, 2, 1)])
        again = deliver(group, 4)
        assert again is not None
        assert (again.first, again.last, again.attempt) == (1, 2, 2)
        effects = group.refuse(
            member.number, again.delivery, 2, 2, now=0.0, delay_s=0.0, reason="no such flight"
        )
        assert effects.exhausted == [Exhausted(2, 2, 2, "no such flight")]
        group.acknowledge(member.number, 1, 0, 0)
        group.refuse(member.number, 1, 3, 3, now=0.0, is_unseen=True)
        effects = group.leave(member.number, 0.0)
        assert effects.exhausted == [Exhausted(1, 1, 2, "its member has gone")]
        join(group)
        assert drain(group, 4) == [(2, 3, 3)], "dead letters are nobody's"

    def test_what_nobody_has_looked_at_does_not_count(self) -> None:
        group = Group(0, (), rules=Rules(max_attempts=1))
        member = join(group)
        drain(group, 4)
        effects = group.refuse(member.number, 1, 0, 3, now=0.0, delay_s=0.0, is_unseen=True)
        assert effects == Effects()
        again = deliver(group, 4)
        assert again is not None
        assert again.attempt == 1

    def test_an_earlier_leader_has_counted_some(self) -> None:
        group = Group(0, [(6, 6)], [(1, 2, 1), (4, 4, 2), (5, 5, 1)], rules=Rules(max_attempts=2))
        join(group)
        found = []
        letters: list[Exhausted] = []
        while (assignment := deliver(group, 8, dead=letters)) is not None:
            found.append((assignment.first, assignment.last, assignment.attempt))
        assert found == [(0, 0, 1), (1, 2, 2), (3, 3, 1), (5, 5, 2), (7, 7, 1)]
        (dead,) = letters
        assert (dead.first, dead.last, dead.attempts) == (4, 4, 2)
        group.put_back(dead, 5.0)
        assert drain(group, 8, 5.0) == [(1, 4, 4)]

    def test_a_dead_letter_that_cannot_be_written_does_not_stop_a_group_in_order(self) -> None:
        group = Group(0, (), rules=Rules(is_strict=True, max_attempts=1))
        member = join(group)
        assert drain(group, 4) == [(1, 0, 0)]
        (dead,) = group.refuse(member.number, 1, 0, 0, now=0.0, delay_s=0.0).exhausted
        assert drain(group, 4) == [], "it may become a letter yet"
        group.put_back(dead, 5.0)
        assert drain(group, 4, 5.0) == [(1, 0, 0)]
        group.settled(group.acknowledge(member.number, 2, 0, 0, 5.0), 5.0)
        assert drain(group, 4, 5.0) == [(1, 1, 1)]

    def test_in_strict_order_the_lowest_comes_first_however_often_it_came(self) -> None:
        """Two wait when a dead letter could not be written, and what followed was given back."""
        group = Group(0, (), rules=Rules(is_strict=True))
        join(group)
        group.frontier.move(2)
        group.waiting.put(Again(0, 0, Tries(3), 0.0, 0))
        group.waiting.put(Again(1, 1, Tries(1), 0.0, 0))
        found = deliver(group, 4)
        assert found is not None
        assert (found.first, found.last, found.attempt) == (0, 0, 3)


class TestPatience:
    """One member that gives back at once costs the others next to nothing."""

    @staticmethod
    def give_back(
        group: Group,
        member: Member,
        until_s: float,
        *,
        end: int = 1_000,
        delay_s: float | None = None,
        now: float = 0.0,
    ) -> int:
        """Give everything back at once until then; returns how often."""
        count = 0
        while now < until_s:
            while (found := deliver(group, end, now)) is not None:
                assert found.member == member.number
                for offset in range(found.first, found.last + 1):
                    group.refuse(
                        member.number, found.delivery, offset, offset, now, delay_s=delay_s
                    )
                    count += 1
            due = group.next_due(now)
            assert due is None or due > now, "a timer that is due at once keeps the loop"
            now = due if due is not None else until_s
        return count

    def test_a_record_waits_longer_each_time(self) -> None:
        group = Group(0, ())
        member = join(group)
        waits = []
        now = 0.0
        for attempt in range(1, 13):
            found = deliver(group, 1, now)
            assert found is not None
            assert found.attempt == attempt
            group.refuse(member.number, found.delivery, 0, 0, now, share=0.5)
            due = group.next_due(now)
            assert due is not None
            assert deliver(group, 1, due - 0.001) is None
            waits.append(round(due - now, 9))
            now = due
        assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15.0, 15.0, 15.0]

    def test_a_delay_that_was_asked_for(self) -> None:
        asked = {
            again: [round(again_after_s(attempt, again, 1.0), 9) for attempt in (1, 2, 3, 4, 9)]
            for again in (0.0, 0.15, 1.0, 60.0)
        }
        assert asked == {
            0.0: [0.0, 0.0, 0.1, 0.2, 1.0],
            0.15: [0.15, 0.15, 0.15, 0.2, 1.0],
            1.0: [1.0] * 5,
            60.0: [60.0] * 5,
        }
        assert again_after_s(10_000, None, 1.0) == 30.0

    @pytest.mark.parametrize("delay_s", [None, 0.0])
    def test_who_gives_everything_back_is_tried_ever_more_rarely(
        self, delay_s: float | None
    ) -> None:
        group = Group(0, ())
        member = join(group, 100)
        first = self.give_back(group, member, 1.0, delay_s=delay_s)
        assert 32 < first <= 60, "what it may in a row, and little more"
        group = Group(0, ())
        member = join(group, 100)
        in_all = self.give_back(group, member, 100.0, delay_s=delay_s)
        assert in_all <= first + 30

    def test_one_that_it_deals_with_ends_that(self) -> None:
        group = Group(0, ())
        member = join(group, 100)
        self.give_back(group, member, 10.0)
        assert member.rests
        found = None
        now = 10.0
        while found is None:
            now += 1.0
            found = deliver(group, 1_000, now)
        assert found.first == found.last, "a trial is one record"
        assert deliver(group, 1_000, now) is None
        group.acknowledge(member.number, found.delivery, found.first, found.last, now)
        assert sum(last - first + 1 for _, first, last in drain(group, 1_000, now)) > 75

    def test_who_works_on_one_for_long_is_tried_beside_it(self) -> None:
        group = Group(0, ())
        member = join(group, 10)
        (kept,) = drain(group, 1)
        assert kept == (member.number, 0, 0)
        self.give_back(group, member, 10.0)
        assert member.rests
        found, now = None, 10.0
        while found is None:
            due = group.next_due(now)
            assert due is not None, "else nobody ever looks at it again"
            now = due
            found = deliver(group, 40, now)
        assert found.first == found.last, "a trial is one record"
        assert deliver(group, 40, now) is None, "one at a time"
        group.acknowledge(member.number, found.delivery, found.first, found.last, now)
        assert sum(last - first + 1 for _, first, last in drain(group, 40, now + 30.0)) == 9

    def test_the_trial_is_over_with_what_it_held_before(self) -> None:
        """It deals with that, and still works on the one that it is tried with."""
        group = Group(0, ())
        member = join(group, 10)
        drain(group, 1)
        self.give_back(group, member, 10.0)
        now, found = 20.0, None
        while found is None:
            found, now = deliver(group, 1_000, now), now + 1.0
        assert group.acknowledge(member.number, 1, 0, 0, now) == [(0, 0)]
        assert sum(last - first + 1 for _, first, last in drain(group, 1_000, now + 30.0)) == 9
        for number in set(member.deliveries) - {found.delivery}:
            group.refuse(member.number, number, 0, 1_000, now, delay_s=0.0)
        self.give_back(group, member, now + 10.0, now=now)
        assert member.rests
        assert found.delivery in member.deliveries
        assert deliver(group, 1_000, now + 60.0), "the next trial is another one"

    def test_the_trial_is_over_with_what_it_was_given_under_an_earlier_leader(self) -> None:
        """Which the cursor has not come to here."""
        group = Group(0, ())
        member = join(group, 10)
        self.give_back(group, member, 10.0)
        now, found = 20.0, None
        while found is None:
            found, now = deliver(group, 1_000, now), now + 1.0
        assert deliver(group, 1_000, now + 30.0) is None, "it is tried with that one"
        assert group.acknowledge_late(700, 700, member.number, now) == [(700, 700)]
        assert found.delivery in member.deliveries
        assert deliver(group, 1_000, now + 30.0), "and deals with others"

    def test_others_go_on(self) -> None:
        group = Group(0, ())
        broken, well = join(group, 10), join(group, 10)
        now = 0.0
        acknowledged: set[int] = set()
        while len(acknowledged) < 500:
            now += 0.01
            while (found := deliver(group, 500, now)) is not None:
                if found.member == well.number:
                    group.acknowledge(well.number, found.delivery, found.first, found.last, now)
                    acknowledged.update(range(found.first, found.last + 1))
                else:
                    group.refuse(broken.number, found.delivery, found.first, found.last, now)
        assert now < 10.0

    def test_who_lets_every_deadline_pass_is_tried_ever_more_rarely_too(self) -> None:
        group = Group(0, (), rules=Rules(deadline_s=0.001))
        join(group, 100)
        now, count = 0.0, 0
        while now < 60.0:
            count += len(drain(group, 1_000, now))
            due = group.next_due(now)
            assert due is not None
            now = due
            group.expire(now)
        assert count < 80
        group = Group(0, (), rules=Rules(deadline_s=30.0))
        member = join(group, 100)
        drain(group, 1_000, 0.0)
        group.expire(30.0)
        assert not member.rests, "as ever: somebody else may take it at once"

    def test_one_that_is_slow_and_acknowledges_late_does_not_rest(self) -> None:
        group = Group(0, (), rules=Rules(deadline_s=1.0))
        member = join(group, 1)
        for offset in range(50):
            (found,) = drain(group, 1_000, 2.0 * offset)
            assert found[1:] == (offset, offset)
            group.expire(2.0 * offset + 1.0)
            number = offset + 1
            assert group.acknowledge(member.number, number, offset, offset, 2.0 * offset + 1.5)
        assert not member.rests

    def test_long_delays_are_the_members_own_affair(self) -> None:
        group = Group(0, ())
        member = join(group, 100)
        assert self.give_back(group, member, 1.0, end=800, delay_s=5.0) == 800

    def test_dead_letters_are_dealt_with(self) -> None:
        group = Group(0, (), rules=Rules(max_attempts=1))
        member = join(group, 100)
        assert self.give_back(group, member, 1.0) == 1_000
        assert not member.rests

    def test_a_member_that_leaves_while_it_rests(self) -> None:
        group = Group(0, ())
        member = join(group, 100)
        self.give_back(group, member, 1.0)
        group.leave(member.number, 1.0)
        join(group, 2_000)
        assert sum(last - first + 1 for _, first, last in drain(group, 1_000, 100.0)) == 1_000
        assert group.next_due(100.0) is None


class TestBatches:
    def test_they_are_sent_when_they_are_full(self) -> None:
        group = Group(0, ())
        join(group, 100, size=10, wait_s=5.0)
        assert drain(group, 9, 0.0) == []
        assert group.next_due(0.0) == 5.0
        assert [
            (a.first, a.last, a.ends_batch) for a in iter(lambda: deliver(group, 21, 1.0), None)
        ] == [(0, 7, False), (8, 9, True), (10, 15, False), (16, 19, True)]

    def test_or_when_the_first_record_has_waited(self) -> None:
        group = Group(0, ())
        member = join(group, 100, size=10, wait_s=5.0)
        assert drain(group, 3, 1.0) == []
        assert drain(group, 4, 5.9) == []
        found = deliver(group, 4, 6.0)
        assert found is not None
        assert (found.first, found.last, found.ends_batch) == (0, 3, True)
        group.acknowledge(member.number, 1, 0, 3)
        assert drain(group, 4, 7.0) == []
        assert drain(group, 5, 20.0) == [], "the next one waits for itself"
        assert group.next_due(20.0) == 25.0

    def test_who_did_not_read_for_a_moment_waits_on(self) -> None:
        reads = True
        group = Group(0, ())
        group.join(100, lambda: reads, batch_size=10, batch_wait_s=5.0)
        assert drain(group, 3, 1.0) == []
        reads = False
        assert drain(group, 4, 2.0) == []
        reads = True
        group.became_writable(1)
        assert drain(group, 4, 3.0) == []
        assert group.next_due(3.0) == 6.0, "nothing else might come that it is told of"
        assert drain(group, 4, 6.0) == [(1, 0, 3)]

    def test_others_are_not_kept_waiting(self) -> None:
        group = Group(0, ())
        join(group, 100, size=10, wait_s=5.0)
        join(group, 100)
        assert drain(group, 3, 0.0) == [(2, 0, 2)]

    def test_a_batch_is_one_members_and_ends_where_it_must(self) -> None:
        group = Group(0, ())
        writable = True
        group.join(100, lambda: writable, batch_size=20)
        join(group, 100, size=20)
        assert [deliver(group, 40), deliver(group, 40)] == [
            Assignment(1, 1, 0, 7, 1),
            Assignment(1, 2, 8, 15, 1),
        ]
        writable = False
        assert deliver(group, 40) == Assignment(2, 3, 16, 23, 1)
        assert group.rest() == [1, 2], "both were begun"
        assert group.rest() == []


class TestStrictOrder:
    def test_one_is_in_flight_and_the_next_waits_for_the_commit(self) -> None:
        group = Group(0, (), rules=Rules(is_strict=True))
        join(group, 8)
        other = join(group, 8)
        assert drain(group, 8) == [(1, 0, 0)]
        assert group.acknowledge(1, 1, 0, 0) == [(0, 0)]
        assert drain(group, 8) == [], "it is not committed"
        group.settled([(0, 0)], 0.0)
        assert drain(group, 8) == [(other.number, 1, 1)]

    def test_what_is_given_back_holds_back_everything(self) -> None:
        group = Group(0, (), rules=Rules(is_strict=True))
        member = join(group, 8)
        drain(group, 8)
        group.refuse(member.number, 1, 0, 0, now=0.0, delay_s=9.0)
        assert drain(group, 8, 8.9) == []
        assert "strict" in held_back(group, 8)
        assert drain(group, 8, 9.0) == [(1, 0, 0)]

    def test_so_does_a_dead_letter_until_it_is_written(self) -> None:
        group = Group(0, (), rules=Rules(is_strict=True, max_attempts=1))
        member = join(group, 8)
        drain(group, 8)
        group.refuse(member.number, 1, 0, 0, now=0.0, delay_s=0.0)
        assert drain(group, 8) == []
        group.settled([(0, 0)], 0.0)
        assert drain(group, 8) == [(1, 1, 1)]


class TestOrderByKey:
    def test_keys_go_side_by_side_and_each_in_its_order(self) -> None:
        # Keys by offset: none, 2, 3, 1, 2, none, 1, 2
        group = Group(0, (), rules=Rules(is_by_key=True))
        one, other = join(group, 3), join(group, 50)
        assert drain(group, 8) == [(1, 0, 2), (2, 3, 3), (2, 5, 5)]
        assert group.keys is not None
        assert group.keys.behind == 3
        group.acknowledge(one.number, 1, 1, 1)
        assert drain(group, 8) == [], "it is not committed"
        group.settled([(1, 1)], 0.0)
        assert drain(group, 8) == [(2, 4, 4)]
        group.acknowledge(other.number, 2, 3, 3)
        group.settled([(3, 3)], 0.0)
        assert drain(group, 8) == [(1, 6, 6)]

    def test_what_is_given_back_holds_back_its_key_only(self) -> None:
        group = Group(0, (), rules=Rules(is_by_key=True))
        member = join(group, 50)
        drain(group, 8)
        group.refuse(member.number, 1, 1, 1, now=0.0, delay_s=9.0)
        for first, last, number in ((2, 2, 1), (3, 3, 1)):
            assert group.acknowledge(member.number, number, first, last) == [(first, last)]
            group.settled([(first, last)], 0.0)
        assert drain(group, 8) == [(1, 6, 6)]
        assert drain(group, 8, 9.0) == [(1, 1, 1)], "and 4 and 7 behind it"

    def test_a_late_acknowledgement_of_far_too_much_costs_no_more_than_what_is_busy(self) -> None:
        group = Group(0, (), rules=Rules(is_by_key=True))
        join(group, 50)
        drain(group, 8)
        group.settled([(0, 1 << 62)], 0.0)
        assert drain(group, 8) == [(1, 4, 4), (1, 6, 6)], "the next of keys 2 and 1"

    def test_retention_takes_a_line_along(self) -> None:
        group = Group(0, (), rules=Rules(is_by_key=True))
        member = join(group, 50)
        drain(group, 16)
        group.skip_below(8, 0.0)
        group.refuse(member.number, 1, 0, 3, now=0.0, delay_s=0.0)
        assert drain(group, 16) == [(1, 8, 9), (1, 13, 13)], "the next of keys 3, 1 and 2"

    @pytest.mark.parametrize("kept", range(1, 20))
    @pytest.mark.parametrize("way", ["leaves", "is late", "nacks", "has not looked", "no letters"])
    def test_wherever_retention_ends_all_that_is_left_is_delivered(
        self, way: str, kept: int
    ) -> None:
        """Before, within or behind what a member holds as one delivery, and gives back afterwards,
        one way or another: what is left of that comes again, and what has a key of one that is gone
        has its turn."""
        attempts = 1 if way == "no letters" else 0
        group = Group(0, (), rules=Rules(False, True, 60.0, attempts))
        member = join(group)
        assert drain(group, 24) == [(1, 0, 3), (1, 5, 5), (1, 10, 10), (1, 15, 15), (1, 20, 20)]
        group.skip_below(kept, 1.0)
        group.expire(61.0) if way == "is late" else None
        dead: list[Exhausted] = []
        for number, first, last in [(1, 0, 3), (2, 5, 5), (3, 10, 10), (4, 15, 15), (5, 20, 20)]:
            unseen = way == "has not looked"
            if way in ("nacks", "has not looked", "no letters"):
                effects = group.refuse(
                    member.number, number, first, last, 2.0, delay_s=0.0, is_unseen=unseen
                )
                dead += effects.exhausted
        for each in dead:
            dead += group.put_back(each, 3.0).exhausted
        group.leave(member.number, 62.0)
        assert self.taken(group, 24) == list(range(kept, 24))

    def taken(self, group: Group, end: int) -> list[int]:
        """What a member is given that acknowledges everything."""
        member, found = join(group), list[int]()
        while (given := deliver(group, end, 100.0)) is not None:
            found += range(given.first, given.last + 1)
            ranges = group.acknowledge(
                member.number, given.delivery, given.first, given.last, 100.0
            )
            group.settled(ranges, 100.0)
        return sorted(found)


class TestWindows:
    def test_nothing_is_delivered_of_which_nothing_is_known(self) -> None:
        group = Group(0, [(2, 3)], [(1, 1, 1)], window_end=4)
        join(group)
        assert drain(group, 20) == [(1, 0, 0), (1, 1, 1)]
        assert (group.frontier.needs_window, group.frontier.cursor) == (True, 4)
        group.frontier.resume([(4, 4), (6, 9)], [], 10)
        assert drain(group, 20) == [(1, 5, 5)]
        assert group.frontier.needs_window
        group.frontier.resume([], [], None)
        assert drain(group, 20) == [(1, 10, 15), (1, 16, 19)]
        assert not group.frontier.needs_window

    def test_a_late_acknowledgement_is_not_forgotten_by_the_next_window(self) -> None:
        """The window was read while it was on its way into the log: the record would be delivered
        again, and its member was told that the acknowledgement counts."""
        group = Group(0, [(2, 3)], window_end=4)
        join(group)
        assert group.acknowledge_late(3, 12) == [(4, 12)]
        drain(group, 20)
        group.frontier.resume([(8, 8)], [], 10)
        assert drain(group, 20) == []
        assert (group.frontier.needs_window, group.frontier.cursor) == (True, 10)
        group.frontier.resume([], [], None)
        assert drain(group, 20) == [(1, 13, 15), (1, 16, 19)]

    def test_retention_may_overtake_a_window(self) -> None:
        group = Group(0, [(2, 3)], window_end=4)
        join(group)
        group.skip_below(9)
        assert group.frontier.needs_window
        group.frontier.resume([(8, 10), (12, 12)], [(9, 9, 3), (11, 11, 1)], None)
        assert drain(group, 16) == [(1, 11, 11), (1, 13, 15)]


class TestBounds:
    def test_too_many_pieces_hold_back_what_is_new(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A member that acknowledges every other record, and never the rest."""
        monkeypatch.setattr(machine, "MAX_UNSETTLED", 100)
        group = Group(0, ())
        member = join(group, 1_000)
        end = 10_000
        for _ in range(50):
            for _, first, last in drain(group, end):
                for offset in range(first, last + 1):
                    if offset % 2:
                        for number in list(member.deliveries):
                            group.acknowledge(member.number, number, offset, offset)
        assert 100 <= group.unsettled <= 100 + 1_000 // 2, "what was in flight comes apart"
        assert "the limit" in held_back(group, end)
        assert group.frontier.cursor < 2_000
        for number, delivery in list(member.deliveries.items()):
            for first, last in delivery.held.ranges():
                group.acknowledge(member.number, number, first, last)
        assert held_back(group, end) == ""
        assert deliver(group, end) is not None

    def test_so_do_too_many_records_in_flight(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine, "MAX_GROUP_IN_FLIGHT", 100)
        group = Group(0, ())
        for _ in range(50):
            join(group, 10)
        drain(group, 10_000)
        assert 100 <= group.in_flight <= 100 + BATCH
        assert "in flight" in held_back(group, 10_000)

    def test_a_member_that_takes_nothing_is_not_looked_at(self) -> None:
        group = Group(0, ())
        looks = 0

        def never() -> bool:
            nonlocal looks
            looks += 1
            return False

        for _ in range(200):
            group.join(10, never)
        quick = join(group, 10)
        looks = 0
        for _ in range(100):
            for number in list(quick.deliveries):
                group.acknowledge(quick.number, number, 0, 10_000)
            drain(group, 10_000)
        assert looks == 0


class TestADeadlineThatPasses:
    """Of one record that a program keeps, with nobody else to take it."""

    RULES = Rules(deadline_s=2.0)

    def test_others_come_to_who_deals_with_them(self) -> None:
        group = Group(0, (), rules=self.RULES)
        member = join(group, 100)
        seen: dict[int, list[float]] = {}
        for tenth in range(100):
            now = tenth / 10
            group.expire(now)
            while (found := deliver(group, tenth // 10 + 1, now)) is not None:
                for offset in range(found.first, found.last + 1):
                    seen.setdefault(offset, []).append(now)
                    if offset:
                        group.acknowledge(member.number, found.delivery, offset, offset, now)
        assert seen == {0: [0.0, 2.0, 4.0, 6.0, 8.0], **{n: [float(n)] for n in range(1, 10)}}

    def test_who_dealt_with_nothing_is_tried_with_another_one(self) -> None:
        """One at a time: what was not looked at would use up its attempts otherwise. Each comes as
        often as the others, also those behind it."""
        group = Group(0, (), rules=self.RULES)
        member = join(group, 3)
        tried = []
        for now in (0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0):
            group.expire(now)
            tried.append([(first, last) for _, first, last in drain(group, 5, now)])
        assert tried == [
            [(0, 2)],
            [(3, 3)],
            [(4, 4)],
            [(0, 0)],
            [(1, 1)],
            [(2, 2)],
            [(3, 3)],
            [(4, 4)],
        ]
        group.expire(16.0)
        found = deliver(group, 5, 16.0)
        assert found is not None
        assert (found.first, found.attempt) == (0, 3)
        group.acknowledge(member.number, found.delivery, 0, 0, 16.0)
        assert [(first, last) for _, first, last in drain(group, 5, 16.0)] == [(1, 3)]

    def test_what_it_dealt_with_too_late_ends_its_trial_with_the_other_one(self) -> None:
        """The deadline of that has passed, and nobody else has it. It still gets one at a time."""
        group = Group(0, (), rules=self.RULES)
        member = join(group, 3)
        (first, *_), *_ = drain(group, 6, 0.0)
        group.expire(2.0)
        assert [(first, last) for _, first, last in drain(group, 6, 2.0)] == [(3, 3)]
        assert group.acknowledge(member.number, first, 0, 0, 2.5) == [(0, 0)]
        assert [(first, last) for _, first, last in drain(group, 6, 2.5)] == [(4, 4)]
        assert group.acknowledge_late(1, 1, member.number, 3.0) == [(1, 1)]
        assert [(first, last) for _, first, last in drain(group, 6, 3.0)] == [(5, 5)]

    def test_what_is_given_back_a_second_time_is_nothing_that_it_dealt_with(self) -> None:
        group = Group(0, (), rules=self.RULES)
        member = join(group, 3)
        found = deliver(group, 3, 0.0)
        assert found is not None
        group.refuse(member.number, found.delivery, 0, 0, 0.5, delay_s=100.0)
        group.refuse(member.number, found.delivery, 0, 0, 1.0)
        group.expire(3.0)
        assert member.is_stalled
