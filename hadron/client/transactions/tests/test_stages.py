"""Stages that end in transactions, over real nodes in one process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from hadron.client import Client
from hadron.client.transactions.tests.test_with_nodes import (
    EU,
    ONE,
    US,
    declare,
    eventually,
    until_over,
    values,
)
from hadron.client.transactions.transaction import Transaction
from hadron.model.errors import (
    ConflictError,
    HadronError,
    InvalidRecordError,
    NotFoundError,
    RecordTooLargeError,
    RequestError,
    StaleCompletionError,
)
from hadron.model.pipelines import Output, PipelineSpec, Retry, StageSpec
from hadron.model.record import NewRecord
from hadron.model.schema import SchemaObject
from hadron.testing.nodes import Cluster, running_cluster
from hadron.wire.messages import pipelines_pb2


async def make_pipeline(client: Client, *, triggers: int) -> None:
    """Two stages with outputs to "eu", and one without that fails for good at once."""
    retry = Retry(max_attempts=1)
    spec = PipelineSpec(
        replica_set=EU,
        input="in",
        start="earliest",
        stages=(
            StageSpec(name="made", engine="handler", output=Output("eu")),
            StageSpec(name="plain", engine="handler", retry=retry),
        ),
    )
    await client.apply([SchemaObject(kind="Pipeline", name="p", spec=spec)])
    async with client.producer("in") as producer:
        await producer.send_many([b"%d" % number for number in range(triggers)])


async def take(
    client: Client, stage: str, count: int, taken: list[pipelines_pb2.Invocations]
) -> None:
    """Keep a runner until cancelled, once it has `count` invocations of a stage in one batch."""
    async with client.run_stages("p", engine="handler", stages=[stage], max_batch=count) as run:
        async for batch in run:
            taken.append(batch)
            run.grant()


@asynccontextmanager
async def running(
    client: Client, stage: str, count: int
) -> AsyncIterator[pipelines_pb2.Invocations]:
    taken: list[pipelines_pb2.Invocations] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take, client, stage, count, taken)
        while sum(len(each.invocations) for each in taken) < count:  # noqa: ASYNC110 - no event
            await trio.sleep(0.01)
        whole = pipelines_pb2.Invocations()
        for each in taken:
            whole.MergeFrom(each)
        yield whole
        nursery.cancel_scope.cancel()


async def statuses(client: Client, stage: str) -> list[str]:
    return [
        found.status
        for each in await client.instances("p")
        for found in each.stages
        if found.name == stage
    ]


@asynccontextmanager
async def a_pipeline(tmp_path: Path, triggers: int = 3) -> AsyncIterator[tuple[Cluster, Client]]:
    async with running_cluster(tmp_path, ONE) as cluster, cluster.client() as client:
        await declare(client)
        await make_pipeline(client, triggers=triggers)
        yield cluster, client


async def test_a_grant_that_no_message_takes_is_refused(tmp_path: Path) -> None:
    async with (
        a_pipeline(tmp_path, 1) as (_, client),
        client.run_stages("p", engine="handler", stages=["plain"], max_batch=1) as run,
    ):
        batch = await anext(aiter(run))
        for bad in (0, 1 << 40, 1.5):
            with pytest.raises(RequestError, match="count"):
                run.grant(bad)  # type: ignore[arg-type]
        run.grant()
        assert [each.attempt for each in batch.invocations] == [1]


@pytest.mark.parametrize("home", [EU, US])
async def test_a_stage_a_record_and_an_acknowledgement_end_together(
    tmp_path: Path, home: str
) -> None:
    async with (
        a_pipeline(tmp_path) as (_, client),
        running(client, "made", 3) as batch,
        client.subscribe("in", group="g", start="earliest") as subscription,
    ):
        delivery = await subscription.__anext__()
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with client.transaction(driver=home) as tx:
                await tx.complete(batch, [b"a", b"b", b"c"])
                await tx.publish("us", b"never")
                await tx.ack(delivery)
                raise ZeroDivisionError
        assert await values(client, "eu") == await values(client, "us") == []
        assert set(await statuses(client, "made")) == {"running"}
        async with client.transaction(driver=home) as tx:
            await tx.publish("eu", b"first")
            outputs = await tx.complete(
                batch, ["a", {"b": 1}, NewRecord(value=b"c", key="k", id="mine")]
            )
            await tx.publish("us", b"beside")
            await tx.ack(delivery)
            assert outputs.receipts == []
        assert await values(client, "eu") == [b"first", "a", {"b": 1}, b"c"]
        assert await values(client, "us") == [b"beside"]
        assert [(each.stream, each.base_offset, each.count) for each in outputs.receipts] == [
            ("eu", 2, 3)
        ]
        assert set(await statuses(client, "made")) == {"done"}
        (group,) = await client.groups("in")
        assert group.floor == 1
        # It has ended: nobody ends it again, and nothing is published beside that.
        with pytest.raises(StaleCompletionError, match="'made'") as caught:  # noqa: PT012
            async with client.transaction(driver=home) as tx:
                await tx.publish("us", b"never")
                await tx.complete(batch, [b"a", b"b", b"c"])
        assert not caught.value.retryable
        assert await values(client, "us") == [b"beside"]
        await until_over(client)


async def test_a_stage_that_a_transaction_has_is_nobody_elses(tmp_path: Path) -> None:
    async with a_pipeline(tmp_path) as (cluster, client), running(client, "made", 3) as batch:
        ids = [each.instance_id for each in batch.invocations]
        attempts = [each.attempt for each in batch.invocations]
        created_ms = [each.created_ms for each in batch.invocations]
        async with client.transaction(driver=US) as tx:
            await tx.complete(batch, [b"x"], only=batch.invocations[:1])
            await tx.publish("us", b"x")

            async def is_there() -> bool:
                return any(each.replica_set == EU for each in await client.transactions(EU))

            await eventually(is_there)
            async with cluster.client(request_timeout_s=0.3) as hasty:
                with pytest.raises(ConflictError, match=tx.id):
                    await hasty.fail_stages(
                        batch.pipeline_id, "made", ids, attempts, created_ms, "no"
                    )
            with pytest.raises(ConflictError, match=tx.id) as caught:  # noqa: PT012
                async with client.transaction() as other:
                    await other.publish("eu", b"never")
                    await other.complete(batch, [b"1", b"2", b"3"])
            assert caught.value.retryable
            async with client.transaction() as other:
                await other.complete(batch, [b"2", b"3"], only=batch.invocations[1:])
        assert await values(client, "eu") == [b"2", b"3", b"x"]
        assert set(await statuses(client, "made")) == {"done"}


async def test_a_stage_fails_with_what_is_said_of_it(tmp_path: Path) -> None:
    async with a_pipeline(tmp_path) as (_, client), running(client, "plain", 3) as batch:
        async with client.transaction(driver=US) as tx:
            await tx.fail(batch, ValueError("bad input"), only=batch.invocations[0])
            await tx.complete(batch, only=batch.invocations[1:])
            await tx.publish("us", b"told")
        assert sorted(await statuses(client, "plain")) == ["done", "done", "failed"]
        (failed,) = await client.instances("p", status="failed")
        assert {each.reason for each in failed.stages if each.status == "failed"} == {
            "ValueError: bad input"
        }
        assert await values(client, "us") == [b"told"]


@pytest.mark.parametrize("home", [EU, US])
async def test_who_has_run_what_a_transaction_ends_is_told(tmp_path: Path, home: str) -> None:
    async with (
        a_pipeline(tmp_path, 2) as (_, client),
        client.stage("p", "plain", runner="host/7", code_version="v3") as stage,
    ):
        invocations = aiter(stage)
        first, second = await anext(invocations), await anext(invocations)
        async with client.transaction(driver=home) as tx:
            await tx.complete(first)
            await tx.fail(second, "bad input")
        await until_over(client)
        tried = [
            attempt
            for found in await client.instances("p")
            for each in found.stages
            for attempt in each.tried
        ]
        assert {(each.runner, each.code_version) for each in tried} == {("host/7", "v3")}
        assert [each.HasField("took_ms") for each in tried] == [True, True]


async def test_a_reason_that_no_message_takes_is_told_in_part(tmp_path: Path) -> None:
    async with a_pipeline(tmp_path, 2) as (_, client), running(client, "plain", 2) as batch:
        async with client.transaction(driver=US) as tx:
            await tx.fail(batch, "long" * 2_000_000, only=batch.invocations[0])
            await tx.fail(batch, ValueError("half a \ud800"), only=batch.invocations[1])
        assert await statuses(client, "plain") == ["failed", "failed"]
        reasons = {
            each.reason for found in await client.instances("p") for each in found.stages
        } - {None, ""}
        assert sorted(reasons) == ["ValueError: half a \\ud800", "long" * 500]


async def test_what_does_not_fit_a_stage_is_not_in_the_transaction(tmp_path: Path) -> None:
    other = pipelines_pb2.Invocation(instance_id=77, attempt=1)
    async with a_pipeline(tmp_path) as (_, client), running(client, "made", 3) as batch:
        unknown = pipelines_pb2.Invocations(pipeline_id=999, stage="made")
        unknown.invocations.append(other)
        of_none = pipelines_pb2.Invocations(pipeline_id=batch.pipeline_id, stage="made")
        elsewhere = pipelines_pb2.Invocations(pipeline_id=batch.pipeline_id, stage="gone")
        elsewhere.invocations.append(other)
        bad: list[tuple[pipelines_pb2.Invocations, Sequence[object] | None, type[HadronError]]] = [
            (batch.invocations[0], [b"x"], RequestError),  # type: ignore[list-item]
            (unknown, [b"x"], NotFoundError),
            (elsewhere, [b"x"], NotFoundError),
            (of_none, [], RequestError),
            (batch, None, RequestError),
            (batch, [b"x"], RequestError),
            (batch, b"xyz", RequestError),
            (batch, [b"x", b"y", object()], InvalidRecordError),
            (batch, [NewRecord(value=b"x", partition=US)] * 3, InvalidRecordError),
            (batch, [b"x" * (1 << 20)] * 3, RecordTooLargeError),
            (batch, [b"x" * 900_000] * 3, RecordTooLargeError),
        ]
        async with client.transaction() as tx:
            for given, outputs, kind in bad:
                with pytest.raises(kind) as caught:
                    await tx.complete(given, outputs)
                assert not caught.value.retryable
                assert caught.value.hint
            with pytest.raises(RequestError, match="77"):
                await tx.complete(batch, [b"x"], only=[other])
            with pytest.raises(RequestError, match="named twice"):
                await tx.complete(batch, [b"x"] * 2, only=[batch.invocations[0]] * 2)
            with pytest.raises(RequestError, match="does not say why"):
                await tx.fail(batch, "")
            await tx.complete(batch, [b"x", b"y", b"z"])
        assert await values(client, "eu") == [b"x", b"y", b"z"]
        plain = pipelines_pb2.Invocations()
        plain.CopyFrom(batch)
        plain.stage = "plain"
        # As the schema declares it.
        plain.ClearField("spec")
        async with client.transaction() as tx:
            with pytest.raises(RequestError, match="declares no output"):
                await tx.complete(plain, [b"x", b"y", b"z"])


async def test_what_is_to_be_done_again_ends_no_invocation(tmp_path: Path) -> None:
    """It is rolled back already: nobody would give back what it had ended."""
    async with a_pipeline(tmp_path, 2) as (_, client), client.stage("p", "plain") as stage:
        first, second = await anext(stage), await anext(stage)
        async with client.transaction() as tx:
            tx._work.is_redone = True
            tx._work.rollback(ConflictError("somebody was first"))
            await tx.complete(first)
            await tx.fail(second, "bad input")
            tx._work.is_settled = True
        assert not first.is_ended
        assert not second.is_ended


async def test_of_two_transactions_at_once_one_ends_an_invocation(tmp_path: Path) -> None:
    async with a_pipeline(tmp_path, 1) as (_, client), client.stage("p", "plain") as stage:
        invocation = await anext(stage)
        refused: list[RequestError] = []

        async def complete(tx: Transaction) -> None:
            try:
                await tx.complete(invocation)
            except RequestError as error:
                refused.append(error)

        async with client.transaction() as one, client.transaction() as other:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(complete, one)
                nursery.start_soon(complete, other)
            assert len(refused) == 1
            await one.rollback()
            await other.rollback()
        assert not invocation.is_ended
        assert stage._running == 1
