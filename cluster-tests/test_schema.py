"""A schema that changes in a cluster of several replica sets, some of them killed meanwhile."""

from __future__ import annotations

import os
import signal
import statistics
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

import hadron
from hadron.client import Client
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node.config import render
from hadron.node.replica_set import NodeConfig, ReplicaSetConfig
from hadron.node.supervision.cluster import free_ports
from hadron.node.supervision.fleet import Fleet
from hadron.wire.connection import Connection
from hadron.wire.messages import method, schema_pb2
from hadron.wire.sockets import SocketNetwork

META, EU, US = "global/metadata", "eu/p0", "us/p0"
SETS = (META, EU, US)
MEMBERS = 3
CHANGES = 20
VISIBLE_WITHIN_S = 1.0
"""Issue 4: a change is visible on every node in a second, on loopback."""
PATIENCE_S = 60.0

GET = method("GetObjects")


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Three replica sets of three nodes each."""
    ports = iter(free_ports(len(SETS) * MEMBERS))
    files: list[Path] = []
    known = ""
    for number, name in enumerate(SETS):
        nodes = tuple(
            NodeConfig(
                name=f"n{member + 1}", role="leader" if member == 0 else "replica",
                address=f"127.0.0.1:{next(ports)}", data=tmp_path / f"set{number}-n{member + 1}",
            )
            for member in range(MEMBERS)
        )
        known = known or nodes[0].address
        config = ReplicaSetConfig(
            cluster="schema", name=name, epoch=1, nodes=nodes, metadata=META, discovery=(known,)
        )
        files.append(tmp_path / f"set{number}.yaml")
        files[-1].write_text(render(config))
    running = Fleet(files)
    try:
        running.up()
        running.wait_acquainted()
        yield running
    finally:
        running.down()


def kill(fleet: Fleet, replica_set: str) -> None:
    """SIGKILL every node of a set that runs; they are gone on return."""
    (cluster,) = (each for each in fleet.clusters if each.config.name == replica_set)
    pids = [node.process.pid for node in cluster.nodes() if node.process]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        # They are children of this process, which started them.
        os.waitpid(pid, 0)


def addresses(fleet: Fleet) -> list[str]:
    return [node.address for each in fleet.clusters for node in each.config.nodes]


@asynccontextmanager
async def connected(fleet: Fleet) -> AsyncIterator[list[Connection]]:
    """A bare connection to every node."""
    async with trio.open_nursery() as nursery:
        connections = []
        for address in addresses(fleet):
            transport = await SocketNetwork().dial(address)
            connections.append(Connection(transport, dialed=True))
            nursery.start_soon(connections[-1].run)
        yield connections
        for connection in connections:
            connection.close()


async def declare(client: Client, name: str, *partitions: str) -> int:
    """Declare a stream; returns the metadata index after it."""
    spec = StreamSpec(partitions=partitions)
    return (await client.apply([SchemaObject(kind="Stream", name=name, spec=spec)])).metadata_index


async def streams_at(connection: Connection, index: int) -> list[tuple[int, str]]:
    """(id, name) of every stream, as one node has them once it stands at `index`."""
    answer, _ = await connection.request(
        GET, schema_pb2.GetObjectsRequest(
            kind="Stream", min_index=index, max_wait_ms=round(PATIENCE_S * 1_000)
        ),
    )
    return sorted((item.id, item.name) for item in answer.objects)


async def test_a_change_is_visible_on_every_node_soon(fleet: Fleet) -> None:
    took_s: list[float] = []
    async with hadron.connect(fleet.url) as client, connected(fleet) as connections:
        for number in range(CHANGES):
            began_s = trio.current_time()
            index = await declare(client, f"s{number}", EU, US)
            async with trio.open_nursery() as nursery:
                for connection in connections:
                    nursery.start_soon(streams_at, connection, index)
            took_s.append(trio.current_time() - began_s)
    print(
        f"schema visible on {len(addresses(fleet))} nodes: median "
        f"{statistics.median(took_s) * 1e3:.0f} ms, slowest {max(took_s) * 1e3:.0f} ms"
    )
    assert statistics.quantiles(took_s, n=10)[-1] <= VISIBLE_WITHIN_S, took_s


@pytest.mark.long
async def test_sets_that_were_killed_come_to_the_same_schema(fleet: Fleet) -> None:
    async with hadron.connect(fleet.url) as client:
        await declare(client, "first", EU, US)
        kill(fleet, US)
        await declare(client, "second", EU, US)
        await client.delete([("Stream", "default", "first")], allow_destructive=True)
        await declare(client, "first", EU, US)
        # Its pushes are under way, or not: whoever comes back says where it stands.
        kill(fleet, META)
        await trio.to_thread.run_sync(fleet.up)
        index = await declare(client, "third", US)
        async with connected(fleet) as connections:
            seen = [await streams_at(connection, index) for connection in connections]
        assert [name for _, name in seen[0]] == ["second", "first", "third"]
        assert all(each == seen[0] for each in seen)
        for name in ("second", "first", "third"):
            async with client.producer(name, partition=US) as producer:
                await producer.send("a record")
