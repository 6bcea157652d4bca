"""Under which ballots records were written."""

from __future__ import annotations

import pytest

from hadron.fakes.tables import SET, Replicated
from hadron.model.ids import Ballot
from hadron.model.schema import StreamSpec
from hadron.state.streams.ballots import ballot_at, ballot_ends
from hadron.state.streams.partitions import AppendBatch, PartitionBounds
from hadron.state.streams.retention import TrimStream

BALLOTS = [Ballot(1, 1), Ballot(1, 4), Ballot(3, 2)]


@pytest.fixture
def tables() -> Replicated:
    """A stream with records 0 to 4 of the first ballot, 5 to 7 of the next, 8 of the last."""
    tables = Replicated()
    tables.declare(("Stream", "flights", StreamSpec(partitions=(SET,))))
    for ballot, counts in zip(BALLOTS, ((3, 2), (1, 1, 1), (1,)), strict=True):
        tables.ballot = ballot
        for count in counts:
            tables.submit(AppendBatch(1, count, 100, b"", 0, -1))
    return tables


def test_the_ballot_of_the_batch_that_holds_a_record(tables: Replicated) -> None:
    known = [ballot_at(tables.db, 1, offset) for offset in range(10)]
    assert known == [BALLOTS[0]] * 5 + [BALLOTS[1]] * 3 + [BALLOTS[2], None]
    assert ballot_at(tables.db, 7, 0) is None


def test_where_the_records_of_each_ballot_end(tables: Replicated) -> None:
    first, second, third = zip(BALLOTS, (5, 8, 9), strict=True)
    for limits, most, found in (
        ((0, 9), 9, [third, second, first]),
        ((0, 9), 2, [third, second]),
        ((0, 8), 9, [second, first]),
        ((0, 7), 9, [(BALLOTS[1], 7), first]),
        ((5, 9), 9, [third, second]),
        ((9, 9), 9, []),
    ):
        assert ballot_ends(tables.db, 1, PartitionBounds(*limits), most) == found


@pytest.mark.parametrize(("kept", "ballots"), [(2, 3), (5, 2), (6, 2), (8, 1), (9, 0)])
def test_retention_may_be_at_work(tables: Replicated, kept: int, ballots: int) -> None:
    """What was known to be there is just being dropped."""
    tables.submit(TrimStream(1, kept))
    known = list(zip(BALLOTS, (5, 8, 9), strict=True))[::-1]
    assert ballot_ends(tables.db, 1, PartitionBounds(0, 9), 9) == known[:ballots]
