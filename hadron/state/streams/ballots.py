"""Under which ballots the records of a stream were written, for those who remember records by that
(PROTOCOL D2, D4). Ballots never go back in a log, so they are searched like a sorted list."""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from typing import Final

from hadron.model.ids import Ballot
from hadron.model.ports import Database
from hadron.state.streams.partitions import PartitionBounds
from hadron.state.streams.tables import STREAM_BATCH

_BALLOT_AT: Final = (
    f"SELECT epoch, incarnation FROM {STREAM_BATCH} WHERE stream_id = ? AND base_offset ="
    f" (SELECT max(base_offset) FROM {STREAM_BATCH} WHERE stream_id = ? AND base_offset <= ?)"
    " AND base_offset + count > ?"
)


def ballot_at(db: Database, stream_id: int, offset: int) -> Ballot | None:
    """Of the batch that holds a record; None when it is not here."""
    row = db.execute(_BALLOT_AT, (stream_id, stream_id, offset, offset)).fetchone()
    return Ballot(*row) if row is not None else None


def ballot_ends(
    db: Database, stream_id: int, limits: PartitionBounds, most: int
) -> list[tuple[Ballot, int]]:
    """The latest ballots, `most` of them, of records within `limits`; each with the offset behind
    its last one."""
    first, end = limits
    found: list[tuple[Ballot, int]] = []
    while end > first and len(found) < most:
        ballot = ballot_at(db, stream_id, end - 1)
        if ballot is None:  # Retention has been here meanwhile.
            break
        assert not found or ballot < found[-1][0], (stream_id, ballot, found)
        found.append((ballot, end))
        is_of = partial(_is_of, db, stream_id, ballot)
        end = first + bisect_left(range(first, end), True, key=is_of)
    return found


def _is_of(db: Database, stream_id: int, ballot: Ballot, offset: int) -> bool:
    return ballot_at(db, stream_id, offset) == ballot
