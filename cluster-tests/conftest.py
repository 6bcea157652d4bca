"""Real processes, real files, on loopback; every test gets a cluster of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hadron.node.supervision.cluster import LocalCluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, nodes=3) as running:
        yield running
