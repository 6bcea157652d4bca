"""The network port over real TCP sockets, on trio and asyncio alike.

Plain non-blocking sockets, awaited with anyio's readiness functions: a send is tried at once from
wherever the program is, because waking a task just to send costs 30 to 50 µs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

import anyio
import anyio.lowlevel

from hadron.model.errors import ConfigurationError, RequestError

_EAGER_READS = 16
"""Reads in a row that may skip the event loop before other tasks get a turn."""

_EAGER_ACCEPTS = 16
"""Connections in a row that are accepted before other tasks get a turn: those that are refused have
to close theirs, and whoever dials all the time must not have the loop for itself."""

_GATHER = 64
"""Chunks per gathering write; Linux takes 1,024, more than 64 gains nothing measurable."""

_OWN_FILES: Final = 256
"""File descriptors that are left for databases, logs and the connections that a node opens."""

_MANY_FILES: Final = 1 << 16

_LEAST_FILES: Final = 128
"""Databases, logs and peers of a small cluster, and some clients."""

_SILENCE_S: Final = 60
"""After which who has accepted a connection takes the other host for gone, where its system does
not answer either. Laptops that sleep for a moment stay; proxies cut after as long."""

DOOR_CONNECTIONS: Final = 1_000
"""At most, over HTTP, and over gRPC. An idle one costs some 10 kB."""

_FILES: Final = "/proc/self/fd"
_CONNECTIONS: Final = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")

_open: WeakSet[SocketTransport] = WeakSet()


def _close_in_child() -> None:
    """After `fork()`: the connections are the parent's. A copy that stays open here keeps them open
    when the parent closes them, and what is written to it would be taken for the parent's."""
    for transport in list(_open):
        transport.close_copy()


os.register_at_fork(after_in_child=_close_in_child)


def allow_many_files() -> None:
    """Raise this process's soft limit of open files as far as it may itself: shells have 1,024,
    which a thousand idle strangers would use up. Raises `ConfigurationError` where a node cannot do
    with what it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MANY_FILES if hard < 0 else min(hard, _MANY_FILES)
    if 0 < soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if 0 < soft < _LEAST_FILES:
        raise ConfigurationError(
            f"this process may have {soft} files open, and a node needs {_LEAST_FILES}",
            "raise that limit (`ulimit -n`, or LimitNOFILE= where systemd starts it)",
        )


def most_connections(doors: int = 0) -> int:
    """How many may be accepted over frames, beside what so many other doors may accept: strangers
    must not take the last file descriptors from what the process needs for itself."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(64, soft - _OWN_FILES) if soft > 0 else sys.maxsize
    return most - doors * _share(most)


def most_at_door() -> int:
    """The same, of HTTP or of gRPC: both, and frames, may be full at a time."""
    return _share(most_connections())


def _share(most: int) -> int:
    return min(DOOR_CONNECTIONS, most // 4)


def about_open_files() -> str:
    """What people must know where there are too many connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"this process may have {soft} files open: if the connections are yours, raise that limit "
        "(`ulimit -n`, or LimitNOFILE= where systemd starts it)"
    )


def accepted_at(port: int, at_least: int) -> int:
    """How many connections of this process, which were accepted at `port`, are open. 0 where there
    cannot be `at_least` so many, which costs next to nothing, or the system does not tell: Linux
    does. Blocks."""
    try:
        files = os.listdir(_FILES)
        if len(files) < at_least:
            return 0
        mine = set(filter(None, map(_inode_of, files)))
        tables = b"".join(Path(each).read_bytes() for each in _CONNECTIONS if Path(each).exists())
    except OSError:
        return 0
    # Local address, the other one (whose port is 0 where it listens), state, five more, inode. Who
    # has dialed has the port on the other side.
    accepted = rb"\d: [0-9A-F]+:%04X [0-9A-F]+:(?!0000)[0-9A-F]+(?: +\S+){6} +(\d+)" % port
    return sum(inode in mine for inode in re.findall(accepted, tables))


def _inode_of(file: str) -> bytes | None:
    """Of a socket; None for another file, and one that was closed meanwhile."""
    try:
        found = _SOCKET.fullmatch(os.readlink(f"{_FILES}/{file}"))
    except OSError:
        return None
    return found[1].encode() if found else None


def split_address(address: str) -> tuple[str, int]:
    """`host:port` as a pair. Raises `RequestError` naming the address."""
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdecimal() or not port.isascii() or int(port) > 65535:
        raise RequestError(f"{address!r} is not an address", "write it as host:port")
    return host.strip("[]"), int(port)


def bind_address(address: str) -> tuple[socket.AddressFamily, Any]:
    """The family of a socket that is to listen there, and what to bind it to. A name's IPv4 address
    comes first. Raises `OSError` for a name that is not known."""
    host, port = split_address(address)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, where = min(found, key=lambda each: each[0] != socket.AF_INET)
    return family, where


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _notice_silence(accepted: socket.socket) -> None:
    """Have the system find out who has vanished without a word: who has nothing to say to them
    would never notice. (What is said and not heard is sent again for a quarter of an hour, as the
    system has it: a shorter time would also end who reads slowly.)"""
    options = {"TCP_KEEPIDLE": _SILENCE_S // 2, "TCP_KEEPINTVL": _SILENCE_S // 6, "TCP_KEEPCNT": 3}
    with contextlib.suppress(OSError):
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            # Not every system has all of them.
            if (option := getattr(socket, name, None)) is not None:
                accepted.setsockopt(socket.IPPROTO_TCP, option, value)


class SocketTransport:
    """`ports.Transport` over one connected TCP socket."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        _open.add(self)
        self._eager_reads = 0
        try:
            host, port = sock.getpeername()[:2]
            self.peer = format_address(host, port)
        except OSError:
            self.peer = "unknown"

    async def receive_into(self, buffer: memoryview) -> int:
        while True:
            if self._eager_reads < _EAGER_READS:
                self._eager_reads += 1
                try:
                    count = self._socket.recv_into(buffer)
                except BlockingIOError:
                    pass
                else:
                    if count < len(buffer):
                        # That was all there is: to be refused the next time costs two microseconds.
                        self._eager_reads = _EAGER_READS
                    return count
            self._eager_reads = 0
            if self._socket.fileno() < 0:
                raise OSError(errno.EBADF, "closed")
            try:
                await anyio.wait_readable(self._socket)
            except anyio.ClosedResourceError as error:
                raise OSError("closed") from error

    def send_some(self, chunks: Sequence[bytes | bytearray | memoryview]) -> int:
        try:
            if len(chunks) == 1:
                return self._socket.send(chunks[0])
            return self._socket.sendmsg(chunks[:_GATHER])
        except BlockingIOError:
            return 0

    async def wait_writable(self) -> None:
        if self._socket.fileno() < 0:
            raise OSError(errno.EBADF, "closed")
        try:
            await anyio.wait_writable(self._socket)
        except anyio.ClosedResourceError as error:
            raise OSError("closed") from error

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            anyio.notify_closing(self._socket)
            self._socket.close()

    def close_copy(self) -> None:
        """Close this process's copy of the socket, behind the event loop's back."""
        self._socket.close()


class SocketListener:
    """`ports.Listener` over one listening TCP socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        host, port = sock.getsockname()[:2]
        self.address = format_address(host, port)
        self._eager_accepts = 0

    async def accept(self) -> SocketTransport:
        if self._eager_accepts >= _EAGER_ACCEPTS:
            self._eager_accepts = 0
            # Before one is taken: whoever is cancelled here loses none.
            await anyio.lowlevel.checkpoint()
        while True:
            try:
                connected, _ = self._socket.accept()
            except BlockingIOError:
                self._eager_accepts = 0
                try:
                    await anyio.wait_readable(self._socket)
                except anyio.ClosedResourceError as error:
                    raise OSError("closed") from error
                continue
            except ConnectionAbortedError:
                continue
            self._eager_accepts += 1
            _notice_silence(connected)
            return SocketTransport(connected)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            anyio.notify_closing(self._socket)
            self._socket.close()


class SocketNetwork:
    """`ports.Network` over TCP."""

    async def dial(self, address: str) -> SocketTransport:
        host, port = split_address(address)
        try:
            stream = await anyio.connect_tcp(host, port)
        except OSError as error:
            raise _with_reason(error) from error
        except UnicodeError as error:
            # What cannot be looked up is nobody's address, as one that is looked up in vain.
            raise OSError(f"{host!r} is no host's name: {error}") from error
        except RuntimeError as error:
            if "shutdown" not in str(error):
                raise
            # Of asyncio, which looks names up in threads.
            raise OSError(f"{host} is not looked up any more: the program is ending") from error
        raw: socket.socket = stream.extra(anyio.abc.SocketAttribute.raw_socket)
        # The readiness functions own the socket from here on: a duplicate, so that closing
        # anyio's stream leaves it open.
        own = raw.dup()
        try:
            await stream.aclose()
        except BaseException:
            own.close()
            raise
        return SocketTransport(own)

    async def listen(self, address: str) -> SocketListener:
        family, where = bind_address(address)
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(where)
            sock.listen(512)
        except OSError:
            sock.close()
            raise
        sock.setblocking(False)
        return SocketListener(sock)


def _with_reason(error: OSError) -> OSError:
    """What stands behind an error of connecting, in the system's own words: the library says that
    all attempts failed, or repeats the address."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror):
            return cause
        if isinstance(cause, OSError) and cause.errno is not None:
            return OSError(cause.errno, os.strerror(cause.errno))
        cause = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause.__cause__
    return error
