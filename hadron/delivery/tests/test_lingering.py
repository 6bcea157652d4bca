"""Little credit waits a moment for more, and not for ever (GROUPS G14)."""

from __future__ import annotations

from hadron.delivery.machine import Group
from hadron.delivery.patience import LINGER_S
from hadron.delivery.tests.test_rules import drain, join


def test_a_free_hand_gets_its_record_while_the_others_are_at_long_jobs() -> None:
    group = Group(0, ())
    worker = join(group, 8)
    assert drain(group, 100, 1.0) == [(1, 0, 7)]
    group.acknowledge(worker.number, 1, 3, 3, 2.0)
    assert drain(group, 100, 2.0) == []
    due = group.next_due(2.0)
    assert due == 2.0 + LINGER_S
    assert drain(group, 100, due) == [(1, 8, 8)]
    assert group.next_due(due) is None, "all hands are full: no timer runs"


def test_what_is_a_quarter_is_given_at_once() -> None:
    group = Group(0, ())
    worker = join(group, 8)
    drain(group, 100, 1.0)
    for offset in (3, 4):
        group.acknowledge(worker.number, 1, offset, offset, 2.0)
    assert drain(group, 100, 2.0) == [(1, 8, 9)]


def test_who_has_lingered_waits_for_records_without_a_timer() -> None:
    group = Group(0, ())
    worker = join(group, 8)
    drain(group, 8, 1.0)
    group.acknowledge(worker.number, 1, 0, 0, 2.0)
    due = group.next_due(2.0)
    assert due is not None
    assert drain(group, 8, due) == []
    assert group.next_due(due) is None
    assert drain(group, 9, due + 5) == [(1, 8, 8)], "and gets them at once when they come"


def test_who_is_gone_or_does_not_read_runs_no_timer() -> None:
    group = Group(0, ())
    reads = [True]
    worker = group.join(8, lambda: reads[0])
    drain(group, 100, 1.0)
    group.acknowledge(worker.number, 1, 0, 0, 2.0)
    due = group.next_due(2.0)
    assert due is not None
    reads[0] = False
    assert drain(group, 100, due) == []
    assert group.next_due(due) is None
    group.leave(worker.number, due)
    assert group.next_due(due) is None


def test_a_batch_waits_for_its_size_as_it_is_to() -> None:
    group = Group(0, ())
    worker = join(group, 8, size=4, wait_s=1.0)
    assert drain(group, 100, 1.0) == [(1, 0, 3), (1, 4, 7)]
    group.acknowledge(worker.number, 1, 0, 2, 2.0)
    assert drain(group, 100, 2.0) == []
    assert group.next_due(2.0) is None
