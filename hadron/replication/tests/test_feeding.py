"""What a leader knows of its members, and what its node knows to be committed from that."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest
from trio.testing import MockClock

from hadron.model.errors import FencedError
from hadron.model.ids import EMPTY_LOG, Ballot
from hadron.replication.feeding import Feeding, Tuning
from hadron.replication.watermark import Watermark
from hadron.wire.connection import Cork

STARTED, END, KNOWN = 5, 9, 3
BALLOT = Ballot(1, 2)


class Leading:
    """n1 of three, whose log has entries up to `END`; up to `KNOWN` they were committed before."""

    def __init__(self, started: int = STARTED) -> None:
        before = EMPTY_LOG._replace(lsn=started - 1)
        store: Any = SimpleNamespace(log=SimpleNamespace(head=before, anchor=EMPTY_LOG))
        self.watermark = Watermark(KNOWN)
        self.moved = 0
        self.feeding = Feeding(
            store,
            self.watermark,
            ballot=BALLOT,
            node="n1",
            members=("n1", "n2", "n3"),
            started_lsn=started,
            cork=Cork(),
            tuning=Tuning(idle_notice_s=0.005),
        )
        self.feeding.head = before._replace(lsn=max(started, END))
        self.feeding.quorum.admit("n2")
        self.feeding.on_moved = self._count

    def _count(self) -> None:
        self.moved += 1


def test_a_watermark_never_goes_back() -> None:
    watermark = Watermark(7)
    for lsn in (7, 8, 9):
        watermark.rise(lsn)
        assert watermark.lsn == lsn
    with pytest.raises(AssertionError):
        watermark.rise(8)
    assert watermark.lsn == 9


def test_what_was_known_stays_known_until_the_first_entry_is_committed() -> None:
    made = Leading()
    assert made.feeding.settle() == 0
    assert made.watermark.lsn == KNOWN
    made.feeding.note_own(END)
    made.feeding.peer_persisted("n2", STARTED - 1, 0)
    assert (made.feeding.settle(), made.watermark.lsn, made.moved) == (0, KNOWN, 0)
    made.feeding.peer_persisted("n2", END, 0)
    assert made.moved == 1
    assert made.watermark.lsn == KNOWN, "nobody has been told yet"
    assert made.feeding.settle() == made.watermark.lsn == END


def test_a_late_answer_counts_for_nothing() -> None:
    made = Leading()
    made.feeding.note_own(END)
    made.feeding.stop()
    made.feeding.peer_persisted("n2", END, END)
    made.feeding.peer_granted("n3")
    assert (made.feeding.committed_lsn, made.moved) == (0, 0)
    assert not made.feeding.quorum.is_voter("n3")
    with pytest.raises(AssertionError):
        made.feeding.settle()
    assert made.watermark.lsn == KNOWN


def test_a_higher_promise_is_told_and_an_equal_one_is_not() -> None:
    made, told = Leading(), list[FencedError]()
    made.feeding.on_fenced = told.append
    made.feeding.peer_fenced("n2", BALLOT)
    assert not told
    made.feeding.peer_fenced("n2", Ballot(2, 1))
    assert "n2 has promised ballot" in told[0].message


def test_a_late_promise_ends_no_later_ballot() -> None:
    """What it would end is this node's next leadership, which the promise may be for."""
    made, told = Leading(), list[FencedError]()
    made.feeding.on_fenced = told.append
    made.feeding.stop()
    made.feeding.peer_fenced("n2", Ballot(1, 3))
    assert not told


async def test_bodies_behind_its_copy_are_kept_for_who_fetches_one(mock_clock: MockClock) -> None:
    made = Leading()
    feeding = made.feeding
    feeding.note_own(END)
    feeding.peer_persisted("n2", END, END)
    assert feeding.droppable_lsn == END
    assert feeding.note_straggler("n3", "a body is gone")
    feeding.head = feeding.head._replace(lsn=END + 10)
    feeding.note_own(END + 10)
    # An answer that was on its way: it is not there yet.
    for name, lsn in ("n2", END + 10), ("n3", 2):
        feeding.settle()
        feeding.peer_persisted(name, lsn, lsn)
    assert feeding.droppable_lsn == END
    # Told again and again while it is connected; then it is away, to be reopened on its copy.
    mock_clock.jump(29.0)
    assert not feeding.note_straggler("n3", "a body is gone")
    mock_clock.jump(29.0)
    assert feeding.droppable_lsn == END
    mock_clock.jump(1.0)
    assert feeding.droppable_lsn == END + 10, "it has gone"
    feeding.note_straggler("n3", "a body is gone")
    assert feeding.droppable_lsn == END
    feeding.peer_persisted("n3", END, END)
    assert (feeding.droppable_lsn, feeding.needs_snapshot) == (END + 10, {})


async def test_nobody_who_fetches_a_copy_is_waited_for_beyond_the_lag_limit() -> None:
    made = Leading()
    feeding = made.feeding
    feeding.note_straggler("n3", "a body is gone")
    feeding.head = feeding.head._replace(lsn=END + 10)
    feeding.note_own(END + 10)
    feeding.peer_persisted("n2", END + 10, 0)
    for lsn in range(1, END + 11):
        feeding._horizon.add(lsn, feeding.tuning.log_max_lag_bytes // 2)
    assert feeding.droppable_lsn == END + 8


async def test_a_long_log_is_measured_without_a_list_of_its_rows() -> None:
    rows, size = 200_000, 5_000

    async def sizes(read: Any) -> list[tuple[int, int]]:
        first, count = read.keywords["from_lsn"], read.keywords["max_rows"]
        return [(lsn, size) for lsn in range(first, min(first + count, rows))]

    made = Leading(rows)
    made.feeding._store.readers = SimpleNamespace(run=sizes)  # type: ignore[assignment]
    tracemalloc.start()
    try:
        await made.feeding.measure_log()
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert made.moved == 1
    horizon = made.feeding._horizon
    horizon.move(committed=rows, on_all=rows)
    kept = (rows - 1 - horizon.lsn) * size
    assert Tuning(0).log_keep_bytes <= kept < Tuning(0).log_keep_bytes + (2 << 20)
