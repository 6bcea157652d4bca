"""Disks that fill up: what is refused, what goes on, and that it ends by itself (PROTOCOL B7)."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from hadron.model.errors import DeadlineExceededError, DiskFullError
from hadron.model.schema import Retention, SchemaObject, StreamSpec
from hadron.node.settings import Settings
from hadron.node.tests.support import STREAM, chains, fetch, make_stream, produce
from hadron.partition.room import Room
from hadron.storage.tests.test_space import RoomDisk
from hadron.testing.nodes import Nodes, running_nodes

RESERVE = Settings().disk_reserve_bytes
NONE, LITTLE = 0, RESERVE // 6
"""Room: less than an eighth of the reserve, and less than all of it."""


@asynccontextmanager
async def nodes_with_rooms(directory: Path) -> AsyncIterator[tuple[Nodes, dict[str, RoomDisk]]]:
    async with running_nodes(directory, 3, start=False) as nodes:
        rooms = {name: RoomDisk() for name in nodes.names}
        nodes.disks.update(rooms)
        await nodes.start()
        await nodes.wait_serving()
        await make_stream(nodes)
        yield nodes, rooms


async def refused(nodes: Nodes) -> DiskFullError | None:
    """Why a record is refused; None when it is accepted."""
    async with nodes.connection("n1") as connection:
        try:
            await produce(connection, b"value", timeout_s=10)
        except DiskFullError as error:
            return error
    return None


def is_low(nodes: Nodes, name: str) -> bool:
    return bool(nodes.status(name).trouble)


def room_of(nodes: Nodes) -> Room:
    leadership = nodes.node("n1").member._leadership
    assert leadership is not None
    return leadership.controller._room


async def test_the_leader_refuses_records_and_takes_acknowledgements(
    tmp_path: Path, clock: MockClock
) -> None:
    async with nodes_with_rooms(tmp_path) as (nodes, rooms):
        async with nodes.client() as client:
            async with client.producer(STREAM) as producer:
                for number in range(10):
                    await producer.send(str(number))
            async with client.subscribe(STREAM, group="g") as subscription:
                await (await anext(aiter(subscription))).ack()
            rooms["n1"].room = LITTLE
            await nodes.wait_for("low", lambda: "has room for" in nodes.status("n1").trouble)
            error = await refused(nodes)
            assert error is not None
            assert "make room on that disk" in error.hint
            head = nodes.status("n1").last_lsn
            async with client.subscribe(STREAM, group="g") as subscription:
                async for delivery in subscription:
                    await delivery.ack()
                    if delivery.value == "9":
                        break
            assert nodes.status("n1").last_lsn > head, "acknowledgements are logged"
        rooms["n1"].room = None
        await nodes.wait_for("room again", lambda: not nodes.status("n1").trouble)
        assert await refused(nodes) is None
        await nodes.wait_in_step()


async def test_retention_makes_room(tmp_path: Path, clock: MockClock) -> None:
    async with nodes_with_rooms(tmp_path) as (nodes, rooms):
        async with nodes.connection("n1") as connection:
            for _ in range(40):
                await produce(connection, bytes(200_000))
        rooms["n1"].room = RESERVE - 1
        await nodes.wait_for("low", lambda: bool(nodes.status("n1").trouble))
        # What is missing to go on is less than what is dropped below.
        rooms["n1"].room = RESERVE * 5 // 4 - (4 << 20)
        assert await refused(nodes) is not None
        spec = StreamSpec(partitions=("local/p0",), retention=Retention(max_bytes=1_000_000))
        async with nodes.client() as client:
            await client.apply(
                [SchemaObject(kind="Stream", name=STREAM, spec=spec)], allow_destructive=True
            )
        await nodes.wait_for("room again", lambda: not nodes.status("n1").trouble)
        assert await refused(nodes) is None


async def test_a_majority_without_room_is_as_good_as_a_leader_without(
    tmp_path: Path, clock: MockClock
) -> None:
    async with nodes_with_rooms(tmp_path) as (nodes, rooms):
        rooms["n2"].room = LITTLE
        await nodes.wait_for("low", lambda: bool(nodes.status("n2").trouble))
        for _ in range(3):
            assert await refused(nodes) is None, "two others have room"
        rooms["n3"].room = LITTLE
        await nodes.wait_for("low", lambda: bool(nodes.status("n3").trouble))
        # Its answer to an append tells of it, to this record's at the latest.
        await refused(nodes)
        await nodes.wait_for("known", lambda: room_of(nodes).is_low)
        await nodes.wait_in_step()
        error = await refused(nodes)
        assert error is not None
        assert "n2, n3" in error.message
        rooms["n2"].room = None
        # The leader asks again, though nobody writes anything that a replica would answer.
        await nodes.wait_for("room again", lambda: not room_of(nodes).is_low)
        assert await refused(nodes) is None
        await nodes.wait_in_step()


async def test_a_replica_without_any_room_writes_nothing_and_catches_up(
    tmp_path: Path, clock: MockClock
) -> None:
    async with nodes_with_rooms(tmp_path) as (nodes, rooms):
        rooms["n2"].room = NONE
        await nodes.wait_for("low", lambda: bool(nodes.status("n2").trouble))
        await nodes.wait_in_step()
        before = chains(nodes, "n2")
        for _ in range(20):
            assert await refused(nodes) is None
        assert chains(nodes, "n2") == before
        rooms["n2"].room = None
        await nodes.wait_for("equal", lambda: chains(nodes, "n2") == chains(nodes, "n1"))
        async with nodes.connection("n1") as connection:
            assert len(await fetch(connection)) == 20


@pytest.mark.long
async def test_who_stores_nothing_is_sent_nothing_and_named_once(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """n2 lacks what fills the window; without a word from it that was sent twenty times a second,
    and said each time."""
    caplog.set_level(logging.INFO)
    async with nodes_with_rooms(tmp_path) as (nodes, rooms):
        rooms["n2"].room = NONE
        await nodes.wait_for("low", lambda: bool(nodes.status("n2").trouble))
        async with nodes.connection("n1") as connection:
            for _ in range(10):
                await produce(connection, bytes(200_000), timeout_s=10)
        await nodes.wait_for("known", lambda: "n2" in room_of(nodes)._low)
        link = nodes.node("n1").member._links.links["n2"].connection
        assert link is not None
        before = link.sent_bytes
        for _ in range(100):
            await trio.sleep(0.1)
            assert "n2" in room_of(nodes)._low, "its connection has not ended"
        assert nodes.node("n1").member._links.links["n2"].connection is link
        assert link.sent_bytes - before < 100_000
        assert caplog.text.count("n2 is low on disk space") == 1
        assert caplog.text.count("feeding n2 ended") <= 1
        rooms["n2"].room = None
        await nodes.wait_for("equal", lambda: chains(nodes, "n2") == chains(nodes, "n1"))


async def test_a_majority_that_stores_nothing_has_records_refused(
    tmp_path: Path, clock: MockClock
) -> None:
    async with nodes_with_rooms(tmp_path) as (nodes, rooms):
        for name in ("n2", "n3"):
            rooms[name].room = NONE
        for name in ("n2", "n3"):
            await nodes.wait_for("low", partial(is_low, nodes, name))
        async with nodes.connection("n1") as connection:
            # Which the leader hears when it has appended something.
            with pytest.raises(DeadlineExceededError):
                await produce(connection, b"value", timeout_s=2)
        await nodes.wait_for("known", lambda: room_of(nodes).is_low)
        head = nodes.status("n1").last_lsn
        for _ in range(10):
            error = await refused(nodes)
            assert error is not None
            assert "n2, n3" in error.message
            await trio.sleep(0.1)
        assert nodes.status("n1").last_lsn == head
        for name in ("n2", "n3"):
            rooms[name].room = None
        await nodes.wait_for("room again", lambda: not room_of(nodes).is_low)
        assert await refused(nodes) is None
        await nodes.wait_in_step()
