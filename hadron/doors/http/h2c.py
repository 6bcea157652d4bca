"""HTTP/2 without TLS, for who begins with its preface: Hypercorn's, imported with the first one."""

from __future__ import annotations

import logging
import socket
from typing import Any, Final

import trio
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext

from hadron.doors.http import limits as bounds
from hadron.doors.http.asgi import App, Message, Receive, Scope, Send
from hadron.doors.http.h1 import PREFACE, RefusedError, stalled, too_large_head, too_long_target
from hadron.doors.http.limits import Limits
from hadron.model.ports import Transport

_log = logging.getLogger(__name__)

_FRAME_HEAD_BYTES: Final = 9
_RST_STREAM: Final = 3
_CALM_DOWN: Final = bytes.fromhex("000008 07 00 00000000 7fffffff 0000000b")
"""GOAWAY, with ENHANCE_YOUR_CALM (RFC 9113)."""


class _Socket:
    """What Hypercorn asks a socket."""

    family = socket.AF_INET

    def __init__(self, client: tuple[str, int], server: tuple[str, int]) -> None:
        self._client, self._server = client, server

    def getpeername(self) -> tuple[str, int]:
        return self._client

    def getsockname(self) -> tuple[str, int]:
        return self._server


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


class _Stream:
    """A transport as trio's streams are."""

    def __init__(self, transport: Transport, first: bytes, stall_s: float, its: _Socket) -> None:
        self._resets = _Resets()
        self._transport = transport
        self._first = first
        self._stall_s = stall_s
        self.socket = its
        self._is_closed = False

    async def receive_some(self, max_bytes: int) -> bytes:
        data = await self._receive(max_bytes)
        if self._resets.are_too_many(data):
            _log.info("%s takes too many requests back", self._transport.peer)
            self._transport.send_some([_CALM_DOWN])
            return b""
        return data

    async def _receive(self, max_bytes: int) -> bytes:
        if self._first:
            first, self._first = self._first[:max_bytes], self._first[max_bytes:]
            return first
        buffer = bytearray(max_bytes)
        try:
            size = await self._transport.receive_into(memoryview(buffer))
        except OSError as error:
            raise trio.BrokenResourceError from error
        return bytes(buffer[:size])

    async def send_all(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[self._transport.send_some([left]) :]
                if left:
                    with trio.fail_after(self._stall_s):
                        await self._transport.wait_writable()
        except (OSError, trio.TooSlowError) as error:
            # Also where nothing is read there: whoever sends is not to wait for ever.
            self._transport.close()
            raise trio.BrokenResourceError from error

    async def aclose(self) -> None:
        self._transport.close()
        await trio.lowlevel.checkpoint()


def _config(limits: Limits) -> Config:
    config = Config()
    config.keep_alive_timeout = limits.idle_s
    config.keep_alive_max_requests = 1 << 30
    config.h2_max_concurrent_streams = limits.h2_streams
    config.h2_max_header_list_size = bounds.MAX_HEADER_BYTES
    config.h11_max_incomplete_size = bounds.MAX_HEADER_BYTES
    config.include_server_header = False
    config.errorlog = _log
    return config


class H2:
    """All connections of HTTP/2 at one door."""

    def __init__(self, app: App, limits: Limits, server: tuple[str, int]) -> None:
        self._limits = limits
        self._server = server
        self._app = _patient(app, limits)
        self._config = _config(limits)

    async def serve(self, transport: Transport, first: bytes, client: tuple[str, int]) -> None:
        """Until the connection ends; `first` was read of it."""
        its = _Socket(client, self._server)
        stream: Any = _Stream(transport, first, self._limits.stall_s, its)
        wrapped: Any = ASGIWrapper(self._app)  # type: ignore[arg-type]
        await TCPServer(wrapped, self._config, WorkerContext(None), {}, stream).run()


def _patient(app: App, limits: Limits) -> App:
    """The application, for which a body that stalls is one that was cut off, and an answer that
    nobody takes is one whose connection has broken; what it leaves half done is cut short."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        is_whole = has_started = is_done = False
        trouble: RefusedError | None = None

        async def receiving() -> Message:
            nonlocal is_whole, trouble
            if is_whole:
                return await receive()
            with trio.move_on_after(limits.stall_s):
                message = await receive()
                is_whole = not message.get("more_body", False)
                return message
            trouble = stalled(limits.stall_s)
            return {"type": "http.disconnect", "refusal": trouble}

        async def sending(message: Message) -> None:
            nonlocal has_started, is_done
            has_started = True
            with trio.move_on_after(limits.stall_s) as scope:
                await send(message)
                is_done = message["type"] != "http.response.start" and not message.get("more_body")
            if scope.cancelled_caught:
                raise OSError(f"nothing was read there for {limits.stall_s:g} s")

        try:
            trouble = _refusal_of(scope)
            if trouble is None:
                await app(scope, receiving, sending)
            if trouble is not None and not has_started:
                head = {"status": trouble.status, "headers": trouble.headers}
                await sending({"type": "http.response.start", **head})
                await sending({"type": "http.response.body", "body": trouble.body})
        except OSError as error:
            _log.debug("%s: %s", scope.get("client"), error)
        if has_started and not is_done:
            await _reset(send, limits.stall_s)

    return served


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


async def _reset(send: Any, within_s: float) -> None:
    """Tell who reads an answer that there is no more of it, and that it is none. Hypercorn has no
    word for this, and would leave the stream open: its own parts are asked."""
    stream = send.__self__
    protocol, number = stream.send.__self__, stream.stream_id
    if number not in protocol.streams:
        # Who read it has said so first.
        return
    with trio.move_on_after(within_s):
        if number in protocol.stream_buffers:
            await protocol.stream_buffers[number].drain()
    try:
        protocol.connection.reset_stream(number, ErrorCodes.INTERNAL_ERROR)
    except ProtocolError:
        return
    await protocol._flush()
