"""Whom retention has moved over records that they had not seen, and how many those were: counted
in the entry that drops them, so that nobody is moved silently (PROTOCOL D2)."""

from __future__ import annotations

from typing import Final

from hadron.model.ports import Database
from hadron.model.tables import PREFIX
from hadron.state.events import RecordsSkipped
from hadron.state.machine import Context, Feature

RETENTION_SKIP: Final = PREFIX + "retention_skip"

_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {RETENTION_SKIP}(
    kind TEXT NOT NULL,                 -- group or pipeline
    id INTEGER NOT NULL,                -- its id
    records INTEGER NOT NULL,           -- dropped before it had come to them
    last_ms INTEGER NOT NULL,
    PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;
"""


def note(context: Context, kind: str, item_id: int, records: int, name: str = "") -> None:
    """`records` were dropped before the "group" or "pipeline" had come to them."""
    context.db.execute(
        f"INSERT INTO {RETENTION_SKIP} VALUES(?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
        " records = records + excluded.records, last_ms = excluded.last_ms",
        (kind, item_id, records, context.now_ms),
    )
    context.emit(RecordsSkipped(kind, item_id, records, name))


def forget(db: Database, kind: str, item_id: int) -> None:
    """It is gone, or begins anew."""
    db.execute(f"DELETE FROM {RETENTION_SKIP} WHERE kind = ? AND id = ?", (kind, item_id))


FEATURE: Final = Feature(name="skips", tables=_TABLES)


# --- reading ------------------------------------------------------------------------------------


def skips(db: Database) -> dict[tuple[str, int], int]:
    """Records that retention dropped before somebody had come to them, by (kind, id)."""
    rows = db.execute(f"SELECT kind, id, records FROM {RETENTION_SKIP}")
    return {(kind, item_id): records for kind, item_id, records in rows}
