"""A port that is another service's is named for what it is, at once."""

from __future__ import annotations

import pytest

from hadron.model.errors import StrangerError
from hadron.wire.frames import FrameDecoder, Kind, encode
from hadron.wire.strangers import answer_to, stranger

_SETTINGS = bytes.fromhex("00002a040000000000") + bytes(0x2A)


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it speaks HTTP"),
        (_SETTINGS, "HTTP/2, as gRPC does"),
        (b"GET / HTTP/1.0\r\n\r\n", "HTTP was spoken to"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP was spoken to"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03", "TLS is spoken there"),
    ],
)
def test_what_else_is_spoken(first: bytes, said: str) -> None:
    decoder = FrameDecoder()
    room = decoder.buffer()
    room[: len(first)] = first
    room.release()
    with pytest.raises(StrangerError, match=said) as caught:
        decoder.received(len(first))
    assert caught.value.hint
    assert not caught.value.retryable


def test_frames_are_no_strangers_nor_what_only_came_damaged() -> None:
    frame = b"".join(encode(Kind.PING, 0))
    assert stranger(frame) is None
    assert stranger(b"\0" + frame[1:]) is None


def test_who_asks_over_http_is_answered_over_http() -> None:
    error = stranger(b"GET / HTTP/1.1\r\n")
    assert error is not None
    answer = answer_to(error)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-length: %d" % len(body) in head
