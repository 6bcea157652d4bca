"""Opening SQLite files: versions, pragmas, read-only connections, and errors in our own words."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import apsw

from hadron.model.errors import CorruptionError, DataDirectoryError, StorageError
from hadron.model.tables import PREFIX
from hadron.storage.checksums import RESERVED_BYTES, require_checksums, way_out, with_checksums

MINIMUM_SQLITE: Final = (3, 51, 3)
"""Older versions have the WAL-reset bug that can lose a committed transaction."""

BROKEN_SQLITE: Final = frozenset({(3, 52, 0)})
"""Shipped with the same bug again."""

APPLICATION_ID: Final = 0x48_41_44_52
"""`application_id` of the files that Hadron makes: "HADR"."""

FORMAT_VERSION: Final = 1
"""`user_version` of `hadron.db`; raised by changes that an older node could not read."""

PAGE_BYTES: Final = 4096
"""Measured, CPU per command (best of 7): 4 kB 42 µs alone, 16 µs in a group, 158 µs for a 104 kB
batch; 8 kB 50, 23 and 144; 16 kB 141, 30 and 236. A small commit is what people wait for."""

CACHE_KIB: Final = 8 * 1024
"""Page cache of one connection; part of the 100 MB a node may take."""


def check_sqlite_version() -> None:
    """Raise `StorageError` when the linked SQLite is one that can lose data."""
    major, minor, patch = (int(part) for part in apsw.sqlite_lib_version().split("."))
    version = (major, minor, patch)
    if version < MINIMUM_SQLITE or version in BROKEN_SQLITE:
        wanted = ".".join(map(str, MINIMUM_SQLITE))
        raise StorageError(
            f"SQLite {apsw.sqlite_lib_version()} has a bug that can lose committed data",
            f"install an apsw built with SQLite {wanted} or later, but not 3.52.0",
        )


def connect(
    path: Path, *, vfs: str = "", flags: int = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
) -> apsw.Connection:
    """A connection whose pages carry checksums. Whoever writes a node's file without them makes
    its pages unreadable, so everything opens files here.

    Args:
        vfs: what the disk is (`ports.Disk.vfs`); "" is this machine's.
    """
    connection = apsw.Connection(str(path), flags=flags, vfs=with_checksums(vfs or "unix"))
    # SQLite built with STAT4 would prepare a query with a range anew for each of its bounds, for
    # the sake of statistics that these files do not have: 29 µs instead of 12 to read the log.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    return connection


def open_writer(path: Path, *, sync: str, vfs: str = "") -> apsw.Connection:
    """The one connection that writes `path`, created when missing. `sync` is FULL or NORMAL.

    Raises `DataDirectoryError` when the file cannot be opened or written, `CorruptionError` when
    it is not a database.
    """
    check_sqlite_version()
    with translated_errors(path):
        connection = connect(path, vfs=vfs)
        try:
            _prepare_writer(connection, path, sync)
        except BaseException:
            # At once, and without touching the write-ahead log: the file may be moved away next.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close(True)
            raise
    return connection


def _prepare_writer(connection: apsw.Connection, path: Path, sync: str) -> None:
    connection.set_busy_timeout(0)
    connection.pragma("page_size", PAGE_BYTES)
    connection.reserve_bytes(reserve=RESERVED_BYTES)
    mode = connection.pragma("journal_mode", "wal")
    if mode != "wal":
        raise DataDirectoryError(
            f"{path} cannot use SQLite's write-ahead log (journal mode {mode})",
            "put the data directory on a local disk",
        )
    connection.pragma("synchronous", sync)
    # Checkpoints run on a thread of their own (PROTOCOL F2).
    connection.pragma("wal_autocheckpoint", 0)
    connection.pragma("journal_size_limit", 64 << 20)
    connection.pragma("cache_size", -CACHE_KIB)
    # What is rolled back must never have been in the log: its frames would stand there, as valid as
    # those of a flushed commit, behind one of which a power loss took a part (PROTOCOL B4). Commits
    # are bounded (PROTOCOL F3), and so is what waits in memory for them.
    connection.pragma("cache_spill", False)
    connection.pragma("foreign_keys", False)
    # A file that is not a database is found out here and not at the first command.
    connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()


def open_reader(path: Path, *, vfs: str = "") -> apsw.Connection:
    """A read-only connection. Raises `CorruptionError` when it would look at no checksum."""
    with translated_errors(path):
        connection = connect(path, vfs=vfs, flags=apsw.SQLITE_OPEN_READONLY)
        # Before anything is read: `node.db` is locked while a promise is being written.
        connection.set_busy_timeout(1000)
        require_checksums(connection, path)
        connection.pragma("cache_size", -1024)
        connection.pragma("query_only", True)
    return connection


def open_at_rest(path: Path, *, vfs: str = "") -> apsw.Connection:
    """A connection to a file that nobody else has open, and that is left untouched: no lock, no
    `-shm`. A write-ahead log beside it is not looked at.

    Raises `DataDirectoryError` when it cannot be opened, `CorruptionError` when no checksum would
    be looked at.
    """
    with translated_errors(path):
        connection = apsw.Connection(
            f"{path.absolute().as_uri()}?mode=ro&immutable=1",
            flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI,
            vfs=with_checksums(vfs or "unix"),
        )
        require_checksums(connection, path)
    return connection


def open_database(path: Path, live: bool) -> apsw.Connection:
    """A read-only connection to a node's database, which it leaves as it is.

    Args:
        live: its node is running.
    """
    # The write-ahead log stands beside the file itself, not beside a link to it.
    path = path.resolve()
    wal = path.with_name(f"{path.name}-wal")
    if live or (wal.exists() and wal.stat().st_size):
        return open_reader(path)
    return open_at_rest(path)


def open_copy(path: Path, *, vfs: str = "") -> apsw.Connection:
    """A connection to a new file that becomes a copy of a database: it has no journal, and its
    first page, which decides whether the others get checksums, is there already."""
    connection = connect(path, vfs=vfs)
    connection.pragma("page_size", PAGE_BYTES)
    connection.reserve_bytes(reserve=RESERVED_BYTES)
    connection.pragma("journal_mode", "off")
    connection.pragma("synchronous", "full")
    connection.pragma("user_version", 0)
    return connection


def check_format(connection: apsw.Connection, path: Path, known: int, prefix: str = PREFIX) -> None:
    """Raises `DataDirectoryError` unless the file is empty, or one of Hadron's in the format
    `known`, in which names of tables begin with `prefix`."""
    check_version(connection, path, known, prefix)
    if not _is_ours(connection) and _tables(connection):
        raise _foreign(path)


def check_version(
    connection: apsw.Connection, path: Path, known: int, prefix: str = PREFIX
) -> None:
    """Raises `DataDirectoryError` for a file in another format than `known`: its number is another
    one, or it has tables and no name of one begins with `prefix`. Whatever else is wrong with a
    file of ours is damage, and not said here."""
    if _is_ours(connection) and (version := connection.pragma("user_version")) != known:
        raise DataDirectoryError(
            f"{path} has format version {version}, this Hadron knows {known}",
            "use the version of Hadron that wrote it, or a newer one",
        )
    tables = _tables(connection)
    if tables and not any(name.startswith(prefix) for name in tables):
        raise _foreign(path)


def _is_ours(connection: apsw.Connection) -> bool:
    return bool(connection.pragma("application_id") == APPLICATION_ID)


def _tables(connection: apsw.Connection) -> list[str]:
    named = "SELECT name FROM sqlite_schema WHERE type = 'table'"
    return [name for (name,) in connection.execute(named)]


def _foreign(path: Path) -> DataDirectoryError:
    return DataDirectoryError(
        f"{path} is a SQLite file that Hadron did not make, or did before its formats had a number",
        "use the version of Hadron that wrote it; a node of this one needs a directory of its own",
    )


def mark_format(connection: apsw.Connection, version: int) -> None:
    """Say whose file it is, and how it is made."""
    connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", version)


def open_scratch() -> apsw.Connection:
    """A private database that goes away when it is closed; what does not fit into its page cache
    goes to a temporary file."""
    connection = apsw.Connection("")
    connection.pragma("journal_mode", "memory")
    connection.pragma("synchronous", "off")
    connection.pragma("cache_size", -CACHE_KIB)
    return connection


_DAMAGE: Final = frozenset(
    {apsw.SQLITE_IOERR_DATA, apsw.SQLITE_IOERR_SHORT_READ, apsw.SQLITE_IOERR_CORRUPTFS}
)
"""Of a page whose checksum is wrong, or that the file ends before."""


READ_ERRORS: Final = (apsw.Error, UnicodeDecodeError)
"""What reading rows raises: one bit of a row's header makes a text of what never was one, and in a
frame of the write-ahead log no checksum tells SQLite."""


def is_damage(error: Exception) -> bool:
    """Whether an error of `READ_ERRORS` is about what stands on the disk, and not about the disk
    itself."""
    return isinstance(error, apsw.CorruptError | apsw.NotADBError | UnicodeDecodeError) or (
        getattr(error, "extendedresult", 0) in _DAMAGE
    )


def is_about_file(error: CorruptionError) -> bool:
    """Whether an error that ended work on a node's own database is about what its disk holds, and
    not about bytes that are whole and cannot be understood."""
    return bool(error.lsn) or isinstance(error.__cause__, READ_ERRORS)


def in_words(error: Exception) -> str:
    """What one of `READ_ERRORS` has met, as people know it: of a page with a wrong checksum SQLite
    says that the disk failed, and the disk did not."""
    if isinstance(error, UnicodeDecodeError):
        return "a row has a text that is none"
    kind = getattr(error, "extendedresult", 0)
    if kind == apsw.SQLITE_IOERR_DATA:
        return "a page does not match its checksum"
    if kind == apsw.SQLITE_IOERR_SHORT_READ:
        return "the file ends within a page"
    return str(error)


class translated_errors:  # noqa: N801  # a context manager, called like those of contextlib
    """Turn errors of reading and writing a file into ours, which say what to do."""

    # By hand: every commit enters it, and contextlib's generator costs a microsecond each time.

    def __init__(self, path: Path, connection: apsw.Connection | None = None) -> None:
        """`connection` knows what the operating system has said of a disk that failed."""
        self._path = path
        self._connection = connection

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if not isinstance(error, READ_ERRORS):
            return
        is_of_disk = isinstance(error, apsw.IOError) and not is_damage(error)
        if is_of_disk and self._connection is not None:
            said = _NOT_THE_DISK.get(self._connection.system_errno)
            if said is not None:
                raise StorageError(said[0].format(self._path), said[1]) from error
        if (ours := _translated(self._path, error)) is not None:
            raise ours from error


_NOT_THE_DISK: Final = {
    errno.EDQUOT: ("the quota of the disk of {} is used up", "raise it, then restart"),
    errno.EFBIG: (
        "{} may not grow any more: the size of this process's files is limited",
        "raise that limit (`ulimit -f`, or LimitFSIZE= where systemd starts it), then restart",
    ),
    errno.EROFS: ("the file system of {} is read-only", "mount it for writing, then restart"),
}
"""What SQLite calls a disk that failed, and is another thing: what, and the way out."""


def _translated(path: Path, error: Exception) -> StorageError | None:
    if is_damage(error):
        return CorruptionError(f"{path} is damaged: {in_words(error)}", way_out(path))
    match error:
        case apsw.BusyError():
            return DataDirectoryError(
                f"{path} is locked by another program, which writes it or moves its log",
                "end that program, then try again",
            )
        case apsw.CantOpenError() | apsw.ReadOnlyError() | apsw.PermissionsError():
            return DataDirectoryError(
                f"{path} cannot be opened: {error}", "check its owner, its mode and the disk"
            )
        case apsw.FullError():
            return StorageError(f"the disk of {path} is full", "make room, then restart")
        case apsw.IOError():
            return StorageError(f"the disk under {path} failed: {error}", "replace it")
    return None


@contextlib.contextmanager
def translated_os_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's errors about files in or at `path` into ours."""
    try:
        yield
    except OSError as error:
        named = error.filename or path
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(
                f"the disk of {named} is full", "make room, then try again"
            ) from error
        raise StorageError(
            f"{named}: {error.strerror or error}", "check its owner, its mode and the disk"
        ) from error


@contextlib.contextmanager
def transaction(connection: apsw.Connection) -> Iterator[None]:
    """BEGIN IMMEDIATE … COMMIT, or ROLLBACK when the block raises."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        # Also a COMMIT that fails may leave its transaction open, and its locks with it.
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def read_transaction(connection: apsw.Connection) -> Iterator[None]:
    """Everything read in the block is of one moment.

    SQLite may end the transaction itself when the disk fails; that error is the one to hear of.
    """
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
