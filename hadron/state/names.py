"""What to call a schema object by when there is only its id, in these tables' own words.

Names are for people: the other modules refer to objects by their ids, and come here for a message.
"""

from __future__ import annotations

from hadron.model import schema
from hadron.model.ports import Database
from hadron.state.schema import SCHEMA_OBJECT, SCHEMA_TOMBSTONE


def label_of(db: Database, object_id: int) -> str:
    """`Stream default/flights`, also of an object that was deleted, while that is remembered."""
    for table in (SCHEMA_OBJECT, SCHEMA_TOMBSTONE):
        row = db.execute(
            f"SELECT kind, namespace, name FROM {table} WHERE id = ?", (object_id,)
        ).fetchone()
        if row is not None:
            return schema.label_of(*row)
    return f"the object with the id {object_id}"
