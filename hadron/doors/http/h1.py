"""HTTP/1.1 to ASGI: one connection, whose requests `h1_requests` finds.

Everything of a connection is one task, and the application pulls: `receive` reads the socket, so a
body is read no faster than it is dealt with, and a request costs no other task. *(Hypercorn, whose
tasks, locks and timers are several for each request, took eight times as long for one, on the same
two cores; HTTP/2 is left to it.)*

Safety rule: what cannot be told apart from what follows it ends the connection: a body that was
not read to its end, a request that llhttp refuses, a tunnel. No protocol is switched to: a request
that would is served as if it did not say so.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote

import trio

from hadron.doors.http.asgi import App, Message, Scope
from hadron.doors.http.draining import Draining
from hadron.doors.http.h1_requests import Parser, RefusedError, Request, hung_up, stalled
from hadron.doors.http.limits import Limits
from hadron.model.ports import Transport

_log = logging.getLogger(__name__)

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client of HTTP/2 begins with that knows the server."""

_READ_BYTES: Final = 64 << 10
_PIPELINED: Final = 256
_AHEAD_BYTES: Final = 1 << 20
"""Requests that come behind one that is not answered yet, and how large they are together. They are
read meanwhile, because how else would it be noticed that whoever asked has gone? Who sends more is
taken for gone."""

LINGER_S: Final = 1.0
LINGER_BYTES: Final = 1 << 20
"""What is still read of a request that was refused half way: else the refusal may be lost."""

_NO_BODY: Final = frozenset({204, 304})


class Connection:
    """One connection, over all of its requests."""

    def __init__(
        self,
        transport: Transport,
        app: App,
        limits: Limits,
        server: tuple[str, int],
        draining: Draining,
    ) -> None:
        self._transport = transport
        self._app = app
        self._limits = limits
        self._draining = draining
        self._server = server
        self._client = _pair(transport.peer)
        self._parser = Parser()
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self.is_over = False
        """Nothing more comes."""
        self._dropped = 0
        """Bytes, behind what is refused."""
        self._is_torn = False
        """What was written ended half way: whatever came behind it would be taken for its rest."""

    async def run(self, first: bytes = b"") -> None:
        """Until it ends; the transport is the caller's.

        Args:
            first: what was read of it already.
        """
        try:
            if first:
                self._parser.feed(first)
            while await self._wait_request():
                exchange = _Exchange(self, self._parser.requests[0])
                if not await exchange.run():
                    return
                self._parser.requests.popleft()
        except RefusedError as refusal:
            await self._refuse(refusal)
        except OSError as error:
            _log.debug("%s: %s", self._transport.peer, error)

    async def _wait_request(self) -> bool:
        """Until the next request's head is there; whether it is. Once the node is about to stop it
        is not waited for. Raises `RefusedError`."""
        if self._parser.requests:
            return True
        limits, now = self._limits, trio.current_time()
        has_begun = self._parser.has_begun
        with self._draining.until() as it:
            it.deadline = now + (limits.head_s if has_begun else limits.idle_s)
            while not self._parser.requests:
                if not await self.read():
                    return False
                if not has_begun and self._parser.has_begun:
                    has_begun = True
                    it.deadline = trio.current_time() + limits.head_s
        if it.cancelled_caught and has_begun and not self.is_last:
            raise RefusedError(
                408, f"the headers were not complete within {limits.head_s:g} s", "try again"
            )
        return not it.cancelled_caught

    async def read(self) -> bool:
        """Some more of what comes; whether there was more. Behind what is refused, while a request
        before it is dealt with, only the end is looked for. Raises `RefusedError`, `OSError`."""
        if self.is_over:
            return False
        parser = self._parser
        is_deferred = parser.refusal is not None and parser.is_first_complete
        if parser.refusal is not None and not is_deferred:
            raise parser.refusal
        size = await self._transport.receive_into(self._buffer)
        if not size:
            self.is_over = True
            return False
        if is_deferred:
            self._dropped += size
        else:
            parser.feed(self._buffer[:size])
        return True

    @property
    def is_last(self) -> bool:
        """Whether no request is taken behind the one that is dealt with."""
        return self._draining.has_begun

    @property
    def is_full(self) -> bool:
        """Whether too much has come behind the request that is dealt with."""
        behind = self._parser.requests
        return (
            len(behind) > 1 + _PIPELINED
            or self._dropped + sum(each.held_bytes for each in list(behind)[1:]) > _AHEAD_BYTES
        )

    async def write(self, chunks: Iterable[bytes]) -> None:
        """All of it, or nothing is written behind it. Raises `OSError`, also where the other side
        reads nothing any more."""
        if self._is_torn:
            raise OSError("what was written before has no end")
        left: list[bytes | memoryview] = [chunk for chunk in chunks if chunk]
        try:
            while left:
                sent = self._transport.send_some(left)
                while left and sent >= len(left[0]):
                    sent -= len(left[0])
                    left.pop(0)
                if left:
                    left[0] = memoryview(left[0])[sent:]
                    with trio.move_on_after(self._limits.stall_s) as scope:
                        await self._transport.wait_writable()
                    if scope.cancelled_caught:
                        raise OSError(f"nothing was read there for {self._limits.stall_s:g} s")
        finally:
            if left:
                self._is_torn = True

    async def linger(self) -> None:
        """Let what is under way come, for a moment, so that the answer is not lost."""
        left = LINGER_BYTES
        with trio.move_on_after(LINGER_S):
            while left > 0:
                size = await self._transport.receive_into(self._buffer)
                if not size:
                    break
                left -= size

    async def _refuse(self, refusal: RefusedError) -> None:
        try:
            await self.write(refusal_bytes(refusal))
            await self.linger()
        except OSError as error:
            _log.debug("%s: %s", self._transport.peer, error)

    @property
    def scope(self) -> Scope:
        """Of every request on it."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "scheme": "http",
            "client": self._client,
            "server": self._server,
            "root_path": "",
        }

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def app(self) -> App:
        return self._app


class _Exchange:
    """A request and its answer."""

    def __init__(self, connection: Connection, request: Request) -> None:
        self._connection = connection
        self._request = request
        self._head: tuple[int, Sequence[tuple[bytes, bytes]]] | None = None
        self._is_started = False
        self._is_done = False
        self._is_chunked = False
        self._has_body = True
        self._trouble: RefusedError | None = None

    async def run(self) -> bool:
        """Whether another request may come on the connection."""
        request = self._request
        request.find_host()
        raw_path, _, query = request.target.partition(b"?")
        if not raw_path.startswith(b"/"):
            raise RefusedError(
                400, f"{raw_path[:100].decode('latin-1')!r} is not a path on this server"
            )
        scope = {
            **self._connection.scope,
            "http_version": request.version,
            "method": request.method,
            "path": unquote(raw_path.decode("latin-1")),
            "raw_path": raw_path,
            "query_string": query,
            "headers": request.headers,
            "wait_gone": self._wait_gone,
        }
        try:
            await self._connection.app(scope, self._receive, self._send)
        except OSError:
            raise
        except Exception:
            _log.exception("the application failed")
            self._trouble = self._trouble or RefusedError(500, "failed inside the node")
        if not self._is_done:
            if self._is_started:
                return False
            if self._trouble is None and self._connection.is_over:
                self._trouble = hung_up()
            raise self._trouble or RefusedError(500, "there is no answer")
        if not request.is_complete:
            await self._connection.linger()
            return False
        return request.keep_alive and not self._connection.is_last

    async def _receive(self) -> Message:
        request, connection = self._request, self._connection
        expects, request.expects = request.expects, False
        if expects and not (request.is_complete or request.body or self._is_started):
            await connection.write([b"HTTP/1.1 100 Continue\r\n\r\n"])
        # Behind all of it only the end of the connection is waited for.
        patience_s = math.inf if request.is_complete else connection.limits.stall_s
        while True:
            if request.body or (request.is_complete and not request.is_told):
                data, request.body = bytes(request.body), bytearray()
                request.is_told = request.is_complete
                return {"type": "http.request", "body": data, "more_body": not request.is_complete}
            if self._is_done or not await self._read_more(patience_s):
                return {"type": "http.disconnect", "refusal": self._trouble}

    async def _wait_gone(self) -> None:
        request = self._request
        while request.is_complete or len(request.body) < _AHEAD_BYTES:
            if not await self._read_more(math.inf):
                return
        await trio.sleep_forever()

    async def _read_more(self, patience_s: float) -> bool:
        connection = self._connection
        try:
            if self._request.is_complete and connection.is_full:
                self._trouble = RefusedError(
                    400,
                    f"more than {_PIPELINED} requests, or {_AHEAD_BYTES} bytes of them, came "
                    "behind one that is not answered yet",
                    "wait for answers, or use more connections",
                )
                return False
            with trio.move_on_after(patience_s) as scope:
                return await connection.read()
        except RefusedError as refusal:
            self._trouble = refusal
            return False
        except OSError:
            return False
        assert scope.cancelled_caught
        self._trouble = stalled(patience_s)
        return False

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = message["status"], message.get("headers", ())
        elif message["type"] == "http.response.body":
            body = message.get("body", b"")
            more = message.get("more_body", False)
            chunks: list[bytes] = []
            if not self._is_started:
                chunks = self._start(None if more else len(body))
            if body and self._has_body:
                chunks += [b"%x\r\n" % len(body), body, b"\r\n"] if self._is_chunked else [body]
            if not more and self._is_chunked:
                chunks.append(b"0\r\n\r\n")
            # In one piece: two small writes would be two packets.
            small = sum(map(len, chunks)) < _READ_BYTES
            await self._connection.write([b"".join(chunks)] if small else chunks)
            self._is_done = not more

    def _start(self, length: int | None) -> list[bytes]:
        """The answer's head; `length` of its body, where it is known."""
        assert self._head is not None
        request, (status, headers) = self._request, self._head
        self._is_started = True
        self._has_body = request.method != "HEAD" and status not in _NO_BODY
        lines = [b"HTTP/1.1 %d %s\r\n" % (status, _phrase(status)), _date()]
        has_length = False
        for name, value in headers:
            has_length = has_length or name.lower() == b"content-length"
            lines.append(b"%s: %s\r\n" % (name, value))
        if not has_length and status not in _NO_BODY:
            if length is not None:
                lines.append(b"content-length: %d\r\n" % length)
            elif request.version == "1.1":
                lines.append(b"transfer-encoding: chunked\r\n")
                self._is_chunked = self._has_body
            else:
                request.keep_alive = False
        if not request.is_complete or self._connection.is_last:
            request.keep_alive = False
        if not request.keep_alive:
            lines.append(b"connection: close\r\n")
        elif request.version == "1.0":
            lines.append(b"connection: keep-alive\r\n")
        lines.append(b"\r\n")
        return lines


def refusal_bytes(refusal: RefusedError) -> list[bytes]:
    """A whole answer, after which the connection ends."""
    return [
        b"HTTP/1.1 %d %s\r\n" % (refusal.status, _phrase(refusal.status)),
        _date(),
        *(b"%b: %b\r\n" % each for each in refusal.headers),
        b"connection: close\r\n\r\n",
        refusal.body,
    ]


def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b"Other"


_dated: tuple[int, bytes] = (0, b"")


def _date() -> bytes:
    """A header that is made once a second. HTTP's clock is the machine's."""
    global _dated
    now = int(time.time())
    if _dated[0] != now:
        _dated = now, b"date: %s\r\n" % formatdate(now, usegmt=True).encode()
    return _dated[1]


def _pair(peer: str) -> tuple[str, int] | None:
    host, _, port = peer.rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdecimal() else None
