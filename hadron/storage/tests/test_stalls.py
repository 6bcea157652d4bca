"""A disk that hangs is told, a slow one is not."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from hadron.node.world import SystemDisk
from hadron.storage.stalls import DiskStalls
from hadron.storage.writer import Prepared, Writer


class Hanging:
    """A writer whose disk is done when the test says so, by a clock that the test moves."""

    def __init__(self, directory: Path) -> None:
        self.now_s = 0.0
        clock: Any = SimpleNamespace(monotonic_s=lambda: self.now_s, now_ms=lambda: 0)
        token = trio.lowlevel.current_trio_token()
        self.writer = Writer(
            directory / "hadron.db",
            sync="NORMAL",
            disk=SystemDisk(),
            clock=clock,
            post=token.run_sync_soon,
            on_fatal=lambda _error: None,
        )
        self.stalls = DiskStalls(self.writer, Path("/n1"), clock)
        self._goes_on = threading.Event()
        self._ended = trio.Event()
        self.writer.start()

    async def begin(self) -> None:
        """Something is written from now on, until `end`."""
        begun, self._ended = trio.Event(), trio.Event()
        self._goes_on.clear()
        goes_on, ended = self._goes_on, self._ended

        def hang(_connection: object) -> None:
            self.writer.post(begun.set)
            goes_on.wait()

        self.writer.submit(hang, lambda _result, _error: ended.set())
        await begun.wait()

    async def end(self) -> None:
        self._goes_on.set()
        await self._ended.wait()

    def after(self, seconds: float) -> str:
        """What is told once so much time has passed."""
        self.now_s += seconds
        self.stalls.look()
        return self.stalls.trouble


@pytest.fixture
async def hanging(tmp_path: Path) -> AsyncIterator[Hanging]:
    found = Hanging(tmp_path)
    yield found
    found._goes_on.set()
    found.writer.close()


async def test_a_write_that_hangs_is_told_while_it_does(
    hanging: Hanging, caplog: pytest.LogCaptureFixture
) -> None:
    await hanging.begin()
    assert hanging.after(1.0) == ""
    first = (
        "the disk of /n1 has been busy with one write (fsync) for 4 s, and whatever else is to be "
        "written waits for it"
    )
    assert hanging.after(3.0) == first
    assert "for 20 s" in hanging.after(16.0)
    await hanging.end()
    # It may hang again at once: who looks between two of its writes is told as well.
    last = "the disk of /n1 needed 20 s for one write (fsync), for which all others had to wait"
    assert hanging.after(0.0) == last
    assert hanging.after(9.0) == last
    assert hanging.after(1.0) == ""
    assert caplog.messages == [first, "the disk of /n1 writes in time again"]


async def test_a_commit_on_the_loop_that_hung_is_told_afterwards(hanging: Hanging) -> None:
    def hang() -> bool:
        hanging.now_s += 7.0
        return False

    def prepare(connection: Any) -> Prepared:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE t(i INTEGER PRIMARY KEY)")
        # A part of its COMMIT, on the loop: nobody looks meanwhile.
        connection.set_commit_hook(hang)
        return Prepared(None, 1)

    hanging.writer.commit(prepare, lambda _result, _error: None)
    assert "needed 7 s for one write" in hanging.after(0.0)


async def test_a_slow_disk_is_no_trouble(
    hanging: Hanging, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        await hanging.begin()
        assert hanging.after(0.9) == ""
        await hanging.end()
        assert hanging.after(0.1) == ""
    assert not caplog.messages
