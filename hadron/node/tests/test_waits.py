"""Stages that wait, over whole nodes: records on several replica sets, signals, failures."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from hadron.client import Client
from hadron.model.errors import NotFoundError, RequestError
from hadron.model.pipelines import Output, PipelineSpec, Retry, StageSpec, Wait
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node.tests.transacting import Breaker
from hadron.pipelines.driver import Pipelines
from hadron.state.pipelines.waits import SignalStages
from hadron.testing.nodes import running_cluster

META, EU, US = "meta", "eu/p0", "us/p0"
SETS = {META: 1, EU: 1, US: 1}
BOTH = StreamSpec(partitions=(EU, US))


async def declare(client: Client, *stages: StageSpec) -> None:
    pipeline = PipelineSpec(replica_set=EU, input="orders", start="earliest", stages=stages)
    streams = ("orders", "payments", "answers")
    await client.apply(
        [
            *(SchemaObject(kind="Stream", name=each, spec=BOTH) for each in streams),
            SchemaObject(kind="Pipeline", name="p", spec=pipeline),
        ]
    )


async def send(client: Client, stream: str, partition: str, *keys: str, event: str = "") -> None:
    async with client.producer(stream, partition=partition) as producer:
        for key in keys:
            await producer.send(f"{stream} of {key}", key=key or None, type=event)


async def until(client: Client, *wanted: tuple[str, str]) -> None:
    """(status, that of stage `paid`) of each instance."""
    while True:
        found = [
            (each.status, stage.status)
            for each in await client.instances("p")
            for stage in each.stages
            if stage.name == "paid"
        ]
        if found == list(wanted):
            return
        await trio.sleep(0.05)


async def paid_by(client: Client, instance_id: int) -> tuple[str, int]:
    """Where the record is that has come."""
    (found,) = await client.instances("p", after_id=instance_id - 1, limit=1)
    (place,) = (stage.output for stage in found.stages if stage.name == "paid")
    return place.partition, place.offset


async def test_records_of_all_partitions_are_waited_for(tmp_path: Path, clock: MockClock) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        wait = Wait(stream="payments", types=("payment.*",))
        await declare(client, StageSpec(name="paid", wait=wait))
        with trio.fail_after(60):
            await send(client, "orders", US, "z")
            await send(client, "payments", EU, "a", "z", event="payment.early")
            await until(client, ("done", "done"))
            await send(client, "orders", US, "a", "b", "c")
            await until(client, ("done", "done"), *[("live", "awaiting")] * 3)
            await send(client, "payments", US, "b", event="refund.done")
            await send(client, "payments", US, "b", event="payment.done")
            await send(client, "payments", EU, "c", "a", event="payment.done")
            await until(client, *[("done", "done")] * 4)
            places = [await paid_by(client, each) for each in (2, 3, 4)]
            assert places == [(EU, 3), (US, 1), (EU, 2)]


async def test_what_comes_right_behind_its_trigger_is_not_missed(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client, StageSpec(name="paid", wait=Wait(stream="payments")))
        with trio.fail_after(120):
            for number in range(20):
                await send(client, "orders", US, f"k{number}")
                await send(client, "payments", EU, f"k{number}")
            await until(client, *[("done", "done")] * 20)


@pytest.mark.parametrize("is_logged", [False, True], ids=["before it is logged", "unheard"])
async def test_each_is_told_once_whoever_fails(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch, is_logged: bool
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client, StageSpec(name="paid", wait=Wait(stream="payments")))
        with trio.fail_after(120):
            await send(client, "orders", EU, "a", "b")
            await until(client, *[("live", "awaiting")] * 2)
            breaker = Breaker(monkeypatch)
            breaker.crash(cluster[EU], "n1", at=SignalStages, is_logged=is_logged)
            await send(client, "payments", US, "a")
            await breaker.crashed()
            await cluster.start(EU)
            await cluster.wait_serving()
            await send(client, "payments", US, "a", "b")
            await until(client, *[("done", "done")] * 2)
            assert [await paid_by(client, each) for each in (1, 2)] == [(US, 0), (US, 2)]


async def test_one_key_that_many_wait_for(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hadron.pipelines.awaiting.SIGNALS_PER_ENTRY", 3)
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client, StageSpec(name="paid", wait=Wait(stream="payments")))
        with trio.fail_after(60):
            await send(client, "orders", EU, *["same"] * 10, "other")
            await until(client, *[("live", "awaiting")] * 11)
            await send(client, "payments", US, "same", "other")
            await until(client, *[("done", "done")] * 11)


async def test_signals_of_people(tmp_path: Path, clock: MockClock) -> None:
    stages = (
        StageSpec(name="paid", wait=Wait(signal=True), output=Output("answers")),
        StageSpec(name="act", engine="handler", dependencies=("paid",)),
    )
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client, *stages)
        with trio.fail_after(60):
            await send(client, "orders", US, "")
            await until(client, ("live", "awaiting"))
            with pytest.raises(NotFoundError, match="has no instance 7: a signal is for one that"):
                await client.signal("p", 7, "paid")
            with pytest.raises(NotFoundError, match="stage 'act' of instance 1 of "):
                await client.signal("p", 1, "act")
            with pytest.raises(RequestError, match="is no instance's id"):
                await client.signal("p", 0, "paid")
            with pytest.raises(RequestError, match="waits for a record or a signal"):
                await client.fail_stages(
                    (await client.pipeline_progress("p"))[0].id, "paid", [1], [1], [1], "no"
                )
            assert await client.signal("p", 1, "paid", {"by": "ann"})
            assert not await client.signal("p", 1, "paid", {"by": "bob"})
            async with client.run_stages("p", engine="handler") as run:
                async for batch in run:
                    (invocation,) = batch.invocations
                    (said,) = invocation.dependencies
                    break
            (record,) = [each async for each in client.read("answers", partition=EU)]
            assert (said.stream, said.partition, said.offset) == ("answers", EU, record.offset)
            assert record.value == {"by": "ann"}


async def test_a_signal_whose_output_nothing_takes_is_refused_and_its_stage_waits_on(
    tmp_path: Path, clock: MockClock
) -> None:
    """The present definition has no such stage, so its stream could be deleted."""
    paid = StageSpec(name="paid", wait=Wait(signal=True), output=Output("answers"))
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:

        def is_told() -> bool:
            return len({cluster[name].status("n1").metadata_index for name in SETS}) == 1

        await declare(client, paid)
        with trio.fail_after(60):
            await send(client, "orders", US, "")
            await until(client, ("live", "awaiting"))
            act = StageSpec(name="act", engine="handler")
            pipeline = PipelineSpec(replica_set=EU, input="orders", start="earliest", stages=(act,))
            await client.apply([SchemaObject(kind="Pipeline", name="p", spec=pipeline)])
            await client.delete([("Stream", "default", "answers")], allow_destructive=True)
            await cluster.wait_for("told", is_told)
            with pytest.raises(NotFoundError, match="answers"):
                await client.signal("p", 1, "paid", "yes")
            await until(client, ("live", "awaiting"))
            await client.apply([SchemaObject(kind="Stream", name="answers", spec=BOTH)])
            await cluster.wait_for("told", is_told)
            assert await client.signal("p", 1, "paid", "yes")
            await until(client, ("done", "done"))


async def test_a_value_wants_an_output(tmp_path: Path, clock: MockClock) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client, StageSpec(name="paid", wait=Wait(signal=True)))
        with trio.fail_after(60):
            await send(client, "orders", US, "")
            await until(client, ("live", "awaiting"))
            with pytest.raises(RequestError, match="has no output, so what is said"):
                await client.signal("p", 1, "paid", "yes")
            with pytest.raises(NotFoundError, match=r"no stage 'piad' \(did you mean 'paid'\?\)"):
                await client.signal("p", 1, "piad", "yes")
            with pytest.raises(NotFoundError, match="has no instance 7"):
                await client.signal("p", 7, "paid", "yes")
            await client.signal("p", 1, "paid")
            await until(client, ("done", "done"))


@pytest.mark.long
async def test_time_passes(tmp_path: Path, clock: MockClock) -> None:
    late = Wait(stream="payments", timeout_ms=5_000)
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client, StageSpec(name="paid", wait=late))
        with trio.fail_after(120):
            await send(client, "orders", US, "a", "")
            await until(client, ("live", "awaiting"), ("failed", "failed"))
            await until(client, ("failed", "failed"), ("failed", "failed"))
            reasons = [each.stages[0].reason for each in await client.instances("p")]
            assert reasons[0] == "no record of payments with the key of its trigger came within 5s"
            assert reasons[1].startswith("the record that triggered it has no key")


async def test_started_by_hand_they_have_their_keys(tmp_path: Path, clock: MockClock) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client, StageSpec(name="paid", wait=Wait(stream="payments")))
        with trio.fail_after(60):
            await send(client, "orders", US, "a")
            await until(client, ("live", "awaiting"))
            assert await client.start_instances("p", "orders", [0], partition=US) == [2]
            await send(client, "payments", EU, "a")
            await until(client, *[("done", "done")] * 2)


async def test_retried_they_have_their_keys(tmp_path: Path, clock: MockClock) -> None:
    """They have begun to wait for records: their triggers' keys are read, wherever these are."""
    act = StageSpec(name="act", engine="handler", retry=Retry(max_attempts=1))
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client, act)
        with trio.fail_after(60):
            await send(client, "orders", US, "a", "")
            await send(client, "orders", EU, "b")
            async with client.run_stages("p", engine="handler", max_batch=1) as run:
                for _ in range(3):
                    given = await anext(run)
                    (one,) = given.invocations
                    await client.fail_stages(
                        given.pipeline_id,
                        "act",
                        [one.instance_id],
                        [one.attempt],
                        [one.created_ms],
                        "no",
                    )
                    run.grant()
            await declare(client, StageSpec(name="paid", wait=Wait(stream="payments")))
            known: list[str] = []
            while "paid" not in known:
                (progress,) = await client.pipeline_progress("p")
                known = [stage.name for stage in progress.stages]
            assert await client.retry_instances("p") == 3
            found = {
                (each.root.partition, each.root.offset): (each.status, each.stages[0].reason[:33])
                for each in await client.instances("p")
            }
            assert found == {
                (US, 0): ("live", ""),
                (US, 1): ("failed", "the record that triggered it has "),
                (EU, 0): ("live", ""),
            }
            await send(client, "payments", EU, "a")
            await send(client, "payments", US, "b")
            while len(await client.instances("p", status="done")) < 2:  # noqa: ASYNC110
                await trio.sleep(0.05)


async def test_what_is_awaited_once_more_begins_at_its_end(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Meanwhile nobody looks at it, or has trouble with it."""
    paid = StageSpec(name="paid", wait=Wait(stream="payments"))
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:

        async def known(name: str) -> None:
            while True:
                (progress,) = await client.pipeline_progress("p")
                if [stage.name for stage in progress.stages] == [name]:
                    return
                await trio.sleep(0.05)

        await declare(client, paid)
        with trio.fail_after(120):
            await send(client, "orders", US, "a")
            await until(client, ("live", "awaiting"))
            await send(client, "payments", US, "a")
            await until(client, ("done", "done"))
            await declare(client, StageSpec(name="act", engine="handler"))
            await known("act")
            for partition in (EU, US):
                await send(client, "payments", partition, "b")
            await trio.sleep(5)
            await declare(client, paid)
            await known("paid")
            await send(client, "orders", US, "b", "c")
            await until(client, ("done", "done"), *[("live", "awaiting")] * 2)
            await send(client, "payments", US, "b")
            await send(client, "payments", EU, "c")
            await until(client, *[("done", "done")] * 3)
            assert [await paid_by(client, each) for each in (2, 3)] == [(US, 2), (EU, 1)]
        assert not [each for each in caplog.records if "pauses" in each.message]


async def test_what_waits_for_records_of_a_deleted_stream_is_given_up(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever its partitions are, and whatever has its name later."""
    paid = StageSpec(name="paid", wait=Wait(stream="payments"))
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client, paid)
        with trio.fail_after(120):
            await send(client, "orders", US, "a", "b")
            await until(client, *[("live", "awaiting")] * 2)
            act = StageSpec(name="act", engine="handler")
            pipeline = PipelineSpec(replica_set=EU, input="orders", start="earliest", stages=(act,))
            await client.apply([SchemaObject(kind="Pipeline", name="p", spec=pipeline)])
            await client.delete([("Stream", "default", "payments")], allow_destructive=True)
            await until(client, *[("failed", "failed")] * 2)
            for each in await client.instances("p"):
                (stage,) = each.stages
                assert stage.reason.startswith("stream payments, of which it waits for a record, ")
            await client.apply([SchemaObject(kind="Stream", name="payments", spec=BOTH)])
            for partition in (EU, US):
                await send(client, "payments", partition, "a", "b")
            assert await client.retry_instances("p") == 2
            found = await client.instances("p")
            assert [[stage.status for stage in each.stages] for each in found] == [["ready"]] * 2
            leadership = cluster[EU].node("n1").member._leadership
            assert leadership is not None
            assert leadership.leading is not None
            await trio.sleep(30)
            assert leadership.leading.part(Pipelines).troubles == []
    assert not [each for each in caplog.records if "pauses" in each.message]
