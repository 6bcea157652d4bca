"""Consumer groups: durable progress through a stream's partition here.

Progress is a floor and the ranges acknowledged above it. Safety rule: the floor never passes an
offset that nobody acknowledged. Who is connected and what is in flight is not here: it lives in
memory on the leader (`delivery`). Nothing that a member's coming reads costs more where more was
acknowledged: ranges are found by their key, and read a window at a time. What a command forgets
each range was made for once: an acknowledgement that closes a gap forgets all that it joins.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from hadron.model.errors import NotFoundError, OffsetOutOfRangeError, RequestError
from hadron.model.ports import Database
from hadron.model.ranges import Range
from hadron.model.tables import PREFIX
from hadron.state import slices
from hadron.state.groups import attempts
from hadron.state.groups.attempts import GROUP_ATTEMPT
from hadron.state.machine import Command, Context, Feature, NoChange
from hadron.state.streams import partitions as streams
from hadron.state.streams import skips
from hadron.state.streams.skips import RETENTION_SKIP
from hadron.state.transactions import locks

GROUP: Final = PREFIX + "group"
GROUP_ACK: Final = PREFIX + "group_ack"

_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {GROUP}(
    group_id INTEGER PRIMARY KEY,       -- the lsn of its creation, or of its last reset
    stream_id INTEGER NOT NULL,
    name TEXT NOT NULL,
    floor INTEGER NOT NULL,             -- everything below is acknowledged
    created_ms INTEGER NOT NULL,
    delivery_order INTEGER NOT NULL,    -- 0 none, 1 strict, 2 by key
    ack_deadline_ms INTEGER NOT NULL,   -- 0 for none
    max_attempts INTEGER NOT NULL,      -- 0 for no limit
    dead_letter_stream_id INTEGER NOT NULL,
    dead_lettered INTEGER NOT NULL,     -- records that went there
    fence_epoch INTEGER NOT NULL, fence_incarnation INTEGER NOT NULL,   -- made or reset when:
    fence_delivery INTEGER NOT NULL,    -- tokens up to this one are from before that
    UNIQUE (stream_id, name)
) STRICT;
CREATE TABLE IF NOT EXISTS {GROUP_ACK}(
    group_id INTEGER NOT NULL,
    first INTEGER NOT NULL,             -- acknowledged above the floor, both ends inclusive;
    last INTEGER NOT NULL,              -- ranges neither overlap nor touch
    PRIMARY KEY (group_id, first)
) STRICT, WITHOUT ROWID;
"""

_GET_FLOOR_AND_STREAM: Final = f"SELECT floor, stream_id FROM {GROUP} WHERE group_id = ?"
_SET_FLOOR: Final = f"UPDATE {GROUP} SET floor = ? WHERE group_id = ?"
_TOUCHING: Final = (
    f"SELECT min(first), max(last) FROM {GROUP_ACK} WHERE group_id = ? AND first <= ?"
    " AND first >= coalesce("
    f"(SELECT max(first) FROM {GROUP_ACK} WHERE group_id = ? AND first < ?), 0) AND last >= ?"
)
_MELT: Final = f"DELETE FROM {GROUP_ACK} WHERE group_id = ? AND first >= ? AND first <= ?"
_INSERT_ACK: Final = f"INSERT INTO {GROUP_ACK} VALUES(?, ?, ?)"
_ACK_BELOW: Final = (
    f"SELECT first, last FROM {GROUP_ACK} WHERE group_id = ? AND first <= ?"
    " ORDER BY first DESC LIMIT 1"
)
_FORGET_ACKS: Final = f"DELETE FROM {GROUP_ACK} WHERE group_id = ? AND first <= ?"
_FIND: Final = (
    "SELECT group_id, floor, delivery_order, ack_deadline_ms, max_attempts, dead_letter_stream_id,"
    " fence_epoch, fence_incarnation, fence_delivery,"
    f" coalesce((SELECT records FROM {RETENTION_SKIP} s"
    " WHERE s.kind = 'group' AND s.id = group_id), 0)"
    f" FROM {GROUP} WHERE stream_id = ? AND name = ?"
)
_ACKS_WITHIN: Final = (
    f"SELECT first, last FROM {GROUP_ACK} WHERE group_id = ? AND first <= ? AND last >= ?"
    " AND first >= coalesce("
    f"(SELECT max(first) FROM {GROUP_ACK} WHERE group_id = ? AND first <= ?), 0) ORDER BY first"
)
_GET_FLOOR: Final = f"SELECT floor FROM {GROUP} WHERE group_id = ?"
_ACKS_ABOVE: Final = (
    f"SELECT first, last FROM {GROUP_ACK} WHERE group_id = ? AND first > ? ORDER BY first LIMIT ?"
)

ORDER_NONE: Final = 0
ORDER_STRICT: Final = 1
ORDER_KEY: Final = 2

WINDOW_ROWS: Final = 1_024
"""Ranges that a leader reads of a group at a time: under a millisecond, and some 100 kB."""

Token = tuple[int, int, int]
"""Of a delivery: the ballot's epoch and incarnation, and the number of the delivery."""


class GroupOptions(msgspec.Struct, frozen=True, array_like=True):
    """How a group delivers; fixed when it is made.

    Attributes:
        order: `ORDER_NONE`, `ORDER_STRICT` or `ORDER_KEY`.
        ack_deadline_ms: 0 for none.
        max_attempts: deliveries of a record before it is a dead letter; 0 for no limit.
        dead_letter_stream_id: 0 for none.
    """

    order: int = ORDER_NONE
    ack_deadline_ms: int = 0
    max_attempts: int = 0
    dead_letter_stream_id: int = 0


class CreateGroup(Command["Progress"], frozen=True, array_like=True, tag=3):
    """Create a group; one that exists keeps its progress and its options.

    Attributes:
        last_delivery: tokens of this ballot up to this number, and of earlier ballots, are of
            another group that had the name before.
    """

    is_rationed: ClassVar[bool] = True
    # A consumer asks for it whenever it joins, and then acknowledges.
    uses_reserve: ClassVar[bool] = True

    stream_id: int
    name: str
    floor: int
    options: GroupOptions = GroupOptions()
    last_delivery: int = 0


class AckRecords(Command[int], frozen=True, array_like=True, tag=4):
    """Acknowledge offsets of a group. Acknowledged twice is acknowledged once."""

    is_rationed: ClassVar[bool] = True
    is_joinable: ClassVar[bool] = True
    uses_reserve: ClassVar[bool] = True

    group_id: int
    ranges: tuple[Range, ...]

    @property
    def rows(self) -> int:
        return len(self.ranges)


class Window(msgspec.Struct, frozen=True):
    """What is known of a group's offsets from one of them up to `end`, exclusive.

    Attributes:
        end: None when everything above is unacknowledged and was never given back.
    """

    end: int | None = None
    acknowledged: tuple[Range, ...] = ()
    attempts: tuple[attempts.Attempts, ...] = ()


class Progress(msgspec.Struct, frozen=True):
    """A group as it stands in the tables; `window` begins at its floor, and `skipped` are records
    that retention has dropped before the group had come to them."""

    group_id: int
    stream_id: int
    name: str
    floor: int
    options: GroupOptions = GroupOptions()
    fence: Token = (0, 0, 0)
    window: Window = Window()
    skipped: int = 0


def apply_create_group(context: Context, command: CreateGroup) -> Progress:
    known = find(context.db, command.stream_id, command.name)
    if known is not None:
        raise NoChange(known)
    check_start(context.db, command.stream_id, command.name, command.floor)
    options, fence = command.options, (*context.ballot, command.last_delivery)
    context.db.execute(
        f"INSERT INTO {GROUP} VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?)",
        (
            context.lsn,
            command.stream_id,
            command.name,
            command.floor,
            context.now_ms,
            options.order,
            options.ack_deadline_ms,
            options.max_attempts,
            options.dead_letter_stream_id,
            *fence,
        ),
    )
    return Progress(context.lsn, command.stream_id, command.name, command.floor, options, fence)


def check_start(db: Database, stream_id: int, name: str, floor: int) -> None:
    """Raises `OffsetOutOfRangeError` unless a group may begin at `floor`."""
    limits = streams.bounds(db, stream_id)
    if not limits.first_offset <= floor <= limits.next_offset:
        raise OffsetOutOfRangeError(
            f"group {name!r} cannot start at offset {floor}: the stream has "
            f"{limits.first_offset} to {limits.next_offset}",
            "start at `earliest`, `latest`, or an offset in between",
        )


def apply_ack_records(context: Context, command: AckRecords) -> int:
    """Returns the new floor. Raises `ConflictError` for what a transaction holds."""
    locks.check_free(context, locks.deliveries(command.group_id, command.ranges))
    return acknowledge(context.db, command.group_id, command.ranges)


def acknowledge(db: Database, group_id: int, ranges: tuple[Range, ...]) -> int:
    """Acknowledge ranges in any order; returns the new floor.

    Raises `NotFoundError` without the group, `RequestError` for offsets that do not exist.
    """
    before, next_offset = reach(db, group_id)
    floor = before
    were_given_back = attempts.any_of(db, group_id)
    for first, last in ranges:
        if not 0 <= first <= last < next_offset:
            raise RequestError(
                f"offsets {first} to {last} cannot be acknowledged, the stream ends at "
                f"{next_offset}"
            )
        if first <= floor:
            floor = max(floor, last + 1)
        else:
            _acknowledge_above(db, group_id, before, first, last)
        if were_given_back:
            attempts.clear(db, group_id, first, last)
    if floor != before:
        floor = _absorb(db, group_id, floor)
        db.execute(_SET_FLOOR, (floor, group_id))
    assert before <= floor <= next_offset, (before, floor, next_offset)
    return floor


def _acknowledge_above(db: Database, group_id: int, floor: int, first: int, last: int) -> None:
    """Add a range above the floor, melting it with those it overlaps or touches."""
    touching = db.execute(_TOUCHING, (group_id, last + 1, group_id, first, first - 1)).fetchone()
    if touching is not None and touching[0] is not None:
        db.execute(_MELT, (group_id, touching[0], last + 1))
        first, last = min(first, touching[0]), max(last, touching[1])
    assert floor < first <= last, (floor, first, last)
    db.execute(_INSERT_ACK, (group_id, first, last))


def _absorb(db: Database, group_id: int, floor: int) -> int:
    """Raise the floor over the range it has reached, if it has reached one, and forget what lies
    below. Ranges do not touch, so there is one at most that ends above the floor."""
    row = db.execute(_ACK_BELOW, (group_id, floor)).fetchone()
    if row is not None:
        first, last = row
        assert first <= floor, (first, floor)
        db.execute(_FORGET_ACKS, (group_id, floor))
        floor = max(floor, last + 1)
    return floor


def _skip_below(context: Context, stream_id: int, first_offset: int) -> None:
    """Move the floors of a stream's groups over records that retention drops, and count those that
    nobody had acknowledged."""
    db = context.db
    rows = db.execute(
        f"SELECT group_id, floor, name FROM {GROUP} WHERE stream_id = ? AND floor < ?"
        f" ORDER BY group_id",
        (stream_id, first_offset),
    ).fetchall()
    for group_id, floor, name in rows:
        row = db.execute(
            f"SELECT coalesce(sum(min(last + 1, ?) - first), 0) FROM {GROUP_ACK}"
            " WHERE group_id = ? AND first < ?",
            (first_offset, group_id, first_offset),
        ).fetchone()
        assert row is not None
        # At the floor stands a record that nobody has acknowledged, and ranges do not overlap.
        assert 0 <= row[0] < first_offset - floor, (floor, first_offset, row[0])
        skips.note(context, "group", group_id, first_offset - floor - row[0], name)
        attempts.clear(db, group_id, 0, first_offset - 1)
        db.execute(
            f"UPDATE {GROUP} SET floor = ? WHERE group_id = ?",
            (_absorb(db, group_id, first_offset), group_id),
        )


def _has_groups(context: Context, stream_id: int) -> bool:
    row = context.db.execute(f"SELECT 1 FROM {GROUP} WHERE stream_id = ? LIMIT 1", (stream_id,))
    return row.fetchone() is not None


_OF_STREAM: Final = f"IN (SELECT group_id FROM {GROUP} WHERE stream_id = ?)"

_LEFT: Final = (
    slices.Owned(RETENTION_SKIP, "kind, id", f"kind = 'group' AND id {_OF_STREAM}"),
    slices.Owned(GROUP_ACK, "group_id, first", f"group_id {_OF_STREAM}"),
    slices.Owned(GROUP_ATTEMPT, "group_id, first", f"group_id {_OF_STREAM}"),
    slices.Owned(GROUP, "group_id", "stream_id = ?"),
)
"""What a stream's groups have: the rows that the others are found by go last."""


def _drop_some(context: Context, stream_id: int, portion: slices.Portion) -> slices.Dropped:
    """Of a deleted stream's groups."""
    rows = slices.delete_some(context.db, _LEFT, stream_id, portion.rows)
    return slices.Dropped(rows, is_done=rows < portion.rows)


FEATURE: Final = Feature(
    name="groups",
    tables=_TABLES,
    commands={CreateGroup: apply_create_group, AckRecords: apply_ack_records},
    deleted={"Stream": _has_groups},
    leftovers={"Stream": _drop_some},
    trimmed=_skip_below,
)


# --- reading ------------------------------------------------------------------------------------


def reach(db: Database, group_id: int) -> tuple[int, int]:
    """The group's floor, and where its stream ends here. Raises `NotFoundError` without either."""
    row = db.execute(_GET_FLOOR_AND_STREAM, (group_id,)).fetchone()
    if row is None:
        raise NotFoundError(f"consumer group {group_id} does not exist")
    return row[0], streams.bounds(db, row[1]).next_offset


def find(db: Database, stream_id: int, name: str) -> Progress | None:
    """A group and what is known right above its floor, or None."""
    row = db.execute(_FIND, (stream_id, name)).fetchone()
    if row is None:
        return None
    group_id, floor = row[:2]
    return Progress(
        group_id,
        stream_id,
        name,
        floor,
        GroupOptions(*row[2:6]),
        (row[6], row[7], row[8]),
        window(db, group_id, floor),
        skipped=row[9],
    )


def unacknowledged(db: Database, group_id: int, first: int, last: int) -> list[Range]:
    """What of first … last, above the floor, nobody has acknowledged."""
    rows = db.execute(_ACKS_WITHIN, (group_id, last, first, group_id, first))
    found: list[Range] = []
    for a, b in rows:
        if first < a:
            found.append((first, a - 1))
        first = b + 1
    return [*found, (first, last)] if first <= last else found


def window(db: Database, group_id: int, offset: int, rows: int = WINDOW_ROWS) -> Window:
    """What is known of a group's offsets from `offset` on, as far as `rows` ranges reach.

    All below its floor is over, and no row tells of it. *(A leader's cursor waits where its window
    ends, a dead letter lets the floor pass it, and the rows between are gone: acknowledged records
    were delivered again.)*
    """
    row = db.execute(_GET_FLOOR, (group_id,)).fetchone()
    floor = max(offset, row[0]) if row is not None else offset
    passed = [(offset, floor - 1)] if floor > offset else []
    offset = floor
    acknowledged: list[Range] = []
    covering = db.execute(_ACK_BELOW, (group_id, offset)).fetchone()
    if covering is not None and covering[1] >= offset:
        acknowledged.append((offset, covering[1]))
    acknowledged += [
        (first, last)
        for first, last in db.execute(_ACKS_ABOVE, (group_id, offset, rows - len(acknowledged)))
    ]
    tried = attempts.from_offset(db, group_id, offset, rows)
    ends = [known[-1][1] + 1 for known in (acknowledged, tried) if len(known) == rows]
    end = min(ends, default=None)
    if end is not None:
        acknowledged = [(a, min(b, end - 1)) for a, b in acknowledged if a < end]
        tried = [(a, min(b, end - 1), number) for a, b, number in tried if a < end]
    return Window(end, (*passed, *acknowledged), tuple(tried))
