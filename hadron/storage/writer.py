"""Writing a node's database: one connection, one piece of work at a time.

Work comes in two kinds. A *job* runs as a whole on the writer's thread. A *commit* is prepared on
the event loop, where it leaves a transaction open; its COMMIT, with the fsync, goes to the thread
when it is large or the disk is slow, and is done at once otherwise. Measured: running the
statements on the thread costs 22 futex calls per record, because the two threads take the
interpreter from each other at every statement; the way of a small COMMIT to the thread and back
costs 100 µs of CPU, as much as a fast disk's fsync takes. Where commits wait, the loop turns once
between one that it has done and the next (PROTOCOL F1).

What the thread reports goes back to the loop through `post`, and reports that are ready together
wake the loop once. Work that
raises `StorageError`, or anything that is not a `HadronError`, is the end of the node: after a
failed write nothing on this disk can be promised any more, so no later job runs (PROTOCOL A3). The
exception is a `CorruptionError` about bytes that a peer sent: those were refused, not written.

A node that ends, for whatever reason, begins no commit any more. A replica's queue may hold minutes
of them, all of which its leader has; and of what a leader has not begun to write, nobody was told.
Jobs are few and short, and somebody may be waiting for each: they are done, or refused after a
failure.

On a disk without threads (the simulator's) the thread's part is done by `run`, a task.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import apsw
import trio

from hadron.model.errors import CorruptionError, HadronError, StorageError
from hadron.model.ports import Clock, Disk
from hadron.storage.database import READ_ERRORS, open_writer, translated_errors

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


class Writer:
    """Does jobs and commits in the order in which they were given. Call it from the event loop."""

    def __init__(
        self,
        path: Path,
        *,
        sync: str,
        disk: Disk,
        clock: Clock,
        post: Post,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """`on_fatal` is told what the node must not survive: an error after which nothing is
        written any more, or a report that fails."""
        self._path = path
        self._disk = disk
        self._clock = clock
        self._post_to_loop = post
        self._on_fatal = on_fatal
        self._jobs: SimpleQueue[tuple[Job, Done] | None] = SimpleQueue()
        self._reports: deque[Callable[[], None]] = deque()
        self._waiting: deque[tuple[Job | None, Prepare | None, Done]] = deque()
        self._on_thread = 0
        """Jobs handed to the thread and not yet reported; while there are any, the connection is
        the thread's."""
        self._pumping = False
        self._turning = False
        """A commit was done on the loop, and the loop has not turned since: what waits goes on
        waiting."""
        self._recent_commit_s = 0.0
        self._busy_since_s = math.inf
        """When the thread began what it does now; never, while it does nothing."""
        self._slowest_s = 0.0
        self.on_prepared: Callable[[int], None] = lambda _size: None
        """Told, inside each commit's transaction, about how many bytes it has written."""
        self.failure: BaseException | None = None
        """What ended all writing; jobs are then answered with an error instead of being run."""
        self.connection = open_writer(path, sync=sync, vfs=disk.vfs)
        self._wanted = trio.Event()
        """For `run`: a job where there is no thread, or commits that wait for a turn."""
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="hadron-writer", daemon=True)

    def start(self) -> None:
        """Start the thread, if there is to be one. Until then, `connection` is the caller's."""
        if self._disk.has_threads:
            self._thread.start()

    async def run(self) -> None:
        """Work until cancelled. From then on no commit is begun, and a job is done at once where
        there is no thread to do it."""
        try:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                self._turning = False
                try:
                    self._pump()
                except Exception as error:
                    self._on_fatal(error)
                while not (self._disk.has_threads or self._jobs.empty()):
                    report = await self._disk.do(self._next_report)
                    report()
        finally:
            # Now and not with `close`: tasks that nothing may interrupt can be waiting for a job
            # behind these commits.
            self._drop_commits()

    @property
    def is_away(self) -> bool:
        """Whether the connection is the thread's; else it is the event loop's."""
        return self._on_thread > 0

    def slowest_s(self) -> tuple[float, float]:
        """For how long the thread has been at what it does now, 0 while it does nothing; and the
        longest that anything took that was done since this was asked before. In seconds."""
        busy_s = max(0.0, self._clock.monotonic_s() - self._busy_since_s)
        took_s, self._slowest_s = self._slowest_s, 0.0
        return busy_s, took_s

    def submit(self, job: Job, done: Done) -> None:
        """Run `job` on the thread; `done(result, error)` runs on the event loop."""
        if self._waiting:
            self._waiting.append((job, None, done))
        else:
            self._hand_over(job, done)

    def commit(self, prepare: Prepare, done: Done) -> None:
        """Run `prepare` here as soon as the connection is free, then COMMIT what it began.

        A `prepare` that raises has rolled back what it did. When the writer ends, `done` is not
        told of commits that were not prepared.
        """
        if self._is_ending:
            return
        self._waiting.append((None, prepare, done))
        self._pump()

    def waits_last(self, prepare: Prepare) -> bool:
        """Whether this commit waits, and nothing behind it: what comes next may still join it, and
        keeps its place."""
        return bool(self._waiting) and self._waiting[-1][1] == prepare

    def _hand_over(self, job: Job, done: Done) -> None:
        self._on_thread += 1

        def reported(result: Any, error: BaseException | None) -> None:
            self._on_thread -= 1
            done(result, error)
            self._pump()

        self._jobs.put((job, reported))
        if self._disk.has_threads:
            return
        if self._is_ending:
            self._finish_here()
        else:
            self._wanted.set()

    def _drop_commits(self) -> None:
        self._is_ending = True
        waiting, self._waiting = self._waiting, deque()
        for job, _, done in waiting:
            if job is not None:
                self._hand_over(job, done)
        if not self._disk.has_threads:
            self._finish_here()

    def _pump(self) -> None:
        """Go on with what waits, up to a commit: behind one that was done here the loop turns.

        *(A thousand commands came while the disk was slow, and are two commits, or a hundred. Done
        in one go, they are a second in which nobody is heard: a leader's own answers do not leave,
        what has come could not join the next one, and peers take it for silent.)*
        """
        if self._pumping or self._turning:
            return
        self._pumping = True
        try:
            while self._waiting and not self._on_thread and not self._turning:
                job, prepare, done = self._waiting.popleft()
                if prepare is not None:
                    self._commit(prepare, done)
                    self._turning = bool(self._waiting) and not self._on_thread
                else:
                    assert job is not None
                    self._hand_over(job, done)
        finally:
            self._pumping = False
        if self._turning:
            self._wanted.set()

    def _commit(self, prepare: Prepare, done: Done) -> None:
        assert not self._on_thread, self._on_thread
        assert not self.connection.in_transaction
        try:
            self._refuse_after_failure()
            with translated_errors(self._path, self.connection):
                prepared = prepare(self.connection)
                self.on_prepared(prepared.size)
                small = prepared.size <= _AT_ONCE_BYTES
                if small and self._recent_commit_s < _FAST_COMMIT_S:
                    self._execute_commit(small)
        except BaseException as error:
            self._note(error)
            self._report(done, None, error)
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
        started = self._clock.monotonic_s()
        self.connection.execute("COMMIT")
        if small:
            taken_s = self._clock.monotonic_s() - started
            self._slowest_s = max(self._slowest_s, taken_s)
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

    def fail(self, error: StorageError) -> None:
        """Write nothing any more, and end the node: its files are not what it has open."""
        self._note(error)
        self._on_fatal(error)

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
            self.post(self._do(*item))

    def _do(self, job: Job, done: Done) -> Callable[[], None]:
        """Do a job; returns its report."""
        result: Any = None
        error: BaseException | None = None
        self._busy_since_s = started = self._clock.monotonic_s()
        try:
            self._refuse_after_failure()
            with translated_errors(self._path, self.connection):
                result = job(self.connection)
        except BaseException as caught:
            error = caught
            self._note(caught)
        self._busy_since_s = math.inf
        self._slowest_s = max(self._slowest_s, self._clock.monotonic_s() - started)
        return partial(self._report, done, result, error)

    def _report(self, done: Done, result: Any, error: BaseException | None) -> None:
        """On the event loop. Whoever asked may pass the error on to a peer and go on; a node whose
        file is not written any more must not."""
        try:
            done(result, error)
        finally:
            if error is not None and error is self.failure:
                self._on_fatal(error)

    def _next_report(self) -> Callable[[], None]:
        item = self._jobs.get_nowait()
        assert item is not None
        return self._do(*item)

    def close(
        self,
        seal: Callable[[], None] = lambda: None,
        last: Callable[[apsw.Connection], None] = lambda _connection: None,
    ) -> bool:
        """Finish what is begun, do the jobs that wait, then `last`; move the write-ahead log into
        the file, and close it. Returns whether the file has everything.

        `seal` is called when all is in the file and the log is still there: a log that is missing
        where nobody has sealed the file is a sign of damage (PROTOCOL B4). After a failure the log
        is left as it is; what its disk really holds is for the next start to find out.
        """
        self._drop_commits()
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join()
        self._drain_reports()
        self.connection.set_wal_hook(None)
        try:
            if self.failure is None and not self.connection.in_transaction:
                last(self.connection)
            if self.failure is None and self._move_log():
                seal()
                self.connection.close()
                return True
        except (apsw.Error, HadronError) as error:
            _log.warning("closing %s: %s: %s", self._path, type(error).__name__, error)
        with contextlib.suppress(apsw.ConnectionClosedError):
            self.abandon()
        return False

    def abandon(self) -> None:
        """Close the file and leave its write-ahead log as it is. No work may be under way."""
        self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self.connection.close()

    def _move_log(self) -> bool:
        """Whether the file has everything now, and durably."""
        if self.connection.in_transaction:
            return False
        total, done = self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        return total == done

    def _finish_here(self) -> None:
        while not self._jobs.empty():
            self._next_report()()


def _is_fatal(error: BaseException) -> bool:
    if isinstance(error, CorruptionError):
        return isinstance(error.__cause__, READ_ERRORS)
    return isinstance(error, StorageError) or not isinstance(error, HadronError)
