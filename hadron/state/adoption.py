"""Adopting the schema: how every other replica set gets the state of the metadata set's.

The metadata set's leader reads what has changed since the index that the other set stands at
(`changes_since`: a query, never the log, PROTOCOL A7), and that set's leader logs it as
`AdoptObjects`, so that its replicas get it by replication (PROTOCOL A4).

Safety rule: what is adopted follows, without a gap and without a repetition, what was adopted
before, and comes from the same metadata set.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Final

import msgspec

from hadron.model.errors import HandshakeError, SchemaError
from hadron.model.ids import last_index
from hadron.model.kinds import KINDS, spec_from_json
from hadron.model.ports import Database
from hadron.model.schema import (
    LostRange,
    RegisteredSet,
    SchemaObject,
    StreamSpec,
    Tombstone,
    label_of,
    spec_to_json,
)
from hadron.model.tables import PREFIX
from hadron.state import registry, schema
from hadron.state.events import SchemaChanged
from hadron.state.machine import Command, Context, Feature, encode
from hadron.state.schema import SCHEMA_OBJECT, SCHEMA_SOURCE, SCHEMA_TOMBSTONE

SCHEMA_STAGED: Final = PREFIX + "schema_staged"
SCHEMA_KEPT: Final = PREFIX + "schema_kept"

_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {SCHEMA_STAGED}(
    part INTEGER PRIMARY KEY,           -- from 0, of what is being adopted
    command BLOB NOT NULL               -- MessagePack: the AdoptObjects that brought it
) STRICT;
CREATE TABLE IF NOT EXISTS {SCHEMA_KEPT}(
    stream_id INTEGER NOT NULL,         -- changed by the metadata set after a recovery, which had
    partition TEXT NOT NULL,            -- lost that it has this one: it stays until it is named
    PRIMARY KEY (stream_id, partition)
) STRICT, WITHOUT ROWID;
"""

PART_BYTES: Final = 256 << 10
"""Of the schema, in one entry: some 1,000 objects, and a few milliseconds of the writer's time."""


class StoredObject(msgspec.Struct, frozen=True, array_like=True):
    """An object as the tables have it."""

    id: int
    kind: str
    namespace: str
    name: str
    spec_json: str
    metadata_index: int


class Changes(msgspec.Struct, frozen=True):
    """What leads from the schema at `from_index` to the one at `to_index`."""

    from_index: int
    to_index: int
    is_whole: bool = False
    """`objects` are all that there are: not every deletion since `from_index` is in `deleted`."""
    objects: tuple[StoredObject, ...] = ()
    deleted: tuple[Tombstone, ...] = ()
    replica_sets: tuple[RegisteredSet, ...] = ()
    lost: tuple[LostRange, ...] = ()
    """What is here with an index in one of these the metadata set does not know: with `is_whole`,
    that it does not name such an id is no deletion."""


class AdoptObjects(Command["Adopted"], frozen=True, array_like=True, tag=11):
    """One part of what leads from `from_index` to `to_index`; all take effect with the last one.

    Attributes:
        source: identity of the metadata set.
        source_epoch: its epoch.
        part: from 0.
    """

    # Without it a full disk could not be told of a shorter retention.
    uses_reserve: ClassVar[bool] = True

    source: bytes
    source_epoch: int
    from_index: int
    to_index: int
    part: int
    is_last: bool
    is_whole: bool
    objects: tuple[StoredObject, ...]
    deleted: tuple[Tombstone, ...]
    replica_sets: tuple[RegisteredSet, ...]
    lost: tuple[LostRange, ...]


class Adopted(msgspec.Struct, frozen=True):
    """Where the schema stands, and what has changed: nothing before the last part."""

    metadata_index: int
    objects: tuple[SchemaObject, ...] = ()
    deleted: tuple[Tombstone, ...] = ()
    replica_sets: tuple[RegisteredSet, ...] = ()


def apply_adopt_objects(context: Context, command: AdoptObjects) -> Adopted:
    """Raises `SchemaError` for what does not follow, `HandshakeError` for another metadata set."""
    db = context.db
    changes_source = check_source(db, command)
    check_follows(schema.current_index(db), command)
    if command.part == 0:
        db.execute(f"DELETE FROM {SCHEMA_STAGED}")
    _check_part(context, command)
    if not command.is_last:
        db.execute(f"INSERT INTO {SCHEMA_STAGED} VALUES(?, ?)", (command.part, encode(command)))
        return Adopted(command.from_index)
    parts = [*_staged(context), command]
    db.execute(f"DELETE FROM {SCHEMA_STAGED}")
    if changes_source:
        _check_nothing_is_lost(db, parts)
    db.execute(
        f"INSERT INTO {SCHEMA_SOURCE} VALUES(1, ?, ?) ON CONFLICT(only) DO UPDATE SET"
        " uuid = excluded.uuid, epoch = max(epoch, excluded.epoch)",
        (command.source, command.source_epoch),
    )
    return _take_effect(context, parts)


def check_follows(index: int, command: AdoptObjects) -> None:
    """Raises `SchemaError` unless `command` begins where this set's schema stands."""
    if command.from_index != index:
        raise SchemaError(
            f"the schema stands at index {index}, what was pushed follows {command.from_index}",
            "the metadata set asks where it stands, and goes on from there",
            retryable=True,
        )
    if command.to_index <= index:
        raise SchemaError(f"a push from index {index} to {command.to_index} goes nowhere")
    last = last_index(command.source_epoch)
    if command.to_index > last:
        raise SchemaError(
            f"a push leads to index {command.to_index}, and in epoch {command.source_epoch} of the "
            f"metadata set there is none above {last}"
        )


def check_source(db: Database, command: AdoptObjects) -> bool:
    """The metadata set that was adopted from first stays the one; only one restored from a backup,
    with a new identity and a higher epoch, may take its place, and must say all that it has.

    Returns whether it does. Raises `HandshakeError`, `SchemaError` when it says a part only.
    """
    source = current_source(db)
    if source is None:
        if schema.current_index(db) > 0:
            raise HandshakeError(
                f"this replica set has a schema of its own, at index {schema.current_index(db)}",
                "it was started as its own metadata set; a set that is to join a cluster must be "
                "new, see `metadata:` in its configuration file",
            )
        return False
    uuid, epoch = source
    if uuid == command.source:
        return False
    if command.source_epoch <= epoch:
        raise HandshakeError(
            f"this replica set adopts its schema from the metadata set with identity {uuid.hex()} "
            f"and epoch {epoch}; another one, {command.source.hex()} with epoch "
            f"{command.source_epoch}, has pushed",
            "is there a second metadata set with the same name? stop it, or give it another name",
        )
    if not command.is_whole:
        raise SchemaError(
            f"the metadata set has a new identity, {command.source.hex()}: what it has pushed is "
            "the difference to another history",
            "it pushes everything once it has asked where this set stands",
            retryable=True,
        )
    return True


def _check_nothing_is_lost(db: Database, parts: list[AdoptObjects]) -> None:
    """A metadata set that was restored from an old backup may not know what was created since:
    that has data, and is not dropped because of it. Nor does it know what was deleted since, or
    which ids were given: what is still being dropped under an id must not become another's.

    Raises `HandshakeError`.
    """
    said = {item.id: item for part in parts for item in part.objects}
    told = {
        gone.id: (gone.kind, gone.namespace, gone.name) for part in parts for gone in part.deleted
    }
    lost: list[str] = []
    rows = db.execute(f"SELECT id, kind, namespace, name, spec FROM {SCHEMA_OBJECT} ORDER BY id")
    known = {row[0]: row[1:] for row in rows}
    for object_id, (kind, namespace, name, spec) in known.items():
        item = said.get(object_id)
        label = f"{kind} {namespace}/{name}"
        if item is None or (item.kind, item.namespace, item.name) != (kind, namespace, name):
            if told.get(object_id) != (kind, namespace, name) and not _is_lost(parts, object_id):
                lost.append(label)
        elif kind == "Stream":
            lost += [f"partition {each} of {label}" for each in _lost_partitions(spec, item)]
    if lost:
        raise HandshakeError(
            f"the metadata set was restored from a backup that does not have {_some(lost)}",
            "restore it from a newer backup, or declare at the metadata set what a stream lacks; "
            "until then this replica set keeps the schema that it has",
        )
    index = schema.current_index(db)
    back = [
        f"{item.kind} {item.namespace}/{item.name} (id {item.id})"
        for item in said.values()
        if item.id <= index and item.id not in known
    ]
    if back:
        raise HandshakeError(
            "the metadata set was restored from a backup, and has what was deleted since, or "
            f"created under an id that was given before: {_some(back)}",
            "delete it at the metadata set, and declare it again if it is wanted; until then this "
            "replica set keeps the schema that it has",
        )


def _lost_partitions(spec_json: str, item: StoredObject) -> list[str]:
    before, after = (spec_from_json("Stream", each) for each in (spec_json, item.spec_json))
    assert isinstance(before, StreamSpec)
    assert isinstance(after, StreamSpec)
    return [name for name in before.partitions if name not in after.partitions]


def _some(labels: list[str]) -> str:
    return f"{', '.join(labels[:10])}{', …' if len(labels) > 10 else ''}"


def _check_part(context: Context, command: AdoptObjects) -> None:
    """Each part is compared with the first one, so that a part costs the same however many came
    before it."""
    row = context.db.execute(f"SELECT count(*) FROM {SCHEMA_STAGED}").fetchone()
    assert row is not None
    first = next(_staged(context, 1), command)
    if row[0] != command.part or _push_of(first) != _push_of(command):
        raise SchemaError(
            f"part {command.part} of the schema at index {command.to_index} came after "
            f"{row[0]} other parts",
            "the metadata set begins again with the first one",
            retryable=True,
        )


def _push_of(command: AdoptObjects) -> tuple[object, ...]:
    """What all parts of one push have in common."""
    return command.source, command.to_index, command.is_whole, command.lost


def _staged(context: Context, limit: int = -1) -> Iterator[AdoptObjects]:
    rows = context.db.execute(
        f"SELECT command FROM {SCHEMA_STAGED} ORDER BY part LIMIT ?", (limit,)
    )
    for (data,) in rows:
        command = context.machine.decode(data)
        assert isinstance(command, AdoptObjects)
        yield command


def _take_effect(context: Context, parts: list[AdoptObjects]) -> Adopted:
    db, last = context.db, parts[-1]
    objects = sorted(
        (item for part in parts for item in part.objects), key=lambda item: item.metadata_index
    )
    deleted = tuple(_deletions(db, parts, objects))
    # First: a new object may have the name of a deleted one.
    for tombstone in deleted:
        schema.forget(context, tombstone)
        db.execute(f"DELETE FROM {SCHEMA_KEPT} WHERE stream_id = ?", (tombstone.id,))
    if last.is_whole:
        schema.forget_tombstones(db, last.to_index)
    else:
        schema.forget_old_tombstones(db)
    _check_ids(db, objects)
    if db.execute(f"SELECT 1 FROM {SCHEMA_OBJECT} LIMIT 1").fetchone() is not None:
        _check_names(db, objects)
    taken = [_with_what_was_lost(db, last.lost, item) for item in objects]
    for item in taken:
        _store(db, item)
    adopted = parse(taken)
    replica_sets = tuple(item for part in parts for item in part.replica_sets)
    for registered in replica_sets:
        registry.store(db, registered)
    schema.set_index(db, last.to_index)
    schema.declare_all(context, adopted, refuse=False)
    context.emit(SchemaChanged(last.to_index, tuple(adopted), deleted, replica_sets))
    return Adopted(last.to_index, tuple(adopted), deleted, replica_sets)


def _deletions(
    db: Database, parts: list[AdoptObjects], objects: list[StoredObject]
) -> Iterator[Tombstone]:
    """Of the objects that are here, those that are to go."""
    if parts[-1].is_whole:
        kept = {item.id for item in objects}
        rows = db.execute(f"SELECT id, kind, namespace, name FROM {SCHEMA_OBJECT} ORDER BY id")
        gone = [row for row in rows if row[0] not in kept and not _is_lost(parts, row[0])]
        # Their own indexes are not known; any that are not taken do, they are forgotten at once.
        yield from (Tombstone(-row[0], *row) for row in gone)
        return
    for told in (each for part in parts for each in part.deleted):
        row = db.execute(
            f"SELECT kind, namespace, name FROM {SCHEMA_OBJECT} WHERE id = ?", (told.id,)
        ).fetchone()
        # An id that is another one's here was given by a metadata set that had lost its log; what
        # is here under it has records.
        if row is None or row == (told.kind, told.namespace, told.name):
            yield told


def _is_lost(parts: list[AdoptObjects], object_id: int) -> bool:
    """The metadata set cannot know an object of this id: it has lost that part of its log."""
    return any(object_id in each for each in parts[-1].lost)


def _check_ids(db: Database, objects: list[StoredObject]) -> None:
    """An id means one object, under one name, for ever: what was deleted may still be being dropped
    under it. A metadata set that has lost a part of its log may say otherwise.

    Raises `HandshakeError`.
    """
    index = schema.current_index(db)
    for item in objects:
        if item.id > index:
            continue
        row = db.execute(
            f"SELECT kind, namespace, name FROM {SCHEMA_OBJECT} WHERE id = ?", (item.id,)
        ).fetchone()
        if row != (item.kind, item.namespace, item.name):
            here = "was deleted here" if row is None else f"is {row[0]} {row[1]}/{row[2]} here"
            raise HandshakeError(
                f"{item.kind} {item.namespace}/{item.name} (id {item.id}) {here}, of which the "
                "metadata set knows nothing: it has lost a part of its log",
                "delete it at the metadata set, and declare it again if it is wanted; until then "
                "this replica set keeps the schema that it has",
            )


def _check_names(db: Database, objects: list[StoredObject]) -> None:
    """Raises `HandshakeError` for a name that another object has here, of which the metadata set
    knows nothing."""
    for item in objects:
        row = db.execute(
            f"SELECT id FROM {SCHEMA_OBJECT} WHERE kind = ? AND namespace = ? AND name = ?"
            " AND id != ?",
            (item.kind, item.namespace, item.name, item.id),
        ).fetchone()
        if row is not None:
            raise HandshakeError(
                f"{item.kind} {item.namespace}/{item.name} has the id {row[0]} here, of which the "
                f"metadata set knows nothing, and {item.id} there: it has lost a part of its log",
                "delete it at the metadata set, and use another name; until then this replica set "
                "keeps the schema that it has",
            )


def _with_what_was_lost(
    db: Database, lost: tuple[LostRange, ...], item: StoredObject
) -> StoredObject:
    """A pushed object as it is to be here. Where its latest change here is lost at the metadata
    set, what that says of it is older, and changes nothing, unless it has changed it anew."""
    row = db.execute(
        f"SELECT spec, metadata_index FROM {SCHEMA_OBJECT} WHERE id = ?", (item.id,)
    ).fetchone()
    if row is None:
        return item
    spec_json, index = row
    is_lost = any(index in each for each in lost)
    if is_lost and item.metadata_index < index:
        return msgspec.structs.replace(item, spec_json=spec_json, metadata_index=index)
    kept = _kept_partitions(db, spec_json, item, is_lost=is_lost) if item.kind == "Stream" else []
    return _with_partitions(item, kept) if kept else item


def _kept_partitions(
    db: Database, spec_json: str, item: StoredObject, *, is_lost: bool
) -> list[str]:
    """Those that a stream has here, and that the metadata set cannot have removed: it has lost that
    there are any. Once it has named one it may."""
    rows = db.execute(f"SELECT partition FROM {SCHEMA_KEPT} WHERE stream_id = ?", (item.id,))
    before = {name for (name,) in rows}
    if not before and not is_lost:
        return []
    kept = [name for name in _lost_partitions(spec_json, item) if is_lost or name in before]
    db.execute(f"DELETE FROM {SCHEMA_KEPT} WHERE stream_id = ?", (item.id,))
    db.executemany(
        f"INSERT OR IGNORE INTO {SCHEMA_KEPT} VALUES(?, ?)", [(item.id, name) for name in kept]
    )
    return kept


def _with_partitions(item: StoredObject, kept: list[str]) -> StoredObject:
    """Behind all others: there they can be declared again without moving keys."""
    spec = spec_from_json("Stream", item.spec_json)
    assert isinstance(spec, StreamSpec)
    spec = msgspec.structs.replace(spec, partitions=(*spec.partitions, *kept))
    return msgspec.structs.replace(item, spec_json=spec_to_json(spec).decode())


def _store(db: Database, item: StoredObject) -> None:
    db.execute(
        f"INSERT INTO {SCHEMA_OBJECT} VALUES(?, ?, ?, ?, ?, ?) ON CONFLICT(id) DO UPDATE SET"
        " spec = excluded.spec, metadata_index = excluded.metadata_index",
        (item.id, item.kind, item.namespace, item.name, item.spec_json, item.metadata_index),
    )


def parse(objects: Iterable[StoredObject]) -> list[SchemaObject]:
    """Those of a kind that this version knows. Raises `SchemaError`."""
    return [
        SchemaObject(
            kind=item.kind,
            namespace=item.namespace,
            name=item.name,
            id=item.id,
            spec=spec_from_json(item.kind, item.spec_json),
            metadata_index=item.metadata_index,
        )
        for item in objects
        if item.kind in KINDS
    ]


FEATURE: Final = Feature(
    name="adoption", tables=_TABLES, commands={AdoptObjects: apply_adopt_objects}
)


# --- reading ------------------------------------------------------------------------------------


def current_source(db: Database) -> tuple[bytes, int] | None:
    """(identity, epoch) of the metadata set that was adopted from; None on that set itself, and
    before the first push."""
    row = db.execute(f"SELECT uuid, epoch FROM {SCHEMA_SOURCE}").fetchone()
    return None if row is None else (row[0], row[1])


def changes_since(db: Database, from_index: int, *, whole: bool = False) -> Changes:
    """All that is different from the schema at `from_index`; the work is that of the difference.

    Beyond the tombstones that are kept, or with `whole`, it is everything.
    """
    to_index = schema.current_index(db)
    if from_index >= to_index:
        return Changes(from_index, to_index)
    is_whole = whole or from_index < schema.forgotten_index(db)
    after = 0 if is_whole else from_index
    return Changes(
        from_index,
        to_index,
        is_whole,
        tuple(objects_after(db, after)),
        tuple(tombstones_after(db, after)),
        tuple(registry.registered_sets(db, after)),
        schema.lost_ranges(db),
    )


def what_was_lost(db: Database, lost: Sequence[LostRange], limit: int) -> list[str]:
    """Up to `limit` of what these tables have of what the metadata set has lost, in words: whatever
    was changed, or deleted, by a change with an index of these ranges, and not since."""
    return list(itertools.islice(_lost_labels(db, lost), limit))


def _lost_labels(db: Database, lost: Sequence[LostRange]) -> Iterator[str]:
    for each in lost:
        rows = db.execute(
            f"SELECT kind, namespace, name FROM {SCHEMA_OBJECT}"
            " WHERE metadata_index > ? AND metadata_index <= ? ORDER BY metadata_index",
            (each.end_index, each.above_index),
        )
        yield from (label_of(*row) for row in rows)
    rows = db.execute(
        f"SELECT partition, kind, namespace, name FROM {SCHEMA_KEPT}"
        f" JOIN {SCHEMA_OBJECT} ON id = stream_id ORDER BY stream_id, partition"
    )
    yield from (f"partition {partition} of {label_of(*row)}" for partition, *row in rows)
    for each in lost:
        # What was made within such a range is as unknown there as its end.
        rows = db.execute(
            f"SELECT kind, namespace, name FROM {SCHEMA_TOMBSTONE}"
            " WHERE metadata_index > ? AND metadata_index <= ? AND id <= ? AND id NOT IN"
            f" (SELECT id FROM {SCHEMA_TOMBSTONE} WHERE metadata_index > ?)"
            " ORDER BY metadata_index",
            (each.end_index, each.above_index, each.end_index, each.above_index),
        )
        yield from (f"the deletion of {label_of(*row)}" for row in rows)


def objects_after(db: Database, index: int) -> Iterator[StoredObject]:
    """Those whose last change came after `index`, in that order; read as they are taken."""
    rows = db.execute(
        f"SELECT id, kind, namespace, name, spec, metadata_index FROM {SCHEMA_OBJECT}"
        " WHERE metadata_index > ? ORDER BY metadata_index",
        (index,),
    )
    return (StoredObject(*row) for row in rows)


def tombstones_after(db: Database, index: int) -> Iterator[Tombstone]:
    """Deletions after `index`, in their order, as far as they are remembered. Also of what came and
    went in between: others have seen it, and ask whoever adopts this."""
    rows = db.execute(
        f"SELECT metadata_index, id, kind, namespace, name FROM {SCHEMA_TOMBSTONE}"
        " WHERE metadata_index > ? ORDER BY metadata_index",
        (index,),
    )
    return (Tombstone(*row) for row in rows)
