"""Floods without a token, against a real node whose memory is limited: it stays small, others are
served meanwhile, and it says whom it has cut off."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import hadron
from hadron.client import SyncClient
from hadron.model.batch_building import encode_values
from hadron.model.limits import MAX_ATTACHMENT_BYTES, MAX_MESSAGE_BYTES
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node.supervision.cluster import LocalCluster
from hadron.wire import frames
from hadron.wire.frames import END, Kind
from hadron.wire.messages import groups_pb2, method, streams_pb2
from hadron.wire.sockets import split_address

MIB = 1 << 20
FLOOD_S = 3.0
START_S = 1.0
"""Of the process that makes it."""
ALLOWED_BYTES = 600 * MIB
"""More memory than before the flood: the node's budgets are 256 MiB each for what goes out and for
what comes in, and the process's own allocator keeps some."""

FETCH = method("Fetch")

Connect = Callable[[], socket.socket]


@contextlib.contextmanager
def limited_node(directory: Path) -> Iterator[tuple[LocalCluster, SyncClient, psutil.Process]]:
    """A node with 60 MB in a stream, whose address space may grow no more than by what is
    allowed."""
    with LocalCluster(directory, nodes=1) as cluster, hadron.connect_sync(cluster.url) as client:
        spec = StreamSpec(partitions=("local/p0",))
        client.apply([SchemaObject(kind="Stream", name="events", spec=spec)])
        with client.producer("events") as producer:
            producer.send_many([os.urandom(100_000) for _ in range(600)])
        node = psutil.Process(cluster.pid("n1"))
        limit = node.memory_info().vms + ALLOWED_BYTES
        resource.prlimit(node.pid, resource.RLIMIT_AS, (limit, limit))
        yield cluster, client, node


def opening(number: int, what: str, message: object, *, end: bool = True) -> bytes:
    data = message.SerializeToString()  # type: ignore[attr-defined]
    chunks = frames.encode(
        Kind.OPEN, 2 * number + 1, data, method=method(what).number, flags=END if end else 0
    )
    return b"".join(map(bytes, chunks))


def announcements(connect: Connect) -> None:
    """28 bytes that announce 20 MiB, from 200 connections."""
    head = frames._UNCHECKED.pack(
        b"HD", 1, 1, FETCH.number, 1, 1, MAX_MESSAGE_BYTES, MAX_ATTACHMENT_BYTES
    )
    for _ in range(200):
        connect().sendall(head + bytes(8))


def unread_fetches(connect: Connect) -> None:
    """10,000 of 16 MiB on one connection."""
    request = streams_pb2.FetchRequest(stream="events", max_bytes=16 * MIB)
    connect().sendall(b"".join(opening(number, "Fetch", request) for number in range(10_000)))


def unread_fetches_of_many(connect: Connect) -> None:
    """50 of 16 MiB on each of 100 connections."""
    request = streams_pb2.FetchRequest(stream="events", max_bytes=16 * MIB)
    data = b"".join(opening(number, "Fetch", request) for number in range(50))
    for _ in range(100):
        connect().sendall(data)


def members(connect: Connect) -> None:
    """1,000 members on one connection, which are to get all there is, and say that they have room
    for more."""
    sock = connect()
    for number in range(1_000):
        open_ = groups_pb2.SubscribeRequest.Open(
            stream="events",
            group=f"g{number}",
            start="earliest",
            max_in_flight=100_000,
            options=groups_pb2.GroupOptions(ephemeral=True),
        )
        message = groups_pb2.SubscribeRequest(open=open_)
        sock.sendall(opening(number, "Subscribe", message, end=False))
        credit = frames.encode(Kind.CREDIT, 2 * number + 1, b"\xff\xff\xff\xff")
        sock.sendall(b"".join(map(bytes, credit)))


def pings(connect: Connect) -> None:
    """Each wants an answer."""
    data = b"".join(map(bytes, frames.encode(Kind.PING, 0))) * 10_000
    sock = connect()
    while True:
        sock.sendall(data)


def large_messages(connect: Connect) -> None:
    """2 MiB of message around a batch of no size: 2,000 of them."""
    batch = encode_values([b"x"], 1)
    # A field that nobody knows yet, which is kept.
    padding = b"\x82\x7d" + b"\x80\x80\x80\x01" + bytes(2 * MIB)
    message = streams_pb2.ProduceRequest(stream="events").SerializeToString() + padding
    streams_pb2.ProduceRequest.FromString(message)
    sock = connect()
    for number in range(2_000):
        chunks = frames.encode(
            Kind.OPEN, 2 * number + 1, message, [batch], method=method("Produce").number, flags=END
        )
        sock.sendall(b"".join(map(bytes, chunks)))


FLOODS = [announcements, unread_fetches, unread_fetches_of_many, members, pings, large_messages]


def attack(name: str, address: str) -> None:
    """One flood, in a process of its own, until it is ended."""
    sockets: list[socket.socket] = []

    def connect() -> socket.socket:
        sock = socket.create_connection(split_address(address))
        sockets.append(sock)
        return sock

    # The node stops reading, or cuts it off.
    with contextlib.suppress(OSError):
        globals()[name](connect)
    print("done", flush=True)
    time.sleep(60)


@contextlib.contextmanager
def attacked(flood: Callable[[Connect], None], address: str) -> Iterator[None]:
    program = f"from {__name__} import attack; attack({flood.__name__!r}, {address!r})"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as attacker:
        try:
            yield
        finally:
            attacker.kill()


@pytest.mark.long
@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.__name__)
def test_a_flood(tmp_path: Path, flood: Callable[[Connect], None]) -> None:
    with limited_node(tmp_path) as (cluster, client, node):
        before = node.memory_info().rss
        most = 0
        delays: list[float] = []
        with attacked(flood, cluster.address("n1")), client.producer("events") as producer:
            until = time.monotonic() + START_S + FLOOD_S
            while time.monotonic() < until:
                asked = time.monotonic()
                producer.send(b"beside it")
                for record in client.read("events", offset=0, limit=5):
                    assert len(record.value) == 100_000
                delays.append(time.monotonic() - asked)
                most = max(most, node.memory_info().rss)
                time.sleep(0.05)
        assert most - before < ALLOWED_BYTES
        assert statistics.median(delays) < 0.5
        text = cluster.log("n1").read_text()
        assert "Traceback" not in text
        assert "MemoryError" not in text
