"""Faults that concern whole replica sets, beside the ordinary ones of each."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import trio

from hadron.sim.faults.nemesis import FaultPlan, run_faults
from hadron.sim.world.regions import Regions
from hadron.sim.world.replica_set import World

WEIGHTS: Final = {
    "region lost": 3.0,
    "metadata set lost": 1.0,
    "regions apart": 2.0,
    "cut off from the metadata set": 2.0,
    "clients cut off from a region": 2.0,
    "push that arrives late": 2.0,
    "moved node": 0.7,
    "second set of a name": 1.0,
}
"""How often each kind is chosen, relative to the others."""

_CALMER: Final = 3.0
"""Each set has its own nemesis; together they are to do as much as one does alone."""


class RegionNemesis:
    """Does one fault of whole sets after the other."""

    def __init__(self, regions: Regions, plan: FaultPlan) -> None:
        self._regions = regions
        self._plan = plan
        self._random = random.Random(f"region nemesis/{regions.seed}")
        self._kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "region lost": lambda: self._lose(self._region()),
            "metadata set lost": lambda: self._lose(regions.metadata),
            "regions apart": self._part_regions,
            "cut off from the metadata set": self._cut_from_metadata,
            "clients cut off from a region": self._cut_clients,
            "push that arrives late": self._delay_a_push,
            "moved node": self._move,
            "second set of a name": self._begin_another,
        }

    async def run(self) -> None:
        """Do faults, for ever."""
        kinds = list(self._kinds)
        weights = [WEIGHTS[kind] for kind in kinds]
        while True:
            await trio.sleep(self._random.uniform(0.2, 2.0))
            kind = self._random.choices(kinds, weights)[0]
            self._regions.trace.log(f"nemesis: {kind}")
            self._regions.faults[kind] += 1
            await self._kinds[kind]()

    async def _lose(self, world: World) -> None:
        """All nodes of a set die, and come back one after the other."""
        await world.crash(power=self._random.random() < 0.5)
        await self._last()
        names = list(world.names)
        self._random.shuffle(names)
        for name in names:
            assert world.nemesis is not None
            await world.nemesis.revive(name)

    async def _part_regions(self) -> None:
        one, other = self._regions.regions
        self._regions.cut(one, other)
        await self._last()
        self._join(one, other)

    async def _cut_from_metadata(self) -> None:
        region = self._region()
        self._regions.cut(self._regions.metadata, region)
        await self._last()
        self._join(self._regions.metadata, region)

    def _join(self, one: World, other: World) -> None:
        """What was held back is lost with its connections, or arrives late."""
        network = self._regions.network
        for name in one.names:
            for there in other.names:
                if self._random.random() < 0.5:
                    network.break_connections(name, there)
        self._regions.join(one, other)

    async def _cut_clients(self) -> None:
        """Some clients reach a region only through other nodes, or not at all."""
        network, region = self._regions.network, self._region()
        nodes = {name for world in self._regions.sets.values() for name in world.disks}
        clients = [host for host in network.hosts() if host not in nodes]
        chosen = [host for host in clients if self._random.random() < 0.5]
        for host in chosen:
            network.isolate(host, *region.names)
        await self._last()
        for host in chosen:
            for name in region.names:
                network.heal(host, name)

    async def _delay_a_push(self) -> None:
        """What the metadata set sends takes long; then it hears that its connections are gone, and
        begins anew while that is still under way."""
        network, region = self._regions.network, self._region()
        source = self._regions.metadata.config.leader.name
        target = region.config.leader.name
        network.delay(source, target, 0.3, 3.0)
        await trio.sleep(self._random.uniform(0.1, 1.0))
        network.wire(source, target).be_normal()
        network.reset(source, target)
        await self._last(0.3)

    async def _move(self) -> None:
        """A node of a region comes back at another port. Some of its peers are given the new file
        at once, the others when all is healed."""
        region = self._region()
        name = self._random.choice((region.config.leader.name, *region.names))
        region.move(name)
        await region.crash(name)
        assert region.nemesis is not None
        await region.nemesis.revive(name)
        for other in region.names:
            if other != name and self._random.random() < 0.5:
                region.hand_out(other)
                await region.crash(other)
                await region.nemesis.revive(other)

    async def _begin_another(self) -> None:
        """Somebody starts a region's nodes with empty disks, from the same file, while the others
        are down; then they are back."""
        region = self._region()
        async with region.another():
            await self._last()
        for name in region.names:
            assert region.nemesis is not None
            await region.nemesis.revive(name)

    def _region(self) -> World:
        return self._random.choice(self._regions.regions)

    async def _last(self, share: float = 1.0) -> None:
        await trio.sleep(self._random.uniform(*self._plan.length_s) * share)


async def run_region_faults(regions: Regions, plan: FaultPlan) -> None:
    """Do faults of single nodes, as `plan` has them, and of whole sets, until cancelled."""
    low_s, high_s = plan.pause_s
    calmer = replace(plan, pause_s=(low_s * _CALMER, high_s * _CALMER))
    async with trio.open_nursery() as nursery:
        for world in regions.sets.values():
            nursery.start_soon(run_faults, world, calmer)
        # Theirs are made by then: `_lose` needs them.
        await trio.sleep(0.1)
        nursery.start_soon(RegionNemesis(regions, plan).run)
