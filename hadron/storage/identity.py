"""`node.db`: who a data directory belongs to, what it has promised, how often it was started.

Apart from the log on purpose: a snapshot replaces the log's file, and a promise must survive that
(PROTOCOL B6). Every write is fsynced before the call returns, whatever the durability setting.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from hadron.model.errors import DataDirectoryError, FencedError, NotReadyError
from hadron.model.ids import EMPTY_LOG, NO_BALLOT, Ballot, LogPosition
from hadron.model.ports import Disk
from hadron.storage.checksums import RESERVED_BYTES, require_checksums
from hadron.storage.database import (
    check_format,
    check_sqlite_version,
    connect,
    mark_format,
    open_reader,
    transaction,
    translated_errors,
    translated_os_errors,
)
from hadron.storage.tables import make_tables

TABLES: Final = """
CREATE TABLE IF NOT EXISTS identity(
    only INTEGER PRIMARY KEY CHECK (only = 1),
    cluster TEXT NOT NULL, replica_set TEXT NOT NULL, node TEXT NOT NULL,
    boot INTEGER NOT NULL,            -- starts of this node, counted
    uuid BLOB NOT NULL,               -- of the replica set; empty until it exists
    is_member INTEGER NOT NULL,       -- whether this disk may count in a majority
    epoch INTEGER NOT NULL, incarnation INTEGER NOT NULL,   -- highest promise
    config_digest BLOB NOT NULL,      -- of the configuration of that promise's epoch
    -- Whether the last run was stopped in order: then nothing stands in the write-ahead log.
    clean INTEGER NOT NULL DEFAULT 1,
    -- The kernel's boot id, where commits survive only as long as the kernel does; else NULL.
    kernel TEXT,
    -- Why hadron.db is not to be opened again; "" when nothing is wrong with it.
    suspect TEXT NOT NULL DEFAULT '',
    -- Random, to tell this disk from another one of the same node; empty until it is named.
    disk BLOB NOT NULL DEFAULT x'',
    -- An entry that the log has, or has trimmed; 0 for none: a log without it is an older one.
    mark_lsn INTEGER NOT NULL DEFAULT 0,
    mark_epoch INTEGER NOT NULL DEFAULT 0,
    mark_incarnation INTEGER NOT NULL DEFAULT 0,
    mark_chain BLOB NOT NULL DEFAULT x''
) STRICT;
CREATE TABLE IF NOT EXISTS peer_disk(
    name TEXT NOT NULL, disk BLOB NOT NULL,
    boot INTEGER NOT NULL, start BLOB NOT NULL,     -- of the latest start that this node has seen
    seen INTEGER NOT NULL,                          -- the highest of a name: its latest disk
    PRIMARY KEY (name, disk)
) STRICT;
"""

NODE_DATABASE: Final = "node.db"
LOCK: Final = "node.lock"
"""Locked by the running node; its first line is that process's id."""

_FORMAT_VERSION: Final = 1
"""Of `node.db`."""

_DISKS_REMEMBERED: Final = 16
"""Of each peer: whoever puts back the one before has an old copy longer than anybody keeps it."""

_BUSY_MS: Final = 500
"""How long a write waits for others who look into the file, a backup for instance. A person may
look for longer; the writer's thread must not, so what was to be written is refused then."""

_LOOK_S: Final = 0.01
_LOOKS: Final = 100
"""How often, and how long after each other, a start tries to lock a directory at which others only
look: that takes them microseconds."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What `node.db` holds, as read at start."""

    cluster: str
    replica_set: str
    node: str
    boot: int
    uuid: bytes
    is_member: bool
    promised: Ballot
    config_digest: bytes
    disk: bytes


class PeerStart(NamedTuple):
    """One start of a node: from which disk, its number, and what tells it from another one of that
    number."""

    disk: bytes
    boot: int
    start: bytes


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose data directory it is."""

    cluster: str
    replica_set: str
    node: str
    uuid: bytes


class Promise(NamedTuple):
    """The highest ballot that a node has promised, and to which configuration of its epoch."""

    ballot: Ballot
    config_digest: bytes
    """Empty where an operator's command has promised it, for a configuration that is not known."""

    def check_epoch(self, epoch: int, config_digest: bytes) -> None:
        """Raises `FencedError` for a configuration that the node must not start with: an older one
        than was promised, or another one of the same epoch (PROTOCOL B1)."""
        if epoch < self.ballot.epoch:
            raise FencedError(
                f"the configuration has epoch {epoch}, this node has promised epoch "
                f"{self.ballot.epoch}",
                "use the newest configuration file of the replica set",
            )
        self.check_digest(epoch, config_digest)

    def check_digest(self, epoch: int, config_digest: bytes) -> None:
        """Raises `FencedError` for another configuration of the epoch that was promised."""
        if epoch == self.ballot.epoch and self.config_digest not in (b"", config_digest):
            raise FencedError(
                f"epoch {epoch} was promised to another configuration",
                "raise `epoch` whenever node names or roles change",
            )


NO_PROMISE: Final = Promise(NO_BALLOT, b"")


def read_owner(directory: Path) -> Owner | None:
    """Whose directory this is, from its `node.db`; None when there is none. Writes nothing.

    Raises `DataDirectoryError` when the file cannot be read or is of another format,
    `CorruptionError` when it is damaged.
    """
    path = directory / NODE_DATABASE
    if not path.exists():
        return None
    with _reading(path) as connection:
        row = connection.execute("SELECT cluster, replica_set, node, uuid FROM identity").fetchone()
    return None if row is None else Owner(*row)


def check_owner(
    directory: Path, found: tuple[str, str, str], expected: tuple[str, str, str]
) -> None:
    """Compare two (cluster, replica set, node); raises `DataDirectoryError`."""
    if found != expected:
        cluster, replica_set, node = found
        raise DataDirectoryError(
            f"the data directory {directory} belongs to node {node} of {replica_set} in cluster "
            f"{cluster}, not to node {expected[2]} of {expected[1]} in cluster {expected[0]}",
            "check `data:` in the configuration; every node needs a directory of its own",
        )


def read_promise(directory: Path) -> Promise:
    """What this directory's node has promised; `NO_PROMISE` without a `node.db`. Writes nothing.

    Raises what `read_owner` raises.
    """
    path = directory / NODE_DATABASE
    if not path.exists():
        return NO_PROMISE
    with _reading(path) as connection:
        row: Any = connection.execute(
            "SELECT epoch, incarnation, config_digest FROM identity"
        ).fetchone()
    return NO_PROMISE if row is None else Promise(Ballot(row[0], row[1]), row[2])


def read_epoch(directory: Path) -> int:
    """The highest epoch that this directory's node has promised, 0 for none; as `read_promise`."""
    return read_promise(directory).ballot.epoch


def read_membership(directory: Path, disk: Disk) -> bool:
    """Whether this directory's disk may count in a majority; False without a `node.db`. Writes
    nothing.

    Raises what `read_owner` raises.
    """
    path = directory / NODE_DATABASE
    if not path.is_file():
        return False
    with _reading(path, disk.vfs) as connection:
        row: Any = connection.execute("SELECT is_member FROM identity").fetchone()
    return row is not None and bool(row[0])


def read_last_stop(directory: Path) -> LastStop:
    """How the last run on this directory ended. Writes nothing.

    Raises what `read_owner` raises.
    """
    with _reading(directory / NODE_DATABASE) as connection:
        return _load_last_stop(connection)


@contextlib.contextmanager
def _reading(path: Path, vfs: str = "") -> Iterator[apsw.Connection]:
    """Writes nothing of its own: what a crash has left of a commit is rolled back, as any start
    does. Without that the file cannot be read."""
    try:
        connection = open_reader(path, vfs=vfs)
    except DataDirectoryError as error:
        if getattr(error.__cause__, "extendedresult", 0) != apsw.SQLITE_READONLY_ROLLBACK:
            raise
        _roll_back(path, vfs)
        connection = open_reader(path, vfs=vfs)
    with contextlib.closing(connection), translated_errors(path):
        check_format(connection, path, _FORMAT_VERSION, prefix="")
        yield connection


def _roll_back(path: Path, vfs: str) -> None:
    """End a commit whose process is gone. One that lives, a node's too, holds a lock on the file
    for as long as it has begun one, and SQLite touches nothing then."""
    with (
        translated_errors(path),
        contextlib.closing(connect(path, vfs=vfs, flags=apsw.SQLITE_OPEN_READWRITE)) as connection,
    ):
        connection.set_busy_timeout(_BUSY_MS)
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()


def _load_last_stop(connection: apsw.Connection) -> LastStop:
    row: Any = connection.execute(
        "SELECT clean, kernel, suspect, mark_lsn, mark_epoch, mark_incarnation, mark_chain"
        " FROM identity"
    ).fetchone()
    if row is None:
        return LastStop(True, None, "")
    clean, kernel, suspect, lsn, epoch, incarnation, chain = row
    mark = LogPosition(lsn, Ballot(epoch, incarnation), chain) if lsn else EMPTY_LOG
    return LastStop(bool(clean), kernel, suspect, mark)


def in_use(directory: Path) -> bool:
    """Whether a node runs on this directory."""
    try:
        file = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _try_lock(file, fcntl.LOCK_SH)
    except OSError:
        return True
    finally:
        os.close(file)


def _try_lock(file: int, how: int) -> bool:
    """Whether nobody else's lock is in the way. Raises `OSError` where there are no locks."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class LastStop:
    """How the run before this one ended."""

    clean: bool
    kernel: str | None
    """The boot id under which it ran, if its commits relied on the kernel to survive."""
    suspect: str
    """Why its database must not be opened, "" when nobody has said so."""
    mark: LogPosition = EMPTY_LOG
    """Where its log went at least; `EMPTY_LOG` where nobody has written that down."""


class DirectoryLock:
    """Keeps a second process off a data directory for as long as this one lives.

    Makes the directory where there is none, for good: what is flushed in it must not go with a name
    that was not.
    """

    def __init__(self, directory: Path, disk: Disk) -> None:
        self.path = directory / LOCK
        try:
            disk.make_directory(directory)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except (FileExistsError, NotADirectoryError) as error:
            raise DataDirectoryError(
                f"the data directory {directory} is, or is in, a file", "name a directory"
            ) from error
        except OSError as error:
            raise DataDirectoryError(
                f"the data directory {directory} cannot be written: {error.strerror}",
                "check its owner, its mode and the disk",
            ) from error
        try:
            with translated_os_errors(self.path):
                self._take(directory)
        except BaseException:
            self.release()
            raise

    def _take(self, directory: Path) -> None:
        for _ in range(_LOOKS):
            if _try_lock(self._file, fcntl.LOCK_EX):
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
                return
            if not _try_lock(self._file, fcntl.LOCK_SH):
                break
            # Nobody has it for himself: somebody looks whether it is in use.
            time.sleep(_LOOK_S)
        owner = os.pread(self._file, 32, 0).decode(errors="replace").strip() or "unknown"
        raise DataDirectoryError(
            f"the data directory {directory} is in use by process {owner}",
            "stop that node first, or give this one another directory",
        )

    def release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class IdentityFile:
    """Reads and writes `node.db`.

    Whatever writes raises `NotReadyError`, and has changed nothing, while another program has the
    file locked: who reads it in a transaction keeps everybody from writing. That ends nothing;
    whoever was to be answered is refused, and asks again.

    Attributes:
        trouble: that the latest write was kept from it, in words; else "".
    """

    trouble = ""

    def __init__(
        self, directory: Path, cluster: str, replica_set: str, node: str, disk: Disk
    ) -> None:
        check_sqlite_version()
        self._lock = threading.Lock()
        self._path = directory / "node.db"
        with translated_errors(self._path):
            self._db = connect(self._path, vfs=disk.vfs)
            try:
                with self._noting_locks():
                    self._open(cluster, replica_set, node)
            except BaseException:
                self._db.close(True)
                raise

    def _open(self, cluster: str, replica_set: str, node: str) -> None:
        self._db.set_busy_timeout(_BUSY_MS)
        self._db.pragma("synchronous", "extra")
        self._prepare()
        self.last_stop = _load_last_stop(self._db)
        with transaction(self._db):
            self._claim(cluster, replica_set, node)
        self.current = self._load()
        self.peer_starts = self._load_peers()
        """Of each peer, the latest start of each of its disks, the latest disk last."""

    def _prepare(self) -> None:
        """Make the tables, unless they are there."""
        check_format(self._db, self._path, _FORMAT_VERSION, prefix="")
        self._db.reserve_bytes(reserve=RESERVED_BYTES)
        with transaction(self._db):
            make_tables(self._db, TABLES)
            mark_format(self._db, _FORMAT_VERSION)
        require_checksums(self._db, self._path)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """One change at a time: the mark is written beside all others, on a thread of its own."""
        with self._lock, translated_errors(self._path), self._noting_locks(), transaction(self._db):
            yield

    @contextlib.contextmanager
    def _noting_locks(self) -> Iterator[None]:
        try:
            yield
        except apsw.BusyError as error:
            self.trouble = f"{self._path} is locked by another program, which reads it"
            raise NotReadyError(
                self.trouble, "end that program, or its transaction; it is tried again"
            ) from error
        self.trouble = ""

    def _claim(self, cluster: str, replica_set: str, node: str) -> None:
        row = self._db.execute("SELECT cluster, replica_set, node FROM identity").fetchone()
        if row is None:
            self._db.execute(
                "INSERT INTO identity(only, cluster, replica_set, node, boot, uuid, is_member,"
                " epoch, incarnation, config_digest) VALUES(1, ?, ?, ?, 1, x'', 0, 0, 0, x'')",
                (cluster, replica_set, node),
            )
            return
        check_owner(self._path.parent, row, (cluster, replica_set, node))
        self._db.execute("UPDATE identity SET boot = boot + 1")

    def _load(self) -> Identity:
        row = self._db.execute(
            "SELECT cluster, replica_set, node, boot, uuid, is_member, epoch, incarnation,"
            " config_digest, disk FROM identity"
        ).fetchone()
        assert row is not None
        cluster, replica_set, node, boot, uuid, is_member, epoch, incarnation, digest, disk = row
        return Identity(
            cluster,
            replica_set,
            node,
            boot,
            uuid,
            bool(is_member),
            Ballot(epoch, incarnation),
            digest,
            disk,
        )

    def _load_peers(self) -> dict[str, tuple[PeerStart, ...]]:
        found: dict[str, tuple[PeerStart, ...]] = {}
        rows = self._db.execute("SELECT name, disk, boot, start FROM peer_disk ORDER BY name, seen")
        for name, *start in rows:
            found[name] = (*found.get(name, ()), PeerStart(*start))
        return found

    def promise(self, ballot: Ballot, config_digest: bytes) -> None:
        """Promise to take nothing from a ballot below `ballot`; fsynced on return.

        Raises `FencedError` when a higher ballot, or another configuration of the same epoch, was
        promised before (PROTOCOL B1).
        """
        now = self.current
        if ballot < now.promised:
            raise FencedError(
                f"ballot {ballot} is below {now.promised}, which this node has promised",
                "a newer leader or configuration exists; is this configuration file old?",
            )
        Promise(now.promised, now.config_digest).check_digest(ballot.epoch, config_digest)
        if ballot == now.promised and config_digest == now.config_digest:
            return
        with self._writing():
            self._db.execute(
                "UPDATE identity SET epoch = ?, incarnation = ?, config_digest = ?",
                (ballot.epoch, ballot.incarnation, config_digest),
            )
        self.current = self._load()
        assert self.current.promised == ballot, (self.current.promised, ballot)

    def become_member(self, uuid: bytes) -> None:
        """Record that this disk holds the replica set's log and may count in majorities."""
        if self.current.is_member and self.current.uuid == uuid:
            return
        with self._writing():
            self._db.execute("UPDATE identity SET uuid = ?, is_member = 1", (uuid,))
        self.current = self._load()

    def remember_start(self, name: str, start: PeerStart) -> None:
        """Record a peer's latest start; its disk is the latest one from now on."""
        with self._writing():
            self._db.execute(
                "INSERT INTO peer_disk SELECT ?, ?, ?, ?, 1 + coalesce(max(seen), 0)"
                " FROM peer_disk WHERE name = ? ON CONFLICT(name, disk) DO UPDATE SET"
                " boot = excluded.boot, start = excluded.start, seen = excluded.seen",
                (name, *start, name),
            )
            self._db.execute(
                "DELETE FROM peer_disk WHERE name = ? AND disk NOT IN (SELECT disk FROM peer_disk"
                " WHERE name = ? ORDER BY seen DESC LIMIT ?)",
                (name, name, _DISKS_REMEMBERED),
            )
        self.peer_starts = self._load_peers()

    def name_disk(self, name: bytes) -> None:
        """Give this disk a random name, unless it has one."""
        if self.current.disk:
            return
        with self._writing():
            self._db.execute("UPDATE identity SET disk = ?", (name,))
        self.current = self._load()

    def adopt(
        self, uuid: bytes, *, is_member: bool, promised: Ballot, config_digest: bytes
    ) -> None:
        """What an operator decides about this disk: `restore` and `recover` (PROTOCOL B3). It gets
        a new name at its next start: peers must not take it for an old copy of what it was.

        Raises `FencedError` when it would lower what was promised.
        """
        if promised < self.current.promised:
            raise FencedError(
                f"ballot {promised} is below {self.current.promised}, which this node has promised"
            )
        with self._writing():
            self._db.execute(
                "UPDATE identity SET uuid = ?, is_member = ?, epoch = ?, incarnation = ?,"
                " config_digest = ?, disk = x'', mark_lsn = 0",
                (uuid, is_member, *promised, config_digest),
            )
        self.current = self._load()

    def forget_membership(self, suspect: str, *, disk: bytes = b"") -> None:
        """This disk may lack what it acknowledged: it counts in no majority until it has been
        taught again (PROTOCOL B3). It keeps its promises.

        Args:
            suspect: why the database must not be opened either; "" when it may be.
            disk: its name from now on, where the one that it has stands for later starts.
        """
        with self._writing():
            self._db.execute(
                "UPDATE identity SET is_member = 0, suspect = ?, mark_lsn = 0, disk = ?",
                (suspect, disk or self.current.disk),
            )
        self.current = self._load()

    def start_over(self) -> None:
        """Whatever the last run left is out of the way: what stands in its place is whole, and has
        no write-ahead log."""
        with self._writing():
            self._db.execute(
                "UPDATE identity SET suspect = '', clean = 1, kernel = NULL, mark_lsn = 0"
            )

    @property
    def has_forgotten(self) -> bool:
        """Whether this disk was a member's, and may lack what it held: not the same as new."""
        return bool(self.current.uuid) and not self.current.is_member

    def begin_run(self, kernel: str | None, mark: LogPosition) -> None:
        """From now on a stop is unclean, until `end_run`; on the disk before anything is
        acknowledged. The database's log must be there already, with a flushed commit in it: its
        absence is what a later start looks for.

        Args:
            kernel: its boot id when commits are not flushed, else None.
            mark: a committed entry, as in `note_mark`.
        """
        self._note("clean = 0, kernel = ?", kernel, mark)

    def note_mark(self, mark: LogPosition) -> None:
        """Write down that the log has this entry, flushed and never to be dropped again. May be
        called on any thread."""
        self._note("clean = clean, kernel = coalesce(kernel, ?)", None, mark)

    def end_run(self, mark: LogPosition) -> None:
        """The database was closed in order, and its write-ahead log is empty.

        Args:
            mark: the last entry; nobody can drop it before the next start.
        """
        self._note("clean = 1, kernel = ?", None, mark)

    def _note(self, stop: str, kernel: str | None, mark: LogPosition) -> None:
        with self._writing():
            self._db.execute(
                f"UPDATE identity SET {stop}, mark_lsn = ?, mark_epoch = ?, mark_incarnation = ?,"
                " mark_chain = ?",
                (kernel, mark.lsn, *mark.ballot, mark.chain),
            )

    def check_epoch(self, epoch: int, config_digest: bytes) -> None:
        """Refuse to start with an older configuration than was promised (PROTOCOL B1)."""
        now = self.current
        Promise(now.promised, now.config_digest).check_epoch(epoch, config_digest)
        if epoch == now.promised.epoch and now.promised != NO_BALLOT:
            self.promise(now.promised, config_digest)

    def close(self) -> None:
        self._db.close()
