"""Bad requests and damaged bytes at a real node: one clear error, and nobody else notices."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import xxhash
from trio.testing import MockClock

from hadron.fakes.connections import SimTransport
from hadron.fakes.network import SimNetwork
from hadron.model.batch import BatchHead
from hadron.model.batch_building import encode_values
from hadron.model.bodies import BatchBody
from hadron.model.errors import (
    CorruptionError,
    FencedError,
    FrameError,
    HadronError,
    HandshakeError,
    InvalidRecordError,
    MetadataBehindError,
    NotFoundError,
    NotLeaderError,
    NotReadyError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    RecordTooLargeError,
    RequestError,
    SchemaError,
    SequenceError,
    UnknownMethodError,
)
from hadron.model.limits import MAX_BATCH_BYTES
from hadron.model.schema import NamespaceSpec, SchemaObject
from hadron.node import accepting
from hadron.node.tests.support import (
    FETCH,
    OFFSETS,
    PRODUCE,
    assert_no_traceback,
    fetch,
    make_stream,
    produce,
)
from hadron.testing.nodes import Nodes, running_nodes
from hadron.wire import frames
from hadron.wire.connection import Connection
from hadron.wire.frames import Kind
from hadron.wire.messages import (
    METHODS,
    Audience,
    Method,
    common_pb2,
    groups_pb2,
    method,
    pipelines_pb2,
    replication_pb2,
    schema_pb2,
    streams_pb2,
)

GOOD = encode_values([b"good"], 1)


@asynccontextmanager
async def one_node(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[tuple[Nodes, Connection]]:
    """A node with a stream and one good record, which must be all that is there at the end; and a
    bystander's connection, which must work throughout."""
    async with running_nodes(directory, 1) as nodes:
        await make_stream(nodes)
        async with nodes.connection("n1", "bystander") as bystander:
            await produce(bystander, b"good")
            async with nodes.connection("n1") as connection:
                yield nodes, connection
            assert await fetch(bystander) == [b"good"]
            await produce(bystander, b"still writable")
            assert nodes.status("n1").state == "serving"
    assert_no_traceback(caplog)


def head(**fields: Any) -> bytes:
    """A batch whose head says what it likes, with a right checksum."""
    body = msgspec.msgpack.encode(BatchBody(vo=memoryview(bytes(8)), ve=memoryview(b"\0")))
    packed = msgspec.msgpack.encode(
        BatchHead(n=1, ts=memoryview(bytes(8)), raw=len(body), **fields)
    )
    data = bytearray(
        struct.pack("<4sQB3xII", b"HRB1", 0, 0, len(packed), len(body)) + packed + body
    )
    struct.pack_into("<Q", data, 4, xxhash.xxh3_64_intdigest(memoryview(data)[12:]))
    return bytes(data)


def flipped(data: bytes, index: int) -> bytes:
    return data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]


HUGE = (1 << 63) + 5

BAD_PRODUCES: dict[str, tuple[dict[str, Any], bytes, type[HadronError], str]] = {
    "no batch": ({}, b"", CorruptionError, "shorter than its prefix"),
    "garbage": ({}, b"garbage" * 10, CorruptionError, "starts with"),
    "damaged": ({}, flipped(GOOD, len(GOOD) - 1), CorruptionError, "checksum"),
    "truncated": ({}, GOOD[:-1], CorruptionError, "says it has"),
    "oversized": ({}, bytes(MAX_BATCH_BYTES + 1), RecordTooLargeError, "over the limit"),
    "unknown stream": ({"stream": "nope"}, GOOD, NotFoundError, "'nope' does not exist"),
    "unknown partition": ({"partition": "x/y"}, GOOD, NotFoundError, "no partition 'x/y'"),
    "unknown acks": ({"acks": 9}, GOOD, RequestError, "unknown acks 9"),
    "unknown producer": ({}, head(pid=b"p" * 16, seq=7), SequenceError, "continues at sequence 7"),
    "sequence too large": ({}, head(pid=b"p" * 16, seq=HUGE), CorruptionError, "sequence"),
    "epoch too large": ({}, head(pid=b"p" * 16, seq=0, pep=HUGE), CorruptionError, "sequence"),
    "a type that is a pattern": ({}, head(t=["a.*"]), InvalidRecordError, "'a.*' is not a type"),
    "no records": ({}, head(pid=b"p" * 5), CorruptionError, "producer id"),
}


@pytest.mark.parametrize("name", list(BAD_PRODUCES))
async def test_a_bad_batch(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    fields, batch, error, says = BAD_PRODUCES[name]
    async with one_node(tmp_path, caplog) as (_, connection):
        request = streams_pb2.ProduceRequest(**{"stream": "events", **fields})
        with pytest.raises(error, match=says):
            await connection.request(PRODUCE, request, [batch])
        with pytest.raises(error, match=says):
            await connection.request(PRODUCE, request, [batch])


async def test_no_single_damaged_byte_of_a_batch_is_taken(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with one_node(tmp_path, caplog) as (_, connection):
        for index in range(len(GOOD)):
            with pytest.raises(CorruptionError):
                await connection.request(
                    PRODUCE, streams_pb2.ProduceRequest(stream="events"), [flipped(GOOD, index)]
                )


BAD_QUESTIONS: dict[str, tuple[Method, Any, type[HadronError], str]] = {
    "offset above the end": (
        FETCH,
        streams_pb2.FetchRequest(stream="events", offset=2),
        OffsetOutOfRangeError,
        "offset 2 is out of range, the partition has 0 to 1",
    ),
    "offset beyond integers": (
        FETCH,
        streams_pb2.FetchRequest(stream="events", offset=(1 << 64) - 1),
        OffsetOutOfRangeError,
        "out of range",
    ),
    "unknown stream": (
        OFFSETS,
        streams_pb2.OffsetsRequest(stream="nope"),
        NotFoundError,
        "does not exist",
    ),
    "unknown namespace": (
        FETCH,
        streams_pb2.FetchRequest(stream="events", namespace="nope"),
        NotFoundError,
        "namespace 'nope'",
    ),
    "the latest of a stream without an index": (
        method("Latest"),
        streams_pb2.LatestRequest(stream="events", key_hash=1),
        RequestError,
        "has no index of keys",
    ),
    "a claim of no name": (
        method("ClaimProducer"),
        streams_pb2.ClaimProducerRequest(stream="events", after=0),
        RequestError,
        "0 characters",
    ),
    "a claim of a huge name": (
        method("ClaimProducer"),
        streams_pb2.ClaimProducerRequest(stream="events", name="x" * 101),
        RequestError,
        "101 characters",
    ),
    "a claim with a huge token": (
        method("ClaimProducer"),
        streams_pb2.ClaimProducerRequest(stream="events", name="n", after=0, token=b"t" * 17),
        RequestError,
        "17 bytes",
    ),
    "a claim after one that never was": (
        method("ClaimProducer"),
        streams_pb2.ClaimProducerRequest(stream="events", name="n", after=(1 << 64) - 1),
        ProducerFencedError,
        "was opened again",
    ),
    "a subscription that does not open": (
        method("Subscribe"),
        groups_pb2.SubscribeRequest(),
        RequestError,
        "begins with `open`",
    ),
    "a group without a name": (
        method("Subscribe"),
        groups_pb2.SubscribeRequest(open=groups_pb2.SubscribeRequest.Open(stream="events")),
        RequestError,
        "not a valid name",
    ),
    "an unknown pipeline": (
        method("PipelineProgress"),
        pipelines_pb2.PipelineProgressRequest(pipeline="nope"),
        NotFoundError,
        "does not exist",
    ),
    "an unknown status": (
        method("ListInstances"),
        pipelines_pb2.ListInstancesRequest(pipeline="nope", status="odd"),
        RequestError,
        "unknown status 'odd'",
    ),
    "a completion of nothing": (
        method("CompleteStages"),
        pipelines_pb2.CompleteStagesRequest(pipeline_id=HUGE, instance_ids=[HUGE], attempts=[1]),
        NotFoundError,
        f"the id {HUGE}",
    ),
    "an unknown kind of object": (
        method("ApplySchema"),
        schema_pb2.ApplySchemaRequest(objects=[schema_pb2.SchemaObject(kind="Odd", name="x")]),
        SchemaError,
        "Odd",
    ),
    "a specification that is no JSON": (
        method("ApplySchema"),
        schema_pb2.ApplySchemaRequest(
            objects=[schema_pb2.SchemaObject(kind="Stream", name="x", spec_json="{")]
        ),
        SchemaError,
        "malformed",
    ),
    "a deletion of what is not there": (
        method("DeleteObjects"),
        schema_pb2.DeleteObjectsRequest(
            names=[schema_pb2.DeleteObjectsRequest.Name(kind="Stream", name="nope")]
        ),
        SchemaError,
        "Stream default/nope: it does not exist",
    ),
    "a push by nobody": (
        method("AdoptSchema"),
        schema_pb2.AdoptSchemaRequest(),
        HandshakeError,
        "takes it from 'local/p0'",
    ),
    "an index that nobody has": (
        method("GetObjects"),
        schema_pb2.GetObjectsRequest(min_index=HUGE),
        MetadataBehindError,
        f"not yet at {HUGE}",
    ),
    "a stream's id that nobody has": (
        FETCH,
        streams_pb2.FetchRequest(stream_id=HUGE),
        NotFoundError,
        f"the id {HUGE}",
    ),
    "a stream's id that has not come yet": (
        FETCH,
        streams_pb2.FetchRequest(stream_id=HUGE, metadata_index=HUGE),
        MetadataBehindError,
        f"not yet at {HUGE}",
    ),
    **{
        f"{each} without a handshake": (each, each.request(), NotReadyError, "shake hands first")
        for each in METHODS.values()
        if each.audience is Audience.MEMBERS
    },
}


@pytest.mark.parametrize(
    ("values", "asks", "error", "says"),
    [
        ((b"a", b"b"), {"expect_offset": 1}, RequestError, "for one record, and the batch has 2"),
        ((b"a",), {"expect_key_offset": -1}, RequestError, "has no index of keys"),
        ((b"a",), {"last_sequence": 1}, RequestError, "has no name here"),
        ((b"a",), {"last_sequence": 1 << 63}, RequestError, "out of bounds"),
        ((b"a",), {"expect_offset": 1 << 63}, RequestError, "out of bounds"),
    ],
)
async def test_what_cannot_be_asked_of_a_batch(
    tmp_path: Path,
    clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    values: tuple[bytes, ...],
    asks: dict[str, int],
    error: type[HadronError],
    says: str,
) -> None:
    request = streams_pb2.ProduceRequest(stream="events")
    for name, value in asks.items():
        setattr(request, name, value)
    async with one_node(tmp_path, caplog) as (_, connection):
        with pytest.raises(error, match=says):
            await connection.request(method("ProduceIf"), request, [encode_values(values, 1)])


@pytest.mark.parametrize("name", list(BAD_QUESTIONS))
async def test_a_bad_question(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    what, request, error, says = BAD_QUESTIONS[name]
    async with one_node(tmp_path, caplog) as (_, connection):
        with pytest.raises(error, match=says):
            await connection.request(what, request, timeout_s=10)


@pytest.mark.parametrize("start", ["never", "-1", "²", "9" * 30, "2", "1.5"])
async def test_a_group_that_starts_nowhere(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture, start: str
) -> None:
    opening = groups_pb2.SubscribeRequest.Open(
        stream="events", group="g", start=start, max_in_flight=10
    )
    async with one_node(tmp_path, caplog) as (_, connection):
        with pytest.raises(RequestError, match=r"cannot start at"):
            await connection.request(
                method("Subscribe"), groups_pb2.SubscribeRequest(open=opening), timeout_s=10
            )


async def test_a_subscriber_that_says_end_at_once_leaves_its_group(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its call was over before it had become a member; nothing may be held back for it."""
    opening = groups_pb2.SubscribeRequest.Open(stream="events", group="g", max_in_flight=10)
    async with one_node(tmp_path, caplog) as (nodes, connection):
        connection.call(
            method("Subscribe"),
            groups_pb2.SubscribeRequest(open=opening),
            on_message=lambda _message, _attachment: None,
            end=True,
        )
        async with nodes.client() as client:
            await nodes.wait_for("created", lambda: nodes.status("n1").committed_lsn >= 4)
            group = (await client.groups())[0]
            assert (group.members, group.in_flight) == (0, 0)


async def test_a_schema_that_no_replica_could_be_sent(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A command larger than a frame's message would be logged and never replicated."""
    objects = [
        schema_pb2.SchemaObject(
            kind="Namespace",
            name=f"space{number}",
            spec_json='{"description": "' + "x" * 4_900 + '"}',
        )
        for number in range(700)
    ]
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        async with nodes.connection("n1") as connection:
            with pytest.raises(RecordTooLargeError, match="do it in several smaller steps"):
                await connection.request(
                    method("ApplySchema"), schema_pb2.ApplySchemaRequest(objects=objects)
                )
        async with nodes.client() as client:
            await client.apply([SchemaObject(kind="Namespace", name="ok", spec=NamespaceSpec())])
        await nodes.wait_in_step()
    assert_no_traceback(caplog)


# --- bytes --------------------------------------------------------------------------------------


async def answers_to(nodes: Nodes, data: bytes) -> tuple[list[frames.Frame], SimTransport]:
    """What a node says to raw bytes, until it closes or has nothing more to say."""
    transport = await nodes.network.host("vandal").dial(nodes.config.leader.address)
    transport.send_some([data])
    decoder = frames.FrameDecoder()
    found: list[frames.Frame] = []
    while not found:
        count = await transport.receive_into(decoder.buffer())
        if count == 0:
            break
        found.extend(decoder.received(count))
    return found, transport


@pytest.mark.long
async def test_every_flipped_byte_of_a_frame_is_noticed(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    message = streams_pb2.ProduceRequest(stream="events").SerializeToString()
    whole = b"".join(
        map(bytes, frames.encode(Kind.OPEN, 1, message, [GOOD], method=PRODUCE.number, flags=1))
    )
    async with one_node(tmp_path, caplog) as (nodes, _):
        for index in range(len(whole)):
            # What follows completes a frame whose lengths have grown a little.
            data = flipped(whole, index) + bytes(512)
            found, transport = await answers_to(nodes, data)
            if 12 <= index < 20 and found[0].kind is Kind.PING:
                # A length that has grown by much: nothing is served, the rest is waited for.
                transport.close()
                continue
            assert (found[0].kind, found[0].call) == (Kind.ERROR, 0), index
            said = common_pb2.Error.FromString(bytes(found[0].message))
            assert said.code == "FrameError"
            assert await transport.receive_into(memoryview(bytearray(1))) == 0
            transport.close()


async def test_an_unfinished_frame_holds_nobody_up(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    message = streams_pb2.ProduceRequest(stream="events").SerializeToString()
    whole = b"".join(
        map(bytes, frames.encode(Kind.OPEN, 1, message, [GOOD], method=PRODUCE.number, flags=1))
    )
    async with one_node(tmp_path, caplog) as (nodes, _):
        for cut in (1, 27, 28, 40, len(whole) - 1):
            transport = await nodes.network.host("vandal").dial(nodes.config.leader.address)
            transport.send_some([whole[:cut]])
            transport.close()


async def test_more_connections_than_there_are_files_for(
    tmp_path: Path,
    clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accepting, "most_connections", lambda _doors: 10)
    async with one_node(tmp_path, caplog) as (nodes, connection):
        host = nodes.network.host("vandal")
        idle = [await host.dial(nodes.config.leader.address) for _ in range(30)]
        with trio.fail_after(10):
            # It is the last ones that are closed, once they have not said that they are nodes.
            while await idle[-1].receive_into(memoryview(bytearray(64))):
                pass
        assert await fetch(connection) == [b"good"]
        for each in idle:
            each.close()
        await nodes.wait_for("closed", lambda: nodes.status("n1").connections < 10)
        async with nodes.connection("n1") as another:
            assert await fetch(another) == [b"good"]
    told = [each for each in caplog.records if "connections are open" in each.getMessage()]
    assert len(told) == 1


async def test_a_burst_does_not_overrun_the_limit_of_connections(
    tmp_path: Path,
    clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of it may be accepted before any task of a connection has begun."""
    monkeypatch.setattr(accepting, "most_connections", lambda _doors: 10)
    async with one_node(tmp_path, caplog) as (nodes, _):
        acceptor = nodes.node("n1").member.acceptor
        await nodes.wait_for("both are there", lambda: acceptor.connections == 2)
        network = SimNetwork()
        waiting = await network.host("door").listen("door:1")
        burst = [await network.host("vandal").dial("door:1") for _ in range(50)]
        taken = [await waiting.accept() for _ in burst]

        class Burst:
            async def accept(self) -> SimTransport:
                if not taken:
                    await trio.sleep_forever()
                return taken.pop()

        async with trio.open_nursery() as nursery:
            listener: Any = Burst()
            nursery.start_soon(acceptor._accept, listener, nursery)
            await nodes.wait_for("taken", lambda: not taken)
            assert acceptor.connections == 10
            nursery.cancel_scope.cancel()
        assert acceptor.connections == 2
        for each in burst:
            each.close()


async def test_an_unknown_method(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with one_node(tmp_path, caplog) as (nodes, connection):
        data = b"".join(map(bytes, frames.encode(Kind.OPEN, 1, b"", method=9_999, flags=1)))
        found, transport = await answers_to(nodes, data)
        said = common_pb2.Error.FromString(bytes(found[0].message))
        assert (said.code, found[0].call) == (UnknownMethodError.__name__, 1)
        transport.close()
        assert await fetch(connection) == [b"good"]


# --- peers --------------------------------------------------------------------------------------


@asynccontextmanager
async def as_n3(nodes: Nodes) -> AsyncIterator[Connection]:
    """A connection to n2 of somebody who introduces itself as n3."""
    async with nodes.connection("n2", "n3") as connection:
        async with nodes.connection("n2") as other:
            answer, _ = await other.request(
                method("Handshake"), replication_pb2.HandshakeRequest(node="?")
            )
        introduction = answer.identity
        introduction.node = "n3"
        await connection.request(method("Handshake"), introduction)
        yield connection


def ballot(incarnation: int = 1, epoch: int = 1) -> common_pb2.Ballot:
    return common_pb2.Ballot(epoch=epoch, incarnation=incarnation)


def position(lsn: int, incarnation: int = 1) -> replication_pb2.LogPosition:
    return replication_pb2.LogPosition(lsn=lsn, ballot=ballot(incarnation), chain=bytes(16))


EMPTY = replication_pb2.LogPosition(chain=bytes(16), ballot=ballot(0, 0))

BAD_PEERS: dict[str, tuple[str, Any, type[HadronError]]] = {
    "a promise beyond integers": (
        "Promise",
        replication_pb2.PromiseRequest(ballot=ballot(HUGE)),
        FrameError,
    ),
    "an epoch beyond integers": (
        "Append",
        replication_pb2.AppendRequest(ballot=ballot(1, HUGE)),
        FrameError,
    ),
    "a predecessor beyond integers": (
        "Append",
        replication_pb2.AppendRequest(ballot=ballot(), previous=position(HUGE)),
        FrameError,
    ),
    "a question about an lsn beyond integers": (
        "Probe",
        replication_pb2.ProbeRequest(ballot=ballot(9), lsn=HUGE),
        FrameError,
    ),
    "a question under an old ballot": (
        "Probe",
        replication_pb2.ProbeRequest(ballot=ballot(0), lsn=1),
        FencedError,
    ),
    "reading from before the log": (
        "ReadLog",
        replication_pb2.ReadLogRequest(ballot=ballot(9), from_lsn=0),
        HadronError,
    ),
    "reading beyond integers": (
        "ReadLog",
        replication_pb2.ReadLogRequest(ballot=ballot(9), from_lsn=HUGE),
        FrameError,
    ),
    "bodies that are not there": (
        "Append",
        replication_pb2.AppendRequest(
            ballot=ballot(), previous=EMPTY, entries=[replication_pb2.Entry(lsn=1, body_length=5)]
        ),
        FrameError,
    ),
}


@pytest.mark.parametrize("name", list(BAD_PEERS))
async def test_a_peer_that_sends_nonsense(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    what, request, error = BAD_PEERS[name]
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        async with as_n3(nodes) as connection:
            with pytest.raises(error):
                await connection.request(method(what), request, timeout_s=10)
        async with nodes.connection("n1") as leader:
            await produce(leader, b"goes on", timeout_s=30)
        await nodes.wait_in_step()
    assert_no_traceback(caplog)


async def test_entries_with_a_wrong_chain_are_refused_by_a_running_replica(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        async with as_n3(nodes) as connection:
            answer, _ = await connection.request(
                method("Probe"), replication_pb2.ProbeRequest(ballot=ballot(), lsn=2)
            )
            request = replication_pb2.AppendRequest(
                ballot=ballot(),
                previous=answer.position,
                entries=[replication_pb2.Entry(lsn=3, ballot=ballot(), command=b"x", chain=b"?")],
            )
            with pytest.raises(HadronError, match="arrived with chain"):
                await connection.request(method("Append"), request)
        async with nodes.connection("n1") as leader:
            await produce(leader, b"goes on", timeout_s=30)
        await nodes.wait_in_step()
        assert nodes.status("n2").last_lsn == nodes.status("n1").last_lsn


async def test_a_replica_serves_no_clients(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        async with nodes.connection("n2") as connection:
            with pytest.raises(NotLeaderError, match=r"n2 is a replica.*leader is n1 at n1:7000"):
                await produce(connection, b"x")
    assert_no_traceback(caplog)
