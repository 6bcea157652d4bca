"""Another leader and other members, by new configuration files, while the load goes on."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import pytest
import trio
from crew import PATIENCE_S, environment
from load import ALONE, PROMOTED_WITHIN_S, STREAM, Load, under_load
from report import Row, quantile
from test_disks import wait_follows

import hadron
from hadron.model.errors import HadronError
from hadron.node.replica_set import NodeConfig
from hadron.node.supervision.processes import ClusterError
from hadron.testing.cluster import FaultyCluster

_REFUSED_WITHIN_S: Final = 2.0


async def test_the_leader_is_lost_for_good(cluster: FaultyCluster, row: Row) -> None:
    """Its machine is gone. Another node is promoted, and a new one takes the place of the first."""
    async with under_load(cluster, row) as load:
        load.kill("n1")
        load.wipe("n1")
        await promote(load, row, "n2")
        await load.progress()
        left = [node for node in cluster.config.nodes if node.name != "n1"]
        await join(load, left, "n4")


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_members_come_and_go(cluster: FaultyCluster, row: Row) -> None:
    """Three nodes, four, five, and three others than in the beginning, one file after another."""
    async with under_load(cluster, row) as load:
        for name in ("n4", "n5"):
            await join(load, cluster.config.nodes, name)
        for name in ("n2", "n3"):
            adopt(load, [node for node in cluster.config.nodes if node.name != name])
            await load.stop(name)
            await roll(load, *reversed(cluster.names))
            await load.progress()


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_without_fsync(unsynced: FaultyCluster, row: Row) -> None:
    """With durability `os`: all processes are killed, disks are lost, another node is promoted."""
    async with under_load(unsynced, row) as load:
        load.kill_all()
        await load.start(*unsynced.names)
        await load.progress()
        for name in ("n3", "n1"):
            load.kill(name)
            load.wipe(name)
            await load.start(name)
            await load.progress()
            await wait_follows(load, name)
        await promote(load, row, "n2")
        await load.progress()


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_the_old_leader_comes_back(cluster: FaultyCluster, row: Row) -> None:
    """It was cut off and went on with its old file, and clients could reach it: what it took is
    acknowledged to nobody who wanted a majority, and it serves no more once it hears of others."""
    async with under_load(cluster, row) as load:
        load.fault("cut", detail="n1 | n2 n3 both")
        cluster.isolate("n1")
        assert await load.is_still()
        await promote(load, row, "n2", but=["n1"])
        await load.progress()
        await refuses(load, "n1")
        load.heal()
        await wait_says_that_its_file_is_old(load, "n1")
        # Until now it went on for those who wanted its own disk only: void (PROTOCOL C).
        load.history.event("promote", "n2", "and the old leader knows")
        # It serves no more. Once it has heard where the leader is it passes on what it gets, and
        # then the checker finds that there.
        with suppress(HadronError):
            await publishes(load, "n1")
        await load.stop("n1")
        # It has promised the new epoch by now.
        with pytest.raises(ClusterError, match="has promised epoch 2"):
            await load.start("n1")
        cluster.reload()
        await load.start("n1")
        await wait_follows(load, "n1")


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_the_lead_goes_round(cluster: FaultyCluster, row: Row) -> None:
    """Everybody is promoted in turn, the old leader being alive or killed."""
    async with under_load(cluster, row) as load:
        for turn in range(9):
            if turn % 3 == 2:
                load.kill(cluster.leader)
            await promote(load, row, cluster.names[(turn + 1) % 3])
            dead = [name for name in cluster.names if not cluster.running(name)]
            await load.start(*dead)
            await load.progress()
            await load.wait_more(50)
    # Not each: most of it is the start of processes, which others on this machine may delay.
    assert quantile(row.promotions_s, 0.5) <= PROMOTED_WITHIN_S


def adopt(load: Load, nodes: Sequence[NodeConfig]) -> None:
    """Write a file of the next epoch with these nodes; read by each at its next start."""
    config = load.cluster.config
    load.history.event("reconfigure", detail=" ".join(node.name for node in nodes))
    load.cluster.reconfigure(replace(config, epoch=config.epoch + 1, nodes=tuple(nodes)))


async def promote(load: Load, row: Row, name: str, *, but: Collection[str] = ()) -> None:
    """Make a node the leader by a new file, with which all that run are started again, `but` those
    that nobody can reach."""
    cluster = load.cluster
    load.fault("promote", name)
    command = [sys.executable, "-m", "hadron", "promote", name, "--config"]
    await trio.run_process(
        [*command, str(cluster.config_path)], capture_stdout=True, env=environment()
    )
    cluster.reload(but=but)
    assert cluster.leader == name
    running = [name for name in cluster.names if cluster.running(name) and name not in but]
    for one in running:
        await load.stop(one)
    began = trio.current_time()
    await load.start(*running)
    row.promotions_s.append(trio.current_time() - began)


async def join(load: Load, others: Sequence[NodeConfig], name: str) -> None:
    """Add a node, with an empty disk, to others, which are started again one after another."""
    cluster = load.cluster
    adopt(load, [*others, cluster.newcomer(name)])
    # First the newcomer, so that it is there when it is needed. Nobody feeds it before the leader
    # knows of it.
    cluster.spawn(name)
    load.history.event("start", name)
    replicas = [node.name for node in others if node.role == "replica"]
    await roll(load, *replicas, cluster.leader)
    await load.wait_ready(name)
    await wait_follows(load, name)


async def roll(load: Load, *names: str) -> None:
    """Start nodes again with their new file, one after another."""
    for name in names:
        await load.stop(name)
        await load.start(name)
        await load.wait_more(20)


async def refuses(load: Load, name: str) -> None:
    """Whoever reaches this node alone is not told that a majority has a record."""
    with pytest.raises(HadronError):
        await publishes(load, name)


async def publishes(load: Load, name: str) -> None:
    """Publish a record as somebody who reaches this node alone; raises when it is not acknowledged.
    The checker looks for it where it is."""
    cluster, value = load.cluster, f"given to {name} alone at {load.history.tick()}"
    for other in cluster.names:
        if other != name:
            cluster.refuse(ALONE, other)
    noted = load.history.publish(ALONE, value, STREAM, cluster.config.name, [value])
    url = f"hadron://{cluster.address(name)}"
    try:
        async with (
            hadron.connect(
                url,
                ports=cluster.ports(ALONE),
                connect_timeout_s=_REFUSED_WITHIN_S,
                request_timeout_s=_REFUSED_WITHIN_S,
            ) as client,
            client.producer(STREAM, delivery_timeout_s=_REFUSED_WITHIN_S) as producer,
        ):
            receipt = await producer.send(value)
    except HadronError as error:
        load.history.unknown(noted, error)
        raise
    noted.runs = [(receipt.offset, 1)]
    load.history.ok(noted)


async def wait_says_that_its_file_is_old(load: Load, name: str) -> None:
    """Until a node has heard that there is a newer file."""
    await trio.to_thread.run_sync(
        lambda: load.cluster.wait_for(
            name,
            "told that its file is old",
            lambda status: "file is old" in status.trouble,
            PATIENCE_S,
        )
    )
