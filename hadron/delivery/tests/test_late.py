"""Late acknowledgements: of who had a record under an earlier leader (PROTOCOL D2)."""

from __future__ import annotations

from hadron.delivery.effects import Rules
from hadron.delivery.machine import Group
from hadron.delivery.tests.test_rules import drain, join
from hadron.model.ranges import size


def test_they_count_where_nobody_holds_the_record() -> None:
    group = Group(0, [(6, 6)])
    join(group, 4)
    drain(group, 8)
    assert group.acknowledge_late(0, 7) == [(4, 5), (7, 7)], "0 to 3 are in flight"
    assert drain(group, 10) == []
    group.leave(1, 0.0)
    assert group.acknowledge_late(2, 5) == [(2, 3)]
    join(group)
    assert drain(group, 10) == [(2, 0, 1), (2, 8, 9)]


def test_keys_wait_for_those_that_nobody_has_looked_at() -> None:
    group = Group(0, (), rules=Rules(is_by_key=True))
    assert group.acknowledge_late(0, 3) == [(0, 3)]
    join(group)
    assert drain(group, 8) == [], "they are not committed"
    group.settled([(0, 3)], 0.0)
    assert drain(group, 8) == [(1, 4, 6)], "keys 2, none and 1"


def test_what_is_in_line_counts_and_holds_its_turn_until_it_is_committed() -> None:
    """Of key 2, offset 1 is in flight, 4 and 7 are behind it: whoever had 4 under an earlier
    leader is done with it. Were 7 given out before that is committed, 4 could come after it
    (GROUPS G3)."""
    group = Group(0, (), rules=Rules(is_by_key=True))
    member = join(group)
    drain(group, 8)
    assert group.acknowledge_late(4, 4) == [(4, 4)]
    assert group.acknowledge_late(4, 4) == [], "it counts once"
    group.acknowledge(member.number, 1, 1, 1)
    group.settled([(1, 1)], 0.0)
    assert drain(group, 8) == [], "4 is not committed"
    group.settled([(4, 4)], 0.0)
    assert drain(group, 8) == [(1, 7, 7)]


def test_what_is_in_line_may_be_committed_before_its_turn_and_with_it() -> None:
    for commits in ([[(4, 4)], [(1, 1)]], [[(1, 1), (4, 4)]], [[(4, 4), (1, 1)]]):
        group = Group(0, (), rules=Rules(is_by_key=True))
        member = join(group)
        drain(group, 8)
        group.acknowledge(member.number, 1, 1, 1)
        assert group.acknowledge_late(4, 4) == [(4, 4)]
        for ranges in commits:
            assert not any(first == 7 for _, first, _ in drain(group, 8))
            group.settled(ranges, 0.0)
        assert (1, 7, 7) in drain(group, 8)
        assert group.keys is not None
        assert group.keys.behind == 1, "6, behind 3"


def test_what_was_given_back_and_holds_its_key_counts_and_frees_it() -> None:
    group = Group(0, (), rules=Rules(is_by_key=True))
    member = join(group)
    drain(group, 8)
    group.refuse(member.number, 1, 1, 1, now=0.0, delay_s=9.0)
    assert group.acknowledge_late(1, 1) == [(1, 1)]
    assert drain(group, 8, 9.0) == [], "it is not committed"
    group.settled([(1, 1)], 9.0)
    assert drain(group, 8, 9.0) == [(1, 4, 4)]


def test_what_becomes_a_dead_letter_does_not_and_holds_its_key_until_it_is_one() -> None:
    group = Group(0, (), rules=Rules(is_by_key=True, max_attempts=1))
    member = join(group)
    drain(group, 8)
    dead = group.refuse(member.number, 1, 1, 1, now=0.0).exhausted
    assert [(each.first, each.last) for each in dead] == [(1, 1)]
    assert group.acknowledge_late(1, 1) == []
    assert drain(group, 8) == []
    group.settled([(1, 1)], 0.0)
    assert drain(group, 8) == [(1, 4, 4)]


def test_retention_takes_what_is_in_line_and_acknowledged() -> None:
    group = Group(0, (), rules=Rules(is_by_key=True))
    member = join(group)
    drain(group, 16)
    assert group.acknowledge_late(4, 7) == [(4, 4), (6, 7)]
    group.skip_below(8, 0.0)
    group.refuse(member.number, 1, 0, 3, now=0.0, delay_s=0.0)
    group.settled([(4, 4), (6, 7)], 0.0)
    assert drain(group, 16) == [(1, 8, 9), (1, 13, 13)], "the next of keys 3, 1 and 2"


def test_many_in_line_are_found_wherever_they_are() -> None:
    group = Group(0, (), rules=Rules(is_by_key=True))
    member = join(group, 10_000)
    drain(group, 4_000)
    assert group.keys is not None
    behind = group.keys.behind
    late = 0
    for first in range(2_000, 4_000, 50):
        counted = group.acknowledge_late(first, first + 9)
        late += size(counted)
        group.settled(counted, 0.0)
    assert 200 < late < 400, "those without a key are in flight"
    assert group.keys.behind == behind - late
    seen: list[int] = []
    while found := list(member.deliveries.values()):
        for delivery in found:
            for a, b in delivery.held.ranges():
                seen += range(a, b + 1)
                group.settled(group.acknowledge(1, delivery.number, a, b), 0.0)
        drain(group, 4_000)
    assert len(seen) == len(set(seen)) == 4_000 - late
    assert (group.keys.behind, group.unsettled) == (0, 0)
