"""Commits that are prepared on the event loop, beside jobs on the writer's thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
import trio.testing

from hadron.model.errors import FencedError, StorageError
from hadron.storage.tests.test_writer import Host, running_host
from hadron.storage.writer import Prepare, Prepared

LARGE = 1 << 20

PATIENCE_S = 30.0
"""For what would otherwise be waited for for ever."""


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    async with running_host(tmp_path, 1 << 20) as host:
        yield host


def insert(number: int, size: int = 10) -> Prepare:
    def prepare(db: apsw.Connection) -> Prepared:
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO t VALUES(?, NULL)", (number,))
        return Prepared(number, size)

    return prepare


async def committed(host: Host, prepare: Prepare) -> Any:
    ended = trio.Event()
    outcome: list[Any] = []

    def done(result: Any, error: BaseException | None) -> None:
        outcome.extend((result, error))
        ended.set()

    host.writer.commit(prepare, done)
    await ended.wait()
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def ids(db: apsw.Connection) -> list[int]:
    return [row[0] for row in db.execute("SELECT i FROM t ORDER BY i")]


@pytest.mark.parametrize("size", [10, LARGE])
@pytest.mark.parametrize("slow_disk", [False, True])
async def test_what_was_prepared_is_committed(host: Host, size: int, slow_disk: bool) -> None:
    host.writer._recent_commit_s = 9.0 if slow_disk else 0.0
    assert await committed(host, insert(1, size)) == 1
    assert not host.writer.connection.in_transaction
    reader = apsw.Connection(str(host.path), flags=apsw.SQLITE_OPEN_READONLY)
    assert ids(reader) == [1]
    reader.close()


async def test_a_disk_that_is_fast_again_is_noticed(host: Host) -> None:
    host.writer._recent_commit_s = 0.01
    for number in range(60):
        await committed(host, insert(number))
    assert host.writer._recent_commit_s < 0.01


async def test_nothing_to_write_is_no_commit(host: Host) -> None:
    assert await committed(host, lambda _: Prepared("nothing", 0)) == "nothing"
    await committed(host, insert(1))


async def test_jobs_and_commits_keep_their_order_and_never_overlap(host: Host) -> None:
    order: list[int] = []
    done: list[int] = []
    last = trio.Event()
    loop = threading.get_ident()

    def prepare(number: int) -> Prepare:
        def prepare(db: apsw.Connection) -> Prepared:
            assert threading.get_ident() == loop
            order.append(number)
            return insert(number, LARGE if number % 3 else 10)(db)

        return prepare

    def job(number: int) -> Callable[[apsw.Connection], int]:
        def job(db: apsw.Connection) -> int:
            assert threading.get_ident() != loop
            assert not db.in_transaction
            order.append(number)
            return number

        return job

    def ended(result: Any, error: BaseException | None) -> None:
        assert error is None
        done.append(result)
        if len(done) == 200:
            last.set()

    for number in range(200):
        if number % 2:
            host.writer.submit(job(number), ended)
        else:
            host.writer.commit(prepare(number), ended)
    await last.wait()
    assert order == done == list(range(200))


async def test_a_commit_is_the_last_until_it_begins_or_something_is_given_after_it(
    host: Host,
) -> None:
    """What waits last can still be added to, without passing anything."""
    let_go, last = threading.Event(), trio.Event()
    first, second = insert(1), insert(2)
    host.writer.submit(lambda _: let_go.wait(), lambda *_: None)
    host.writer.commit(first, lambda *_: None)
    assert host.writer.waits_last(first)
    host.writer.commit(second, lambda *_: None)
    assert host.writer.waits_last(second)
    assert not host.writer.waits_last(first)
    host.writer.submit(ids, lambda *_: last.set())
    assert not host.writer.waits_last(second)
    let_go.set()
    await last.wait()
    third = insert(3)
    host.writer.commit(third, lambda *_: None)
    assert not host.writer.waits_last(third)


async def test_a_commit_may_be_followed_by_another_from_its_own_report(host: Host) -> None:
    ended = trio.Event()
    reported: list[int] = []

    def done(result: Any, _error: BaseException | None) -> None:
        reported.append(result)
        if result < 3_000:
            host.writer.commit(insert(result + 1), done)
        else:
            ended.set()

    host.writer._recent_commit_s = -1e9
    host.writer.commit(insert(1), done)
    await ended.wait()
    assert reported == list(range(1, 3_001))


async def test_between_commits_that_wait_the_loop_turns(host: Host) -> None:
    """Who is heard meanwhile: connections, timers, cancellations."""
    turns, at, last = 0, list[int](), trio.Event()
    let_go = threading.Event()

    async def count() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    def done(number: Any, _error: BaseException | None) -> None:
        at.append(turns)
        if number == 39:
            last.set()

    host.writer._recent_commit_s = -1e9
    host.writer.submit(lambda _: let_go.wait(), lambda *_: None)
    for number in range(40):
        host.writer.commit(insert(number), done)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        let_go.set()
        await last.wait()
        nursery.cancel_scope.cancel()
    assert len(at) == 40
    assert at[-1] - at[0] >= 38, "one for each, but where a turn begins or ends is up to the loop"


async def test_a_report_that_fails_between_two_turns_ends_the_node(host: Host) -> None:
    let_go = threading.Event()

    def fail(_result: Any, _error: BaseException | None) -> None:
        raise ZeroDivisionError

    host.writer._recent_commit_s = -1e9
    host.writer.submit(lambda _: let_go.wait(), lambda *_: None)
    host.writer.commit(insert(1), lambda *_: None)
    host.writer.commit(insert(2), fail)
    let_go.set()
    while not host.fatal:  # noqa: ASYNC110 - nobody tells of it
        await trio.sleep(0.001)
    assert [type(error) for error in host.fatal] == [ZeroDivisionError]


async def test_a_refusal_leaves_the_writer_alive(host: Host) -> None:
    def refuse(_: apsw.Connection) -> Prepared:
        raise FencedError("a higher ballot was promised")

    with pytest.raises(FencedError):
        await committed(host, refuse)
    assert await committed(host, insert(1)) == 1


@pytest.mark.parametrize("size", [10, LARGE])
async def test_nothing_is_written_after_a_failed_commit(host: Host, size: int) -> None:
    """What was sent before it must never be continued (PROTOCOL A3)."""
    host.writer._recent_commit_s = 0.0
    host.writer.connection.set_commit_hook(lambda: True)
    prepared: list[int] = []
    with pytest.raises((StorageError, apsw.Error)):
        await committed(host, insert(1, size))
    host.writer.connection.set_commit_hook(None)

    def later(_: apsw.Connection) -> Prepared:
        prepared.append(1)
        return Prepared(None, 0)

    with pytest.raises(StorageError, match="is not written any more"):
        await committed(host, later)
    with pytest.raises(StorageError, match="is not written any more"):
        await host.run(prepared.append)  # type: ignore[arg-type]
    assert prepared == []


class Busy:
    """A writer whose thread is held up, with a large commit that has begun and a job and commits
    behind it."""

    def __init__(self, path: Path) -> None:
        self.host = Host(path, checkpoint_bytes=1 << 20)
        self.release = threading.Event()
        self.reported: list[object] = []
        self.job_done = trio.Event()
        self.host.writer.start()
        self.host.writer.commit(insert(0, LARGE), self._reported)
        self.host.writer.submit(lambda _: self.release.wait(), self._reported)
        for number in range(1, 20):
            self.host.writer.commit(insert(number), self._reported)
            if number == 10:
                self.host.writer.submit(lambda _: "job", self._reported)

    def _reported(self, result: object, error: BaseException | None) -> None:
        self.reported.append(type(error) if error is not None else result)
        if result == "job":
            self.job_done.set()

    async def close(self) -> list[int]:
        """What is in the file then. On a thread, as a `close` that waits for ever would keep the
        loop from telling so."""
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    partial(trio.to_thread.run_sync, self.host.writer.close, abandon_on_cancel=True)
                )
                # Released before that, the thread would take of the commits what it can.
                while not self.host.writer._is_ending:  # noqa: ASYNC110
                    await trio.sleep(0.001)
                self.release.set()
        with contextlib.closing(apsw.Connection(str(self.host.path))) as database:
            return ids(database)


async def test_closing_finishes_what_is_begun_and_drops_commits_that_wait(tmp_path: Path) -> None:
    busy = Busy(tmp_path / "hadron.db")
    assert await busy.close() == [0]
    assert busy.reported == [0, True, "job"]


async def test_a_job_behind_many_commits_is_done_as_soon_as_the_writer_ends(tmp_path: Path) -> None:
    """Whoever waits for it keeps the node from ending, and `close` comes after that."""
    busy = Busy(tmp_path / "hadron.db")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(busy.host.writer.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    busy.host.writer.commit(insert(20), busy._reported)
    busy.release.set()
    with trio.fail_after(PATIENCE_S):
        await busy.job_done.wait()
    assert await busy.close() == [0]


async def test_a_writer_that_failed_is_closed_with_work_waiting(tmp_path: Path) -> None:
    busy = Busy(tmp_path / "hadron.db")
    busy.host.writer.fail(StorageError("its file was removed"))
    assert await busy.close() == []
    assert busy.reported[-1] is StorageError


async def test_a_writer_whose_report_failed_is_closed_with_work_waiting(tmp_path: Path) -> None:
    host = Host(tmp_path / "hadron.db", checkpoint_bytes=1 << 20)
    host.writer.start()
    failed = trio.Event()

    def fail(_result: object, _error: BaseException | None) -> None:
        failed.set()
        raise ZeroDivisionError

    host.writer.submit(lambda _: None, fail)
    host.writer.commit(insert(1), lambda _result, _error: None)
    await failed.wait()
    with trio.fail_after(PATIENCE_S):
        await trio.to_thread.run_sync(host.writer.close, abandon_on_cancel=True)
