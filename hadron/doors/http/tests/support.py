"""Nodes with doors, and programs that speak HTTP to them, on a network in memory."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import h2.connection
import h2.events
import httpcore
import httpx
import trio

from hadron.client import Client
from hadron.fakes.network import SimNetwork
from hadron.model.ports import Network, Transport
from hadron.model.schema import SchemaObject, Spec
from hadron.testing.nodes import CLIENT, Nodes, replica_set

HTTP_PORT = 7200
NDJSON = {"content-type": "application/x-ndjson"}


def nodes_with_doors(directory: Path, count: int, nursery: trio.Nursery) -> Nodes:
    """A replica set whose nodes all serve HTTP."""
    config = replica_set(directory, count)
    doors = tuple(replace(each, http=f"{each.name}:{HTTP_PORT}") for each in config.nodes)
    return Nodes(directory, count, nursery, config=replace(config, nodes=doors))


@asynccontextmanager
async def serving(nodes: Nodes) -> AsyncIterator[httpx.AsyncClient]:
    """All of them started; a program that speaks to the leader's door, and a stream `s`."""
    await nodes.start()
    await nodes.wait_serving()
    async with http_of(nodes, "n1") as http:
        assert (await http.put("/v1/streams/s")).status_code == 200
        yield http


async def declare(client: Client, kind: str, name: str, spec: Spec) -> None:
    await client.apply([SchemaObject(kind=kind, name=name, spec=spec)])


def http_of(nodes: Nodes, name: str, **options: Any) -> httpx.AsyncClient:
    """A program that speaks to one node's door."""
    return http_at(nodes.network.host(CLIENT), f"{name}:{HTTP_PORT}", **options)


def http_at(network: Network, address: str, *, http2: bool = False) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport()
    transport._pool = httpcore.AsyncConnectionPool(
        http1=not http2, http2=http2, network_backend=_Backend(network)
    )
    return httpx.AsyncClient(
        transport=transport, base_url=f"http://{address}", timeout=60, trust_env=False
    )


async def raw(network: SimNetwork, address: str, *pieces: bytes) -> bytes:
    """All that comes for these bytes, up to the end of the connection."""
    transport = await network.host(CLIENT).dial(address)
    try:
        stream = _Stream(transport)
        for piece in pieces:
            await stream.write(piece)
        return await received(stream)
    finally:
        transport.close()


async def received(stream: _Stream) -> bytes:
    parts = []
    while data := await stream.read(1 << 16):
        parts.append(data)
    return b"".join(parts)


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        buffer = bytearray(max_bytes)
        with trio.fail_after(timeout or 120):
            try:
                size = await self._transport.receive_into(memoryview(buffer))
            except OSError as error:
                raise httpcore.ReadError(str(error)) from error
        return bytes(buffer[:size])

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        left = memoryview(buffer)
        with trio.fail_after(timeout or 120):
            try:
                while left:
                    left = left[self._transport.send_some([left]) :]
                    if left:
                        await self._transport.wait_writable()
            except OSError as error:
                raise httpcore.WriteError(str(error)) from error

    async def aclose(self) -> None:
        self._transport.close()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        raise NotImplementedError

    def get_extra_info(self, info: str) -> Any:  # noqa: ARG002 - there is none of any kind
        return None


class Http2:
    """A program that speaks HTTP/2 by hand, and what it was answered, by stream.

    Attributes:
        whole: whose answers have ended.
        resets: how those have ended that were cut off, or taken back.
        pause_s: before more may come.
    """

    def __init__(self, stream: _Stream, host: str) -> None:
        self.stream = stream
        self._host = host
        self.h2 = h2.connection.H2Connection()
        self.statuses: dict[int, int] = {}
        self.bodies: dict[int, bytes] = {}
        self.whole: set[int] = set()
        self.resets: dict[int, int] = {}
        self.ended: h2.events.ConnectionTerminated | None = None
        self.pause_s = 0.0
        self.h2.initiate_connection()

    async def flush(self) -> None:
        await self.stream.write(self.h2.data_to_send())

    async def ask(self, method: str, path: str, *, end: bool = False, **headers: str) -> int:
        """Begin a request, which has no body where that is its `end`. Returns its stream."""
        number = self.h2.get_next_available_stream_id()
        head = {":method": method, ":scheme": "http", ":authority": self._host, ":path": path}
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        self.h2.send_headers(number, [*head.items(), *said.items()], end_stream=end)
        await self.flush()
        return number

    async def send(self, number: int, *parts: bytes, end: bool = False) -> None:
        """Each part in a frame of its own."""
        for part in parts:
            self.h2.send_data(number, part)
        if end:
            self.h2.end_stream(number)
        await self.flush()

    async def run(self) -> None:
        """Hear what is answered, up to the end of the connection."""
        while data := await self.stream.read(1 << 16):
            for event in self.h2.receive_data(data):
                self._heard(event)
            await trio.sleep(self.pause_s)
            await self.flush()

    def _heard(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ResponseReceived):
            self.statuses[event.stream_id] = int(dict(event.headers)[b":status"])
        elif isinstance(event, h2.events.DataReceived):
            self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self.whole.add(event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            self.resets[event.stream_id] = event.error_code
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.ended = event


class _Backend(httpcore.AsyncNetworkBackend):
    def __init__(self, network: Network) -> None:
        self._network = network

    async def connect_tcp(
        self, host: str, port: int, *_others: Any, **_options: Any
    ) -> httpcore.AsyncNetworkStream:
        try:
            return _Stream(await self._network.dial(f"{host}:{port}"))
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


class Events:
    """What an `EventSource` makes of server-sent events, over one connection after the other.

    Attributes:
        data: of events that have no kind.
        others: kind and data of those that have one.
    """

    def __init__(self) -> None:
        self.data: list[Any] = []
        self.others: list[tuple[str, Any]] = []
        self.last_id = ""
        self.comments = 0
        self.connected = 0
        self._given: dict[str, str] = {}

    async def follow(
        self, http: httpx.AsyncClient, path: str, params: Mapping[str, str] | None = None
    ) -> None:
        """Over one connection, until it ends."""
        headers = {"last-event-id": self.last_id} if self.last_id else {}
        async with http.stream("GET", path, params=params, headers=headers) as answer:
            if answer.status_code != 200:
                raise RuntimeError(f"{answer.status_code} {await answer.aread()!r}")
            assert answer.headers["content-type"] == "text/event-stream"
            self.connected += 1
            self._given = {}
            async for line in answer.aiter_lines():
                self._line(line)

    def feed(self, text: str) -> None:
        for line in text.splitlines():
            self._line(line)

    def _line(self, line: str) -> None:
        if line.startswith(":"):
            self.comments += 1
        elif line:
            name, _, value = line.partition(": ")
            self._given[name] = value
        else:
            given, self._given = self._given, {}
            self.last_id = given.get("id", self.last_id)
            if "data" in given:
                data = json.loads(given["data"])
                if "event" in given:
                    self.others.append((given["event"], data))
                else:
                    self.data.append(data)


async def until(what: str, holds: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not holds():  # noqa: ASYNC110 - it is somebody else's event
            await trio.sleep(0.01)
    assert holds(), what
