"""Resetting and deleting groups, whatever they have acknowledged.

A group that is reset gets another id: what was acknowledged under the old one is garbage, as is
that of a deleted group, and goes in slices, so that no commit waits for long (PROTOCOL F3).
Whatever was on its way for the old id is refused.
"""

from __future__ import annotations

from typing import ClassVar, Final

from hadron.model.errors import NotFoundError
from hadron.model.ports import Database
from hadron.model.tables import PREFIX
from hadron.state.groups import progress as groups
from hadron.state.groups.attempts import GROUP_ATTEMPT
from hadron.state.groups.progress import GROUP, GROUP_ACK
from hadron.state.machine import Command, Context, Feature, NoChange
from hadron.state.slices import Owned, delete_some
from hadron.state.streams import skips

GROUP_GARBAGE: Final = PREFIX + "group_garbage"

_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {GROUP_GARBAGE}(
    group_id INTEGER PRIMARY KEY,       -- nobody has this id any more, but rows are left
    lsn INTEGER NOT NULL                -- since when
) STRICT;
"""

SLICE_ROWS: Final = 5_000
"""Rows that one command drops: a few milliseconds of the writer's time."""

_LEFT: Final = tuple(
    Owned(table, "group_id, first", "group_id = ?") for table in (GROUP_ACK, GROUP_ATTEMPT)
)


class ResetGroup(Command[int], frozen=True, array_like=True, tag=16):
    """Forget a group's progress: from here on it is at `floor`.

    Attributes:
        last_delivery: tokens of this ballot up to this number, and of earlier ballots, are void.
    """

    is_rationed: ClassVar[bool] = True
    uses_reserve: ClassVar[bool] = True

    group_id: int
    floor: int
    last_delivery: int


class DeleteGroup(Command[None], frozen=True, array_like=True, tag=17):
    """Forget a group."""

    is_rationed: ClassVar[bool] = True
    uses_reserve: ClassVar[bool] = True

    group_id: int


class CollectGroups(Command[bool], frozen=True, array_like=True, tag=18):
    """Drop a slice of what groups have left behind that were reset or deleted."""

    is_rationed: ClassVar[bool] = True
    uses_reserve: ClassVar[bool] = True

    @property
    def rows(self) -> int:
        return SLICE_ROWS


def apply_reset_group(context: Context, command: ResetGroup) -> int:
    """Returns the group's new id, the entry's lsn. Raises `NotFoundError` without the group,
    `OffsetOutOfRangeError` where the stream does not reach."""
    db, old, new = context.db, command.group_id, context.lsn
    row = db.execute(f"SELECT stream_id, name FROM {GROUP} WHERE group_id = ?", (old,)).fetchone()
    if row is None:
        raise NotFoundError(f"consumer group {old} does not exist")
    groups.check_start(db, row[0], row[1], command.floor)
    db.execute(
        f"UPDATE {GROUP} SET group_id = ?, floor = ?, fence_epoch = ?, fence_incarnation = ?,"
        " fence_delivery = ? WHERE group_id = ?",
        (new, command.floor, *context.ballot, command.last_delivery, old),
    )
    _leave_behind(context, old)
    return new


def apply_delete_group(context: Context, command: DeleteGroup) -> None:
    """Raises `NotFoundError` without the group."""
    db, group_id = context.db, command.group_id
    row = db.execute(
        f"DELETE FROM {GROUP} WHERE group_id = ? RETURNING group_id", (group_id,)
    ).fetchone()
    if row is None:
        raise NotFoundError(f"consumer group {group_id} does not exist")
    _leave_behind(context, group_id)


def apply_collect_groups(context: Context, _command: CollectGroups) -> bool:
    """Returns whether anything is left."""
    if not is_garbage_left(context.db):
        raise NoChange(result=False)
    _collect(context.db, SLICE_ROWS)
    return is_garbage_left(context.db)


def _leave_behind(context: Context, group_id: int) -> None:
    """What nobody can find any more is counted by nobody either."""
    db = context.db
    skips.forget(db, "group", group_id)
    if any(
        db.execute(f"SELECT 1 FROM {table} WHERE {where} LIMIT 1", (group_id,)).fetchone()
        for table, _, where in _LEFT
    ):
        db.execute(f"INSERT INTO {GROUP_GARBAGE} VALUES(?, ?)", (group_id, context.lsn))


def _collect(db: Database, max_rows: int) -> None:
    row = db.execute(f"SELECT min(group_id) FROM {GROUP_GARBAGE}").fetchone()
    if row is None or row[0] is None:
        return
    group_id: int = row[0]
    for owned in _LEFT:
        if delete_some(db, [owned], group_id, max_rows):
            return
    db.execute(f"DELETE FROM {GROUP_GARBAGE} WHERE group_id = ?", (group_id,))


FEATURE: Final = Feature(
    name="group changes",
    tables=_TABLES,
    commands={
        ResetGroup: apply_reset_group,
        DeleteGroup: apply_delete_group,
        CollectGroups: apply_collect_groups,
    },
)


# --- reading ------------------------------------------------------------------------------------


def is_garbage_left(db: Database) -> bool:
    return db.execute(f"SELECT 1 FROM {GROUP_GARBAGE} LIMIT 1").fetchone() is not None


def garbage(db: Database) -> set[int]:
    """Ids of groups that were reset or deleted, and have not gone yet."""
    return {group_id for (group_id,) in db.execute(f"SELECT group_id FROM {GROUP_GARBAGE}")}
