"""Backups made under load, restored, written on; the simulator's checker judges what is left."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from hadron.model.errors import HadronError, PeerError
from hadron.node.backup import backup_live, find_node
from hadron.node.restore import restore_node, restore_set
from hadron.node.tests.support import STREAM, fetch, make_stream, produce
from hadron.node.world import SystemDisk
from hadron.replication import ballot
from hadron.sim.checks.checker import check
from hadron.sim.evidence.evidence import Rules
from hadron.sim.evidence.history import History, Publish
from hadron.sim.evidence.node_files import read_node
from hadron.storage.generations import DATABASE
from hadron.storage.snapshot import Manifest
from hadron.testing.nodes import Nodes, SeededRandom, replica_set, running_nodes, with_nodes
from hadron.wire.connection import Connection
from hadron.wire.system import SystemClock

DISK = SystemDisk()
SET = "local/p0"


class Load:
    """Producers that write without a pause, and note what they asked for and were told."""

    def __init__(self, nodes: Nodes, history: History, name: str) -> None:
        self._nodes = nodes
        self._history = history
        self._name = name
        self.acknowledged = 0

    @contextmanager
    def running(self, nursery: trio.Nursery) -> Iterator[None]:
        """For the length of a block; its producers finish what they have begun."""
        self._stopping = False
        self._ended = trio.Event()
        nursery.start_soon(self._run)
        try:
            yield
        finally:
            self._stopping = True

    async def wait_ended(self) -> None:
        await self._ended.wait()

    async def wait_more(self, count: int) -> None:
        """Until `count` more records are acknowledged."""
        until = self.acknowledged + count
        await self._nodes.wait_for(f"{count} more", lambda: self.acknowledged >= until)

    async def _run(self) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(self._produce, f"{self._name}{number}")
        self._ended.set()

    async def _produce(self, name: str) -> None:
        async with self._nodes.client(name) as client, client.producer(STREAM) as producer:
            number = 0
            while not self._stopping:
                number += 1
                value = f"{name}/{number}:".ljust(200, ".")
                operation = self._history.publish(name, name, STREAM, SET, [value])
                try:
                    receipt = await producer.send(value)
                except HadronError as error:
                    self._history.unknown(operation, error)
                    continue
                operation.runs, operation.duplicate = [(receipt.offset, 1)], receipt.duplicate
                self._history.ok(operation)
                self.acknowledged += 1

    async def read(self, client_name: str) -> int:
        """Read everything that is visible; returns how many records that were."""
        operation = self._history.read(client_name, STREAM, SET, 0)
        async with self._nodes.client(client_name) as client:
            operation.values = [record.value async for record in client.read(STREAM)]
        self._history.ok(operation)
        return len(operation.values)


async def take_backup(nodes: Nodes, name: str, destination: Path) -> Manifest:
    async with nodes.client("operator") as client:
        node = await find_node(client, name)
        return await backup_live(client, node.address, destination, DISK, lambda _a, _b: None)


def judge(nodes: Nodes, history: History) -> int:
    """Hold a history against the stopped nodes' files; returns how much was acknowledged."""
    files = [read_node(name, nodes.data(name) / DATABASE) for name in nodes.names]
    verdict = check(history, files, Rules(members=len(files)))
    assert verdict.status == "valid", str(verdict)
    return verdict.acknowledged


def forget_after(history: History, began: int) -> int:
    """A restored replica set owes what was acknowledged before the backup began; of the rest it may
    have a part. Returns how many records that are."""
    forgotten = 0
    for index, entry in enumerate(history.entries):
        if isinstance(entry, Publish) and not 0 < entry.ended < began:
            forgotten += entry.outcome == "ok"
            history.entries[index] = Publish(
                client=entry.client,
                began=entry.began,
                ended=entry.ended,
                producer=entry.producer,
                stream=entry.stream,
                partition=entry.partition,
                values=entry.values,
            )
    return forgotten


@pytest.mark.parametrize("source", ["n1", "n3"])
async def test_a_whole_replica_set(tmp_path: Path, clock: MockClock, source: str) -> None:
    history = History(time.monotonic_ns)
    async with running_nodes(tmp_path, 3) as nodes, trio.open_nursery() as nursery:
        await make_stream(nodes)
        load = Load(nodes, history, "a")
        with load.running(nursery):
            await load.wait_more(50)
            began = history.tick()
            await take_backup(nodes, source, tmp_path / "backup")
            await load.wait_more(50)
        await load.wait_ended()
    for name in nodes.names:
        shutil.rmtree(nodes.data(name))
    assert forget_after(history, began) >= 50
    config = replace(nodes.config, epoch=2)
    founded = restore_set(
        tmp_path / "backup", config, DISK, SeededRandom(1), SystemClock(), overwrite=False
    )
    async with trio.open_nursery() as nursery:
        nodes = Nodes(tmp_path, 3, nursery)
        nodes.config = config
        await nodes.start()
        await nodes.wait_serving()
        load = Load(nodes, history, "b")
        restored = await load.read("first")
        with load.running(nursery):
            await load.wait_more(50)
        await load.wait_ended()
        assert await load.read("second") == restored + load.acknowledged
        await nodes.wait_in_step()
        await nodes.crash()
    assert restored >= 50
    assert judge(nodes, history) >= 100
    logs = [read_node(name, nodes.data(name) / DATABASE).log for name in nodes.names]
    assert all(log[founded.first.lsn].chain == founded.first.chain for log in logs)


async def test_a_set_is_restored_onto_nodes_that_never_were_members(
    tmp_path: Path, clock: MockClock
) -> None:
    """The site is gone, with every node that the backup knows: those have no say any more."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await take_backup(nodes, "n1", tmp_path / "backup")
    others = replica_set(tmp_path, 6).nodes[3:]
    members = [replace(others[0], role="leader"), *others[1:]]
    config = replace(with_nodes(nodes.config, members), epoch=2, discovery=(others[0].address,))
    restore_set(tmp_path / "backup", config, DISK, SeededRandom(1), SystemClock(), overwrite=False)
    async with trio.open_nursery() as nursery:
        nodes = Nodes(tmp_path, 3, nursery)
        nodes.config = config
        await nodes.start()
        await nodes.wait_serving()
        async with nodes.client("operator") as client:
            assert (await client.stream(STREAM)).name == STREAM
        await nodes.crash()


@pytest.mark.parametrize("name", ["n1", "n2"])
async def test_one_node_of_a_replica_set_that_goes_on(
    tmp_path: Path, clock: MockClock, name: str
) -> None:
    """Nothing at all is forgotten, whoever is restored and whatever was written meanwhile."""
    history = History(time.monotonic_ns)
    async with running_nodes(tmp_path, 3) as nodes, trio.open_nursery() as nursery:
        await make_stream(nodes)
        load = Load(nodes, history, "a")
        with load.running(nursery):
            await load.wait_more(30)
            await take_backup(nodes, "n3", tmp_path / "backup")
            await load.wait_more(30)
            await nodes.crash(name)
            if name != "n1":
                await load.wait_more(30)
            nodes.wipe(name)
            restore_node(tmp_path / "backup", nodes.config, name, DISK, overwrite=False)
            await nodes.start(name)
            await nodes.wait_serving()
            await load.wait_more(30)
        await load.wait_ended()
        read = await load.read("last")
        await nodes.wait_in_step()
        await nodes.crash()
    assert judge(nodes, history) == load.acknowledged <= read


async def test_a_restored_leader_keeps_its_log_when_too_few_remember(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X is on n1 and n2, and n3 lags. Both are heard, and n2 is lost in the ballot: what n3 has is
    no reason to drop X."""
    ask_promise, broken = ballot.ask_promise, 0

    async def breaking(connection: Connection, *given: Any, **named: Any) -> Any:
        nonlocal broken
        if connection.peer == nodes.config.node("n2").address and not broken:
            broken += 1
            raise PeerError("n2 is away")
        return await ask_promise(connection, *given, **named)

    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        nodes.network.isolate("n3", "n1", "n2")
        async with nodes.connection("n1") as connection:
            await produce(connection, b"X")
        nodes.network.break_connections("n3")
        await take_backup(nodes, "n1", tmp_path / "backup")
        await nodes.crash("n1")
        nodes.wipe("n1")
        restore_node(tmp_path / "backup", nodes.config, "n1", DISK, overwrite=False)
        nodes.network.heal_all()
        monkeypatch.setattr(ballot, "ask_promise", breaking)
        await nodes.start("n1")
        await nodes.wait_serving()
        await nodes.wait_in_step()
        assert broken
        async with nodes.connection("n1") as connection:
            assert await fetch(connection) == [b"X"]
