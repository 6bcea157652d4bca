"""A data directory that is deleted, moved or exchanged beneath a running node: it stops."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from hadron.model.errors import DataDirectoryError, HadronError, StorageError
from hadron.node.tests.support import make_stream, produce, read_all, send
from hadron.testing.nodes import Nodes, running_nodes


def _exchange(path: Path) -> None:
    """By a copy, as tools do that restore files."""
    shutil.copytree(path, path.with_name("copy"))
    path.rename(path.with_name("before"))
    path.with_name("copy").rename(path)


def _rewrite(path: Path) -> None:
    scratch = path.with_name("scratch")
    shutil.copyfile(path, scratch)
    scratch.replace(path)


LOSSES: dict[str, tuple[Callable[[Path], object], str]] = {
    "directory deleted": (shutil.rmtree, r"n2 was removed or moved away"),
    "directory moved": (lambda path: path.rename(path.with_name("moved")), r"n2 was removed"),
    "directory exchanged": (_exchange, r"n2 is not the file that was opened"),
    "database deleted": (lambda path: (path / "hadron.db").unlink(), r"hadron\.db was removed"),
    "database exchanged": (lambda path: _rewrite(path / "hadron.db"), r"hadron\.db is not"),
    "log deleted": (lambda path: (path / "hadron.db-wal").unlink(), r"hadron\.db-wal was removed"),
    "identity exchanged": (lambda path: _rewrite(path / "node.db"), r"node\.db is not"),
}


@pytest.mark.parametrize("loss", LOSSES)
async def test_a_node_whose_files_are_not_its_own_any_more_stops(
    tmp_path: Path, clock: MockClock, loss: str
) -> None:
    lose, said = LOSSES[loss]
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        async with nodes.client() as client:
            await send(client, ["before"])
        await nodes.wait_in_step()
        lose(nodes.data("n2"))
        error = await nodes.wait_stopped("n2")
        assert isinstance(error, StorageError)
        assert re.search(said, error.message)
        assert "rebuilt by its peers" in error.hint
        async with nodes.client("c2") as client:
            await send(client, ["after"])
        shutil.rmtree(nodes.data("n2"), ignore_errors=True)
        await nodes.start("n2")
        await nodes.wait_in_step()
        async with nodes.client() as client:
            assert await read_all(client) == ["before", "after"]


async def test_who_has_no_peers_is_sent_to_a_backup(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 1) as nodes:
        shutil.rmtree(nodes.data("n1"))
        error = await nodes.wait_stopped("n1")
        assert isinstance(error, StorageError)
        assert "`hadron restore` it from a backup" in error.hint
        assert "peers" not in error.hint


async def test_whatever_is_met_first_the_loss_is_told(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite says of a file without a name that it is read only, and asks to check its owner."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        shutil.rmtree(nodes.data("n2"))
        # It is asked for a promise, which it writes down, before it looks at its files again.
        await nodes.restart("n1")
        error = await nodes.wait_stopped("n2")
        assert isinstance(error, StorageError)
        assert "n2 was removed or moved away" in error.message
    said = [each for each in caplog.records if each.levelname == "CRITICAL"]
    assert ["n2 was removed or moved away" in each.getMessage() for each in said] == [True]
    assert "Traceback" not in caplog.text


async def test_what_its_tasks_meet_after_its_end_is_not_what_ended_a_node(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await nodes.wait_in_step()
        member = nodes.node("n2").member

        async def stumble_at_the_end(_: object) -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise DataDirectoryError("node.db cannot be opened")

        await nodes.crash("n2")
        monkeypatch.setattr(type(member._scrubber), "run", stumble_at_the_end)
        await nodes.start("n2")
        shutil.rmtree(nodes.data("n2"))
        error = await nodes.wait_stopped("n2")
        monkeypatch.undo()
        assert "n2 was removed or moved away" in str(error)


async def test_what_is_acknowledged_after_a_majority_of_directories_is_gone(
    tmp_path: Path, clock: MockClock
) -> None:
    """Two of three: nothing is, from a moment later on."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        for name in ("n2", "n3"):
            shutil.rmtree(nodes.data(name))
        for name in ("n2", "n3"):
            await nodes.wait_stopped(name)
        async with nodes.connection("n1") as connection:
            with pytest.raises(HadronError):
                await produce(connection, b"value", timeout_s=2.0)
        assert "majority" in nodes.status("n1").trouble


async def test_a_replacement_keeps_its_write_ahead_log(tmp_path: Path, clock: MockClock) -> None:
    """SQLite removes the log of a database that it closes, by its name: it must not be that of
    another database."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        _exchange(nodes.data("n2"))
        there = _content(nodes)
        await nodes.wait_stopped("n2")
        assert _content(nodes) == there


def _content(nodes: Nodes) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in nodes.data("n2").iterdir()
        if path.name in ("hadron.db", "hadron.db-wal", "node.db")
    }
