"""Requests of HTTP/1.1, as llhttp (`httptools`) finds them in what comes, and what is none of it.

Safety rule: what llhttp refuses is refused for good, once what came before it is answered: nobody
knows where the next request would begin.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from typing import Final

import httptools

from hadron.doors.http import limits as bounds
from hadron.doors.http.problems import HttpError, body_of
from hadron.model.problems import shorten

_ABSOLUTE: Final = re.compile(rb"http://([^/?#]*)", re.IGNORECASE)

_REQUEST_BYTES: Final = 1_000
_HEADER_BYTES: Final = 160
"""What each takes of memory, besides its text."""


class RefusedError(HttpError, travels=False):
    """A request that is none; the connection ends with this answer."""

    def __init__(self, status: int, message: str, hint: str = "") -> None:
        super().__init__(status, message, hint, retryable=status == 408)

    @property
    def body(self) -> bytes:
        return body_of(self)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Of the answer."""
        length = str(len(self.body)).encode()
        return [(b"content-type", b"application/problem+json"), (b"content-length", length)]


class Request:
    """One request, as far as it has come."""

    __slots__ = (
        "body",
        "body_bytes",
        "expects",
        "gathered_bytes",
        "headers",
        "is_complete",
        "is_head_complete",
        "is_told",
        "keep_alive",
        "method",
        "size",
        "target",
        "version",
    )

    def __init__(self) -> None:
        self.method = ""
        self.target = b""
        self.version = "1.1"
        self.headers: list[tuple[bytes, bytes]] = []
        self.size = 0
        """Of its head, but for what is not whole of it yet."""
        self.gathered_bytes = 0
        """That came for it without any of its body among them, since there was some."""
        self.keep_alive = True
        self.expects = False
        """Whether it waits for a word before it sends its body."""
        self.is_head_complete = False
        self.is_complete = False
        self.is_told = False
        """The application has got all of its body."""
        self.body = bytearray()
        self.body_bytes = 0

    @property
    def held_bytes(self) -> int:
        """What it takes while it waits for others."""
        return _REQUEST_BYTES + _HEADER_BYTES * len(self.headers) + self.size + self.body_bytes

    def find_host(self) -> None:
        """A target that names the host as well, as proxies are given it, becomes a path, and that
        host the one that is named, whatever the header says (RFC 9112, 3.2.2)."""
        found = _ABSOLUTE.match(self.target)
        if found is not None:
            self.target = self.target[found.end() :]
            if not self.target.startswith(b"/"):
                self.target = b"/" + self.target
            others = [each for each in self.headers if each[0] != b"host"]
            self.headers = [(b"host", found[1]), *others]


class Parser:
    """What llhttp has found, request by request."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self.requests: deque[Request] = deque()
        """Those whose heads are complete, and that are not taken out yet."""
        self._current: Request | None = None
        self._switching: Request | None = None
        """Its head is there, and would switch to another protocol."""
        self.refusal: RefusedError | None = None

    @property
    def has_begun(self) -> bool:
        return self._current is not None and not self._current.is_head_complete

    @property
    def is_first_complete(self) -> bool:
        """Whether there is a request to be answered, and all of it has come."""
        return bool(self.requests) and self.requests[0].is_complete

    def feed(self, data: bytes | memoryview) -> None:
        """Raises `RefusedError`."""
        if self.refusal is not None:
            raise self.refusal
        request = self._current
        had = request.body_bytes if request is not None else 0
        try:
            left: bytes | memoryview | None = data
            while left is not None:
                left = self._feed(left)
        except httptools.HttpParserError as error:
            self._refuse(self._refusal_of(error))
            return
        if request is not None and request is self._current:
            # A header may have no end, also one behind the body, and be gathered here until it has;
            # and the extensions of a chunk.
            is_moving = request.body_bytes > had
            request.gathered_bytes = 0 if is_moving else request.gathered_bytes + len(data)
            if request.gathered_bytes > bounds.MAX_HEADER_BYTES + bounds.MAX_TARGET_BYTES:
                self._refuse(too_large_head())

    def _refuse(self, refusal: RefusedError) -> None:
        """Raises it, unless requests before it are to be answered first."""
        self.refusal = refusal
        if not self.requests or self.requests[0] is self._current:
            raise refusal from None

    def _feed(self, data: bytes | memoryview) -> memoryview | None:
        """What is left of it behind the head of a request that would switch to another protocol.

        llhttp takes that head for a whole request, and what follows for the other protocol; but
        whoever does not switch reads on in this one (RFC 9110, 7.8). So another parser is given the
        same head, without what it would switch to.
        """
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as found:
            if self._switching is None:
                # CONNECT: a tunnel. It is refused, and then the connection ends.
                self.requests[-1].keep_alive = False
                self.refusal = RefusedError(400, "no other protocol is spoken on this connection")
                return None
            request, self._switching = self._switching, None
            self._parser = httptools.HttpRequestParser(self)
            for part in _head_of(request):
                self._parser.feed_data(part)
            return memoryview(data)[found.args[0] :]
        return None

    def _refusal_of(self, error: Exception) -> RefusedError:
        cause = error.__cause__ or error.__context__
        if isinstance(cause, RefusedError):
            return cause
        return RefusedError(400, f"not HTTP/1.1: {error}")

    # --- llhttp's calls -------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._current = Request()

    def on_url(self, url: bytes) -> None:
        request = self._now
        request.target += url
        request.size += len(url)
        if len(request.target) > bounds.MAX_TARGET_BYTES:
            raise too_long_target()

    def on_header(self, name: bytes, value: bytes) -> None:
        request = self._now
        if request.is_head_complete:
            # Behind a body. It is left out, as it is by whoever does not know it (RFC 9110, 6.5):
            # what a request says in its head was checked there.
            return
        name = name.lower()
        request.headers.append((name, value))
        request.size += len(name) + len(value)
        its_headers = request.size - len(request.target)
        if its_headers > bounds.MAX_HEADER_BYTES or len(request.headers) > bounds.MAX_HEADERS:
            raise too_large_head()
        if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise RefusedError(
                501,
                f"the transfer coding {shorten(value.decode('latin-1'))} is not known here",
                "send the body as it is, with a content-length or as `chunked`",
            )
        if name == b"expect" and value.lower() == b"100-continue":
            # Who speaks HTTP/1.0 knows no such word, whatever was passed on (RFC 9110, 10.1.1).
            request.expects = self._parser.get_http_version() != "1.0"

    def on_headers_complete(self) -> None:
        request = self._now
        request.method = self._parser.get_method().decode("ascii")
        request.version = self._parser.get_http_version()
        if self._parser.should_upgrade() and request.method != "CONNECT":
            self._switching = request
            return
        request.keep_alive = self._parser.should_keep_alive()
        request.is_head_complete = True
        self.requests.append(request)

    def on_body(self, body: bytes) -> None:
        request = self._now
        request.body += body
        request.body_bytes += len(body)

    def on_message_complete(self) -> None:
        self._now.is_complete = self._switching is None
        self._current = None

    @property
    def _now(self) -> Request:
        assert self._current is not None
        return self._current


def _head_of(request: Request) -> Iterator[bytes]:
    """As it came, but for the protocol that it would switch to."""
    yield b"%b %b HTTP/%b\r\n" % (request.method.encode(), request.target, request.version.encode())
    for name, value in request.headers:
        if name != b"upgrade":
            yield b"%b: %b\r\n" % (name, value)
    yield b"\r\n"


def too_long_target() -> RefusedError:
    return RefusedError(
        414,
        f"a path and query of more than {bounds.MAX_TARGET_BYTES} bytes",
        "send what is long in the body",
    )


def too_large_head() -> RefusedError:
    return RefusedError(
        431,
        f"more than {bounds.MAX_HEADERS} headers, or than {bounds.MAX_HEADER_BYTES} bytes of them",
        "send fewer cookies",
    )


def hung_up() -> RefusedError:
    """For who may still read it: half of the connection is open, or nobody is there."""
    return RefusedError(
        400,
        "the other side closed the connection before the answer was there, which is hanging up",
        "leave it open until then (`nc` without -N)",
    )


def stalled(stall_s: float) -> RefusedError:
    return RefusedError(408, f"nothing of the body came for {stall_s:g} s", "try again")
