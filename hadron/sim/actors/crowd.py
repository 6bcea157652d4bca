"""Everybody who is at work in a random run."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hadron.sim.actors.clients import Actor, ProducerActor, ReaderActor
from hadron.sim.actors.curious import CuriousActor, SchemaActor
from hadron.sim.actors.group_plans import GroupPlan
from hadron.sim.actors.members import MemberActor
from hadron.sim.actors.operators import BackupOperator, GroupOperator, RetentionOperator
from hadron.sim.actors.pipeline_operator import PipelineOperator
from hadron.sim.actors.pipelines import OrderActor, Places, RunnerActor, alone
from hadron.sim.actors.raw_producer import RawProducerActor
from hadron.sim.actors.together import TogetherActor
from hadron.sim.evidence.history import History
from hadron.sim.world.replica_set import World


def actors(
    world: World, history: History, seed: int | str, groups: Sequence[GroupPlan]
) -> Iterator[Actor]:
    """Everybody of a random run."""
    chance = random.Random(f"actors/{seed}")
    for number in range(chance.randint(2, 4)):
        yield ProducerActor(world, history, f"p{number}", f"{seed}/p{number}")
    for number in range(chance.randint(1, 2)):
        yield ReaderActor(world, history, f"r{number}", f"{seed}/r{number}")
    for plan in groups:
        for number in range(plan.members):
            host = f"{plan.name}m{number}"
            yield MemberActor(world, history, host, f"{seed}/{host}", plan)
    if groups and chance.random() < 0.4:
        names = [plan.name for plan in groups]
        yield GroupOperator(world, history, "o0", f"{seed}/o0", names)
    if chance.random() < 0.6:
        yield RawProducerActor(world, history, "q0", f"{seed}/q0")
    if chance.random() < 0.7:
        yield CuriousActor(world, history, "a0", f"{seed}/a0")
    if chance.random() < 0.4:
        yield SchemaActor(world, history, "s0", f"{seed}/s0")
    if random.Random(f"changes retention/{seed}").random() < 0.12:
        yield RetentionOperator(world, history, "k0", f"{seed}/k0")
    if random.Random(f"does together/{seed}").random() < 0.2:
        yield TogetherActor(world, history, "j0", f"{seed}/j0")
    if random.Random(f"takes backups/{seed}").random() < 0.3:
        yield BackupOperator(world, history, "b0", f"{seed}/b0")


def has_pipeline(seed: int | str) -> bool:
    """Whether a pipeline is at work in a random run."""
    return random.Random(f"pipeline/{seed}").random() < 0.35


def pipeline_places(replica_set: str, seed: int | str) -> Places:
    """Where a pipeline is in a world of one replica set."""
    keeps_ms = random.Random(f"keeps finished/{seed}").choice((0, 0, 1_000))
    return replace(alone(replica_set), keeps_ms=keeps_ms)


def pipeline_actors(world: World, history: History, seed: int | str) -> Iterator[Actor]:
    """Who triggers the pipeline, who runs its stages, and often somebody who changes it."""
    places = pipeline_places(world.config.name, seed)
    yield OrderActor(world, history, "t0", f"{seed}/t0").to(places)
    for number in range(2):
        yield RunnerActor(world, history, f"w{number}", f"{seed}/w{number}").at(places)
    if random.Random(f"changes pipelines/{seed}").random() < 0.6:
        yield PipelineOperator(world, history, "f0", f"{seed}/f0").at(places)
