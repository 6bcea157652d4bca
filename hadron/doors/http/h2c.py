"""HTTP/2 without TLS, for who begins with its preface: Hypercorn's, imported with the first one.

Hypercorn makes ASGI of frames, and frames of ASGI. What is around that is here: a connection, and
each request on it with what has come of its body.

Safety rule: the task that reads a connection waits for no application, because all requests on it
wait with that. What comes of a body is bounded by flow control: it is acknowledged as it is taken,
or at once where nobody takes it any more.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    PriorityUpdated,
    RequestReceived,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import ProtocolError
from hypercorn.config import Config
from hypercorn.events import Closed, RawData, Updated
from hypercorn.protocol.h2 import BUFFER_HIGH_WATER, BufferCompleteError, H2Protocol, StreamBuffer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hyperframe.frame import Frame, GoAwayFrame

from hadron.doors.http import limits as bounds
from hadron.doors.http.asgi import App, Message, Scope
from hadron.doors.http.draining import Draining
from hadron.doors.http.h1 import LINGER_BYTES, LINGER_S, PREFACE
from hadron.doors.http.h1_requests import RefusedError, stalled, too_large_head, too_long_target
from hadron.doors.http.limits import Limits
from hadron.model.ports import Transport

_log = logging.getLogger(__name__)

_READ_BYTES: Final = 64 << 10
_PIECE_BYTES: Final = 16 << 10
_FRAME_HEAD_BYTES: Final = 9
_RST_STREAM: Final = 3
_MOST: Final = (1 << 31) - 1
"""Of streams' numbers."""

_STREAM_WINDOW: Final = 65_535
"""What HTTP/2 lets come of a body that nobody has taken yet (RFC 9113, 6.9.2)."""

_WINDOW: Final = 1 << 20
"""The same of all bodies on a connection, as in HTTP/1.1 behind a request: sixteen that are held
back leave no room to others."""


class _Resets:
    """How many requests a peer takes back on one connection. Each costs it nothing, and here some
    tasks that begin and end: bounded by so many at once, and so many a second."""

    def __init__(self) -> None:
        self._skipped = len(PREFACE)
        self._head = bytearray()
        self._left = float(bounds.RESETS)
        self._since_s = trio.current_time()

    def are_too_many(self, data: bytes) -> bool:
        """With those in what has just come."""
        found = self._count(data)
        if found:
            now_s = trio.current_time()
            more = (now_s - self._since_s) * bounds.RESETS_PER_S
            self._since_s = now_s
            self._left = min(float(bounds.RESETS), self._left + more) - found
        return self._left < 0

    def _count(self, data: bytes) -> int:
        """Frames of that kind; one may come in pieces."""
        found = at = 0
        while at < len(data):
            if self._skipped:
                step = min(self._skipped, len(data) - at)
                self._skipped -= step
            else:
                step = min(_FRAME_HEAD_BYTES - len(self._head), len(data) - at)
                self._head += data[at : at + step]
                if len(self._head) == _FRAME_HEAD_BYTES:
                    found += self._head[3] == _RST_STREAM
                    self._skipped = int.from_bytes(self._head[:3], "big")
                    self._head.clear()
            at += step
        return found


class _Exchange:
    """A request and its answer.

    Attributes:
        is_whole: all of its body has come.
    """

    def __init__(self, protocol: _Protocol, number: int, limits: Limits, send: Any) -> None:
        self._protocol = protocol
        self._number = number
        self._stall_s = limits.stall_s
        self._to_stream: Callable[[Message | None], Awaitable[None]] = send
        self._body = bytearray()
        self._size = 0
        """Of the frames with what is not taken yet."""
        self._dropped = 0
        """The same of those that nobody takes any more."""
        self._news = trio.Event()
        self._trouble: RefusedError | None = None
        self.is_whole = False
        self._is_told = False
        """The application has got all of it."""
        self._has_started = self._is_done = False
        """Its answer."""
        self._is_gone = False
        """Nobody waits for that, or it is out."""
        self._is_over = False
        """The application has ended."""

    # --- what comes -----------------------------------------------------------------------------

    def put(self, data: bytes, size: int) -> bool:
        """Some of the body, in a frame of that size; whether it is acknowledged later."""
        if self._is_over or not data:
            self._dropped += size
            self._tell()
            return False
        self._body += data
        self._size += size
        self._tell()
        return True

    def end(self) -> None:
        """All of the body has come."""
        self.is_whole = True
        self._tell()

    async def hear(self, message: Any) -> None:
        """From Hypercorn: the stream has ended."""
        assert message["type"] == "http.disconnect"
        self._is_gone = True
        self._tell()

    async def linger(self) -> None:
        """Let what is under way come, for a moment, so that the answer is not lost."""
        with trio.move_on_after(LINGER_S):
            while not self.is_whole and self._dropped < LINGER_BYTES:
                await self._news.wait()

    def _tell(self) -> None:
        news, self._news = self._news, trio.Event()
        news.set()

    # --- the application's ----------------------------------------------------------------------

    async def run(self, app: App, scope: Scope) -> None:
        """A body that stalls is refused, an answer that nobody takes is one whose connection has
        broken, and what the application leaves half done is cut short."""
        try:
            self._trouble = _refusal_of(scope)
            if self._trouble is None:
                await self._run(app, scope)
            if not self._has_started:
                await self._refuse(self._trouble or RefusedError(500, "there is no answer"))
        except OSError as error:
            _log.debug("%s: %s", scope.get("client"), error)
        self._is_over = True
        if self._has_started and not self._is_done:
            await self._protocol.cut_off(self._number, self._stall_s)
        await self._acknowledge()
        await self._to_stream(None)

    async def _run(self, app: App, scope: Scope) -> None:
        scope["wait_gone"] = self._wait_gone
        try:
            await app(scope, self._receive, self._send)
        except OSError:
            raise
        except Exception:
            _log.exception("the application failed")
            self._trouble = self._trouble or RefusedError(500, "failed inside the node")

    async def _refuse(self, refusal: RefusedError) -> None:
        head = {"status": refusal.status, "headers": refusal.headers}
        await self._send({"type": "http.response.start", **head})
        await self._send({"type": "http.response.body", "body": refusal.body})

    async def _receive(self) -> Message:
        patience_s = math.inf if self.is_whole else self._stall_s
        with trio.move_on_after(patience_s):
            while not (self._body or self._is_gone or (self.is_whole and not self._is_told)):
                await self._news.wait()
        if self._body or (self.is_whole and not self._is_told):
            body, self._body = bytes(self._body), bytearray()
            self._is_told = self.is_whole
            await self._acknowledge()
            return {"type": "http.request", "body": body, "more_body": not self._is_told}
        if not self._is_gone:
            self._trouble = stalled(self._stall_s)
        return {"type": "http.disconnect", "refusal": self._trouble}

    async def _wait_gone(self) -> None:
        while not self._is_gone:
            await self._news.wait()

    async def _acknowledge(self) -> None:
        size, self._size = self._size, 0
        if size:
            await self._protocol.acknowledge(self._number, size)

    async def _send(self, message: Message) -> None:
        # In pieces, each of which is to be taken in time, and not all of it.
        body = memoryview(message.get("body", b""))
        while len(body) > _PIECE_BYTES:
            await self._send_piece({**message, "body": body[:_PIECE_BYTES], "more_body": True})
            body = body[_PIECE_BYTES:]
        await self._send_piece({**message, "body": body})

    async def _send_piece(self, message: Message) -> None:
        if self._is_gone:
            raise OSError("whoever asked is gone")
        self._has_started = True
        with trio.move_on_after(self._stall_s) as scope:
            await self._to_stream(message)
            is_body = message["type"] == "http.response.body"
            self._is_done = is_body and not message.get("more_body")
        if scope.cancelled_caught:
            raise OSError(f"nothing was read there for {self._stall_s:g} s")


class _Buffer(StreamBuffer):
    """What is to be sent of an answer. Hypercorn's own lets whoever writes go on each time that it
    looks whether something may be sent: it grew as large as the answer where nothing might."""

    async def push(self, data: bytes) -> None:
        if self._complete:
            raise BufferCompleteError
        self.buffer.extend(data)
        await self._is_empty.clear()
        while len(self.buffer) >= BUFFER_HIGH_WATER:
            await self._paused.clear()
            await self._paused.wait()

    async def pop(self, max_length: int) -> bytes:
        data = await super().pop(max_length)
        if len(self.buffer) < BUFFER_HIGH_WATER:
            await self._paused.set()
        return data


class _Left(Event):
    """Whoever asks opens no more streams."""


class _Protocol(H2Protocol):
    """Hypercorn's, but for what it would let one request do to the others on its connection."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.exchanges: dict[int, _Exchange] = {}
        """Those of which something may come, or is to be sent."""
        self.is_left = False
        frames = self.connection._frame_dispatch_table
        self._terminated = frames[GoAwayFrame]
        frames[GoAwayFrame] = self._goes_away

    def _goes_away(self, frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        """A peer that leaves without an error waits for its answers (RFC 9113, 6.8). To h2 the
        connection has ended then, and nothing could be sent."""
        if frame.error_code == ErrorCodes.NO_ERROR:
            return [], [_Left()]
        frames, events = self._terminated(frame)
        return frames, events

    @property
    def is_done(self) -> bool:
        """It was left, and nothing is under way any more."""
        return self.is_left and not (self.streams or self.exchanges)

    is_leaving = False
    """No other request is taken."""

    async def _handle_events(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, DataReceived):
                exchange = self.exchanges.get(event.stream_id)
                size = event.flow_controlled_length
                if exchange is None or not exchange.put(event.data, size):
                    self.connection.acknowledge_received_data(size, event.stream_id)
            elif isinstance(event, StreamEnded):
                if event.stream_id in self.exchanges:
                    self.exchanges[event.stream_id].end()
            elif isinstance(event, _Left):
                self.is_left = True
            elif not isinstance(event, PriorityUpdated):
                # Priorities are not used any more (RFC 9113, 5.3.2), and Hypercorn keeps those of
                # streams that are none.
                if isinstance(event, StreamReset):
                    self.exchanges.pop(event.stream_id, None)
                    await self._let_go(event.stream_id)
                await super()._handle_events([event])
        # Also where the last request was taken back.
        await self.send(Updated(idle=self.idle))
        await self._flush()

    async def _create_stream(self, request: RequestReceived) -> None:
        said = {name: value for name, value in request.headers or () if name.startswith(b":")}
        if said[b":method"] == b"CONNECT" or not all(map(bytes.isascii, said.values())):
            # A tunnel, or what Hypercorn does not read.
            self.connection.reset_stream(request.stream_id, ErrorCodes.PROTOCOL_ERROR)
            return
        if self.is_left or self.is_leaving:
            # It may be asked elsewhere, whatever it is (RFC 9113, 8.7).
            self.connection.reset_stream(request.stream_id, ErrorCodes.REFUSED_STREAM)
            return
        await super()._create_stream(request)
        self.stream_buffers[request.stream_id] = _Buffer(self.context.event_class)

    async def _send_data(self, stream_id: int) -> None:
        await super()._send_data(stream_id)
        if stream_id in self.stream_buffers:
            return
        # Its answer is out.
        await self.send(Updated(idle=self.idle))
        exchange = self.exchanges.get(stream_id)
        if exchange is None:
            return
        if exchange.is_whole:
            del self.exchanges[stream_id]
            await self.send(Updated(idle=self.idle))
        else:
            self.task_group.spawn(self._end, stream_id, exchange)

    async def _end(self, stream_id: int, exchange: _Exchange) -> None:
        await exchange.linger()
        if self.exchanges.pop(stream_id, None) is not None and not exchange.is_whole:
            # The rest is not wanted (RFC 9113, 8.1).
            await self._reset(stream_id, ErrorCodes.NO_ERROR)
        await self.send(Updated(idle=self.idle))

    async def _reset(self, stream_id: int, code: ErrorCodes) -> None:
        try:
            self.connection.reset_stream(stream_id, code)
        except ProtocolError:
            return
        await self._flush()

    async def cut_off(self, stream_id: int, within_s: float) -> None:
        """Tell who reads an answer that there is no more of it, and that it is none. Hypercorn has
        no word for this, and would leave the stream open. One that is whole, and read in time,
        ends by itself."""
        buffer = self.stream_buffers.get(stream_id)
        if stream_id not in self.streams or buffer is None:
            # Who read it has said so first, or all of it is out.
            return
        with trio.move_on_after(within_s):
            if buffer.buffer:
                await buffer.drain()
            if buffer._complete:
                return
        if self.exchanges.pop(stream_id, None) is not None:
            await self._reset(stream_id, ErrorCodes.INTERNAL_ERROR)
            await self._let_go(stream_id)

    async def _let_go(self, stream_id: int) -> None:
        """Nothing is sent there any more. The task that sends finds that out, and forgets it."""
        if (buffer := self.stream_buffers.get(stream_id)) is not None:
            await buffer.close()
            await self._window_updated(stream_id)

    async def acknowledge(self, stream_id: int, size: int) -> None:
        self.connection.acknowledge_received_data(size, stream_id)
        await self._flush()


class _Connection:
    """What Hypercorn's protocol has around it: tasks, and a way to send."""

    def __init__(
        self, transport: Transport, door: H2, client: tuple[str, int], server: tuple[str, int]
    ) -> None:
        self._transport = transport
        self._door = door
        self._resets = _Resets()
        self._writing = trio.Lock()
        self._life = trio.CancelScope()
        """Of the task that reads."""
        self._has_requests: bool | None = None
        self._is_told = False
        """That it ends."""
        self._protocol = _Protocol(
            door.app,
            door.config,
            WorkerContext(None),
            self,
            ConnectionState({}),
            False,
            client,
            server,
            self._send,
        )

    async def run(self, first: bytes) -> None:
        """Until it ends, and the applications of all of its requests with it."""
        protocol = self._protocol
        async with trio.open_nursery() as self._nursery:
            with self._life:
                await self._look_idle()
                await protocol.initiate()
                protocol.connection.increment_flow_control_window(_WINDOW - _STREAM_WINDOW)
                data = first
                while data and not self._life.cancel_called:
                    if self._resets.are_too_many(data):
                        _log.info("%s takes too many requests back", self._transport.peer)
                        self._transport.send_some([_go_away(_MOST, ErrorCodes.ENHANCE_YOUR_CALM)])
                        break
                    await protocol.handle(RawData(data))
                    data = await self._read()
            self._transport.close()
            await protocol.handle(Closed())
            for buffer in list(protocol.stream_buffers.values()):
                # Whoever waits there goes on, and is told next that nobody reads.
                await buffer.close()

    async def _read(self) -> bytes:
        if not self._protocol.is_leaving:
            with self._door.draining.until():
                return await self._receive()
            await self._leave()
        return await self._receive()

    async def _leave(self) -> None:
        """The node is about to stop: end with what was asked for until now."""
        self._protocol.is_leaving = True
        await self._look_idle()

    async def _receive(self) -> bytes:
        buffer = bytearray(_READ_BYTES)
        try:
            size = await self._transport.receive_into(memoryview(buffer))
        except OSError as error:
            _log.debug("%s: %s", self._transport.peer, error)
            return b""
        return bytes(buffer[:size])

    # --- for Hypercorn --------------------------------------------------------------------------

    def spawn(self, func: Callable[..., Awaitable[None]], *args: Any) -> None:
        self._nursery.start_soon(func, *args)

    async def spawn_app(
        self, app: App, _config: Config, scope: Scope, send: Any
    ) -> Callable[[Message], Awaitable[None]]:
        number = send.__self__.stream_id
        exchange = _Exchange(self._protocol, number, self._door.limits, send)
        self._protocol.exchanges[number] = exchange
        self._nursery.start_soon(exchange.run, app, scope)
        return exchange.hear

    async def _send(self, event: Any) -> None:
        if isinstance(event, RawData):
            # A frame is sent as a whole, whatever becomes of the application that it is of.
            with trio.CancelScope(shield=True):
                async with self._writing:
                    await self._write(event.data)
        elif isinstance(event, Closed):
            self._life.cancel()
        else:
            await self._look_idle()

    async def _look_idle(self) -> None:
        """Without a request it is kept for a while, whatever else comes, unless it was left; as the
        node stops, until the other side has heard of that."""
        protocol = self._protocol
        if protocol.is_done:
            self._life.cancel()
            return
        has_requests = bool(protocol.streams)
        if has_requests != self._has_requests:
            self._has_requests = has_requests
            idle_s = math.inf if has_requests else self._door.limits.idle_s
            self._life.deadline = trio.current_time() + idle_s
        if protocol.is_leaving and not (self._is_told or has_requests or protocol.stream_buffers):
            # Only now: there are clients that take it for the end of what they wait for.
            self._is_told = True
            last = protocol.connection.highest_inbound_stream_id
            await self._send(RawData(_go_away(last, ErrorCodes.NO_ERROR)))
            self._life.deadline = trio.current_time() + LINGER_S

    async def _write(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left and not self._life.cancel_called:
                left = left[self._transport.send_some([left]) :]
                if left:
                    with trio.fail_after(self._door.limits.stall_s):
                        await self._transport.wait_writable()
        except (OSError, trio.TooSlowError) as error:
            # Also where nothing is read there: whoever sends is not to wait for ever.
            _log.debug("%s: %s", self._transport.peer, error)
            self._life.cancel()


def _go_away(last: int, code: ErrorCodes) -> bytes:
    """GOAWAY (RFC 9113, 6.8): requests up to `last` are answered. Written by hand, because behind
    h2's own nothing can be sent any more."""
    head = bytes.fromhex("000008 07 00 00000000")
    return head + last.to_bytes(4, "big") + int(code).to_bytes(4, "big")


def _config(limits: Limits) -> Config:
    config = Config()
    config.keep_alive_max_requests = 1 << 30
    config.h2_max_concurrent_streams = limits.h2_streams
    config.h2_max_header_list_size = bounds.MAX_HEADER_BYTES
    config.include_server_header = False
    config.errorlog = _log
    return config


class H2:
    """All connections of HTTP/2 at one door."""

    def __init__(
        self, app: App, limits: Limits, server: tuple[str, int], draining: Draining
    ) -> None:
        self.app = app
        self.limits = limits
        self.draining = draining
        self.config = _config(limits)
        self._server = server

    async def serve(self, transport: Transport, first: bytes, client: tuple[str, int]) -> None:
        """Until the connection ends; `first` was read of it."""
        await _Connection(transport, self, client, self._server).run(first)


def _refusal_of(scope: Scope) -> RefusedError | None:
    """For a head that HTTP/1.1 would have refused while it came: here it has a bound of its own,
    twice as large, beyond which the connection ends."""
    if scope["type"] != "http":
        return None
    if len(scope["raw_path"]) + len(scope["query_string"]) > bounds.MAX_TARGET_BYTES:
        return too_long_target()
    headers = scope["headers"]
    size = sum(len(name) + len(value) for name, value in headers)
    if len(headers) > bounds.MAX_HEADERS or size > bounds.MAX_HEADER_BYTES:
        return too_large_head()
    return None
