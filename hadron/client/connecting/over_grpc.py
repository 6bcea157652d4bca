"""The network port over gRPC: `grpc://` in a client's URL, where nothing else gets through.

A connection is one call of `hadron.v1.Frames/Connect`, with the bytes that a socket would carry: so
a client has all that it has otherwise. It reaches the nodes that its URL names and no others; those
hand its calls on to the leaders.

Safety rule: gRPC's threads and the event loop share `_Incoming` and `_Outgoing`, each under its
lock, and nothing else; what either of them waits for, the other one tells by `_Loop.tell`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import anyio
import anyio.from_thread
import anyio.lowlevel

from hadron.model.errors import RequestError, StrangerError
from hadron.model.extras import install
from hadron.model.ports import Listener, Transport
from hadron.model.version import VERSION
from hadron.wire._pb.frames_pb2 import FramesPart
from hadron.wire.sockets import split_address

_PATH: Final = "/hadron.v1.Frames/Connect"
_WINDOW_BYTES: Final = 1 << 20
"""Either way, on its way between the event loop and gRPC."""

_CLOSE_S: Final = 2.0
"""For what was sent before to arrive."""

_STRANGE: Final = b"HTTP/2 without gRPC"
"""What comes from a port that is HTTP's, in place of frames (`wire.strangers`)."""

_LOOK_S: Final = 2.0
"""For a look at who listens where no gRPC is spoken."""

_OPTIONS: Final = (
    # By itself gRPC gives all connections of a process to one address one socket.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    # What the node calls this program by, to who serves its calls.
    ("grpc.primary_user_agent", f"hadron-python/{VERSION}"),
)


class GrpcNetwork:
    """`ports.Network`: the doors for gRPC of some nodes.

    Args:
        addresses: of these.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = frozenset(addresses)
        self._grpc = _library()

    async def dial(self, address: str) -> Transport:
        if address not in self._addresses:
            raise OSError(errno.EHOSTUNREACH, "it is not among the nodes of the grpc:// URL")
        channel = self._grpc.insecure_channel(address, _OPTIONS)
        try:
            await self._wait_connected(channel, address)
            return _GrpcTransport(address, channel)
        except BaseException:
            channel.close()
            raise

    async def _wait_connected(self, channel: Any, address: str) -> None:
        state = self._grpc.ChannelConnectivity
        loop, seen = _Loop(), list[Any]()

        def on_state(now: Any) -> None:
            if now in (state.READY, state.TRANSIENT_FAILURE, state.SHUTDOWN):
                seen.append(now)
                loop.tell()

        channel.subscribe(on_state, try_to_connect=True)
        try:
            await loop.until(lambda: bool(seen))
        finally:
            channel.unsubscribe(on_state)
        if seen[0] is not state.READY:
            await _check_port(address)
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))

    async def listen(self, address: str) -> Listener:
        raise OSError(errno.EOPNOTSUPP, f"nobody listens on {address} over gRPC")


async def _check_port(address: str) -> None:
    """Raises `StrangerError` where somebody listens who speaks something else."""
    try:
        with anyio.move_on_after(_LOOK_S):
            await (await anyio.connect_tcp(*split_address(address))).aclose()
            raise StrangerError(
                f"{address} takes connections, and is no port for gRPC",
                "is it a node's own port (hadron://), or that for HTTP? gRPC has one of its own, "
                "`grpc:` in the node's configuration",
            )
    except OSError:
        return


def _library() -> Any:
    # It is read at the first import. Left out, gRPC's core prepares a fork and its Python half does
    # not: one in four children died of SIGSEGV, or had "skipping fork() handlers" on stderr. With
    # "0" they hang.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "1")
    try:
        import grpc
    except ImportError as error:
        raise RequestError(
            "a grpc:// URL needs grpcio, which is not installed", install("grpc")
        ) from error
    return grpc


class _Loop:
    """Who waits in the event loop for what other threads do."""

    def __init__(self) -> None:
        self._token = anyio.lowlevel.current_token()
        self._news = anyio.Event()
        self._is_told = False

    def tell(self) -> None:
        """From any thread. Nobody hears it once the loop has ended."""
        if self._is_told:
            return
        self._is_told = True
        with contextlib.suppress(anyio.RunFinishedError):
            anyio.from_thread.run_sync(self._tell, token=self._token)

    def _tell(self) -> None:
        self._is_told = False
        self.tell_here()

    def tell_here(self) -> None:
        """From the loop itself."""
        self._news.set()
        self._news = anyio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._news.wait()


class _Outgoing:
    """What the loop sends: gRPC takes it from here, in a thread of its own."""

    def __init__(self, loop: _Loop) -> None:
        self._loop = loop
        self._changed = threading.Condition()
        self._data = bytearray()
        self._is_closed = False

    @property
    def room(self) -> int:
        return _WINDOW_BYTES - len(self._data)

    def put(self, chunks: Sequence[bytes | bytearray | memoryview]) -> int:
        sent = 0
        with self._changed:
            for chunk in chunks:
                part = memoryview(chunk)[: max(0, self.room)]
                self._data += part
                sent += len(part)
                if len(part) < len(chunk):
                    break
            self._changed.notify()
        return sent

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def __iter__(self) -> Iterator[FramesPart]:
        return self

    def __next__(self) -> FramesPart:
        with self._changed:
            while not self._data and not self._is_closed:
                self._changed.wait()
            if not self._data:
                raise StopIteration
            was_full = self.room <= 0
            part = FramesPart(data=bytes(self._data))
            self._data.clear()
        if was_full:
            self._loop.tell()
        return part


class _Incoming:
    """What has come: a thread of ours brings it here from gRPC."""

    def __init__(self, loop: _Loop) -> None:
        self._loop = loop
        self._changed = threading.Condition()
        self._data = bytearray()
        self._is_closed = False
        self.is_ended = False
        self.is_strange = False
        self.ended = threading.Event()

    def bring(self, call: Any) -> None:
        """In a thread, until the call ends."""
        try:
            for part in call:
                with self._changed:
                    while len(self._data) >= _WINDOW_BYTES and not self._is_closed:
                        self._changed.wait()
                    self._data += part.data
                self._loop.tell()
        except Exception:
            # However it ends, it is a connection that broke: what it was is the next dial's to say.
            # But who knows no such call will not know it then: it serves something else.
            if call.code().name == "UNIMPLEMENTED":
                with self._changed:
                    self.is_strange = True
                    self._data += _STRANGE
        finally:
            self.is_ended = True
            self.ended.set()
            self._loop.tell()

    def take(self, buffer: memoryview) -> int | None:
        """How much there was; 0 is the end, None nothing yet."""
        with self._changed:
            if not self._data:
                return 0 if self.is_ended else None
            size = min(len(buffer), len(self._data))
            with memoryview(self._data) as held:
                buffer[:size] = held[:size]
            del self._data[:size]
            self._changed.notify()
            return size

    @property
    def has_some(self) -> bool:
        return bool(self._data) or self.is_ended

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()


class _GrpcTransport:
    """`ports.Transport` over one call."""

    def __init__(self, peer: str, channel: Any) -> None:
        self.peer = peer
        self._channel = channel
        self._loop = loop = _Loop()
        self._outgoing = _Outgoing(loop)
        self._incoming = _Incoming(loop)
        self._is_closed = False
        connect = channel.stream_stream(
            _PATH,
            request_serializer=FramesPart.SerializeToString,
            response_deserializer=FramesPart.FromString,
        )
        self._call = connect(self._outgoing)
        threading.Thread(
            target=self._incoming.bring, args=(self._call,), name=f"grpc {peer}", daemon=True
        ).start()

    async def receive_into(self, buffer: memoryview) -> int:
        while True:
            self._check_open()
            taken = self._incoming.take(buffer)
            if taken is not None:
                await anyio.lowlevel.checkpoint()
                return taken
            await self._loop.until(lambda: self._incoming.has_some or self._is_closed)

    def send_some(self, chunks: Sequence[bytes | bytearray | memoryview]) -> int:
        self._check_open()
        if self._incoming.is_ended and not self._incoming.is_strange:
            raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))
        return self._outgoing.put(chunks)

    async def wait_writable(self) -> None:
        await anyio.lowlevel.checkpoint()
        await self._loop.until(
            lambda: self._outgoing.room > 0 or self._is_closed or self._incoming.is_ended
        )
        self._check_open()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._outgoing.close()
        self._incoming.close()
        self._loop.tell_here()
        threading.Thread(target=self._let_go, name="grpc close", daemon=True).start()

    def _let_go(self) -> None:
        """The node ends the call once it has all that was sent."""
        self._incoming.ended.wait(_CLOSE_S)
        self._call.cancel()
        self._channel.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
