"""Nothing acknowledged is lost or doubled when processes are killed, stopped and paused."""

from __future__ import annotations

import pytest
import trio
from load import under_load
from report import Row

from hadron.testing.cluster import FaultyCluster


async def test_everybody_is_killed(cluster: FaultyCluster, row: Row) -> None:
    """Replicas while the leader goes on, the leader, and all at once."""
    async with under_load(cluster, row) as load:
        for name in ("n3", "n2"):
            load.kill(name)
            await load.wait_more(50)
            await load.start(name)
        for _ in range(2):
            load.kill("n1")
            await load.start("n1")
            await load.progress()
        # A coordinated power failure, but for what the page cache keeps.
        load.kill_all()
        await load.start(*cluster.names)
        await load.progress()


async def test_everybody_is_paused(cluster: FaultyCluster, row: Row) -> None:
    """Paused nodes keep their connections and answer nothing (SIGSTOP)."""
    async with under_load(cluster, row) as load:
        cluster.pause("n2")
        load.fault("stop", "n2", "paused")
        await load.wait_more(50)
        cluster.resume("n2")
        cluster.pause("n1")
        load.fault("stop", "n1", "paused")
        assert await load.is_still()
        cluster.resume("n1")
        await load.progress()


@pytest.mark.long
async def test_rolling_restart(cluster: FaultyCluster, row: Row) -> None:
    async with under_load(cluster, row) as load:
        for name in ("n3", "n2", "n1"):
            await load.stop(name)
            await load.start(name)
            await load.progress()


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_fifty_leader_kills(cluster: FaultyCluster, row: Row) -> None:
    async with under_load(cluster, row) as load:
        for turn in range(50):
            load.kill("n1")
            if turn % 5 == 4:
                # A replica goes with it; one that was paused answers late.
                load.kill("n2" if turn % 2 else "n3")
            await load.start(*(name for name in cluster.names if not cluster.running(name)))
            await load.progress()
            await load.wait_more(20 + turn % 7 * 10)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_the_leader_is_paused_beyond_every_timeout(cluster: FaultyCluster, row: Row) -> None:
    """Its peers and clients have given it up when it comes back and goes on as if nothing was."""
    async with under_load(cluster, row) as load:
        cluster.pause("n1")
        load.fault("stop", "n1", "paused")
        await trio.sleep(3 * cluster.config.settings.silence_limit_s)
        cluster.resume("n1")
        await load.progress()


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_ten_coordinated_power_failures(five: FaultyCluster, row: Row) -> None:
    """Every process is killed at the same moment; what they wrote is still in the page cache."""
    async with under_load(five, row) as load:
        for _ in range(10):
            load.kill_all()
            await load.start(*five.names)
            await load.progress()
            await load.wait_more(50)
