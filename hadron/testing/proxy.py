"""A TCP proxy that breaks connections on purpose: between two nodes, or a client and a node.

    with FaultProxy(log) as proxy:
        proxy.open("n1>n2", "127.0.0.1:20001", target="127.0.0.1:20002")
        proxy.set("n1>n2", there=CUT)

Every link listens on a port of its own and forwards to one target, so each pair of processes can be
cut apart. The forwarding runs in a process of its own: a test that blocks, or is busy, delays no
byte. Ordering rule: a command is in force when its method returns. What a cut holds back is
delivered, in order, after it is lifted, ends and resets of connections included; that is where late
messages come from, as with TCP's retransmissions.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec
import trio

from hadron.wire.sockets import split_address

_CHUNK_BYTES: Final = 64 << 10
_CHUNKS_UNDER_WAY: Final = 64
"""Held per direction before the sender's own buffers fill: 4 MiB, a few TCP windows."""

_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER with a time of 0: closing sends RST, and the other side sees an error."""


class Weather(msgspec.Struct, frozen=True):
    """How one direction of a link treats bytes.

    Attributes:
        cut: hold everything back until the weather changes.
        delay_s: what arrives now is delivered so many seconds later.
        bytes_per_s: at most this fast; None is as fast as it goes.
        breaks_after: a connection is reset, in the middle of whatever comes, once it has carried so
            many bytes; None never.
    """

    cut: bool = False
    delay_s: float = 0.0
    bytes_per_s: int | None = None
    breaks_after: int | None = None


CLEAR: Final = Weather()
CUT: Final = Weather(cut=True)


class Traffic(msgspec.Struct):
    """What a link has carried: connections accepted, and bytes delivered each way."""

    connections: int = 0
    there: int = 0
    back: int = 0


class Open(msgspec.Struct, tag=True):
    """Listen at `address` and forward to `target`."""

    link: str
    address: str
    target: str


class Set(msgspec.Struct, tag=True):
    """Change a link's weather; `refuse` closes its port to new connections."""

    link: str
    there: Weather
    back: Weather
    refuse: bool


class Reset(msgspec.Struct, tag=True):
    """Break a link's connections under both sides."""

    link: str


class Report(msgspec.Struct, tag=True):
    """Answer with the link's traffic."""

    link: str


class Answer(msgspec.Struct):
    """To any command; `error` is "" when it was done."""

    error: str = ""
    traffic: Traffic | None = None


class ProxyError(Exception):
    """The proxy did not do what it was told."""


class FaultProxy:
    """The proxy's process, and its commands. Ends with the block, and with whoever started it.

    Args:
        log: where the process writes what it has to say; nothing, as a rule.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hadron.testing.proxy"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def open(self, link: str, address: str, *, target: str) -> None:
        """Listen at `address` (`host:port`) and forward every connection to `target`."""
        self._do(Open(link, address, target))

    def set(
        self, link: str, *, there: Weather = CLEAR, back: Weather = CLEAR, refuse: bool = False
    ) -> None:
        """Change how a link treats its bytes: `there` is from whoever dials to the target.

        Args:
            refuse: new connections find nobody listening; those that are open stay.
        """
        self._do(Set(link, there, back, refuse))

    def reset(self, link: str) -> None:
        """Break every connection of a link: both sides see an error."""
        self._do(Reset(link))

    def traffic(self, link: str) -> Traffic:
        """What the link has carried so far."""
        traffic = self._do(Report(link)).traffic
        assert traffic is not None
        return traffic

    def _do(self, command: Open | Set | Reset | Report) -> Answer:
        process = self._process
        if process is None:
            raise ProxyError("the proxy runs inside its block only")
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(command) + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError as error:
            raise ProxyError(f"the proxy has ended: {self._log.read_text()}") from error
        if not line:
            raise ProxyError(f"the proxy has ended: {self._log.read_text()}")
        answer = msgspec.json.decode(line, type=Answer)
        if answer.error:
            raise ProxyError(f"{command}: {answer.error}")
        return answer


# --- inside the process ---------------------------------------------------------------------------


class _Way:
    """One direction of a link."""

    def __init__(self) -> None:
        self.weather = CLEAR
        self._changed = trio.Event()

    def change(self, weather: Weather) -> None:
        self.weather = weather
        self._changed.set()
        self._changed = trio.Event()

    async def wait_open(self) -> None:
        """Until nothing is held back."""
        while self.weather.cut:
            await self._changed.wait()


class _Link:
    """One listening port and the connections that came through it."""

    def __init__(self, command: Open) -> None:
        self._address = split_address(command.address)
        self._target = split_address(command.target)
        self._there, self._back = _Way(), _Way()
        self._open: dict[_Connection, None] = {}
        self._listener: trio.socket.SocketType | None = None
        """None while new connections are refused."""
        self._nursery: trio.Nursery
        self.traffic = Traffic()

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Accept and forward for ever. `task_status` is told when the port is open."""
        self._listener = await self._listen()
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._accept, self._listener)
            task_status.started()
            await trio.sleep_forever()

    async def _accept(self, listener: trio.socket.SocketType) -> None:
        with listener:
            while True:
                try:
                    accepted, _ = await listener.accept()
                except (OSError, trio.ClosedResourceError):
                    if listener is self._listener:
                        raise
                    # It was closed, and perhaps another one is open by now.
                    return
                self._nursery.start_soon(self._forward, trio.SocketStream(accepted))

    async def _listen(self) -> trio.socket.SocketType:
        listener = trio.socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            await listener.bind(self._address)
        except OSError:
            listener.close()
            raise
        listener.listen(512)
        return listener

    async def set(self, command: Set) -> None:
        self._there.change(command.there)
        self._back.change(command.back)
        if self._listener is None and not command.refuse:
            self._listener = await self._listen()
            self._nursery.start_soon(self._accept, self._listener)
        elif self._listener is not None and command.refuse:
            self._listener.close()
            self._listener = None

    async def reset(self) -> None:
        broken = list(self._open)
        for connection in broken:
            connection.reset()
        for connection in broken:
            await connection.ended.wait()

    async def _forward(self, accepted: trio.SocketStream) -> None:
        self.traffic.connections += 1
        connection = _Connection(accepted, self._target, self._there, self._back, self.traffic)
        self._open[connection] = None
        try:
            await connection.run()
        finally:
            del self._open[connection]


class _Connection:
    """Two sockets, and what is under way between them."""

    def __init__(
        self,
        accepted: trio.SocketStream,
        target: tuple[str, int],
        there: _Way,
        back: _Way,
        traffic: Traffic,
    ) -> None:
        self._accepted = accepted
        self._target = target
        self._there, self._back = there, back
        self._traffic = traffic
        self._scope = trio.CancelScope()
        self._was_reset = False
        self.ended = trio.Event()

    def reset(self) -> None:
        """Break it under both sides, whatever the weather."""
        self._was_reset = True
        self._scope.cancel()

    async def run(self) -> None:
        streams = [self._accepted]
        try:
            with self._scope:
                await self._there.wait_open()
                dialed = await self._dial()
                if dialed is None:
                    await self._back.wait_open()
                    self._was_reset = True
                    return
                streams.append(dialed)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._carry, self._accepted, dialed, self._there, "there")
                    nursery.start_soon(self._carry, dialed, self._accepted, self._back, "back")
        finally:
            for stream in streams:
                if self._was_reset:
                    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                stream.socket.close()
            self.ended.set()

    async def _dial(self) -> trio.SocketStream | None:
        """A connection to the target; None when nobody listens there."""
        dialed = trio.socket.socket()
        try:
            await dialed.connect(self._target)
        except OSError:
            dialed.close()
            return None
        except BaseException:
            dialed.close()
            raise
        return trio.SocketStream(dialed)

    async def _carry(
        self, source: trio.SocketStream, sink: trio.SocketStream, way: _Way, direction: str
    ) -> None:
        send, receive = trio.open_memory_channel[tuple[float, bytes | None]](_CHUNKS_UNDER_WAY)
        carried = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_collect, source, send, way)
            async with receive:
                async for due, data in receive:
                    if due > trio.current_time():
                        await trio.sleep_until(due)
                    await way.wait_open()
                    limit = way.weather.breaks_after
                    if data is not None and limit is not None:
                        data = data[: max(limit - carried, 0)] or None
                        carried += len(data or b"")
                    if data is None:
                        self.reset()
                    elif await _deliver(sink, data):
                        count = getattr(self._traffic, direction) + len(data)
                        setattr(self._traffic, direction, count)
                    if data and (rate := way.weather.bytes_per_s):
                        await trio.sleep(len(data) / rate)


async def _collect(
    source: trio.SocketStream, send: trio.MemorySendChannel[tuple[float, bytes | None]], way: _Way
) -> None:
    """Read to the end; an empty chunk stands for the end, None for a connection that broke."""
    data: bytes | None = b""
    async with send:
        while True:
            try:
                data = await source.receive_some(_CHUNK_BYTES)
            except trio.BrokenResourceError:
                data = None
            await send.send((trio.current_time() + way.weather.delay_s, data))
            if not data:
                return


async def _deliver(sink: trio.SocketStream, data: bytes) -> bool:
    """Whether the sink took it. One that is gone is heard of by what is read from it."""
    try:
        if data:
            await sink.send_all(data)
        else:
            await sink.send_eof()
    except (trio.BrokenResourceError, OSError):
        return False
    return True


async def _obey(
    command: Open | Set | Reset | Report, links: dict[str, _Link], nursery: trio.Nursery
) -> Answer:
    if isinstance(command, Open):
        link = _Link(command)
        await nursery.start(link.run)
        links[command.link] = link
        return Answer()
    link = links[command.link]
    if isinstance(command, Set):
        await link.set(command)
    elif isinstance(command, Reset):
        await link.reset()
    return Answer(traffic=link.traffic)


async def _main() -> None:
    """Obey the commands that come by standard input, until it ends."""
    decode = msgspec.json.Decoder(Open | Set | Reset | Report).decode
    links: dict[str, _Link] = {}
    read_line = partial(trio.to_thread.run_sync, sys.stdin.buffer.readline)
    async with trio.open_nursery() as nursery:
        while line := await read_line():
            try:
                answer = await _obey(decode(line), links, nursery)
            except KeyError as error:
                answer = Answer(f"there is no link {error}")
            except OSError as error:
                answer = Answer(f"{errno.errorcode.get(error.errno or 0, '')} {error}")
            sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
            sys.stdout.buffer.flush()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(_main)
