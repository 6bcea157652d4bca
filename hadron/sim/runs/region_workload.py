"""The random run over several replica sets: clients work while regions come and go; then healing,
draining, and judgement."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import trio

from hadron.model.schema import Retention, SchemaObject
from hadron.sim.actors.cancelling import Canceller, has_canceller
from hadron.sim.actors.clients import Actor
from hadron.sim.actors.flowing import Flowing, has_flow
from hadron.sim.actors.group_plans import GroupPlan
from hadron.sim.actors.passing import GROUP, PassingActor, PassingMember
from hadron.sim.actors.transacting import Transacting, has_transactions
from hadron.sim.actors.transactions import DEALS
from hadron.sim.actors.waiting import Waiting, has_waits
from hadron.sim.evidence.labels import PASSING
from hadron.sim.faults.nemesis import FaultPlan
from hadron.sim.faults.regions import run_region_faults
from hadron.sim.faults.repeating import repeating
from hadron.sim.notes.groups import noting_groups
from hadron.sim.runs.region_clients import (
    PARTITIONS,
    DrainingRegionMember,
    RegionMemberActor,
    RegionProducerActor,
    RegionReaderActor,
    SchemaActor,
)
from hadron.sim.runs.region_run import RegionRun
from hadron.sim.runs.run import Judgement
from hadron.sim.runs.workload import NO_RETENTION, acknowledged, judgement
from hadron.sim.world.regions import Regions

_GROUPS: Final = 2

_REPEATED: Final = (0.0, 0.1, 0.4)
"""Of the messages between leaders that drive transactions and those that take part."""

_ENDS_S: Final = 60.0
"""Simulated seconds after healing in which every client ends what it had begun: the longest timeout
of any is 15 s."""


@dataclass(frozen=True)
class RegionsRun:
    """A scenario over several replica sets: everybody works under the faults of `plan`, in each
    set, and of whole sets; attributes as of `workload.RandomRun`."""

    plan: FaultPlan | None = None
    retention: Retention = NO_RETENTION
    acknowledged: int = 300
    least_s: float = 8.0
    most_s: float = 40.0

    async def __call__(self, regions: Regions) -> Judgement:
        run = RegionRun(regions, self.retention)
        with run.noting(), noting_groups(run.history, (*PASSING, DEALS)):
            return await self._work(run)

    async def _work(self, run: RegionRun) -> Judgement:
        await run.declare()
        crowd = list(_actors(run))
        transacting = await _transacting(run)
        if transacting is not None:
            crowd += transacting.actors()
        flowing = await _flowing(run)
        if flowing is not None:
            crowd += flowing.actors()
            if has_canceller(run.regions.seed):
                crowd.append(Canceller(run.regions, run.history, "fc", flowing.places))
        waiting = await _waiting(run)
        if waiting is not None:
            crowd += waiting.actors()
        working = {actor.host: actor for actor in crowd}
        chance = random.Random(f"repeating/{run.regions.seed}")
        repeated = chance.choice(_REPEATED) if transacting is not None else 0.0

        async def live(actor: Actor) -> None:
            await actor.run()
            del working[actor.host]

        async with trio.open_nursery() as clients:
            for actor in crowd:
                clients.start_soon(live, actor)
            async with trio.open_nursery() as faults:
                faults.start_soon(run_region_faults, run.regions, self.plan or FaultPlan())
                with repeating(
                    faults, chance, run.regions.faults, share=repeated, lost=repeated / 3
                ):
                    await self._under_faults(run)
                faults.cancel_scope.cancel()
            await run.heal()
            clients.start_soon(run.operate)
            for actor in crowd:
                actor.stop()
            # First: a set that is left behind would only be seen as a group that does not end.
            await run.regions.wait_same_schema()
            async with trio.open_nursery() as nursery:
                # Beside the rest: a set of one whose clock was ahead keeps stages waiting as long.
                nursery.start_soon(run.publish_once_more)
                nursery.start_soon(_drain, run)
                if transacting is not None:
                    nursery.start_soon(transacting.drain)
                if flowing is not None:
                    nursery.start_soon(flowing.drain)
                if waiting is not None:
                    nursery.start_soon(waiting.drain)
            await _until_ended(working)
            verdict = await run.finish()
            clients.cancel_scope.cancel()
        return judgement(verdict)

    async def _under_faults(self, run: RegionRun) -> None:
        await trio.sleep(self.least_s)
        with trio.move_on_after(self.most_s - self.least_s):
            while acknowledged(run.history) < self.acknowledged:  # noqa: ASYNC110 - simulated
                await trio.sleep(0.5)


def _actors(run: RegionRun) -> Iterator[Actor]:
    chance = random.Random(f"actors/{run.regions.seed}")
    for number in range(chance.randint(2, 4)):
        yield RegionProducerActor(run, f"p{number}")
    for number, partition in enumerate(PARTITIONS):
        yield RegionReaderActor(run, f"r{number}", partition)
    for group in range(_GROUPS):
        for number in range(chance.randint(1, 3)):
            yield RegionMemberActor(run, f"g{group}x{number}", f"g{group}")
    yield SchemaActor(run, "s0")
    for number in range(chance.randint(1, 2)):
        host = f"t{number}"
        yield PassingActor(run.regions.metadata, run.history, host, f"{run.regions.seed}/{host}")
    start: Literal["earliest", "latest", "time"] = chance.choice(("earliest", "latest", "time"))
    for number in range(chance.randint(0, 2)):
        # Its partitions come one by one, while the group is there.
        host = f"{GROUP}m{number}"
        yield PassingMember(
            run.regions.metadata,
            run.history,
            host,
            f"{run.regions.seed}/{host}",
            GroupPlan(GROUP, start=start),
            PASSING[0],
        )


async def _transacting(run: RegionRun) -> Transacting | None:
    """Who does transactions, and may do so over all regions, if anybody does."""
    regions = run.regions
    if not has_transactions(regions.seed, is_alone=False):
        return None
    found = Transacting(
        regions.metadata, run.history, regions.seed, PARTITIONS, tuple(regions.sets)
    )
    await _declare(run, found.objects())
    return found


async def _flowing(run: RegionRun) -> Flowing | None:
    """A pipeline over all sets, if there is one."""
    regions = run.regions
    if not has_flow(regions.seed):
        return None
    found = Flowing(regions.metadata, run.history, regions.seed, tuple(regions.sets))
    await _declare(run, found.objects())
    return found


async def _waiting(run: RegionRun) -> Waiting | None:
    """A pipeline whose stages wait, if there is one."""
    regions = run.regions
    if not has_waits(regions.seed):
        return None
    found = Waiting(regions.metadata, run.history, regions.seed, tuple(regions.sets))
    await _declare(run, found.objects())
    return found


async def _declare(run: RegionRun, objects: Sequence[SchemaObject]) -> None:
    """Until it is known to be so."""
    while not await run.change(objects):  # noqa: ASYNC110 - simulated time
        await trio.sleep(0.1)


async def _until_ended(working: Mapping[str, Actor]) -> None:
    """Raises `AssertionError` naming clients that wait for ever, although nothing is broken."""
    with trio.move_on_after(_ENDS_S):
        while working:  # noqa: ASYNC110 - simulated time
            await trio.sleep(0.2)
    if working:
        raise AssertionError(
            f"{', '.join(working)} had not come to an end {_ENDS_S:g} s after healing"
        )


async def _drain(run: RegionRun) -> None:
    async with trio.open_nursery() as nursery:
        for group in range(_GROUPS):
            nursery.start_soon(DrainingRegionMember(run, f"d{group}", f"g{group}").run)
