"""What the tables say of groups, for people: a page of summaries, their counts in slices.

A module of its own because nothing that `apply` does reads any of this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hadron.model.ports import Database
from hadron.state.groups.progress import GROUP, GROUP_ACK, WINDOW_ROWS, GroupOptions
from hadron.state.streams.skips import RETENTION_SKIP
from hadron.state.streams.tables import STREAM_BATCH, STREAM_PARTITION

COUNT_ROWS: Final = 16_384
"""Ranges that are counted in one read: one to two milliseconds."""


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """`oldest_append_ms` is of the record at the floor, 0 when all are acknowledged; `skipped` are
    records that retention dropped before the group had come to them. `counted_to` is None, or the
    offset up to which `acknowledged_above` has been counted: `count_above` goes on."""

    group_id: int
    stream_id: int
    name: str
    floor: int
    acknowledged_above: int
    next_offset: int
    created_ms: int
    dead_lettered: int
    oldest_append_ms: int
    skipped: int
    options: GroupOptions
    counted_to: int | None = None


def count_above(
    db: Database, group_id: int, after: int, rows: int = COUNT_ROWS
) -> tuple[int, int | None]:
    """Records of the next ranges that begin behind offset `after`, `rows` ranges at most; and where
    the last one of those begins, None when no more follow."""
    row = db.execute(
        "SELECT count(*), coalesce(sum(last - first + 1), 0), max(first) FROM (SELECT first, last"
        f" FROM {GROUP_ACK} WHERE group_id = ? AND first > ? ORDER BY first LIMIT ?)",
        (group_id, after, rows),
    ).fetchone()
    assert row is not None
    count, records, last = row
    return records, last if count == rows else None


def summaries(
    db: Database,
    stream_id: int | None = None,
    name: str | None = None,
    *,
    after: tuple[int, str] = (0, ""),
    limit: int = -1,
) -> list[GroupSummary]:
    """Groups by stream's id and name, without their ranges: all, or those of one stream, or the one
    with that name; behind `after`, and so many at most."""
    terms = [("g.stream_id = ?", stream_id), ("g.name = ?", name)]
    wanted = [(term, value) for term, value in terms if value is not None]
    where = " AND ".join(["(g.stream_id, g.name) > (?, ?)", *(term for term, _ in wanted)])
    rows = db.execute(
        "SELECT g.group_id, g.stream_id, g.name, g.floor, p.next_offset, g.created_ms,"
        " g.dead_lettered,"
        f" CASE WHEN g.floor < p.next_offset THEN coalesce((SELECT append_ms FROM {STREAM_BATCH} b"
        " WHERE b.stream_id = g.stream_id AND b.base_offset <= g.floor"
        " ORDER BY b.base_offset DESC LIMIT 1), 0) ELSE 0 END,"
        f" coalesce((SELECT records FROM {RETENTION_SKIP} s"
        " WHERE s.kind = 'group' AND s.id = g.group_id), 0),"
        " g.delivery_order, g.ack_deadline_ms, g.max_attempts, g.dead_letter_stream_id"
        f" FROM {GROUP} g JOIN {STREAM_PARTITION} p USING (stream_id) WHERE {where}"
        " ORDER BY g.stream_id, g.name LIMIT ?",
        (*after, *(value for _, value in wanted), limit),
    )
    found = []
    for group_id, of_stream, group, floor, end, made_ms, dead, oldest_ms, skipped, *options in rows:
        above, counted_to = count_above(db, group_id, -1, WINDOW_ROWS)
        found.append(
            GroupSummary(
                group_id,
                of_stream,
                group,
                floor,
                above,
                end,
                made_ms,
                dead,
                oldest_ms,
                skipped,
                GroupOptions(*options),
                counted_to,
            )
        )
    return found
