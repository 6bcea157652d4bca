"""Pipelines over whole nodes: inputs on several replica sets, and leaders that fail."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from hadron.client import Client
from hadron.model.batch_building import encode_values
from hadron.model.errors import (
    ConnectionLostError,
    FrameError,
    NotFoundError,
    NotReadyError,
    RequestError,
    UnreachableError,
)
from hadron.model.pipelines import Output, PipelineSpec, StageSpec
from hadron.model.record_batch import decode_batch
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node.tests.transacting import Breaker, rows
from hadron.state.machine import Command
from hadron.state.pipelines.backfills import StepBackfill
from hadron.state.pipelines.inputs import TriggerInstances
from hadron.state.streams.retention import TrimStream
from hadron.state.transactions.decisions import Decide, NoteFinished
from hadron.state.transactions.intents import FinishTransaction, WriteIntents
from hadron.testing.nodes import Cluster, running_cluster
from hadron.wire.messages import method, pipelines_pb2

META, EU, US = "meta", "eu/p0", "us/p0"
SETS = {META: 1, EU: 1, US: 1}


async def declare(client: Client, *, start: str = "earliest", max_parallel: int = 1_000) -> None:
    pipeline = PipelineSpec(
        replica_set=EU,
        input="in",
        start=start,
        max_parallel=max_parallel,
        stages=(StageSpec(name="do", engine="handler"),),
    )
    await client.apply(
        [
            SchemaObject(kind="Stream", name="in", spec=StreamSpec(partitions=(EU, US))),
            SchemaObject(kind="Pipeline", name="p", spec=pipeline),
        ]
    )


async def known(cluster: Cluster) -> None:
    """Until both sets have heard of the pipeline: what is published from here on is new to it."""
    await cluster.wait_for("a cursor", lambda: rows(cluster, EU, "pipeline_input") >= 1)
    await cluster.wait_for("a start", lambda: rows(cluster, US, "pipeline_start") == 1)


async def publish(client: Client, partition: str, *values: str) -> None:
    async with client.producer("in", partition=partition) as producer:
        for value in values:
            await producer.send(value)


async def triggers(client: Client, count: int) -> Counter[tuple[str, int]]:
    """Where the records are that made instances, once there are `count`."""
    while True:
        found = await client.instances("p", limit=1_000)
        if len(found) >= count:
            return Counter((each.root.partition, each.root.offset) for each in found)
        await trio.sleep(0.05)


def once(**partitions: int) -> Counter[tuple[str, int]]:
    names = {"eu": EU, "us": US}
    return Counter((names[each], at) for each, count in partitions.items() for at in range(count))


async def test_every_partition_is_consumed(tmp_path: Path, clock: MockClock) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client)
        await publish(client, EU, "a", "b")
        await publish(client, US, "c", "d", "e")
        with trio.fail_after(30):
            assert await triggers(client, 5) == once(eu=2, us=3)
        (shown,) = await client.pipeline_progress("p")
        assert [(each.partition, each.offset, each.next_offset) for each in shown.inputs] == [
            (EU, 2, 2),
            (US, 3, 3),
        ]
        assert (shown.input_offset, shown.input_next_offset) == (5, 5)


async def test_latest_is_where_each_partition_was_when_its_set_heard_of_it(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        stream = SchemaObject(kind="Stream", name="in", spec=StreamSpec(partitions=(EU, US)))
        await client.apply([stream])
        await publish(client, US, "before", "it")
        await declare(client, start="latest")
        await known(cluster)
        await publish(client, US, "after")
        with trio.fail_after(30):
            assert await triggers(client, 1) == Counter({(US, 2): 1})
        (item,) = await client.objects("Pipeline")
        absurd = pipelines_pb2.PipelineStartRequest(pipeline_id=item.id, awaited_stream_id=1 << 63)
        async with cluster[US].connection("n1") as connection:
            with pytest.raises(FrameError, match="out of range"):
                await connection.request(method("PipelineStart"), absurd)


@pytest.mark.parametrize("is_logged", [False, True], ids=["before it is logged", "unheard"])
async def test_a_record_makes_one_instance_whoever_fails(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch, is_logged: bool
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client)
        await publish(client, US, "a")
        with trio.fail_after(120):
            await triggers(client, 1)
            breaker = Breaker(monkeypatch)
            breaker.crash(cluster[EU], "n1", at=TriggerInstances, is_logged=is_logged)
            await publish(client, US, "b", "c")
            await breaker.crashed()
            await cluster.start(EU)
            await cluster.wait_serving()
            assert await triggers(client, 3) == once(us=3)
            await cluster[US].restart("n1")
            await cluster.wait_serving()
            await publish(client, US, "d")
            await publish(client, EU, "e")
            assert await triggers(client, 5) == once(eu=1, us=4)


async def test_what_the_other_set_has_dropped_is_counted(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client)
        await publish(client, US, "a")
        with trio.fail_after(60):
            await triggers(client, 1)
            await cluster.crash(EU)
            await publish(client, US, "b", "c", "d")
            stream_id = (await client.stream("in")).id
            leadership = cluster[US].node("n1").member._leadership
            assert leadership is not None
            await leadership.controller.execute(TrimStream(stream_id, 3))
            await cluster.start(EU)
            await cluster.wait_serving()
            assert await triggers(client, 2) == Counter({(US, 0): 1, (US, 3): 1})
        (shown,) = await client.pipeline_progress("p")
        assert (shown.skipped, [each.truncations for each in shown.inputs]) == (2, [0, 0])


async def test_partitions_share_the_room(tmp_path: Path, clock: MockClock) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client, max_parallel=2)
        await publish(client, EU, *"abcdef")
        await publish(client, US, *"uvwxyz")
        seen: Counter[str] = Counter()
        with trio.fail_after(60):
            async with client.run_stages("p", engine="handler", max_batch=1) as stages:
                async for given in stages:
                    (one,) = given.invocations
                    seen[one.root.partition] += 1
                    await client.complete_stages(
                        given.pipeline_id, "do", [one.instance_id], [1], [one.created_ms], None
                    )
                    stages.grant()
                    assert abs(seen[EU] - seen[US]) <= 4
                    if seen.total() == 12:
                        break
        assert seen == {EU: 6, US: 6}


# --- outputs --------------------------------------------------------------------------------------


async def declare_outputs(client: Client, *, partition: str = "") -> None:
    pipeline = PipelineSpec(
        replica_set=EU,
        input="in",
        start="earliest",
        stages=(
            StageSpec(name="make", engine="handler", output=Output("out", partition)),
            StageSpec(name="use", engine="handler", dependencies=("make",)),
        ),
    )
    await client.apply(
        [
            SchemaObject(kind="Stream", name="in", spec=StreamSpec(partitions=(EU,))),
            SchemaObject(kind="Stream", name="out", spec=StreamSpec(partitions=(EU, US))),
            SchemaObject(kind="Pipeline", name="p", spec=pipeline),
        ]
    )


async def make_all(client: Client, count: int, *, partition: str = "") -> list[tuple[str, int]]:
    """Run both stages of so many instances; returns where what the second stage got was."""
    used: dict[int, tuple[str, int]] = {}
    async with client.run_stages("p", engine="handler", max_batch=2, credit=1) as stages:
        while len(used) < count:
            given = await anext(stages)
            ids = [each.instance_id for each in given.invocations]
            batch, chosen = None, ""
            if given.stage == "make":
                batch, chosen = encode_values([b"%d" % each for each in ids], 1), partition
            places = {
                each.instance_id: (found.partition, found.offset)
                for each in given.invocations
                for found in each.dependencies
            }
            with suppress(ConnectionLostError, NotReadyError, UnreachableError):
                await client.complete_stages(
                    given.pipeline_id,
                    given.stage,
                    ids,
                    [each.attempt for each in given.invocations],
                    [each.created_ms for each in given.invocations],
                    batch,
                    chosen,
                )
                used |= places
            stages.grant()
    return [used[each] for each in sorted(used)]


async def outputs(client: Client, partition: str) -> list[bytes]:
    found = await client.fetch("out", partition, 0)
    return [
        record.value for batch in found.batches for record in decode_batch(batch.data).records()
    ]


@pytest.mark.parametrize(("declared", "chosen"), [(US, ""), ("", US), (EU, US)])
async def test_outputs_go_to_a_partition_of_another_set(
    tmp_path: Path, clock: MockClock, declared: str, chosen: str
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare_outputs(client, partition=declared)
        await publish(client, EU, "a", "b", "c")
        with trio.fail_after(60):
            found = await make_all(client, 3, partition=chosen)
        assert sorted(found) == [(US, 0), (US, 1), (US, 2)]
        assert sorted(await outputs(client, US)) == [b"1", b"2", b"3"]
        assert await outputs(client, EU) == []
        (shown,) = await client.pipeline_progress("p")
        assert (shown.live, shown.done) == (0, 3)


@pytest.mark.parametrize("is_logged", [False, True], ids=["before it is logged", "unheard"])
@pytest.mark.parametrize(
    ("who", "what"), [(US, WriteIntents), (EU, Decide), (US, FinishTransaction), (EU, NoteFinished)]
)
async def test_an_output_is_there_once_before_anything_depends_on_it_whoever_fails(
    tmp_path: Path,
    clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    who: str,
    what: type[Command],
    is_logged: bool,
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare_outputs(client, partition=US)
        await publish(client, EU, "a", "b", "c")
        breaker = Breaker(monkeypatch)
        breaker.crash(cluster[who], "n1", at=what, is_logged=is_logged)

        async def begin_anew() -> None:
            await breaker.crashed()
            await cluster.start(who)

        with trio.fail_after(300):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(begin_anew)
                found = await make_all(client, 3)
            assert sorted(found) == [(US, 0), (US, 1), (US, 2)]
        assert sorted(await outputs(client, US)) == [b"1", b"2", b"3"]


async def test_an_output_that_its_partition_refuses_fails_the_call(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare_outputs(client)
        await publish(client, EU, "a")
        async with client.run_stages("p", engine="handler") as stages:
            given = await anext(stages)
        (one,) = given.invocations
        with pytest.raises(NotFoundError, match="has no partition 'meta'"):
            await client.complete_stages(
                given.pipeline_id,
                "make",
                [1],
                [1],
                [one.created_ms],
                encode_values([b"x"], 1),
                META,
            )
        stale = await client.complete_stages(
            given.pipeline_id, "make", [1], [7], [one.created_ms], encode_values([b"x"], 1), US
        )
        assert list(stale.stale_instance_ids) == [1]


# --- by hand --------------------------------------------------------------------------------------


async def test_people_start_and_cancel_instances(tmp_path: Path, clock: MockClock) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client)
        await publish(client, EU, "a", "b")
        with trio.fail_after(60):
            await triggers(client, 2)
            assert await client.start_instances("p", "in", [1, 1]) == [3, 4]
            assert await client.start_instances("p", "in", [7], partition=US) == [5]
            with pytest.raises(RequestError, match="offset 2 of Stream default/in is not there"):
                await client.start_instances("p", "in", [2])
            with pytest.raises(NotFoundError, match="has no partition 'meta'"):
                await client.start_instances("p", "in", [0], partition=META)
            assert await client.cancel_instances("p", [2, 3]) == 2
            assert await client.cancel_instances("p", stage="do") == 3
            assert await client.cancel_instances("p") == 0
        (shown,) = await client.pipeline_progress("p")
        assert (shown.live, shown.cancelled, shown.instances) == (0, 5, 5)
        found = await client.instances("p", status="cancelled")
        assert [(each.root.partition, each.root.offset) for each in found[2:]] == [
            (EU, 1),
            (EU, 1),
            (US, 7),
        ]


# --- backfills ------------------------------------------------------------------------------------


async def filled(client: Client, number: int) -> None:
    while True:
        (flow,) = await client.pipeline_progress("p")
        if [each.status for each in flow.backfills if each.number == number] == ["done"]:
            return
        await trio.sleep(0.05)


@pytest.mark.parametrize("partition", [EU, US])
async def test_old_records_make_instances_once_whoever_leads(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch, partition: str
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        stream = SchemaObject(kind="Stream", name="in", spec=StreamSpec(partitions=(EU, US)))
        await client.apply([stream])
        await publish(client, partition, *"abcdef")
        await declare(client, start="latest")
        await known(cluster)
        await publish(client, partition, "g")
        with trio.fail_after(120):
            assert await triggers(client, 1) == Counter({(partition, 6): 1})
            breaker = Breaker(monkeypatch)
            breaker.crash(cluster[EU], "n1", at=StepBackfill, is_logged=True)
            number = await client.start_backfill("p", 1, 100, partition=partition)
            await breaker.crashed()
            await cluster.start(EU)
            await filled(client, number)
            wanted = Counter({(partition, at): 1 for at in range(1, 7)})
            assert await triggers(client, 6) == wanted
            again = await client.start_backfill("p", 0, 7, partition=partition)
            await filled(client, again)
            assert await triggers(client, 7) == wanted + Counter({(partition, 0): 1})
            twice = await client.start_backfill("p", 0, 1, partition=partition, again=True)
            await filled(client, twice)
            assert (await triggers(client, 8))[partition, 0] == 2


@pytest.mark.long
async def test_a_backfill_is_paced_and_paused(tmp_path: Path, clock: MockClock) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        stream = SchemaObject(kind="Stream", name="in", spec=StreamSpec(partitions=(EU, US)))
        await client.apply([stream])
        await publish(client, EU, *"abcdefghij")
        await declare(client, start="latest")
        with trio.fail_after(120):
            number = await client.start_backfill("p", 0, 10, per_s=2)
            began = trio.current_time()
            await triggers(client, 4)
            assert await client.control_backfill("p", number, "paused") == "paused"
            await trio.sleep(5)
            (flow,) = await client.pipeline_progress("p")
            (shown,) = flow.backfills
            assert (shown.status, shown.created) == ("paused", shown.next_offset)
            assert shown.created < 10
            await client.control_backfill("p", number, "running")
            await filled(client, number)
            assert trio.current_time() - began >= 8
            assert await triggers(client, 10) == once(eu=10)
            assert await client.control_backfill("p", number, "cancelled") == "done"
        with pytest.raises(NotFoundError, match="has no backfill 9"):
            await client.control_backfill("p", 9, "paused")
