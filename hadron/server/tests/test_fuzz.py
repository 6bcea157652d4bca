"""Requests of every method with whatever fields, from clients and from peers that have shaken
hands: each is answered or refused in words, and the node goes on with what it had."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from google.protobuf.descriptor import FieldDescriptor
from trio.testing import MockClock

from hadron.model.batch_building import encode_values
from hadron.model.errors import ConnectionLostError, DeadlineExceededError, HadronError
from hadron.model.tests import poison
from hadron.node.tests.support import assert_no_traceback, make_stream, produce
from hadron.testing.nodes import Nodes, running_nodes
from hadron.wire.connection import Connection
from hadron.wire.messages import METHODS, Method, method, replication_pb2

SEEDS: Final = range(2)
PER_METHOD: Final = 25

PEERS: Final = ("Replication", "Snapshots", "Integrity")
"""Services that only members of the set may use; the rest is for everybody."""

_TEXTS: Final = (
    "",
    "events",
    "local/p0",
    "default",
    "g",
    "n1",
    "n2",
    "n3",
    "nope",
    "earliest",
    "latest",
    "0",
    "Stream",
    "Namespace",
    "{}",
    '{"partitions": ["local/p0"]}',
    "test",
    "\0" * 5,
    "é" * 300,
    "x" * 70_000,
    "-1",
    "1e999",
    "default/events",
)
_NUMBERS: Final = (
    0,
    1,
    2,
    3,
    4,
    7,
    100,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 53,
    (1 << 62),
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
_LIMITS: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
}


def fill(rng: random.Random, message: Any, depth: int = 0) -> Any:
    """Give some fields values that are usual, huge or absurd."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.4:
            continue
        kind = field.cpp_type
        if kind == FieldDescriptor.CPPTYPE_MESSAGE:
            if depth > 3:
                continue
            inner = getattr(message, field.name)
            if field.message_type.GetOptions().map_entry:
                continue
            if field.is_repeated:
                for _ in range(rng.choice((0, 1, 2, 30))):
                    fill(rng, inner.add(), depth + 1)
            else:
                inner.SetInParent()
                fill(rng, inner, depth + 1)
        elif field.is_repeated:
            getattr(message, field.name).extend(
                _value(rng, field) for _ in range(rng.choice((0, 1, 3, 200)))
            )
        else:
            setattr(message, field.name, _value(rng, field))
    return message


def _value(rng: random.Random, field: Any) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return rng.choice((b"", bytes(16), rng.randbytes(16), rng.randbytes(40), b"\x93\1\2\3"))
        return rng.choice(_TEXTS)
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice((0, 1, 2, 3, 99))
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return rng.choice((0.0, -1.0, 1e308, float("nan"), float("inf")))
    low, high = _LIMITS[kind]
    return min(max(rng.choice(_NUMBERS), low), high)


def attachment(rng: random.Random) -> list[bytes]:
    return rng.choice(
        (
            [],
            [],
            [b"x"],
            [rng.randbytes(300)],
            [encode_values([b"v"], 1)],
            [rng.choice(list(poison.AT_THE_DOOR.values()))],
        )
    )


async def ask(connection: Connection, what: Method, message: Any, data: list[bytes]) -> str:
    """What the node made of it: "" or the error's words."""
    try:
        with trio.move_on_after(0.5):
            async with connection.open_stream(what, message, data) as stream:
                await stream.receive()
    except (ConnectionLostError, DeadlineExceededError):
        raise
    except HadronError as error:
        return str(error)
    return ""


def check_words(said: list[tuple[str, str]]) -> None:
    inside = [each for each in said if "inside the node" in each[1]]
    assert not inside, inside[:5]


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
async def test_as_a_client(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    """`acks` of writes are among it, so the good records come first, and are still there."""
    rng = random.Random(seed)
    said: list[tuple[str, str]] = []
    async with running_nodes(tmp_path, 1) as nodes:
        await make_stream(nodes, "kept")
        await make_stream(nodes)
        async with nodes.client() as client, client.producer("kept") as producer:
            await producer.send(b"good")
        for what in METHODS.values():
            if what.service in PEERS:
                continue
            async with nodes.connection("n1", "fuzzer") as connection:
                for _ in range(PER_METHOD):
                    message = fill(rng, what.request())
                    said.append((what.name, await ask(connection, what, message, attachment(rng))))
        check_words(said)
        assert nodes.status("n1").state == "serving"
        async with nodes.client() as client:
            with trio.fail_after(60):
                # A write may be good by chance; what was refused is not there.
                written = said.count(("Produce", "")) + said.count(("ProduceIf", ""))
                first, *others = [each.value async for each in client.read("kept")]
                assert (first, {*others} - {b"v"}) == (b"good", set())
                assert len(others) <= written
                async with client.producer("kept") as producer:
                    await producer.send(b"goes on")
    assert_no_traceback(caplog)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("target", ["n1", "n2"])
async def test_as_a_peer_that_has_shaken_hands(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture, seed: int, target: str
) -> None:
    rng = random.Random(seed)
    said: list[tuple[str, str]] = []
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        async with nodes.connection("n1") as leader:
            await produce(leader, b"good", timeout_s=30)
        await nodes.wait_in_step()
        for what in METHODS.values():
            if what.service not in PEERS:
                continue
            for _ in range(PER_METHOD // 5):
                async with as_n3_itself(nodes, target) as connection:
                    for _ in range(5):
                        message = within_the_ballot(rng, fill(rng, what.request()))
                        try:
                            error = await ask(connection, what, message, attachment(rng))
                        except ConnectionLostError:
                            break
                        said.append((what.name, error))
        check_words(said)
        await after(nodes)
    assert_no_traceback(caplog)


@asynccontextmanager
async def as_n3_itself(nodes: Nodes, target: str) -> AsyncIterator[Connection]:
    """One more connection of n3, as `target` sees it."""
    async with nodes.connection("n3") as other:
        answer, _ = await other.request(
            method("Handshake"), replication_pb2.HandshakeRequest(node="?")
        )
    async with nodes.connection(target, "n3") as connection:
        await connection.request(method("Handshake"), answer.identity)
        yield connection


def within_the_ballot(rng: random.Random, message: Any) -> Any:
    """A member may promise any ballot above ours, and is followed then: that is its right. So there
    are only old ballots and those that are no numbers."""
    for field, value in message.ListFields():
        if field.name in ("ballot", "promised"):
            value.epoch = rng.choice((0, 1, 1 << 63, (1 << 64) - 1))
            value.incarnation = rng.choice((0, 1, 1, 1 << 63, (1 << 64) - 1))
        elif field.name == "configurations":
            message.ClearField(field.name)
    return message


async def after(nodes: Nodes) -> None:
    """The set goes on, and everybody has the same."""
    async with nodes.client(request_timeout_s=120) as client:
        with trio.fail_after(120):
            async with client.producer("events") as producer:
                await producer.send(b"goes on")
            # A leader that was to look at its disk may lead anew meanwhile: a client waits for it.
            assert [each.value async for each in client.read("events")] == [b"good", b"goes on"]
    await nodes.wait_in_step()
    assert nodes.status("n2").last_lsn == nodes.status("n1").last_lsn


def test_every_method_is_tried() -> None:
    services = {what.service for what in METHODS.values()}
    assert set(PEERS) < services
    assert method("Append").service in PEERS
