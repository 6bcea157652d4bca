"""A program in another language, with public libraries and proto/ alone, uses a node over gRPC."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hadron.node.supervision.cluster import LocalCluster, free_ports, write_config

_HERE = Path(__file__).parent
_PROTO = _HERE.parent / "proto"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program and what it needs."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm")
    folder = tmp_path_factory.mktemp("node-client")
    for path in (_HERE / "node-client").iterdir():
        shutil.copy(path, folder)
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--silent"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    if done.returncode:
        pytest.skip(f"npm cannot have its packages: {done.stderr.strip()[-300:]}")
    return folder


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("grpc")
    config = write_config(directory / "cluster.yaml", 1, "os", grpc_ports=free_ports(1))
    with LocalCluster(directory, config=config) as cluster:
        assert cluster.config.leader.grpc is not None
        yield cluster.config.leader.grpc


@pytest.mark.parametrize("way", [str(_PROTO), "--reflect"], ids=["files", "reflection"])
def test_a_program_in_node_js_uses_the_contract(program: Path, address: str, way: str) -> None:
    done = subprocess.run(
        ["node", "client.js", address, way], cwd=program, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "count": 3,
        "seen": ["one", "two", "three"],
        "receipts": 1,
        "read": ["one", "two", "three", "four"],
        "refused": "NOT_FOUND",
    }
