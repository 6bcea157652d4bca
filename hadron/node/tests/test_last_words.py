"""What a node's log says of its end, of files that it sets aside, and of what goes on for long."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import errno
import gc
import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from hadron.fakes.network import SimNetwork
from hadron.model.errors import CorruptionError, StorageError
from hadron.node import main
from hadron.node.member import Member
from hadron.node.runtime import Node
from hadron.node.tests.support import make_stream
from hadron.storage.aftermath import ASIDE
from hadron.testing.nodes import replica_set, running_nodes


async def test_a_file_that_is_set_aside_ends_nothing(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever is called for a node that cannot go on does something about it."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        damage = CorruptionError("a page is damaged", "move all of it away")
        nodes.node("n2").member._cannot_read(damage)
        await nodes.wait_for("set aside", (nodes.data("n2") / ASIDE).exists)
        await nodes.wait_in_step()
    assert not [each for each in caplog.records if each.levelno >= logging.CRITICAL]
    assert f"a page is damaged; the file is set aside as {ASIDE}" in caplog.text


async def test_an_orderly_stop_is_told(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running_nodes(tmp_path, 1) as nodes:
        await nodes.crash()
    assert "stopped, everything is in the database file" in caplog.text


async def test_damage_that_ends_a_node_is_not_called_an_orderly_stop(
    tmp_path: Path,
    clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of its tasks has met it, and nobody could give back what is lost."""
    is_met = trio.Event()
    original = Member._serve

    async def serve(member: Member, *given: Any) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(original, member, *given)
            await is_met.wait()
            raise CorruptionError("a page is damaged")

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(Member, "_serve", serve)
    async with running_nodes(tmp_path, 1) as nodes:
        is_met.set()
        assert str(await nodes.wait_stopped("n1")) == "a page is damaged"
    assert "in the database file" not in caplog.text


class ClosesSlowly:
    """A node that has something to close first."""

    waits_for = "requests over HTTP"

    def __init__(self) -> None:
        self.may_close = trio.Event()
        self.is_closed = False

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await self.may_close.wait()
                self.is_closed = True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_node_that_is_stopping_goes_on_with_it_when_it_is_told_to_again(
    number: signal.Signals, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(gc, "set_threshold", lambda _threshold: None)
    unhandled: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: unhandled.append(number))
    node: Any = ClosesSlowly()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(main._main, node, None)
            await trio.testing.wait_all_tasks_blocked()
            for each in (number, signal.SIGTERM, signal.SIGTERM, signal.SIGTERM):
                signal.raise_signal(each)
                await trio.testing.wait_all_tasks_blocked(0.01)
            assert not node.is_closed
            node.may_close.set()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert node.is_closed
    assert not unhandled
    told = [each.getMessage() for each in caplog.records]
    assert told == [
        f"stopping: {number.name}",
        "SIGTERM: it is stopping already, and waits for requests over HTTP",
    ]


def test_a_person_who_presses_ctrl_c_twice_need_not_wait() -> None:
    script = (
        "import signal, trio\n"
        "from hadron.node import main\n"
        "from hadron.node.tests.test_last_words import ClosesSlowly\n"
        "main._configure_logging('info', 'text', 'n1')\n"
        "interrupt = lambda _node: signal.raise_signal(signal.SIGINT)\n"
        "trio.run(main._main, ClosesSlowly(), interrupt)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            assert b"stopping: SIGINT" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == -signal.SIGINT
            assert b"ended at once" in process.stderr.readline()
        finally:
            process.kill()


def test_why_a_node_cannot_go_on_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, name in (
        (main, "_configure_logging"),
        (gc, "freeze"),
        (gc, "set_threshold"),
        (sys, "setswitchinterval"),
    ):
        monkeypatch.setattr(owner, name, lambda *_: None)

    def fail(node: Node) -> None:
        node.member.fail(StorageError("the disk is gone", "buy one"))

    config = replica_set(tmp_path, 1)
    network = SimNetwork().host(config.leader.address.rpartition(":")[0])
    assert main.run(config, "n1", on_listening=fail, network=network) == 1
    assert caplog.text.count("the disk is gone (buy one)") == 1
    assert caplog.records[-1].levelno == logging.CRITICAL


async def test_a_replica_that_goes_and_comes_is_told_by_its_leader(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        caplog.clear()
        await nodes.crash("n2")
        await nodes.wait_for("noticed", lambda: "feeding n2 ended" in caplog.text)
        (gone,) = [each for each in caplog.records if "n2 ended" in each.getMessage()]
        assert gone.levelno == logging.WARNING
        await nodes.start("n2")
        await nodes.wait_for("fed", lambda: "feeding n2, which has " in caplog.text)


@pytest.mark.long
async def test_too_many_open_files_are_told_now_and_then(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Full:
        tries = 0

        async def accept(self) -> Any:
            self.tries += 1
            raise OSError(errno.EMFILE, "Too many open files")

    full: Any = Full()
    async with running_nodes(tmp_path, 1) as nodes, trio.open_nursery() as nursery:
        nursery.start_soon(nodes.node("n1").member.acceptor.run, full)
        await nodes.wait_for("a minute", lambda: full.tries > 650)
        nursery.cancel_scope.cancel()
    told = [text for each in caplog.records if "accepted" in (text := each.getMessage())]
    assert len(told) == 2
    assert "LimitNOFILE=" in told[0]
    assert "tried 1 times" not in told[1]
