"""Connections on which nothing is said take nothing from those who do."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, TrailersReceived

import hadron
from hadron.doors.grpc.bridge import Bridge, Lane
from hadron.doors.grpc.limits import WINDOW_MESSAGES, Limits
from hadron.doors.grpc.rpc import Rpc, Talk
from hadron.doors.grpc.server import GrpcServer
from hadron.doors.grpc.tests.support import RECORDS, Program, text
from hadron.doors.held import Held
from hadron.node.supervision.cluster import LocalCluster, free_ports, write_config
from hadron.wire._pb import records_pb2 as pb

_FILES = 600
_STRANGERS = 700


_ECHO = "/of.a.test/Echo"
_STREAM = "/of.a.test/Stream"


def echo(rpc: Rpc) -> None:
    rpc.on_message = rpc.send
    rpc.on_end = rpc.finish


@asynccontextmanager
async def door(limits: Limits, accept: Callable[[Rpc], None] = echo) -> AsyncIterator[int]:
    """One without a node, which answers with what it is asked. Gives its port."""
    ports: list[Any] = []
    started, stopped = trio.Event(), trio.Event()

    def on_started(port: Any) -> None:
        ports.append(port)
        started.set()

    bridge = Bridge()
    paths = {_ECHO: True, _STREAM: False}
    server = GrpcServer("127.0.0.1:0", paths, (), bridge, accept, limits, on_started, stopped.set)
    server.start()
    with trio.fail_after(30):
        await started.wait()
        yield ports[0]
        bridge.to_grpc.put(server.stop)
        await stopped.wait()


def open_call(said: H2Connection, path: str = _ECHO) -> int:
    """Returns its stream."""
    stream = said.get_next_available_stream_id()
    asked = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x"}
    said.send_headers(
        stream, [*asked.items(), ("te", "trailers"), ("content-type", "application/grpc")]
    )
    return stream


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


@pytest.mark.long
async def test_who_says_nothing_and_who_is_one_too_many_is_cut_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = Limits(connections=2, handshake_s=2.0, count_s=0.05)
    async with door(limits) as port:
        first, second, third = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(3)]
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


async def test_messages_that_do_not_come_to_their_end_end_their_calls_alone() -> None:
    limits = Limits(message_s=1.0)
    begun = b"\0" + (19 << 20).to_bytes(4) + bytes(1_000)
    async with door(limits) as port, await trio.open_tcp_stream("127.0.0.1", port) as stranger:
        said = H2Connection()
        said.initiate_connection()
        calls = [open_call(said) for _ in range(20)]
        for call in calls:
            said.send_data(call, begun)
        silent, empty = open_call(said), open_call(said)
        said.end_stream(empty)
        await stranger.send_all(said.data_to_send())
        with Program(f"127.0.0.1:{port}") as program:
            call = program.unary(_ECHO, pb.Value)
            asked = pb.Value(text="x")
            assert await trio.to_thread.run_sync(lambda: call(asked, timeout=30)) == asked

        statuses: dict[int, bytes] = {}
        while len(statuses) < len([*calls, silent, empty]):
            for event in said.receive_data(await stranger.receive_some()):
                if isinstance(event, ResponseReceived | TrailersReceived):
                    found = dict(event.headers)
                    if b"grpc-status" in found:
                        statuses[event.stream_id] = found[b"grpc-status"]
            if calls[0] not in statuses:
                # Who drips is not waited for longer.
                said.send_data(calls[0], b"x")
            await stranger.send_all(said.data_to_send())
        assert statuses == dict.fromkeys([*calls, silent], b"4") | {empty: b"3"}


@pytest.mark.parametrize("first", [0, 1])
async def test_a_call_that_has_no_room_holds_nothing_though_nobody_reads(first: int) -> None:
    held = Held(4 << 20, "calls", "read them")
    calls: list[Rpc] = []
    is_over = trio.Event()

    def accept(rpc: Rpc) -> None:
        calls.append(rpc)
        rpc.share = held.share()
        rpc.on_over = is_over.set
        for _ in range(first):
            rpc.send(b"x")
        rpc.send(bytes(1 << 20))

    async with (
        door(Limits(), accept) as port,
        await trio.open_tcp_stream("127.0.0.1", port) as stranger,
    ):
        said = H2Connection()
        said.initiate_connection()
        call = open_call(said, _STREAM)
        await stranger.send_all(said.data_to_send())
        # More than HTTP/2 lets go to who does not read.
        window = said.inbound_flow_control_window
        while window:
            for event in said.receive_data(await stranger.receive_some()):
                if isinstance(event, DataReceived):
                    window -= event.flow_controlled_length
            await stranger.send_all(said.data_to_send())
        assert held.bytes >= 1 << 20
        calls[0].send(bytes(3 << 20))
        await is_over.wait()
        assert not held.bytes
        said.increment_flow_control_window(2 << 20)
        said.increment_flow_control_window(2 << 20, call)
        await stranger.send_all(said.data_to_send())
        trailers: dict[bytes, bytes] = {}
        while b"grpc-status" not in trailers:
            for event in said.receive_data(await stranger.receive_some()):
                if isinstance(event, TrailersReceived):
                    trailers = dict(event.headers)
            await stranger.send_all(said.data_to_send())
        assert trailers[b"grpc-status"] == b"2"
        assert b"may have been done" in trailers[b"grpc-message"]


async def test_empty_messages_wait_for_those_before_them() -> None:
    """They have no bytes that could be counted, and take 200 here."""
    heard: list[bytes] = []
    calls: list[Rpc] = []
    news = trio.Event()

    def accept(rpc: Rpc) -> None:
        if rpc.path == _ECHO:
            echo(rpc)
            return
        calls.append(rpc)
        rpc.on_message = hear

    def hear(data: bytes) -> None:
        heard.append(data)
        news.set()

    async def until(count: int) -> None:
        nonlocal news
        with trio.fail_after(60):
            while len(heard) < count:
                news = trio.Event()
                await news.wait()

    async with (
        door(Limits(), accept) as port,
        await trio.open_tcp_stream("127.0.0.1", port) as stranger,
    ):
        said = H2Connection()
        said.initiate_connection()
        call = open_call(said, _STREAM)
        for _ in range(12):
            said.send_data(call, b"\0\0\0\0\0" * 1_000)
        await stranger.send_all(said.data_to_send())
        await until(WINDOW_MESSAGES)
        with Program(f"127.0.0.1:{port}") as program:
            ask = program.unary(_ECHO, pb.Value)
            for _ in range(20):
                await trio.to_thread.run_sync(lambda: ask(pb.Value(text="x"), timeout=30))
        assert len(heard) == WINDOW_MESSAGES
        for number in range(12_000):
            await until(number + 1)
            calls[0].consumed(0)


async def test_small_answers_wait_for_a_program_to_read() -> None:
    sent: list[bytes] = []
    other: Any = SimpleNamespace(send=sent.append)
    talk = Talk(Rpc(Lane(lambda drain: drain()), other, "/", {}, ""))

    async def answer() -> None:
        for _ in range(3 * WINDOW_MESSAGES):
            await talk.send(b"")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        await trio.testing.wait_all_tasks_blocked()
        assert len(sent) == WINDOW_MESSAGES
        for number in range(3 * WINDOW_MESSAGES):
            if number == len(sent):
                await trio.testing.wait_all_tasks_blocked()
            assert number < len(sent) <= number + WINDOW_MESSAGES
            talk.rpc.written(0)
