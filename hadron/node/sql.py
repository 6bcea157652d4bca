"""SQL over the records in a node's files: of a running node, of a stopped one, of a backup.

    with open_records(Path("hadron-data")) as records:
        records.db.execute("SELECT offset, value ->> '$.carrier' FROM record WHERE stream = ?", …)

A file knows which of its entries are committed as its node last wrote that down (`meta`,
`committed_lsn`): a replica does so with every write, a leader when it begins to lead. Where the
leader is the set's only member, all that it has written is committed. Whoever knows more, because
the running leader said so, passes that.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import apsw

from hadron.model.errors import CorruptionError, DataDirectoryError
from hadron.node.record_table import OnDamage, RecordTable
from hadron.node.verification import database_of, owner_of
from hadron.state.leadership import CONFIGURATION
from hadron.state.schema import SCHEMA_OBJECT
from hadron.state.streams.tables import STREAM_BATCH
from hadron.storage.database import (
    FORMAT_VERSION,
    check_version,
    open_database,
    read_transaction,
    translated_errors,
)
from hadron.storage.generations import DATABASE
from hadron.storage.identity import LOCK, NODE_DATABASE, Owner, in_use
from hadron.storage.log import META, get_meta, get_text
from hadron.storage.snapshot import DIVERGED

_NODES_FILES: Final = (DATABASE, NODE_DATABASE)
_MAGIC: Final = b"SQLite format 3\0"

AskNode = Callable[[Owner, int], int]
"""Asks the running node with these files, a process with this id, up to where its log is committed;
0 when nobody can say."""


@dataclass(frozen=True, slots=True)
class Records:
    """An open file.

    Attributes:
        db: a connection of its own, in memory, whose table `record` has the file's records. It may
            attach other files and write to them; a node's are refused.
        path: the database file.
        last_lsn: the last entry whose work is in the file.
        committed_lsn: entries up to here are shown.
    """

    db: apsw.Connection
    path: Path
    last_lsn: int
    committed_lsn: int


@contextmanager
def open_records(
    path: Path, *, on_damage: OnDamage | None = None, ask_node: AskNode | None = None
) -> Iterator[Records]:
    """Open the records of a data directory, a backup, or a `hadron.db`.

    Args:
        on_damage: told what cannot be read and is left out; None raises `CorruptionError`.
        ask_node: asked for the watermark when the file leaves something open and its node runs.

    Raises:
        ConfigurationError: there is no such file.
        DataDirectoryError: it cannot be read, is no node's, is of another format, or has no tables
            that are worth reading. Also when a statement attaches a node's file, or vacuums into
            one.
        CorruptionError: it is damaged.
    """
    database = database_of(path)
    is_live = in_use(database.parent)
    owner, _ = owner_of(database)
    if owner is None and not _may_be_a_nodes(database):
        # Not damaged, and nothing that anybody is to move away.
        raise DataDirectoryError(
            f"{database} is not a hadron.db", "give a data directory, a backup, or a hadron.db"
        )
    with (
        translated_errors(database),
        closing(open_database(database, is_live)) as source,
        closing(apsw.Connection(":memory:")) as db,
    ):
        with read_transaction(source):
            last_lsn, committed_lsn = _watermark(source, database)
        if committed_lsn < last_lsn and is_live and owner is not None and ask_node is not None:
            said = ask_node(owner, _pid_of(database.parent))
            committed_lsn = min(last_lsn, max(committed_lsn, said))
        RecordTable(
            source,
            owner.replica_set if owner is not None else None,
            committed_lsn,
            on_damage or _refuse,
        ).register(db)
        db.authorizer = partial(_refuse_nodes_files, database)
        yield Records(db, database, last_lsn, committed_lsn)


def _may_be_a_nodes(path: Path) -> bool:
    with path.open("rb") as file:
        return path.name == DATABASE or file.read(len(_MAGIC)) in (_MAGIC, b"")


def _refuse_nodes_files(own: Path, action: int, name: Any, *_: Any) -> int:
    """SQLite's authorizer. Whoever attaches a node's file has it open for writing: one slip, and
    acknowledged records are gone; even a look leaves pages that the node refuses."""
    if action != apsw.SQLITE_ATTACH or name is None:
        # A name that is bound or computed is not told here; it is no slip either.
        return apsw.SQLITE_OK
    path = Path(name).resolve()
    is_own = path.exists() and os.path.samefile(path, own)
    if is_own or path.name.startswith(_NODES_FILES):
        raise DataDirectoryError(
            f"{name} is a node's file, which only its node may write",
            "its records are in the table `record`; attach a file of another name",
        )
    return apsw.SQLITE_OK


def _pid_of(directory: Path) -> int:
    """Of the running node whose directory this is."""
    text = (directory / LOCK).read_text().partition("\n")[0].strip()
    return int(text) if text.isdigit() else 0


def _watermark(source: apsw.Connection, path: Path) -> tuple[int, int]:
    """The last entry whose work is in the tables, and up to which they are known to be
    committed."""
    check_version(source, path, FORMAT_VERSION)
    names = {name for (name,) in source.execute("SELECT name FROM sqlite_schema")}
    if not {META, STREAM_BATCH, SCHEMA_OBJECT} <= names:
        raise DataDirectoryError(
            f"{path} has no records: it is no node's database, or has never been a member's",
            "give a data directory, a backup, or a hadron.db",
        )
    if diverged := get_text(source, DIVERGED):
        raise DataDirectoryError(
            f"the tables of {path} are worth nothing: {diverged}",
            "give another member's directory; this node waits for a snapshot",
        )
    applied = get_meta(source, "applied_lsn")
    row = source.execute(
        f"SELECT members FROM {CONFIGURATION} ORDER BY epoch DESC LIMIT 1"
    ).fetchone()
    is_alone = row is not None and len(json.loads(row[0])) == 1
    return applied, applied if is_alone else get_meta(source, "committed_lsn")


def _refuse(what: str, error: BaseException) -> None:
    raise CorruptionError(
        f"{what} cannot be read: {error}", "`hadron verify` shows all that is damaged"
    ) from error
