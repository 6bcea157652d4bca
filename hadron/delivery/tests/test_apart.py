"""What ends a member with many records takes none along but what it died of (GROUPS G16)."""

from __future__ import annotations

import pytest

from hadron.delivery.effects import Assignment, Exhausted, Rules
from hadron.delivery.machine import Group
from hadron.delivery.members import Member
from hadron.delivery.patience import DRAIN_PAUSE_S, DRAIN_S
from hadron.delivery.telling import held_back
from hadron.delivery.tests.test_rules import deliver, drain, join
from hadron.model.transactions import TransactionId
from hadron.state.groups.attempts import Attempts

GONE = "its member has gone"


def lose(group: Group, times: int, end: int) -> None:
    """Members come, are given all that there is, and go."""
    for _ in range(times):
        member = join(group)
        drain(group, end)
        assert group.leave(member.number, 0.0).exhausted == []


@pytest.mark.parametrize("poison", [0, 2, 5])
def test_one_that_ends_whoever_has_it_dies_alone(poison: int) -> None:
    """A program deals with record after record, and what it says of them is lost with it."""
    group = Group(0, (), rules=Rules(max_attempts=3))
    dead, dealt_with, deaths = list[Exhausted](), list[int](), 0
    while len(dealt_with) + len(dead) < 6:
        member = join(group, 100)
        given: Assignment | None = deliver(group, 6)
        while given is not None:
            assert given.attempt <= 3
            if given.first <= poison <= given.last:
                deaths += 1
                dead += group.leave(member.number, 0.0).exhausted
                break
            dealt_with += range(given.first, given.last + 1)
            group.acknowledge(member.number, given.delivery, given.first, given.last)
            given = deliver(group, 6)
    assert dead == [Exhausted(poison, poison, 3, GONE)]
    assert sorted(dealt_with) == [each for each in range(6) if each != poison]
    assert deaths == 4


def test_those_beside_it_have_their_own_attempts() -> None:
    """Its program cannot deal with them yet, and says so: as often as if nobody had died."""
    group = Group(0, (), rules=Rules(max_attempts=3))
    lose(group, 3, 2)
    member = join(group, 1)
    attempts, dead, ended = list[int](), list[Exhausted](), list[Attempts]()
    for second in range(6):
        given = deliver(group, 2, float(second))
        assert given is not None
        if given.first == 0:
            attempts.append(given.attempt)
        effects = group.refuse(
            member.number, given.delivery, given.first, given.last, float(second), delay_s=0.0
        )
        dead += effects.exhausted
        ended += effects.ended
    assert attempts == [3, 3, 3]
    assert dead == [Exhausted(0, 0, 3, "refused"), Exhausted(1, 1, 3, "refused")]
    assert ended == [(0, 0, 3), (1, 1, 3)], "until then a leader after this one spares them"


def test_what_a_transaction_had_beside_it_is_spared_as_well() -> None:
    """A loop over steps has all that it was given in a transaction when its process dies."""
    group = Group(0, (), rules=Rules(max_attempts=2))
    for number in range(1, 3):
        member = join(group, 10)
        drain(group, 4)
        transaction = TransactionId("local/p0", 1, 1, number)
        group.take(transaction, [(0, 2)], 0.0)
        assert group.leave(member.number, 0.0).exhausted == [], "it had others besides the last one"
        assert group.untake(transaction, [(0, 2)], 0.0).exhausted == []
    member = join(group, 10)
    assert drain(group, 4) == [(member.number, 0, 0)]
    transaction = TransactionId("local/p0", 1, 1, 9)
    group.take(transaction, [(0, 0)], 0.0)
    assert drain(group, 4) == [], "it is alone with its member, also in a transaction"
    group.leave(member.number, 0.0)
    assert group.untake(transaction, [(0, 0)], 0.0).exhausted == [Exhausted(0, 0, 2, GONE)]


def test_nothing_is_given_to_who_has_one_apart() -> None:
    group = Group(0, (), rules=Rules(max_attempts=2))
    lose(group, 2, 3)
    first, second = join(group), join(group)
    assert drain(group, 8) == [(first.number, 0, 0), (second.number, 1, 1)]
    assert group.acknowledge(first.number, 3, 0, 0) == [(0, 0)]
    assert drain(group, 8) == [(first.number, 2, 2)]
    assert group.acknowledge(second.number, 4, 1, 1) == [(1, 1)]
    assert drain(group, 8) == [(second.number, 3, 7)]


def test_one_member_is_emptied_for_it_and_others_go_on() -> None:
    group = Group(0, (), rules=Rules(max_attempts=2))
    busy, other = join(group, 4), join(group, 4)
    assert drain(group, 8) == [(1, 0, 3), (2, 4, 7)]
    for _ in range(2):
        third = join(group, 2)
        drain(group, 10)
        group.leave(third.number, 0.0)
    for member, number, first in ((busy, 1, 0), (other, 2, 4)):
        assert group.acknowledge(member.number, number, first, first)
    assert drain(group, 20) == [(other.number, 10, 10)], "the one that is emptied gets nothing"
    group.acknowledge(busy.number, 1, 1, 3)
    assert drain(group, 20) == [(busy.number, 8, 8)]
    group.acknowledge(busy.number, 6, 8, 8)
    assert drain(group, 20) == [(busy.number, 9, 9)]


def test_who_is_emptied_and_goes_holds_up_nothing() -> None:
    group = Group(0, (), rules=Rules(max_attempts=2))
    lose(group, 2, 2)
    busy = join(group, 4)
    assert drain(group, 2) == [(busy.number, 0, 0)]
    assert group.refuse(busy.number, 3, 0, 0, 0.0, is_unseen=True).exhausted == []
    assert drain(group, 2) == [(busy.number, 0, 0)], "it is apart as before"
    group.leave(busy.number, 0.0)
    last = join(group)
    assert drain(group, 2) == [(last.number, 1, 1)]


def kept_busy(group: Group) -> Member:
    """A member that works on the first record for long, and would take three beside it; the next
    two have ended members."""
    busy = join(group, 4)
    assert drain(group, 1) == [(busy.number, 0, 0)]
    group.resize(busy.number, 1)
    lose(group, 2, 3)
    group.resize(busy.number, 4)
    return busy


def test_who_is_emptied_gets_what_follows_once_others_have_dealt_with_it() -> None:
    group = Group(0, (), rules=Rules(max_attempts=2))
    busy = kept_busy(group)
    assert drain(group, 8) == []
    assert busy.is_alone
    assert "gets nothing more" in held_back(group, 8)
    other = join(group, 1)
    for offset in (1, 2):
        given = deliver(group, 8)
        assert given is not None
        assert (given.member, given.first) == (other.number, offset)
        group.acknowledge(other.number, given.delivery, offset, offset)
    group.leave(other.number, 0.0)
    assert held_back(group, 8) == ""
    assert drain(group, 8) == [(busy.number, 3, 5)]


def test_who_works_for_long_on_what_it_has_is_not_emptied_for_ever() -> None:
    group = Group(0, (), rules=Rules(max_attempts=2))
    busy = kept_busy(group)
    assert drain(group, 8) == []
    assert group.next_due(0.0) == DRAIN_S
    assert drain(group, 8, DRAIN_S) == [(busy.number, 3, 5)]
    assert "wait for a member that holds nothing" in held_back(group, 8)
    (later,) = [number for number, each in busy.deliveries.items() if 3 in each.held]
    group.acknowledge(busy.number, later, 3, 5, DRAIN_S)
    assert drain(group, 8, DRAIN_S) == [(busy.number, 6, 7)]
    again = DRAIN_S + DRAIN_PAUSE_S
    assert drain(group, 20, again) == [], "it is tried again"
    for number, each in list(busy.deliveries.items()):
        for held in each.held.ranges():
            group.acknowledge(busy.number, number, *held, again)
    assert drain(group, 20, again) == [(busy.number, 1, 1)]


def test_who_deals_with_what_it_has_is_emptied_however_long_that_takes() -> None:
    group = Group(0, (), rules=Rules(max_attempts=2))
    busy = join(group, 8)
    assert drain(group, 4) == [(busy.number, 0, 3)]
    group.resize(busy.number, 4)
    lose(group, 2, 6)
    group.resize(busy.number, 8)
    now = 0.0
    for offset in range(4):
        assert drain(group, 9, now) == []
        due = group.next_due(now)
        assert due == now + DRAIN_S
        now = due - 1.0
        group.acknowledge(busy.number, 1, offset, offset, now)
    assert drain(group, 9, now) == [(busy.number, 4, 4)]


def test_what_was_delivered_more_often_does_not_wait_behind_it() -> None:
    """A dead letter that cannot be written comes again and again."""
    group = Group(0, (), rules=Rules(max_attempts=2))
    busy, other = join(group, 4), join(group, 4)
    assert drain(group, 8) == [(1, 0, 3), (2, 4, 7)]
    lose(group, 2, 10)
    group.acknowledge(other.number, 2, 4, 5)
    group.put_back(Exhausted(5, 5, 4, "refused"), 0.0)
    group.acknowledge(busy.number, 1, 0, 0)
    assert [each[1:] for each in drain(group, 10)] == [(5, 5)]


def test_a_batch_that_was_begun_ends_for_it() -> None:
    group = Group(0, (), rules=Rules(max_attempts=2))
    lose(group, 2, 2)
    batched = join(group, 100, size=3)
    assert drain(group, 2) == [(batched.number, 0, 0)]
    assert group.acknowledge(batched.number, 3, 0, 0)
    group.put_back(Exhausted(0, 0, 1, "refused"), 0.0)
    other = join(group)
    assert drain(group, 2) == [(batched.number, 0, 0), (other.number, 1, 1)]
    assert group.rest() == [batched.number]


def test_a_batch_that_is_apart_has_one_record() -> None:
    group = Group(0, (), rules=Rules(max_attempts=2))
    lose(group, 2, 3)
    member = join(group, 100, size=10, wait_s=60.0)
    given = deliver(group, 3)
    assert given is not None
    assert (given.member, given.first, given.last, given.ends_batch) == (member.number, 0, 0, True)
    assert deliver(group, 3) is None


def test_the_only_attempt_is_the_only_one() -> None:
    group = Group(0, (), rules=Rules(max_attempts=1))
    member = join(group)
    drain(group, 3)
    assert group.leave(member.number, 0.0).exhausted == [Exhausted(0, 2, 1, GONE)]
