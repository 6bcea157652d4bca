"""NATS beside Hadron: its server, where it is installed, and as much of a client as is compared.

Both sides are programs in Python that say what one turn of theirs has to say in one write, so what
differs is the server and what it promises. NATS is told of in its own words
(docs.nats.io/reference/reference-protocols/nats-protocol).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import anyio
from anyio.abc import SocketStream

from hadron.bench.stats import ProcessUse
from hadron.model.errors import HadronError
from hadron.node.supervision.cluster import free_ports
from hadron.node.supervision.processes import environment, leashed, wait_until

_HOST: Final = "127.0.0.1"
_START_S: Final = 10.0
_READ_BYTES: Final = 64 << 10
_CONNECT: Final = b'CONNECT {"verbose":false,"pedantic":false,"lang":"python","protocol":1}\r\n'
_INBOX: Final = "_INBOX.hadron."

Handle = Callable[[str, str, bytes], None]
"""Takes a message's subject, where an answer goes, or "", and the payload."""


@contextmanager
def nats_server() -> Iterator[tuple[int, ProcessUse] | None]:
    """One that runs within this block: its port, and what it uses. None where it is not installed.

    To be entered by the main thread (`bench.beside`). Raises `HadronError` when it does not start.
    """
    program = shutil.which("nats-server")
    if program is None:
        yield None
        return
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="hadron-nats-") as directory:
        ports = os.path.join(directory, "ports")
        os.mkdir(ports)
        process = subprocess.Popen(
            leashed([program, "-a", _HOST, "-p", str(port), "--ports_file_dir", ports]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(),
        )
        try:
            # It writes that file once it listens.
            if not wait_until(lambda: bool(os.listdir(ports)), _START_S):
                raise HadronError(f"{program} does not listen on port {port}")
            yield port, ProcessUse(process.pid)
        finally:
            process.kill()
            process.wait()


class Nats:
    """A connection; `nats` makes one."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._unsent: list[bytes] = [_CONNECT]
        self._has_unsent = anyio.Event()
        self._handles: list[Handle] = []
        self._pongs: deque[anyio.Event] = deque()
        self._asked = 0
        self._answers: dict[str, Callable[[bytes], None]] = {}

    def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        self._say(f"PUB {subject} {reply} {len(data)}\r\n".encode() + data + b"\r\n")

    def subscribe(self, subject: str, handle: Handle) -> None:
        self._handles.append(handle)
        self._say(f"SUB {subject} {len(self._handles) - 1}\r\n".encode())

    async def request(self, subject: str, data: bytes) -> bytes:
        if not self._asked:
            self.subscribe(_INBOX + "*", self._answered)
        self._asked += 1
        inbox = f"{_INBOX}{self._asked}"
        done, found = anyio.Event(), list[bytes]()

        def answer(data: bytes) -> None:
            found.append(data)
            done.set()

        self._answers[inbox] = answer
        self.publish(subject, data, inbox)
        await done.wait()
        return found[0]

    async def flush(self) -> None:
        """Until the server has dealt with all that was said."""
        self._pongs.append(anyio.Event())
        self._say(b"PING\r\n")
        await self._pongs[-1].wait()

    def _answered(self, subject: str, _reply: str, data: bytes) -> None:
        self._answers.pop(subject)(data)

    def _say(self, data: bytes) -> None:
        self._unsent.append(data)
        self._has_unsent.set()

    async def send(self) -> None:
        """What is said, for ever: in one write what one turn has said."""
        while True:
            await self._has_unsent.wait()
            self._has_unsent = anyio.Event()
            data, self._unsent = b"".join(self._unsent), []
            await self._stream.send(data)

    async def receive(self) -> None:
        """What comes, for ever."""
        data = b""
        while True:
            data += await self._stream.receive(_READ_BYTES)
            place = 0
            while (end := data.find(b"\r\n", place)) >= 0:
                kind, *words = data[place:end].split(b" ")
                after = end + 2
                if kind == b"MSG":
                    size = int(words[-1])
                    if len(data) < after + size + 2:
                        break
                    reply = words[2].decode() if len(words) == 4 else ""
                    payload = data[after : after + size]
                    self._handles[int(words[1])](words[0].decode(), reply, payload)
                    after += size + 2
                elif kind == b"PING":
                    self._say(b"PONG\r\n")
                elif kind == b"PONG":
                    self._pongs.popleft().set()
                elif kind == b"-ERR":
                    raise HadronError(f"NATS says {data[place:end].decode()}")
                place = after
            data = data[place:]


@asynccontextmanager
async def nats(port: int) -> AsyncIterator[Nats]:
    async with await anyio.connect_tcp(_HOST, port) as stream:
        connection = Nats(stream)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connection.send)
            tasks.start_soon(connection.receive)
            await connection.flush()
            yield connection
            tasks.cancel_scope.cancel()
