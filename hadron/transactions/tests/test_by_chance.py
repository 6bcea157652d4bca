"""Histories in which all goes wrong that can: none is torn, and every planted bug shows."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from hadron.sim.mutants.seams import patched
from hadron.sim.mutants.transaction_edits import PLANTED
from hadron.sim.rooms.transactions import play_one

TRIES = 100
"""The rarest shows in one of fifteen."""

FIRST = {"aborted, says a leader whose ballot is not committed": 37}
"""A seed that shows a rare one, tried before the others."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Resolved conflicts and lost leaders are what these histories are made of."""
    logger = logging.getLogger("hadron.transactions")
    before, logger.disabled = logger.level, False
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_fails_nothing_is_torn(seed: int) -> None:
    played = play_one(seed)
    assert not played.problems, played.problems[:5]
    assert sum(plan.is_committed for plan in played.plans) > 10
    assert sum(plan.is_rolled_back for plan in played.plans) > 10


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 300))
def test_whatever_fails_for_long(seed: int) -> None:
    played = play_one(seed)
    assert not played.problems, played.problems[:5]


def test_a_seed_decides_all() -> None:
    first, again = play_one(7, 4.0), play_one(7, 4.0)
    assert [plan.transaction for plan in first.plans] == [plan.transaction for plan in again.plans]
    assert [plan.receipts for plan in first.plans] == [plan.receipts for plan in again.plans]


@pytest.mark.long
@pytest.mark.parametrize("name", PLANTED)
def test_planted_bugs_are_found(name: str) -> None:
    edits = PLANTED[name]
    with patched(*edits) as reached:
        for seed in (FIRST.get(name, 0), *range(TRIES)):
            try:
                problems = play_one(seed).problems
            except Exception as error:
                problems = [repr(error)]
            if problems:
                break
        else:
            pytest.fail(f"nobody noticed: {name}; reached {reached} of {len(edits)} edits")
        assert reached == {*range(len(edits))}
