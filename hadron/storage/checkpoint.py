"""Moving the write-ahead log into the database file without stalling commits (PROTOCOL F2).

Background rounds of PASSIVE do the bulk; the writer adds a last short one, after which the log
restarts from its beginning. Without that last round it would grow for as long as somebody writes.
It would also grow for as long as reads overlap, because each of them holds the log: above a limit
new reads wait until the log has restarted.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import apsw
import trio

from hadron.model.ports import Disk
from hadron.storage.database import PAGE_BYTES, connect
from hadron.storage.writer import Job, Writer

_log = logging.getLogger(__name__)

_CATCH_UP_PAGES: Final = (1 << 20) // PAGE_BYTES
"""A backlog this small is checkpointed by the writer itself, between two jobs: about 2 ms."""

_ROUNDS: Final = 8
"""PASSIVE rounds before the writer's short one, at most, so that constant writing cannot keep the
checkpoint from ever catching up."""

_LIMIT_IN_THRESHOLDS: Final = 3
"""A log this many times over its threshold has readers that keep it from restarting; new ones are
then held back. Without readers it peaks below twice the threshold."""

_HELD_S: Final = 0.25
"""How long readers are held back at most, and for as long as the writer takes for two attempts.
Ours are done in a few ms; a foreign program may have the file open for longer, and must not stop
the node's own reads."""

_RESTART_PAUSE_S: Final = 0.005
"""Between two attempts."""


class Checkpointer:
    """Checkpoints one database, whose writer it helps. `run` must be running."""

    def __init__(
        self,
        writer: Writer,
        path: Path,
        *,
        checkpoint_bytes: int,
        disk: Disk,
        hold_readers: Callable[[bool], None],
    ) -> None:
        """`hold_readers` is told to let no new read begin, and to let them again."""
        self._writer = writer
        self._path = path
        self._disk = disk
        self._hold_readers = hold_readers
        self._threshold = max(checkpoint_bytes // PAGE_BYTES, _CATCH_UP_PAGES)
        self._limit = _LIMIT_IN_THRESHOLDS * self._threshold
        self._due_at = self._threshold
        self._pages = 0
        self._busy = False
        self._due = trio.Event()
        self._connection: apsw.Connection | None = None
        self.pausing = threading.Lock()
        """Held by whoever works on the files themselves: no round runs meanwhile."""
        self.on_done: Callable[[], Awaitable[None]] = _nothing
        """Awaited after each checkpoint."""
        writer.connection.set_wal_hook(self._on_commit)

    def _on_commit(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        """SQLite's WAL hook, where the COMMIT runs: `pages` stand in the log after it."""
        self._pages = pages
        if pages < self._threshold:
            self._due_at = self._threshold
            self._limit = _LIMIT_IN_THRESHOLDS * self._threshold
        elif pages >= self._due_at and not self._busy:
            self._busy = True
            self._due_at = pages + self._threshold
            self._writer.post(self._wake)
        return apsw.SQLITE_OK

    def _wake(self) -> None:
        self._due.set()

    async def run(self) -> None:
        """Checkpoint whenever it is due, for ever."""
        try:
            while True:
                await self._due.wait()
                self._due = trio.Event()
                await self._checkpoint()
                self._busy = False
                await self.on_done()
        finally:
            if self._connection is not None:
                self._connection.close()

    def _open(self) -> apsw.Connection:
        connection = connect(self._path, vfs=self._disk.vfs)
        connection.pragma("synchronous", "normal")
        connection.pragma("wal_autocheckpoint", 0)
        connection.pragma("cache_size", -256)
        return connection

    async def _checkpoint(self) -> None:
        try:
            # Only now, and the next time if this one fails: a file that cannot be opened for a
            # moment must not end checkpoints for good, and of one that is gone `presence` tells.
            connection = self._connection
            if connection is None:
                connection = self._connection = await self._disk.do(self._open)
            for _ in range(_ROUNDS):
                total, done = await self._disk.do(partial(self._round, connection))
                if total - done <= _CATCH_UP_PAGES:
                    break
            if self._pages < self._limit:
                await self._on_writer(partial(_try, apsw.SQLITE_CHECKPOINT_PASSIVE))
            else:
                await self._restart_without_readers()
        except Exception as error:
            # A failed round loses nothing: the log still has every page. Where it is the disk that
            # fails, the next commit meets that, and decides; in the writer's own round it has.
            _log.warning("a checkpoint of %s failed: %s", self._path, error)

    def _round(self, connection: apsw.Connection) -> tuple[int, int]:
        with self.pausing:
            return connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    async def _restart_without_readers(self) -> None:
        """Let the readers that there are finish, and no others begin, until the log can restart."""
        self._hold_readers(True)
        until_s = trio.current_time() + _HELD_S
        try:
            for attempt in itertools.count(1):
                if await self._on_writer(partial(_try, apsw.SQLITE_CHECKPOINT_RESTART)):
                    break
                if attempt > 1 and trio.current_time() >= until_s:
                    break
                await trio.sleep(_RESTART_PAUSE_S)
        finally:
            # Should a foreign reader have prevented it: not before it has grown as much again.
            self._limit = self._pages + _LIMIT_IN_THRESHOLDS * self._threshold
            self._hold_readers(False)

    async def _on_writer(self, job: Job) -> Any:
        ended = trio.Event()
        outcome: list[Any] = []

        def done(result: Any, error: BaseException | None) -> None:
            outcome.extend((result, error))
            ended.set()

        self._writer.submit(job, done)
        await ended.wait()
        result, error = outcome
        if error is not None:
            raise error
        return result


async def _nothing() -> None:
    pass


def _try(mode: int, connection: apsw.Connection) -> bool:
    """The writer's round: with RESTART the next commit restarts the log. Whether nobody prevents
    it, and the file has room to grow: neither is the end of a node, whose log has every page."""
    try:
        connection.wal_checkpoint(mode=mode)
    except (apsw.BusyError, apsw.FullError):
        return False
    return True
