"""Dropping what a deleted object has left on this replica set: in slices, so that no commit waits
for long (PROTOCOL F3).

The entry that deletes the object closes it: a stream's partition is gone from there on, nobody
reads it or writes to it. What it held is noted as dropped and goes with the entries that follow.
Ids are never used again (PROTOCOL D3), so whatever is left can belong to nothing else.
"""

from __future__ import annotations

from typing import ClassVar, Final

from hadron.model.ports import Database
from hadron.model.tables import PREFIX
from hadron.state.machine import Command, Context, Feature, NoChange
from hadron.state.slices import SLICE_ROWS, Dropped, Portion

DROPPED: Final = PREFIX + "dropped"

_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {DROPPED}(
    id INTEGER PRIMARY KEY,             -- of a deleted object that has left something here
    kind TEXT NOT NULL,
    deleted_ms INTEGER NOT NULL
) STRICT;
"""


class DropObject(Command[Dropped], frozen=True, array_like=True, tag=20):
    """Drop one slice of what a deleted object has left.

    Attributes:
        until_lsn: bodies of entries above it may still be needed by a member.
    """

    uses_reserve: ClassVar[bool] = True

    object_id: int
    until_lsn: int


def begin(context: Context, kind: str, object_id: int) -> None:
    """The object is deleted: close what it has here, and note what is to be dropped."""
    if context.machine.delete(context, kind, object_id):
        context.db.execute(
            f"INSERT INTO {DROPPED} VALUES(?, ?, ?) ON CONFLICT DO NOTHING",
            (object_id, kind, context.now_ms),
        )


def apply_drop_object(context: Context, command: DropObject) -> Dropped:
    db, object_id = context.db, command.object_id
    row = db.execute(f"SELECT kind FROM {DROPPED} WHERE id = ?", (object_id,)).fetchone()
    if row is None:
        raise NoChange(Dropped(0, is_done=True))
    portion = Portion(SLICE_ROWS, command.until_lsn)
    dropped = context.machine.drop_some(context, row[0], object_id, portion)
    if dropped.is_done:
        db.execute(f"DELETE FROM {DROPPED} WHERE id = ?", (object_id,))
    elif not dropped.rows:
        # A member still needs the rest.
        raise NoChange(dropped)
    return dropped


FEATURE: Final = Feature(name="dropping", tables=_TABLES, commands={DropObject: apply_drop_object})


# --- reading ------------------------------------------------------------------------------------


def waiting(db: Database) -> list[tuple[int, str]]:
    """(id, kind) of deleted objects that still have something here."""
    return [(row[0], row[1]) for row in db.execute(f"SELECT id, kind FROM {DROPPED} ORDER BY id")]


def ids(db: Database) -> set[int]:
    return {object_id for object_id, _ in waiting(db)}
