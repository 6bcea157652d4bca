"""Nodes that cannot start, or must stop: each says why, and acknowledges nothing."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
from trio.testing import MockClock

from hadron.model.errors import (
    ConfigurationError,
    DataDirectoryError,
    FencedError,
    HadronError,
    NotReadyError,
    StorageError,
)
from hadron.node.runtime import Node
from hadron.node.tests.support import LEADER, fetch, make_stream, produce
from hadron.node.world import SystemDisk
from hadron.testing.nodes import Nodes, SeededRandom, running_nodes, with_nodes
from hadron.wire.pipes import pipe
from hadron.wire.system import SystemClock


async def test_a_port_in_use(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 1, start=False) as nodes:
        taken = await nodes.network.host("n1").listen("n1:7000")
        with pytest.raises(ConfigurationError, match=r"cannot listen on n1:7000.*in use"):
            await nodes.start()
        taken.close()
        await nodes.start()
        await nodes.wait_serving()


async def test_doors_that_are_open_before_there_is_a_node_to_call(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1, start=False) as nodes:
        node = Node(
            nodes.config,
            "n1",
            clock=SystemClock(),
            random=SeededRandom("n1"),
            network=nodes.network.host("n1"),
            disk=SystemDisk(),
        )
    _, accepted = pipe("the HTTP door of n1", "n1:7000")
    with pytest.raises(ConnectionRefusedError, match="n1 is starting"):
        node.take_own(accepted)
    with pytest.raises(NotReadyError, match="n1 is starting"):
        node.status()


async def test_the_directory_of_another_node(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 3, start=False) as nodes:
        await nodes.start("n1")
        await nodes.crash("n1")
        n1, n2, n3 = nodes.config.nodes
        nodes.configs["n2"] = with_nodes(nodes.config, [n1, replace(n2, data=n1.data), n3])
        with pytest.raises(DataDirectoryError, match="belongs to node n1 of local/p0"):
            await nodes.start("n2")
        await nodes.start("n1")


async def test_a_directory_in_use(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hadron.node.runtime")
    async with running_nodes(tmp_path, 3, start=False) as nodes:
        await nodes.start("n1")
        n1, n2, n3 = nodes.config.nodes
        nodes.configs["n2"] = with_nodes(nodes.config, [n1, replace(n2, data=n1.data), n3])
        with pytest.raises(DataDirectoryError, match="is in use by process"):
            await nodes.start("n2")
        # What never ran has not stopped, and knows nothing of how it will start.
        assert "stopped" not in caplog.text
    assert "stopped, everything is in the database file" in caplog.text


async def test_a_file_where_the_directory_should_be(tmp_path: Path, clock: MockClock) -> None:
    (tmp_path / "n1").write_text("not a directory")
    async with running_nodes(tmp_path, 1, start=False) as nodes:
        with pytest.raises(DataDirectoryError, match="is, or is in, a file"):
            await nodes.start()


async def test_a_file_that_is_no_database(tmp_path: Path, clock: MockClock) -> None:
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1" / "hadron.db").write_bytes(b"something else entirely" * 1000)
    async with running_nodes(tmp_path, 1, start=False) as nodes:
        with pytest.raises(StorageError, match=r"hadron\.db"):
            await nodes.start()


async def test_an_older_configuration_than_was_promised(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 1) as nodes:
        nodes.configs["n1"] = replace(nodes.config, epoch=5)
        await nodes.restart("n1")
        await nodes.wait_serving()
        await nodes.crash()
        nodes.configs["n1"] = replace(nodes.config, epoch=4)
        with pytest.raises(FencedError, match=r"epoch 4, this node has promised epoch 5"):
            await nodes.start()


async def test_other_members_in_the_same_epoch(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await nodes.wait_in_step()
        await nodes.crash("n1")
        nodes.configs["n1"] = with_nodes(nodes.config, nodes.config.nodes[:2])
        with pytest.raises(FencedError, match="raise `epoch`"):
            await nodes.start("n1")


class FailingDisk:
    """Stands in for a node's connection: every COMMIT fails once `broken` is set."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self.broken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str, *args: Any) -> Any:
        if self.broken and sql == "COMMIT":
            raise apsw.IOError("disk I/O error: fsync")
        return self._connection.execute(sql, *args)


def break_disk(nodes: Nodes, name: str) -> None:
    writer = nodes.node(name).member._store.writer
    disk = FailingDisk(writer.connection)
    disk.broken = True
    writer.connection = disk  # type: ignore[assignment]


async def test_a_failed_fsync_stops_a_leader_without_an_answer(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        async with nodes.connection("n1") as connection:
            await produce(connection, b"kept")
            await nodes.wait_in_step()
            break_disk(nodes, "n1")
            for acks in (LEADER,):
                with pytest.raises(HadronError) as raised:
                    await produce(connection, b"lost?", acks=acks)
                assert raised.value.retryable
        failure = await nodes.wait_stopped("n1")
        assert "disk" in str(leaf(failure))
        await nodes.start("n1")
        await nodes.wait_serving()
        await nodes.wait_in_step()
        async with nodes.connection("n1") as connection:
            # It was sent to the replicas, so it may be there; never something else in its place.
            assert await fetch(connection) in ([b"kept"], [b"kept", b"lost?"])


async def test_a_failed_fsync_stops_a_replica_without_an_answer(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        await nodes.crash("n3")
        break_disk(nodes, "n2")
        async with nodes.connection("n1") as connection, trio.open_nursery() as nursery:
            answers: list[int] = []

            async def send() -> None:
                answers.append((await produce(connection, b"x")).base_offset)

            nursery.start_soon(send)
            assert "disk" in str(leaf(await nodes.wait_stopped("n2")))
            assert not answers
            assert await fetch(connection) == []
            await nodes.start("n3")
        assert answers == [0]


def leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
