"""What those cost who ask for much of the schema and read slowly: what a connection may hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from hadron.model.schema import NamespaceSpec, SchemaObject, spec_to_json
from hadron.server import schema as schema_service
from hadron.server.schema import to_message
from hadron.state import adoption
from hadron.state.adoption import StoredObject
from hadron.testing.nodes import running_nodes
from hadron.wire.budget import CONNECTION_BYTES
from hadron.wire.messages import method, schema_pb2

WATCH, GET = method("WatchSchema"), method("GetObjects")
OBJECTS, OBJECT_BYTES, WATCHES = 300, 5_000, 40
ALLOWED_BYTES = CONNECTION_BYTES + (4 << 20)


class Slow:
    """A transport that counts what was read from it, and reads little at a time, while it may."""

    def __init__(self, transport: Any) -> None:
        self.transport = transport
        self.read_bytes = 0
        self.may_read = trio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    async def receive_into(self, buffer: memoryview) -> int:
        await self.may_read.wait()
        count: int = await self.transport.receive_into(buffer[: 64 << 10])
        self.read_bytes += count
        return count


def namespaces(count: int = OBJECTS) -> list[SchemaObject]:
    spec = NamespaceSpec(description="x" * OBJECT_BYTES)
    return [SchemaObject(kind="Namespace", name=f"n{number}", spec=spec) for number in range(count)]


async def test_many_watches_of_one_slow_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty times 1.5 MB are asked for in 400 bytes: what was read from the tables and has not come
    to the watcher is what the connection may hold, however little it takes. Each is told all."""
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await client.apply(namespaces())
        async with nodes.connection("n1", host="slow") as connection:
            slow = Slow(connection._transport)
            slow.may_read.set()
            monkeypatch.setattr(connection, "_transport", slow)
            read = most = 0

            def stored(*row: Any) -> StoredObject:
                nonlocal read, most
                read += 1
                most = max(most, read * OBJECT_BYTES - slow.read_bytes)
                return StoredObject(*row)

            monkeypatch.setattr(adoption, "StoredObject", stored)
            told: list[set[int]] = [set() for _ in range(WATCHES)]
            ended = 0
            all_ended = trio.Event()

            def watch(number: int) -> None:
                def on_message(message: Any, _attachment: memoryview) -> None:
                    nonlocal ended
                    call.consumed(message.ByteSize())
                    told[number].update(item.id for item in message.objects)
                    if not message.more_follows:
                        ended += 1
                        if ended == WATCHES:
                            all_ended.set()

                request = schema_pb2.WatchSchemaRequest(from_index=0)
                call = connection.call(WATCH, request, on_message=on_message)

            for number in range(WATCHES):
                watch(number)
            with trio.fail_after(60):
                await all_ended.wait()
        assert all(len(ids) == OBJECTS for ids in told)
        assert most <= ALLOWED_BYTES


async def test_pages_that_nobody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen of 3 MB, each asked for in 2 bytes: a node made all that came in one turn."""
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        for start in range(0, 2 * OBJECTS, OBJECTS // 2):
            await client.apply(namespaces(2 * OBJECTS)[start : start + OBJECTS // 2])
        made = 0

        def counted(item: SchemaObject) -> Any:
            nonlocal made
            made += len(spec_to_json(item.spec))
            return to_message(item)

        async with (
            nodes.connection("n1", host="slow") as connection,
            nodes.connection("n1") as other,
        ):
            # It reads no further from here on.
            slow = Slow(connection._transport)
            monkeypatch.setattr(connection, "_transport", slow)
            await other.request(GET, schema_pb2.GetObjectsRequest(limit=1))
            monkeypatch.setattr(schema_service, "to_message", counted)
            answers: list[Any] = []
            request = schema_pb2.GetObjectsRequest()
            # All in one write, and so in one turn of the node's.
            with connection._cork:
                for _ in range(16):
                    connection.call(GET, request, on_message=lambda *said: answers.append(said))
            # Whoever asks after them is answered after them, so that all were.
            await other.request(GET, request)
            assert made <= ALLOWED_BYTES
            slow.may_read.set()
            await nodes.wait_for("all", lambda: len(answers) == 16)
