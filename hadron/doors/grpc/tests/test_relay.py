"""How a relayed call ends, whose way to the node is here a list; and how many ways there are."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import trio.testing

from hadron.doors.grpc import relay
from hadron.doors.grpc.bridge import Lane
from hadron.doors.grpc.relay import Relay
from hadron.doors.grpc.rpc import Rpc
from hadron.doors.grpc.statuses import DETAILS, Status
from hadron.doors.grpc.tests.inner import InnerCall, a_door
from hadron.model.errors import ConnectionLostError, HadronError, UnreachableError
from hadron.wire.messages import cluster_pb2, method, schema_pb2
from hadron.wire.tunnel import Tunnel

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


STATUS = "/hadron.v1.Cluster/Status"
WATCH = "/hadron.v1.Schema/WatchSchema"


async def test_connections_that_are_over_take_no_place(tmp_path: Path) -> None:
    """A program may open one for each call; gRPC does not tell when it has closed it."""
    async with a_door(tmp_path) as (door, _, _nodes):
        for number in range(1_001):
            peer = f"ipv4:10.0.0.1:{number}"
            call = InnerCall(door, STATUS, cluster_pb2.StatusRequest(), peer=peer)
            assert await call.wait() == "OK"
        assert len(door._relays._ways) == 1_000


async def test_who_has_calls_keeps_its_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_MAX_CONNECTIONS", 2)

    def watch(peer: str) -> InnerCall:
        return InnerCall(door, WATCH, schema_pb2.WatchSchemaRequest(), peer=peer)

    async with a_door(tmp_path) as (door, _, _nodes):
        first, second = watch("a"), watch("b")
        await first.until(1)
        await second.until(1)
        refused = watch("c")
        assert await refused.wait() == "RESOURCE_EXHAUSTED"
        assert refused.status is not None
        assert "2 connections have calls under way" in refused.status.message
        second.cancel()
        third = watch("c")
        await third.until(1)
        await trio.testing.wait_all_tasks_blocked()
        assert list(door._relays._ways) == ["a", "c"]
        assert first.status is None
        first.cancel()
        third.cancel()


async def test_names_of_sets_are_not_kept(tmp_path: Path) -> None:
    async with a_door(tmp_path) as (door, _, _nodes):
        for number in range(20):
            name = {relay.REPLICA_SET: f"local/x{number}"}
            call = InnerCall(door, STATUS, cluster_pb2.StatusRequest(), **name)
            assert await call.wait() != "OK"
        del call
        await trio.testing.wait_all_tasks_blocked()
        gc.collect()
        assert not [each for each in gc.get_objects() if isinstance(each, Tunnel)]
