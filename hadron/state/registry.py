"""Which replica set a name belongs to: a table of the metadata set, pushed to every other one.

Safety rule: a name belongs to the identity that had it first. Two sets of one name would both take
records for the same partitions; the later one is refused. Only a higher epoch may take a name
over: a set that was restored from a backup has a new identity and a raised epoch.
"""

from __future__ import annotations

from typing import ClassVar, Final

from hadron.model.errors import HandshakeError
from hadron.model.ids import last_index_beside
from hadron.model.ports import Database
from hadron.model.schema import RegisteredSet
from hadron.model.tables import PREFIX
from hadron.state import schema
from hadron.state.events import SchemaChanged
from hadron.state.machine import Command, Context, Feature, NoChange

REPLICA_SET: Final = PREFIX + "replica_set"

_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {REPLICA_SET}(
    name TEXT PRIMARY KEY,
    uuid BLOB NOT NULL,
    epoch INTEGER NOT NULL,             -- the highest that was heard of
    metadata_index INTEGER NOT NULL     -- of the last change
) STRICT, WITHOUT ROWID;
"""


class RegisterReplicaSet(Command[RegisteredSet], frozen=True, array_like=True, tag=12):
    """A replica set has introduced itself to the metadata set."""

    uses_reserve: ClassVar[bool] = True

    name: str
    uuid: bytes
    epoch: int
    above_index: int = 0
    """The set has adopted a schema up to here from a metadata set whose place this one has taken:
    the index goes on above it, so that no index and no id means two things."""


def apply_register_replica_set(context: Context, command: RegisterReplicaSet) -> RegisteredSet:
    """Raises `HandshakeError` when the name belongs to another set, or the set has seen an index
    that there cannot be."""
    known = find(context.db, command.name)
    if known is not None:
        is_known = known.uuid == command.uuid and known.epoch >= command.epoch
        if is_known and schema.current_index(context.db) > command.above_index:
            raise NoChange(known)
        check_owner(known, command.uuid, command.epoch)
    index = schema.check_owns(context, schema.current_index(context.db))
    last = last_index_beside(index, context.ballot.epoch)
    if command.above_index > last:
        raise HandshakeError(
            f"replica set {command.name} has seen the schema at index {command.above_index}: it "
            f"stands at {index} here, and nobody can have seen more than {last}"
        )
    index = max(index, command.above_index) + 1
    epoch = command.epoch if known is None else max(known.epoch, command.epoch)
    registered = RegisteredSet(command.name, command.uuid, epoch, index)
    store(context.db, registered)
    schema.set_index(context.db, index)
    context.emit(SchemaChanged(index, replica_sets=(registered,)))
    return registered


def check_owner(known: RegisteredSet, uuid: bytes, epoch: int) -> None:
    """Raises `HandshakeError` unless whoever has this `uuid` may have the name."""
    if known.uuid != uuid and epoch <= known.epoch:
        raise HandshakeError(
            f"replica set {known.name} is registered with identity {known.uuid.hex()} and epoch "
            f"{known.epoch}; another one with identity {uuid.hex()} and epoch {epoch} has the same "
            "name",
            "give one of them another name; or, if the registered one is gone for good and this "
            "takes its place, raise its `epoch`",
        )


def store(db: Database, registered: RegisteredSet) -> None:
    db.execute(
        f"INSERT INTO {REPLICA_SET} VALUES(?, ?, ?, ?) ON CONFLICT(name) DO UPDATE SET"
        " uuid = excluded.uuid, epoch = excluded.epoch, metadata_index = excluded.metadata_index",
        (registered.name, registered.uuid, registered.epoch, registered.metadata_index),
    )


FEATURE: Final = Feature(
    name="registry", tables=_TABLES, commands={RegisterReplicaSet: apply_register_replica_set}
)


# --- reading ------------------------------------------------------------------------------------


def find(db: Database, name: str) -> RegisteredSet | None:
    row = db.execute(
        f"SELECT name, uuid, epoch, metadata_index FROM {REPLICA_SET} WHERE name = ?", (name,)
    ).fetchone()
    return None if row is None else RegisteredSet(*row)


def registered_sets(db: Database, after_index: int = 0) -> list[RegisteredSet]:
    """Those whose last change came after `after_index`, in that order."""
    rows = db.execute(
        f"SELECT name, uuid, epoch, metadata_index FROM {REPLICA_SET} WHERE metadata_index > ?"
        " ORDER BY metadata_index",
        (after_index,),
    )
    return [RegisteredSet(*row) for row in rows]
