"""Consumer groups: durable progress through a stream's partition here.

Progress is a floor and the ranges acknowledged above it. Safety rule: the floor never passes an
offset that nobody acknowledged. Who is connected and what is in flight is not here: it lives in
memory on the leader (`delivery`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import msgspec

from hadron.model.errors import NotFoundError, OffsetOutOfRangeError, RequestError
from hadron.model.ports import Database
from hadron.state import streams
from hadron.state.machine import Command, Context, NoChange, applies, tables

tables("""
CREATE TABLE IF NOT EXISTS grp(
    group_id INTEGER PRIMARY KEY,       -- the lsn of its creation
    stream_id INTEGER NOT NULL,
    name TEXT NOT NULL,
    floor INTEGER NOT NULL,             -- everything below is acknowledged
    created_ms INTEGER NOT NULL,
    UNIQUE (stream_id, name)
) STRICT;
CREATE TABLE IF NOT EXISTS grp_ack(
    group_id INTEGER NOT NULL,
    first INTEGER NOT NULL,             -- acknowledged above the floor, both ends inclusive;
    last INTEGER NOT NULL,              -- ranges neither overlap nor touch
    PRIMARY KEY (group_id, first)
) STRICT, WITHOUT ROWID;
""")

Range = tuple[int, int]
"""Offsets, both ends inclusive."""


class CreateGroup(Command, frozen=True, array_like=True, tag=3):
    """Create a group; one that exists keeps its progress."""

    # A consumer asks for it whenever it joins, and then acknowledges.
    uses_reserve: ClassVar[bool] = True

    stream_id: int
    name: str
    floor: int


class AckRecords(Command, frozen=True, array_like=True, tag=4):
    """Acknowledge offsets of a group. Acknowledged twice is acknowledged once."""

    uses_reserve: ClassVar[bool] = True

    group_id: int
    ranges: tuple[Range, ...]


class Progress(msgspec.Struct, frozen=True):
    """A group as it stands in the tables."""

    group_id: int
    stream_id: int
    name: str
    floor: int
    acknowledged: tuple[Range, ...] = ()


@applies(CreateGroup)
def apply_create_group(context: Context, command: CreateGroup) -> Progress:
    known = find(context.db, command.stream_id, command.name)
    if known is not None:
        raise NoChange(known)
    limits = streams.bounds(context.db, command.stream_id)
    if not limits.first_offset <= command.floor <= limits.next_offset:
        raise OffsetOutOfRangeError(
            f"group {command.name!r} cannot start at offset {command.floor}: the stream has "
            f"{limits.first_offset} to {limits.next_offset}",
            "start at `earliest`, `latest`, or an offset in between",
        )
    context.db.execute(
        "INSERT INTO grp VALUES(?, ?, ?, ?, ?)",
        (context.lsn, command.stream_id, command.name, command.floor, context.now_ms),
    )
    return Progress(context.lsn, command.stream_id, command.name, command.floor)


@applies(AckRecords)
def apply_ack_records(context: Context, command: AckRecords) -> int:
    """Returns the new floor."""
    db = context.db
    row = db.execute(
        "SELECT floor, stream_id FROM grp WHERE group_id = ?", (command.group_id,)
    ).fetchone()
    if row is None:
        raise NotFoundError(f"consumer group {command.group_id} does not exist")
    before: int = row[0]
    floor = before
    next_offset = streams.bounds(db, row[1]).next_offset
    for first, last in command.ranges:
        if not 0 <= first <= last < next_offset:
            raise RequestError(
                f"offsets {first} to {last} cannot be acknowledged, the stream ends at "
                f"{next_offset}"
            )
        if first <= floor:
            floor = max(floor, last + 1)
        else:
            _acknowledge_above(db, command.group_id, first, last)
    if floor != before:
        floor = _absorb(db, command.group_id, floor)
        db.execute("UPDATE grp SET floor = ? WHERE group_id = ?", (floor, command.group_id))
    return floor


def _acknowledge_above(db: Database, group_id: int, first: int, last: int) -> None:
    """Add a range above the floor, melting it with those it overlaps or touches."""
    touching = db.execute(
        "SELECT first, last FROM grp_ack WHERE group_id = ? AND first <= ?"
        " AND first >= coalesce("
        "(SELECT max(first) FROM grp_ack WHERE group_id = ? AND first < ?), 0)",
        (group_id, last + 1, group_id, first),
    ).fetchall()
    for known_first, known_last in touching:
        if known_last + 1 >= first:
            db.execute(
                "DELETE FROM grp_ack WHERE group_id = ? AND first = ?", (group_id, known_first)
            )
            first, last = min(first, known_first), max(last, known_last)
    db.execute("INSERT INTO grp_ack VALUES(?, ?, ?)", (group_id, first, last))


def skip_below(db: Database, stream_id: int, first_offset: int) -> list[tuple[int, int]]:
    """Move the floors of a stream's groups over records that retention drops; returns (group id,
    records that nobody had acknowledged) of those that were moved over any."""
    skipped: list[tuple[int, int]] = []
    rows = db.execute(
        "SELECT group_id, floor FROM grp WHERE stream_id = ? AND floor < ? ORDER BY group_id",
        (stream_id, first_offset),
    ).fetchall()
    for group_id, floor in rows:
        row = db.execute(
            "SELECT coalesce(sum(min(last + 1, ?) - first), 0) FROM grp_ack"
            " WHERE group_id = ? AND first < ?",
            (first_offset, group_id, first_offset),
        ).fetchone()
        assert row is not None
        if first_offset - floor > row[0]:
            skipped.append((group_id, first_offset - floor - row[0]))
        db.execute(
            "UPDATE grp SET floor = ? WHERE group_id = ?",
            (_absorb(db, group_id, first_offset), group_id),
        )
    return skipped


def _absorb(db: Database, group_id: int, floor: int) -> int:
    """Raise the floor over the ranges it has reached, and forget those."""
    while True:
        row = db.execute(
            "SELECT first, last FROM grp_ack WHERE group_id = ? ORDER BY first LIMIT 1",
            (group_id,),
        ).fetchone()
        if row is None or row[0] > floor:
            return floor
        floor = max(floor, row[1] + 1)
        db.execute("DELETE FROM grp_ack WHERE group_id = ? AND first = ?", (group_id, row[0]))


def drop_some(db: Database, stream_id: int, limit: int) -> int:
    """Delete up to `limit` rows of a deleted stream's groups; returns how many went."""
    db.execute(
        "DELETE FROM grp_ack WHERE (group_id, first) IN (SELECT a.group_id, a.first FROM grp g"
        " JOIN grp_ack a USING (group_id) WHERE g.stream_id = ?"
        " ORDER BY a.group_id, a.first LIMIT ?)",
        (stream_id, limit),
    )
    gone = db.changes()
    if gone < limit:
        db.execute(
            "DELETE FROM grp WHERE group_id IN (SELECT group_id FROM grp WHERE stream_id = ?"
            " ORDER BY group_id LIMIT ?)",
            (stream_id, limit - gone),
        )
        gone += db.changes()
    return gone


# --- reading ------------------------------------------------------------------------------------


def find(db: Database, stream_id: int, name: str) -> Progress | None:
    """A group with all its acknowledged ranges, or None."""
    row = db.execute(
        "SELECT group_id, floor FROM grp WHERE stream_id = ? AND name = ?", (stream_id, name)
    ).fetchone()
    if row is None:
        return None
    ranges = db.execute(
        "SELECT first, last FROM grp_ack WHERE group_id = ? ORDER BY first", (row[0],)
    ).fetchall()
    return Progress(row[0], stream_id, name, row[1], tuple((first, last) for first, last in ranges))


@dataclass(frozen=True, slots=True)
class GroupSummary:
    group_id: int
    stream_id: int
    name: str
    floor: int
    acknowledged_above: int
    next_offset: int


def summaries(db: Database, stream_id: int | None = None) -> list[GroupSummary]:
    """All groups, or those of one stream, without their ranges."""
    where, bindings = ("WHERE g.stream_id = ?", (stream_id,)) if stream_id is not None else ("", ())
    rows = db.execute(
        "SELECT g.group_id, g.stream_id, g.name, g.floor,"
        " coalesce((SELECT sum(last - first + 1) FROM grp_ack a WHERE a.group_id = g.group_id), 0),"
        " p.next_offset FROM grp g JOIN stream_partition p USING (stream_id) "
        + where + " ORDER BY g.stream_id, g.name",
        bindings,
    )
    return [GroupSummary(*row) for row in rows]
