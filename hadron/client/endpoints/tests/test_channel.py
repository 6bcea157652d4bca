"""A client's calls to one replica set, without a network."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from hadron.client.endpoints.calls import told
from hadron.client.endpoints.channel import Channel
from hadron.client.endpoints.items import Packed
from hadron.model.errors import (
    CallUnknownError,
    DeadlineExceededError,
    HadronError,
    OverloadedError,
    RequestError,
)
from hadron.wire.call_items import Item
from hadron.wire.messages import endpoints_pb2


class Waiting:
    """`channel.Waiter`."""

    def __init__(self) -> None:
        self.error: HadronError | None = None

    def value(self, packed: Packed, item: Item) -> None:
        raise NotImplementedError

    def end(self, item: Item) -> None:
        raise NotImplementedError

    def fail(self, error: HadronError, _item: Item | None) -> None:
        self.error = error

    def credit(self, size: int) -> None:
        raise NotImplementedError


def test_a_region_that_no_message_takes_is_refused() -> None:
    """It would end the client, as other calls are opened by the same message."""
    with pytest.raises(RequestError, match="has 5000000 characters"):
        told("shout", 1.0, "x" * 5_000_000, None)


def a_channel(scopes: list[anyio.CancelScope]) -> Channel:
    def start(*_function: Any) -> anyio.CancelScope:
        scopes.append(anyio.CancelScope())
        return scopes[-1]

    session: Any = SimpleNamespace(background=SimpleNamespace(start=start))
    channel = Channel(session, "r/p0")
    channel.start()
    channel.received(endpoints_pb2.CallResponse(), memoryview(b""))
    return channel


@pytest.mark.parametrize("headers", [["a"], "text", [("a", "b")], 5])
def test_headers_that_are_no_mapping_are_refused(headers: Any) -> None:
    with pytest.raises(RequestError, match=r"headers are an? ") as raised:
        told("shout", 1.0, "", headers)
    assert raised.value.hint == "give a dict of texts by name"


@pytest.mark.parametrize("reason", [RequestError("no"), OverloadedError("no")])
async def test_why_a_stream_ended_is_not_what_became_of_its_calls(reason: HadronError) -> None:
    """Either says that nothing was done, and who hears it calls again."""
    scopes: list[anyio.CancelScope] = []
    channel = a_channel(scopes)
    waiting, idempotent = Waiting(), Waiting()
    told = endpoints_pb2.CallOpening(timeout_ms=1_000)
    channel.open(waiting, told, (0, b"v"), end=True)
    channel.open(idempotent, told, (0, b"v"), end=True, may_repeat=True)
    channel.failed(reason)
    assert isinstance(waiting.error, CallUnknownError)
    assert not waiting.error.retryable
    assert isinstance(idempotent.error, CallUnknownError)
    assert idempotent.error.retryable
    assert [scope.cancel_called for scope in scopes] == [False, True, True]
    with pytest.raises(type(reason)):
        await channel.wait_ready()


@pytest.mark.parametrize("may_repeat", [False, True])
@pytest.mark.usefixtures("autojump_clock")
async def test_a_silent_leader_costs_the_time_that_the_program_has_given(
    monkeypatch: pytest.MonkeyPatch, may_repeat: bool
) -> None:
    """And not what the last try had of it."""
    channel, waiting = a_channel([]), Waiting()
    monkeypatch.setattr(channel._stream, "probe", lambda: None)
    told = endpoints_pb2.CallOpening(timeout_ms=983)
    channel.open(waiting, told, (0, b"v"), end=True, within_s=2.0, may_repeat=may_repeat)
    with anyio.move_on_after(3):
        await channel._sweep()
    assert isinstance(waiting.error, DeadlineExceededError)
    assert "within 2 s" in waiting.error.message
    assert waiting.error.retryable is may_repeat
