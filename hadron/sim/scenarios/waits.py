"""PIPELINES P14: stages that wait for a record or a signal, under leaders that fail."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

import trio

from hadron.client import Client, StageInvocation
from hadron.model.errors import RequestError
from hadron.model.pipelines import PipelineSpec, StageSpec, Wait
from hadron.model.record import NewRecord
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.sim.actors.clients import STREAM
from hadron.sim.actors.pipelines import FLOW
from hadron.sim.actors.waiting import ASKS, BUYS, PAYMENTS, PAYS
from hadron.sim.evidence.made import Keyed
from hadron.sim.scenarios.play import Play, scenario
from hadron.sim.scenarios.transaction_play import failing
from hadron.state.pipelines.waits import SignalStages

_RECORDS: Final = 30
_PATIENCE_S: Final = 25.0


@scenario("P14: who waits is signalled once, or goes the other way, whoever leads")
async def waits_that_outlive_their_leader(play: Play) -> None:
    """Half of the instances are signalled, each twice, while leaders fail; the others wait for as
    long as they may, and go the other way then; to signal them is refused. Whoever was signalled
    acts, and nobody else."""
    world = play.world
    async with world.client("c0", connect_timeout_s=60.0) as client:
        await client.apply(_approved(play))
        await play.fill(_RECORDS)
        done: dict[str, set[int]] = {"act": set(), "escalate": set()}
        signalled: set[int] = set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_run_by_name, client, done)
            with trio.fail_after(120.0):
                while len(found := await client.instances(FLOW)) < _RECORDS:  # noqa: ASYNC110
                    await trio.sleep(0.2)
                for each in found[::2]:
                    first = await client.signal(FLOW, each.id, "approve")
                    assert first or each.id not in signalled
                    signalled.add(each.id)
                    assert not await client.signal(FLOW, each.id, "approve")
                    if len(signalled) % 5 == 0:
                        await world.restart("n1")
                        await world.wait_serving()
                while len(await client.instances(FLOW, status="done")) < _RECORDS:  # noqa: ASYNC110
                    await trio.sleep(0.5)
                for each in found[1::2]:
                    assert await _is_refused(client.signal(FLOW, each.id, "approve"))
            nursery.cancel_scope.cancel()
        assert done == {"act": signalled, "escalate": {each.id for each in found} - signalled}


async def _is_refused(asked: Awaitable[bool]) -> bool:
    try:
        await asked
    except RequestError:
        return True
    return False


def _approved(play: Play) -> list[SchemaObject]:
    """A pipeline that waits for somebody's signal."""
    wait = Wait(signal=True, timeout_ms=40_000, on_timeout="escalate")
    flow = PipelineSpec(
        replica_set=play.world.config.name,
        input=STREAM,
        start="earliest",
        max_parallel=_RECORDS,
        stages=(
            StageSpec(name="approve", wait=wait),
            StageSpec(name="act", engine="handler", after=("approve",)),
            StageSpec(name="escalate", engine="handler"),
        ),
    )
    return [SchemaObject(kind="Pipeline", name=FLOW, spec=flow)]


async def _run_by_name(client: Client, done: dict[str, set[int]]) -> None:
    """Complete what is there; whose, by stage."""

    async def run(name: str) -> None:
        def handle(invocation: StageInvocation) -> None:
            done[name].add(invocation.instance_id)

        await client.stage(FLOW, name, runner="w0").run(handle)

    async with trio.open_nursery() as nursery:
        for name in done:
            nursery.start_soon(run, name)


@scenario("P14: the first record with its key ends a wait, or its time does, whoever leads")
async def awaited_records_whose_leader_fails(play: Play) -> None:
    """People order. Some ask something under their order's key, and pay twice, when the leader
    loses its power: it is to log that they were waited for, or has logged it and said nothing.
    Others pay when it is too late. Who has paid in time is shipped to, for the first payment; who
    has not is reminded."""
    world = play.world
    async with world.client("c0", connect_timeout_s=60.0) as client:
        await client.apply(_paid(play))
        keys = [f"k{number}" for number in range(12)]
        await _say(play, client, STREAM, *(Keyed(key, BUYS) for key in keys))
        done: dict[str, set[str]] = {"ship": set(), "remind": set()}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_run_by_key, client, done)
            for is_logged, some in ((False, keys[:4]), (True, keys[4:8])):
                async with failing(world, SignalStages, is_logged=is_logged):
                    said = [Keyed(key, does) for key in some for does in (ASKS, PAYS, PAYS)]
                    await _say(play, client, PAYMENTS, *said)
            with trio.fail_after(90.0):
                await _until_done(client, len(keys))
                await _say(play, client, PAYMENTS, *(Keyed(key, PAYS) for key in keys[8:]))
                # Once this one is through, what came before was looked at.
                await _say(play, client, STREAM, Keyed("last", BUYS))
                await _say(play, client, PAYMENTS, Keyed("last", PAYS))
                await _until_done(client, len(keys) + 1)
            nursery.cancel_scope.cancel()
        assert done == {"ship": {*keys[:8], "last"}, "remind": {*keys[8:]}}


def _paid(play: Play) -> list[SchemaObject]:
    """A pipeline that waits for somebody's payment."""
    wait = Wait(
        stream=PAYMENTS,
        types=("payment.*",),
        timeout_ms=int(_PATIENCE_S * 1_000),
        on_timeout="remind",
    )
    flow = PipelineSpec(
        replica_set=play.world.config.name,
        input=STREAM,
        start="earliest",
        stages=(
            StageSpec(name="paid", wait=wait),
            StageSpec(name="ship", engine="handler", dependencies=("paid",)),
            StageSpec(name="remind", engine="handler"),
        ),
    )
    payments = StreamSpec(partitions=(play.world.config.name,))
    return [
        SchemaObject(kind="Stream", name=PAYMENTS, spec=payments),
        SchemaObject(kind="Pipeline", name=FLOW, spec=flow),
    ]


async def _say(play: Play, client: Client, stream: str, *said: Keyed) -> None:
    """Publish these together, and wait until they are there."""
    values = [f"{each}{play.history.tick()}" for each in said]
    noted = play.history.publish("c0", "", stream, play.world.config.name, values)
    records = [
        NewRecord(value=value, key=each.key, type=each.does)
        for value, each in zip(values, said, strict=True)
    ]
    async with client.producer(stream) as producer:
        receipts = await producer.send_many(records)
    noted.runs = [(receipt.base_offset, receipt.count) for receipt in receipts]
    play.history.ok(noted)


async def _until_done(client: Client, count: int) -> None:
    while len(await client.instances(FLOW, status="done")) < count:  # noqa: ASYNC110 - simulated
        await trio.sleep(0.5)


async def _run_by_key(client: Client, done: dict[str, set[str]]) -> None:
    """Complete what is there; whose, by stage."""

    async def run(name: str) -> None:
        def handle(invocation: StageInvocation) -> None:
            done[name].add(str(invocation.root.key))

        await client.stage(FLOW, name, runner="w0").run(handle)

    async with trio.open_nursery() as nursery:
        for name in done:
            nursery.start_soon(run, name)
