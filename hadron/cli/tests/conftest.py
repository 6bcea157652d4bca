"""A node for tests of whole commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hadron.node.supervision.cluster import LocalCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One real node, shared by the tests of a module."""
    with LocalCluster(tmp_path_factory.mktemp("cluster"), nodes=1, durability="os") as cluster:
        yield cluster


@pytest.fixture
def environment(cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands go to that node, and find nobody's contexts."""
    monkeypatch.setenv("HADRON_URL", cluster.url)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
