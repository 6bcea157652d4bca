"""Every directed scenario, played in two worlds, keeps every promise."""

import pytest

from hadron.sim.scenarios import SCENARIOS

_SEEDS = (0, pytest.param(1, marks=pytest.mark.long))


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_scenario_keeps_every_promise(name: str, seed: int) -> None:
    outcome = SCENARIOS[name].play(seed)
    assert not outcome.violations, "\n".join([*outcome.violations, *outcome.story])
    assert outcome.acknowledged > 0
