"""Connections on which nothing is said take nothing from those who do."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

import hadron
from hadron.doors.grpc.bridge import Bridge
from hadron.doors.grpc.limits import Limits
from hadron.doors.grpc.server import GrpcServer
from hadron.doors.grpc.tests.support import RECORDS, Program, text
from hadron.node.supervision.cluster import LocalCluster, free_ports, write_config
from hadron.wire._pb import records_pb2 as pb

_FILES = 600
_STRANGERS = 700


@pytest.fixture
def poor(tmp_path: Path) -> Iterator[LocalCluster]:
    """A node that may have few files open."""
    config = write_config(tmp_path / "cluster.yaml", 1, "os", grpc_ports=free_ports(1))
    cluster = LocalCluster(tmp_path, config=config)
    limited = f'ulimit -n {_FILES}; exec "$@"'
    cluster.program = ("/bin/sh", "-c", limited, "sh", *cluster.program)
    with cluster:
        yield cluster


def test_silent_connections_take_no_files_from_the_node(poor: LocalCluster) -> None:
    leader = poor.config.leader
    assert leader.grpc is not None
    host, _, port = leader.grpc.rpartition(":")
    declared = {"kind": "Endpoint", "name": "e", "replica_set": poor.config.name}
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(hadron.connect_sync(poor.url))
        client.apply(json.dumps(declared))
        client.create_stream("s")
        stack.enter_context(client.serve("e", lambda value: value))
        for _ in range(_STRANGERS):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
        for number in range(100):
            assert client.call("e", number, timeout_s=10) == number
        with hadron.connect_sync(poor.url) as another, another.producer("s") as producer:
            producer.send("x")
    # Who says something finds room again.
    with Program(leader.grpc) as program:
        asked = pb.PublishRequest(stream="s", records=[text("y")])
        publish = program.unary(RECORDS + "Publish", pb.PublishResponse)
        assert publish(asked, timeout=30, wait_for_ready=True).runs[0].base_offset == 1


async def test_who_says_nothing_and_who_is_one_too_many_is_cut_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = Limits(connections=2, handshake_s=2.0, count_s=0.05)
    ports: list[Any] = []
    started, stopped = trio.Event(), trio.Event()

    def on_started(port: Any) -> None:
        ports.append(port)
        started.set()

    bridge = Bridge()
    server = GrpcServer(
        "127.0.0.1:0", {}, (), bridge, lambda _rpc: None, limits, on_started, stopped.set
    )
    server.start()
    with trio.fail_after(30):
        await started.wait()
        first, second, third = [await trio.open_tcp_stream("127.0.0.1", ports[0]) for _ in range(3)]
        async with first, second, third:
            began_s = trio.current_time()
            assert await third.receive_some() == b""
            assert trio.current_time() - began_s < limits.handshake_s
            for silent in (first, second):
                while await silent.receive_some():
                    pass
    # Counted many times while it was so, and told once.
    assert [each.message for each in caplog.records] == [
        "2 gRPC connections are open, more are closed at once: share one between calls, or use "
        "other nodes; a door takes 2"
    ]
    with trio.fail_after(30):
        bridge.to_grpc.put(server.stop)
        await stopped.wait()
