"""Dropping what a deleted object has left on this replica set: in slices, so that no commit waits
for long (PROTOCOL F).

The entry that deletes the object closes it: a stream's partition is gone from there on, nobody
reads it or writes to it. What it held is noted as dropped and goes with the entries that follow.
Ids are never used again (PROTOCOL D3), so whatever is left can belong to nothing else.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from hadron.model.ports import Database
from hadron.state import groups, pipelines, slices
from hadron.state.machine import Command, Context, NoChange, applies, tables

tables("""
CREATE TABLE IF NOT EXISTS dropped(
    id INTEGER PRIMARY KEY,             -- of a deleted object that has left something here
    kind TEXT NOT NULL,
    deleted_ms INTEGER NOT NULL
) STRICT;
""")

SLICE_ROWS: Final = 2_000
"""Of the small tables: producers, groups, instances."""


class DropStream(Command, frozen=True, array_like=True, tag=20):
    """Drop one slice of a deleted stream's partition.

    Attributes:
        until_lsn: bodies of entries above it may still be needed by a member.
    """

    uses_reserve: ClassVar[bool] = True
    since: ClassVar[int] = 2

    stream_id: int
    until_lsn: int


class DropPipeline(Command, frozen=True, array_like=True, tag=21):
    """Drop one slice of a deleted pipeline's instances."""

    uses_reserve: ClassVar[bool] = True
    since: ClassVar[int] = 2

    pipeline_id: int


class Dropped(msgspec.Struct, frozen=True):
    """What a slice did. `is_done`: nothing is left."""

    rows: int
    bytes: int = 0
    is_done: bool = False


def begin(context: Context, kind: str, object_id: int) -> None:
    """The object is deleted: close what it has here, and note that it is to be dropped."""
    db = context.db
    if kind == "Stream":
        db.execute("DELETE FROM stream_partition WHERE stream_id = ?", (object_id,))
        has_rows = _has_rows(db, object_id)
    elif kind == "Pipeline":
        db.execute("DELETE FROM pipeline WHERE pipeline_id = ?", (object_id,))
        has_rows = db.changes() > 0
        db.execute("DELETE FROM retention_skip WHERE kind = 'pipeline' AND id = ?", (object_id,))
    else:
        has_rows = False
    if has_rows:
        db.execute(
            "INSERT INTO dropped VALUES(?, ?, ?) ON CONFLICT DO NOTHING",
            (object_id, kind, context.now_ms),
        )


def _has_rows(db: Database, stream_id: int) -> bool:
    """Whether a stream was ever used here: many are not, and need nothing dropped."""
    row = db.execute(
        "SELECT EXISTS (SELECT 1 FROM stream_batch WHERE stream_id = ?1)"
        " OR EXISTS (SELECT 1 FROM producer WHERE stream_id = ?1)"
        " OR EXISTS (SELECT 1 FROM grp WHERE stream_id = ?1)", (stream_id,),
    ).fetchone()
    assert row is not None
    return bool(row[0])


@applies(DropStream)
def apply_drop_stream(context: Context, command: DropStream) -> Dropped:
    db, stream_id = context.db, command.stream_id
    _check_dropped(db, stream_id, "Stream")
    batches = slices.oldest(db, stream_id, lambda lsn, _end: lsn <= command.until_lsn)
    if batches.lsns:
        slices.drop(db, stream_id, batches)
        return Dropped(len(batches.lsns), batches.bytes)
    if db.execute("SELECT 1 FROM stream_batch WHERE stream_id = ?", (stream_id,)).fetchone():
        # A member still needs the rest.
        raise NoChange(Dropped(0))
    rows = _delete_some(db, "producer", "stream_id", stream_id, "producer_id", SLICE_ROWS)
    if rows < SLICE_ROWS:
        rows += groups.drop_some(db, stream_id, SLICE_ROWS - rows)
    return _end_of_slice(db, stream_id, rows)


@applies(DropPipeline)
def apply_drop_pipeline(context: Context, command: DropPipeline) -> Dropped:
    db, pipeline_id = context.db, command.pipeline_id
    _check_dropped(db, pipeline_id, "Pipeline")
    rows = 0
    for table, key in pipelines.TABLES_BY_PIPELINE:
        if rows < SLICE_ROWS:
            rows += _delete_some(db, table, "pipeline_id", pipeline_id, key, SLICE_ROWS - rows)
    return _end_of_slice(db, pipeline_id, rows)


def _check_dropped(db: Database, object_id: int, kind: str) -> None:
    row = db.execute(
        "SELECT 1 FROM dropped WHERE id = ? AND kind = ?", (object_id, kind)
    ).fetchone()
    if row is None:
        raise NoChange(Dropped(0, is_done=True))


def _delete_some(
    db: Database, table: str, owner: str, owner_id: int, key: str, limit: int
) -> int:
    db.execute(
        f"DELETE FROM {table} WHERE {owner} = ? AND ({key}) IN"
        f" (SELECT {key} FROM {table} WHERE {owner} = ? ORDER BY {key} LIMIT ?)",
        (owner_id, owner_id, limit),
    )
    return db.changes()


def _end_of_slice(db: Database, object_id: int, rows: int) -> Dropped:
    """Fewer rows than a slice may have: these were the last."""
    if rows >= SLICE_ROWS:
        return Dropped(rows)
    db.execute("DELETE FROM dropped WHERE id = ?", (object_id,))
    return Dropped(rows, is_done=True)


# --- reading ------------------------------------------------------------------------------------


def waiting(db: Database) -> list[tuple[int, str]]:
    """(id, kind) of deleted objects that still have something here."""
    return [(row[0], row[1]) for row in db.execute("SELECT id, kind FROM dropped ORDER BY id")]
