"""What the tests of whole nodes share: a stream, raw requests, and looking at disks and logs.

Files of live nodes are read with the SQLite that the nodes use: a second copy of the library in
the same process would drop the first one's locks when it closes a file.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Literal

import pytest

from hadron.client import Client
from hadron.model.batch_building import encode_values
from hadron.model.record_batch import decode_batch
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.storage.database import open_reader
from hadron.testing.nodes import Nodes
from hadron.wire.connection import Connection
from hadron.wire.messages import method, streams_pb2

STREAM = "events"
MAJORITY, LEADER, ALL = streams_pb2.ACKS_MAJORITY, streams_pb2.ACKS_LEADER, streams_pb2.ACKS_ALL

FETCH, OFFSETS, PRODUCE = method("Fetch"), method("Offsets"), method("Produce")


async def make_stream(nodes: Nodes, name: str = STREAM) -> None:
    """Declare a stream with its one partition here."""
    spec = StreamSpec(partitions=("local/p0",))
    async with nodes.client() as client:
        await client.apply([SchemaObject(kind="Stream", name=name, spec=spec)])


async def send(
    client: Client,
    values: Sequence[str | bytes],
    *,
    acks: Literal["leader", "majority", "all"] = "majority",
) -> None:
    async with client.producer(STREAM, acks=acks) as producer:
        for value in values:
            await producer.send(value)


async def read_all(client: Client) -> list[Any]:
    """Every visible value."""
    return [record.value async for record in client.read(STREAM)]


async def produce(
    connection: Connection,
    *values: bytes,
    acks: streams_pb2.Acks = MAJORITY,
    producer_id: bytes = b"",
    sequence: int = -1,
    timeout_s: float | None = None,
) -> streams_pb2.ProduceResponse:
    """One batch on a bare connection: no retries, no other node."""
    batch = encode_values(values, 1, producer_id=producer_id, sequence=sequence)
    answer, _ = await connection.request(
        PRODUCE, streams_pb2.ProduceRequest(stream=STREAM, acks=acks), [batch], timeout_s=timeout_s
    )
    assert isinstance(answer, streams_pb2.ProduceResponse)
    return answer


async def fetch(connection: Connection, offset: int = 0) -> list[bytes]:
    """Values from `offset` on, as far as they are visible."""
    answer, attachment = await connection.request(
        FETCH, streams_pb2.FetchRequest(stream=STREAM, offset=offset, max_bytes=1 << 20)
    )
    values: list[bytes] = []
    start = 0
    for info in answer.batches:
        batch = decode_batch(attachment[start : start + info.length])
        values.extend(record.value for record in batch.records())
        start += info.length
    return values


async def visible_end(connection: Connection) -> int:
    answer, _ = await connection.request(OFFSETS, streams_pb2.OffsetsRequest(stream=STREAM))
    end: int = answer.partitions[0].next_offset
    return end


def chains(nodes: Nodes, name: str) -> list[tuple[int, bytes]]:
    """(lsn, chain) of every entry on a node's disk."""
    with closing(open_reader(nodes.data(name) / "hadron.db")) as database:
        rows: list[Any] = database.execute(
            "SELECT lsn, chain FROM hadron_log ORDER BY lsn"
        ).fetchall()
        return rows


def is_member(nodes: Nodes, name: str) -> bool:
    """Whether a node's disk may count in a majority."""
    with closing(open_reader(nodes.data(name) / "node.db")) as database:
        row = database.execute("SELECT is_member FROM identity").fetchone()
    return row is not None and bool(row[0])


async def replace_disk(nodes: Nodes, name: str) -> None:
    """The node comes back with an empty disk; returns once that has been taught, and counts."""
    await nodes.crash(name)
    nodes.wipe(name)
    await nodes.start(name)
    await nodes.wait_for("a member", lambda: is_member(nodes, name))


async def wait_for_lost_memory(nodes: Nodes, needed: int = 2) -> None:
    """Until n1, which is to lead, says that too few disks remember the log."""
    says = f"{needed} members that remember"
    await nodes.wait_for("refusing", lambda: says in nodes.status("n1").trouble)
    assert nodes.status("n1").memories_missing in range(1, needed + 1)


def assert_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody logged an exception, and nothing worse than a warning."""
    assert not [
        record.getMessage()
        for record in caplog.records
        if record.exc_info or record.levelno >= logging.ERROR
    ]
