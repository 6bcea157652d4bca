"""Schema objects on this replica set, and what adopting them means for its own tables.

The metadata replica set logs `ApplySchema`; every replica set (that one included, in the same
entry) adopts what concerns it, so `apply` never reads schema from outside its own log
(PROTOCOL A4). Names are for people: everything else refers to an object by its id, the metadata
index of its creation, so a stream that is deleted and created again is another stream
(PROTOCOL D3).
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from hadron.model.errors import SchemaError
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.ports import Database
from hadron.model.schema import (
    PipelineSpec,
    SchemaObject,
    StreamSpec,
    spec_from_json,
    spec_to_json,
)
from hadron.state import pipelines, streams
from hadron.state.machine import Command, Context, applies, tables

tables("""
CREATE TABLE IF NOT EXISTS schema_object(
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    spec TEXT NOT NULL,                 -- JSON, see hadron.model.schema
    metadata_index INTEGER NOT NULL,    -- of the last change
    UNIQUE (kind, namespace, name)
) STRICT;
CREATE TABLE IF NOT EXISTS schema_index(
    only INTEGER PRIMARY KEY CHECK (only = 1),
    metadata_index INTEGER NOT NULL
) STRICT;
""")


class ObjectChange(msgspec.Struct, frozen=True, array_like=True):
    """An object to create or to change."""

    kind: str
    namespace: str
    name: str
    spec_json: str


class ApplySchema(Command, frozen=True, array_like=True, tag=5):
    """Create and change schema objects, all in one entry.

    The driver has validated the whole against `expected_index`; if the schema has moved on in the
    meantime the command is refused and the driver validates again.
    """

    # It is how people make room: by what they let retention drop.
    uses_reserve: ClassVar[bool] = True

    expected_index: int
    changes: tuple[ObjectChange, ...]


@applies(ApplySchema)
def apply_schema(context: Context, command: ApplySchema) -> tuple[SchemaObject, ...]:
    """Returns the objects as they are now, with their ids and indexes."""
    index = current_index(context.db)
    if index != command.expected_index:
        raise SchemaError(
            f"the schema changed from index {command.expected_index} to {index} meanwhile",
            retryable=True,
        )
    applied: list[SchemaObject] = []
    for change in command.changes:
        index += 1
        applied.append(_store(context, change, index))
    context.db.execute(
        "INSERT INTO schema_index VALUES(1, ?)"
        " ON CONFLICT(only) DO UPDATE SET metadata_index = excluded.metadata_index",
        (index,),
    )
    # Streams first: a pipeline declared in the same apply looks at its input's partition.
    for item in sorted(applied, key=lambda item: item.kind != "Stream"):
        _adopt(context, item)
    return tuple(applied)


def _store(context: Context, change: ObjectChange, index: int) -> SchemaObject:
    spec = spec_from_json(change.kind, change.spec_json)
    row = context.db.execute(
        "INSERT INTO schema_object VALUES(?, ?, ?, ?, ?, ?) ON CONFLICT(kind, namespace, name)"
        " DO UPDATE SET spec = excluded.spec, metadata_index = excluded.metadata_index"
        " RETURNING id",
        (
            index, change.kind, change.namespace, change.name, spec_to_json(spec).decode(), index,
        ),
    ).fetchone()
    assert row is not None
    return SchemaObject(
        kind=change.kind, namespace=change.namespace, name=change.name, spec=spec,
        id=row[0], metadata_index=index,
    )


def _adopt(context: Context, item: SchemaObject) -> None:
    """Make the tables of this replica set agree with an object."""
    spec = item.spec
    if isinstance(spec, StreamSpec) and context.replica_set in spec.partitions:
        streams.create_partition(context, item.id)
    elif isinstance(spec, PipelineSpec) and spec.replica_set == context.replica_set:
        source = find(context.db, "Stream", item.namespace, spec.input)
        if source is not None:
            pipelines.adopt(context, item.id, spec, source.id)


# --- reading ------------------------------------------------------------------------------------


def current_index(db: Database) -> int:
    """The metadata index that these tables stand at."""
    row = db.execute("SELECT metadata_index FROM schema_index").fetchone()
    return 0 if row is None else row[0]


def find(db: Database, kind: str, namespace: str, name: str) -> SchemaObject | None:
    row = db.execute(
        "SELECT id, spec, metadata_index FROM schema_object"
        " WHERE kind = ? AND namespace = ? AND name = ?",
        (kind, namespace, name),
    ).fetchone()
    if row is None:
        return None
    return SchemaObject(
        kind=kind, namespace=namespace, name=name, spec=spec_from_json(kind, row[1]),
        id=row[0], metadata_index=row[2],
    )


def all_objects(db: Database) -> list[SchemaObject]:
    """Every object, by id. Namespace `default` exists without having been declared."""
    rows = db.execute(
        "SELECT kind, namespace, name, spec, id, metadata_index FROM schema_object ORDER BY id"
    )
    objects = [
        SchemaObject(
            kind=kind, namespace=namespace, name=name, spec=spec_from_json(kind, spec),
            id=object_id, metadata_index=index,
        )
        for kind, namespace, name, spec, object_id, index in rows
    ]
    if not any(item.kind == "Namespace" and item.name == DEFAULT_NAMESPACE for item in objects):
        objects.insert(
            0,
            SchemaObject(
                kind="Namespace", name=DEFAULT_NAMESPACE, spec=spec_from_json("Namespace", "{}")
            ),
        )
    return objects
