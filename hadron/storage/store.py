"""A node's data directory as a whole: lock, identity, database, writer and readers."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import apsw
import trio

from hadron.model.errors import CorruptionError, HadronError, StorageError
from hadron.model.ids import EMPTY_LOG, NO_BALLOT, LogPosition
from hadron.model.ports import Clock, Disk
from hadron.storage import aftermath, generations, log
from hadron.storage.aftermath import Aftermath
from hadron.storage.bodies import reading_entry
from hadron.storage.checkpoint import Checkpointer
from hadron.storage.checksums import require_checksums
from hadron.storage.database import (
    FORMAT_VERSION,
    check_format,
    is_damage,
    mark_format,
    open_reader,
    read_transaction,
    transaction,
    translated_errors,
    translated_os_errors,
)
from hadron.storage.identity import NODE_DATABASE, DirectoryLock, IdentityFile
from hadron.storage.pages import Known, Mending
from hadron.storage.presence import Presence
from hadron.storage.space import Space
from hadron.storage.stalls import DiskStalls
from hadron.storage.tables import make_tables
from hadron.storage.writer import Post, Writer

_log = logging.getLogger(__name__)
T = TypeVar("T")


_SYNC: Final = {"fsync": "FULL", "os": "NORMAL"}


_MARK_EVERY_S: Final = 10.0
"""Between two marks in `node.db`, each of which is a few flushes of a small file."""

_HEALED_AT_ONCE: Final = 16
"""Damaged entries that one read waits for, one after the other."""


async def _cannot_heal(_error: CorruptionError) -> bool:
    return False


class Readers:
    """Read-only connections, used on worker threads: a read must not stop the event loop."""

    def __init__(self, path: Path, threads: int, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._idle: list[apsw.Connection] = []
        self._limiter = trio.CapacityLimiter(threads)
        self._held: trio.Event | None = None
        self.copies: dict[int, bytes] = {}
        """Bodies that this disk has lost and cannot be given back, as another member has them."""
        self.heal: Callable[[CorruptionError], Awaitable[bool]] = _cannot_heal
        """Told of damage that a read has met; whether it is worth reading again."""

    async def run(self, read: Callable[[apsw.Connection], T]) -> T:
        """Run `read` with a connection. It must be short: an open read keeps the log growing.

        What it meets that is damaged is repaired meanwhile, where that is a matter of moments;
        otherwise the `CorruptionError` is raised.
        """
        for _ in range(_HEALED_AT_ONCE):
            try:
                return await self.run_once(read)
            except CorruptionError as error:
                if not await self.heal(error):
                    raise
        return await self.run_once(read)

    async def run_cold(self, read: Callable[[apsw.Connection], T]) -> T:
        """`run_once`, reading from the file what it reads: nothing in SQLite's cache counts."""

        def forget_and_read(connection: apsw.Connection) -> T:
            connection.pragma("shrink_memory")
            return read(connection)

        return await self.run_once(forget_and_read)

    async def run_once(self, read: Callable[[apsw.Connection], T]) -> T:
        """`run` without repairing anything."""
        while self._held is not None:
            await self._held.wait()
        async with self._limiter:
            return await self._disk.do(partial(self._run, read))

    def hold(self, held: bool) -> None:
        """Let no new read begin, or let them again; those that have begun go on (PROTOCOL F2)."""
        if held and self._held is None:
            self._held = trio.Event()
        elif not held and self._held is not None:
            self._held.set()
            self._held = None

    def _run(self, read: Callable[[apsw.Connection], T]) -> T:
        with translated_errors(self._path):
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = open_reader(self._path, vfs=self._disk.vfs)
            try:
                result = read(connection)
            except BaseException:
                # It may have left a statement half way, which would pin what the next read sees.
                connection.close(True)
                raise
            self._idle.append(connection)
            return result

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


class Store:
    """Opens everything in a data directory, in the order that keeps a wrong one untouched.

    Args:
        has_peers: somebody to learn from, should this disk have lost something.
        reserve_bytes: room on the disk that is not for ordinary writes (`space`).

    Raises `DataDirectoryError` when the directory is in use, unwritable, or another node's,
    `CorruptionError` when it is damaged and nobody could help.
    """

    known_committed: Callable[[], int] = staticmethod(lambda: 0)
    """Up to where this node knows its log to be committed: a leader knows more than the file says,
    which has it from the last ballot's beginning."""

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
        disk: Disk,
        clock: Clock,
        post: Post,
        on_fatal: Callable[[BaseException], None],
        has_peers: bool = True,
        reserve_bytes: int = 0,
    ) -> None:
        self.directory = directory
        self._disk = disk
        self._clock = clock
        self._lock = DirectoryLock(directory, disk)
        self.is_replaced = False
        """Whether another file takes the database's place once this store is closed."""
        self.forgotten = ""
        """Why this start has found that the disk may lack what it acknowledged; "" mostly."""
        with contextlib.ExitStack() as undo:
            undo.callback(self._lock.release)
            self.identity = IdentityFile(directory, cluster, replica_set, node, disk)
            undo.callback(self.identity.close)
            self.path = generations.current_database(directory)
            with translated_os_errors(directory):
                left = self._look_back(has_peers)
                generations.clear_copies(directory, disk)
            self.sync = _SYNC[durability]

            def attempt(left: Aftermath) -> None:
                with contextlib.ExitStack() as undo_attempt:
                    self._open(
                        undo_attempt,
                        tables,
                        left,
                        has_peers,
                        reader_threads=reader_threads,
                        checkpoint_bytes=checkpoint_bytes,
                        reserve_bytes=reserve_bytes,
                        clock=clock,
                        post=post,
                        on_fatal=on_fatal,
                    )
                    undo_attempt.pop_all()

            try:
                attempt(left)
            except CorruptionError as error:
                # Of a node that nobody has fed yet it may be anybody's file: it stays as it is.
                own = self.identity.current
                if not (has_peers and (own.uuid or own.promised != NO_BALLOT)):
                    raise
                self._forget(error.message, is_unusable=True)
                attempt(Aftermath(unclean=False))
            undo.callback(self.writer.abandon)
            self.began_unclean = left.unclean
            """Whether the stop before this start was not in order."""
            self._begin_run(disk.boot_id() if durability == "os" else None)
            self._marked_s = clock.monotonic_s()
            self._checkpointer.on_done = self._note_mark
            self._presence = self._watch(has_peers=has_peers)
            undo.pop_all()

    def _begin_run(self, kernel: str | None) -> None:
        self.identity.begin_run(kernel, _committed(self.writer.connection))
        # Not before the file is known to be the one that belongs here, nor where it is not: what
        # this disk has held may be in another generation.
        if not self.forgotten:
            with translated_os_errors(self.directory):
                generations.clean_up(self.directory, self._disk)

    def _watch(self, *, has_peers: bool) -> Presence:
        with translated_os_errors(self.directory):
            return Presence(self._disk, self._own_files(), self.writer.fail, has_peers=has_peers)

    def _own_files(self) -> list[Path]:
        return [
            self.directory,
            self._lock.path,
            self.directory / NODE_DATABASE,
            self.directory / generations.DATABASE,
            Path(f"{self.path}-wal"),
        ]

    def _look_back(self, has_peers: bool) -> Aftermath:
        """Find out what the last stop left, and forget what may not be remembered any more: a
        member whose log lacks something must not count as if it had it (PROTOCOL B3, B4)."""
        left = aftermath.examine(
            self.path,
            self._disk,
            self.identity.last_stop,
            was_member=self.identity.current.is_member,
        )
        if not left.amnesia:
            return left
        if not has_peers:
            aftermath.refuse_alone(self.path, left)
        self._forget(left.amnesia, is_unusable=left.is_unusable)
        return left

    def _compare_with_mark(self, has_peers: bool) -> None:
        """A database that lacks what `node.db` says that it had is an older copy of it, and whole:
        it is kept, and what it shares with the leader's log need not be sent again."""
        mark = self.identity.last_stop.mark
        if not (self.identity.current.is_member and log.lacks(self.writer.connection, mark)):
            return
        why = (
            f"{self.path} is an older copy: {self.directory / NODE_DATABASE} knows of entry "
            f"{mark.lsn}, its log ends at {self.log.head.lsn}"
        )
        if not has_peers:
            raise CorruptionError(
                why,
                "put the file back that belongs here, or a backup (`hadron restore --all`); "
                "or go on with what this one has (`hadron recover`)",
            )
        self._forget(why, is_unusable=False)

    async def _note_mark(self) -> None:
        """Write down where the log is now, beside commits and not more often than it is cheap."""
        now_s = self._clock.monotonic_s()
        if now_s - self._marked_s < _MARK_EVERY_S:
            return
        self._marked_s = now_s
        try:
            mark = await self.readers.run_once(partial(_committed, known=self.known_committed()))
            await self._disk.do(partial(self.identity.note_mark, mark))
        except HadronError as error:
            # The one before counts for longer.
            _log.warning("where the log is now is not written down: %s", error)

    def _forget(self, why: str, *, is_unusable: bool) -> None:
        self.forgotten = why
        is_left = is_unusable and aftermath.is_left(self.path, self.directory)
        _log.error(
            "%s; %sthis node counts in no majority until its leader has taught it again",
            why,
            f"the file is set aside as {aftermath.ASIDE}, and " if is_left else "",
        )
        # Without the directory's own path, which may be another one by then.
        suspect = why.replace(f"{self.directory}/", "")
        self.identity.forget_membership(suspect if is_unusable else "")
        if is_unusable:
            with translated_os_errors(self.directory):
                aftermath.set_aside(self.path, self.directory, self._disk)
            self.identity.start_over()

    def _open(
        self,
        undo: contextlib.ExitStack,
        tables: str,
        left: Aftermath,
        has_peers: bool,
        *,
        reader_threads: int,
        checkpoint_bytes: int,
        reserve_bytes: int,
        clock: Clock,
        post: Post,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        path, disk = self.path, self._disk
        # A generation's may be gone, with all that it held.
        with translated_os_errors(path.parent):
            disk.make_directory(path.parent)
        self.readers = Readers(path, reader_threads, disk)
        self.writer = Writer(
            path, sync=self.sync, disk=disk, clock=clock, post=post, on_fatal=on_fatal
        )
        undo.callback(self.writer.abandon)
        self.space = Space(disk, self.directory, reserve_bytes, self._count_free_pages)
        self.writer.on_prepared = self.space.wrote
        self._stalls = DiskStalls(self.writer, self.directory, clock)
        self._checkpointer = Checkpointer(
            self.writer,
            path,
            checkpoint_bytes=checkpoint_bytes,
            disk=disk,
            hold_readers=self.readers.hold,
        )
        with translated_errors(path):
            self._judge(tables, has_peers)
            _prepare(self.writer.connection, tables, sync=self.sync, left=left)
            self.log = log.Log(self.writer.connection)

    def _judge(self, tables: str, has_peers: bool) -> None:
        """Refuse a file that does not belong here, or cannot be used, before a byte is written: a
        log of ours beside a wrong file is still there once the right one has been put back, and
        SQLite would take it for that one's."""
        connection = self.writer.connection
        check_format(connection, self.path, FORMAT_VERSION)
        require_checksums(connection, self.path)
        # Its end undoes it, and nothing of it has been in the log.
        with read_transaction(connection):
            make_tables(connection, log.TABLES + tables)
            self.log = log.Log(connection)
            self._compare_with_mark(has_peers)

    def mend(self, lsns: Sequence[int], known: Known, connection: apsw.Connection) -> Mending:
        """Give the pages on which these entries stand back what was written there, as far as
        `known` tells. For the writer's thread."""
        with self._checkpointer.pausing, translated_os_errors(self.path):
            mending = Mending(connection, self.path, self._disk, known)
            try:
                for lsn in lsns:
                    mending.mend(lsn)
            except apsw.Error as error:
                if not is_damage(error):
                    raise
                mending.is_sound = False
        return mending

    @property
    def lost(self) -> StorageError | None:
        """That its files are not there any more, or are others; None while they are its own."""
        return self._presence.look()

    @property
    def trouble(self) -> str:
        """That its disk does not finish what it writes, or has no room, in words; or ""."""
        return self._stalls.trouble or self.space.trouble

    def _count_free_pages(self) -> int | None:
        if self.writer.is_away:
            return None
        # Damage, or a closed file: whoever writes is told.
        with contextlib.suppress(apsw.Error):
            return int(self.writer.connection.pragma("freelist_count"))
        return None

    async def run(self) -> None:
        """Do, for ever, what the files need beside commits. Starts the writer."""
        self.writer.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.writer.run)
            nursery.start_soon(self._checkpointer.run)
            nursery.start_soon(self.space.run)
            nursery.start_soon(self._presence.run)
            nursery.start_soon(self._stalls.run)

    def close(self, last: Callable[[apsw.Connection], None] = lambda _connection: None) -> bool:
        """Finish what is begun, then `last`, and let the directory go. Returns whether the database
        file has everything."""
        with contextlib.ExitStack() as rest:
            rest.callback(self._lock.release)
            rest.callback(self.identity.close)
            self.readers.close()
            return self.writer.close(self._seal, last)

    def _seal(self) -> None:
        # A snapshot that takes the file's place next may lack what is not committed.
        self.identity.end_run(
            _committed(self.writer.connection) if self.is_replaced else self.log.head
        )


def _committed(connection: apsw.Connection, known: int = 0) -> LogPosition:
    """The last entry here that this file, or who has it open, says is committed; the beginning
    where it cannot be told."""
    try:
        with reading_entry(lambda: 0):
            lsn = log.get_meta(connection, "committed_lsn")
            lsn = max(lsn, min(known, log.last_lsn(connection)))
        return log.position_at(connection, lsn) or EMPTY_LOG
    except CorruptionError:
        return EMPTY_LOG


def _prepare(connection: apsw.Connection, tables: str, *, sync: str, left: Aftermath) -> None:
    """Make a file's tables, and put a first flushed commit into its log."""
    if left.unclean:
        aftermath.begin_log_anew(connection)
    connection.pragma("synchronous", "FULL")
    with transaction(connection):
        make_tables(connection, log.TABLES + tables)
        mark_format(connection, FORMAT_VERSION)
    connection.pragma("synchronous", sync)
