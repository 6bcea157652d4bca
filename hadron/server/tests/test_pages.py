"""Lists that are longer than a frame: they come in pages, and nothing is missing or twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hadron.client.consuming import groups
from hadron.client.schema import catalog
from hadron.model.errors import RequestError
from hadron.model.pipelines import PipelineSpec, Retry, StageSpec
from hadron.model.schema import NamespaceSpec, SchemaObject, StreamSpec
from hadron.server.pipelines import calls as pipeline_calls
from hadron.state.groups.progress import AckRecords, CreateGroup
from hadron.testing.nodes import running_nodes
from hadron.wire.messages import groups_pb2, method, pipelines_pb2, schema_pb2

GET, LIST = method("GetObjects"), method("ListGroups")


def space(name: str, description: str = "") -> SchemaObject:
    return SchemaObject(kind="Namespace", name=name, spec=NamespaceSpec(description=description))


def stream(name: str) -> SchemaObject:
    return SchemaObject(kind="Stream", name=name, spec=StreamSpec(partitions=("local/p0",)))


async def test_objects_over_the_size_of_a_frame(tmp_path: Path) -> None:
    """1,200 descriptions of 5,000 characters: one answer could not hold them, and there was
    none."""
    names = [f"space{number:04}" for number in range(1_200)]
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        for start in range(0, len(names), 200):
            await client.apply([space(name, "x" * 5_000) for name in names[start : start + 200]])
        found = await client.objects("Namespace")
        assert [item.name for item in found] == ["default", *names]
        async with nodes.connection("n1") as connection:
            answer, _ = await connection.request(GET, schema_pb2.GetObjectsRequest())
            assert answer.more
            assert 0 < len(answer.objects) < 1_200, "who does not ask for pages gets one"


async def test_a_change_whose_answer_would_be_too_long_is_not_made(tmp_path: Path) -> None:
    """It was made, and whoever asked for it was told that a frame is over the limit."""
    names = [f"space{number:04}" for number in range(1_000)]
    keys = [("Namespace", "", name) for name in names]
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        for start in range(0, len(names), 250):
            await client.apply([space(name, "x" * 5_000) for name in names[start : start + 250]])
        with pytest.raises(RequestError, match="several smaller steps"):
            await client.apply([space(name) for name in names])
        with pytest.raises(RequestError, match="several smaller steps"):
            await client.delete(keys)
        assert len(await client.objects("Namespace")) == 1_001
        await client.apply([space(name) for name in names[:400]])
        await client.delete(keys[:600])
        assert len(await client.objects("Namespace")) == 401


async def test_pages_of_objects_while_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "_PAGE_OBJECTS", 2)
    async with (
        running_nodes(tmp_path, 1) as nodes,
        nodes.client() as client,
        nodes.client("other") as other,
    ):
        await client.apply([space(name) for name in "fedcba"])
        assert [item.name for item in await client.objects("Namespace")] == ["default", *"fedcba"]
        assert [item.name for item in await client.objects("Namespace", name="a")] == ["a"]
        assert await client.objects("Stream") == []
        page = client._catalog._page
        asked: list[int] = []

        async def deleting(request: Any) -> Any:
            found = await page(request)
            if not asked:
                await other.delete([("Namespace", "", "e"), ("Namespace", "", "c")])
                await other.apply([space("g")])
            asked.append(request.after_id)
            return found

        monkeypatch.setattr(client._catalog, "_page", deleting)
        found = [item.name for item in await client.objects("Namespace")]
        assert found == ["default", *"fdbag"]
        assert asked == sorted(asked)


async def test_a_group_that_is_acknowledged_in_very_many_pieces(tmp_path: Path) -> None:
    """Counted in slices: 1,024 ranges with the summary, then 16,384 at a time."""
    ranges = 20_000
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        stream_id = (await client.apply([stream("s")])).metadata_index
        async with client.producer("s") as producer:
            await producer.send_many([b""] * (2 * ranges))
        leadership = nodes.node("n1").member._leadership
        assert leadership is not None
        controller = leadership.controller
        group_id = (await controller.execute(CreateGroup(stream_id, "g", 0))).group_id
        pieces = tuple((offset, offset) for offset in range(1, 2 * ranges, 2))
        await controller.execute(AckRecords(group_id, pieces))
        (listed,) = await client.groups("s")
        (described,) = await client.describe_group("s", "g")
        assert listed.acknowledged_above == described.group.acknowledged_above == ranges
        assert (listed.floor, listed.next_offset) == (0, 2 * ranges)


async def test_instances_whose_reasons_are_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as are asked for, however little of them an answer holds."""
    monkeypatch.setattr(pipeline_calls, "_PAGE_BYTES", 10_000)
    monkeypatch.setattr(pipeline_calls, "_MAX_LIMIT", 12)
    stage = StageSpec(name="a", engine="handler", retry=Retry(max_attempts=1))
    spec = PipelineSpec(replica_set="local/p0", input="s", start="earliest", stages=(stage,))
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await client.apply([stream("s"), SchemaObject(kind="Pipeline", name="p", spec=spec)])
        async with client.producer("s") as producer:
            await producer.send_many([b""] * 40)
        async with client.run_stages("p", engine="handler", max_batch=40, credit=40) as run:
            count = 0
            while count < 40:
                given = await anext(run)
                run.grant()
                ids = [each.instance_id for each in given.invocations]
                attempts = [each.attempt for each in given.invocations]
                created_ms = [each.created_ms for each in given.invocations]
                # The first ones' reasons are long.
                reason = "\u304b" * 1_500 if ids[0] <= 20 else "no"
                await client.fail_stages(given.pipeline_id, "a", ids, attempts, created_ms, reason)
                count += len(ids)
        for limit in (1, 12, 13, 39, 40, 100):
            found = await client.instances("p", limit=limit)
            assert [each.id for each in found] == [*range(1, min(limit, 40) + 1)]
        assert [each.id for each in await client.instances("p", after_id=38)] == [39, 40]
        async with nodes.connection("n1") as connection:
            request = pipelines_pb2.ListInstancesRequest(pipeline="p")
            answer, _ = await connection.request(method("ListInstances"), request)
            assert (0 < len(answer.instances) <= 12, answer.more) == (True, True)


async def test_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_PAGE_GROUPS", 2)
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await client.apply([stream("s"), stream("t")])
        wanted = []
        for name, of, ephemeral in (
            ("c", "s", False),
            ("a", "t", True),
            ("b", "s", True),
            ("a", "s", False),
            ("d", "s", True),
            ("b", "t", False),
        ):
            async with client.subscribe(of, group=name, ephemeral=ephemeral):
                wanted.append((of, name, ephemeral))
        found = [(each.stream, each.group, each.ephemeral) for each in await client.groups()]
        assert found == sorted(wanted)
        assert [each.group for each in await client.groups("t")] == ["a", "b"]
        async with nodes.connection("n1") as connection:
            request = groups_pb2.ListGroupsRequest(namespace="nowhere", limit=1)
            answer, _ = await connection.request(LIST, request)
            assert (list(answer.groups), answer.more, answer.last_group) == ([], True, "a")
