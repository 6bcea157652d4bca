"""What transactions hold on a leader, and who hears of it."""

from __future__ import annotations

from typing import Any

import pytest

from hadron.model.errors import ConflictError, OverloadedError
from hadron.model.transactions import DELIVERIES, STAGES, Lock, TransactionId
from hadron.partition.observers import Observers, Order
from hadron.serving import lock_table
from hadron.serving.lock_table import LockTable
from hadron.state.pipelines.events import StagesEnded
from hadron.state.transactions.events import (
    IntentsWritten,
    RecordsAcknowledged,
    TransactionAborted,
    TransactionFinished,
)
from hadron.state.transactions.locks import HeldLock

A, B = TransactionId("local/p1", 1, 7, 1), TransactionId("local/p1", 1, 7, 2)


def of_group(*ranges: tuple[int, int]) -> Lock:
    return Lock(DELIVERIES, 5, "", ranges)


class Heard:
    """A table, and what it told."""

    def __init__(self, *held: HeldLock) -> None:
        self.told: list[Any] = []
        self.observers = Observers()
        self.table = LockTable(held, lambda: 1_000)
        self.table.observe(self.observers)
        self.table.listen(
            DELIVERIES,
            lambda transaction, lock: self.told.append(("taken", transaction, lock.ranges)),
            lambda transaction, lock: self.told.append(("freed", transaction, lock.ranges)),
        )
        self.table.on_acknowledged(lambda event: self.told.append(("over", event.ranges)))

    @property
    def held(self) -> list[tuple[int, int, TransactionId]]:
        return [(a, b, holder.transaction) for a, b, holder in self.table.held(DELIVERIES, 5)]


def test_a_leader_begins_with_what_the_tables_have() -> None:
    heard = Heard(HeldLock(A, 400, of_group((3, 4))), HeldLock(B, 300, of_group((9, 9))))
    assert heard.held == [(3, 4, A), (9, 9, B)]
    summary = heard.table.summary(DELIVERIES, 5)
    assert summary.oldest is not None
    assert (summary.size, summary.oldest.transaction, summary.oldest.since_ms) == (3, B, 300)
    assert heard.table.summary(DELIVERIES, 6) == (0, None)
    with pytest.raises(ConflictError, match=r"transaction local/p1/1\.7/1 holds offsets 3 to 4 of"):
        heard.table.check_free(of_group((0, 9)))
    heard.table.check_free(of_group((3, 4)), A)
    heard.table.check_free(of_group((5, 8)))


def test_it_knows_what_is_locked_before_any_driver_hears_of_it() -> None:
    observers, table = Observers(), LockTable((), lambda: 500)
    seen: list[int] = []
    observers.add(
        Order.DRIVERS, [IntentsWritten], lambda _: seen.append(len(table.held(DELIVERIES, 5)))
    )
    table.observe(observers)
    observers.tell([IntentsWritten(A, (of_group((0, 3)),))])
    assert seen == [1]


def test_events_are_told_in_the_order_of_the_log() -> None:
    heard = Heard()
    heard.observers.tell(
        [
            IntentsWritten(A, (of_group((0, 3)),)),
            RecordsAcknowledged(5, ((0, 3),), 4),
            TransactionFinished(A, (of_group((0, 3)),)),
            IntentsWritten(B, (of_group((4, 5)),)),
            TransactionAborted(B, (of_group((4, 5)),)),
            IntentsWritten(A, (of_group((5, 5)),)),
        ]
    )
    assert heard.told == [
        ("taken", A, ((0, 3),)),
        ("over", ((0, 3),)),
        ("freed", A, ((0, 3),)),
        ("taken", B, ((4, 5),)),
        ("freed", B, ((4, 5),)),
        ("taken", A, ((5, 5),)),
    ]
    assert heard.held == [(5, 5, A)]


def test_what_one_wants_another_cannot_want_but_the_log_may_give_it() -> None:
    heard = Heard()
    assert heard.table.take(A, [of_group((0, 3))]) == [of_group((0, 3))]
    assert heard.table.take(A, [of_group((2, 5))]) == [of_group((4, 5))], "what it had not"
    with pytest.raises(ConflictError):
        heard.table.take(B, [of_group((8, 8)), of_group((3, 3))])
    assert heard.held == [(0, 3, A), (4, 5, A)], "all or nothing"
    heard.observers.tell([IntentsWritten(B, (of_group((3, 4)),))])
    assert heard.held == [(0, 2, A), (3, 4, B), (5, 5, A)]
    heard.table.free(A, [of_group((0, 5))])
    assert heard.held == [(3, 4, B)]


def test_a_stage_that_has_ended_is_nobodys() -> None:
    heard = Heard()
    heard.table.take(A, [Lock(STAGES, 8, "enrich", ((1, 3),)), Lock(STAGES, 8, "x", ((1, 1),))])
    heard.observers.tell([StagesEnded(8, "enrich", (2, 3), by_runner=True)])
    assert heard.table.of_owner(STAGES, 8) == [
        (A, Lock(STAGES, 8, "enrich", ((1, 1),))),
        (A, Lock(STAGES, 8, "x", ((1, 1),))),
    ]
    assert heard.told == []


def test_what_transactions_hold_is_bounded_for_each_driver_and_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lock_table, "MAX_HELD", 20)
    heard = Heard()
    table = heard.table
    of_other = TransactionId("local/p2", 1, 7, 1)
    taken = table.take(A, [of_group(*[(n, n) for n in range(0, 20, 2)])])
    with pytest.raises(OverloadedError, match=r"p1 drives hold 10 ranges .* of all 14; .* 10 and"):
        table.take(B, [of_group((30, 30))])
    assert table.take(A, [of_group((2, 2))]) == [], "a copy takes nothing"
    table.take(of_other, [of_group(*[(n, n) for n in range(40, 52, 2)])])
    with pytest.raises(OverloadedError, match=r"of all 20; .* wants 1 more"):
        table.take(of_other, [of_group((70, 70))])
    # What the log has given counts, whether there is room or not, and so does what is left of it.
    heard.observers.tell([IntentsWritten(of_other, (of_group((100, 200)),))])
    heard.observers.tell([RecordsAcknowledged(5, ((150, 150),), 0)])
    table.free(A, taken)
    with pytest.raises(OverloadedError, match=r"p2 drives hold 8 ranges .* of all 12;"):
        table.take(of_other, [of_group(*[(n, n) for n in range(300, 306, 2)])])
    heard.observers.tell([TransactionFinished(of_other, (of_group((0, 999)),))])
    table.take(A, [of_group(*[(n, n) for n in range(0, 20, 2)])])
