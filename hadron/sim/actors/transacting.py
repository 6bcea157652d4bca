"""Everybody who does transactions in a run, what they need, and how it ends.

Drawn from the seed alone, by a chance of its own: worlds without transactions are what they were.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Final

import trio

from hadron.model.schema import SchemaObject, StreamSpec
from hadron.sim.actors.bulk import BULK, Checkpoint
from hadron.sim.actors.bursts import BurstActor
from hadron.sim.actors.clients import Actor
from hadron.sim.actors.group_plans import GroupPlan
from hadron.sim.actors.loading import LoadingActor
from hadron.sim.actors.names import COUNTS, CountingActor, NamedActor
from hadron.sim.actors.part import Part
from hadron.sim.actors.steps import MAKERS, ByHandActor, DrainingMaker, StepActor, drained_as
from hadron.sim.actors.transactions import DEALS, OUTPUTS, TransactionActor, Transactor
from hadron.sim.evidence.history import History
from hadron.sim.world.replica_set import World

_ALONE: Final = 0.25
_REGIONS: Final = 0.5
"""Of worlds of one replica set, and of several: where somebody does transactions."""

_LOADS: Final = 0.4
"""Of worlds with transactions: where somebody loads in bulk, too."""

_TASK: Final = "import"


def has_transactions(seed: int | str, *, is_alone: bool) -> bool:
    """Whether somebody does transactions in a random run."""
    share = _ALONE if is_alone else _REGIONS
    return random.Random(f"transactions/{seed}").random() < share


class Transacting(Part):
    """Of one world.

    Args:
        world: whose clients these are; it may be one of several replica sets.
        partitions: where their streams are.
        drivers: who may drive.
    """

    def __init__(
        self,
        world: World,
        history: History,
        seed: int | str,
        partitions: Sequence[str],
        drivers: Sequence[str],
    ) -> None:
        self._world = world
        self._history = history
        self._seed = seed
        self._chance = random.Random(f"who transacts/{seed}")
        self._partitions = tuple(partitions)
        self._drivers = tuple(drivers)
        self._plan = GroupPlan(
            MAKERS,
            order=self._chance.choice(("none", "none", "key", "strict")),
            ack_deadline_s=self._chance.choice((0.0, 0.0, 0.5, 3.0)),
        )
        self._has_names = self._chance.random() < 0.5
        self._counts = self._chance.random() < 0.3
        self._loads = self._chance.random() < _LOADS
        self._actors: list[Actor] = []

    def objects(self) -> list[SchemaObject]:
        """What they publish to."""
        plain = StreamSpec(partitions=self._partitions)
        found = [SchemaObject(kind="Stream", name=name, spec=plain) for name in (DEALS, OUTPUTS)]
        if self._loads:
            found.append(SchemaObject(kind="Stream", name=BULK, spec=plain))
        if self._counts:
            keyed = StreamSpec(partitions=self._partitions, keys="indexed")
            found.append(SchemaObject(kind="Stream", name=COUNTS, spec=keyed))
        return found

    def actors(self) -> list[Actor]:
        self._actors = list(self._made())
        return self._actors

    def _made(self) -> Iterator[Actor]:
        chance = self._chance
        for number in range(chance.randint(1, 2)):
            yield TransactionActor(*self._of(f"x{number}"), drivers=self._drivers)
        yield BurstActor(*self._of("u0"))
        kinds = chance.choice(((StepActor,), (StepActor, StepActor), (ByHandActor, StepActor)))
        for number, kind in enumerate(kinds):
            yield kind(*self._of(f"y{number}"), plan=self._plan)
        if self._has_names:
            partition = chance.choice(self._partitions)
            for number in range(2):
                given = self._of(f"z{number}")[:-1]
                yield NamedActor(*given, task=_TASK, partition=partition)
        if self._counts:
            for number in range(2):
                yield CountingActor(*self._of(f"v{number}"))
        if self._loads:
            at = Checkpoint("q")
            for number in range(chance.randint(1, 2)):
                yield LoadingActor(*self._of(f"l{number}"), at=at)

    def _of(self, host: str) -> tuple[World, History, str, str, Sequence[str]]:
        return self._world, self._history, host, f"{self._seed}/{host}", self._partitions

    async def drain(self) -> None:
        """Once all is healed: each transaction ends, and something is made of all that is left."""
        for partition in self._partitions:
            self._history.event("draining", drained_as(MAKERS, partition, self._partitions))
        last = DrainingMaker(*self._of("dy"), plan=self._plan)
        asking = [last, *(each for each in self._actors if isinstance(each, Transactor))]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(last.run)
            for each in asking:
                nursery.start_soon(each.until_resolved)
