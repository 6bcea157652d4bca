"""Hadron's own client over gRPC: `grpc://` in its URL."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import anyio
import grpc
import pytest

import hadron
from hadron.cli.commands import status
from hadron.client.connecting.over_grpc import GrpcNetwork
from hadron.doors.grpc.tests.support import Program
from hadron.model.errors import PeerError, RequestError, StrangerError
from hadron.node.supervision.cluster import LocalCluster, free_ports, write_config
from hadron.wire._pb.frames_pb2 import FramesPart


def url_of(cluster: LocalCluster) -> str:
    return f"grpc://{cluster.config.leader.grpc}"


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_it_does_what_a_client_does(cluster: LocalCluster, backend: str) -> None:
    anyio.run(partial(_use, url_of(cluster), f"own-{backend}"), backend=backend)


async def _use(url: str, stream: str) -> None:
    block = b"x" * 100_000
    with anyio.fail_after(60):
        async with hadron.connect(url) as client:
            await client.create_stream(stream)
            async with client.producer(stream) as producer:
                await producer.send("first")
                # More than may be on its way at a time, both ways.
                await producer.send_many([block] * 50)
            assert [each.value async for each in client.read(stream)] == ["first", *[block] * 50]
            async with client.subscribe(stream, group="g", start="earliest") as subscription:
                count = 0
                async for delivery in subscription:
                    await delivery.ack()
                    count += 1
                    if count == 51:
                        break
            async with client.transaction() as transaction:
                await transaction.publish(stream, "last")
            (group,) = await client.groups(stream)
            assert group.floor == 51


@pytest.mark.parametrize(
    ("scheme", "port", "said"),
    [
        ("grpc", "address", "takes connections, and is no port for gRPC"),
        ("grpc", "http", "it speaks HTTP"),
        ("hadron", "grpc", "it speaks HTTP/2, as gRPC does"),
    ],
)
def test_a_port_that_is_another_one_s_is_told_at_once(
    cluster: LocalCluster, scheme: str, port: str, said: str
) -> None:
    client = hadron.connect_sync(f"{scheme}://{getattr(cluster.config.leader, port)}")
    began_s = time.monotonic()
    with pytest.raises(StrangerError, match=said), client:
        pass
    assert time.monotonic() - began_s < 8, "and not after all of its patience"


@pytest.mark.long
def test_a_child_connects_anew_and_its_parent_goes_on(cluster: LocalCluster) -> None:
    """In a process of its own: gRPC reads at its import whether there may be forks."""
    program = """
import os, sys
import hadron

client = hadron.connect_sync(sys.argv[1])
client.create_stream("own-forks")
producer = client.producer("own-forks")
producer.send("parent")
for number in range(4):
    if os.fork() == 0:
        producer.send(f"child {number}")
        with client.subscribe("own-forks", group=f"g{number}", start="earliest") as subscription:
            next(subscription).ack()
        sys.exit(0)
    assert os.wait()[1] == 0
    producer.send("parent")
print(sorted(each.value for each in client.read("own-forks")))
client.close()
"""
    environment = {k: v for k, v in os.environ.items() if k != "GRPC_ENABLE_FORK_SUPPORT"}
    done = subprocess.run(
        [sys.executable, "-c", program, url_of(cluster)],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.strip() == str([*(f"child {each}" for each in range(4)), *["parent"] * 5])


def test_blocking_and_in_the_terminal(cluster: LocalCluster) -> None:
    with hadron.connect_sync(url_of(cluster)) as client:
        client.create_stream("own-blocking")
        with client.producer("own-blocking") as producer:
            producer.send("one")
    command = [sys.executable, "-m", "hadron", "sub", "own-blocking", "--from", "earliest", "-e"]
    done = subprocess.run(
        command,
        env=os.environ | {"HADRON_URL": url_of(cluster)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "one" in done.stdout, done.stderr


@pytest.mark.long
def test_a_replica_is_enough(tmp_path: Path) -> None:
    """Its client reaches that node alone, and goes on over the leader's death."""
    config = write_config(tmp_path / "cluster.yaml", 3, "os", grpc_ports=free_ports(3))
    with LocalCluster(tmp_path, config=config) as cluster:
        leader = cluster.config.leader.name
        replica = next(each for each in cluster.config.nodes if each.name != leader)
        with hadron.connect_sync(f"grpc://{replica.grpc}") as client:
            client.create_stream("s")
            with client.producer("s") as producer:
                producer.send("before")
                cluster.kill(leader)
                cluster.start(leader)
                producer.send("after")
            assert [each.value for each in client.read("s")] == ["before", "after"]


@pytest.mark.long
async def test_a_connection_that_breaks_is_dialed_again(tmp_path: Path) -> None:
    config = write_config(tmp_path / "cluster.yaml", 1, "os", grpc_ports=free_ports(1))
    with LocalCluster(tmp_path, config=config) as cluster:
        async with hadron.connect(url_of(cluster)) as client:
            await client.create_stream("s")
            async with client.producer("s") as producer:
                await producer.send("before")
                cluster.kill("n1")
                await anyio.to_thread.run_sync(cluster.start, "n1")
                await producer.send("after")
            assert [each.value async for each in client.read("s")] == ["before", "after"]


@pytest.mark.long
def test_status_through_the_door_of_one_node_is_that_of_all(tmp_path: Path) -> None:
    """Nodes whose doors the URL does not name are asked by that one: they are no outage."""
    ports = free_ports(2)
    config = write_config(tmp_path / "cluster.yaml", 2, "os", grpc_ports=ports)
    with LocalCluster(tmp_path, config=config):
        report = anyio.run(status._ask, f"grpc://127.0.0.1:{ports[1]}", backend="trio")
    assert [(each["node"], each["state"]) for each in report["nodes"]] == [
        ("n1", "serving"),
        ("n2", "following"),
    ]
    assert report["ways_out"] == []


async def test_what_cannot_be_reached_is_told() -> None:
    (port,) = free_ports(1)
    with pytest.raises(PeerError, match=f"127.0.0.1:{port}"):
        async with hadron.connect(f"grpc://127.0.0.1:{port}", connect_timeout_s=1.0):
            pass
    network = GrpcNetwork(["127.0.0.1:1"])
    with pytest.raises(OSError, match="not among the nodes of the grpc:// URL"):
        await network.dial("127.0.0.1:2")
    with pytest.raises(OSError, match="nobody listens"):
        await network.listen("127.0.0.1:2")


def test_without_the_library_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(RequestError, match="needs grpcio"):
        hadron.connect("grpc://127.0.0.1")


def test_nonsense_ends_its_call_alone(cluster: LocalCluster, program: Program) -> None:
    connect = program.stream("/hadron.v1.Frames/Connect", FramesPart)
    with hadron.connect_sync(url_of(cluster)) as client:
        # The node says that it does not understand, and closes.
        told = b"".join(
            part.data
            for part in connect(
                iter([FramesPart(data=b"GET / HTTP/1.1\r\n\r\n" * 100)]), timeout=30
            )
        )
        assert len(told) < 10_000
        with pytest.raises(grpc.RpcError) as caught:
            list(connect(iter([b"\xff\xff\xff"]), timeout=30))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        client.create_stream("own-beside")
