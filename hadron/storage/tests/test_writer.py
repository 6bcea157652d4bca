"""The writer's thread: order, reports, the end after a failure, and checkpoints."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import apsw
import pytest
import trio
import trio.testing

from hadron.model.errors import CorruptionError, DataDirectoryError, FencedError, StorageError
from hadron.node.world import SystemDisk
from hadron.storage.checkpoint import Checkpointer
from hadron.storage.database import connect
from hadron.storage.writer import Writer
from hadron.wire.system import SystemClock

DISK = SystemDisk()

_PATIENCE_WRITES = 16_000
"""Of 128 kB: how fast the log's restarts follow is up to the machine; that they follow is not."""


CHECKPOINT_LOCK = 121
"""Of the bytes of a `-shm` file that SQLite locks the one for checkpoints."""


@contextlib.contextmanager
def locked_by_another(path: Path, byte: int) -> Iterator[None]:
    """Another process has one of SQLite's locks on a file."""
    code = "import fcntl, sys; f = open(sys.argv[1], 'r+b'); "
    code += "fcntl.lockf(f, fcntl.LOCK_EX, 1, int(sys.argv[2])); print(flush=True); input()"
    with Popen([sys.executable, "-c", code, str(path), str(byte)], stdin=PIPE, stdout=PIPE) as it:
        assert it.stdout is not None
        it.stdout.readline()
        yield
        it.kill()


class Host:
    """A writer, and what its node would be told."""

    def __init__(self, path: Path, checkpoint_bytes: int) -> None:
        self.path = path
        self.posts = 0
        self.fatal: list[BaseException] = []
        self.held: list[bool] = []
        self._token = trio.lowlevel.current_trio_token()
        self.writer = Writer(
            path,
            sync="NORMAL",
            disk=DISK,
            clock=SystemClock(),
            post=self._post,
            on_fatal=self.fatal.append,
        )
        self.checkpointer = Checkpointer(
            self.writer,
            path,
            checkpoint_bytes=checkpoint_bytes,
            disk=DISK,
            hold_readers=self.held.append,
        )
        self.writer.connection.execute("CREATE TABLE t(i INTEGER PRIMARY KEY, b BLOB)")

    def _post(self, report: Callable[[], None]) -> None:
        self.posts += 1
        self._token.run_sync_soon(report, idempotent=True)

    async def run(self, job: Callable[[apsw.Connection], Any]) -> Any:
        ended = trio.Event()
        outcome: list[Any] = []

        def done(result: Any, error: BaseException | None) -> None:
            outcome.extend((result, error))
            ended.set()

        self.writer.submit(job, done)
        await ended.wait()
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]

    async def insert(self, size: int) -> None:
        data = os.urandom(size)
        await self.run(lambda db: db.execute("INSERT INTO t(b) VALUES(?)", (data,)))

    def foreign_reader(self) -> apsw.Connection:
        return apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READONLY)

    @property
    def wal_bytes(self) -> int:
        return os.path.getsize(f"{self.path}-wal")

    @property
    def wal_restarts(self) -> int:
        """The "checkpoint sequence number" of the log's header: it rises with each restart."""
        with open(f"{self.path}-wal", "rb") as file:
            return int.from_bytes(file.read(16)[12:], "big")


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    async with running_host(tmp_path, 1 << 20) as host:
        yield host


@asynccontextmanager
async def running_host(directory: Path, checkpoint_bytes: int) -> AsyncIterator[Host]:
    host = Host(directory / "hadron.db", checkpoint_bytes)
    host.writer.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.writer.run)
        nursery.start_soon(host.checkpointer.run)
        yield host
        nursery.cancel_scope.cancel()
    host.writer.close()


async def test_jobs_run_in_order_and_report_in_order(host: Host) -> None:
    ran: list[int] = []
    reported: list[int] = []
    ended = trio.Event()

    def job(number: int, _: apsw.Connection) -> int:
        ran.append(number)
        return number

    def done(result: Any, error: BaseException | None) -> None:
        assert error is None
        reported.append(result)
        if result == 499:
            ended.set()

    for number in range(500):
        host.writer.submit(partial(job, number), done)
    await ended.wait()
    assert ran == reported == list(range(500))


async def test_reports_that_are_ready_together_wake_the_loop_once(tmp_path: Path) -> None:
    drained: list[Callable[[], None]] = []
    token, ready = trio.lowlevel.current_trio_token(), trio.Event()

    def post(drain: Callable[[], None]) -> None:
        drained.append(drain)
        if len(drained) == 3:
            token.run_sync_soon(ready.set)

    writer = Writer(
        tmp_path / "hadron.db",
        sync="NORMAL",
        disk=DISK,
        clock=SystemClock(),
        post=post,
        on_fatal=lambda _: None,
    )
    writer.start()
    reports: list[int] = []
    for number in range(3):
        writer.submit(lambda _, n=number: n, lambda result, _: reports.append(result))  # type: ignore[misc]
    await ready.wait()
    assert reports == []
    drained[0]()
    assert reports == [0, 1, 2], "the first wake-up takes everything that is ready"
    assert all(report == drained[0] for report in drained), "equal, so a loop can coalesce them"
    writer.close()


async def test_a_job_may_report_before_it_ends(host: Host) -> None:
    order: list[str] = []

    def job(_: apsw.Connection) -> None:
        host.writer.post(lambda: order.append("early"))

    await host.run(job)
    assert order == ["early"]


async def test_a_refusal_is_reported_and_writing_goes_on(host: Host) -> None:
    def refuse(_: apsw.Connection) -> None:
        raise FencedError("a higher ballot was promised")

    with pytest.raises(FencedError):
        await host.run(refuse)
    with pytest.raises(CorruptionError):
        await host.run(_raise(CorruptionError("a peer's entry is damaged")))
    await host.insert(10)
    assert host.writer.failure is None


def _raise(error: BaseException) -> Callable[[apsw.Connection], None]:
    def job(_: apsw.Connection) -> None:
        raise error

    return job


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (apsw.IOError("disk I/O error"), StorageError),
        (apsw.FullError("database or disk is full"), StorageError),
        (apsw.CorruptError("database disk image is malformed"), CorruptionError),
        (StorageError("entries 4 to 9 could not be committed"), StorageError),
        (ZeroDivisionError("a defect"), ZeroDivisionError),
    ],
    ids=lambda value: getattr(value, "__name__", None) or type(value).__name__,
)
async def test_nothing_is_written_after_a_failure(
    host: Host, error: BaseException, reported: type[BaseException]
) -> None:
    """The next group would continue entries that are not on this disk (PROTOCOL A3)."""
    ran: list[int] = []
    with pytest.raises(reported):
        await host.run(_raise(error))
    with pytest.raises(StorageError, match="is not written any more"):
        await host.run(lambda _: ran.append(1))
    assert ran == []
    # Also when whoever asked keeps the error to itself.
    assert [type(error) for error in host.fatal] == [reported]


async def test_a_report_that_fails_ends_the_node(host: Host) -> None:
    def done(_result: Any, _error: BaseException | None) -> None:
        raise ZeroDivisionError

    host.writer.submit(lambda _: None, done)
    await host.run(lambda _: None)
    assert [type(error) for error in host.fatal] == [ZeroDivisionError]


async def test_the_write_ahead_log_restarts_under_constant_writing(tmp_path: Path) -> None:
    async with running_host(tmp_path, 2 << 20) as host:
        await host.insert(1)
        left = _PATIENCE_WRITES

        async def write() -> None:
            nonlocal left
            while left > 0 and host.wal_restarts < 5:
                left -= 1
                await host.insert(128 << 10)

        async with trio.open_nursery() as nursery:
            # As many as keep the writer from ever being idle.
            for _ in range(4):
                nursery.start_soon(write)
        assert host.wal_restarts >= 5, "2 GB were written"


async def test_it_also_restarts_while_reads_overlap(tmp_path: Path) -> None:
    """Each read holds the log; were none of them ever held back, it would grow with each write."""

    def begin(reader: apsw.Connection) -> None:
        reader.execute("BEGIN; SELECT count(*) FROM t")

    async with running_host(tmp_path, 1 << 20) as host:
        readers = [host.foreign_reader() for _ in range(2)]
        begin(readers[0])
        for number in range(_PATIENCE_WRITES):
            # One read begins before the other ends; while they are held none begins.
            ending, beginning = readers[number % 2], readers[(number + 1) % 2]
            if host.held[-1:] != [True] and not beginning.in_transaction:
                begin(beginning)
            if ending.in_transaction:
                ending.execute("ROLLBACK")
            await host.insert(128 << 10)
            if host.wal_restarts >= 3:
                break
        assert host.wal_restarts >= 3
        assert True in host.held
        for reader in readers:
            reader.close()


async def test_a_foreign_reader_does_not_stop_reads_for_good(tmp_path: Path) -> None:
    async with running_host(tmp_path, 1 << 20) as host:
        foreign = host.foreign_reader()
        foreign.execute("BEGIN; SELECT count(*) FROM t")
        while host.held != [True, False]:
            await host.insert(128 << 10)
        foreign.close()
        while host.held.count(False) < host.held.count(True) or host.wal_bytes > 64 << 20:
            await host.insert(128 << 10)


async def test_readers_are_not_held_back_for_longer_by_a_slow_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt waits for the writer."""
    attempts: list[float] = []
    async with running_host(tmp_path, 1 << 20) as host:
        foreign = host.foreign_reader()
        foreign.execute("BEGIN; SELECT count(*) FROM t")
        original = host.checkpointer._on_writer

        async def on_writer(job: Any) -> Any:
            if host.held[-1:] == [True]:
                attempts.append(trio.current_time())
                await trio.sleep(0.1)
            return await original(job)

        monkeypatch.setattr(host.checkpointer, "_on_writer", on_writer)
        while host.held != [True, False]:
            await host.insert(128 << 10)
        foreign.close()
    assert 2 <= len(attempts) <= 3, "each one takes 100 ms, and all of them 250"


async def test_a_file_that_cannot_be_opened_at_first_is_checkpointed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As when it has just been deleted, of which others tell; or without a free file descriptor."""
    attempts = 0

    def fails_at_first(path: Path, *, vfs: str) -> apsw.Connection:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise apsw.CantOpenError("unable to open database file")
        return connect(path, vfs=vfs)

    monkeypatch.setattr("hadron.storage.checkpoint.connect", fails_at_first)
    async with running_host(tmp_path, 1 << 20) as host:
        await trio.testing.wait_all_tasks_blocked()
        assert caplog.text == ""
        for _ in range(_PATIENCE_WRITES):
            await host.insert(128 << 10)
            if host.wal_restarts:
                break
        assert host.wal_restarts
    assert "a checkpoint of" in caplog.text
    assert "Traceback" not in caplog.text


async def test_closing_finishes_what_is_queued(tmp_path: Path) -> None:
    path = tmp_path / "hadron.db"
    host = Host(path, checkpoint_bytes=1 << 20)
    host.writer.start()
    for _ in range(20):
        host.writer.submit(
            lambda db: db.execute("INSERT INTO t(b) VALUES(x'00')"), lambda _result, _error: None
        )
    host.writer.close()
    assert not os.access(f"{path}-wal", os.F_OK), "closing moves the log into the file"
    again = apsw.Connection(str(path))
    assert again.execute("SELECT count(*) FROM t").fetchall() == [(20,)]
    again.close()


class OneTurnDisk:
    """A disk without threads: work is done on the loop, after a turn of it."""

    vfs = "unix"
    has_threads = False

    async def do(self, work: Callable[[], Any]) -> Any:
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()
            return work()


async def test_without_threads_no_job_is_left_behind(tmp_path: Path) -> None:
    """Whoever waits for a job that nothing may interrupt would wait for ever."""
    disk: Any = OneTurnDisk()
    writer = Writer(
        tmp_path / "db",
        sync="FULL",
        disk=disk,
        clock=SystemClock(),
        post=lambda _: None,
        on_fatal=lambda _: None,
    )
    done: list[str] = []

    def submit(name: str) -> None:
        writer.submit(lambda _: name, lambda result, _: done.append(result))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        submit("first")
        await trio.testing.wait_all_tasks_blocked()
        submit("as the node ends")
        nursery.cancel_scope.cancel()
    submit("afterwards")
    assert done == ["first", "as the node ends", "afterwards"]
    writer.close()


async def test_a_file_that_cannot_be_tidied_up_is_closed_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk: Any = OneTurnDisk()
    writer = Writer(
        tmp_path / "db",
        sync="FULL",
        disk=disk,
        clock=SystemClock(),
        post=lambda _: None,
        on_fatal=lambda _: None,
    )
    connection = writer.connection

    class Failing:
        def __getattr__(self, name: str) -> Any:
            return getattr(connection, name)

        def close(self) -> None:
            connection.close()
            raise apsw.FullError("no room")

    failing: Any = Failing()
    writer.connection = failing
    writer.close()
    assert "FullError: no room" in caplog.text


async def test_another_program_that_makes_a_checkpoint_ends_no_node(tmp_path: Path) -> None:
    """It has begun between the rounds in the background and the writer's own."""
    with contextlib.ExitStack() as others:
        async with running_host(tmp_path, 1 << 20) as host:
            rounds = host.checkpointer._round

            def then_somebody_else(connection: apsw.Connection) -> tuple[int, int]:
                result = rounds(connection)
                others.enter_context(locked_by_another(Path(f"{host.path}-shm"), CHECKPOINT_LOCK))
                return result

            host.checkpointer._round = then_somebody_else  # type: ignore[method-assign]
            await host.checkpointer._checkpoint()
            assert host.fatal == []
            await host.run(lambda db: db.execute("INSERT INTO t VALUES(1, NULL)"))
            others.close()


async def test_who_writes_the_file_is_named_as_another_program(tmp_path: Path) -> None:
    async with running_host(tmp_path, 1 << 20) as host:
        with closing(connect(host.path)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(DataDirectoryError, match="locked by another program"):
                await host.run(lambda db: db.execute("BEGIN IMMEDIATE"))
