"""What people are told of instances: what has begun, what waits, and what never ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio

from hadron.client import Client
from hadron.model.pipelines import Output, PipelineSpec, Retry, StageSpec, Wait
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.testing.nodes import running_nodes

HOME = "local/p0"
STREAM = StreamSpec(partitions=(HOME,))
MAKE = StageSpec(name="make", engine="handler", retry=Retry(max_attempts=1))


async def declare(client: Client, *stages: StageSpec, on_failure: str = "") -> None:
    spec = PipelineSpec(
        replica_set=HOME, input="in", start="earliest", stages=stages, on_failure=on_failure
    )
    streams = [SchemaObject(kind="Stream", name=each, spec=STREAM) for each in ("in", "out")]
    await client.apply([*streams, SchemaObject(kind="Pipeline", name="p", spec=spec)])


async def publish(client: Client, count: int) -> None:
    async with client.producer("in") as producer:
        for number in range(count):
            await producer.send(f"n{number}")


async def told(client: Client) -> list[dict[str, str]]:
    """Of each instance: its stages' states, and what they wait for."""
    return [
        {each.name: each.status + (f": {each.waits_for}" if each.waits_for else "") for each in it}
        for it in [found.stages for found in await client.instances("p")]
    ]


async def until(client: Client, *wanted: dict[str, str]) -> None:
    while await told(client) != list(wanted):  # noqa: ASYNC110 - others change them
        await trio.sleep(0.02)


async def complete(client: Client, given: Any) -> None:
    ids = [each.instance_id for each in given.invocations]
    attempts = [each.attempt for each in given.invocations]
    made = [each.created_ms for each in given.invocations]
    await client.complete_stages(given.pipeline_id, given.stage, ids, attempts, made, None)


async def test_what_is_done_or_cancelled_has_what_it_has_had(tmp_path: Path) -> None:
    """Neither stages of later graphs nor what was to tell of a failure."""
    after, sorry = StageSpec(name="after", wait=Wait(signal=True), after=("make",)), "sorry"
    told_by = StageSpec(name=sorry, engine="handler")
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await declare(client, MAKE, told_by, on_failure=sorry)
        await publish(client, 1)
        with trio.fail_after(30):
            async with client.run_stages("p", engine="handler") as run:
                await complete(client, await anext(run))
            await declare(client, MAKE, after, told_by, on_failure=sorry)
            await publish(client, 1)
            while len(await client.instances("p")) < 2:  # noqa: ASYNC110 - others make them
                await trio.sleep(0.02)
            await client.cancel_instances("p", [2])
            await declare(client, MAKE)
            await until(client, {"make": "done"}, {"make": "not run"})


async def test_what_is_at_a_runner_runs_once_that_has_begun(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await declare(client, MAKE)
        await publish(client, 2)
        stage = "ready: its runner, which works on others: me"
        with trio.fail_after(30):
            async with client.run_stages(
                "p", engine="handler", max_batch=1, takes_ahead=True, runner="me"
            ) as run:
                run.grant()
                first = await anext(run)
                await anext(run)
                run.begin(first)
                await until(client, {"make": "running"}, {"make": stage})
                (progress,) = await client.pipeline_progress("p")
                (made,) = progress.stages
                assert (made.ready, made.running) == (1, 1)


async def test_what_came_before_its_turn_is_told(tmp_path: Path) -> None:
    """With a value that is in the output's stream already."""
    ask = StageSpec(
        name="ask", wait=Wait(signal=True), after=("make",), output=Output(stream="out")
    )
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await declare(client, MAKE, ask)
        await publish(client, 1)
        none = "ready: a runner with engine handler: there is none"
        with trio.fail_after(30):
            await until(client, {"make": none, "ask": "waiting: make"})
            await client.signal("p", 1, "ask", "yes")
            assert [each.value async for each in client.read("out")] == ["yes"]
            wanted = "waiting: make; its signal has come"
            assert await told(client) == [{"make": none, "ask": wanted}]
            async with client.run_stages("p", engine="handler") as run:
                given = await anext(run)
                (one,) = given.invocations
                which = [one.instance_id], [one.attempt], [one.created_ms]
                await client.fail_stages(given.pipeline_id, "make", *which, "no")
            assert await told(client) == [{"make": "failed", "ask": "waiting: its signal has come"}]
