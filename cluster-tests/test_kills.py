"""Nothing acknowledged is lost or doubled when processes are killed, stopped and wiped."""

from __future__ import annotations

import shutil

import pytest
import trio
from load import Load, check_nothing_lost, check_replicas_agree, loaded

import hadron
from hadron.node.supervision.cluster import LocalCluster


async def start(cluster: LocalCluster, name: str) -> None:
    """Start a node while the load goes on."""
    await trio.to_thread.run_sync(cluster.start, name)


async def check(cluster: LocalCluster, load: Load) -> None:
    async with hadron.connect(cluster.url) as client:
        await check_nothing_lost(client, load)
        await check_replicas_agree(cluster, client)


async def test_replicas_killed_under_load(cluster: LocalCluster) -> None:
    async with loaded(cluster) as (_, load):
        for name in ("n3", "n2"):
            cluster.kill(name)
            await load.wait_more(500)
            await start(cluster, name)
            await load.wait_more(500)
    await check(cluster, load)


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.long)])
async def test_leader_killed_under_load(cluster: LocalCluster, kills: int) -> None:
    async with loaded(cluster) as (_, load):
        for _ in range(kills):
            cluster.kill("n1")
            await start(cluster, "n1")
            await load.wait_more(300)
    await check(cluster, load)


async def test_all_killed_at_once(cluster: LocalCluster) -> None:
    async with loaded(cluster) as (_, load):
        for name in cluster.names:
            cluster.kill(name)
        await trio.to_thread.run_sync(cluster.start_all)
        await load.wait_more(300)
    await check(cluster, load)


async def test_a_stopped_replica_catches_up(cluster: LocalCluster) -> None:
    async with loaded(cluster) as (_, load):
        cluster.pause("n2")
        await load.wait_more(1_000)
        cluster.resume("n2")
        await load.wait_more(200)
    await check(cluster, load)


@pytest.mark.parametrize("name", ["n1", "n3"])
async def test_a_wiped_node_rebuilds_itself(cluster: LocalCluster, name: str) -> None:
    async with loaded(cluster) as (_, load):
        cluster.kill(name)
        shutil.rmtree(cluster.config.node(name).data)
        await start(cluster, name)
        await load.wait_more(300)
    await check(cluster, load)
