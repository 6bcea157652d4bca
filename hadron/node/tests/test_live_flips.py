"""Bits that flip beneath a running node: the disk is repaired, and not what SQLite remembers."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
from trio.testing import MockClock

from hadron.node.live_verification import verify_live
from hadron.node.tests.support import is_member, make_stream, produce, read_all
from hadron.node.tests.test_repair import problems
from hadron.node.verification import verify_paths
from hadron.replication.repair import Repairer
from hadron.storage.bodies import BODY
from hadron.storage.database import open_reader, transaction
from hadron.storage.log import first_lsn
from hadron.storage.pages import _record
from hadron.storage.repair import put_back_body
from hadron.testing import nodes as testing_nodes
from hadron.testing.nodes import Nodes, running_nodes

VALUES = [random.Random(number).randbytes(6_000 if number % 2 else 150) for number in range(40)]
TRIMMED = {"log_keep_bytes": 64 << 10, "log_max_lag_bytes": 128 << 10}


@asynccontextmanager
async def loaded(directory: Path, **settings: Any) -> AsyncIterator[Nodes]:
    async with running_nodes(
        directory, 3, settings=replace(testing_nodes._QUICK, **settings)
    ) as nodes:
        await make_stream(nodes)
        async with nodes.connection("n1") as connection:
            for value in VALUES:
                await produce(connection, value)
        await nodes.wait_in_step()
        yield nodes


def database(nodes: Nodes, name: str) -> Path:
    return Path(nodes.node(name).member._store.path)


async def checkpoint(nodes: Nodes, name: str) -> None:
    connection = nodes.node(name).member._store.writer.connection

    def is_done() -> bool:
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        except apsw.BusyError:
            # The node reads, or makes one itself.
            return False
        return True

    await nodes.wait_for("a checkpoint", is_done)


def file_of(nodes: Nodes, name: str, where: str) -> Path:
    path = database(nodes, name)
    return path if where == "file" else Path(f"{path}-wal")


def change(path: Path, offset: int, mask: int) -> None:
    """Through a descriptor that stays open: closing it would drop SQLite's locks on the file."""
    file = os.open(path, os.O_RDWR)
    os.pwrite(file, bytes([os.pread(file, 1, offset)[0] ^ mask]), offset)


def flip(path: Path, value: bytes, *, at: int = 100) -> None:
    content = path.read_bytes() if path.name.endswith("-wal") else _read(path)
    change(path, content.rindex(value[at : at + 20]), 0x10)


def call_text(nodes: Nodes, name: str, value: bytes) -> None:
    """Flip the bit in a frame that makes a text of the body with this value."""
    with closing(open_reader(database(nodes, name))) as db:
        bodies: Any = db.execute(f"SELECT bytes FROM {BODY} ORDER BY lsn DESC")
        body = next(body for (body,) in bodies if value[:100] in body)
    head = _record(None, body)[: -len(body)]
    path = file_of(nodes, name, "log")
    change(path, path.read_bytes().rindex(head + body[:20]) + len(head) - 1, 0x01)


def _read(path: Path) -> bytes:
    file = os.open(path, os.O_RDONLY)
    return os.pread(file, os.fstat(file).st_size, 0)


@pytest.mark.long
@pytest.mark.parametrize("number", [10, 11])
@pytest.mark.parametrize("where", ["file", "log"])
async def test_the_same_record_on_one_disk_after_the_other(
    tmp_path: Path, clock: MockClock, where: str, number: int
) -> None:
    """Each one's cache has it whole, and each says that it is repaired before the next one's is
    damaged: what they say must be so of the disk."""
    # A log whose frames are all in the file already is nobody's: damage in it is none.
    async with loaded(tmp_path, checkpoint_bytes=64 << 20) as nodes:
        for name in nodes.names:
            if where == "file":
                await checkpoint(nodes, name)
        for name in nodes.names:
            path = file_of(nodes, name, where)
            before = _read(path)
            flip(path, VALUES[number])
            repairer = nodes.node(name).member._repairer
            async with nodes.client() as client:
                await verify_live(client)
            await nodes.wait_for("repaired", partial(_has_repaired, repairer))
            await nodes.wait_for("whole", partial(_is_whole, nodes, name))
            after = _read(path)[: len(before)]
            # A busy machine checkpoints meanwhile: then the log begins anew, and with another head.
            begun_anew = where == "log" and after[:32] != before[:32]
            assert begun_anew or after == before
            assert not list(nodes.data(name).glob("gen-*"))
            async with nodes.client() as client:
                assert (await verify_live(client)).ok
        await nodes.crash()
        await nodes.start()
        await nodes.wait_serving()
        async with nodes.client() as client:
            assert await read_all(client) == VALUES
        await nodes.wait_in_step()
        for name in nodes.names:
            assert is_member(nodes, name)
            assert problems(nodes, name) == []


@pytest.mark.parametrize("number", [10, 11])
async def test_a_frame_that_was_copied_into_the_file_before_anybody_saw_its_damage(
    tmp_path: Path, clock: MockClock, number: int
) -> None:
    """The page has a checksum that fits by then, and the writer's cache has what was written."""
    async with loaded(tmp_path) as nodes:
        flip(file_of(nodes, "n2", "log"), VALUES[number])
        await checkpoint(nodes, "n2")
        async with nodes.client() as client:
            await verify_live(client)
            await nodes.wait_for("repaired", lambda: nodes.node("n2").member._repairer.repaired > 0)
            assert (await verify_live(client)).ok
        await nodes.crash("n2")
        assert problems(nodes, "n2") == []


@pytest.mark.parametrize("number", [10, 11])
@pytest.mark.parametrize("name", ["n1", "n2"])
async def test_a_row_whose_bytes_are_called_a_text(
    tmp_path: Path, clock: MockClock, name: str, number: int
) -> None:
    """One bit of a frame does that, and what reads it raises no error of SQLite's: the text cannot
    be decoded."""
    async with loaded(tmp_path, checkpoint_bytes=64 << 20) as nodes:
        log = file_of(nodes, name, "log")
        call_text(nodes, name, VALUES[number])
        (report,) = verify_paths([nodes.data(name)]).files
        assert "cannot be read: a row has a text that is none" in report.report.problems[0].text
        async with nodes.client() as client:
            with trio.fail_after(5.0):
                assert await read_all(client) == VALUES
            await verify_live(client)
        repairer = nodes.node(name).member._repairer
        await nodes.wait_for("repaired", lambda: repairer.repaired == 1)
        await nodes.wait_for("whole", partial(_is_whole, nodes, name))
        assert file_of(nodes, name, "log") == log, "no snapshot was needed"
        async with nodes.client() as client:
            assert (await verify_live(client)).ok


@pytest.mark.parametrize("name", ["n1", "n2"])
async def test_a_body_that_is_called_a_text_and_whose_log_row_was_trimmed(
    tmp_path: Path, clock: MockClock, name: str
) -> None:
    async with loaded(tmp_path, **TRIMMED) as nodes:
        await nodes.wait_for("trimmed", lambda: _first_lsn(nodes, name) > 12)
        call_text(nodes, name, await _written_again(nodes, name))
        await nodes.node(name).member._scrubber.check()
        await nodes.wait_for("repaired", lambda: nodes.node(name).member._repairer.repaired == 1)
        await nodes.wait_for("settled", lambda: nodes.status(name).trouble == "")
        async with nodes.client() as client:
            assert await read_all(client) == VALUES
            assert (await verify_live(client)).ok


async def _written_again(nodes: Nodes, name: str) -> bytes:
    """Write the first body once more, as a repair does: its frame is in the file by now. Returns
    it."""
    written = trio.Event()
    found: list[bytes] = []

    def write(db: apsw.Connection) -> None:
        (lsn, body), *_ = db.execute(f"SELECT lsn, bytes FROM {BODY} ORDER BY lsn")
        with transaction(db):
            put_back_body(db, lsn, body)
        found.append(body)

    nodes.node(name).member._store.writer.submit(write, lambda *_: written.set())
    await written.wait()
    (body,) = found
    return body


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("name", ["n1", "n2"])
async def test_a_body_whose_log_row_was_trimmed(
    tmp_path: Path, clock: MockClock, name: str, number: int
) -> None:
    """Nothing has it in a cache; neither a read nor a pass over the disk costs a snapshot."""
    async with loaded(tmp_path, **TRIMMED) as nodes:
        await nodes.wait_for("trimmed", lambda: _first_lsn(nodes, name) > 12)
        await nodes.restart()
        await nodes.wait_serving()
        await nodes.wait_in_step()
        path = database(nodes, name)
        await checkpoint(nodes, name)
        flip(path, VALUES[number])
        if name == "n1":
            async with nodes.client() as client:
                with trio.fail_after(5.0):
                    assert await read_all(client) == VALUES
        else:
            await nodes.node(name).member._scrubber.check()
        await nodes.wait_for("repaired", lambda: nodes.node(name).member._repairer.repaired == 1)
        await nodes.wait_for("settled", lambda: nodes.status(name).trouble == "")
        assert not list(nodes.data(name).glob("gen-*"))
        async with nodes.client() as client:
            assert (await verify_live(client)).ok


async def test_a_body_is_read_from_another_member_while_its_page_is_lost(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What leads to the rows of a page is damaged: nobody knows what it was, and a snapshot is on
    its way, for as long as that takes."""
    async with loaded(tmp_path, **TRIMMED) as nodes:
        await nodes.wait_for("trimmed", lambda: _first_lsn(nodes, "n1") > 12)
        await nodes.restart()
        await nodes.wait_serving()
        await nodes.wait_in_step()
        await checkpoint(nodes, "n1")
        path = database(nodes, "n1")
        at = _read(path).rindex(VALUES[2][100:120])
        change(path, at // 4096 * 4096 + 4, 0x07)

        resync = nodes.node("n1").member._resync
        monkeypatch.setattr(resync, "_sources", lambda **_: [])
        async with nodes.client() as client:
            with trio.fail_after(60.0):
                assert await read_all(client) == VALUES
        assert "snapshot" in nodes.status("n1").trouble
        monkeypatch.undo()
        await nodes.wait_for("installed", lambda: bool(list(nodes.data("n1").glob("gen-*"))))
        await nodes.wait_for("settled", lambda: nodes.status("n1").trouble == "")
        async with nodes.client() as client:
            assert await read_all(client) == VALUES


@pytest.mark.parametrize("page", ["of a body", "of a table", "of nothing"])
async def test_a_source_of_a_snapshot_with_a_damaged_page_repairs_itself_first(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture, page: str
) -> None:
    """It says so in a sentence, the asker gets its copy from elsewhere or a little later, and what
    is damaged does not wait for the next pass over the disk."""
    async with loaded(tmp_path, **TRIMMED, scrub_interval_s=0.0) as nodes:
        await nodes.wait_for("trimmed", lambda: _first_lsn(nodes, "n1") > 12)
        if page == "of nothing":
            connection = nodes.node("n1").member._store.writer.connection
            connection.execute("CREATE TABLE filler(b)")
            connection.execute("INSERT INTO filler VALUES(?)", (b"filler" * 4_000,))
            connection.execute("DROP TABLE filler")
        await nodes.restart()
        await nodes.wait_serving()
        await nodes.wait_in_step()
        await checkpoint(nodes, "n1")
        path = database(nodes, "n1")
        if page == "of a body":
            flip(path, VALUES[3])
        elif page == "of nothing":
            change(path, _read(path).rindex(b"fillerfiller"), 0x01)
        else:
            root = (
                nodes.node("n1")
                .member._store.writer.connection.execute(
                    "SELECT rootpage FROM sqlite_schema WHERE name = 'hadron_leadership'"
                )
                .get
            )
            change(path, root * 4096 - 100, 0x01)
        await nodes.crash("n3")
        nodes.wipe("n3")
        caplog.clear()
        await nodes.start("n3")
        await nodes.wait_in_step("n2", "n3")
        await nodes.wait_for("whole", lambda: problems(nodes, "n1") == [])
        await nodes.wait_in_step()
        async with nodes.client() as client:
            assert await read_all(client) == VALUES
    assert "failed inside the node" not in caplog.text
    assert not [each for each in caplog.records if each.exc_info]
    assert "no copy of this node's file can be made" in caplog.text


def _first_lsn(nodes: Nodes, name: str) -> int:
    return first_lsn(nodes.node(name).member._store.writer.connection)


def _has_repaired(repairer: Repairer) -> bool:
    return repairer.repaired > 0


def _is_whole(nodes: Nodes, name: str) -> bool:
    return not nodes.status(name).trouble
