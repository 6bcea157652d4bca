"""What to call a schema object by when there is only its id, in these tables' own words.

Names are for people: the other modules refer to objects by their ids, and come here for a message.
"""

from __future__ import annotations

from typing import Final

from hadron.model import schema
from hadron.model.errors import NotFoundError
from hadron.model.ports import Database
from hadron.state.schema import SCHEMA_OBJECT, SCHEMA_TOMBSTONE

ANOTHER_ONE: Final = "one that was created again under its name is another one"
"""The hint to who means what was deleted."""


def label_of(db: Database, object_id: int) -> str:
    """`Stream default/flights`, also of an object that was deleted, while that is remembered."""
    for table in (SCHEMA_OBJECT, SCHEMA_TOMBSTONE):
        row = db.execute(
            f"SELECT kind, namespace, name FROM {table} WHERE id = ?", (object_id,)
        ).fetchone()
        if row is not None:
            return schema.label_of(*row)
    return f"the object with the id {object_id}"


def no_partition(db: Database, stream_id: int, place: str = "here") -> NotFoundError:
    """What to tell who means a stream that has no partition `place`: or does not exist any more,
    which what is visible may not tell yet."""
    label = label_of(db, stream_id)
    gone = db.execute(f"SELECT 1 FROM {SCHEMA_TOMBSTONE} WHERE id = ?", (stream_id,)).fetchone()
    if gone is not None:
        return NotFoundError(f"{label} was deleted", ANOTHER_ONE)
    return NotFoundError(f"{label} has no partition {place}")
