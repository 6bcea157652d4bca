"""What else than frames comes from a port that was taken for another one: told at once, by name."""

from __future__ import annotations

from typing import Final

from hadron.model.errors import StrangerError

_REQUESTS: Final = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"PATC", b"OPTI", b"CONN", b"TRAC")
"""What a request begins with, over HTTP/1."""
_PREFACE: Final = b"PRI "
"""The same over HTTP/2, and gRPC."""
_TLS: Final = (b"\x16\x03", b"\x15\x03")

_SETTINGS: Final = b"\x04"
"""The kind of the first frame of HTTP/2."""

_OWN_PORT: Final = "hadron:// wants a node's own port, `address:` in its configuration (7000)"


def stranger(first: bytes) -> StrangerError | None:
    """What these first bytes look like that are no frame's; None where that is unknown."""
    if first.startswith(_TLS):
        return StrangerError(
            "TLS is spoken there", "frames are not encrypted: put a tunnel between"
        )
    if first.startswith(b"HTTP/"):
        return StrangerError("it speaks HTTP", f"is it a node's port for HTTP (7200)? {_OWN_PORT}")
    if first[:1] == b"\0" and first[3:4] == _SETTINGS and first[5:9] == bytes(4):
        return StrangerError(
            "it speaks HTTP/2, as gRPC does",
            f"for a node's port for gRPC write grpc://HOST:PORT; {_OWN_PORT}",
        )
    if first.startswith((*_REQUESTS, _PREFACE)):
        return StrangerError(
            "HTTP was spoken to a port for Hadron's frames",
            "HTTP and gRPC have ports of their own, `http:` and `grpc:` in the node's "
            "configuration (7200 is HTTP's with `hadron dev`); hadron:// is for this one",
        )
    return None


def answer_to(error: StrangerError) -> bytes:
    """Who asked over HTTP is told so in HTTP. (gRPC's libraries say then what they have met.)"""
    text = f"error: {error.message}\nhint: {error.hint}\n".encode()
    head = (
        b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n"
        b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(text)
    )
    return head + text
