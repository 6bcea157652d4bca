"""Whatever is gathered fits into frames, and keeps its order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadron.model.errors import CallFailedError
from hadron.model.limits import MAX_CALL_HEADER_BYTES, MAX_CALL_ITEMS
from hadron.wire import frames
from hadron.wire.call_items import ERROR, OPEN, VALUE, CallItems
from hadron.wire.frames import Kind
from hadron.wire.messages import endpoints_pb2 as pb
from hadron.wire.messages import error_to_message


def say(gathering: CallItems, number: int, what: str) -> bytes:
    """One item of its largest kind; returns its value."""
    text = "\N{HOURGLASS}" * 100_000
    if what == "error":
        item = gathering.add(number, ERROR)
        item.error.CopyFrom(error_to_message(CallFailedError(text, text)))
        gathering.weigh(item)
        return b""
    item = gathering.add(number, OPEN if what == "open" else VALUE)
    value = bytes(3_000_000) if what == "large" else number.to_bytes(2, "big")
    gathering.put(item, 1, value, is_last=True)
    if what == "open":
        item.open.headers["h"] = "ü" * (MAX_CALL_HEADER_BYTES // 2 - 1)
        gathering.weigh(item)
    elif what == "headers":
        gathering.head(item, {"h": "ü" * (MAX_CALL_HEADER_BYTES // 2 - 1)})
    return value


@pytest.mark.long
@pytest.mark.parametrize("what", ["error", "open", "headers", "large", "small"])
def test_many_of_a_kind_fit_into_frames(what: str) -> None:
    gathering = CallItems(pb.CallResponse)
    count = 20 if what == "large" else 2_500
    values = [say(gathering, number, what) for number in range(count)]
    numbers, data = list[int](), b""
    for message, chunks in gathering.take():
        frames.encode(Kind.MESSAGE, 1, message.SerializeToString(), chunks)
        assert 0 < len(message.items) <= MAX_CALL_ITEMS
        numbers += [item.number for item in message.items]
        data += b"".join(map(bytes, chunks))
    assert numbers == list(range(count))
    assert data == b"".join(values)
    assert not gathering
    assert not gathering.take()


@given(st.lists(st.sampled_from(["error", "open", "headers", "small"]), max_size=200))
def test_any_mixture_fits(said: list[str]) -> None:
    gathering = CallItems(pb.ServeResponse)
    values = b"".join(say(gathering, number, what) for number, what in enumerate(said))
    assert bool(gathering) == bool(said)
    gathered = gathering.take()
    for message, chunks in gathered:
        frames.encode(Kind.MESSAGE, 1, message.SerializeToString(), chunks)
    assert sum(len(message.items) for message, _ in gathered) == len(said)
    assert b"".join(bytes(chunk) for _, chunks in gathered for chunk in chunks) == values


def test_what_is_given_up_is_not_said() -> None:
    gathering = CallItems(pb.CallRequest)
    for number in range(MAX_CALL_ITEMS + 1):
        say(gathering, number, "small")
    assert gathering.size == 2 * (MAX_CALL_ITEMS + 1)
    gathering.clear()
    assert (gathering.size, gathering.take()) == (0, [])
