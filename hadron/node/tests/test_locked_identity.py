"""Somebody reads a running node's `node.db` for long: the node waits for him, and lives."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest
from trio.testing import MockClock

from hadron.node.tests.support import is_member, make_stream, produce
from hadron.node.tests.test_old_copies import keep_copy, put_back
from hadron.node.tests.test_resync import generation, half_way, small_chunks, without_n3
from hadron.storage.database import open_reader
from hadron.testing.nodes import Nodes, running_nodes

__all__ = ["small_chunks"]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the writer's thread, where they take real time."""
    monkeypatch.setattr("hadron.storage.identity._BUSY_MS", 10)


@contextmanager
def reading(nodes: Nodes, name: str) -> Iterator[None]:
    with closing(open_reader(nodes.data(name) / "node.db")) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM identity").fetchall()
        yield


def says_so(nodes: Nodes, name: str) -> bool:
    return "node.db is locked by another program" in nodes.status(name).trouble


def has_seen(nodes: Nodes, name: str, peer: str, *, starts: int) -> bool:
    known = nodes.node(name).member._store.identity.peer_starts
    return bool(known.get(peer)) and known[peer][-1].boot >= starts


async def test_it_greets_nobody_and_promises_nothing_meanwhile(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        with reading(nodes, "n2"):
            await nodes.restart("n1")
            await nodes.wait_for("it says so", lambda: says_so(nodes, "n2"))
            await nodes.wait_serving()
            async with nodes.connection("n1") as connection:
                await produce(connection, b"with n3 alone")
            assert nodes.status("n2").last_lsn < nodes.status("n1").last_lsn
        await nodes.wait_in_step()
        assert not says_so(nodes, "n2")


async def test_a_leader_that_cannot_promise_asks_again(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.crash("n2", "n3")
        await nodes.restart("n1")
        with reading(nodes, "n1"):
            await nodes.start("n2")
            await nodes.wait_for("it says so", lambda: says_so(nodes, "n1"))
        await nodes.wait_serving()
        async with nodes.connection("n1") as connection:
            await produce(connection, b"more")


async def test_who_is_taught_counts_once_that_can_be_written_down(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        await nodes.crash("n2", "n3")
        nodes.wipe("n3")
        await nodes.start("n3")
        await nodes.wait_in_step("n3")
        assert not is_member(nodes, "n3")
        with reading(nodes, "n3"):
            # It knows n2 from no start of its own disk: the links that n2 dials are refused.
            await nodes.start("n2")
            await nodes.wait_in_step("n2")
            await nodes.wait_for("it says so", lambda: says_so(nodes, "n3"))
            async with nodes.connection("n1") as connection:
                await produce(connection, b"more")
            assert not is_member(nodes, "n3")
        await nodes.wait_for("it counts", lambda: is_member(nodes, "n3"))
        await nodes.wait_in_step()


async def test_who_has_to_forget_and_cannot_write_it_down_stops(
    tmp_path: Path, clock: MockClock
) -> None:
    """n2's disk is an old copy: until it has written down that it is, others count it."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        await keep_copy(nodes, "n2", tmp_path / "image")
        for name in ("n1", "n3"):
            await nodes.wait_for("it was seen", partial(has_seen, nodes, name, "n2", starts=2))
        await nodes.crash("n2")
        put_back(nodes, "n2", tmp_path / "image")
        nodes.network.isolate("n2", "n1", "n3")
        await nodes.start("n2")
        with reading(nodes, "n2"):
            nodes.network.heal_all()
            assert "is locked by another program" in str(await nodes.wait_stopped("n2"))
        await nodes.start("n2")
        await nodes.wait_in_step()


async def test_a_snapshot_is_installed_and_opened_once_it_can_be(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with without_n3(tmp_path) as nodes:
        held = await half_way(nodes)
        with reading(nodes, "n3"):
            held.go.set()
            await nodes.wait_for("it waits", lambda: "waiting: " in caplog.text)
        await nodes.wait_in_step()
        assert generation(nodes, "n3") == 1
        assert is_member(nodes, "n3")
