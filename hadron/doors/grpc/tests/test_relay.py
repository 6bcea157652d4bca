"""How a relayed call ends, whose way to the node is here a list."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from hadron.doors.grpc.bridge import Lane
from hadron.doors.grpc.relay import Relay
from hadron.doors.grpc.rpc import Rpc
from hadron.doors.grpc.statuses import DETAILS, Status
from hadron.model.errors import ConnectionLostError, HadronError, UnreachableError
from hadron.wire.messages import method

Code = grpc.StatusCode

LOST = ConnectionLostError("the connection to n1 ended")


def ended(name: str, error: HadronError) -> Status:
    """How it ends for the program that the node has ended it so."""
    told: list[Status] = []
    ends: list[Any] = []
    other: Any = SimpleNamespace(finish=told.append)
    rpc = Rpc(Lane(lambda drain: drain()), other, "/", {}, "")
    relay = Relay(rpc, method(name), lambda _: None)

    def call(*_: object, on_end: Any, **__: object) -> Any:
        ends.append(on_end)
        return SimpleNamespace(writable=True, end=lambda: None)

    caller: Any = SimpleNamespace(call=call)
    relay.begin(caller)
    rpc.receive(b"")
    ends[0](error)
    return told[0]


@pytest.mark.parametrize("name", ["PublishMessages", "ApplySchema", "Call", "SignalInstance"])
def test_what_may_have_been_done_is_not_said_to_be_unavailable(name: str) -> None:
    status = ended(name, LOST)
    assert status.code is Code.UNKNOWN
    assert "the connection to n1 ended" in status.message
    assert b"RetryInfo" not in dict(status.trailers)[DETAILS]


@pytest.mark.parametrize("name", ["Fetch", "WatchSchema", "Subscribe"])
def test_what_may_be_repeated_is_unavailable(name: str) -> None:
    assert ended(name, LOST).code is Code.UNAVAILABLE


def test_what_was_not_sent_is_unavailable() -> None:
    status = ended("PublishMessages", UnreachableError("n1 cannot be reached"))
    assert status.code is Code.UNAVAILABLE
    assert b"RetryInfo" in dict(status.trailers)[DETAILS]
