"""Simulated connections: two ends, and a pipe of delayed bytes for each direction."""

from __future__ import annotations

import errno
import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import trio
import xxhash

from hadron.fakes.frame_text import describe_frames, without_checksums
from hadron.fakes.trace import SEND
from hadron.wire.frames import HEADER, MAGIC, Kind

if TYPE_CHECKING:
    from hadron.fakes.network import HostNetwork, SimNetwork

_BUFFER_BYTES: Final = 256 << 10
"""What one direction of a connection holds before a sender must wait; about a socket's buffers."""

_EAGER_READS: Final = 16
"""Reads in a row that do not give other tasks a turn, as with real sockets."""

_DELAY_S: Final = (20e-6, 500e-6)
"""Low and high, of a wire that is neither slow nor instant."""

_END: Final = b""


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class Wire:
    """One direction between two hosts."""

    def __init__(self, source: str, target: str, *, takes_time: bool) -> None:
        self.source = source
        self.target = target
        self._takes_time = takes_time
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
        self.low_s, self.high_s = _DELAY_S if self._takes_time else (0.0, 0.0)
        self.bytes_per_s = math.inf
        self.buffer_bytes = _BUFFER_BYTES


class SimTransport:
    """`ports.Transport`: one end of a connection."""

    def __init__(
        self, pair: Pair, host: HostNetwork, peer: str, incoming: Pipe, outgoing: Pipe
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
                await self.incoming.changed.park()
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
            await self.outgoing.changed.park()
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


class Pair:
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
        forth, over = Pipe(network, there, back, port), Pipe(network, back, there, port)
        forth.sender, over.sender = dialing, listening
        forth.opposite, over.opposite = over, forth
        self.ends = (
            SimTransport(self, dialing, address, over, forth),
            SimTransport(self, listening, f"{dialing.name}:{port}", forth, over),
        )

    def closed(self) -> None:
        if all(end.closed or not end.host.is_alive for end in self.ends):
            self._network.forget(self)


class Pipe:
    """Bytes under way in one direction of one connection, then the end of the stream.

    A piece that is delivered while its reader is gone makes the reader's host answer with a
    reset, which reaches the writer one transit later.
    """

    sender: HostNetwork
    opposite: Pipe

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
        self.changed = trio.lowlevel.ParkingLot()
        """Where both sides wait for the next change."""

    def _wake(self) -> None:
        if self.changed:
            self.changed.unpark_all()

    # --- the writer's side ----------------------------------------------------------------------

    @property
    def is_writable(self) -> bool:
        return (
            self._size < self._wire.buffer_bytes or self._writer_error is not None or self._finished
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
        middle = self._network.splits(len(data))
        if middle:
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
            arrives = under_way - self._network.loses(under_way)
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

    def break_reader(self) -> None:
        """The reader is told that the connection is gone; its writer hears of it later."""
        if self._reader_ended is None:
            self._reader_ended = errno.ECONNRESET
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
