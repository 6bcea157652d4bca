"""Schema objects on this replica set, and what adopting them means for its own tables.

The metadata replica set logs `ApplySchema` and `DeleteObjects`, and adopts in the same entry what
concerns itself; to every other set it is pushed (`adoption`), so `apply` never reads schema from
outside its own log (PROTOCOL A4). Names are for people: everything else refers to an object by its
id, the metadata index of its creation, so a stream that is deleted and created again is another
stream (PROTOCOL D3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec

from hadron.model.errors import NotFoundError, SchemaError
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.kinds import KINDS, spec_from_json
from hadron.model.ports import Database
from hadron.model.schema import LostRange, SchemaObject, Tombstone, spec_to_json
from hadron.model.tables import PREFIX
from hadron.state import dropping
from hadron.state.events import SchemaChanged
from hadron.state.machine import Command, Context, Feature

SCHEMA_OBJECT: Final = PREFIX + "schema_object"
SCHEMA_INDEX: Final = PREFIX + "schema_index"
SCHEMA_TOMBSTONE: Final = PREFIX + "schema_tombstone"
SCHEMA_FORGOTTEN: Final = PREFIX + "schema_forgotten"
SCHEMA_LOST: Final = PREFIX + "schema_lost"
SCHEMA_SOURCE: Final = PREFIX + "schema_source"

_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {SCHEMA_OBJECT}(
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    spec TEXT NOT NULL,                 -- JSON, see hadron.model.kinds
    metadata_index INTEGER NOT NULL,    -- of the last change
    UNIQUE (kind, namespace, name)
) STRICT;
CREATE INDEX IF NOT EXISTS {SCHEMA_OBJECT}_changed ON {SCHEMA_OBJECT}(metadata_index);
CREATE TABLE IF NOT EXISTS {SCHEMA_INDEX}(
    only INTEGER PRIMARY KEY CHECK (only = 1),
    metadata_index INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS {SCHEMA_TOMBSTONE}(
    metadata_index INTEGER PRIMARY KEY, -- of the deletion
    id INTEGER NOT NULL,
    kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS {SCHEMA_FORGOTTEN}(
    only INTEGER PRIMARY KEY CHECK (only = 1),
    metadata_index INTEGER NOT NULL     -- whoever stands below gets the whole schema
) STRICT;
CREATE TABLE IF NOT EXISTS {SCHEMA_LOST}(
    above_index INTEGER PRIMARY KEY,    -- where it went on after its log had lost its end,
    end_index INTEGER NOT NULL          -- and where it stood then: between them others know more
) STRICT;
CREATE TABLE IF NOT EXISTS {SCHEMA_SOURCE}(
    only INTEGER PRIMARY KEY CHECK (only = 1),
    uuid BLOB NOT NULL,                 -- of the metadata set that this set adopts from
    epoch INTEGER NOT NULL
) STRICT;
"""

MAX_TOMBSTONES: Final = 10_000
"""Deletions that are remembered one by one. Whoever was away for more gets the whole schema."""


class ObjectChange(msgspec.Struct, frozen=True, array_like=True):
    """An object to create or to change."""

    kind: str
    namespace: str
    name: str
    spec_json: str


class ApplySchema(Command[tuple[SchemaObject, ...]], frozen=True, array_like=True, tag=5):
    """Create and change schema objects, all in one entry.

    The driver has validated the whole against `expected_index`; if the schema has moved on in the
    meantime the command is refused, retryable: who asks again is judged anew.
    """

    # It is how people make room: by what they let retention drop.
    uses_reserve: ClassVar[bool] = True

    expected_index: int
    changes: tuple[ObjectChange, ...]


class DeleteObjects(Command["Deleted"], frozen=True, array_like=True, tag=13):
    """Delete schema objects, all in one entry; each takes an index of its own.

    The driver has found out at `expected_index` that nothing refers to them.
    """

    uses_reserve: ClassVar[bool] = True

    expected_index: int
    ids: tuple[int, ...]


class Deleted(msgspec.Struct, frozen=True):
    """What a deletion did."""

    metadata_index: int
    deleted: tuple[Tombstone, ...]


def apply_schema(context: Context, command: ApplySchema) -> tuple[SchemaObject, ...]:
    """Returns the objects as they are now, with their ids and indexes."""
    index = check_owns(context, command.expected_index)
    applied: list[SchemaObject] = []
    for change in command.changes:
        index += 1
        applied.append(_store(context, change, index))
    set_index(context.db, index)
    declare_all(context, applied)
    context.emit(SchemaChanged(index, objects=tuple(applied)))
    return tuple(applied)


def apply_delete_objects(context: Context, command: DeleteObjects) -> Deleted:
    """Raises `NotFoundError` when one of them is not there."""
    index = check_owns(context, command.expected_index)
    deleted: list[Tombstone] = []
    for object_id in command.ids:
        row = context.db.execute(
            f"SELECT kind, namespace, name FROM {SCHEMA_OBJECT} WHERE id = ?", (object_id,)
        ).fetchone()
        if row is None:
            raise NotFoundError(f"no object has the id {object_id}")
        index += 1
        deleted.append(Tombstone(index, object_id, *row))
        forget(context, deleted[-1])
    set_index(context.db, index)
    forget_old_tombstones(context.db)
    context.emit(SchemaChanged(index, deleted=tuple(deleted)))
    return Deleted(index, tuple(deleted))


def check_owns(context: Context, expected_index: int) -> int:
    """The schema's index. Raises `SchemaError` when another set owns it, or it has moved."""
    if context.db.execute(f"SELECT 1 FROM {SCHEMA_SOURCE}").fetchone() is not None:
        raise SchemaError(
            f"{context.replica_set} adopts its schema from the metadata set",
            "change it at the leader of the metadata set",
        )
    index = current_index(context.db)
    if index != expected_index:
        raise SchemaError(
            f"the schema changed from index {expected_index} to {index} meanwhile", retryable=True
        )
    return index


def begin_history(db: Database, above_index: int) -> None:
    """What others have seen beyond this schema is not known: they get all of it, once, and what
    changes from here on has an index that they have not seen."""
    index = max(current_index(db), above_index)
    set_index(db, index)
    _note_forgotten(db, index)


def go_on_above(db: Database, above_index: int) -> None:
    """This schema's end may have been lost with the log's (`recover`). Others have seen all that is
    here, and maybe more: they get what changes from here on, with an index that they have not seen,
    and keep what they have. (All of it would take away what is lost here, with its records.)"""
    index = current_index(db)
    if index < above_index:
        db.execute(f"INSERT INTO {SCHEMA_LOST} VALUES(?, ?)", (above_index, index))
        set_index(db, above_index)


def set_index(db: Database, index: int) -> None:
    db.execute(
        f"INSERT INTO {SCHEMA_INDEX} VALUES(1, ?)"
        " ON CONFLICT(only) DO UPDATE SET metadata_index = excluded.metadata_index",
        (index,),
    )


def _store(context: Context, change: ObjectChange, index: int) -> SchemaObject:
    spec = spec_from_json(change.kind, change.spec_json)
    row = context.db.execute(
        f"INSERT INTO {SCHEMA_OBJECT} VALUES(?, ?, ?, ?, ?, ?) ON CONFLICT(kind, namespace, name)"
        " DO UPDATE SET spec = excluded.spec, metadata_index = excluded.metadata_index"
        " RETURNING id",
        (index, change.kind, change.namespace, change.name, spec_to_json(spec).decode(), index),
    ).fetchone()
    assert row is not None
    return SchemaObject(
        kind=change.kind,
        namespace=change.namespace,
        name=change.name,
        spec=spec,
        id=row[0],
        metadata_index=index,
    )


def declare_all(context: Context, items: Sequence[SchemaObject], *, refuse: bool = True) -> None:
    """Make the tables of this replica set agree with new and changed objects.

    Raises `SchemaError` for one that cannot be changed in this way. Without `refuse` what there is
    stays as it was: what the metadata set has logged cannot be undone from here, and what follows
    must not be held up.
    """
    for item in items:
        try:
            context.machine.declare(context, item)
        except SchemaError:
            if refuse:
                raise


def forget(context: Context, tombstone: Tombstone) -> None:
    """Delete one object. What this replica set holds for it goes in slices, later (`dropping`);
    its stream's partition is closed at once, and its id is never used again."""
    context.db.execute(f"DELETE FROM {SCHEMA_OBJECT} WHERE id = ?", (tombstone.id,))
    context.db.execute(
        f"INSERT INTO {SCHEMA_TOMBSTONE} VALUES(?, ?, ?, ?, ?)",
        (
            tombstone.metadata_index,
            tombstone.id,
            tombstone.kind,
            tombstone.namespace,
            tombstone.name,
        ),
    )
    dropping.begin(context, tombstone.kind, tombstone.id)


def forget_old_tombstones(db: Database) -> None:
    """Keep the latest `MAX_TOMBSTONES`, and remember up to where they are gone."""
    row = db.execute(
        f"SELECT metadata_index FROM {SCHEMA_TOMBSTONE} ORDER BY metadata_index DESC"
        f" LIMIT 1 OFFSET ?",
        (MAX_TOMBSTONES,),
    ).fetchone()
    if row is not None:
        forget_tombstones(db, row[0])


def forget_tombstones(db: Database, until_index: int) -> None:
    db.execute(f"DELETE FROM {SCHEMA_TOMBSTONE} WHERE metadata_index <= ?", (until_index,))
    _note_forgotten(db, until_index)


def _note_forgotten(db: Database, until_index: int) -> None:
    db.execute(
        f"INSERT INTO {SCHEMA_FORGOTTEN} VALUES(1, ?) ON CONFLICT(only) DO UPDATE SET"
        " metadata_index = max(metadata_index, excluded.metadata_index)",
        (until_index,),
    )


FEATURE: Final = Feature(
    name="schema",
    tables=_TABLES,
    commands={ApplySchema: apply_schema, DeleteObjects: apply_delete_objects},
)


# --- reading ------------------------------------------------------------------------------------


def current_index(db: Database) -> int:
    """The metadata index that these tables stand at."""
    row = db.execute(f"SELECT metadata_index FROM {SCHEMA_INDEX}").fetchone()
    return 0 if row is None else row[0]


def forgotten_index(db: Database) -> int:
    """Deletions up to here are not remembered one by one."""
    row = db.execute(f"SELECT metadata_index FROM {SCHEMA_FORGOTTEN}").fetchone()
    return 0 if row is None else row[0]


def lost_ranges(db: Database) -> tuple[LostRange, ...]:
    """All that was lost here, the earliest first: one for each recovery."""
    rows = db.execute(f"SELECT end_index, above_index FROM {SCHEMA_LOST} ORDER BY above_index")
    return tuple(LostRange(*row) for row in rows)


def find(db: Database, kind: str, namespace: str, name: str) -> SchemaObject | None:
    row = db.execute(
        f"SELECT id, spec, metadata_index FROM {SCHEMA_OBJECT}"
        " WHERE kind = ? AND namespace = ? AND name = ?",
        (kind, namespace, name),
    ).fetchone()
    if row is None:
        return None
    return SchemaObject(
        kind=kind,
        namespace=namespace,
        name=name,
        spec=spec_from_json(kind, row[1]),
        id=row[0],
        metadata_index=row[2],
    )


def tombstones(db: Database) -> list[Tombstone]:
    """Deletions that are remembered, the latest last: at most `MAX_TOMBSTONES`."""
    rows = db.execute(
        f"SELECT metadata_index, id, kind, namespace, name FROM {SCHEMA_TOMBSTONE}"
        " ORDER BY metadata_index"
    )
    return [Tombstone(*row) for row in rows]


def all_objects(db: Database) -> list[SchemaObject]:
    """Every object of a kind that this version knows, by id. Namespace `default` exists without
    having been declared."""
    rows = db.execute(
        f"SELECT kind, namespace, name, spec, id, metadata_index FROM {SCHEMA_OBJECT} ORDER BY id"
    )
    objects = [
        SchemaObject(
            kind=kind,
            namespace=namespace,
            name=name,
            spec=spec_from_json(kind, spec),
            id=object_id,
            metadata_index=index,
        )
        for kind, namespace, name, spec, object_id, index in rows
        if kind in KINDS
    ]
    if not any(item.kind == "Namespace" and item.name == DEFAULT_NAMESPACE for item in objects):
        objects.insert(
            0,
            SchemaObject(
                kind="Namespace", name=DEFAULT_NAMESPACE, spec=spec_from_json("Namespace", "{}")
            ),
        )
    return objects
