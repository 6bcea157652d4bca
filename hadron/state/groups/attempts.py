"""How often records of a group were delivered in vain: ranges of offsets with one number.

Written when a delivery ends without an acknowledgement (PROTOCOL D2), and gone with the record's
acknowledgement, so there are rows only for records that were given back and are not dealt with.
Ranges of a group never overlap; neighbours with the same number are one row.
"""

from __future__ import annotations

from typing import Final

from hadron.model.ports import Database
from hadron.model.tables import PREFIX
from hadron.state.machine import Feature

GROUP_ATTEMPT: Final = PREFIX + "group_attempt"

_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {GROUP_ATTEMPT}(
    group_id INTEGER NOT NULL,
    first INTEGER NOT NULL,             -- not acknowledged, both ends inclusive;
    last INTEGER NOT NULL,              -- ranges do not overlap
    attempts INTEGER NOT NULL,          -- deliveries that have ended
    PRIMARY KEY (group_id, first)
) STRICT, WITHOUT ROWID;
"""

_DELETE: Final = f"DELETE FROM {GROUP_ATTEMPT} WHERE group_id = ? AND first = ?"
_INSERT: Final = f"INSERT INTO {GROUP_ATTEMPT} VALUES(?, ?, ?, ?)"
_DELETE_WITHIN: Final = (
    f"DELETE FROM {GROUP_ATTEMPT} WHERE group_id = ? AND first >= ? AND first <= ?"
)
_CUT: Final = f"UPDATE {GROUP_ATTEMPT} SET last = ? WHERE group_id = ? AND first = ?"
_AT_OR_BELOW: Final = (
    f"SELECT first, last, attempts FROM {GROUP_ATTEMPT} WHERE group_id = ? AND first <= ?"
    " ORDER BY first DESC LIMIT 1"
)
_ANY: Final = f"SELECT 1 FROM {GROUP_ATTEMPT} WHERE group_id = ? LIMIT 1"
_ABOVE: Final = (
    f"SELECT first, last, attempts FROM {GROUP_ATTEMPT} WHERE group_id = ? AND first > ?"
    " ORDER BY first LIMIT ?"
)

Attempts = tuple[int, int, int]
"""First and last offset, both inclusive, and how many of their deliveries have ended."""


def record(db: Database, group_id: int, first: int, last: int, attempts: int) -> None:
    """Note that so many deliveries of first … last have ended, whatever was noted before."""
    clear(db, group_id, first, last)
    before = _at_or_below(db, group_id, first - 1)
    after = _at_or_below(db, group_id, last + 1)
    if before is not None and before[1:] == (first - 1, attempts):
        first = before[0]
        db.execute(_DELETE, (group_id, first))
    if after is not None and (after[0], after[2]) == (last + 1, attempts):
        db.execute(_DELETE, (group_id, last + 1))
        last = after[1]
    db.execute(_INSERT, (group_id, first, last, attempts))


def clear(db: Database, group_id: int, first: int, last: int) -> None:
    """Forget what was noted of first … last."""
    below = _at_or_below(db, group_id, first - 1)
    above = _at_or_below(db, group_id, last)
    if above is None or above[1] < first:
        return
    db.execute(_DELETE_WITHIN, (group_id, first, last))
    if below is not None and below[1] >= first:
        db.execute(_CUT, (first - 1, group_id, below[0]))
    if above[1] > last:
        db.execute(_INSERT, (group_id, last + 1, above[1], above[2]))


def _at_or_below(db: Database, group_id: int, offset: int) -> Attempts | None:
    """The range with the highest first offset that is not above `offset`."""
    row = db.execute(_AT_OR_BELOW, (group_id, offset)).fetchone()
    return None if row is None else (row[0], row[1], row[2])


FEATURE: Final = Feature(name="attempts", tables=_TABLES)


# --- reading ------------------------------------------------------------------------------------


def any_of(db: Database, group_id: int) -> bool:
    """Whether anything is noted of a group."""
    row = db.execute(_ANY, (group_id,)).fetchone()
    return row is not None


def from_offset(db: Database, group_id: int, offset: int, limit: int) -> list[Attempts]:
    """What is noted at and above `offset`, the lowest `limit` ranges."""
    found: list[Attempts] = []
    covering = _at_or_below(db, group_id, offset)
    if covering is not None and covering[1] >= offset:
        found.append((offset, covering[1], covering[2]))
    rows = db.execute(_ABOVE, (group_id, offset, limit - len(found)))
    return found + [(first, last, attempts) for first, last, attempts in rows]
