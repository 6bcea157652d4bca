"""A pipeline over several replica sets: where it is, who is at work with it, and how it ends.

Drawn from the seed alone, by a chance of its own: worlds without one are what they were.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import trio

from hadron.model.schema import SchemaObject
from hadron.sim.actors.clients import Actor
from hadron.sim.actors.part import Part
from hadron.sim.actors.pipeline_operator import PipelineOperator
from hadron.sim.actors.pipelines import (
    DrainingRunner,
    OrderActor,
    Places,
    RunnerActor,
    random_objects,
)
from hadron.sim.evidence.history import History
from hadron.sim.world.replica_set import World

_WORLDS: Final = 0.35
"""Of those of several replica sets."""

_DRAIN_S: Final = 90.0
"""Simulated seconds within which a pipeline must have done all, once everything is healed."""


def has_flow(seed: int | str) -> bool:
    """Whether a pipeline is at work in a random run over several sets."""
    return random.Random(f"flow/{seed}").random() < _WORLDS


class Flowing(Part):
    """Of one cluster.

    Args:
        world: whose clients these are.
        sets: all of the cluster.
    """

    def __init__(
        self, world: World, history: History, seed: int | str, sets: Sequence[str]
    ) -> None:
        self._world = world
        self._history = history
        self._seed = seed
        self._chance = random.Random(f"where it flows/{seed}")
        chosen = self._chance.sample(tuple(sets), 3)
        self.places = self._chance.choice(
            (
                # Inputs on two sets, outputs to a third.
                Places(chosen[0], tuple(chosen[:2]), (chosen[2],)),
                Places(chosen[0], tuple(chosen[1:]), (chosen[1],)),
                Places(chosen[0], (chosen[1],), tuple(chosen)),
                Places(chosen[0], tuple(chosen), (chosen[0], chosen[2])),
            )
        )
        self._operator: PipelineOperator | None = None

    def objects(self) -> list[SchemaObject]:
        return random_objects(self.places)

    def actors(self) -> list[Actor]:
        found: list[Actor] = [OrderActor(*self._of("fo")).to(self.places)]
        found += [RunnerActor(*self._of(f"fw{number}")).at(self.places) for number in range(2)]
        if self._chance.random() < 0.6:
            self._operator = PipelineOperator(*self._of("ff")).at(self.places)
            found.append(self._operator)
        return found

    def _of(self, host: str) -> tuple[World, History, str, str]:
        return self._world, self._history, host, f"{self._seed}/{host}"

    async def drain(self) -> None:
        """Once all is healed: whatever is left comes to its end, or the checks tell of it."""
        with trio.move_on_after(_DRAIN_S):
            if self._operator is not None:
                await self._operator.finished.wait()
            await DrainingRunner(*self._of("fd")).at(self.places).run()
