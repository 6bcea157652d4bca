"""Ten thousand connections that say nothing: who works at the node does not notice them."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest
from report import Row, quantile

import hadron
from hadron.node.replica_set import NodeConfig
from hadron.node.supervision.cluster import LocalCluster, free_ports, write_config
from hadron.wire.sockets import DOOR_CONNECTIONS, split_address

SILENT: Final = 10_000
AT_ONCE: Final = 100
"""Fewer than wait to be accepted at most."""

PAUSE_S: Final = 2.0
"""The bar: who publishes meanwhile waits no longer than that."""

MOST: Final = {"address": SILENT, "http": DOOR_CONNECTIONS, "grpc": DOOR_CONNECTIONS}
"""How many of them a node's door has at a time."""

EACH_BYTES: Final = 40_000
"""Of one that is open, at most."""

LIMIT_S: Final = 60.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[NodeConfig, psutil.Process]]:
    http, grpc = free_ports(1), free_ports(1)
    path = tmp_path / "cluster.yaml"
    config = write_config(path, 1, "os", http_ports=http, grpc_ports=grpc)
    with LocalCluster(tmp_path, config=config) as cluster:
        yield cluster.config.leader, psutil.Process(cluster.pid(cluster.leader))


@contextlib.contextmanager
def published(node: NodeConfig) -> Iterator[list[float]]:
    """Somebody publishes, one record at a time: how long each took."""
    took_s: list[float] = []
    failures: list[Exception] = []
    ending = threading.Event()

    def publish() -> None:
        try:
            with (
                hadron.connect_sync(f"hadron://{node.address}") as client,
                client.producer("s") as producer,
            ):
                while not ending.wait(0.005):
                    began_s = time.perf_counter()
                    producer.send(len(took_s))
                    took_s.append(time.perf_counter() - began_s)
        except Exception as error:
            failures.append(error)

    with hadron.connect_sync(f"hadron://{node.address}") as client:
        client.create_stream("s")
    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield took_s
    finally:
        ending.set()
        thread.join()
    assert failures == []


def silent(address: str, count: int) -> list[socket.socket]:
    """So many connections, some at a time."""
    made: list[socket.socket] = []
    while len(made) < count:
        for _ in range(min(AT_ONCE, count - len(made))):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(split_address(address))
            made.append(sock)
        time.sleep(0.01)
    return made


def still_open(sockets: list[socket.socket]) -> list[socket.socket]:
    """Those that the node has not closed; the others are closed here, too."""
    left = []
    for sock in sockets:
        with contextlib.suppress(OSError):
            try:
                is_open = bool(sock.recv(1 << 12))
            except BlockingIOError:
                is_open = True
            if is_open:
                left.append(sock)
                continue
        sock.close()
    return left


@pytest.mark.long
@pytest.mark.parametrize(("door", "most"), MOST.items())
def test_ten_thousand_that_say_nothing(
    node: tuple[NodeConfig, psutil.Process], door: str, most: int, row: Row
) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 < hard < SILENT + 1_000:
        pytest.skip(f"no more than {hard} files may be open")
    config, process = node
    before = most_bytes = process.memory_info().rss
    with published(config) as took_s:
        began_s = time.monotonic()
        left = silent(getattr(config, door), SILENT)
        bounded_s = None
        while left:
            most_bytes = max(most_bytes, process.memory_info().rss)
            left = still_open(left)
            now_s = time.monotonic() - began_s
            assert now_s < LIMIT_S, f"{len(left)} of {SILENT} are open"
            if bounded_s is None and len(left) <= most:
                bounded_s = now_s
            time.sleep(0.1)
        ended_s = time.monotonic() - began_s
        count = len(took_s)
        while len(took_s) < count + 10:
            time.sleep(0.01)
    with urllib.request.urlopen(f"http://{config.http}/readyz", timeout=10) as answer:
        assert answer.status == 200
    grown = most_bytes - before
    row.acked = len(took_s)
    row.notes.append(
        f"{SILENT} silent connections to {door}: no more than {most} after {bounded_s:.1f} s, none "
        f"after {ended_s:.1f} s, {grown / 1e6:.0f} MB; a record beside them took p50 "
        f"{quantile(took_s, 0.5) * 1_000:.1f} ms, at most {max(took_s) * 1_000:.0f} ms"
    )
    assert max(took_s) <= PAUSE_S
    assert grown <= EACH_BYTES * most
    row.verdict = "valid"
