"""What is said to NATS, and heard: by a server of a few lines, and the real one where it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from hadron.bench.nats import nats, nats_server
from hadron.model.errors import HadronError


class FakeServer:
    """Subjects end with what they are, or with `*` for one word; all on one connection."""

    def __init__(self, stream: trio.SocketStream, chunk: int) -> None:
        self._stream = stream
        self._chunk = chunk
        self._subscribed: list[tuple[bytes, bytes]] = []

    async def run(self) -> None:
        data = b""
        await self._send(b'INFO {"server_id":"fake"}\r\n')
        while some := await self._stream.receive_some():
            data += some
            while b"\r\n" in data:
                line, _, rest = data.partition(b"\r\n")
                kind, *words = line.split(b" ")
                if kind == b"PUB":
                    size = int(words[-1])
                    if len(rest) < size + 2:
                        break
                    await self._publish(words, rest[:size])
                    rest = rest[size + 2 :]
                elif kind == b"SUB":
                    self._subscribed.append((words[0], words[1]))
                elif kind == b"PING":
                    await self._send(b"PING\r\nPONG\r\n")
                elif kind not in (b"CONNECT", b"PONG"):
                    await self._send(b"-ERR 'Unknown Protocol Operation'\r\n")
                data = rest

    async def _publish(self, words: list[bytes], payload: bytes) -> None:
        for pattern, number in self._subscribed:
            if pattern == words[0] or pattern == words[0].rpartition(b".")[0] + b".*":
                reply = words[1] + b" " if len(words) == 3 else b""
                head = b"MSG %s %s %s%d\r\n" % (words[0], number, reply, len(payload))
                await self._send(head + payload + b"\r\n")

    async def _send(self, data: bytes) -> None:
        for start in range(0, len(data), self._chunk):
            await self._stream.send_all(data[start : start + self._chunk])


@asynccontextmanager
async def served(chunk: int) -> AsyncIterator[int]:
    async def serve(stream: trio.SocketStream) -> None:
        await FakeServer(stream, chunk).run()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def exchange(port: int) -> None:
    async with nats(port) as connection:
        heard: list[tuple[str, str, bytes]] = []
        connection.subscribe("a.*", lambda *told: heard.append(told))
        connection.subscribe("echo", lambda _, reply, data: connection.publish(reply, data))
        connection.publish("a.b", b"one\r\ntwo")
        connection.publish("a.c", b"", "there")
        assert await connection.request("echo", b"three") == b"three"
        assert await connection.request("echo", b"") == b""
        await connection.flush()
        assert heard == [("a.b", "", b"one\r\ntwo"), ("a.c", "there", b"")]


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
async def test_messages_are_parted_wherever_the_wire_parts_them(chunk: int) -> None:
    with trio.fail_after(30):
        async with served(chunk) as port:
            await exchange(port)


async def test_what_the_server_complains_of_is_said() -> None:
    async def say() -> None:
        async with served(100) as port, nats(port) as connection:
            connection._say(b"NONSENSE\r\n")
            await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        await say()
    assert caught.group_contains(HadronError, match="Unknown Protocol Operation")


async def test_the_real_one() -> None:
    with nats_server() as found:
        if found is None:
            pytest.skip("nats-server is not installed")
        await exchange(found[0])
