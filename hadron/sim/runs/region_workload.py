"""The random run over several replica sets: clients work while regions come and go; then healing,
draining, and judgement."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import trio

from hadron.model.schema import Retention
from hadron.sim.actors.calls import has_calls, over_sets
from hadron.sim.actors.cancelling import Canceller, has_canceller
from hadron.sim.actors.clients import Actor
from hadron.sim.actors.flowing import Flowing, has_flow
from hadron.sim.actors.following import Following, has_followers
from hadron.sim.actors.group_plans import GroupPlan
from hadron.sim.actors.part import Part
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
        parts = await _declared_parts(run)
        for part in parts:
            crowd += part.actors()
            if isinstance(part, Flowing) and has_canceller(run.regions.seed):
                crowd.append(Canceller(run.regions, run.history, "fc", part.places))
        working = {actor.host: actor for actor in crowd if not actor.stays}
        chance = random.Random(f"repeating/{run.regions.seed}")
        has_deals = any(isinstance(part, Transacting) for part in parts)
        repeated = chance.choice(_REPEATED) if has_deals else 0.0

        async def live(actor: Actor) -> None:
            await actor.run()
            working.pop(actor.host, None)

        async with trio.open_nursery() as operating:
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
                operating.start_soon(run.operate)
                for actor in crowd:
                    actor.stop()
                # First: a set that is left behind would only be seen as a group that does not end.
                await run.regions.wait_same_schema()
                async with trio.open_nursery() as nursery:
                    # Beside the rest: where a clock was ahead stages wait as long in a set of one.
                    nursery.start_soon(run.publish_once_more)
                    nursery.start_soon(_drain, run)
                    for part in parts:
                        nursery.start_soon(part.drain)
                await _until_ended(working)
                clients.cancel_scope.cancel()
            verdict = await run.finish()
            operating.cancel_scope.cancel()
        found = judgement(verdict)
        for part in parts:
            found.violations += part.complaints()
        return found

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


def _parts(run: RegionRun) -> Iterator[Part]:
    """Those that this world has, each over all sets: who does transactions, a pipeline, one whose
    stages wait, and endpoints."""
    regions, history, seed = run.regions, run.history, run.regions.seed
    world, sets = regions.metadata, tuple(regions.sets)
    if has_transactions(seed, is_alone=False):
        yield Transacting(world, history, seed, PARTITIONS, sets)
    if has_flow(seed):
        yield Flowing(world, history, seed, sets)
    if has_waits(seed):
        yield Waiting(world, history, seed, sets)
    if has_calls(seed):
        yield over_sets(regions, history)
    if has_followers(seed):
        yield Following(tuple(regions.sets.values()), history)


async def _declared_parts(run: RegionRun) -> list[Part]:
    parts = list(_parts(run))
    for part in parts:
        await run.declare_objects(part.objects())
    return parts


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
