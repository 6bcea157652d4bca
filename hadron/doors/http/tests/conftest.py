"""One node with a door, for tests of what its operations do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import trio

from hadron.doors.http.tests.support import nodes_with_doors, serving
from hadron.testing.nodes import Nodes


@pytest.fixture
async def nodes(tmp_path: Path, nursery: trio.Nursery) -> Nodes:
    return nodes_with_doors(tmp_path, 1, nursery)


@pytest.fixture
async def http(nodes: Nodes) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(nodes) as client:
        yield client
