"""PROTOCOL E3, PIPELINES P5, P9, P13: pipelines over several replica sets, whose leaders fail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import trio

from hadron.client import Client
from hadron.model.pipelines import PipelineSpec, StageSpec, Wait
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.sim.actors.pipelines import (
    FLOW,
    ORDERS,
    DrainingRunner,
    Places,
    RunnerActor,
    random_objects,
)
from hadron.sim.scenarios.region_play import RegionPlay, region_scenario
from hadron.sim.scenarios.transaction_play import failing
from hadron.sim.world.regions import AMERICA, EUROPE, METADATA
from hadron.state.pipelines.backfills import StepBackfill
from hadron.state.pipelines.inputs import OpenInput, TriggerInstances
from hadron.state.transactions.decisions import Decide, NoteFinished
from hadron.state.transactions.intents import FinishTransaction, WriteIntents

PLACES: Final = Places(EUROPE, (EUROPE, AMERICA), (METADATA,))
"""Inputs on two sets, outputs to a third."""

_STEPS: Final = (
    (EUROPE, TriggerInstances),
    (METADATA, WriteIntents),
    (EUROPE, Decide),
    (METADATA, FinishTransaction),
    (EUROPE, NoteFinished),
)
"""From a record to an output: who logs what, in this order."""

_PAYMENTS: Final = "payments"
_WAITING: Final = "waiting"

Order = Callable[[int], Awaitable[None]]


@region_scenario("E3, P5, P9: one instance of each record, one output of each stage, whoever fails")
async def pipeline_whose_leaders_fail_at_each_step(play: RegionPlay) -> None:
    """The pipeline's home, or the set that its outputs go to, loses its power when it is to log
    each step from a record to an output, or has logged it and said nothing; then the set that has
    half of the input does. Records come to both inputs each time."""
    async with failing(play.europe, OpenInput, is_logged=True):
        await _declare(play)
    async with _running(play) as order:
        for who, what in _STEPS:
            for is_logged in (False, True):
                async with failing(play.regions.sets[who], what, is_logged=is_logged):
                    await order(2)
        await order(1)
        await play.america.crash(power=True)
        await trio.sleep(0.5)
        await play.america.start()
        await play.america.wait_serving()
        await order(2)


@region_scenario("P9: what is decided is nobody's until its output is there")
async def output_whose_set_is_away(play: RegionPlay) -> None:
    """Outputs are decided when the set that they go to loses its power, and it is away for so long
    that every stage's timeout passes; runners have nothing to do meanwhile."""
    await _declare(play)
    async with _running(play) as order:
        async with failing(play.metadata, FinishTransaction, is_logged=False, away_s=8.0) as failed:
            await order(3)
            while not failed.is_set():
                # Where an output goes is chance: not one of these has gone there.
                with trio.move_on_after(2.0):
                    await failed.wait()
                    break
                await order(1)
        await order(1)


@region_scenario("P10: nothing of an instance happens once its cancellation was answered")
async def cancelled_while_its_output_is_on_its_way(play: RegionPlay) -> None:
    """Outputs are decided when the set that they go to loses its power. People cancel what there is
    while it is away, and order more; then it comes back, and what was decided is there."""
    await _declare(play)
    async with _running(play) as order, play.regions.client("b1", connect_timeout_s=60.0) as client:
        async with failing(play.metadata, FinishTransaction, is_logged=False, away_s=8.0) as failed:
            await order(3)
            while not failed.is_set():
                with trio.move_on_after(2.0):
                    await failed.wait()
                    break
                await order(1)
            live = [each.id for each in await client.instances(FLOW, status="live")]
            noted = play.history.steer("b1", FLOW, "cancel", "", ())
            await client.cancel_instances(FLOW, live)
            play.history.ok(noted)
            found = await client.instances(FLOW, status="cancelled")
            assert any(stage.status == "publishing" for each in found for stage in each.stages)
            await order(2)
        await order(1)


@region_scenario(
    "P13: a backfill makes an instance of each record that nobody has looked at, once",
    nodes=(1, 1, 3),
)
async def backfills_whose_leader_fails(play: RegionPlay) -> None:
    """A pipeline begins behind records that were there before, at both inputs. Two people fill in
    what overlaps, while its leader loses its power when it is to log a step, or has logged it; then
    one wants some of it again."""
    await _publish(play, 5)
    await _declare(play, start="latest")
    async with _running(play) as order, play.regions.client("b1", connect_timeout_s=60.0) as client:
        await order(1)
        await play.regions.wait_for("cursors at both inputs", lambda: _cursors(play) >= 2)
        for is_logged, (first, last) in ((False, (0, 4)), (True, (2, 5))):
            for partition in PLACES.inputs:
                async with failing(play.europe, StepBackfill, is_logged=is_logged):
                    await client.start_backfill(FLOW, first, last, partition=partition)
        noted = play.history.steer("b1", FLOW, "backfill", AMERICA, (1, 3), is_whole=True)
        await client.start_backfill(FLOW, 1, 3, partition=AMERICA, again=True)
        play.history.ok(noted)


@region_scenario("P5: a cursor in another set's log names the record before it")
async def input_that_two_leaders_have_logged(play: RegionPlay) -> None:
    """The pipeline's home is cut off from America, which logs records under one ballot, is started
    again, and logs more. Joined, the home reads all of them at once, and has room for some of the
    first ones. Its connection breaks, and it must go on behind these."""
    regions = play.regions
    await _declare(play)
    async with _running(play) as order:
        await order(1)
        await regions.wait_for("cursors at both inputs", lambda: _cursors(play) >= 2)
        regions.cut(play.europe, play.america)
        await trio.sleep(3.0)  # They give their connection up.
        await order(6)
        await play.america.crash(power=True)
        await play.america.start()
        await play.america.wait_serving()
        await order(6)
        regions.join(play.europe, play.america)
        for _ in range(4):
            await trio.sleep(0.2)
            regions.network.break_connections("e1", "g1")


@region_scenario("P14: what was published behind its trigger finds an instance that waits for it")
async def awaited_while_the_input_is_not_read_yet(play: RegionPlay) -> None:
    """The pipeline's home loses its power, and begins again where it does not reach America for
    some seconds. Somebody orders there, has an answer, and pays at home; then both can be read. So
    it goes when America's own leader comes late, and when home and America begin together."""
    regions, europe, america = play.regions, play.europe, play.america
    await _declare_waiting(play)
    async with regions.client("c1", connect_timeout_s=60.0) as client:
        paid = 0

        async def pay(between: Callable[[], Awaitable[None]]) -> None:
            nonlocal paid
            paid += 1
            await _send(play, client, ORDERS, AMERICA, f"k{paid}")
            await between()
            await _send(play, client, _PAYMENTS, EUROPE, f"k{paid}")

        async def nothing() -> None:
            await trio.lowlevel.checkpoint()

        await pay(nothing)
        await regions.wait_for("cursors at both inputs", lambda: _cursors(play) >= 2)

        async def cut_home_restarts() -> None:
            regions.cut(europe, america)
            await europe.restart("e1")
            await europe.wait_serving()

        await pay(cut_home_restarts)
        await trio.sleep(3.0)
        regions.join(europe, america)

        async def both_restart() -> None:
            await america.crash(power=True)
            await europe.restart("e1")
            await europe.wait_serving()

        await pay(both_restart)
        await trio.sleep(3.0)
        await america.start()
        with trio.fail_after(60.0):
            while len(await client.instances(_WAITING, status="done")) < paid:  # noqa: ASYNC110
                await trio.sleep(0.2)


# --- sentences ------------------------------------------------------------------------------------


async def _declare(play: RegionPlay, start: str = "earliest") -> None:
    objects = random_objects(PLACES)
    (flow,) = (each for each in objects if each.kind == "Pipeline")
    assert isinstance(flow.spec, PipelineSpec)
    spec = PipelineSpec(
        replica_set=flow.spec.replica_set,
        input=flow.spec.input,
        stages=flow.spec.stages,
        start=start,
        max_parallel=flow.spec.max_parallel,
    )
    known = [each for each in objects if each is not flow]
    changed = [*known, SchemaObject(kind="Pipeline", name=FLOW, spec=spec)]
    with trio.fail_after(60.0):
        while not await play.change(changed):  # noqa: ASYNC110 - simulated time
            await trio.sleep(0.1)
    await play.regions.wait_same_schema()


async def _declare_waiting(play: RegionPlay) -> None:
    """A pipeline over orders of both regions; each instance waits for a payment at home."""
    stages = (StageSpec(name="paid", wait=Wait(stream=_PAYMENTS)),)
    flow = PipelineSpec(
        replica_set=EUROPE, input=ORDERS, start="earliest", stages=stages, max_parallel=100
    )
    orders, payments = StreamSpec(partitions=PLACES.inputs), StreamSpec(partitions=(EUROPE,))
    assert await play.change(
        [
            SchemaObject(kind="Stream", name=ORDERS, spec=orders),
            SchemaObject(kind="Stream", name=_PAYMENTS, spec=payments),
            SchemaObject(kind="Pipeline", name=_WAITING, spec=flow),
        ]
    )
    await play.regions.wait_same_schema()


async def _send(play: RegionPlay, client: Client, stream: str, partition: str, key: str) -> None:
    async with client.producer(stream, partition=partition) as producer:
        operation = play.history.publish("c1", "", stream, partition, [f"{stream} of {key}"])
        await play.send(producer, operation, key)
        assert operation.outcome == "ok"


async def _publish(play: RegionPlay, count: int) -> None:
    """Some orders to each of the inputs, which are declared first where they are not."""
    async with play.regions.client("c1", connect_timeout_s=60.0) as client:
        if not await client.objects("Stream", "default", ORDERS):
            (orders, *_) = random_objects(PLACES)
            assert await play.change([orders])
            await play.regions.wait_same_schema()
        for partition in PLACES.inputs:
            async with client.producer(ORDERS, partition=partition) as producer:
                for _ in range(count):
                    value = f"order {play.history.tick()}"
                    operation = play.history.publish("c1", "", ORDERS, partition, [value])
                    await play.send(producer, operation)


@asynccontextmanager
async def _running(play: RegionPlay) -> AsyncIterator[Order]:
    """Two runners are at work for the length of the block, which gives how to order something; in
    the end all of it is done."""
    world, history = play.regions.metadata, play.history
    runners = [
        RunnerActor(world, history, f"w{number}", f"{world.seed}/w{number}").at(PLACES)
        for number in range(2)
    ]

    async def order(count: int) -> None:
        await _publish(play, count)

    async with trio.open_nursery() as nursery:
        for runner in runners:
            nursery.start_soon(runner.run)
        yield order
        for runner in runners:
            runner.stop()
        with trio.move_on_after(60.0):
            # What is left then, the checks tell.
            await DrainingRunner(world, history, "dw", f"{world.seed}/dw").at(PLACES).run()
        nursery.cancel_scope.cancel()


def _cursors(play: RegionPlay) -> int:
    """How many partitions the pipeline has begun to read, at its home."""
    name = play.europe.config.leader.name
    if not play.europe.listens(name):
        return 0
    connection = play.europe.node(name).member._store.writer.connection
    found = connection.execute("SELECT count(*) FROM hadron_pipeline_input").get
    return found if isinstance(found, int) else 0
