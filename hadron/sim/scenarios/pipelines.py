"""Pipelines under crashes: one instance per trigger, each output exactly once."""

from __future__ import annotations

import contextlib
from typing import Final

import trio

from hadron.client import Client
from hadron.client.stages import StageRun
from hadron.model.batch import encode_values
from hadron.model.errors import HadronError
from hadron.model.schema import (
    Output,
    PipelineSpec,
    Retry,
    SchemaObject,
    StageSpec,
    StreamSpec,
)
from hadron.sim.scenarios.play import Play, scenario
from hadron.sim.workload_clients import STREAM
from hadron.wire.messages import pipelines_pb2

_OUT: Final = "out"
_FLOW: Final = "flow"
_RECORDS: Final = 30


@scenario("A1, A2: a stage's output and its completion are one entry")
async def stages_under_crashes(play: Play) -> None:
    """Runners hand in outputs while the leader is killed and a replica loses its power; some fail
    at first, some ask twice. Every record of the input makes one output, and one only."""
    world = play.world
    async with world.client("c0") as client:
        await client.apply(_objects(world.config.name))
    runners = [_Runner(play, f"w{number}") for number in range(2)]
    async with trio.open_nursery() as nursery:
        for runner in runners:
            nursery.start_soon(runner.run)
        await play.fill(_RECORDS // 2)
        await world.restart("n1")
        await world.wait_serving()
        await play.fill(_RECORDS - _RECORDS // 2)
        await world.crash("n2", power=True)
        await trio.sleep(0.5)
        await world.start("n2")
        await _wait_done(play)
        nursery.cancel_scope.cancel()


@scenario("A1, A2: instances that failed run again, and what they have done is not done again")
async def failed_instances_are_retried(play: Play) -> None:
    """Every third attempt fails, and one is all that a stage has; people retry what failed, twice
    at a time, while the leader is killed and a replica loses its power. In the end every record
    has made one output."""
    world = play.world
    async with world.client("c0") as client:
        await client.apply(_objects(world.config.name, max_attempts=1))
    runners = [_Runner(play, f"w{number}") for number in range(2)]
    async with trio.open_nursery() as nursery:
        for runner in runners:
            nursery.start_soon(runner.run)
        for number in range(2):
            nursery.start_soon(_retry_again_and_again, play, f"p{number}")
        await play.fill(_RECORDS // 2)
        await world.restart("n1")
        await world.wait_serving()
        await play.fill(_RECORDS - _RECORDS // 2)
        await world.crash("n2", power=True)
        await trio.sleep(0.5)
        await world.start("n2")
        await _wait_done(play, may_fail=True)
        nursery.cancel_scope.cancel()


async def _retry_again_and_again(play: Play, host: str) -> None:
    while True:
        with contextlib.suppress(HadronError):
            async with play.world.client(host) as client:
                while True:
                    failed = await client.instances(_FLOW, status="failed")
                    assert await client.retry_instances(_FLOW) <= _RECORDS
                    if failed:
                        # Whoever was first: no refusal, whatever has become of them meanwhile.
                        await client.retry_instances(_FLOW, [item.id for item in failed])
                    await trio.sleep(0.05)
        await trio.sleep(0.1)


def _objects(replica_set: str, max_attempts: int = 50) -> list[SchemaObject]:
    retry = Retry(max_attempts=max_attempts, backoff_ms=10)
    stages = (
        StageSpec(
            name="copy", engine="handler", output=Output(_OUT), timeout_ms=2_000, retry=retry
        ),
        StageSpec(
            name="check", engine="handler", dependencies=("copy",), delay_ms=50, retry=retry
        ),
    )
    flow = PipelineSpec(
        replica_set=replica_set, input=STREAM, stages=stages, start="earliest", max_parallel=10
    )
    return [
        SchemaObject(kind="Stream", name=_OUT, spec=StreamSpec(partitions=(replica_set,))),
        SchemaObject(kind="Pipeline", name=_FLOW, spec=flow),
    ]


async def _wait_done(play: Play, *, may_fail: bool = False) -> None:
    """Until every record's instance is done; raises `AssertionError` when there are others."""
    async with play.world.client("c0") as client:
        with trio.fail_after(60.0):
            while True:
                try:
                    (flow,) = await client.pipeline_progress(_FLOW)
                    found = await client.instances(_FLOW, status="done")
                except HadronError:
                    await trio.sleep(0.1)
                    continue
                assert may_fail or flow.failed == 0
                if flow.done == _RECORDS:
                    break
                await trio.sleep(0.1)
    roots = [instance.root.offset for instance in found]
    assert sorted(roots) == list(range(_RECORDS)), roots


class _Runner:
    """Takes invocations, and hands in one output for each; every third attempt fails first."""

    def __init__(self, play: Play, host: str) -> None:
        self._play = play
        self._host = host
        self._turn = 0

    async def run(self) -> None:
        while True:
            try:
                async with (
                    self._play.world.client(self._host) as client,
                    client.run_stages(_FLOW, engine="handler", max_batch=3) as stages,
                ):
                    await self._work(client, stages)
            except HadronError:
                await trio.sleep(0.1)

    async def _work(self, client: Client, stages: StageRun) -> None:
        async for given in stages:
            self._turn += 1
            ids = [invocation.instance_id for invocation in given.invocations]
            attempts = [invocation.attempt for invocation in given.invocations]
            if self._turn % 3 == 0:
                await client.fail_stages(given.pipeline_id, given.stage, ids, attempts, "a try")
            elif given.stage == "copy":
                await self._hand_in(client, given, ids, attempts)
            else:
                await client.complete_stages(given.pipeline_id, given.stage, ids, attempts, None)
            stages.grant()

    async def _hand_in(
        self, client: Client, given: pipelines_pb2.Invocations, ids: list[int], attempts: list[int]
    ) -> None:
        history = self._play.history
        partition = self._play.world.config.name
        # An attempt's output is its own: what a stale attempt made must not appear.
        values = [
            f"{self._host}/{item.root.offset}/{item.attempt}/{self._turn}"
            for item in given.invocations
        ]
        made = history.publish(self._host, "", _OUT, partition, values)
        batch = encode_values([value.encode() for value in values], 1)
        try:
            answer = await client.complete_stages(
                given.pipeline_id, given.stage, ids, attempts, batch
            )
        except HadronError as error:
            history.unknown(made, error)
            raise
        if answer.stale_instance_ids:
            history.unknown(made, f"stale: {list(answer.stale_instance_ids)}")
        else:
            made.runs = [(answer.base_offset, len(values))]
            history.ok(made)
