"""Stages that a program runs itself, `client.stage`, over whole nodes."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from hadron.client import Client
from hadron.client.handling.invocation import StageInvocation
from hadron.client.handling.records import FetchedRecords
from hadron.model.errors import ConnectionLostError, HadronError, RequestError, StaleCompletionError
from hadron.model.pipelines import Output, PipelineSpec, Retry, StageSpec
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.pipelines.driver import Pipelines
from hadron.state.streams.retention import TrimStream
from hadron.testing.nodes import running_cluster

META, EU, US = "meta", "eu/p0", "us/p0"
SETS = {META: 1, EU: 1, US: 1}
RETRY = Retry(max_attempts=2, backoff_ms=10)


async def declare(client: Client, **stage: Any) -> None:
    first: dict[str, Any] = {"retry": RETRY, "output": Output("out"), **stage}
    pipeline = PipelineSpec(
        replica_set=EU,
        input="in",
        start="earliest",
        stages=(
            StageSpec(name="make", engine="handler", **first),
            StageSpec(name="use", engine="handler", dependencies=("make",), retry=RETRY)
            if first["output"]
            else StageSpec(name="use", engine="handler", after=("make",)),
        ),
    )
    await client.apply(
        [
            SchemaObject(kind="Stream", name="in", spec=StreamSpec(partitions=(EU, US))),
            SchemaObject(kind="Stream", name="out", spec=StreamSpec(partitions=(EU, US))),
            SchemaObject(kind="Pipeline", name="p", spec=pipeline),
        ]
    )


async def publish(client: Client, partition: str, *values: Any) -> None:
    async with client.producer("in", partition=partition) as producer:
        for value in values:
            await producer.send(value, key="k", type="made.up", headers={"h": "1"})


async def done(client: Client, count: int, failed: int = 0) -> None:
    """Until so many instances are."""
    while True:
        # While a leader is away there may be no answer in time.
        with suppress(HadronError):
            (shown,) = await client.pipeline_progress("p")
            if (shown.done, shown.failed) == (count, failed):
                return
        await trio.sleep(0.05)


async def made(client: Client, count: int) -> None:
    """Until there are so many instances."""
    while len(await client.instances("p")) < count:  # noqa: ASYNC110 - others make them
        await trio.sleep(0.05)


def first_fetch_takes(seconds: float, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The first record that a client fetches comes so late; what it has asked for."""
    get, asked = FetchedRecords.get, list[Any]()

    async def get_slowly(self: FetchedRecords, ref: Any, micro_batch: int) -> Any:
        asked.append(ref)
        await trio.sleep(seconds if len(asked) == 1 else 0)
        return await get(self, ref, micro_batch)

    monkeypatch.setattr(FetchedRecords, "get", get_slowly)
    return asked


async def test_what_triggered_it_and_what_others_made_come_with_an_invocation(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client)
        await publish(client, EU, {"n": 1})
        await publish(client, US, {"n": 2})
        with trio.fail_after(60):
            made = {}
            async for invocation in client.stage("p", "make"):
                root = invocation.root
                assert (root.key, root.type, root.headers) == ("k", "made.up", {"h": "1"})
                assert (root.stream, root.offset, invocation.attempt) == ("in", 0, 1)
                to = US if root.partition == EU else EU
                receipt = await invocation.complete(
                    {"twice": root.value["n"] * 2}, key="o", type="doubled", partition=to
                )
                assert receipt is not None
                assert (receipt.stream, receipt.partition, receipt.offset) == ("out", to, 0)
                made[invocation.instance_id] = to
                if len(made) == 2:
                    break
            used = {}
            async with client.stage("p", "use") as stage:
                async for invocation in stage:
                    output = invocation.outputs["make"]
                    assert (output.key, output.type) == ("o", "doubled")
                    assert output.partition == made[invocation.instance_id]
                    used[invocation.root.value["n"]] = output.value["twice"]
                    assert await invocation.complete() is None
                    with pytest.raises(RequestError, match="was ended before"):
                        await invocation.complete()
                    if len(used) == 2:
                        break
            assert used == {1: 2, 2: 4}
            await done(client, 2)


async def test_many_are_run_at_a_time_and_what_raises_fails_alone(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[tuple[int, int]] = []
    most = now = 0

    async def make(invocation: StageInvocation) -> Any:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await trio.sleep(0.01)
        now -= 1
        ran.append((invocation.root.value, invocation.attempt))
        if invocation.root.value % 10 == 3:
            raise ValueError("three\nof many")
        return invocation.root.value

    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client)
        await publish(client, EU, *range(40))
        with trio.fail_after(60), caplog.at_level(logging.ERROR):
            await made(client, 40)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.stage("p", "make", max_in_flight=16).run, make)
                nursery.start_soon(client.stage("p", "use").run, lambda _: None)
                await done(client, 36, 4)
                nursery.cancel_scope.cancel()
        assert 2 <= most <= 16
        assert sorted(ran) == sorted(
            (n, attempt) for n in range(40) for attempt in ((1, 2) if n % 10 == 3 else (1,))
        )
        failed = await client.instances("p", status="failed")
        reasons = {stage.reason for each in failed for stage in each.stages if stage.reason}
        assert reasons == {"ValueError: three of many"}
        assert caplog.text.count("raise ValueError") == 1, "the same pages are told once"
        assert caplog.text.count(": ValueError: three of many (its traceback stands above)") == 7
        assert sorted([record.value async for record in client.read("out")]) == [
            n for n in range(40) if n % 10 != 3
        ]


async def test_an_output_of_a_stage_without_any_is_told_and_fails_nothing(
    tmp_path: Path, clock: MockClock
) -> None:
    ran: list[int] = []

    async def make(invocation: StageInvocation) -> Any:
        ran.append(invocation.attempt)
        await trio.sleep(0.01)
        return {"n": invocation.root.value} if invocation.root.value == 3 else None

    async def one_by_one(client: Client) -> None:
        async for invocation in client.stage("p", "make"):
            async with invocation:
                await invocation.complete("x")

    async def in_transactions(client: Client) -> None:
        async for invocation in client.stage("p", "make"):
            async with invocation, client.transaction() as tx:
                await tx.complete(invocation, "x")

    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client, output=None)
        await publish(client, EU, *range(6))
        with trio.fail_after(60):
            await made(client, 6)
            for _ in range(3):
                # It may be that others are handed out first: the wrong one is, each time.
                with pytest.raises(
                    RequestError, match=r"declares no output, and for instance . th"
                ):
                    await client.stage("p", "make", max_in_flight=2).run(make)
            for loop in (one_by_one, in_transactions):
                with pytest.raises(RequestError, match="declares no output"):
                    await loop(client)
            assert set(ran) == {1}
            async with trio.open_nursery() as nursery:
                for name in ("make", "use"):
                    nursery.start_soon(client.stage("p", name).run, lambda _: None)
                await done(client, 6)
                nursery.cancel_scope.cancel()
        shown = await client.instances("p")
        assert {each.attempts for one in shown for each in one.stages} == {0}


@pytest.mark.long
async def test_what_hangs_fails_its_attempt_when_its_time_is_over(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    hung: list[int] = []

    async def make(invocation: StageInvocation) -> Any:
        if invocation.root.value == "poison":
            hung.append(invocation.attempt)
            await trio.sleep_forever()
        return invocation.root.value

    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client, timeout_ms=30_000)
        await publish(client, EU, "poison", "a", "b", "c", "d")
        with trio.fail_after(200):
            async with trio.open_nursery() as nursery:
                # With room for one at a time who hangs for ever holds up all others.
                nursery.start_soon(client.stage("p", "make", max_in_flight=1).run, make)
                nursery.start_soon(client.stage("p", "use").run, lambda _: None)
                began = trio.current_time()
                await done(client, 4, 1)
                assert trio.current_time() - began < 2 * 30 + 5
                nursery.cancel_scope.cancel()
        assert hung == [1, 2]
        (failed,) = await client.instances("p", status="failed")
        (reason,) = (each.reason for each in failed.stages if each.reason)
        assert reason == "stage 'make' took longer than its timeout of 30 s"
        assert caplog.text.count(f"{reason} for instance") == 2


async def test_what_is_said_of_one_whose_time_is_over_is_stale(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client, timeout_ms=3_000)
        await publish(client, EU, "a")
        with trio.fail_after(60):
            seen = []
            async for invocation in client.stage("p", "make"):
                seen.append((invocation.attempt, invocation.is_late))
                if invocation.attempt == 2:
                    await invocation.complete("in time")
                    break
                while not invocation.is_late:  # noqa: ASYNC110 - what a handler does
                    await trio.sleep(0.1)
                assert invocation.is_ended
                with pytest.raises(StaleCompletionError, match="than its timeout of 3 s for inst"):
                    await invocation.complete("late")
                with pytest.raises(StaleCompletionError, match="attempt 1 has failed"):
                    async with client.transaction() as tx:
                        await tx.complete(invocation, "late")
                async with invocation:
                    raise ValueError("it goes on behind the block")
        assert seen == [(1, False), (2, False)]
        assert [record.value async for record in client.read("out")] == ["in time"]


@pytest.mark.long
async def test_of_what_is_at_another_runner_no_attempt_fails_when_its_time_here_is_over(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client, timeout_ms=5_000, retry=Retry(max_attempts=1))
        await publish(client, EU, "a")
        with trio.fail_after(60):
            async with client.stage("p", "make") as stage, client.stage("p", "make") as other:
                kept = await anext(stage)
                assert stage._stages is not None
                await trio.sleep(4)
                stage._stages._standing.drop(ConnectionLostError("cut"))
                again = await anext(other)
                while not kept.is_late:  # noqa: ASYNC110 - nothing else tells
                    await trio.sleep(0.1)
                assert await again.complete("made") is not None
        assert [record.value async for record in client.read("out")] == ["made"]


@pytest.mark.long
async def test_one_that_is_handed_out_late_has_its_whole_time(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client, timeout_ms=20_000)
        await publish(client, EU, "a", "b")
        with trio.fail_after(120):
            await made(client, 2)
            async with client.stage("p", "make") as stage, client.stage("p", "make") as other:
                first = await anext(stage)
                await trio.sleep(4.9)
                second = await anext(stage)
                await first.complete(1)
                with trio.move_on_after(19.5):
                    pytest.fail(f"somebody else has {await anext(other)}, too")
                await second.complete(2)
        assert [record.value async for record in client.read("out")] == [1, 2]


@pytest.mark.long
async def test_what_waits_for_its_records_is_not_begun(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client, timeout_ms=5_000)
        await publish(client, US, "a")
        first_fetch_takes(10, monkeypatch)
        with trio.fail_after(120):
            await made(client, 1)
            async with client.stage("p", "make") as stage, client.stage("p", "make") as other:

                async def make() -> None:
                    await (await anext(stage)).complete("made")
                    nursery.cancel_scope.cancel()

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(make)
                    await trio.sleep(1)
                    pytest.fail(f"somebody else has {await anext(other)}, too")
        assert [record.value async for record in client.read("out")] == ["made"]


async def test_who_gives_up_waiting_for_an_invocation_takes_nothing_away(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client, output=None)
        await publish(client, US, "a")
        asked = first_fetch_takes(10, monkeypatch)
        with trio.fail_after(120):
            await made(client, 1)
            async with client.stage("p", "make", max_in_flight=1) as stage:
                while not asked:
                    with trio.move_on_after(1):
                        pytest.fail(f"without its record there is {await anext(stage)}")
                with trio.fail_after(5):
                    invocation = await anext(stage)
                assert (invocation.root.value, invocation.attempt) == ("a", 1)
                await invocation.complete()


async def test_leaving_gives_back_what_has_not_ended_without_an_attempt(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client, output=None)
        await publish(client, EU, "a", "b", "c")
        with trio.fail_after(60):
            async for invocation in client.stage("p", "make"):
                assert invocation.root.value == "a"
                break
            async with client.stage("p", "make") as stage:
                kept = await anext(stage)
                # Without a loop it is left by its block. Which one it is: whatever is back by then.
                assert kept.attempt == 1
            leadership = cluster[EU].node("n1").member._leadership
            assert leadership is not None
            assert leadership.leading is not None
            (driver,) = leadership.leading.part(Pipelines)._drivers.values()
            assignments = driver.dispatcher.assignments
            while assignments.runners:  # noqa: ASYNC110 - the leader hears of it
                await trio.sleep(0.05)
            assert not assignments.losses, "who leaves is not lost"
            seen = []
            async with client.stage("p", "make") as stage:
                async for invocation in stage:
                    seen.append((invocation.root.value, invocation.attempt))
                    async with invocation:
                        pass
                    if len(seen) == 3:
                        break
            assert sorted(seen) == [("a", 1), ("b", 1), ("c", 1)]
            with pytest.raises(StaleCompletionError):
                await kept.complete()


async def test_a_failure_that_is_final_uses_no_other_attempt(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client, retry=Retry(max_attempts=5))
        await publish(client, EU, "a")
        with trio.fail_after(60):
            async for invocation in client.stage("p", "make"):
                await invocation.fail("no such customer", retryable=False)
                break
            (failed,) = await client.instances("p", status="failed")
        assert [(each.attempts, each.reason) for each in failed.stages if each.reason] == [
            (1, "no such customer")
        ]


async def test_a_transaction_ends_an_invocation(tmp_path: Path, clock: MockClock) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client)
        await publish(client, EU, "a", "b")
        with trio.fail_after(60):
            async with client.stage("p", "make") as stage:
                first, second = await anext(stage), await anext(stage)
                async with client.transaction() as tx:
                    await tx.complete(first, "output")
                    await tx.publish("out", "beside", partition=US)
                async with client.transaction() as tx:
                    await tx.fail(second, ValueError("no"))
                assert first.is_ended
                with pytest.raises(RequestError, match="was ended before"):
                    async with client.transaction() as tx:
                        await tx.complete(first, "again")
            async for invocation in client.stage("p", "use"):
                assert invocation.outputs["make"].value == "output"
                await invocation.complete()
                break
        values = {(each.partition, each.value) async for each in client.read("out")}
        assert values == {(EU, "output"), (US, "beside")}


async def test_another_runner_has_at_once_what_one_had_whose_connection_is_lost(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client)
        await publish(client, EU, *range(20))
        with trio.fail_after(60):
            async with cluster.client() as lost, lost.stage("p", "make") as stage:
                held = [await anext(stage) for _ in range(20)]
            seen = set()
            async with client.stage("p", "make") as stage:
                async for invocation in stage:
                    assert invocation.attempt == 1
                    await invocation.complete(invocation.root.value)
                    seen.add(invocation.root.value)
                    if len(seen) == len(held):
                        break
        assert seen == set(range(20))


@pytest.mark.long
async def test_what_ends_its_program_each_time_is_given_up_and_all_else_is_done(
    tmp_path: Path, clock: MockClock
) -> None:
    killed: list[int] = []

    async def program(client: Client) -> None:
        """Works on all that it is given, and is killed by `poison`."""
        async with client.stage("p", "make") as stage:
            held = []
            while True:
                with trio.move_on_after(0.5):
                    while True:
                        held.append(await anext(stage))
                if any(each.root.value == "poison" for each in held):
                    killed.append(len(held))
                    ready = stage._stages
                    assert ready is not None
                    assert ready._scope is not None
                    # Without a word, and for good.
                    ready._scope.cancel()
                    ready._call = None
                    await trio.sleep(0.1)
                    return
                while held:
                    await held.pop().complete("made")

    async def programs(client: Client) -> None:
        while True:
            await program(client)

    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client)
        await publish(client, EU, "poison", *range(19))
        with trio.fail_after(200):
            await made(client, 20)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(programs, client)
                nursery.start_soon(client.stage("p", "use").run, lambda _: None)
                await done(client, 19, 1)
                nursery.cancel_scope.cancel()
        assert killed[-2:] == [1, 1]
        assert len(killed) < 8
        (failed,) = await client.instances("p", status="failed")
        (reason,) = (each.reason for each in failed.stages if each.reason)
        assert reason.startswith("stage 'make' has lost 2 runners that worked on this instance")


async def test_a_leader_that_fails_costs_no_output(tmp_path: Path, clock: MockClock) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client)
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    client.stage("p", "make").run, lambda invocation: invocation.root.value
                )
                nursery.start_soon(client.stage("p", "use").run, lambda _: None)
                for number in range(3):
                    await publish(client, EU, *range(number * 10, number * 10 + 10))
                    await cluster[EU].crash("n1")
                    await cluster[EU].restart("n1")
                    await cluster.wait_serving()
                await done(client, 30)
                nursery.cancel_scope.cancel()
        values = [each.value async for each in client.read("out")]
        assert sorted(values) == list(range(30))


async def test_an_invocation_whose_record_is_gone_fails(tmp_path: Path, clock: MockClock) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client, output=None)
        await publish(client, US, "a", "b")
        with trio.fail_after(60):
            await made(client, 2)
            stream_id = (await client.stream("in")).id
            leadership = cluster[US].node("n1").member._leadership
            assert leadership is not None
            await leadership.controller.execute(TrimStream(stream_id, 1))
            async with client.stage("p", "make") as stage:
                invocation = await anext(stage)
                assert invocation.root.value == "b"
                await invocation.complete()
                with trio.move_on_after(1):
                    await anext(stage)
            (failed,) = await client.instances("p", status="failed")
        (reason,) = (each.reason for each in failed.stages if each.reason)
        assert "cannot be read: OffsetOutOfRangeError" in reason


@pytest.mark.parametrize("partition", [EU, US])
@pytest.mark.parametrize("is_deleted", [True, False])
async def test_an_output_that_nothing_takes_any_more_is_given_up_with_a_reason_that_names_it(
    tmp_path: Path, clock: MockClock, partition: str, is_deleted: bool
) -> None:
    """The present definition has no such output, so its stream could be deleted, or lose this
    partition. Retried, the instance goes on with that definition."""
    attempts: list[int] = []

    async def make(invocation: StageInvocation) -> Any:
        attempts.append(invocation.attempt)
        return "made" if len(attempts) <= RETRY.max_attempts else None

    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client, output=Output("out", partition))
        await publish(client, EU, 1)
        with trio.fail_after(60):
            await made(client, 1)
            await declare(client, output=None)
            if is_deleted:
                await client.delete([("Stream", "default", "out")], allow_destructive=True)
            else:
                spec = StreamSpec(partitions=(EU if partition == US else US,))
                out = SchemaObject(kind="Stream", name="out", spec=spec)
                await client.apply([out], allow_destructive=True)
            # Before its leader has heard of that it publishes.
            await cluster.wait_for(
                "told", lambda: len({cluster[x].status("n1").metadata_index for x in SETS}) == 1
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.stage("p", "make").run, make)
                nursery.start_soon(client.stage("p", "use").run, lambda _: None)
                await done(client, 0, failed=1)
                (shown,) = await client.instances("p")
                stage = next(each for each in shown.stages if each.name == "make")
                assert stage.status == "failed"
                gone = "stream 'out' does not exist" if is_deleted else "Stream default/out has no"
                assert stage.reason.startswith(f"NotFoundError: {gone}")
                assert attempts == [1, 2]
                assert await client.retry_instances("p") == 1
                await done(client, 1)
                nursery.cancel_scope.cancel()
