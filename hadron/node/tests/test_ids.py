"""Deleted and created again is another object: what holds an id never gets the new one's data
(PROTOCOL D3)."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from hadron.client import Client
from hadron.model.errors import NotFoundError
from hadron.model.pipelines import PipelineSpec, StageSpec
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.testing.nodes import running_nodes

HERE = "local/p0"
STREAM = SchemaObject(kind="Stream", name="s", spec=StreamSpec(partitions=(HERE,)))
STAGE = StageSpec(name="a", engine="handler")
PIPELINE = SchemaObject(
    kind="Pipeline",
    name="p",
    spec=PipelineSpec(replica_set=HERE, input="s", start="earliest", stages=(STAGE,)),
)


async def declare(client: Client, item: SchemaObject) -> int:
    """Returns the object's id."""
    after = (await client.apply([item])).changes[0].after
    assert after is not None
    return after.id


async def delete(client: Client, *items: SchemaObject) -> None:
    await client.delete(
        [(item.kind, item.namespace, item.name) for item in items], allow_destructive=True
    )


async def send(client: Client, value: str) -> None:
    async with client.producer("s") as producer:
        await producer.send(value)


async def test_a_fetch_by_name_is_of_the_stream_that_has_the_name_and_by_id_of_no_other(
    tmp_path: Path, clock: MockClock
) -> None:
    # Somebody else changes the schema: this client is not told before it asks.
    async with (
        running_nodes(tmp_path, 1) as nodes,
        nodes.client() as client,
        nodes.client() as other,
    ):
        first = await declare(other, STREAM)
        await send(other, "old")
        (batch,) = (await client.fetch("s", HERE, 0)).batches
        assert bytes(batch.data)
        await delete(other, STREAM)
        again = await declare(other, STREAM)
        assert (await client.fetch("s", HERE, 0)).batches == []
        await send(other, "new")
        for fetched in (
            await client.fetch("s", HERE, 0),
            await client.fetch("s", HERE, 0, stream_id=again),
        ):
            assert [each.count for each in fetched.batches] == [1]
            assert fetched.batches[0].data != batch.data
        with pytest.raises(NotFoundError, match="Stream default/s was deleted"):
            await client.fetch("s", HERE, 0, stream_id=first)


async def test_who_runs_the_stages_of_a_deleted_pipeline_is_not_given_those_of_another(
    tmp_path: Path, clock: MockClock
) -> None:
    async with (
        running_nodes(tmp_path, 1) as nodes,
        nodes.client() as client,
        nodes.client() as other,
    ):
        stream_id = await declare(other, STREAM)
        first = await declare(other, PIPELINE)
        async with client.run_stages("p", engine="handler") as run:
            await send(other, "old")
            taken: Any = await run.__anext__()
            assert taken.pipeline_id == first
            (invocation,) = taken.invocations
            assert invocation.root.stream_id == stream_id
            await delete(other, PIPELINE)
            again = await declare(other, PIPELINE)
            assert again != first
            with pytest.raises(NotFoundError):
                await client.complete_stages(
                    first,
                    "a",
                    [invocation.instance_id],
                    [invocation.attempt],
                    [invocation.created_ms],
                    None,
                )
            run.grant()
            with pytest.raises(NotFoundError, match="was deleted"):
                await run.__anext__()
        # By name it is the new one, which has taken the record as well.
        with trio.fail_after(60):
            (progress,) = await client.pipeline_progress("p")
            while not progress.instances:
                await trio.sleep(0.01)
                (progress,) = await client.pipeline_progress("p")
        assert (progress.id, progress.instances, progress.live) == (again, 1, 1)
        (instance,) = await client.instances("p")
        assert instance.root.stream_id == stream_id
