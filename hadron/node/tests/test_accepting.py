"""Whom a node takes in that has as many connections as it may: other nodes (BOUNDS W8)."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from hadron.model.errors import OverloadedError
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node import accepting
from hadron.node.tests.support import fetch, make_stream, read_all, send
from hadron.testing.nodes import Nodes, running_cluster, running_nodes
from hadron.wire.connection import Connection
from hadron.wire.dialing import dial
from hadron.wire.messages import cluster_pb2, method

_MOST = 64
_STRANGERS = 80
"""Of each node that they keep full."""

_PATIENCE_S = 300.0
"""On the clock of tests, which is five times as fast."""


@asynccontextmanager
async def idle_clients(nodes: Nodes, *names: str) -> AsyncIterator[None]:
    """More than fit, which ask for nothing, answer pings, and come back when they are closed."""

    async def stay(address: str) -> None:
        while True:
            with suppress(OSError):
                await (await dial(nodes.network.host("idler"), address)).run()
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for name in names:
            for _ in range(_STRANGERS):
                nursery.start_soon(stay, nodes.config.node(name).address)
        await nodes.wait_for(
            "full", lambda: all(nodes.status(name).connections >= _MOST for name in names)
        )
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def full_of_clients(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Nodes, list[Connection]]]:
    """A node that takes ten connections, with the five of clients that are kept."""
    monkeypatch.setattr(accepting, "most_connections", lambda _doors: 10)
    async with running_nodes(directory, 1) as nodes:
        await make_stream(nodes)
        await nodes.wait_for("alone", lambda: nodes.status("n1").connections == 0)
        async with trio.open_nursery() as nursery:
            clients = [await dialed(nodes, nursery) for _ in range(5)]
            for each in clients:
                assert await fetch(each) == []
            yield nodes, clients
            nursery.cancel_scope.cancel()


async def dialed(nodes: Nodes, nursery: trio.Nursery) -> Connection:
    connection = await dial(nodes.network.host("client"), nodes.config.leader.address)
    nursery.start_soon(connection.run)
    return connection


async def ask_topology(connection: Connection) -> None:
    await connection.request(method("Topology"), cluster_pb2.TopologyRequest())


async def introduce(connection: Connection, replica_set: str = "local/p0") -> None:
    """As a node does; by default as one that is known."""
    speaker = cluster_pb2.Speaker(
        cluster="test", replica_set=replica_set, node="n1", metadata="local/p0"
    )
    await connection.request(method("Discover"), cluster_pb2.DiscoverRequest(speaker=speaker))


async def test_a_leader_comes_back_to_members_that_are_full_of_idle_clients(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "most_connections", lambda _doors: _MOST)
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        async with nodes.client() as client:
            await send(client, ["before"])
        async with idle_clients(nodes, "n2", "n3"):
            await nodes.restart("n1")
            with trio.fail_after(_PATIENCE_S):
                await nodes.wait_serving()
                async with nodes.client("another", through=["n1"]) as client:
                    await send(client, ["after"])
                    assert await read_all(client) == ["before", "after"]


async def test_a_replica_comes_back_to_a_leader_that_is_full_of_idle_clients(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It forwards what clients ask of the leader, who do not get in there."""
    monkeypatch.setattr(accepting, "most_connections", lambda _doors: _MOST)
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        async with idle_clients(nodes, "n1"):
            await nodes.restart("n2")
            nodes.network.isolate("client", "n1")
            with trio.fail_after(_PATIENCE_S):
                async with nodes.client(through=["n2"]) as client:
                    await send(client, ["through n2"])
                await nodes.wait_for("linked", lambda: nodes.status("n2").state == "following")
                links = nodes.node("n2").member._links.links
                await nodes.wait_for("linked", lambda: links["n1"].connection is not None)


async def test_a_set_whose_leader_is_full_of_idle_clients_hears_other_sets(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What clients ask of it reaches it through those."""
    monkeypatch.setattr(accepting, "most_connections", lambda _doors: _MOST)
    async with (
        running_cluster(tmp_path, {"meta": 1, "eu/p0": 1}) as cluster,
        idle_clients(cluster["meta"], "n1"),
    ):
        await cluster["eu/p0"].restart("n1")
        cluster.network.isolate("client", *cluster.hosts("meta"))
        with trio.fail_after(_PATIENCE_S):
            async with cluster.client(through=["eu/p0"]) as client:
                spec = StreamSpec(partitions=("eu/p0",))
                await client.apply([SchemaObject(kind="Stream", name="events", spec=spec)])
                await send(client, ["over there"])


async def test_who_asks_for_more_than_nodes_do_is_told_and_closed(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with full_of_clients(tmp_path, monkeypatch) as (nodes, clients):
        async with nodes.connection("n1") as one_more:
            # As whoever forwards does, before it says who it is.
            await ask_topology(one_more)
            with pytest.raises(OverloadedError, match="6 connections are open at this node"):
                await fetch(one_more)
            with trio.fail_after(1):
                await one_more.wait_closed()
        assert await fetch(clients[0]) == []


async def test_who_says_nothing_has_no_place_for_long(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with full_of_clients(tmp_path, monkeypatch) as (nodes, clients):
        async with nodes.connection("n1") as one_more, nodes.connection("n1") as node:
            await introduce(node)
            await trio.sleep(accepting.INTRODUCED_WITHIN_S + 0.1)
            assert one_more.is_closed
            assert await fetch(node) == []
        assert not any(each.is_closed for each in clients)


async def test_the_oldest_that_has_said_nothing_gives_way(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        full_of_clients(tmp_path, monkeypatch) as (nodes, clients),
        trio.open_nursery() as nursery,
    ):
        node = await dialed(nodes, nursery)
        await introduce(node)
        unknown = await dialed(nodes, nursery)
        await introduce(unknown, "unknown/p0")
        silent = [await dialed(nodes, nursery) for _ in range(3)]
        for each in silent:
            await ask_topology(each)
        assert nodes.status("n1").connections == 10
        await ask_topology(await dialed(nodes, nursery))
        with trio.fail_after(1):
            await silent[0].wait_closed()
        assert [each.is_closed for each in silent] == [True, False, False]
        for _ in range(2):
            await introduce(await dialed(nodes, nursery))
        with trio.fail_after(1):
            for each in silent:
                await each.wait_closed()
        assert not node.is_closed
        assert not unknown.is_closed
        assert not any(each.is_closed for each in clients)
        assert nodes.status("n1").connections == 10
        nursery.cancel_scope.cancel()


async def test_once_there_is_room_whoever_is_there_stays(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        full_of_clients(tmp_path, monkeypatch) as (nodes, clients),
        nodes.connection("n1") as one_more,
    ):
        await ask_topology(one_more)
        clients[0].close()
        await nodes.wait_for("gone", lambda: nodes.status("n1").connections == 5)
        assert await fetch(one_more) == []
        await trio.sleep(2 * accepting.INTRODUCED_WITHIN_S)
        assert await fetch(one_more) == []
