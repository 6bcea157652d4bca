"""A node's data directory as a whole: lock, identity, database, writer and readers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import apsw
import trio

from hadron.model.errors import DataDirectoryError
from hadron.storage import log
from hadron.storage.database import open_reader, transaction, translated_errors
from hadron.storage.identity import DirectoryLock, IdentityFile
from hadron.storage.writer import Post, Writer

T = TypeVar("T")

FORMAT_VERSION: Final = 1
"""Of `hadron.db`; raised by changes that an older node could not read."""

_SYNC: Final = {"fsync": "FULL", "os": "NORMAL"}


class Readers:
    """Read-only connections, used on worker threads: a read must not stop the event loop."""

    def __init__(self, path: Path, threads: int) -> None:
        self._path = path
        self._idle: list[apsw.Connection] = []
        self._limiter = trio.CapacityLimiter(threads)

    async def run(self, read: Callable[[apsw.Connection], T]) -> T:
        """Run `read` with a connection. It must be short: an open read keeps the log growing."""
        return await trio.to_thread.run_sync(self._run, read, limiter=self._limiter)

    def _run(self, read: Callable[[apsw.Connection], T]) -> T:
        with translated_errors(self._path):
            connection = self._idle.pop() if self._idle else open_reader(self._path)
            try:
                return read(connection)
            finally:
                self._idle.append(connection)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


class Store:
    """Opens everything in a data directory, in the order that keeps a wrong one untouched.

    Raises `DataDirectoryError` when the directory is in use, unwritable, or another node's.
    """

    def __init__(
        self,
        directory: Path,
        *,
        cluster: str,
        replica_set: str,
        node: str,
        tables: str,
        durability: str,
        checkpoint_bytes: int,
        reader_threads: int,
        post: Post,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._lock = DirectoryLock(directory)
        try:
            self.identity = IdentityFile(directory, cluster, replica_set, node)
            path = directory / "hadron.db"
            self.writer = Writer(
                path, sync=_SYNC[durability], checkpoint_bytes=checkpoint_bytes, post=post,
                on_fatal=on_fatal,
            )
            with translated_errors(path):
                _prepare(self.writer.connection, path, tables)
                self.log = log.Log(self.writer.connection)
                self.sync = _SYNC[durability]
            self.readers = Readers(path, reader_threads)
        except BaseException:
            self._lock.release()
            raise

    def close(self) -> None:
        """Finish what is queued and let the directory go."""
        self.readers.close()
        self.writer.close()
        self.identity.close()
        self._lock.release()


def _prepare(connection: apsw.Connection, path: Path, tables: str) -> None:
    version = connection.pragma("user_version")
    if version not in (0, FORMAT_VERSION):
        raise DataDirectoryError(
            f"{path} has format version {version}, this Hadron knows {FORMAT_VERSION}",
            "start it with the version of Hadron that wrote it, or a newer one",
        )
    with transaction(connection):
        connection.execute(log.TABLES)
        connection.execute(tables)
    connection.pragma("user_version", FORMAT_VERSION)
