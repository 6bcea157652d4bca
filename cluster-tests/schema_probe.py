"""What every node of a cluster has of the schema, asked on a bare connection to each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio
from crew import PATIENCE_S

from hadron.client import Client
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node.supervision.local_fleet import LocalFleet
from hadron.wire.connection import Connection
from hadron.wire.messages import method, schema_pb2
from hadron.wire.sockets import SocketNetwork

_GET: Final = method("GetObjects")


@asynccontextmanager
async def connected(fleet: LocalFleet) -> AsyncIterator[list[Connection]]:
    """A connection to every node."""
    async with trio.open_nursery() as nursery:
        connections = []
        for each in fleet.values():
            for node in each.config.nodes:
                transport = await SocketNetwork().dial(node.address)
                connections.append(Connection(transport, dialed=True))
                nursery.start_soon(connections[-1].run)
        yield connections
        for connection in connections:
            connection.close()


async def declare(client: Client, name: str, *partitions: str) -> int:
    """Declare a stream; returns the metadata index after it."""
    spec = StreamSpec(partitions=partitions)
    return (await client.apply([SchemaObject(kind="Stream", name=name, spec=spec)])).metadata_index


async def streams_at(connection: Connection, index: int) -> list[tuple[int, str]]:
    """(id, name) of every stream, as one node has them once it stands at `index`."""
    answer, _ = await connection.request(
        _GET,
        schema_pb2.GetObjectsRequest(
            kind="Stream", min_index=index, max_wait_ms=round(PATIENCE_S * 1_000)
        ),
    )
    return sorted((item.id, item.name) for item in answer.objects)


async def wait_index(fleet: LocalFleet, index: int) -> float:
    """Until every node stands at `index`, and all have the same streams; returns the seconds."""
    began_s = trio.current_time()
    async with connected(fleet) as connections:
        seen = [await streams_at(connection, index) for connection in connections]
    assert all(each == seen[0] for each in seen), seen
    return trio.current_time() - began_s
