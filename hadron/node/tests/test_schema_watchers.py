"""Who follows the schema where nothing is heard of it any more: others are asked (R13)."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from hadron.client import Client
from hadron.client.schema import elsewhere
from hadron.model.errors import NotReadyError
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.server.schema import SchemaService
from hadron.testing.nodes import Cluster, Nodes, running_cluster

META, EU = "meta", "eu/p0"
WATCHER, OTHER = "watcher", "other"
"""Hosts of who follows, and of who changes the schema."""

_PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def who_asks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere, "_QUIET_S", 1.0)
    monkeypatch.setattr(elsewhere, "_GRACE_S", 0.5)


class Watches:
    """Every call of `WatchSchema`, by the node that was asked. Made before there are any."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster: Cluster
        self.asked: list[str] = []
        self.refuses = ""
        """Who does not know yet what of its schema is committed."""
        original = SchemaService._watch

        def watch(service: SchemaService, call: Any, *request: Any) -> None:
            (name,) = (
                f"{replica_set}/{node}"
                for replica_set, nodes in self.cluster.items()
                for node in nodes.running
                if nodes.node(node).member._schema_copy is service._copy
            )
            self.asked.append(name)
            if name == self.refuses:
                raise NotReadyError("refused by the test")
            original(service, call, *request)

        monkeypatch.setattr(SchemaService, "_watch", watch)


async def declare(client: Client, *partitions: str) -> None:
    """Stream `s`, with these partitions."""
    spec = StreamSpec(partitions=partitions)
    stream = SchemaObject(kind="Stream", name="s", spec=spec)
    await client.apply([stream], allow_destructive=True)


def has(client: Client, *partitions: str) -> Callable[[], bool]:
    """That this is how the client knows `s`."""

    def look() -> bool:
        known = client._catalog.known("s")
        return known is not None and known.spec == StreamSpec(partitions=partitions)

    return look


async def wait_pushed(cluster: Cluster) -> None:
    """Until every node of both sets has the schema, the region is registered, and `s` declared:
    what is not registered, a metadata set that starts again may not have heard of yet."""
    await cluster.wait_for(
        "pushed",
        lambda: (
            cluster[EU].status("n1").metadata_index
            == cluster[META].status("n1").metadata_index
            == 2
        ),
    )
    await cluster[META].wait_in_step()


@asynccontextmanager
async def following(nodes: Nodes, name: str) -> AsyncIterator[Client]:
    """A client that has looked `s` up: the first node that it has met is the one of this name."""
    async with nodes.client(WATCHER, through=[name]) as client:
        await client.stream("s")
        await nodes.wait_for("watched", lambda: client._catalog._elsewhere.told > 0)
        yield client


@asynccontextmanager
async def at_a_replica(
    directory: Path, watches: Watches
) -> AsyncIterator[tuple[Cluster, Client, Client]]:
    """Two sets; a client that changes the schema, and one that follows it at n3 of its owner."""
    async with running_cluster(directory, {META: 3, EU: 1}) as cluster:
        watches.cluster = cluster
        async with cluster.client(OTHER) as other:
            await declare(other, META)
            await wait_pushed(cluster)
            async with following(cluster[META], "n3") as client:
                assert watches.asked == ["meta/n3"]
                yield cluster, other, client


async def test_who_follows_at_a_node_that_is_no_member_any_more_hears_of_changes(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs on with its old file, and serves what it knows."""
    watches = Watches(monkeypatch)
    async with at_a_replica(tmp_path, watches) as (cluster, other, client):
        meta = cluster[META]
        members = tuple(each for each in meta.config.nodes if each.name != "n3")
        config = replace(meta.config, epoch=2, nodes=members)
        meta.configs = {"n1": config, "n2": config}
        await meta.crash("n1", "n2")
        await meta.start("n1", "n2")
        await meta.wait_for("serving", lambda: meta.status("n1").state == "serving")
        await declare(other, META, EU)
        await cluster.wait_for("told", has(client, META, EU), patience_s=_PATIENCE_S)
        assert "meta/n3" not in watches.asked[1:]


async def test_who_follows_at_a_replica_that_is_cut_off_hears_of_changes(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its leader, and not from who follows: this one asks nothing but where others stand."""
    watches = Watches(monkeypatch)
    async with at_a_replica(tmp_path, watches) as (cluster, other, client):
        meta = cluster[META]
        cluster.cut([meta.host("n3")], [meta.host("n1"), meta.host("n2")])
        await declare(other, META, EU)
        await cluster.wait_for("told", has(client, META, EU), patience_s=_PATIENCE_S)


async def test_who_follows_in_a_region_that_is_cut_off_hears_of_changes(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No node of it can tell: what is not pushed there may not have changed. The metadata set's
    leader has crashed by then, so that a replica of its is asked, each node in turn."""
    watches = Watches(monkeypatch)
    async with running_cluster(tmp_path, {META: 3, EU: 1}) as cluster:
        meta, region = cluster[META], cluster[EU]
        watches.cluster = cluster
        async with cluster.client(OTHER) as other:
            await declare(other, META)
            await wait_pushed(cluster)
            async with following(region, "n1") as client:
                assert watches.asked == ["eu/p0/n1"]
                cluster.isolate(EU)
                await declare(other, META, EU)
                await meta.wait_in_step()
                await meta.crash("n1")
                await cluster.wait_for("told", has(client, META, EU), patience_s=_PATIENCE_S)


async def test_who_is_refused_by_one_replica_follows_at_the_next_one(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader is away, and the node that was met first has just been started without it."""
    watches = Watches(monkeypatch)
    async with running_cluster(tmp_path, {META: 3}) as cluster:
        meta = cluster[META]
        watches.cluster = cluster
        watches.refuses = "meta/n3"
        async with meta.client(OTHER) as other:
            await declare(other, META)
        await meta.wait_in_step()
        async with meta.client(WATCHER, through=["n3"]) as client:
            await client.stream("s")
            await meta.crash("n1")
            await meta.wait_for(
                "followed", lambda: "meta/n2" in watches.asked, patience_s=_PATIENCE_S
            )


async def test_who_follows_at_a_node_that_is_in_step_stays_there(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others, who are asked now and then, know no more."""
    watches = Watches(monkeypatch)
    asked = 0
    answer = SchemaService._answer_get

    def count(service: SchemaService, *question: Any) -> None:
        nonlocal asked
        asked += 1
        answer(service, *question)

    monkeypatch.setattr(SchemaService, "_answer_get", count)
    async with running_cluster(tmp_path, {META: 3}) as cluster:
        watches.cluster, meta = cluster, cluster[META]
        async with meta.client(OTHER) as other:
            await declare(other, META)
            await meta.wait_in_step()
            async with following(meta, "n3"):
                await meta.wait_for("asked three times", lambda: asked >= 6)
                await other.create_stream("t")
                await meta.wait_for("asked again", lambda: asked >= 12)
                assert watches.asked == ["meta/n3"]
