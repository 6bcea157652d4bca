"""Stages of a pipeline that end in transactions over whole nodes."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from trio.testing import MockClock

from hadron.model.errors import ConflictError, RequestError
from hadron.model.pipelines import PipelineSpec, StageSpec
from hadron.model.schema import SchemaObject
from hadron.node.tests.test_transactions import EU, SETS, US, make_streams, until_over, values
from hadron.node.tests.transacting import (
    Breaker,
    End,
    RawRunner,
    Stated,
    committed,
    complete,
    driving,
    fail,
    publish,
    rows,
)
from hadron.state.transactions.intents import WriteIntents
from hadron.testing.nodes import Cluster, running_cluster
from hadron.wire.messages import pipelines_pb2


async def make_pipeline(cluster: Cluster) -> None:
    spec = PipelineSpec(
        replica_set=EU,
        input="on-eu",
        start="earliest",
        stages=(StageSpec(name="do", engine="handler"),),
    )
    async with cluster.client() as client:
        await client.apply([SchemaObject(kind="Pipeline", name="p", spec=spec)])


@pytest.mark.parametrize("home", [EU, US])
async def test_a_stage_ends_with_what_is_made_of_it(
    tmp_path: Path, clock: MockClock, home: str
) -> None:
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        await make_pipeline(cluster)
        async with cluster[EU].connection("n1") as connection, driving(cluster, home) as driver:
            runner = RawRunner(connection, "p")
            invocations = await runner.invocations()
            ends = complete(EU, invocations)
            number = await driver.number()
            driver.say(number, ends, publish(US, ids[US], b"made of it"))
            if home == US:
                await cluster.wait_for("a lock", lambda: rows(cluster, EU, "lock") == 1)
            with pytest.raises(ConflictError, match=str(driver.id(number))):
                await driver.commit(complete(EU, invocations))
            driver.say(number, first=2, end=End.COMMIT)
            assert committed(await driver.answer(number)) == {EU: [-1], US: [1]}
            with pytest.raises(RequestError):
                await driver.commit(ends, publish(US, ids[US], b"made of it again"))
        await until_over(cluster)
        assert await values(cluster, US) == [b"made of it"]


@pytest.mark.parametrize("end", [complete, fail])
async def test_a_prepare_that_is_sent_again_is_known_whoever_leads_then(
    tmp_path: Path,
    clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[str, pipelines_pb2.Invocations], Stated],
) -> None:
    """The leader where it ends a stage fails before it has answered, and with it goes what it knew
    of who has run that, and since when."""
    breaker = Breaker(monkeypatch)
    async with running_cluster(tmp_path, SETS) as cluster:
        ids = await make_streams(cluster)
        async with cluster[EU].connection("n1") as connection, driving(cluster, US) as client:
            await make_pipeline(cluster)
            invocations = await RawRunner(connection, "p").invocations()
            number = await client.number()
            breaker.crash(cluster[EU], "n1", at=WriteIntents, is_logged=True)
            made = publish(US, ids[US], b"made of it")
            client.say(number, end(EU, invocations), made, end=End.COMMIT)
            await breaker.crashed()
            await cluster[EU].start("n1")
            await cluster.wait_serving(EU)
            assert committed(await client.answer(number)) == {EU: [-1], US: [1]}
        await until_over(cluster)
        assert await values(cluster, US) == [b"made of it"]
