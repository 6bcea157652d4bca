"""One seed, one run: a world, a scenario in it, and what came out."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import trio

from hadron.fakes.scheduling import SimTime, StuckError, run_seeded
from hadron.fakes.trace import Trace
from hadron.node.settings import Settings
from hadron.sim.runs import rare_paths
from hadron.sim.watch import watching
from hadron.sim.world.replica_set import SETTINGS, World, open_world

LIMIT_S: Final = 240.0
"""Simulated seconds after which a run that has not come to its end is a failure."""


@dataclass
class Judgement:
    """What a scenario has to say at its end."""

    acknowledged: int = 0
    """Records of which a client was told that they are safe."""
    operations: int = 0
    violations: list[str] = field(default_factory=list)
    judged: list[str] = field(default_factory=list)
    """Checks that had something to judge."""


class HasFaults(Protocol):
    """Any world."""

    @property
    def faults(self) -> Counter[str]: ...


W = TypeVar("W", bound=HasFaults)


class Scenario(Protocol):
    """Uses a world whose nodes are running, and judges it."""

    async def __call__(self, world: World, /) -> Judgement: ...


@dataclass
class Outcome:
    """One seed's run."""

    seed: int
    simulated_s: float = 0.0
    trace_hash: str = ""
    events: int = 0
    """Things that the hash covers."""
    acknowledged: int = 0
    operations: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    rare_paths: dict[str, int] = field(default_factory=dict)
    judged: list[str] = field(default_factory=list)
    unjudged: dict[str, int] = field(default_factory=dict)
    """What the model of the tables could not be held against, and how often."""
    rooms: dict[str, int] = field(default_factory=dict)
    """Steps of each room's own world."""
    violations: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    """The last main events, for people; only of a run with violations."""


def run_seed(
    seed: int,
    scenario: Scenario,
    *,
    nodes: int = 3,
    spares: int = 0,
    settings: Settings = SETTINGS,
    limit_s: float = LIMIT_S,
    trace: Trace | None = None,
) -> Outcome:
    """Run `scenario` in the world of `seed`, a replica set of so many nodes; see `run_in`."""
    trace = trace or Trace()
    opening = open_world(seed, nodes=nodes, spares=spares, settings=settings, trace=trace)
    return run_in(seed, opening, scenario, limit_s=limit_s, trace=trace)


def run_in(
    seed: int,
    opening: AbstractAsyncContextManager[W],
    scenario: Callable[[W], Awaitable[Judgement]],
    *,
    trace: Trace,
    limit_s: float = LIMIT_S,
) -> Outcome:
    """Run `scenario` in the world that `opening` makes.

    A scenario that raises, gets stuck or does not end is a violation as well: after healing there
    must be progress. `KeyboardInterrupt` is passed on.
    """
    faults: list[Counter[str]] = []
    ended_s: list[float] = []

    async def main(time: SimTime) -> Judgement:
        try:
            with trio.fail_after(limit_s):
                async with opening as world:
                    faults.append(world.faults)
                    return await scenario(world)
        finally:
            ended_s.append(time.now_s)

    with watching() as watcher, rare_paths.counted() as reached:
        try:
            judgement = run_seeded(seed, main, trace)
        except Exception as error:
            judgement = Judgement(violations=[_describe(error)])
        watcher.judge()
        judgement.violations.extend(watcher.violations)
        judgement.judged.extend(sorted(watcher.histories.judged))
        unjudged = dict(watcher.histories.unjudged)
    # It has seen every node, and keeps the world with them.
    del watcher
    gc.collect()
    return Outcome(
        seed=seed,
        simulated_s=ended_s[0] if ended_s else 0.0,
        trace_hash=trace.hexdigest(),
        events=trace.events,
        acknowledged=judgement.acknowledged,
        operations=judgement.operations,
        faults=dict(faults[0]) if faults else {},
        rare_paths=dict(reached),
        judged=judgement.judged,
        unjudged=unjudged,
        violations=judgement.violations,
        story=list(trace.lines) if judgement.violations else [],
    )


def _describe(error: BaseException) -> str:
    """An exception, with the innermost ones of groups, in words."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_describe(inner) for inner in error.exceptions)
    if isinstance(error, StuckError):
        return f"no progress: {error}"
    if isinstance(error, trio.TooSlowError):
        return "no progress: the run did not end"
    frame, where = error.__traceback__, ""
    while frame is not None:
        code = frame.tb_frame.f_code
        if "/hadron/" in code.co_filename:
            where = f" at {code.co_filename.rpartition('/hadron/')[2]}:{frame.tb_lineno}"
        frame = frame.tb_next
    return f"{type(error).__name__}: {error}{where}"
