"""What all calls of a door hold together, and what that costs each of them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import trio
import trio.testing
from grpc_health.v1 import health_pb2

from hadron.doors.grpc.bridge import Lane
from hadron.doors.grpc.health import CHECK
from hadron.doors.grpc.limits import SMALL_BYTES
from hadron.doors.grpc.rpc import Rpc, Talk
from hadron.doors.grpc.tests.inner import InnerCall, a_door
from hadron.doors.grpc.tests.support import CALLS, RECORDS, text
from hadron.doors.grpc.working import _Runner
from hadron.doors.held import Held
from hadron.wire._pb import calls_pb2, stages_pb2
from hadron.wire._pb import records_pb2 as pb

Code = grpc.StatusCode


class Stranger:
    """A call whose program takes nothing by itself."""

    def __init__(self, held: Held) -> None:
        self.sent: list[bytes] = []
        self.heard: list[bytes] = []
        self.ends: list[Any] = []
        other: Any = SimpleNamespace(send=self.sent.append, cut=self.ends.append)
        self.rpc = Rpc(Lane(lambda drain: drain()), other, "/", {}, "")
        self.rpc.share = held.share()
        self.rpc.on_message = self.heard.append


def test_what_is_small_has_room_whatever_others_hold() -> None:
    held = Held(100, "calls", "read them")
    held.share().take(100)
    call = Stranger(held)
    call.rpc.send(b"x")
    call.rpc.receive(b"ack")
    assert (call.sent, call.heard, call.ends) == ([b"x"], [b"ack"], [])
    assert held.bytes == 104


def test_little_by_little_is_not_small() -> None:
    """Else four thousand calls hold 1 MiB each of what is small."""
    held = Held(100, "calls", "read them")
    held.share().take(100)
    sending, receiving = Stranger(held), Stranger(held)
    for _ in range(2):
        sending.rpc.send(bytes(SMALL_BYTES // 2))
        receiving.rpc.receive(bytes(SMALL_BYTES // 2))
    assert not sending.rpc.may_send(1)
    assert not sending.ends
    assert not receiving.ends
    sending.rpc.send(b"x")
    receiving.rpc.receive(b"x")
    assert [each.ends[0].code for each in (sending, receiving)] == [
        Code.UNKNOWN,
        Code.RESOURCE_EXHAUSTED,
    ]


async def test_a_stream_at_a_full_door_waits_for_its_program_and_is_not_ended() -> None:
    held = Held(100, "calls", "read them")
    held.share().take(100)
    call = Stranger(held)
    talk = Talk(call.rpc)
    async with trio.open_nursery() as nursery:
        await talk.send(bytes(SMALL_BYTES - 1))
        nursery.start_soon(talk.send, b"xy")
        await trio.testing.wait_all_tasks_blocked()
        assert len(call.sent) == 1
        call.rpc.written(SMALL_BYTES - 1)
    assert call.sent[1:] == [b"xy"]
    assert not call.ends


def test_what_is_large_leaves_room_for_what_is_smaller() -> None:
    held = Held(10 * SMALL_BYTES, "calls", "read them")
    calls = [Stranger(held) for _ in range(4)]
    for each in calls:
        each.rpc.receive(bytes(4 * SMALL_BYTES))
    assert [bool(each.ends) for each in calls] == [False, True, True, True]
    smaller = Stranger(held)
    smaller.rpc.receive(bytes(2 * SMALL_BYTES))
    assert not smaller.ends


async def test_an_output_counts_as_held_until_its_attempt_has_ended() -> None:
    held = Held(8 << 20, "calls", "read them")
    call = Stranger(held)
    talk, go_on = Talk(call.rpc), trio.Event()

    class Invocation:
        async def complete(self, *_: Any, **_more: Any) -> None:
            await go_on.wait()

    runner = _Runner(talk, 10)
    said = 0
    for runner._last in range(1, 4):
        runner._open[runner._last] = Invocation()  # type: ignore[assignment]
        output = text("x" * SMALL_BYTES)
        complete = stages_pb2.WorkRequest.Complete(id=runner._last, output=output)
        data = stages_pb2.WorkRequest(complete=complete).SerializeToString()
        said += len(data)
        call.rpc.receive(data)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runner.listen, nursery)
        await trio.testing.wait_all_tasks_blocked()
        assert held.bytes == said
        go_on.set()
        await trio.testing.wait_all_tasks_blocked()
        assert len(call.sent) == 3
        assert held.bytes == sum(map(len, call.sent))
        call.rpc.ended()


async def test_calls_that_wait_end_nobody_elses(tmp_path: Path) -> None:
    async with a_door(tmp_path, held_bytes=8 << 20) as (door, client, nodes):
        await client.create_stream("s")
        where = {"name": "e", "replica_set": nodes.config.name}
        await client.apply(json.dumps({"kind": "Endpoint"} | where))
        opening = pb.ConsumeRequest.Open(stream="s", group="g")
        member = InnerCall(door, RECORDS + "Subscribe", pb.ConsumeRequest(open=opening))
        await member.until(1)
        asked = trio.Event()

        async def never(_value: bytes) -> None:
            asked.set()
            await trio.sleep_forever()

        async with client.serve("e", never):
            value = pb.Value(data=bytes((4 << 20) - 100))
            request = calls_pb2.SingleCallRequest(endpoint="e", value=value)
            calls = [InnerCall(door, CALLS + "Call", request) for _ in range(2)]
            await asked.wait()
            assert await calls[1].wait() == "RESOURCE_EXHAUSTED"
            for number in range(1, 4):
                await client.send("s", bytes(SMALL_BYTES // 2))
                await member.until(1 + number)
                ack = pb.ConsumeRequest.Ack(ids=[number])
                member.say(pb.ConsumeRequest(ack=ack))
            health = InnerCall(door, CHECK, health_pb2.HealthCheckRequest())
            assert await health.wait() == "OK"
            assert len(member.answers) == 4
            assert member.status is None
            assert calls[0].status is None
            member.cancel()
            calls[0].cancel()
