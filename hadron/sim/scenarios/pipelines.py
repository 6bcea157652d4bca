"""Pipelines under crashes: one instance per trigger, each output exactly once."""

from __future__ import annotations

import contextlib
from typing import Final

import msgspec
import trio

from hadron.client import Client
from hadron.model.errors import HadronError
from hadron.model.pipelines import PipelineSpec, Retry, StageSpec
from hadron.model.schema import SchemaObject
from hadron.sim.actors.clients import STREAM
from hadron.sim.actors.pipelines import FLOW, RunnerActor, objects
from hadron.sim.scenarios.play import Play, scenario
from hadron.sim.scenarios.promises import OS
from hadron.wire.messages import pipelines_pb2

_RECORDS: Final = 30


@scenario("A1, A2: a stage's output and its completion are one entry")
async def stages_under_crashes(play: Play) -> None:
    """Runners hand in outputs while the leader is killed and a replica loses its power; some fail
    at first, some ask twice. Every record of the input makes one output, and one only."""
    world = play.world
    runners = await _declared(play, max_attempts=50)
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
    """Every other attempt fails, two are all that a stage has, and two more after each retry;
    people retry what failed, twice at a time, while the leader is killed and a replica loses its
    power. In the end every record has made one output."""
    world = play.world
    runners = await _declared(play, max_attempts=2, failing=0.5)
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


@scenario("B7: a full disk loses no output of a stage, and doubles none")
async def pipelines_without_room(play: Play) -> None:
    """Runners hand in outputs while the disks of a majority, then the leader's alone, have less
    room than is kept in reserve: failures still count, outputs do not. With room again all is
    done."""
    world = play.world
    runners = await _declared(play, max_attempts=50)
    async with trio.open_nursery() as nursery:
        for runner in runners:
            nursery.start_soon(runner.run)
        for names in (("n2", "n3"), ("n1",)):
            await play.fill(_RECORDS // 2)
            for name in names:
                disk, reserve = world.disks[name], world.config.settings.disk_reserve_bytes
                disk.broken.capacity_bytes = disk.volume.used_bytes() + reserve // 2
            await trio.sleep(3.0)
            for name in names:
                world.disks[name].heal()
                if not world.running(name):
                    await world.start(name)
            await world.wait_serving()
        await _wait_done(play)
        nursery.cancel_scope.cancel()


@scenario("E3: a completion is of the instance that its runner was given", settings=OS)
async def completion_of_an_instance_that_was_lost(play: Play) -> None:
    """A runner has every record's instance when all disks lose them, with the records, in a power
    failure. An operator takes the disks as they are; others are written, whose instances have the
    same numbers. What the runner hands in completes none of these."""
    world = play.world
    async with world.client("c0") as client:
        await client.apply(_reporting(play, "report"))
    await world.wait_in_step()
    await world.stop()
    await world.start()
    await world.wait_serving()
    await play.fill(_RECORDS)
    async with world.client("c0") as client:
        lost = await _taken(client, "report")
    await world.crash(power=True, style="dropped")
    await play.recover()
    await play.fill(_RECORDS)
    async with world.client("c0") as client:
        given = await _taken(client, "report")
        await _complete_all(client, lost["report"], stale=True)
        await _complete_all(client, given["report"])


@scenario("P6: an instance ends with the stages that it began with, however they were changed")
async def graph_changed_under_instances(play: Play) -> None:
    """Every record's instance has reported, and is held; then people put an audit before the
    report. What was held is let go: all instances end, and no audit was asked of them."""
    async with play.world.client("c0") as client:
        await client.apply(_reporting(play, "hold", "report"))
        await play.fill(_RECORDS)
        with trio.fail_after(60.0):
            given = await _taken(client, "hold", "report")
            await _complete_all(client, given["report"])
            await client.apply(_reporting(play, "hold", "audit", "report"))
            await _complete_all(client, given["hold"])


@scenario("P6: an instance does not wait for a stage that is declared no more")
async def stage_that_failed_and_is_removed(play: Play) -> None:
    """Every record's instance has reported, and has failed at what holds it; then people remove
    that, and let the instances run again: they end, and leave their room to those of other
    records."""
    async with play.world.client("c0") as client:
        await client.apply(_reporting(play, "hold", "report"))
        await play.fill(_RECORDS)
        with trio.fail_after(60.0):
            given = await _taken(client, "hold", "report")
            await _complete_all(client, given["report"])
            for some in given["hold"]:
                ids, attempts, created_ms = _attempts(some)
                await client.fail_stages(
                    some.pipeline_id, some.stage, ids, attempts, created_ms, "held"
                )
            await client.apply(_reporting(play, "report"))
            assert await client.retry_instances(FLOW) == _RECORDS
            await play.fill(_RECORDS)
            given = await _taken(client, "report")
            await _complete_all(client, given["report"])


@scenario("P6: a stage runs when all that it waits for is done")
async def stages_in_their_order(play: Play) -> None:
    """Reports wait for audits, and have no use for what these make. A runner of both is given the
    audits alone, until they are done."""
    async with play.world.client("c0") as client:
        await client.apply(_reporting(play, "audit", "report"))
        await play.fill(_RECORDS)
        with trio.fail_after(60.0):
            given = await _taken(client, "audit")
            await _complete_all(client, given["audit"])
            given = await _taken(client, "report")
            await _complete_all(client, given["report"])


@scenario("P8: what waits at a runner is its own, and what it works on as long as it says so")
async def runners_that_take_long(play: Play) -> None:
    """Two runners hold two micro-batches each: one waits until the other is done, which takes
    longer than its stage may, and is said to go on. Each is completed by who was given it."""
    world = play.world
    async with world.client("c0") as client:
        await client.apply(_reporting(play, "report", timeout_ms=2_000))
    await play.fill(_RECORDS)

    async def work(host: str) -> None:
        async with (
            world.client(host) as client,
            client.run_stages(FLOW, engine="handler", max_batch=3, credit=2) as stages,
        ):
            async for given in stages:
                for _ in range(4):
                    await trio.sleep(1.5)
                    stages.begin(given)
                await _complete_all(client, [given])
                stages.grant()

    async with world.client("c0") as client, trio.open_nursery() as nursery:
        for host in ("w0", "w1"):
            nursery.start_soon(work, host)
        with trio.fail_after(120.0):
            while len(await client.instances(FLOW, status="done")) < _RECORDS:  # noqa: ASYNC110
                await trio.sleep(0.5)
        nursery.cancel_scope.cancel()


@scenario("P10: what was cancelled is over, whatever of it is at runners")
async def cancelled_while_they_are_run(play: Play) -> None:
    """A runner has every record's instance when people cancel a half of them, and its leader fails;
    what it completes of these is stale, the others end."""
    async with play.world.client("c0", connect_timeout_s=60.0) as client:
        await client.apply(_reporting(play, "report"))
        await play.fill(_RECORDS)
        with trio.fail_after(60.0):
            given = (await _taken(client, "report"))["report"]
            ids = [each for some in given for each in _attempts(some)[0]]
            ended = set(ids[::2])
            assert await client.cancel_instances(FLOW, sorted(ended)) == len(ended)
            await play.world.restart("n1")
            await play.world.wait_serving()
            for some in given:
                for chosen in (ended, set(ids) - ended):
                    kept = pipelines_pb2.Invocations()
                    kept.CopyFrom(some)
                    del kept.invocations[:]
                    kept.invocations.extend(
                        each for each in some.invocations if each.instance_id in chosen
                    )
                    if kept.invocations:
                        await _complete_all(client, [kept], stale=chosen is ended)


@scenario("P6, P8: a stage waits as long as it is to, also under another leader")
async def delays_that_outlive_their_leader(play: Play) -> None:
    """Every stage waits for seconds before it may run; its leader restarts, and another one takes
    its place, while some wait, and runners are there."""
    world = play.world
    runners = await _declared(play, max_attempts=50, delay_ms=4_000)
    async with trio.open_nursery() as nursery:
        for runner in runners:
            nursery.start_soon(runner.run)
        await play.fill(_RECORDS)
        for _ in range(3):
            await trio.sleep(1.5)
            await world.restart("n1")
            await world.wait_serving()
        await _wait_done(play)
        nursery.cancel_scope.cancel()


@scenario("P12: what has ended is kept as long as it is to be, and dropped then")
async def finished_instances_are_kept_for_a_while(play: Play) -> None:
    """Instances end one after the other for longer than they are kept; a while after that nothing
    of them is left. What is told of those that fail waits for longer still, and is told of each."""
    world = play.world
    async with world.client("c0", connect_timeout_s=60.0) as client:
        (flow,) = _reporting(play, "report")
        assert isinstance(flow.spec, PipelineSpec)
        sorry = StageSpec(
            name="sorry", engine="handler", delay_ms=5_000, retry=Retry(max_attempts=1)
        )
        spec = msgspec.structs.replace(
            flow.spec, keep_finished_ms=2_000, stages=(*flow.spec.stages, sorry), on_failure="sorry"
        )
        await client.apply([msgspec.structs.replace(flow, spec=spec)])
        runner = RunnerActor(
            world, play.history, "w0", f"{world.seed}/w0", is_hopeful=True, failing=0.4
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runner.run)
            for _ in range(10):
                await play.fill(2)
                await trio.sleep(0.5)
            with trio.fail_after(60.0):
                while await client.instances(FLOW):  # noqa: ASYNC110 - simulated time
                    await trio.sleep(0.5)
            nursery.cancel_scope.cancel()
        (progress,) = await client.pipeline_progress(FLOW)
        (told,) = (stage for stage in progress.stages if stage.name == "sorry")
        assert 0 < progress.failed == told.done + told.failed, told


def _reporting(play: Play, *names: str, timeout_ms: int = 60_000) -> list[SchemaObject]:
    """A pipeline of stages that do not wait for each other, but for the audit that the report
    waits for where there is one."""
    flow = PipelineSpec(
        replica_set=play.world.config.name,
        input=STREAM,
        start="earliest",
        max_parallel=_RECORDS,
        stages=tuple(
            StageSpec(
                name=name,
                engine="handler",
                timeout_ms=timeout_ms,
                retry=Retry(max_attempts=1),
                after=("audit",) if name == "report" and "audit" in names else (),
            )
            for name in names
        ),
    )
    return [SchemaObject(kind="Pipeline", name=FLOW, spec=flow)]


async def _taken(client: Client, *names: str) -> dict[str, list[pipelines_pb2.Invocations]]:
    """What a runner is handed: these stages of every record's instance."""
    given: dict[str, list[pipelines_pb2.Invocations]] = {name: [] for name in names}
    async with client.run_stages(FLOW, engine="handler", max_batch=10, credit=10) as stages:
        while any(
            sum(len(each.invocations) for each in taken) < _RECORDS for taken in given.values()
        ):
            some = await anext(stages)
            given[some.stage].append(some)
            stages.grant()
    return given


def _attempts(
    some: pipelines_pb2.Invocations,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Instances, attempts and when they were made."""
    ids, attempts, created_ms = zip(
        *((each.instance_id, each.attempt, each.created_ms) for each in some.invocations),
        strict=True,
    )
    return ids, attempts, created_ms


async def _complete_all(
    client: Client, given: list[pipelines_pb2.Invocations], *, stale: bool = False
) -> None:
    for some in given:
        ids, attempts, created_ms = _attempts(some)
        answer = await client.complete_stages(
            some.pipeline_id, some.stage, ids, attempts, created_ms, None
        )
        assert list(answer.stale_instance_ids) == (list(ids) if stale else [])


async def _declared(
    play: Play, *, max_attempts: int, failing: float = 0.15, delay_ms: int = 0
) -> list[RunnerActor]:
    """Declare the pipeline; its runners, which are not running yet."""
    world = play.world
    async with world.client("c0") as client:
        await client.apply(
            objects(
                world.config.name,
                STREAM,
                max_attempts=max_attempts,
                max_parallel=30 if delay_ms else 10,
                delay_ms=delay_ms,
            )
        )
    return [
        RunnerActor(
            world,
            play.history,
            f"w{number}",
            f"{world.seed}/w{number}",
            is_hopeful=True,
            failing=failing,
        )
        for number in range(2)
    ]


async def _retry_again_and_again(play: Play, host: str) -> None:
    while True:
        with contextlib.suppress(HadronError):
            async with play.world.client(host) as client:
                while True:
                    failed = await client.instances(FLOW, status="failed")
                    assert await client.retry_instances(FLOW) <= _RECORDS
                    if failed:
                        # Whoever was first: no refusal, whatever has become of them meanwhile.
                        await client.retry_instances(FLOW, [item.id for item in failed])
                    await trio.sleep(0.05)
        await trio.sleep(0.1)


async def _wait_done(play: Play, *, may_fail: bool = False) -> None:
    """Until every record's instance is done; raises `AssertionError` when there are others."""
    async with play.world.client("c0") as client:
        with trio.fail_after(60.0):
            while True:
                try:
                    (flow,) = await client.pipeline_progress(FLOW)
                    found = await client.instances(FLOW, status="done")
                except HadronError:
                    await trio.sleep(0.1)
                    continue
                assert may_fail or flow.failed == 0
                if flow.done == _RECORDS:
                    break
                await trio.sleep(0.1)
    roots = [instance.root.offset for instance in found]
    assert sorted(roots) == list(range(_RECORDS)), roots
