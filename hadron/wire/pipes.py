"""The transport port in memory: a connection between two parts of one process.

For a node's own doors, which talk to it as any client does: the same frames, calls, bounds and
failovers, without a socket. What waits on the way is bounded as in a socket's buffers.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Final

import anyio
import anyio.lowlevel

_BUFFER_BYTES: Final = 1 << 20
"""What one direction holds before its sender waits. A batch and its frame go in one piece."""

_EAGER_READS: Final = 16
"""Reads in a row that do not give other tasks a turn, as with sockets."""


class _Pipe:
    """One direction."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.is_finished = False
        """Nothing more is written."""
        self.is_abandoned = False
        """Nothing more is read."""
        self._changed = anyio.Event()

    def put(self, chunks: Sequence[bytes | bytearray | memoryview]) -> int:
        if self.is_abandoned:
            raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))
        sent = 0
        for chunk in chunks:
            room = _BUFFER_BYTES - len(self._data)
            if room <= 0:
                break
            part = memoryview(chunk)[:room]
            self._data += part
            sent += len(part)
            if len(part) < len(chunk):
                break
        if sent:
            self.tell()
        return sent

    def take(self, buffer: memoryview) -> int | None:
        """How much there was; 0 is the end, None nothing yet."""
        if not self._data:
            return 0 if self.is_finished else None
        size = min(len(buffer), len(self._data))
        with memoryview(self._data) as held:
            buffer[:size] = held[:size]
        was_full = len(self._data) >= _BUFFER_BYTES
        del self._data[:size]
        if was_full:
            self.tell()
        return size

    @property
    def is_writable(self) -> bool:
        return self.is_abandoned or len(self._data) < _BUFFER_BYTES

    def tell(self) -> None:
        # Replaced by who sets it: who waits looks again, and takes the new one first.
        self._changed.set()
        self._changed = anyio.Event()

    async def wait(self) -> None:
        await self._changed.wait()


class PipeTransport:
    """`ports.Transport`: one end."""

    def __init__(self, peer: str, incoming: _Pipe, outgoing: _Pipe) -> None:
        self.peer = peer
        self._incoming = incoming
        self._outgoing = outgoing
        self._is_closed = False
        self._eager_reads = 0

    async def receive_into(self, buffer: memoryview) -> int:
        while True:
            self._check_open()
            if self._eager_reads < _EAGER_READS:
                self._eager_reads += 1
                taken = self._incoming.take(buffer)
                if taken is not None:
                    return taken
                await self._incoming.wait()
            else:
                await anyio.lowlevel.checkpoint()
            self._eager_reads = 0

    def send_some(self, chunks: Sequence[bytes | bytearray | memoryview]) -> int:
        self._check_open()
        return self._outgoing.put(chunks)

    async def wait_writable(self) -> None:
        await anyio.lowlevel.checkpoint()
        while not self._outgoing.is_writable:
            self._check_open()
            await self._outgoing.wait()
        self._check_open()

    def close(self) -> None:
        """The other end gets what was sent before, then the end."""
        if not self._is_closed:
            self._is_closed = True
            self._outgoing.is_finished = True
            self._incoming.is_abandoned = True
            self._outgoing.tell()
            self._incoming.tell()

    def _check_open(self) -> None:
        if self._is_closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def pipe(dialing: str, listening: str) -> tuple[PipeTransport, PipeTransport]:
    """Both ends of a connection: who has dialed, and who listens, each called so by the other."""
    there, back = _Pipe(), _Pipe()
    return PipeTransport(listening, back, there), PipeTransport(dialing, there, back)
