"""Writing a node's database: one connection, one piece of work at a time; and checkpoints.

Work comes in two kinds. A *job* runs as a whole on the writer's thread. A *commit* is prepared on
the event loop, where it leaves a transaction open; its COMMIT, with the fsync, goes to the thread
when it is large or the disk is slow, and is done at once otherwise. Measured: running the
statements on the thread costs 22 futex calls per record, because the two threads take the
interpreter from each other at every statement; the way of a small COMMIT to the thread and back
costs 100 µs of CPU, as much as a fast disk's fsync takes.

What the thread reports goes back to the loop through `post`, and reports that are ready together
wake the loop once. Work that
raises `StorageError`, or anything that is not a `HadronError`, is the end of the node: after a
failed write nothing on this disk can be promised any more, so no later job runs (PROTOCOL A3). The
exception is a `CorruptionError` about bytes that a peer sent: those were refused, not written.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import apsw

from hadron.model.errors import CorruptionError, HadronError, StorageError
from hadron.storage.database import PAGE_BYTES, open_writer, translated_errors

_log = logging.getLogger(__name__)

Job = Callable[[apsw.Connection], Any]
Done = Callable[[Any, BaseException | None], None]
Post = Callable[[Callable[[], None]], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What preparing a commit gave; a transaction is open unless there was nothing to write."""

    result: Any
    size: int
    """About how many bytes were written."""


Prepare = Callable[[apsw.Connection], Prepared]

_AT_ONCE_BYTES: Final = 64 << 10
"""Larger commits go to the thread: while it writes, the loop can receive the next."""

_FAST_COMMIT_S: Final = 0.001
"""A disk that took longer for the latest small commits keeps the thread waiting, not the loop."""

_RECENT_SHARE: Final = 0.2

_CATCH_UP_PAGES: Final = (1 << 20) // PAGE_BYTES
"""A backlog this small is checkpointed by the writer itself, between two jobs: about 2 ms."""

_ROUNDS: Final = 8
"""PASSIVE rounds before the writer's short one, at most, so that constant writing cannot keep the
checkpoint from ever catching up (PROTOCOL F)."""

_LIMIT_IN_THRESHOLDS: Final = 3
"""A log this many times over its threshold has readers that keep it from restarting; new ones are
then held back. Without readers it peaks below twice the threshold."""

_RESTART_ATTEMPTS: Final = 50
_RESTART_PAUSE_S: Final = 0.005
"""How long readers are held back at most: 250 ms. Ours are done in a few; a foreign program may
have the file open for longer, and must not stop the node's own reads."""


class Writer:
    """Does jobs and commits in the order in which they were given. Call it from the event loop."""

    def __init__(
        self,
        path: Path,
        *,
        sync: str,
        checkpoint_bytes: int,
        post: Post,
        on_fatal: Callable[[BaseException], None],
        hold_readers: Callable[[bool], None],
    ) -> None:
        """
        Args:
            on_fatal: told when a report fails: a defect that the node must not survive.
            hold_readers: told, on the event loop, to let no new read begin, and to let them again.
        """
        self._path = path
        self._post_to_loop = post
        self._on_fatal = on_fatal
        self._jobs: SimpleQueue[tuple[Job, Done] | None] = SimpleQueue()
        self._reports: deque[Callable[[], None]] = deque()
        self._waiting: deque[tuple[Job | None, Prepare | None, Done]] = deque()
        self._on_thread = 0
        """Jobs handed to the thread and not yet reported; while there are any, the connection is
        the thread's."""
        self._pumping = False
        self._recent_commit_s = 0.0
        self.failure: BaseException | None = None
        """What ended all writing; jobs are then answered with an error instead of being run."""
        self.connection = open_writer(path, sync=sync)
        self._checkpointer = _Checkpointer(
            self, path, checkpoint_bytes // PAGE_BYTES, hold_readers
        )
        self.connection.set_wal_hook(self._checkpointer.on_commit)
        self._thread = threading.Thread(target=self._run, name="hadron-writer", daemon=True)

    def start(self) -> None:
        """Start both threads. Until then, `connection` belongs to the caller."""
        self._thread.start()
        self._checkpointer.start()

    def submit(self, job: Job, done: Done) -> None:
        """Run `job` on the thread; `done(result, error)` runs on the event loop."""
        if self._waiting:
            self._waiting.append((job, None, done))
        else:
            self._hand_over(job, done)

    def commit(self, prepare: Prepare, done: Done) -> None:
        """Run `prepare` here as soon as the connection is free, then COMMIT what it began.

        A `prepare` that raises has rolled back what it did.
        """
        self._waiting.append((None, prepare, done))
        self._pump()

    def _hand_over(self, job: Job, done: Done) -> None:
        self._on_thread += 1

        def reported(result: Any, error: BaseException | None) -> None:
            self._on_thread -= 1
            done(result, error)
            self._pump()

        self._jobs.put((job, reported))

    def _pump(self) -> None:
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._waiting and not self._on_thread:
                job, prepare, done = self._waiting.popleft()
                if prepare is not None:
                    self._commit(prepare, done)
                else:
                    assert job is not None
                    self._hand_over(job, done)
        finally:
            self._pumping = False

    def _commit(self, prepare: Prepare, done: Done) -> None:
        try:
            self._refuse_after_failure()
            with translated_errors(self._path):
                prepared = prepare(self.connection)
                small = prepared.size <= _AT_ONCE_BYTES
                if small and self._recent_commit_s < _FAST_COMMIT_S:
                    self._execute_commit(small)
        except BaseException as error:
            self._note(error)
            done(None, error)
            return
        if not self.connection.in_transaction:
            done(prepared.result, None)
            return

        def commit(_: apsw.Connection) -> Any:
            self._execute_commit(small)
            return prepared.result

        self._hand_over(commit, done)

    def _execute_commit(self, small: bool) -> None:
        if not self.connection.in_transaction:
            return
        started = time.perf_counter()
        self.connection.execute("COMMIT")
        if small:
            taken_s = time.perf_counter() - started
            self._recent_commit_s += (taken_s - self._recent_commit_s) * _RECENT_SHARE

    def _refuse_after_failure(self) -> None:
        if self.failure is not None:
            raise StorageError(
                f"{self._path} is not written any more: {self.failure}",
                "the node stops; see its log for what came before",
            )

    def _note(self, error: BaseException) -> None:
        if self.failure is None and _is_fatal(error):
            self.failure = error

    def post(self, report: Callable[[], None]) -> None:
        """Run `report` on the event loop soon; for jobs that report before they end."""
        self._reports.append(report)
        self._post_to_loop(self._drain_reports)

    def _drain_reports(self) -> None:
        while self._reports:
            try:
                self._reports.popleft()()
            except Exception as error:
                self._on_fatal(error)

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            result: Any = None
            error: BaseException | None = None
            try:
                self._refuse_after_failure()
                with translated_errors(self._path):
                    result = job(self.connection)
            except BaseException as caught:
                error = caught
                self._note(caught)
            self.post(lambda done=done, result=result, error=error: done(result, error))  # type: ignore[misc]

    def close(self) -> None:
        """Finish the work that waits, checkpoint, and close the file."""
        self._checkpointer.stop()
        while self._waiting and self._thread.is_alive():
            reached = threading.Event()
            self._jobs.put((partial(_reach, reached), lambda _result, _error: None))
            reached.wait()
            self._drain_reports()
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join()
        self.connection.set_wal_hook(None)
        self.connection.close()


def _reach(reached: threading.Event, _: apsw.Connection) -> None:
    reached.set()


def _is_fatal(error: BaseException) -> bool:
    if isinstance(error, CorruptionError):
        return isinstance(error.__cause__, apsw.Error)
    return isinstance(error, StorageError) or not isinstance(error, HadronError)


class _Checkpointer:
    """Moves the write-ahead log into the database file without stalling commits.

    Background rounds of PASSIVE do the bulk; the writer adds a last short one, after which the
    log restarts from its beginning. Without that last round it would grow for as long as somebody
    writes (PROTOCOL F). It would also grow for as long as reads overlap, because each of them holds
    the log: above a limit new reads wait until the log has restarted.
    """

    def __init__(
        self,
        writer: Writer,
        path: Path,
        threshold_pages: int,
        hold_readers: Callable[[bool], None],
    ) -> None:
        self._writer = writer
        self._path = path
        self._hold_readers = hold_readers
        self._threshold = max(threshold_pages, _CATCH_UP_PAGES)
        self._due = self._threshold
        self._pages = 0
        self._limit = _LIMIT_IN_THRESHOLDS * self._threshold
        self._wake = threading.Event()
        self._stopping = False
        self._busy = False
        self._thread = threading.Thread(target=self._run, name="hadron-checkpoint", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def on_commit(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        """SQLite's WAL hook, where the COMMIT runs: `pages` stand in the log after it."""
        self._pages = pages
        if pages < self._threshold:
            self._due = self._threshold
            self._limit = _LIMIT_IN_THRESHOLDS * self._threshold
        elif pages >= self._due and not self._busy:
            self._busy = True
            self._due = pages + self._threshold
            self._wake.set()
        return apsw.SQLITE_OK

    def _run(self) -> None:
        try:
            connection = apsw.Connection(str(self._path))
            connection.pragma("synchronous", "normal")
            connection.pragma("wal_autocheckpoint", 0)
            connection.pragma("cache_size", -256)
        except apsw.Error:
            _log.exception("checkpoints of %s cannot start", self._path)
            return
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._stopping:
                connection.close()
                return
            self._checkpoint(connection)

    def _checkpoint(self, connection: apsw.Connection) -> None:
        try:
            for _ in range(_ROUNDS):
                total, done = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                if total - done <= _CATCH_UP_PAGES or self._stopping:
                    break
        except apsw.Error as error:
            # A failed checkpoint loses nothing: the log still has every page. The next commit
            # meets the same disk and decides.
            _log.warning("a checkpoint of %s failed: %s", self._path, error)
            self._busy = False
            return
        if self._pages < self._limit:
            self._writer.post(lambda: self._writer.submit(self._last_round, self._finished))
        else:
            self._restart_without_readers()

    @staticmethod
    def _last_round(connection: apsw.Connection) -> None:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _finished(self, _result: Any, error: BaseException | None) -> None:
        self._busy = False
        if error is not None:
            _log.warning("the last round of a checkpoint failed: %s", error)

    def _restart_without_readers(self) -> None:
        """Let the readers that there are finish, and no others begin, until the log can restart."""
        self._writer.post(lambda: self._hold_readers(True))
        for _ in range(_RESTART_ATTEMPTS):
            if self._stopping or self._restart():
                break
            self._wake.wait(_RESTART_PAUSE_S)
        # Should a foreign reader have prevented it: not again before it has grown as much again.
        self._limit = self._pages + _LIMIT_IN_THRESHOLDS * self._threshold
        self._writer.post(lambda: self._hold_readers(False))
        self._busy = False

    def _restart(self) -> bool:
        """Have the writer make sure that its next commit restarts the log; whether it did."""
        ended = threading.Event()
        restarted = False

        def job(connection: apsw.Connection) -> None:
            nonlocal restarted
            try:
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
                restarted = True
            except apsw.BusyError:
                pass
            finally:
                ended.set()

        self._writer.post(lambda: self._writer.submit(job, self._report_failure))
        while not ended.wait(0.1):
            if self._stopping or self._writer.failure is not None:
                return False
        return restarted

    def _report_failure(self, _result: Any, error: BaseException | None) -> None:
        if error is not None:
            _log.warning("a checkpoint of %s failed: %s", self._path, error)

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
