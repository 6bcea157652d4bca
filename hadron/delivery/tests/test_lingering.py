"""Little credit waits a moment for more, and not for ever (GROUPS G14)."""

from __future__ import annotations

import pytest

from hadron.delivery.effects import Rules
from hadron.delivery.machine import Group
from hadron.delivery.patience import BATCH_LINGERS, LINGER_S
from hadron.delivery.tests.test_rules import drain, join
from hadron.model.transactions import TransactionId


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


def test_who_keeps_one_record_of_a_batch_gets_all_else() -> None:
    """What is kept leaves no room for a batch: a smaller one comes after some seconds."""
    group = Group(0, ())
    worker = join(group, 8, size=8)
    assert drain(group, 100, 1.0) == [(1, 0, 7)]
    group.acknowledge(worker.number, 1, 1, 7, 2.0)
    now = 2.0
    while not (found := drain(group, 100, now)):
        due = group.next_due(now)
        assert due is not None
        assert due <= now + LINGER_S + 1e-9
        now = due
    assert found == [(1, 8, 14)]
    assert now == pytest.approx(2.0 + BATCH_LINGERS * LINGER_S)
    assert group.next_due(now) is None


def test_who_deals_with_records_in_transactions_is_tried_no_more() -> None:
    group = Group(0, (), rules=Rules(deadline_s=1.0))
    worker = join(group, 4)
    drain(group, 8, 0.0)
    group.expire(1.0)
    assert worker.is_stalled
    [(number, first, last)] = drain(group, 8, 1.0)
    assert (number, first, last) == (1, 4, 4)
    group.take(TransactionId("local/p0", 1, 1, 9), [(4, 4)], 1.5)
    group.finish([(4, 4)], 1.5)
    assert not worker.is_stalled
