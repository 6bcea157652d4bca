"""Stages that a program runs itself, while somebody is away or the program errs: an attempt is used
up by what its handler does, and by nothing else."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from hadron.client import Client
from hadron.client.handling.invocation import StageInvocation
from hadron.client.handling.records import FetchedRecords
from hadron.model.errors import ClosedError, HadronError, NotFoundError
from hadron.model.pipelines import Output, Retry
from hadron.node.tests.test_stage_handlers import EU, SETS, US, declare, made, publish
from hadron.testing.nodes import running_cluster

TWICE = Retry(max_attempts=2, backoff_ms=10)


async def make_of(client: Client, instance_id: int) -> Any:
    """What became of stage `make`, once it is done or failed for good."""
    with trio.fail_after(600):
        while True:
            shown = {each.id: each for each in await client.instances("p")}[instance_id]
            stage = {each.name: each for each in shown.stages}["make"]
            if stage.status in ("done", "failed"):
                return stage
            await trio.sleep(0.1)


@pytest.mark.long
@pytest.mark.parametrize("away", [US, EU])
@pytest.mark.parametrize("is_explicit", [False, True])
async def test_an_output_whose_set_is_away_uses_no_attempt(
    tmp_path: Path, clock: MockClock, away: str, is_explicit: bool
) -> None:
    """Nor does one whose pipeline's set is: it is said again until it is heard."""
    ran: list[int] = []
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:

        async def handle(invocation: StageInvocation) -> Any:
            ran.append(invocation.attempt)
            if len(ran) == 1:
                await cluster.crash(away)
            if is_explicit:
                await invocation.complete("made")
            return "made"

        await declare(client, output=Output("out", US), retry=TWICE, timeout_ms=600_000)
        await publish(client, EU, "a")
        await made(client, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.stage("p", "make").run, handle)
            await trio.sleep(100)
            await cluster.start(away)
            stage = await make_of(client, 1)
            nursery.cancel_scope.cancel()
        assert (stage.status, stage.attempts) == ("done", 0)
        assert set(ran) == {1}


async def test_what_raises_behind_a_transaction_that_was_to_end_it_fails_its_attempt(
    tmp_path: Path, clock: MockClock
) -> None:
    ran: list[int] = []
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:

        async def handle(invocation: StageInvocation) -> None:
            ran.append(invocation.attempt)
            async with client.transaction() as tx:
                await tx.complete(invocation, "never written")
                raise ValueError("a bug behind it")

        await declare(client, output=Output("out", EU), retry=TWICE, timeout_ms=30_000)
        await publish(client, EU, "a")
        await made(client, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.stage("p", "make").run, handle)
            stage = await make_of(client, 1)
            nursery.cancel_scope.cancel()
        assert (stage.status, stage.reason) == ("failed", "ValueError: a bug behind it")
        assert ran == [1, 2]


@pytest.mark.long
async def test_an_invocation_whose_transaction_is_rolled_back_has_the_time_that_is_left(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client, output=Output("out", EU), timeout_ms=20_000)
        await publish(client, EU, "a")
        await made(client, 1)
        async with client.stage("p", "make") as stage:
            invocation = await anext(stage)
            await trio.sleep(15)
            async with client.transaction() as tx:
                await tx.complete(invocation, "never written")
                assert invocation.is_ended
                await tx.rollback()
            assert not invocation.is_ended
            await trio.sleep(4)
            assert not invocation.is_late
            await trio.sleep(2)
            assert invocation.is_late


async def test_a_handlers_mistake_with_what_is_closed_fails_its_attempt(
    tmp_path: Path, clock: MockClock
) -> None:
    """And does not end the run."""
    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:

        async def handle(invocation: StageInvocation) -> Any:
            if invocation.root.value == "bad":
                async with client.transaction() as tx:
                    await tx.publish("out", "once", partition=US)
                    await tx.commit()
                    await tx.publish("out", "twice", partition=US)
            return invocation.root.value

        await declare(client, output=Output("out", EU), retry=TWICE, timeout_ms=30_000)
        await publish(client, EU, "bad", "good")
        await made(client, 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.stage("p", "make", max_in_flight=1).run, handle)
            assert (await make_of(client, 1)).reason.startswith("ClosedError")
            assert (await make_of(client, 2)).status == "done"
            nursery.cancel_scope.cancel()


async def test_what_is_said_to_a_closed_client_is_refused(tmp_path: Path, clock: MockClock) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        async with cluster.client() as client:
            await declare(client, output=Output("out", EU))
            await publish(client, EU, "a")
            async with client.stage("p", "make") as stage:
                invocation = await anext(stage)
        with trio.fail_after(10), pytest.raises(ClosedError):
            await invocation.complete("x")


async def test_records_that_are_away_hold_nobody_elses_up(tmp_path: Path, clock: MockClock) -> None:
    """More of them than the program may have at a time; and then it has no more than that."""
    running, most, ran = 0, 0, list[Any]()

    async def handle(invocation: StageInvocation) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(0.1)
        running -= 1
        ran.append((invocation.root.value, invocation.attempt))
        return invocation.root.value

    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:
        await declare(client, output=Output("out", EU), retry=TWICE, timeout_ms=5_000)
        away, here = [f"us {n}" for n in range(9)], [f"eu {n}" for n in range(9)]
        await publish(client, US, *away)
        await made(client, len(away))
        await cluster.crash(US)
        await publish(client, EU, *here)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.stage("p", "make", max_in_flight=2).run, handle)
            with trio.fail_after(30):
                while len(ran) < len(here):  # noqa: ASYNC110 - the handler ends them
                    await trio.sleep(0.1)
            # For longer than their stage may take.
            await trio.sleep(20)
            assert sorted(ran) == [(value, 1) for value in here]
            await cluster.start(US)
            with trio.fail_after(60):
                while len(ran) < len(away + here):  # noqa: ASYNC110 - the handler ends them
                    await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        assert sorted(ran) == [(value, 1) for value in [*here, *away]]
        assert most == 2


async def test_a_pipeline_that_is_deleted_ends_its_handlers_by_one_error(
    tmp_path: Path, clock: MockClock
) -> None:
    """Though each of them raises, and nobody is there to hear of it."""
    running, gone = 0, trio.Event()

    async def handle(invocation: StageInvocation) -> None:
        nonlocal running
        running += 1
        await gone.wait()
        raise ValueError("a bug")

    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:

        async def delete() -> None:
            while running < 3:  # noqa: ASYNC110 - the handlers say so
                await trio.sleep(0.1)
            await client.delete([("Pipeline", "default", "p")], allow_destructive=True)
            with suppress(HadronError):
                while await client.pipeline_progress("p"):  # noqa: ASYNC110 - its set hears of it
                    await trio.sleep(0.1)
            gone.set()

        await declare(client, output=Output("out", EU), timeout_ms=300_000)
        await publish(client, EU, "a", "b", "c")
        with trio.fail_after(200):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(delete)
                with pytest.raises(NotFoundError):
                    await client.stage("p", "make").run(handle)


@pytest.mark.parametrize("is_busy", [False, True])
async def test_run_returns_when_its_client_is_closed(
    tmp_path: Path, clock: MockClock, is_busy: bool
) -> None:
    ran, returned = trio.Event(), trio.Event()

    async def handle(invocation: StageInvocation) -> str:
        ran.set()
        await trio.sleep(20 if is_busy else 0)
        return "made"

    async def run(client: Client) -> None:
        await client.stage("p", "make").run(handle)
        returned.set()

    async with running_cluster(tmp_path, SETS) as cluster, trio.open_nursery() as nursery:
        async with cluster.client() as client:
            await declare(client, output=Output("out", EU))
            await publish(client, EU, "a")
            nursery.start_soon(run, client)
            with trio.fail_after(60):
                await ran.wait()
            await trio.sleep(5)
        with trio.fail_after(60):
            await returned.wait()


@pytest.mark.long
async def test_a_stage_that_is_closed_ends_while_a_failure_is_not_heard(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is gone, and so is the leader that is to hear of it."""
    is_asked = trio.Event()

    async with running_cluster(tmp_path, SETS) as cluster, cluster.client() as client:

        async def get(*_: Any) -> Any:
            await cluster.crash(EU)
            is_asked.set()
            raise NotFoundError("the record is gone")

        monkeypatch.setattr(FetchedRecords, "get", get)
        await declare(client, output=Output("out", EU), timeout_ms=300_000)
        await publish(client, US, "a")
        await made(client, 1)
        async with client.stage("p", "make") as stage, trio.open_nursery() as nursery:
            nursery.start_soon(anext, stage, None)
            with trio.fail_after(60):
                await is_asked.wait()
            await trio.sleep(10)
            stage.close()
            nursery.cancel_scope.deadline = trio.current_time() + 120
        assert not nursery.cancel_scope.cancelled_caught
