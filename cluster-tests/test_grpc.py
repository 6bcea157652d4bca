"""A program in another language, with public libraries and proto/ alone, uses a node over gRPC."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hadron
from hadron.node.replica_set import NodeConfig
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
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeConfig]:
    directory = tmp_path_factory.mktemp("grpc")
    config = write_config(directory / "cluster.yaml", 1, "os", grpc_ports=free_ports(1))
    with LocalCluster(directory, config=config) as cluster:
        yield cluster.config.leader


@contextmanager
def asked_in_python(node: NodeConfig, endpoint: str) -> Iterator[None]:
    """Serves endpoints that the program calls; one of them asks the program's own for an answer."""
    with hadron.connect_sync(f"hadron://{node.address}") as client:
        name = f"ask-{endpoint}"
        where = {"kind": "Endpoint", "replica_set": "local/p0"}
        client.apply(json.dumps(where | {"name": name}))
        streams = {"name": f"{name}-stream", "input": "stream", "output": "stream"}
        client.apply(json.dumps(where | streams))

        def ask(value: Any, call: hadron.IncomingCall) -> Any:
            answer = client.call(endpoint, value, headers=dict(call.headers), timeout_s=30)
            return {"asked": value, "answer": answer}

        def double(values: Iterator[str]) -> Iterator[str]:
            for each in values:
                yield each * 2

        with client.serve(name, ask), client.serve(f"{name}-stream", double):
            yield


@pytest.mark.parametrize(
    ("way", "stream"),
    [(str(_PROTO), "loaded"), ("--reflect", "reflected")],
    ids=["files", "reflection"],
)
def test_a_program_in_node_js_uses_the_contract(
    program: Path, node: NodeConfig, way: str, stream: str
) -> None:
    assert node.grpc is not None
    command = ["node", "client.js", node.grpc, way]
    with asked_in_python(node, stream):
        done = subprocess.run(command, cwd=program, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "count": 3,
        "seen": ["one", "two", "three"],
        "receipts": 1,
        "read": ["one", "two", "three", "four"],
        "refused": "NOT_FOUND",
        "calls": {
            "answer": {"asked": {"n": 21}, "answer": {"n": 42, "page": "3"}},
            "failed": "UNKNOWN below zero",
            "rows": ["aa", "bb", "cc"],
        },
        "messages": {"deliveries": 1, "arrived": ["eu.ibm"]},
    }
