"""Who calls an endpoint through a node's gRPC door, as its server is told."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

import hadron
from hadron.doors.grpc.rpc import Rpc
from hadron.doors.grpc.tests.support import CALLS, Program, Said
from hadron.model.version import VERSION
from hadron.node.supervision.cluster import LocalCluster, free_ports, write_config
from hadron.wire._pb import calls_pb2 as pb
from hadron.wire._pb import records_pb2

WHO = r"^a client at 127\.0\.0\.1:\d+ by gRPC \('"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Whose two nodes have doors; `who` is served by who says who has called."""
    directory = tmp_path_factory.mktemp("callers")
    config = write_config(directory / "cluster.yaml", 2, "os", grpc_ports=free_ports(2))
    with LocalCluster(directory, config=config) as cluster:
        declared = {"kind": "Endpoint", "name": "who", "replica_set": cluster.config.name}
        with hadron.connect_sync(f"hadron://{cluster.config.leader.address}") as client:
            client.apply(json.dumps(declared))
            with client.serve("who", lambda _value, call: call.caller):
                yield cluster


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_server_is_told_who_calls_through_grpc(cluster: LocalCluster, node: str) -> None:
    address = address_of(cluster, node)
    with Program(address) as program:
        program.channel.close()
        options = [("grpc.primary_user_agent", "till/7"), ("grpc.use_local_subchannel_pool", 1)]
        program.channel = grpc.insecure_channel(address, options)
        call = program.unary(CALLS + "Call", pb.SingleCallResponse)
        answer = call(pb.SingleCallRequest(endpoint="who"), timeout=30, wait_for_ready=True)
        found = [answer.value.text]
        said = Said()
        opening = pb.StreamCallRequest.Open(endpoint="who", value=records_pb2.Value(text="x"))
        said.say(pb.StreamCallRequest(open=opening))
        events = program.stream(CALLS + "CallStream", pb.StreamCallEvent)(iter(said), timeout=30)
        found.append(next(events).value.text)
        said.end()
    way = "the gRPC door of n1" if node == "n1" else r"127\.0\.0\.1:\d+"
    for who in found:
        assert re.search(rf"{WHO}till/7 grpc-python/.*'\) through {way}$", who), who


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_hadrons_own_client_says_its_name(cluster: LocalCluster, node: str) -> None:
    """Its calls are forwarded by the node that it speaks to."""
    with hadron.connect_sync(f"grpc://{address_of(cluster, node)}") as client:
        who = client.call("who", timeout_s=30)
    way = f" through node {node} of local/p0"
    assert re.search(rf"{WHO}hadron-python/{re.escape(VERSION)} grpc-python/.*'\){way}$", who), who


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.1:5", "10.0.0.1:5"),
        ("ipv6:%5B::1%5D:5", "[::1]:5"),
        ("unix:/run/x", "unix:/run/x"),
    ],
)
def test_addresses_are_written_as_everywhere(peer: str, address: str) -> None:
    nowhere: Any = None
    assert Rpc(nowhere, nowhere, "/a.B/C", {}, peer).who == f"{address} by gRPC"


def address_of(cluster: LocalCluster, node: str) -> str:
    (address,) = [each.grpc for each in cluster.config.nodes if each.name == node]
    assert address is not None
    return address
