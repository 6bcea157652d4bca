"""Several replica sets in one simulated world: the metadata set, and one in each region.

Each is a `World` of its own, so that everything that is made for one replica set (faults,
observing, checking) works for each of them; they share the network, the trace and the counters.
Every node knows the first node of the metadata set from its file, and all others by discovery.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import trio

from hadron.client import Client
from hadron.fakes.network import SimNetwork
from hadron.fakes.trace import Trace
from hadron.node.replica_set import ReplicaSetConfig
from hadron.node.settings import Settings
from hadron.sim.world.config_files import members
from hadron.sim.world.replica_set import SETTINGS, World, playground

METADATA: Final = "metadata"
EUROPE: Final = "aws.eu/p0"
AMERICA: Final = "gcp.us/p0"

LETTERS: Final = {METADATA: "m", EUROPE: "e", AMERICA: "g"}
"""What the nodes of each set are called, before their number."""

_POLL_S: Final = 0.05


class Regions:
    """A cluster of three replica sets.

    Args:
        nodes: how many each set has, in the order of `LETTERS`.
        metadata_name: of the metadata set.

    Attributes:
        sets: by name, the metadata set first.
    """

    def __init__(
        self,
        seed: int,
        root: Path,
        nursery: trio.Nursery,
        *,
        nodes: tuple[int, int, int] = (1, 1, 1),
        settings: Settings = SETTINGS,
        trace: Trace | None = None,
        metadata_name: str = METADATA,
    ) -> None:
        self.seed = seed
        self.metadata_name = metadata_name
        self.random = random.Random(f"workload/{seed}")
        self.network = SimNetwork(
            random.Random(f"network/{seed}"), trace or Trace(trio.current_time), Counter()
        )
        self.trace, self.faults = self.network.trace, self.network.faults
        configs = _configs(root, nodes, settings, metadata_name)
        self.sets = {
            config.name: World(
                f"{seed}/{config.name}", root, nursery, config=config, network=self.network
            )
            for config in configs
        }
        addresses = tuple(node.address for config in configs for node in config.nodes)
        for world in self.sets.values():
            world.entrances = addresses

    @property
    def metadata(self) -> World:
        return self.sets[self.metadata_name]

    @property
    def regions(self) -> tuple[World, ...]:
        """Those that streams have partitions at."""
        return tuple(world for name, world in self.sets.items() if name != self.metadata_name)

    def home(self, node: str) -> World:
        """The replica set that a node belongs to."""
        return next(world for world in self.sets.values() if node in world.disks)

    # --- life -----------------------------------------------------------------------------------

    async def start(self, *, timeout_s: float = 60.0) -> None:
        """Start every node, and return once all sets serve and have the schema."""
        for world in self.sets.values():
            await world.start()
        await self.wait_serving(timeout_s=timeout_s)
        await self.wait_same_schema(timeout_s=timeout_s)

    async def crash(self, *, power: bool = False) -> None:
        for world in self.sets.values():
            await world.crash(power=power)

    async def stop(self) -> None:
        """Let all nodes end in good order."""
        for world in self.sets.values():
            await world.stop()

    async def heal_everything(self) -> None:
        """Undo every fault that can be undone and start every node that is down."""
        for world in self.sets.values():
            await world.heal_everything()

    # --- connections ----------------------------------------------------------------------------

    def cut(self, one: World, other: World) -> None:
        """Nothing passes between the nodes of two sets."""
        for name in one.names:
            self.network.isolate(name, *other.names)

    def join(self, one: World, other: World) -> None:
        """Undo `cut`; what was held back arrives, late."""
        for name in one.names:
            for there in other.names:
                self.network.heal(name, there)

    def client(self, host: str = "c1", **kwargs: Any) -> Client:
        """The real client, which knows the addresses of all nodes."""
        return self.metadata.client(host, **kwargs)

    # --- looking --------------------------------------------------------------------------------

    async def wait_serving(self, *, timeout_s: float = 60.0) -> None:
        for world in self.sets.values():
            await world.wait_serving(timeout_s)

    async def wait_in_step(self, *, timeout_s: float = 60.0) -> None:
        """Until in every set all nodes have applied all that there is."""
        for world in self.sets.values():
            await world.wait_in_step(timeout_s=timeout_s)

    async def wait_same_schema(self, *, timeout_s: float = 60.0) -> None:
        """Until every node knows every set, and stands at the metadata set's index."""
        await self.wait_for("the schema on every node", self.is_same_schema, timeout_s)

    def is_same_schema(self) -> bool:
        leader = self.metadata.config.leader.name
        if not self.metadata.is_serving():
            return False
        index = self.metadata.status(leader).metadata_index
        return index >= len(self.sets) - 1 and all(
            world.listens(name)
            and world.status(name).metadata_index == index
            and len(world.node(name).discovery.sets()) == len(self.sets)
            for world in self.sets.values()
            for name in world.names
        )

    async def wait_for(
        self, what: str, condition: Callable[[], bool], timeout_s: float = 60.0
    ) -> None:
        """Wait until `condition` holds; raises `AssertionError` saying what was seen instead."""
        with trio.move_on_after(timeout_s):
            # Conditions look at nodes' insides, which set no event.
            while not condition():  # noqa: ASYNC110
                await trio.sleep(_POLL_S)
            return
        seen = "\n  ".join(
            f"{world.describe(name)}; {self._schema(world, name)}"
            for world in self.sets.values()
            for name in world.names
        )
        raise AssertionError(f"not {what} after {timeout_s:g} simulated seconds:\n  {seen}")

    @staticmethod
    def _schema(world: World, name: str) -> str:
        if not world.listens(name):
            return "schema unknown"
        status = world.status(name)
        return f"schema {status.metadata_index} {'; '.join(status.cluster_trouble)}"


def _configs(
    root: Path, nodes: tuple[int, int, int], settings: Settings, metadata: str
) -> list[ReplicaSetConfig]:
    names = (metadata, EUROPE, AMERICA)
    configs = [
        ReplicaSetConfig(
            cluster="sim",
            name=name,
            epoch=1,
            nodes=members(root, letter, count),
            metadata=metadata,
            discovery=(),
            settings=_untrimmed(settings) if name == metadata else settings,
        )
        for name, letter, count in zip(names, LETTERS.values(), nodes, strict=True)
    ]
    known = (configs[0].nodes[0].address,)
    return [replace(config, discovery=known) for config in configs]


def _untrimmed(settings: Settings) -> Settings:
    """The checker reads the metadata set's log from its beginning."""
    return replace(
        settings,
        log_keep_bytes=SETTINGS.log_keep_bytes,
        log_max_lag_bytes=SETTINGS.log_max_lag_bytes,
    )


@asynccontextmanager
async def open_regions(
    seed: int,
    *,
    nodes: tuple[int, int, int] = (1, 1, 1),
    settings: Settings = SETTINGS,
    trace: Trace | None = None,
    metadata_name: str = METADATA,
) -> AsyncIterator[Regions]:
    """A world of several replica sets for the length of a block: all serving, each with the schema,
    and everything gone at its end."""
    async with playground(seed, trace) as (root, nursery):
        regions = Regions(
            seed,
            root,
            nursery,
            nodes=nodes,
            settings=settings,
            trace=trace,
            metadata_name=metadata_name,
        )
        nursery.start_soon(regions.network.run)
        await regions.start()
        yield regions
        await regions.crash()
        nursery.cancel_scope.cancel()
