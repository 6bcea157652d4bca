"""A node with a gRPC door in a process of its own, for all tests of a module."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import hadron
from hadron.doors.grpc.tests.support import Program
from hadron.node.supervision.cluster import LocalCluster, free_ports, write_config


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("grpc")
    grpc_port, http_port = free_ports(2)
    config = write_config(
        directory / "cluster.yaml", 1, "os", grpc_ports=[grpc_port], http_ports=[http_port]
    )
    with LocalCluster(directory, config=config) as cluster:
        yield cluster


@pytest.fixture
def program(cluster: LocalCluster) -> Iterator[Program]:
    address = cluster.config.leader.grpc
    assert address is not None
    with Program(address) as program:
        yield program


_numbers = itertools.count(1)


@pytest.fixture
def stream(cluster: LocalCluster) -> str:
    """A new one."""
    name = f"s{next(_numbers)}"
    with hadron.connect_sync(f"hadron://{cluster.config.leader.address}") as client:
        client.create_stream(name)
    return name


@pytest.fixture
def endpoint(cluster: LocalCluster) -> Callable[..., str]:
    """Declares new ones."""

    def declare(**spec: Any) -> str:
        name = f"e{next(_numbers)}"
        declared = {"kind": "Endpoint", "name": name, "replica_set": cluster.config.name} | spec
        with hadron.connect_sync(f"hadron://{cluster.config.leader.address}") as client:
            client.apply(json.dumps(declared))
        return name

    return declare


@pytest.fixture
def exchange(cluster: LocalCluster) -> str:
    """A new one."""
    name = f"x{next(_numbers)}"
    declared = {"kind": "Exchange", "name": name, "replica_set": cluster.config.name}
    with hadron.connect_sync(f"hadron://{cluster.config.leader.address}") as client:
        client.apply(json.dumps(declared))
    return name
