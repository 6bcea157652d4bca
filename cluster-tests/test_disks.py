"""Nothing acknowledged is lost, and nothing wrong is served, when disks are lost or damaged."""

from __future__ import annotations

import pytest
import trio
from crew import PATIENCE_S
from load import Load, under_load
from report import Row

from hadron.model.errors import CorruptionError, HadronError
from hadron.node.supervision.processes import ClusterError, last_words
from hadron.testing.cluster import FaultyCluster


@pytest.mark.parametrize("name", [pytest.param("n1"), pytest.param("n3", marks=pytest.mark.long)])
async def test_a_wiped_node_rebuilds_itself(cluster: FaultyCluster, row: Row, name: str) -> None:
    async with under_load(cluster, row) as load:
        load.kill(name)
        load.wipe(name)
        await load.start(name)
        await load.progress()


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_every_node_is_wiped_in_turn(cluster: FaultyCluster, row: Row) -> None:
    """In the end nobody has the disk that it began with."""
    async with under_load(cluster, row) as load:
        for _ in range(2):
            for name in ("n2", "n1", "n3"):
                load.kill(name)
                load.wipe(name)
                await load.start(name)
                await load.progress()
                await wait_follows(load, name)


@pytest.mark.parametrize(
    ("name", "bits", "seed"),
    [
        ("n1", 2, 1),
        *(
            pytest.param(name, bits, seed, marks=pytest.mark.long)
            for name in ("n1", "n4")
            for bits, seed in ((1, 2), (1, 3), (2, 4), (5, 5), (50, 6))
        ),
    ],
)
@pytest.mark.timeout(600)
async def test_bits_flipped_on_one_disk_of_five(
    five: FaultyCluster, row: Row, name: str, bits: int, seed: int
) -> None:
    """A node with a damaged file finds out, or refuses; what it serves is right.

    The experiment in which NATS JetStream 2.12.1 lost half of its messages (Jepsen, 2025-12).
    """
    async with under_load(five, row) as load:
        await load.wait_more(200)
        await load.stop(name)
        load.history.event("damage", name, f"{bits} bits, seed {seed}")
        five.damage(name, bits, seed)
        row.notes.append(await bring_back(load, name))
        await load.progress()
        row.notes += await read_everything(load)
        await wait_follows(load, name)


async def read_everything(load: Load) -> list[str]:
    """Have the leader serve all that it has. It gets a new disk when it stops over that, or says
    that it cannot; returns what it said."""
    said = []
    while True:
        try:
            await load.read_all()
        except HadronError as error:
            if isinstance(error, CorruptionError):
                load.kill("n1")
            elif load.cluster.running("n1"):
                raise
            said.append(f"stopped being read: {error.message}")
            load.wipe("n1")
            await load.start("n1")
        else:
            return said


async def bring_back(load: Load, name: str) -> str:
    """Start a node with a damaged disk; one that refuses gets a new disk. Returns what it said."""
    try:
        await load.start(name)
    except ClusterError:
        said = load.cluster.log(name).read_text()
        assert "Traceback" not in said, said
        load.wipe(name)
        await load.start(name)
        return f"refused to start: {last_words(load.cluster.log(name))[0] or said}"
    return "started"


async def wait_follows(load: Load, name: str) -> None:
    """Until a node has everything that was committed when this was called, and counts."""
    cluster = load.cluster
    with trio.fail_after(PATIENCE_S):
        wanted = (await trio.to_thread.run_sync(cluster.status, cluster.leader)).committed_lsn
        # Another process: there is nothing to be woken by.
        while not await trio.to_thread.run_sync(_follows, cluster, name, wanted):  # noqa: ASYNC110
            await trio.sleep(0.02)


def _follows(cluster: FaultyCluster, name: str, lsn: int) -> bool:
    leader, node = cluster.status(cluster.leader), cluster.status(name)
    peers = {peer.name: peer.state for peer in leader.peers}
    return node.applied_lsn >= lsn and peers.get(name, "in sync") == "in sync"
