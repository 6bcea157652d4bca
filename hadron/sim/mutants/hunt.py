"""Looks for planted bugs: by random seeds first, then by the directed scenarios they break.

A bug counts as caught when a run with it has violations and the same run without it has none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from hadron.sim.mutants.mutant import MUTANTS, Mutant
from hadron.sim.mutants.seams import patched
from hadron.sim.run import Outcome
from hadron.sim.scenarios import SCENARIOS

SEEDS: Final = 20
"""Of the random workload, tried for each bug unless told otherwise."""

TRIES: Final = 4
"""Of each directed scenario, in worlds of as many seeds."""

_PATIENCE_S: Final = 1_800.0
"""Real seconds for one bug."""

RunSeed = Callable[[int], Outcome]


class Found(msgspec.Struct, frozen=True):
    """What became of one bug.

    Attributes:
        seeds: how many random seeds it took; None when none of them caught it.
        scenario, tries: the directed scenario that caught it, and in which of its worlds.
        violation: the first one, "" when it was not caught.
        dirty: what the same run without the bug had to complain about; must be "".
    """

    name: str
    seeds: int | None = None
    scenario: str = ""
    tries: int = 0
    violation: str = ""
    dirty: str = ""

    @property
    def is_caught(self) -> bool:
        return bool(self.violation) and not self.dirty


def hunt(mutant: Mutant, run: RunSeed, *, seeds: range, tries: int = TRIES) -> Found:
    """Try `seeds` with `run`, then `tries` worlds of each of the bug's scenarios.

    Raises `SeamError` when the bug cannot be planted any more.
    """
    for number, seed in enumerate(seeds, 1):
        if violation := _first_violation(mutant, run, seed):
            return Found(
                mutant.name, number, violation=violation, dirty=_first(run(seed).violations)
            )
    for name in mutant.scenarios:
        play = SCENARIOS[name].play
        for seed in range(tries):
            if violation := _first_violation(mutant, play, seed):
                return Found(
                    mutant.name, scenario=name, tries=seed + 1, violation=violation,
                    dirty=_first(play(seed).violations),
                )
    return Found(mutant.name)


def _first_violation(mutant: Mutant, run: RunSeed, seed: int) -> str:
    with patched(*mutant.patches):
        return _first(run(seed).violations)


def _first(violations: list[str]) -> str:
    return violations[0] if violations else ""


# --- all of them --------------------------------------------------------------------------------


@dataclass
class Report:
    """What became of all bugs."""

    found: list[Found] = field(default_factory=list)

    @property
    def caught(self) -> int:
        return sum(found.is_caught for found in self.found)

    def status(self) -> int:
        """The exit status: 0 only when all were caught."""
        return 0 if self.found and self.caught == len(self.found) else 1

    def to_json(self) -> dict[str, Any]:
        return {
            "total": len(self.found),
            "caught": self.caught,
            "seeds_needed": {found.name: found.seeds for found in self.found},
            "scenarios": {
                found.name: {"scenario": found.scenario, "tries": found.tries}
                for found in self.found if found.scenario
            },
            "missed": [found.name for found in self.found if not found.is_caught],
        }

    def describe(self) -> list[str]:
        """Lines for people."""
        return [*map(describe, self.found), f"{self.caught} of {len(self.found)} bugs caught"]


def describe(found: Found) -> str:
    """One line for people."""
    if found.dirty:
        return f"{found.name}: PROVES NOTHING, without the bug: {found.dirty[:200]}"
    if not found.is_caught:
        return f"{found.name}: NOT CAUGHT"
    how = (
        f"{found.seeds} random seeds" if found.seeds is not None
        else f"scenario {found.scenario}, try {found.tries}"
    )
    violation = found.violation.splitlines()[0][:120]
    return f"{found.name}: {how}: {violation}"


def hunt_elsewhere(jobs: int, seeds: range) -> Iterator[Found]:
    """Hunt for every bug in a process of its own, `jobs` at a time, in the order of the list."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda name: _hunt_elsewhere(name, seeds), MUTANTS)


def _hunt_elsewhere(name: str, seeds: range) -> Found:
    command = [
        sys.executable, "-m", "hadron.sim", "--worker", "--mutant", name,
        "--start", str(seeds.start), "--seeds", str(len(seeds)),
    ]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    ended = subprocess.run(command, env=environment, capture_output=True, timeout=_PATIENCE_S)
    if ended.returncode:
        last = ended.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return Found(name, dirty=f"its process ended with {ended.returncode}: {' '.join(last)}")
    return msgspec.json.decode(ended.stdout, type=Found)
