"""Publishing while the leader answers nothing: what waits is counted, and told of as it is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from hadron.client.producing.publisher import Publisher
from hadron.doors.grpc import publishing
from hadron.doors.grpc.bridge import Lane
from hadron.doors.grpc.door import GrpcDoor
from hadron.doors.grpc.rpc import Rpc, Talk
from hadron.doors.grpc.tests.inner import InnerCall, a_door
from hadron.doors.grpc.tests.support import RECORDS, text
from hadron.doors.grpc.transacting import Transacting
from hadron.doors.held import Held
from hadron.wire._pb import records_pb2 as pb

MiB = 1 << 20


def request(*texts: str) -> pb.PublishRequest:
    return pb.PublishRequest(stream="s", records=[text(each) for each in texts])


async def publisher_of(door: GrpcDoor) -> Publisher:
    client = await door._clients.of("default")
    return (await client._standing.producer("s"))._publisher


def buffered(publisher: Publisher) -> int:
    """Records without an outcome."""
    senders = publisher._router.senders
    return sum(batch.count for each in senders for batch in each.accumulator.unresolved())


async def until_buffered(publisher: Publisher, count: int) -> None:
    with trio.fail_after(60):
        while buffered(publisher) < count:  # noqa: ASYNC110 - the producer has no event for it
            await trio.sleep(0.01)


async def test_requests_that_wait_for_a_majority_count_as_held(tmp_path: Path) -> None:
    async with a_door(tmp_path, 3, held_bytes=4 * MiB) as (door, client, nodes):
        await client.create_stream("s")
        publisher = await publisher_of(door)
        await nodes.crash("n2", "n3")
        block = "x" * (MiB - 100)
        calls = [InnerCall(door, RECORDS + "Publish", request(block)) for _ in range(10)]
        refused = calls[3:]
        assert [await each.wait() for each in refused] == ["RESOURCE_EXHAUSTED"] * len(refused)
        await until_buffered(publisher, 3)
        assert 3 * (MiB - 100) < door.held.bytes < 4 * MiB
        await nodes.start("n2", "n3")
        assert [await each.wait() for each in calls[:3]] == ["OK"] * 3
        assert not door.held.bytes


async def test_requests_of_a_stream_count_until_they_are_in_the_buffer(tmp_path: Path) -> None:
    async with a_door(tmp_path, 3) as (door, client, nodes):
        await client.create_stream("s")
        publisher = await publisher_of(door)
        await nodes.crash("n2", "n3")
        publisher.buffer._max_bytes = 1
        stream = InnerCall(door, RECORDS + "PublishStream")
        asked = [request(str(number)) for number in range(3)]
        for each in asked:
            stream.say(each)
        await until_buffered(publisher, 1)
        assert door.held.bytes == sum(each.ByteSize() for each in asked[1:])
        publisher.buffer._max_bytes = MiB
        publisher.buffer.look()
        await until_buffered(publisher, 3)
        assert not door.held.bytes
        stream.cancel()


async def test_what_finds_no_room_was_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "REQUEST_S", 0.2)
    async with a_door(tmp_path, 3) as (door, client, nodes):
        await client.create_stream("s")
        publisher = await publisher_of(door)
        await nodes.crash("n2", "n3")
        publisher.buffer._max_bytes = 1
        several = InnerCall(door, RECORDS + "Publish", request("a", "b", "c"))
        await until_buffered(publisher, 1)
        one = InnerCall(door, RECORDS + "Publish", request("d"))
        assert await one.wait() == "DEADLINE_EXCEEDED"
        assert one.status is not None
        assert one.status.message.startswith("1 record was not sent")
        await nodes.start("n2", "n3")
        assert await several.wait() == "DEADLINE_EXCEEDED"
        assert several.status is not None
        assert several.status.message.startswith("2 records were not sent")
        async with client.read("s") as records:
            assert [each.value async for each in records] == ["a"]


async def test_requests_of_several_records_do_not_wait_for_each_others_answers(
    tmp_path: Path,
) -> None:
    async with a_door(tmp_path, 3) as (door, client, nodes):
        await client.create_stream("s")
        publisher = await publisher_of(door)
        await nodes.crash("n2", "n3")
        stream = InnerCall(door, RECORDS + "PublishStream")
        for number in range(10):
            stream.say(request(f"{number} a", f"{number} b"))
        await until_buffered(publisher, 20)
        assert not stream.answers
        await nodes.start("n2", "n3")
        stream.end()
        assert await stream.wait() == "OK"
        runs = [pb.PublishResponse.FromString(each).runs for each in stream.answers]
        found = [(each[0].base_offset, sum(run.count for run in each)) for each in runs]
        assert found == [(offset, 2) for offset in range(0, 20, 2)]


async def test_a_statement_counts_as_held_until_it_is_in_its_transaction() -> None:
    held = Held(MiB, "calls", "")
    told: list[bytes] = []
    other: Any = SimpleNamespace(send=told.append)
    rpc = Rpc(Lane(lambda drain: drain()), other, "/", {}, "")
    rpc.share = held.share()
    may_publish = trio.Event()

    async def publish(*_: object, **__: object) -> None:
        await may_publish.wait()

    transaction: Any = SimpleNamespace(publish=publish)
    client: Any = SimpleNamespace(namespace="default")
    nothing: Any = None
    statement = pb.StatementRequest(publish=request("x" * 1_000))
    async with trio.open_nursery() as nursery:
        serve = Transacting(nothing, nothing)._serve
        nursery.start_soon(serve, Talk(rpc), client, transaction, {})
        rpc.receive(statement.SerializeToString())
        await trio.testing.wait_all_tasks_blocked()
        assert held.bytes == statement.ByteSize()
        may_publish.set()
        await trio.testing.wait_all_tasks_blocked()
        rpc.written(len(told[0]))
        assert not held.bytes
        nursery.cancel_scope.cancel()
