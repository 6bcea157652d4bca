"""What statements claim before any table has it: held once, and let go when nothing comes of it."""

from __future__ import annotations

import pytest

from hadron.model.errors import ConflictError
from hadron.model.ranges import Range
from hadron.model.transactions import DELIVERIES, Lock, TransactionId
from hadron.partition.observers import Observers
from hadron.serving.lock_table import LockTable
from hadron.state.transactions.events import IntentsWritten, RecordsAcknowledged, TransactionAborted
from hadron.transactions.claims import HOME, Claims

ONE, OTHER = TransactionId("eu/p0", 1, 1, 1), TransactionId("us/p0", 1, 1, 1)


class Ground:
    """Claims over a table of locks, and the log that tells both what has become visible."""

    def __init__(self) -> None:
        self.observers = Observers()
        self.locks = LockTable((), lambda: 0)
        self.locks.observe(self.observers)
        self.claims = Claims(self.locks)
        self.claims.observe(self.observers)

    @property
    def held(self) -> list[tuple[int, int, TransactionId]]:
        return [(a, b, who.transaction) for a, b, who in self.locks.held(DELIVERIES, 7)]


def lock(*ranges: Range) -> Lock:
    return Lock(DELIVERIES, 7, "", ranges)


@pytest.fixture
def ground() -> Ground:
    return Ground()


def test_what_is_refused_is_let_go(ground: Ground) -> None:
    ground.claims.claim((ONE, 0), [lock((0, 4))])
    assert ground.held == [(0, 4, ONE)]
    with pytest.raises(ConflictError, match=str(ONE)):
        ground.claims.claim((OTHER, 0), [lock((4, 5))])
    ground.claims.settle((OTHER, 0))
    assert ground.held == [(0, 4, ONE)]
    ground.claims.settle((ONE, 0))
    assert ground.held == []
    ground.claims.claim((OTHER, 0), [lock((4, 5))])


def test_what_the_log_has_is_not_let_go_with_the_claim(ground: Ground) -> None:
    ground.claims.claim((ONE, 0), [lock((0, 4)), lock((6, 6))])
    ground.claims.claim((ONE, 2), [lock((8, 9))])
    ground.observers.tell([IntentsWritten(ONE, (lock((0, 4), (6, 6)),))])
    ground.claims.settle((ONE, 0))
    ground.claims.settle((ONE, 2))
    assert ground.held == [(0, 4, ONE), (6, 6, ONE)]
    ground.observers.tell([TransactionAborted(ONE, (lock((0, 4), (6, 6)),))])
    assert ground.held == []
    assert not len(ground.claims)


def test_a_copy_claims_nothing_that_it_could_let_go(ground: Ground) -> None:
    ground.claims.claim((ONE, 0), [lock((0, 4))])
    ground.observers.tell([IntentsWritten(ONE, (lock((0, 4)),))])
    ground.claims.settle((ONE, 0))
    ground.claims.claim((ONE, 0), [lock((0, 4))])
    ground.claims.settle((ONE, 0))
    assert ground.held == [(0, 4, ONE)]


def test_a_copy_of_what_is_over_leaves_nothing(ground: Ground) -> None:
    """It was done before: nothing is written, so no event says that."""
    ground.claims.claim((ONE, 0), [lock((0, 4))])
    ground.observers.tell([IntentsWritten(ONE, (lock((0, 4)),))])
    ground.claims.settle((ONE, 0))
    ground.observers.tell([TransactionAborted(ONE, (lock((0, 4)),))])
    ground.claims.claim((ONE, 0), [lock((0, 4))])
    ground.claims.settle((ONE, 0))
    assert ground.held == []


def test_what_is_decided_here_is_over_with_its_events(ground: Ground) -> None:
    ground.claims.claim((ONE, HOME), [lock((0, 4))])
    ground.claims.claim((ONE, HOME), [lock((3, 9))])
    assert ground.held == [(0, 4, ONE), (5, 9, ONE)]
    ground.observers.tell([RecordsAcknowledged(7, ((0, 9),), 10)])
    assert ground.held == []
    ground.claims.claim((OTHER, 0), [lock((3, 9))])
    ground.claims.settle((ONE, HOME))
    assert ground.held == [(3, 9, OTHER)]
    assert len(ground.claims) == 1
