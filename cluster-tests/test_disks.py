"""Nothing acknowledged is lost, and nothing wrong is served, when disks are lost or damaged."""

from __future__ import annotations

import pytest
from load import under_load
from report import Row

from hadron.testing.cluster import FaultyCluster


@pytest.mark.parametrize("name", ["n1", "n3"])
async def test_a_wiped_node_rebuilds_itself(cluster: FaultyCluster, row: Row, name: str) -> None:
    async with under_load(cluster, row) as load:
        load.kill(name)
        load.wipe(name)
        await load.start(name)
        await load.progress()
