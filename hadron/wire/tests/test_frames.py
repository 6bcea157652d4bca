"""Frames: a round trip in whatever pieces the bytes arrive, and no damage that passes."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadron.model.errors import FrameError
from hadron.model.limits import MAX_ATTACHMENT_BYTES, MAX_MESSAGE_BYTES
from hadron.wire.frames import HEADER, Frame, FrameDecoder, Kind, encode

_frame = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(Kind),
        "call": st.integers(0, (1 << 32) - 1),
        "message": st.binary(max_size=300) | st.binary(min_size=4090, max_size=4100),
        "attachments": st.lists(st.binary(max_size=200), max_size=3),
        "method": st.integers(0, (1 << 16) - 1),
        "flags": st.integers(0, (1 << 16) - 1),
    }
)


def to_bytes(frame: dict[str, object]) -> bytes:
    return b"".join(map(bytes, encode(**frame)))  # type: ignore[arg-type]


def feed(decoder: FrameDecoder, data: bytes, sizes: list[int]) -> list[Frame]:
    """Give `data` to the decoder in pieces of `sizes`, again and again."""
    frames: list[Frame] = []
    position, turn = 0, 0
    while position < len(data):
        buffer = decoder.buffer()
        count = min(sizes[turn % len(sizes)], len(buffer), len(data) - position)
        assert count > 0
        buffer[:count] = data[position : position + count]
        del buffer
        frames.extend(decoder.received(count))
        position += count
        turn += 1
    return frames


@pytest.mark.parametrize("size", [65_000, 65_500, 65_536, 65_600, 200_000, 262_144, 1_100_000])
@pytest.mark.parametrize("first", [1, 28, 2_048, 65_536, 1 << 20])
def test_there_is_always_room_for_the_next_bytes(size: int, first: int) -> None:
    """Whatever the buffers' sizes and the frame's have in common."""
    data = b"".join(map(bytes, encode(Kind.OPEN, 1, b"", [bytes(size - HEADER.size)])))
    decoder = FrameDecoder()
    found = feed(decoder, data + data, [first, 1 << 20])
    assert [len(each.attachment) for each in found] == [size - HEADER.size] * 2


def plain(frame: Frame) -> tuple[object, ...]:
    return (*frame[:4], bytes(frame.message), bytes(frame.attachment))


@given(st.lists(_frame, max_size=8), st.lists(st.integers(1, 5000), min_size=1, max_size=5))
def test_what_is_encoded_is_decoded_however_it_is_cut(
    frames: list[dict[str, object]], sizes: list[int]
) -> None:
    check_cut(frames, sizes)


def check_cut(frames: list[dict[str, object]], sizes: list[int]) -> None:
    decoder = FrameDecoder()
    found = feed(decoder, b"".join(map(to_bytes, frames)), sizes)
    assert [plain(frame) for frame in found] == [
        (
            frame["kind"],
            frame["method"],
            frame["flags"],
            frame["call"],
            frame["message"],
            b"".join(frame["attachments"]),  # type: ignore[arg-type]
        )
        for frame in frames
    ]
    assert not decoder.mid_frame


@pytest.mark.parametrize("size", [1, 28, 1000, 32_767, 65_536, 1 << 20])
def test_frames_larger_than_the_buffer(size: int) -> None:
    attachment = bytes(range(256)) * (2_000_000 // 256)
    data = b"".join(
        b"".join(map(bytes, encode(Kind.MESSAGE, call, b"m" * 70_000, [attachment])))
        for call in (1, 3)
    ) + b"".join(map(bytes, encode(Kind.PING, 0)))
    sizes = [size] if size > 900 else [size, 50_000]
    found = feed(FrameDecoder(), data, sizes)
    assert [frame.call for frame in found] == [1, 3, 0]
    assert all(bytes(frame.attachment) == attachment for frame in found[:2])


def test_earlier_frames_are_not_overwritten_by_later_ones() -> None:
    decoder = FrameDecoder()
    first = feed(decoder, to_bytes({"kind": Kind.OPEN, "call": 1, "message": b"first" * 100}), [99])
    feed(decoder, to_bytes({"kind": Kind.OPEN, "call": 3, "message": b"other" * 100}), [99])
    assert bytes(first[0].message) == b"first" * 100


def test_little_memory_while_little_comes_and_much_at_once_when_much_does() -> None:
    decoder = FrameDecoder()
    ack = to_bytes({"kind": Kind.MESSAGE, "call": 1, "message": b"a" * 40})
    assert len(feed(decoder, ack * 200, [len(ack)])) == 200
    assert len(decoder.buffer()) <= 4_096
    assert len(feed(decoder, ack * 200, [100_000])) == 200
    assert len(decoder.buffer()) > 32_768


@given(_frame, st.data())
def test_a_flipped_bit_anywhere_never_passes(frame: dict[str, object], data: Any) -> None:
    whole = to_bytes(frame)
    check_flip(whole, data.draw(st.integers(0, len(whole) * 8 - 1)))


def check_flip(whole: bytes, bit: int) -> None:
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << (bit % 8)
    decoder = FrameDecoder()
    try:
        found = feed(decoder, bytes(damaged), [4096])
    except FrameError:
        return
    # A length that grew: the decoder waits for the rest, and has given nothing out.
    assert found == []
    assert decoder.mid_frame


@given(st.lists(_frame.map(to_bytes) | st.binary(max_size=60), max_size=4), st.data())
def test_of_any_bytes_only_whole_frames_come_out(pieces: list[bytes], data: Any) -> None:
    """Cut off at either end, with anything between and behind them."""
    check_any(b"".join(pieces), data.draw(st.integers(0, 3)), data.draw(st.integers(0, 30)))


def check_any(data: bytes, front: int, behind: int) -> None:
    data = data[front : len(data) - behind]
    decoder, found, refused = FrameDecoder(), list[Frame](), ""
    try:
        for start in range(0, len(data), 1_000):
            found += feed(decoder, data[start : start + 1_000], [997])
    except FrameError as error:
        refused = str(error)
    whole = b"".join(map(again, found))
    assert data.startswith(whole)
    assert refused or decoder.mid_frame == (len(whole) < len(data))


def again(frame: Frame) -> bytes:
    fields = frame._asdict()
    return to_bytes(fields | {"attachments": [fields.pop("attachment")]})


# The same, with thousands of examples, which are drawn fast and do not become smaller when one
# fails.


def drawn_frame(rng: random.Random) -> dict[str, object]:
    return {
        "kind": rng.choice(list(Kind)),
        "call": rng.getrandbits(32),
        "message": rng.randbytes(rng.choice((0, 1, rng.randrange(300), rng.randrange(4090, 4100)))),
        "attachments": [rng.randbytes(rng.randrange(200)) for _ in range(rng.randrange(4))],
        "method": rng.getrandbits(16),
        "flags": rng.getrandbits(16),
    }


def drawn_cut(rng: random.Random) -> None:
    # Small pieces of few frames, or it takes half a minute.
    most, longest = rng.choice(((2, 30), (4, 300), (8, 5_000)))
    frames = [drawn_frame(rng) for _ in range(rng.randint(0, most))]
    check_cut(frames, [rng.randint(1, longest) for _ in range(rng.randint(1, 5))])


def drawn_flip(rng: random.Random) -> None:
    whole = to_bytes(drawn_frame(rng))
    # Half of them in the header, which is the smaller part.
    check_flip(whole, rng.randrange(8 * rng.choice((HEADER.size, len(whole)))))


def drawn_bytes(rng: random.Random) -> None:
    pieces = [
        to_bytes(drawn_frame(rng)) if rng.random() < 0.7 else rng.randbytes(rng.randrange(60))
        for _ in range(rng.randrange(5))
    ]
    check_any(b"".join(pieces), rng.choice((0, 0, 0, 1, 3)), rng.choice((0, 0, 1, 30)))


@pytest.mark.parametrize("check", [drawn_cut, drawn_flip, drawn_bytes])
def test_thousands_of_frames(check: Callable[[random.Random], None]) -> None:
    for seed in range(5_000):
        try:
            check(random.Random(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_every_byte_of_a_frame_is_covered() -> None:
    frame = {"kind": Kind.OPEN, "call": 1, "message": b"hello", "attachments": [b"records"]}
    good = to_bytes(frame)
    for index in range(len(good)):
        for value in (0x00, 0xFF, good[index] ^ 0x01):
            damaged = bytearray(good)
            damaged[index] = value
            if damaged == good:
                continue
            decoder = FrameDecoder()
            try:
                assert feed(decoder, bytes(damaged), [1000]) == []
            except FrameError:
                continue
            assert decoder.mid_frame


def header(**changes: int | bytes) -> bytes:
    fields: dict[str, int | bytes] = {
        "magic": b"HD",
        "version": 1,
        "kind": 1,
        "method": 1,
        "flags": 0,
        "call": 1,
        "message": 0,
        "attachment": 0,
        "checksum": 0,
    }
    return HEADER.pack(*(fields | changes).values())


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP was spoken to a port"),
        (header(magic=b"XX"), r"starts with b'XX'.*native protocol"),
        (header(version=2), "version 2, this side speaks 1"),
        (header(message=MAX_MESSAGE_BYTES + 1), f"announces {MAX_MESSAGE_BYTES + 1} bytes"),
        (header(attachment=MAX_ATTACHMENT_BYTES + 1), "the limits are"),
        (header(message=0xFFFF_FFFF, attachment=0xFFFF_FFFF), "announces 4294967295"),
        (header(), "does not match its checksum"),
    ],
)
def test_what_is_no_frame_is_refused_with_a_reason(data: bytes, says: str) -> None:
    with pytest.raises(FrameError) as raised:
        feed(FrameDecoder(), data, [1000])
    assert raised.match(says)


def test_an_unknown_kind_is_refused() -> None:
    whole = bytearray(to_bytes({"kind": Kind.PING, "call": 0}))
    whole[3] = 99
    import xxhash

    struct.pack_into("<Q", whole, 20, xxhash.xxh3_64_intdigest(whole[:20]))
    with pytest.raises(FrameError, match="unknown kind 99"):
        feed(FrameDecoder(), bytes(whole), [1000])


def test_nothing_over_the_limits_is_encoded() -> None:
    with pytest.raises(FrameError, match="over the limits"):
        encode(Kind.OPEN, 1, bytes(MAX_MESSAGE_BYTES + 1))
    with pytest.raises(FrameError, match="over the limits"):
        encode(Kind.OPEN, 1, b"", [bytes(MAX_ATTACHMENT_BYTES), b"x"])
    encode(Kind.OPEN, 1, bytes(MAX_MESSAGE_BYTES), [bytes(MAX_ATTACHMENT_BYTES)])
