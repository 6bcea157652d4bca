"""A simulated network: many hosts in one process, whose wires delay, hold back, cut and break.

It keeps the contract of `ports.Network` as TCP does (one suite tests both): a stream's bytes are
ordered and none is lost while it lives, a full buffer takes nothing. Delays are drawn anew for
every piece, so messages on different connections overtake each other. A cut holds bytes back
instead of dropping them, as TCP's retransmissions do, and after healing they arrive, late: from an
incarnation that may be long dead. What was under way when a connection broke arrives up to an
arbitrary byte, so a client cannot know what became of its request.

Deliveries are made by one task, `run`, in the order of their due times.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import math
import os
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import trio
import xxhash
from google.protobuf.message import DecodeError

from hadron.sim.trace import SEND, Trace
from hadron.wire.frames import HEADER, MAGIC, Kind
from hadron.wire.messages import METHODS, common_pb2

_BUFFER_BYTES: Final = 256 << 10
"""What one direction of a connection holds before a sender must wait; about a socket's buffers."""

_EAGER_READS: Final = 16
"""Reads in a row that do not give other tasks a turn, as with real sockets."""

_FIRST_EPHEMERAL_PORT: Final = 40_000

_DIAL_TIMEOUT_S: Final = 10.0
"""Of a host that does not answer at all. Linux takes two minutes; nobody should depend on it."""

_MIN_DELAY_S: Final = 20e-6
_MAX_DELAY_S: Final = 500e-6

_SPLIT_SHARE: Final = 0.05
"""Of the pieces that arrive in two parts, so that frames are cut at any byte."""

_CHECKSUM_BYTES: Final = 8
"""Of a frame, at the end of its header."""

_END: Final = b""


class SimNetwork:
    """The wires between hosts. `host(name)` gives the `ports.Network` of one of them.

    An address is `host:port` with the host's name; port 0 takes a free one. `run` must be running.
    """

    def __init__(
        self,
        rng: random.Random,
        trace: Trace | None = None,
        faults: Counter[str] | None = None,
    ) -> None:
        self.random = rng
        self.trace = trace or Trace()
        self.faults = faults if faults is not None else Counter()
        self._wires: dict[tuple[str, str], Wire] = {}
        self._hosts: dict[str, HostNetwork] = {}
        self._came_up: dict[str, trio.Event] = {}
        self._pairs: dict[_Pair, None] = {}
        self._ports = itertools.count(_FIRST_EPHEMERAL_PORT)
        self._due: list[tuple[float, int, Wire, Callable[[], None]]] = []
        self._order = itertools.count()
        self._sleep = trio.CancelScope()

    # --- hosts ----------------------------------------------------------------------------------

    def host(self, name: str, local_s: Callable[[], float] = trio.current_time) -> HostNetwork:
        """The network as a host has it from now on; an earlier one of that name is forgotten.

        `local_s` is the time at the host: what it sends leaves no earlier.
        """
        host = self._hosts[name] = HostNetwork(self, name, local_s)
        came_up = self._came_up.pop(name, None)
        if came_up is not None:
            came_up.set()
            self._answer_for_the_dead(name)
        return host

    def kill(self, name: str) -> None:
        """The host's process ends; its kernel resets connections after what was sent already."""
        host = self._hosts[name]
        host.die()
        for pair in list(self._pairs):
            for end in pair.ends:
                if end.host is host:
                    end.outgoing.finish(broken=True)
                    end.incoming.abandon()

    def power_off(self, name: str) -> None:
        """The host is gone without a word, until `host` makes a new one: peers hear nothing."""
        host = self._hosts[name]
        host.die()
        self._came_up.setdefault(name, trio.Event())
        for pair in list(self._pairs):
            for end in pair.ends:
                if end.host is host:
                    end.outgoing.stop()
                    end.incoming.swallow()

    def _answer_for_the_dead(self, name: str) -> None:
        """A host that is up again resets the connections that its predecessor had."""
        for pair in list(self._pairs):
            for end in pair.ends:
                if end.host.name == name and not end.host.is_alive:
                    end.incoming.abandon()
                    end.incoming.reset_writer()

    def hosts(self) -> list[str]:
        """The names of all hosts so far."""
        return list(self._hosts)

    def is_up_again(self, host: HostNetwork) -> bool:
        """Whether another host has taken the name of a dead one."""
        return self._hosts[host.name] is not host

    def is_dark(self, name: str) -> bool:
        """Whether the host is without power."""
        return name in self._came_up

    # --- faults ---------------------------------------------------------------------------------

    def cut_one_way(self, source: str, target: str) -> None:
        """Nothing that `source` sends reaches `target` until `heal`; the other way still works."""
        self.trace.log(f"network: {source} -> {target} cut")
        self.wire(source, target).is_cut = True

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
        for wire in (self.wire(one, other), self.wire(other, one)):
            if wire.is_cut:
                self.trace.log(f"network: {wire.source} -> {wire.target} healed")
                self._mend(wire)

    def heal_all(self) -> None:
        """Undo every cut, and every `delay` and `slow`."""
        for wire in self._wires.values():
            if wire.is_cut:
                self._mend(wire)
            wire.be_normal()
        self.trace.log("network: healed")

    def delay(self, source: str, target: str, low_s: float, high_s: float | None = None) -> None:
        """What `source` sends from now on takes `low_s` to `high_s` to reach `target`."""
        wire = self.wire(source, target)
        wire.low_s, wire.high_s = low_s, low_s if high_s is None else high_s
        self.trace.log(f"network: {source} -> {target} takes {low_s:g} to {wire.high_s:g} s")

    def slow(
        self, source: str, target: str, bytes_per_s: float, buffer_bytes: int = 16 << 10
    ) -> None:
        """A thin wire with small buffers."""
        wire = self.wire(source, target)
        wire.bytes_per_s, wire.buffer_bytes = bytes_per_s, buffer_bytes
        self.trace.log(f"network: {source} -> {target} carries {bytes_per_s:g} bytes/s")

    def break_connections(
        self, host: str, other: str | None = None, *, lose_all: bool = False
    ) -> int:
        """Break every connection of `host`, or those with `other`; returns how many.

        Of what is under way in each direction an arbitrary part arrives, or nothing with
        `lose_all`; then an error.
        """
        broken = 0
        for pair in list(self._pairs):
            names = {end.host.name for end in pair.ends}
            if host in names and (other is None or names == {host, other}):
                broken += 1
                for end in pair.ends:
                    end.incoming.break_somewhere(lose_all=lose_all)
        if broken:
            self.trace.log(f"network: {broken} connections of {host} broken")
        return broken

    # --- inside ---------------------------------------------------------------------------------

    def wire(self, source: str, target: str) -> Wire:
        wire = self._wires.get((source, target))
        if wire is None:
            wire = self._wires[source, target] = Wire(source, target)
        return wire

    def _mend(self, wire: Wire) -> None:
        wire.is_cut = False
        held, wire.held = wire.held, []
        for action in held:
            self.schedule(wire, trio.current_time(), action)

    def next_port(self) -> int:
        return next(self._ports)

    def schedule(self, wire: Wire, due_s: float, action: Callable[[], None]) -> None:
        """Do `action` at the far end of `wire` at `due_s`, or once it is healed after that."""
        heapq.heappush(self._due, (due_s, next(self._order), wire, action))
        if due_s < self._sleep.deadline:
            self._sleep.deadline = due_s

    def transit_s(self, wire: Wire, size: int) -> float:
        """How long `size` bytes take now."""
        return self.random.uniform(wire.low_s, wire.high_s) + size / wire.bytes_per_s

    async def run(self) -> None:
        """Deliver, for ever."""
        while True:
            now = trio.current_time()
            while self._due and self._due[0][0] <= now:
                _, _, wire, action = heapq.heappop(self._due)
                if wire.is_cut:
                    self.faults["held back by a cut"] += 1
                    wire.held.append(action)
                else:
                    action()
            deadline = self._due[0][0] if self._due else math.inf
            with trio.CancelScope(deadline=deadline) as self._sleep:
                await trio.sleep_forever()

    async def dial(self, host: HostNetwork, address: str) -> SimTransport:
        target = address.rpartition(":")[0]
        there, back = self.wire(host.name, target), self.wire(target, host.name)
        with trio.move_on_after(_DIAL_TIMEOUT_S):
            await self._cross(there)
            came_up = self._came_up.get(target)
            if came_up is not None:
                await came_up.wait()
            listener = self._listener(target, address)
            if listener is None:
                await self._cross(back)
                raise os_error(errno.ECONNREFUSED)
            pair = _Pair(self, host, listener.host, address, there, back)
            self._pairs[pair] = None
            dialing, accepted = pair.ends
            listener.arrived(accepted)
            try:
                await self._cross(back)
            except BaseException:
                dialing.close()
                raise
            return dialing
        raise os_error(errno.ETIMEDOUT)

    def _listener(self, target: str, address: str) -> SimListener | None:
        host = self._hosts.get(target)
        return host.listeners.get(address) if host is not None and host.is_alive else None

    async def _cross(self, wire: Wire) -> None:
        crossed = trio.Event()
        self.schedule(wire, trio.current_time() + self.transit_s(wire, 0), crossed.set)
        await crossed.wait()

    def forget(self, pair: _Pair) -> None:
        self._pairs.pop(pair, None)


class Wire:
    """One direction between two hosts."""

    def __init__(self, source: str, target: str) -> None:
        self.source = source
        self.target = target
        self.is_cut = False
        self.held: list[Callable[[], None]] = []
        self.sent = 0
        """Pieces so far, on all connections."""
        self.latest = 0
        """The number of the last sent one of those that have arrived."""
        self.requests: dict[int, int] = {}
        """On which connection a batch was sent last, by its hash."""
        self.be_normal()

    def be_normal(self) -> None:
        """Neither slow nor thin."""
        self.low_s, self.high_s = _MIN_DELAY_S, _MAX_DELAY_S
        self.bytes_per_s = math.inf
        self.buffer_bytes = _BUFFER_BYTES


class HostNetwork:
    """`ports.Network` as one host has it, from its start to its crash."""

    def __init__(self, network: SimNetwork, name: str, local_s: Callable[[], float]) -> None:
        self._network = network
        self.name = name
        self.is_alive = True
        self.local_s = local_s
        self.listeners: dict[str, SimListener] = {}

    def die(self) -> None:
        """From here on nothing leaves this host and nothing reaches it."""
        self.is_alive = False
        self.listeners.clear()

    async def dial(self, address: str) -> SimTransport:
        await trio.lowlevel.checkpoint()
        if not self.is_alive:
            raise os_error(errno.ENETDOWN)
        return await self._network.dial(self, address)

    async def listen(self, address: str) -> SimListener:
        await trio.lowlevel.checkpoint()
        name, _, port = address.rpartition(":")
        if name != self.name:
            raise os_error(errno.EADDRNOTAVAIL)
        bound = f"{name}:{int(port) or self._network.next_port()}"
        if bound in self.listeners:
            raise os_error(errno.EADDRINUSE)
        listener = SimListener(self, bound)
        if self.is_alive:
            self.listeners[bound] = listener
        return listener


class SimListener:
    """`ports.Listener` at one address."""

    def __init__(self, host: HostNetwork, address: str) -> None:
        self.host = host
        self.address = address
        self._waiting: deque[SimTransport] = deque()
        self._arrival = trio.Event()
        self._closed = False

    def arrived(self, transport: SimTransport) -> None:
        self._waiting.append(transport)
        self._arrival.set()

    async def accept(self) -> SimTransport:
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            if self._closed:
                raise os_error(errno.EBADF)
            self._arrival = trio.Event()
            await self._arrival.wait()
        return self._waiting.popleft()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.host.listeners.pop(self.address, None)
            while self._waiting:
                self._waiting.popleft().close()
            self._arrival.set()


class SimTransport:
    """`ports.Transport`: one end of a connection."""

    def __init__(
        self, pair: _Pair, host: HostNetwork, peer: str, incoming: _Pipe, outgoing: _Pipe
    ) -> None:
        self._pair = pair
        self.host = host
        self.peer = peer
        self.incoming = incoming
        self.outgoing = outgoing
        self.closed = False
        self._eager_reads = 0

    async def receive_into(self, buffer: memoryview) -> int:
        while True:
            if self.closed:
                raise os_error(errno.EBADF)
            if self._eager_reads < _EAGER_READS:
                self._eager_reads += 1
                taken = self.incoming.take(buffer)
                if taken is not None:
                    return taken
                await self.incoming.changed.wait()
            else:
                await trio.lowlevel.checkpoint()
            self._eager_reads = 0

    def send_some(self, chunks: Sequence[bytes | bytearray | memoryview]) -> int:
        if self.closed:
            raise os_error(errno.EBADF)
        return self.outgoing.put(chunks)

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self.closed and not self.outgoing.is_writable:
            await self.outgoing.changed.wait()
        if self.closed:
            raise os_error(errno.EBADF)

    def close(self) -> None:
        """The peer gets what was sent before, then the end."""
        if not self.closed:
            self.closed = True
            self.outgoing.finish()
            if self.host.is_alive:
                self.incoming.abandon()
            self._pair.closed()


class _Pair:
    """A connection: both ends, and a pipe for each direction."""

    def __init__(
        self,
        network: SimNetwork,
        dialing: HostNetwork,
        listening: HostNetwork,
        address: str,
        there: Wire,
        back: Wire,
    ) -> None:
        self._network = network
        port = network.next_port()
        self.number = port
        forth, over = _Pipe(network, there, back, port), _Pipe(network, back, there, port)
        forth.sender, over.sender = dialing, listening
        forth.opposite, over.opposite = over, forth
        self.ends = (
            SimTransport(self, dialing, address, over, forth),
            SimTransport(self, listening, f"{dialing.name}:{port}", forth, over),
        )

    def closed(self) -> None:
        if all(end.closed or not end.host.is_alive for end in self.ends):
            self._network.forget(self)


class _Pipe:
    """Bytes under way in one direction of one connection, then the end of the stream.

    A piece that is delivered while its reader is gone makes the reader's host answer with a
    reset, which reaches the writer one transit later.
    """

    sender: HostNetwork
    opposite: _Pipe

    def __init__(self, network: SimNetwork, wire: Wire, back: Wire, number: int) -> None:
        self._network = network
        self._wire = wire
        self._back = back
        self._number = number
        self._pieces: deque[memoryview | None] = deque()
        """Under way: data, `_END`, or None for a reset."""
        self._arrived: deque[memoryview] = deque()
        self._size = 0
        self._last_due_s = 0.0
        self._finished = False
        self._stopped = False
        self._abandoned = False
        self._swallowing = False
        self._reader_ended: int | None = None
        """0 at the end of the stream, an errno when it broke."""
        self._writer_error: int | None = None
        self.changed = trio.Event()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    # --- the writer's side ----------------------------------------------------------------------

    @property
    def is_writable(self) -> bool:
        return (
            self._size < self._wire.buffer_bytes
            or self._writer_error is not None
            or self._finished
        )

    def put(self, chunks: Sequence[bytes | bytearray | memoryview]) -> int:
        if self._writer_error is not None:
            raise os_error(self._writer_error)
        room = max(self._wire.buffer_bytes - self._size, 0)
        data = b"".join(chunks)[:room]
        if not data:
            return 0
        if self._stopped or self._finished:
            # A host that has died does not know it yet.
            return len(data)
        wire = self._wire
        trace = self._network.trace
        # An error may name the run's directory: the frame's checksum covers that name too.
        noted = without_checksums(data) if trace.is_hiding(data) else data
        trace.note(SEND, f"{wire.source}>{wire.target}", self._number, noted)
        self._count_repetition(data)
        if self._network.trace.is_shown:
            self._network.trace.remark(
                f"{wire.source} -> {wire.target} #{self._number}: {describe_frames(data)}"
            )
        rng = self._network.random
        if len(data) > 1 and rng.random() < _SPLIT_SHARE:
            middle = rng.randrange(1, len(data))
            self._send(memoryview(data)[:middle])
            self._send(memoryview(data)[middle:])
        else:
            self._send(memoryview(data))
        return len(data)

    def _count_repetition(self, data: bytes) -> None:
        """Note a batch that was sent on another connection before."""
        if len(data) < HEADER.size or not data.startswith(MAGIC):
            return
        _, _, kind, _, _, _, message, attachment, _ = HEADER.unpack_from(data)
        if kind == Kind.OPEN and attachment:
            start = HEADER.size + message
            batch = xxhash.xxh3_64_intdigest(data[start : start + attachment])
            before = self._wire.requests.get(batch, self._number)
            self._wire.requests[batch] = self._number
            if before != self._number:
                self._network.faults["duplicate at reconnect"] += 1

    def _send(self, piece: memoryview | None) -> None:
        size = len(piece) if piece is not None else 0
        arrives_s = self.sender.local_s() + self._network.transit_s(self._wire, size)
        due_s = max(arrives_s, self._last_due_s)
        self._last_due_s = due_s
        self._pieces.append(piece)
        self._size += size
        self._wire.sent += 1
        self._network.schedule(self._wire, due_s, partial(self._deliver, self._wire.sent))

    def finish(self, *, broken: bool = False) -> None:
        """Nothing more is sent: the reader gets the end, or an error, after what is under way."""
        if not self._finished and not self._stopped:
            self._finished = True
            self._send(None if broken else memoryview(_END))
        self._wake()

    def stop(self) -> None:
        """Nothing more is sent, and nobody is told."""
        self._stopped = True

    # --- under way ------------------------------------------------------------------------------

    def _deliver(self, number: int) -> None:
        """The next piece arrives, as the wire's `number`-th."""
        if not self._pieces:
            return
        piece = self._pieces.popleft()
        if piece:
            self._count(number)
        if self._swallowing:
            return
        if self._abandoned:
            self._size -= len(piece) if piece is not None else 0
            if piece:
                self.reset_writer()
        elif piece is None:
            self._reader_ended = errno.ECONNRESET
        elif len(piece) == 0:
            self._reader_ended = 0
        else:
            self._arrived.append(piece)
        self._wake()

    def _count(self, number: int) -> None:
        """Note what is unusual about an arrival."""
        faults, wire = self._network.faults, self._wire
        if number < wire.latest:
            faults["reordered"] += 1
        wire.latest = max(wire.latest, number)
        if self._swallowing:
            faults["dropped"] += 1
        elif not self.sender.is_alive and self._network.is_up_again(self.sender):
            faults["message of an old incarnation"] += 1

    def reset_writer(self) -> None:
        """The reader's host answers that it knows nothing of this connection."""

        def answered() -> None:
            if self._writer_error is None:
                self._writer_error = errno.EPIPE
                self._reader_of_the_writer_ends()
                self._wake()

        due_s = trio.current_time() + self._network.transit_s(self._back, 0)
        self._network.schedule(self._back, due_s, answered)

    def _reader_of_the_writer_ends(self) -> None:
        """A reset ends both directions."""
        other = self.opposite
        if other._reader_ended is None:
            other._reader_ended = errno.ECONNRESET
            other._pieces.clear()
            other._wake()

    def break_somewhere(self, *, lose_all: bool = False) -> None:
        """Let an arbitrary part of what is under way arrive, or nothing; then an error for both
        sides."""
        if self._writer_error is not None:
            return
        pieces = list(self._pieces)
        under_way = sum(len(piece) for piece in pieces if piece)
        arrives = 0
        if under_way and not lose_all:
            arrives = self._network.random.randrange(under_way + 1)
        if 0 < arrives < under_way:
            self._network.faults["broken inside a stream"] += 1
        if arrives < under_way:
            self._network.faults["dropped"] += 1
        self._pieces.clear()
        for piece in pieces:
            if piece and arrives and not self._abandoned and not self._swallowing:
                self._arrived.append(piece[:arrives])
                arrives -= min(len(piece), arrives)
        if self._reader_ended is None:
            self._reader_ended = errno.ECONNRESET
        self._writer_error = errno.ECONNRESET
        self._wake()

    # --- the reader's side ----------------------------------------------------------------------

    def take(self, buffer: memoryview) -> int | None:
        """Bytes that have arrived; 0 at the end; None when there is nothing yet."""
        if not self._arrived:
            if self._reader_ended:
                raise os_error(self._reader_ended)
            return self._reader_ended
        piece = self._arrived[0]
        count = min(len(piece), len(buffer))
        buffer[:count] = piece[:count]
        if count == len(piece):
            self._arrived.popleft()
        else:
            self._arrived[0] = piece[count:]
        self._size -= count
        self._wake()
        return count

    def abandon(self) -> None:
        """The reader has closed."""
        self._abandoned = True
        self._swallowing = False
        self._size -= sum(len(piece) for piece in self._arrived)
        self._arrived.clear()
        self._wake()

    def swallow(self) -> None:
        """The reader is gone without a word; what arrives is lost, and fills the buffer."""
        self._swallowing = True


def describe_frames(data: bytes) -> str:
    """The frames that begin in `data`, for people."""
    described, position = [], 0
    while position + HEADER.size <= len(data):
        magic, _, kind, number, _, call, message, attachment, _ = HEADER.unpack_from(data, position)
        if magic != MAGIC:
            break
        method = METHODS.get(number)
        name = f" {method}" if method is not None else ""
        start = position + HEADER.size
        what = _error_text(data[start : start + message]) if kind == Kind.ERROR else ""
        described.append(f"{Kind(kind).name}{name} call {call} ({message}+{attachment} B){what}")
        position = start + message + attachment
    if position != len(data):
        described.append(f"… {len(data)} bytes")
    return ", ".join(described)


def without_checksums(data: bytes) -> bytes:
    """`data` with zeros for the checksums of the frames that begin in it."""
    cleaned, position = bytearray(data), 0
    while position + HEADER.size <= len(data) and data.startswith(MAGIC, position):
        message, attachment = HEADER.unpack_from(data, position)[6:8]
        end = position + HEADER.size
        cleaned[end - _CHECKSUM_BYTES : end] = bytes(_CHECKSUM_BYTES)
        position = end + message + attachment
    return bytes(cleaned)


def _error_text(message: bytes) -> str:
    try:
        return f": {common_pb2.Error.FromString(message).message}"
    except DecodeError:
        return ""


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
