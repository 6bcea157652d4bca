"""A network in memory: many nodes in one process, with cuts, delays and broken connections.

It keeps the contract of `ports.Network` as TCP does (one suite tests both): streams are ordered,
nothing is lost while a connection lives, a full buffer takes nothing. A cut holds bytes back
instead of dropping them, as TCP's retransmissions do: after `heal` they arrive, which is where
late messages come from. Time is trio's, so a test's clock rules it.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections import Counter, deque
from collections.abc import Sequence

import trio

_BUFFER_BYTES = 256 << 10
"""What one direction of a connection holds before a sender must wait; about a socket's buffers."""

_EAGER_READS = 16
"""Reads in a row that do not give other tasks a turn, as with real sockets."""

_FIRST_EPHEMERAL_PORT = 40_000


class MemoryNetwork:
    """The wires between hosts. `host(name)` gives the `ports.Network` of one of them.

    An address is `host:port` with the host's name; port 0 takes a free one.
    """

    def __init__(self) -> None:
        self._listeners: dict[str, MemoryListener] = {}
        self._wires: dict[tuple[str, str], _Wire] = {}
        self._transports: dict[MemoryTransport, None] = {}
        self._ports = itertools.count(_FIRST_EPHEMERAL_PORT)
        self._dials: Counter[tuple[str, str]] = Counter()

    def host(self, name: str) -> HostNetwork:
        return HostNetwork(self, name)

    def dials(self, source: str, target: str) -> int:
        """How often `source` has dialed `target`, successfully or not."""
        return self._dials[source, target]

    # --- faults ---------------------------------------------------------------------------------

    def cut_one_way(self, source: str, target: str) -> None:
        """Nothing that `source` sends reaches `target` until `heal`; the other way still works."""
        self._wire(source, target).cut()

    def cut(self, one: str, other: str) -> None:
        """Nothing passes between two hosts, either way, until `heal`."""
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def isolate(self, host: str, *others: str) -> None:
        """Cut `host` off from each of `others`."""
        for other in others:
            self.cut(host, other)

    def heal(self, one: str, other: str) -> None:
        """Undo a cut; what was held back arrives now, in order."""
        self._wire(one, other).mend()
        self._wire(other, one).mend()

    def heal_all(self) -> None:
        for wire in self._wires.values():
            wire.mend()

    def delay(self, source: str, target: str, seconds: float) -> None:
        """What `source` sends from now on takes so long to reach `target`."""
        self._wire(source, target).delay_s = seconds

    def break_connections(self, host: str, other: str | None = None) -> None:
        """Reset every connection of `host`, or those with `other`; both sides see an error."""
        for transport in list(self._transports):
            ends = {transport.own_host, transport.other_host}
            if host in ends and (other is None or ends == {host, other}):
                transport.reset()

    # --- inside ---------------------------------------------------------------------------------

    def _wire(self, source: str, target: str) -> _Wire:
        return self._wires.setdefault((source, target), _Wire())

    def next_port(self) -> int:
        return next(self._ports)

    async def dial(self, source: str, address: str) -> MemoryTransport:
        target = address.rpartition(":")[0]
        self._dials[source, target] += 1
        there, back = self._wire(source, target), self._wire(target, source)
        await there.cross()
        listener = self._listeners.get(address)
        if listener is None:
            raise _os_error(errno.ECONNREFUSED)
        own_address = f"{source}:{self.next_port()}"
        dialing = MemoryTransport(self, source, target, address, _Pipe(back), _Pipe(there))
        accepted = MemoryTransport(
            self, target, source, own_address, dialing.outgoing, dialing.incoming
        )
        for transport in (dialing, accepted):
            self._transports[transport] = None
        listener.arrived(accepted)
        try:
            await back.cross()
        except BaseException:
            dialing.close()
            raise
        return dialing

    def listen(self, host: str, address: str) -> MemoryListener:
        name, _, port = address.rpartition(":")
        if name != host:
            raise _os_error(errno.EADDRNOTAVAIL)
        bound = f"{name}:{int(port) or self.next_port()}"
        if bound in self._listeners:
            raise _os_error(errno.EADDRINUSE)
        listener = self._listeners[bound] = MemoryListener(self, bound)
        return listener

    def unlisten(self, address: str) -> None:
        del self._listeners[address]

    def forget(self, transport: MemoryTransport) -> None:
        self._transports.pop(transport, None)


class HostNetwork:
    """`ports.Network` as one host has it."""

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        self._network = network
        self.name = name

    async def dial(self, address: str) -> MemoryTransport:
        await trio.lowlevel.checkpoint()
        return await self._network.dial(self.name, address)

    async def listen(self, address: str) -> MemoryListener:
        await trio.lowlevel.checkpoint()
        return self._network.listen(self.name, address)


class MemoryListener:
    """`ports.Listener` at one address."""

    def __init__(self, network: MemoryNetwork, address: str) -> None:
        self._network = network
        self.address = address
        self._waiting: deque[MemoryTransport] = deque()
        self._arrival = trio.Event()
        self._closed = False

    def arrived(self, transport: MemoryTransport) -> None:
        self._waiting.append(transport)
        self._arrival.set()

    async def accept(self) -> MemoryTransport:
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            if self._closed:
                raise _os_error(errno.EBADF)
            self._arrival = trio.Event()
            await self._arrival.wait()
        return self._waiting.popleft()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._network.unlisten(self.address)
            while self._waiting:
                self._waiting.popleft().reset()
            self._arrival.set()


class MemoryTransport:
    """`ports.Transport`: one end of a connection."""

    def __init__(
        self,
        network: MemoryNetwork,
        own_host: str,
        other_host: str,
        peer: str,
        incoming: _Pipe,
        outgoing: _Pipe,
    ) -> None:
        self._network = network
        self.own_host = own_host
        self.other_host = other_host
        self.peer = peer
        self.incoming = incoming
        self.outgoing = outgoing
        self._closed = False
        self._eager_reads = 0

    async def receive_into(self, buffer: memoryview) -> int:
        while True:
            if self._closed:
                raise _os_error(errno.EBADF)
            if self._eager_reads < _EAGER_READS:
                self._eager_reads += 1
                taken = self.incoming.take(buffer)
                if taken is not None:
                    return taken
                await self.incoming.wait_readable()
            else:
                await trio.lowlevel.checkpoint()
            self._eager_reads = 0

    def send_some(self, chunks: Sequence[bytes | bytearray | memoryview]) -> int:
        if self._closed:
            raise _os_error(errno.EBADF)
        return self.outgoing.put(chunks)

    async def wait_writable(self) -> None:
        if self._closed:
            raise _os_error(errno.EBADF)
        await self.outgoing.wait_writable()
        if self._closed:
            raise _os_error(errno.EBADF)

    def close(self) -> None:
        """The peer gets what was sent before, then the end."""
        if not self._closed:
            self._closed = True
            self._network.forget(self)
            self.outgoing.finish()
            self.incoming.abandon()

    def reset(self) -> None:
        """Break the connection under both ends at once, whatever the wires do."""
        for pipe in (self.incoming, self.outgoing):
            pipe.break_down()
        self._network.forget(self)


class _Wire:
    """One direction between two hosts."""

    def __init__(self) -> None:
        self.is_cut = False
        self.delay_s = 0.0
        self._mended = trio.Event()
        self._pipes: dict[_Pipe, None] = {}

    def cut(self) -> None:
        if not self.is_cut:
            self.is_cut = True
            self._mended = trio.Event()

    def mend(self) -> None:
        if self.is_cut:
            self.is_cut = False
            self._mended.set()
            for pipe in list(self._pipes):
                pipe.wake()

    async def cross(self) -> None:
        """Wait for as long as something sent now takes."""
        await trio.sleep(self.delay_s)
        while self.is_cut:
            await self._mended.wait()

    def carry(self, pipe: _Pipe) -> None:
        self._pipes[pipe] = None

    def drop(self, pipe: _Pipe) -> None:
        self._pipes.pop(pipe, None)


class _Pipe:
    """Bytes under way in one direction of one connection.

    Each chunk has the time when it arrives; an empty last one is the writer's end. What the
    reader abandons is thrown away, and its writer learns of that when the news could have arrived.
    """

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire
        self._chunks: deque[tuple[float, memoryview]] = deque()
        self._size = 0
        self._finished = False
        self._abandoned = False
        self._broken = False
        self._changed = trio.Event()
        wire.carry(self)

    def wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # --- the writer's side ----------------------------------------------------------------------

    def put(self, chunks: Sequence[bytes | bytearray | memoryview]) -> int:
        if self._broken:
            raise _os_error(errno.ECONNRESET)
        if self._abandoned and not self._wire.is_cut:
            raise _os_error(errno.EPIPE)
        room = _BUFFER_BYTES - self._size
        data = b"".join(bytes(chunk[: max(room, 0)]) for chunk in chunks)[: max(room, 0)]
        if data:
            self._append(data)
        return len(data)

    def finish(self) -> None:
        if not self._finished and not self._broken:
            self._finished = True
            self._append(b"")
        self.wake()

    def _append(self, data: bytes) -> None:
        due = trio.current_time() + self._wire.delay_s
        if self._chunks:
            due = max(due, self._chunks[-1][0])
        self._chunks.append((due, memoryview(data)))
        self._size += len(data)
        self.wake()

    async def wait_writable(self) -> None:
        """Returns as well when the pipe is broken: the next `put` says so."""
        await trio.lowlevel.checkpoint()
        while (
            self._size >= _BUFFER_BYTES
            and not (self._broken or self._finished)
            and not (self._abandoned and not self._wire.is_cut)
        ):
            await self._changed.wait()

    # --- the reader's side ----------------------------------------------------------------------

    def take(self, buffer: memoryview) -> int | None:
        """Bytes that have arrived; 0 at the end; None when there is nothing yet."""
        if self._broken:
            raise _os_error(errno.ECONNRESET)
        if not self._chunks or self._wire.is_cut or self._chunks[0][0] > trio.current_time():
            return None
        due, data = self._chunks[0]
        count = min(len(data), len(buffer))
        if count == 0:
            return 0
        buffer[:count] = data[:count]
        if count == len(data):
            self._chunks.popleft()
        else:
            self._chunks[0] = due, data[count:]
        self._size -= count
        self.wake()
        return count

    async def wait_readable(self) -> None:
        """Until `take` may give something else, or `wake`."""
        changed = self._changed
        if self._chunks and not self._wire.is_cut:
            with trio.move_on_at(self._chunks[0][0]):
                await changed.wait()
        else:
            await changed.wait()

    def abandon(self) -> None:
        """The reader has closed."""
        self._abandoned = True
        self._chunks.clear()
        self._size = 0
        self._wire.drop(self)
        self.wake()

    def break_down(self) -> None:
        self._broken = True
        self._wire.drop(self)
        self.wake()


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
