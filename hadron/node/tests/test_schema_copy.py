"""What a node answers about the schema while its own tables may be ahead of the watermark."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from hadron.model.errors import FencedError, HadronError, NotLeaderError, NotReadyError
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node.tests.support import make_stream
from hadron.server.schema import to_message
from hadron.serving.schema_copy import SchemaCopy
from hadron.testing.nodes import Nodes, running_nodes
from hadron.wire.budget import LEAST_BYTES, READING_BYTES
from hadron.wire.messages import method, schema_pb2, streams_pb2

GET = method("GetObjects")


async def names(nodes: Nodes, node: str, *, latest: bool = False) -> list[str]:
    async with nodes.connection(node) as connection:
        answer, _ = await connection.request(
            GET, schema_pb2.GetObjectsRequest(kind="Stream", latest=latest), timeout_s=10
        )
    return [item.name for item in answer.objects]


async def test_replicas_answer_with_what_is_committed(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes, "a")
        await nodes.wait_for(
            "known everywhere", lambda: {nodes.status(n).metadata_index for n in nodes.names} == {1}
        )
        assert [await names(nodes, node) for node in nodes.names] == [["a"]] * 3
        # It knows it after a restart as well, without its leader.
        await nodes.crash("n1", "n2", "n3")
        await nodes.start("n3")
        await nodes.wait_for("known", lambda: nodes.status("n3").metadata_index == 1)
        assert await names(nodes, "n3") == ["a"]


async def test_the_latest_is_known_to_who_leads_now(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes, "a")
        await nodes.wait_in_step()
        assert await names(nodes, "n1", latest=True) == ["a"]
        with pytest.raises(NotLeaderError):
            await names(nodes, "n2", latest=True)
        await nodes.crash("n2", "n3")
        assert await names(nodes, "n1") == ["a"]
        with pytest.raises(NotReadyError, match="1 of 3 members"):
            await names(nodes, "n1", latest=True)


async def test_who_is_answered_by_a_replica_that_is_behind_asks_the_next_one(
    tmp_path: Path, clock: MockClock
) -> None:
    """The leader is away, and the node that was met first was cut off from it before."""
    async with running_nodes(tmp_path, 3) as nodes:
        await nodes.wait_in_step()
        async with nodes.client(through=["n3"]) as client:
            nodes.network.isolate(nodes.host("n3"), nodes.host("n1"), nodes.host("n2"))
            await client.create_stream("a")
            await nodes.wait_in_step("n1", "n2")
            await nodes.crash("n1")
            assert [item.name for item in await client.objects("Stream")] == ["a"]


async def test_a_change_that_is_not_committed_is_shown_nowhere(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes, "a")
        await nodes.wait_in_step()
        await nodes.crash("n2", "n3")

        async def declare() -> None:
            """As who has looked before: a client asks first, and no majority answers."""
            item = SchemaObject(kind="Stream", name="b", spec=StreamSpec(partitions=("local/p0",)))
            request = schema_pb2.ApplySchemaRequest(objects=[to_message(item)])
            async with nodes.connection("n1") as connection:
                with pytest.raises(HadronError):
                    await connection.request(method("ApplySchema"), request)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(declare)
            await nodes.wait_for(
                "written", lambda: nodes.status("n1").last_lsn > nodes.status("n1").committed_lsn
            )
            assert await names(nodes, "n1") == ["a"]
            # Its tables have it now, and nobody can say whether it is committed.
            await nodes.restart("n1")
            with pytest.raises(NotReadyError):
                await names(nodes, "n1")
            nursery.cancel_scope.cancel()
        await nodes.start("n2")
        await nodes.wait_serving()
        assert await names(nodes, "n1") == ["a", "b"]
        await nodes.wait_for("known", lambda: nodes.status("n2").metadata_index == 2)
        assert await names(nodes, "n2") == ["a", "b"]


async def test_a_leadership_that_has_ended_is_let_go(tmp_path: Path, clock: MockClock) -> None:
    """Its catalog stays, as what is known; its parts, and what they hold in memory, do not."""
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes)
        await nodes.wait_in_step()
        member = nodes.node("n1").member
        leadership = member._leadership
        assert leadership is not None
        assert leadership.leading is not None
        catalog = leadership.leading.catalog
        assert catalog._listeners
        leadership.controller.stop(FencedError("another ballot is needed"))
        await nodes.wait_for("ended", lambda: not catalog._listeners)
        await nodes.wait_serving()


async def test_who_watches_without_a_majority_keeps_nobody_from_reading(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change is written and not committed, so nobody may be told of it: as many wait as could
    fill all the room that there is for reading."""
    waiting = 0
    settled = SchemaCopy.settled

    async def counted(copy: SchemaCopy) -> None:
        nonlocal waiting
        waiting += 1
        await settled(copy)
        waiting -= 1

    monkeypatch.setattr(SchemaCopy, "settled", counted)
    watches = 4 * READING_BYTES // LEAST_BYTES
    async with running_nodes(tmp_path, 3) as nodes:
        await make_stream(nodes, "a")
        async with nodes.client() as client, client.producer("a") as producer:
            await producer.send(b"x")
        # It is read from the disk from here on.
        await nodes.restart("n1")
        await nodes.wait_serving()
        await nodes.wait_in_step()
        await nodes.crash("n2", "n3")
        stream = SchemaObject(kind="Stream", name="b", spec=StreamSpec(partitions=("local/p0",)))
        apply = schema_pb2.ApplySchemaRequest(objects=[to_message(stream)])
        told: list[int] = []
        async with (
            nodes.connection("n1") as one,
            nodes.connection("n1") as two,
            nodes.connection("n1") as reader,
        ):
            one.call(method("ApplySchema"), apply, on_message=lambda *_: None)
            await nodes.wait_for(
                "written", lambda: nodes.status("n1").last_lsn > nodes.status("n1").committed_lsn
            )
            for connection in (one, two) * (watches // 2):
                connection.call(
                    method("WatchSchema"),
                    schema_pb2.WatchSchemaRequest(),
                    on_message=lambda message, _: told.append(message.to_index),
                )
            await nodes.wait_for("all wait", lambda: waiting == watches)
            fetch = streams_pb2.FetchRequest(stream="a")
            _, records = await reader.request(method("Fetch"), fetch, timeout_s=1)
            assert records
            assert not told
            await nodes.start("n2")
            await nodes.wait_for("told", lambda: told == [2] * watches)
