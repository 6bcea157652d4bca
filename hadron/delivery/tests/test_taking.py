"""The group's machine with records that transactions acknowledge; by chance in `test_rules`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hadron.delivery.effects import Effects, Exhausted, Rules
from hadron.delivery.held import Held
from hadron.delivery.machine import Group
from hadron.delivery.members import Delivery
from hadron.delivery.telling import held_back
from hadron.delivery.tests.test_rules import deliver, drain, join, key_of
from hadron.model.transactions import TransactionId

A, B = TransactionId("local/p1", 1, 7, 1), TransactionId("local/p1", 1, 7, 2)


class TestWhatIsTaken:
    def test_it_is_given_to_nobody_and_its_deadline_stands_still(self) -> None:
        group = Group(0, (), rules=Rules(deadline_s=10.0))
        member = join(group, 4)
        drain(group, 8, 0.0)
        group.take(A, [(1, 2)], 1.0)
        assert (group.in_flight, group.taken.records, member.credit) == (2, 2, 0)
        effects = group.expire(11.0)
        assert [each.ranges for each in effects.expired] == [((0, 0), (3, 3))]
        assert group.expire(1_000.0) == Effects()
        join(group, 100)
        assert [span[1:] for span in drain(group, 8, 1_000.0)] == [(0, 0), (3, 3), (4, 4), (5, 7)]

    def test_its_holder_cannot_end_it_in_another_way(self) -> None:
        group = Group(0, ())
        member = join(group, 8)
        drain(group, 8)
        group.take(A, [(2, 3)], 0.0)
        assert group.acknowledge(member.number, 1, 1, 4) == [(1, 1), (4, 4)]
        assert group.acknowledge_late(0, 7) == []
        assert group.refuse(member.number, 1, 2, 3, 0.0) == Effects()
        assert group.taken.holders(0, 7) == [(2, 3, A)]
        assert group.taken.is_from(member.number, 1, 2, 3)
        assert not group.taken.is_from(member.number, 1, 1, 3)
        assert not group.taken.is_from(member.number, 2, 2, 3), "another delivery's"

    def test_who_acknowledges_late_has_nothing_of_it_either(self) -> None:
        """Another node leads now, and has given out none of these yet."""
        group = Group(0, ())
        group.take(A, [(2, 3)], 0.0)
        assert group.acknowledge_late(1, 4) == [(1, 1), (4, 4)]
        assert group.taken.holders(0, 7) == [(2, 3, A)]

    def test_once_it_is_acknowledged_its_holder_takes_more(self) -> None:
        group = Group(0, ())
        member = join(group, 2)
        drain(group, 8)
        group.take(A, [(0, 1)], 0.0)
        assert drain(group, 8) == []
        assert group.finish([(0, 1)], 1.0) == Effects()
        assert (member.credit, member.acknowledged, group.unsettled) == (2, 2, 0)
        assert drain(group, 8) == [(1, 2, 3)]

    def test_what_was_decided_before_anybody_heard_that_it_was_prepared(self) -> None:
        group = Group(0, [(6, 6)])
        member = join(group, 4)
        drain(group, 8)
        group.refuse(member.number, 1, 1, 1, 0.0, delay_s=5.0)
        assert group.finish([(0, 1), (4, 7)], 0.0) == Effects()
        assert (group.in_flight, group.waiting.records, member.acknowledged) == (2, 0, 1)
        assert drain(group, 8, 10.0) == []

    def test_what_is_prepared_has_the_record_whoever_only_wanted_it(self) -> None:
        group = Group(0, ())
        member = join(group, 4)
        drain(group, 4)
        group.take(A, [(0, 2)], 0.0)
        group.take(B, [(1, 1)], 0.0)
        assert group.taken.holders(0, 3) == [(0, 0, A), (1, 1, B), (2, 2, A)]
        assert group.untake(A, [(0, 2)], 0.0) == Effects()
        assert member.holds() == [(0, 0), (2, 3)]
        group.untake(B, [(1, 1)], 0.0)
        assert member.holds() == [(0, 3)]


class TestARollback:
    def test_who_holds_it_has_it_again_with_a_whole_deadline(self) -> None:
        group = Group(0, (), rules=Rules(deadline_s=10.0))
        member = join(group, 4)
        drain(group, 4, 0.0)
        group.take(A, [(0, 3)], 1.0)
        assert group.next_due(1.0) is None
        assert group.untake(A, [(0, 3)], 50.0) == Effects()
        assert group.next_due(50.0) == 60.0
        assert group.acknowledge(member.number, 1, 0, 3, 51.0) == [(0, 3)], "under its own token"
        assert member.credit == 4

    def test_what_is_left_of_a_delivery_may_have_ended_meanwhile(self) -> None:
        group = Group(0, (), rules=Rules(deadline_s=10.0))
        member = join(group, 4)
        drain(group, 4, 0.0)
        group.take(A, [(0, 0)], 1.0)
        assert group.expire(11.0).ended == [(1, 3, 1)]
        group.untake(A, [(0, 0)], 20.0)
        assert [each.ranges for each in group.expire(30.0).expired] == [((0, 0),)]
        assert member.credit == 4

    def test_where_its_holder_has_gone_the_delivery_was_in_vain(self) -> None:
        group = Group(0, (), rules=Rules(max_attempts=2))
        gone = join(group, 4)
        drain(group, 4)
        group.take(A, [(0, 1)], 0.0)
        assert group.leave(gone.number, 1.0).ended == [(2, 3, 1)], "the others are given back"
        join(group, 4)
        assert drain(group, 4, 1.0) == [(2, 2, 3)]
        effects = group.untake(A, [(0, 1)], 2.0)
        assert effects == Effects(ended=[(0, 1, 1)])
        again = deliver(group, 4, 2.0)
        assert again is not None
        assert (again.first, again.last, again.attempt) == (0, 1, 2)
        group.take(B, [(0, 0)], 3.0)
        group.leave(2, 3.0)
        assert group.untake(B, [(0, 0)], 4.0) == Effects(), "it had others as well (GROUPS G16)"

    def test_what_waited_waits_on_as_it_did(self) -> None:
        group = Group(0, (), rules=Rules(max_attempts=5))
        member = join(group, 4)
        drain(group, 4)
        group.refuse(member.number, 1, 1, 2, 0.0, delay_s=30.0)
        group.take(A, [(2, 2)], 1.0)
        assert group.waiting.records == 1
        group.untake(A, [(2, 2)], 2.0)
        assert group.next_due(2.0) == 30.0
        assert drain(group, 4, 29.0) == []
        again = deliver(group, 4, 30.0)
        assert again is not None
        assert (again.first, again.last, again.attempt) == (1, 2, 2)


class TestWhatItsMemberSaysMeanwhile:
    """It has heard of the rollback, its leader has not."""

    def test_what_it_gives_back_is_delivered_again_after_the_rollback(self) -> None:
        group = Group(0, (), rules=Rules(max_attempts=3))
        member = join(group, 4)
        drain(group, 4)
        group.take(A, [(0, 2)], 0.0)
        assert group.refuse(member.number, 1, 0, 0, 1.0, delay_s=0.0) == Effects()
        assert group.refuse(member.number, 1, 1, 1, 1.0, delay_s=30.0) == Effects()
        assert (member.credit, group.waiting.records) == (0, 0), "it may be committed"
        assert group.untake(A, [(0, 2)], 2.0).ended == [(0, 0, 1), (1, 1, 1)]
        assert (member.credit, member.holds()) == (2, [(2, 3)])
        other = join(group, 4)
        again = deliver(group, 4, 2.0)
        assert again is not None
        assert (again.member, again.first, again.last) == (other.number, 0, 0)
        assert again.attempt == 2
        assert group.next_due(3.0) == 31.0, "it began when it was said"
        assert drain(group, 4, 31.0) == [(other.number, 1, 1)]

    def test_what_it_acknowledges_is_acknowledged_after_the_rollback(self) -> None:
        group = Group(0, ())
        member = join(group, 4)
        drain(group, 8)
        group.take(A, [(1, 2)], 0.0)
        assert group.acknowledge(member.number, 1, 0, 3) == [(0, 0), (3, 3)]
        assert group.refuse(member.number, 1, 1, 1, 0.0) == Effects(), "the first word counts"
        assert group.untake(A, [(1, 2)], 1.0) == Effects(acknowledged=[(1, 2)])
        assert (member.credit, member.acknowledged, group.unsettled) == (4, 4, 0)
        assert drain(group, 8) == [(1, 4, 7)]

    @pytest.mark.parametrize("is_strict", [True, False])
    def test_order_holds(self, is_strict: bool) -> None:
        """Offsets 1, 4 and 7 have a key."""
        rules = Rules(is_strict=is_strict, is_by_key=not is_strict)
        group = Group(1, (), rules=rules)
        member = join(group)
        assert drain(group, 8)[0][1] == 1
        group.take(A, [(1, 1)], 0.0)
        group.acknowledge(member.number, 1, 1, 1)
        acknowledged = group.untake(A, [(1, 1)], 1.0).acknowledged
        assert drain(group, 8, 1.0) == [], "it is not committed"
        group.settled(acknowledged, 1.0)
        assert drain(group, 8, 1.0) == ([(1, 2, 2)] if is_strict else [(1, 4, 4)])

    def test_a_last_attempt_ends_with_the_rollback(self) -> None:
        group = Group(0, (), rules=Rules(max_attempts=1))
        member = join(group, 4)
        drain(group, 4)
        group.take(A, [(0, 1)], 0.0)
        group.refuse(member.number, 1, 0, 1, 0.0, reason="no such flight")
        group.finish([(1, 1)], 0.0)
        assert group.untake(A, [(0, 0)], 1.0).exhausted == [Exhausted(0, 0, 1, "no such flight")]
        assert (member.credit, group.taken.records) == (2, 0)

    def test_it_counts_although_the_member_has_gone(self) -> None:
        group = Group(0, (), rules=Rules(max_attempts=3))
        gone = join(group, 4)
        drain(group, 3)
        group.take(A, [(0, 2)], 0.0)
        group.acknowledge(gone.number, 1, 0, 0)
        group.refuse(gone.number, 1, 1, 1, 0.0, is_unseen=True)
        group.leave(gone.number, 0.0)
        effects = group.untake(A, [(0, 2)], 1.0)
        assert effects == Effects(ended=[(2, 2, 1)], acknowledged=[(0, 0)])
        join(group)
        assert drain(group, 3, 1.0) == [(2, 1, 1), (2, 2, 2)]

    def test_it_is_nobody_elses_to_say(self) -> None:
        group = Group(0, ())
        member, other = join(group, 2), join(group, 2)
        drain(group, 4)
        group.take(A, [(0, 1)], 0.0)
        group.acknowledge(other.number, 1, 0, 1)
        group.refuse(member.number, 2, 0, 1, 0.0)
        assert group.untake(A, [(0, 1)], 1.0) == Effects()
        assert member.holds() == [(0, 1)]


class TestOrder:
    def test_a_taken_record_holds_up_all_that_follow(self) -> None:
        group = Group(0, (), rules=Rules(is_strict=True))
        member = join(group)
        drain(group, 4)
        group.take(A, [(0, 0)], 0.0)
        assert drain(group, 4) == []
        assert "transaction local/p1/1.7/1" in held_back(group, 4)
        group.leave(member.number, 0.0)
        join(group)
        assert drain(group, 4) == []
        group.finish([(0, 0)], 0.0)
        assert drain(group, 4) == [(2, 1, 1)]

    def test_after_a_failover_too(self) -> None:
        group = Group(0, (), rules=Rules(is_strict=True))
        group.take(A, [(1, 1)], 0.0)
        member = join(group)
        assert drain(group, 4) == [(1, 0, 0)], "what comes before it is not held up"
        group.settled(group.acknowledge(member.number, 1, 0, 0), 0.0)
        assert drain(group, 4) == []
        group.untake(A, [(1, 1)], 0.0)
        assert drain(group, 4) == [(1, 1, 1)]

    @pytest.mark.parametrize("is_known", [False, True])
    def test_a_taken_record_holds_up_its_key(self, is_known: bool) -> None:
        """Offsets 1, 4 and 7 have a key; 1 was given out by this leader, or by the one before."""
        assert key_of(1) == key_of(4) == key_of(7) != 0
        group = Group(0, (), rules=Rules(is_by_key=True))
        if not is_known:
            group.take(A, [(1, 1)], 0.0)
        join(group)
        drain(group, 2)
        if is_known:
            group.take(A, [(1, 1)], 0.0)
        given = [n for _, first, last in drain(group, 8) for n in range(first, last + 1)]
        assert not {1, 4, 7} & set(given)
        group.finish([(1, 1)], 0.0)
        assert drain(group, 8) == [(1, 4, 4)]

    def test_one_that_stands_in_line_is_passed_over_once_it_is_acknowledged(self) -> None:
        group = Group(0, (), rules=Rules(is_by_key=True))
        member = join(group)
        drain(group, 8)
        group.take(A, [(4, 4)], 0.0)
        group.settled(group.acknowledge(member.number, 1, 0, 1), 0.0)
        assert drain(group, 8) == [], "its turn has come, and it is taken"
        group.finish([(4, 4)], 0.0)
        assert drain(group, 8) == [(1, 7, 7)]

    def test_one_that_stands_in_line_is_given_out_in_its_turn_after_a_rollback(self) -> None:
        group = Group(0, (), rules=Rules(is_by_key=True))
        member = join(group)
        drain(group, 8)
        group.take(A, [(4, 4)], 0.0)
        group.settled(group.acknowledge(member.number, 1, 0, 1), 0.0)
        group.untake(A, [(4, 4)], 0.0)
        assert drain(group, 8) == [(1, 4, 4)]


class TestWhatIsOver:
    def test_retention_drops_it_and_it_keeps_its_key_until_its_end(self) -> None:
        for ends in (Group.finish, lambda group, ranges, now: group.untake(A, ranges, now)):
            group = Group(0, (), rules=Rules(is_by_key=True))
            member = join(group)
            drain(group, 8)
            group.take(A, [(1, 1)], 0.0)
            group.leave(member.number, 0.0)
            group.skip_below(3, 0.0)
            join(group)
            assert (2, 4, 4) not in drain(group, 8)
            ends(group, [(1, 1)], 1.0)
            assert drain(group, 8, 1.0) == [(2, 4, 4)]

    def test_a_dead_letter_that_could_not_be_written_is_taken_when_it_comes_back(self) -> None:
        group = Group(0, (), rules=Rules(max_attempts=1))
        member = join(group)
        drain(group, 2)
        (dead,) = group.refuse(member.number, 1, 0, 1, 0.0).exhausted
        group.take(A, [(0, 0)], 0.0)
        group.put_back(dead, 5.0)
        assert drain(group, 2, 5.0) == [(1, 1, 1)]
        group.untake(A, [(0, 0)], 6.0)
        assert group.taken.records == 0

    def test_pieces_count(self) -> None:
        group = Group(0, ())
        join(group, 8)
        drain(group, 8)
        group.take(A, [(0, 0), (4, 4)], 0.0)
        assert group.unsettled == 4, "two that are taken, and what is in flight between them"
        group.finish([(0, 0), (4, 4)], 0.0)
        assert group.unsettled == 2

    def test_who_holds_a_record_is_found_without_a_look_at_every_delivery(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """10,000 were held, and each of 10,000 ranges took 4 ms of the leader's loop."""
        looked: list[Held] = []
        every = Held.__iter__

        def look(held: Held) -> Iterator[Delivery]:
            looked.append(held)
            return every(held)

        monkeypatch.setattr(Held, "__iter__", look)
        group = Group(0, ())
        one, two = join(group, 100), join(group, 100)
        for end in range(1, 101):
            drain(group, end)
        for offset in range(0, 100, 2):
            group.take(A, [(offset, offset)], 0.0)
        assert len(looked) <= 1
        assert (group.in_flight, group.taken.records) == (50, 50)
        # Whatever becomes of deliveries from here on is known as well.
        group.untake(A, [(0, 9)], 1.0)
        group.leave(one.number, 1.0)
        drain(group, 120, 1.0)
        group.acknowledge(two.number, max(two.deliveries), 0, 200)
        held = [each for member in group.members.values() for each in member.holds()]
        assert [(a, b) for a, b, _ in group.held.within(0, 200)] == sorted(held)
        assert len(looked) <= 1
