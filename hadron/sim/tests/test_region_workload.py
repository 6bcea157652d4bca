"""A random run over several replica sets keeps every promise, the same for the same seed."""

from __future__ import annotations

import pytest

from hadron.fakes.trace import Trace
from hadron.sim.command.main import run_default
from hadron.sim.faults.nemesis import FaultPlan
from hadron.sim.faults.regions import WEIGHTS
from hadron.sim.runs.region_workload import RegionsRun
from hadron.sim.runs.run import Judgement, Outcome, run_in
from hadron.sim.runs.shapes import shape_of
from hadron.sim.world.regions import Regions, open_regions


def run(seed: int, scenario: RegionsRun, nodes: tuple[int, int, int] = (1, 1, 1)) -> Outcome:
    trace = Trace()
    return run_in(seed, open_regions(seed, nodes=nodes, trace=trace), scenario, trace=trace)


@pytest.mark.long
def test_every_promise_is_kept_while_regions_are_lost_and_the_trace_is_the_seeds() -> None:
    scenario = RegionsRun(FaultPlan(length_s=(0.5, 2.0)), acknowledged=150, least_s=12.0)
    first, second = (run(4, scenario, (1, 1, 3)) for _ in range(2))
    assert first.violations == []
    assert first.operations >= 300
    assert first.trace_hash == second.trace_hash
    assert set(first.faults) & set(WEIGHTS)


@pytest.mark.long
def test_a_quarter_of_the_seeds_has_several_replica_sets() -> None:
    several = [seed for seed in range(400) if shape_of(seed).set_nodes is not None]
    assert 80 <= len(several) <= 120
    outcome = run_default(several[1])
    assert outcome.violations == []
    assert outcome.rare_paths["schema pushed after a gap"] > 0


@pytest.mark.long
def test_a_region_that_is_not_healed_is_told_of() -> None:
    class Broken(RegionsRun):
        async def __call__(self, regions: Regions) -> Judgement:
            regions.heal_everything = _nothing  # type: ignore[method-assign]
            regions.cut(*regions.regions)
            regions.cut(regions.metadata, regions.regions[0])
            return await super().__call__(regions)

    outcome = run(1, Broken(FaultPlan({"slow disk": 1.0}), acknowledged=20, least_s=1.0))
    assert any("not the schema on every node" in each for each in outcome.violations)


async def _nothing() -> None:
    """No healing."""
