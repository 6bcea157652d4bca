"""What directed scenarios over several replica sets are written in; see `play`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import trio

from hadron.client.producing.failover import Failover
from hadron.client.producing.producer import Producer
from hadron.fakes.trace import Trace
from hadron.model.schema import SchemaObject
from hadron.node.settings import Settings
from hadron.sim.actors.clients import STREAM
from hadron.sim.evidence.history import CLUSTER, Publish
from hadron.sim.runs.region_run import RegionRun
from hadron.sim.runs.run import Judgement, Outcome, run_in
from hadron.sim.runs.workload import judgement
from hadron.sim.scenarios.play import SCENARIOS
from hadron.sim.world.backups import Backups
from hadron.sim.world.regions import AMERICA, EUROPE, METADATA, Regions, open_regions
from hadron.sim.world.replica_set import SETTINGS, World


class RegionPlay(RegionRun):
    """A cluster with a history, and the sentences."""

    _backed_up_at = 0

    @cached_property
    def backups(self) -> Backups:
        """The disk that operators have for them."""
        return Backups(self.regions.metadata)

    @property
    def metadata(self) -> World:
        return self.regions.metadata

    @property
    def europe(self) -> World:
        return self.regions.sets[EUROPE]

    @property
    def america(self) -> World:
        return self.regions.sets[AMERICA]

    async def back_up_all(self, on_begin: Callable[[str], None]) -> Path:
        """An operator takes a backup of the whole cluster, and is told which set is copied now."""
        self._backed_up_at = self.history.tick()
        async with self.regions.client("operator") as client:
            return await self.backups.take_all(client, on_begin)

    async def restore_all(self, backup: Path) -> None:
        """All nodes are stopped, and every set begins a new history from the cluster's latest
        backup. Records that were acknowledged since that was begun are nobody's business here."""
        await self.regions.stop()
        self.history.event("restore", detail=CLUSTER, at=self._backed_up_at)
        for world in self.regions.sets.values():
            world.promote(world.config.leader.name)
        self.backups.restore_all(tuple(self.regions.sets.values()), backup)
        for world in self.regions.sets.values():
            for name in world.names:
                world.hand_out(name)
        await self.regions.start()

    @asynccontextmanager
    async def producer(
        self,
        host: str = "c1",
        *,
        failover: Failover = "any",
        region: str | None = None,
        timeout_s: float = 60.0,
    ) -> AsyncIterator[Callable[..., Awaitable[Publish]]]:
        """A producer for the length of the block, as a function that publishes one value."""
        allowed = () if region is None else (region,)
        async with (
            self.regions.client(host, connect_timeout_s=60.0) as client,
            client.producer(
                STREAM, failover=failover, region=region, delivery_timeout_s=timeout_s
            ) as producer,
        ):

            async def publish(value: str, key: str | None = None) -> Publish:
                return await self._publish(producer, host, value, key, failover, allowed)

            yield publish

    async def _publish(
        self,
        producer: Producer,
        host: str,
        value: str,
        key: str | None,
        failover: str,
        allowed: tuple[str, ...],
    ) -> Publish:
        operation = self.history.publish(
            host, "", STREAM, "", [value], failover=failover, allowed=allowed
        )
        await self.send(producer, operation, key)
        return operation

    async def send_to(self, producer: Producer, stream: SchemaObject, value: str) -> None:
        """Publish to the stream with this id, and to no other of its name."""
        label = f"{stream.name}#{stream.id}"
        operation = self.history.publish("c1", "", label, "", [value], failover="unkeyed")
        await self.send(producer, operation)


RegionBody = Callable[[RegionPlay], Awaitable[None]]


@dataclass(frozen=True)
class DirectedRegions:
    """A named scenario over several replica sets; attributes as of `play.Directed`.

    Attributes:
        nodes: of the metadata set, the one in Europe and the one in America.
    """

    name: str
    rule: str
    history: str
    body: RegionBody
    nodes: tuple[int, int, int] = (1, 1, 1)
    settings: Settings = field(default=SETTINGS)
    metadata_name: str = METADATA

    async def __call__(self, regions: Regions) -> Judgement:
        play = RegionPlay(regions)
        with play.noting():
            await play.declare()
            await regions.wait_same_schema()
            await self.body(play)
            async with trio.open_nursery() as nursery:
                await play.heal()
                nursery.start_soon(play.operate)
                verdict = await play.finish()
                nursery.cancel_scope.cancel()
        return judgement(verdict)

    def play(self, seed: int = 0, trace: Trace | None = None) -> Outcome:
        """Run it in the world of `seed`."""
        trace = trace or Trace()
        opening = open_regions(
            seed,
            nodes=self.nodes,
            settings=self.settings,
            trace=trace,
            metadata_name=self.metadata_name,
        )
        return run_in(seed, opening, self, trace=trace)


def region_scenario(
    rule: str,
    *,
    nodes: tuple[int, int, int] = (1, 1, 1),
    settings: Settings = SETTINGS,
    metadata_name: str = METADATA,
) -> Callable[[RegionBody], RegionBody]:
    """Register a scenario under its function's name; its docstring is the history."""

    def register(body: RegionBody) -> RegionBody:
        name = getattr(body, "__name__", "").replace("_", "-")
        history = " ".join((body.__doc__ or "").split())
        assert name not in SCENARIOS, name
        assert history, name
        SCENARIOS[name] = DirectedRegions(name, rule, history, body, nodes, settings, metadata_name)
        return body

    return register
