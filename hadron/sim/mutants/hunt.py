"""Looks for planted bugs: in the directed scenarios that they break, which is quick, then by random
seeds alone, for as long as there is patience.

A bug counts as caught when a run with it has violations and the same run without it has none.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec

from hadron.model.words import counted
from hadron.sim.mutants import chance
from hadron.sim.mutants.mutant import Mutant
from hadron.sim.mutants.seams import Edit, patched
from hadron.sim.rooms import play_rooms
from hadron.sim.runs.run import Outcome
from hadron.sim.scenarios import SCENARIOS

SEEDS: Final = 20
"""Of the random workload, tried for each bug unless told otherwise."""

PATIENCE_S: Final = 60.0
"""Real seconds that go into random seeds for one bug, unless told otherwise; no seed begins
later."""

TRIES: Final = 4
"""Of each directed scenario, in worlds of as many seeds."""

_LAST_RUNS_S: Final = 300.0
"""Beyond the patience: what the directed scenarios, and a last seed with and without the bug, may
take."""

_ALL_SCENARIOS_S: Final = 3_000.0
"""The same, where a bug is looked for in all of them."""

_ROOMS_FIRST: Final = 10
"""Seeds whose rooms alone are played before anything else: they take seconds, and show most."""

_RUN_S: Final = 300
"""Real seconds that one run may take with a bug of which nobody knows what it does."""

RunSeed = Callable[[int], Outcome]


class Found(msgspec.Struct, frozen=True):
    """What became of one bug.

    Attributes:
        scenario: the directed one that caught it; "" when none did.
        tries: worlds of directed scenarios that were played, with the bug, until then.
        seeds: how many random seeds it took; None when none of those tried caught it.
        seeds_tried: random seeds that were tried, at most.
        violation: the first one, "" when it was not caught.
        dirty: what the same run without the bug had to complain about; must be "".
        idle: its edits that no run ever reached; must be empty: they prove nothing.
        bug: what it is, where its name does not say so.
    """

    name: str
    scenario: str = ""
    tries: int = 0
    seeds: int | None = None
    seeds_tried: int = 0
    violation: str = ""
    dirty: str = ""
    idle: tuple[str, ...] = ()
    bug: str = ""

    @property
    def is_caught(self) -> bool:
        return bool(self.violation) and not self.dirty

    @property
    def seeds_needed(self) -> int | None:
        """Worlds that were played with the bug until one showed it, directed ones first."""
        if self.scenario:
            return self.tries
        return None if self.seeds is None else self.tries + self.seeds

    @property
    def caught_by(self) -> str:
        """A directed scenario's name, "random seeds", or "" when it was not caught."""
        return self.scenario or ("" if self.seeds is None else "random seeds")


class _Hunt:
    """For one bug; remembers which of its edits have run."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._reached: set[int] = set()
        self.dirty = ""

    def violation(self, run: RunSeed, seed: int) -> str:
        """The first violation of a run with the bug; notes it when there is one without it too."""
        with patched(*self._mutant.patches) as reached:
            try:
                found = _first(run(seed).violations)
            except Exception as error:
                # It was to be judged, and broke the judge: nobody would miss that.
                found = f"the run failed: {error!r}"
            self._reached.update(reached)
        if found:
            self.dirty = self.dirty or _first(run(seed).violations)
        return found

    @property
    def idle(self) -> tuple[str, ...]:
        return tuple(
            patch.where
            for index, patch in enumerate(self._mutant.patches)
            if isinstance(patch, Edit) and index not in self._reached
        )


def hunt(
    mutant: Mutant,
    run: RunSeed,
    *,
    seeds: range,
    tries: int = TRIES,
    patience_s: float = PATIENCE_S,
) -> Found:
    """Play `tries` worlds of each of the bug's scenarios, until one shows it; then, whether one did
    or not, `seeds` with `run`, until one shows it or `patience_s` are over.

    Raises `SeamError` when the bug cannot be planted any more.
    """
    hunting = _Hunt(mutant)
    found, played, by = "", 0, ""
    for name, seed in itertools.product(mutant.scenarios, range(tries)):
        played += 1
        if found := hunting.violation(SCENARIOS[name].play, seed):
            by = name
            break
    needed, tried = None, 0
    began_s = time.monotonic()
    for seed in seeds:
        if tried and time.monotonic() - began_s >= patience_s:
            break
        tried += 1
        if violation := hunting.violation(run, seed):
            found, needed = found or violation, tried
            break
    return Found(
        mutant.name, by, played, needed, tried, found, dirty=hunting.dirty, idle=hunting.idle
    )


def _first(violations: list[str]) -> str:
    return violations[0] if violations else ""


def hunt_anywhere(number: int, run: RunSeed, *, seeds: range, patience_s: float) -> Found:
    """Look for a bug that chance has drawn in the rooms of the first `seeds`, in a world of each
    directed scenario, then in `seeds` with `run`, until one shows it or `patience_s` are over. A
    run that takes for ever ends this process, by SIGALRM."""

    def bounded(play: RunSeed) -> RunSeed:
        def bounded_run(seed: int) -> Outcome:
            signal.alarm(_RUN_S)
            try:
                return play(seed)
            finally:
                signal.alarm(0)

        return bounded_run

    mutant = chance.drawn(number)
    hunting = _Hunt(mutant)
    rooms = [("rooms", bounded(_play_rooms), seed) for seed in seeds[:_ROOMS_FIRST]]
    scenarios = [(name, bounded(each.play), 0) for name, each in SCENARIOS.items()]
    last, tries, tried = "", 0, 0
    began_s = time.monotonic()
    for name, play, seed in itertools.chain(
        rooms, scenarios, [("", bounded(run), seed) for seed in seeds]
    ):
        last, tries = name, tries + 1 if name == last else 1
        if not name:
            began_s = began_s if tried else time.monotonic()
            if tried and time.monotonic() - began_s >= patience_s:
                break
            tried += 1
        if found := hunting.violation(play, seed):
            return Found(
                mutant.name,
                name,
                tries=tries if name else 0,
                seeds=None if name else tried,
                seeds_tried=tried,
                violation=found,
                dirty=hunting.dirty,
                bug=mutant.bug,
            )
    return Found(mutant.name, seeds_tried=tried, idle=hunting.idle, bug=mutant.bug)


def _play_rooms(seed: int) -> Outcome:
    outcome = Outcome(seed)
    play_rooms(seed, outcome)
    return outcome


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
        """By name: `seeds_needed`, worlds played until one showed the bug, directed ones first;
        `caught_by`, the directed scenario it was, or "random seeds"; `random_seeds`, what random
        seeds alone do: how many were needed, null when none of those tried shows the bug."""
        return {
            "total": len(self.found),
            "caught": self.caught,
            "seeds_needed": {found.name: found.seeds_needed for found in self.found},
            "caught_by": {found.name: found.caught_by for found in self.found},
            "random_seeds": {
                found.name: {"needed": found.seeds, "tried": found.seeds_tried}
                for found in self.found
            },
            "missed": [found.name for found in self.found if not found.is_caught],
        }

    def describe(self) -> list[str]:
        """Lines for people."""
        alone = sum(found.is_caught and found.seeds is not None for found in self.found)
        return [
            *map(describe, self.found),
            f"{self.caught} of {len(self.found)} bugs caught, {alone} by random seeds alone",
        ]


def describe(found: Found) -> str:
    """One line for people."""
    name = f"{found.name}, {found.bug}" if found.bug else found.name
    if found.dirty:
        return f"{name}: PROVES NOTHING, without the bug: {found.dirty[:200]}"
    if not found.is_caught:
        idle = f"; never ran: {', '.join(found.idle)}" if found.idle else ""
        return f"{name}: NOT CAUGHT{idle}"
    ways = [f"scenario {found.scenario}, try {found.tries}"] if found.scenario else []
    if found.seeds is not None:
        ways.append(counted(found.seeds, "random seed"))
    elif found.seeds_tried:
        ways.append(f"not by {found.seeds_tried} random seeds")
    violation = found.violation.splitlines()[0][:120]
    return f"{name}: {'; '.join(ways)}: {violation}"


def hunt_elsewhere(
    names: Iterable[str], jobs: int, seeds: range, patience_s: float = PATIENCE_S
) -> Iterator[Found]:
    """Hunt for each bug in a process of its own, `jobs` at a time, in order."""
    hunt_one = partial(_hunt_elsewhere, seeds=seeds, patience_s=patience_s)
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(hunt_one, names)


def _hunt_elsewhere(name: str, seeds: range, patience_s: float) -> Found:
    command = [
        sys.executable,
        "-m",
        "hadron.sim",
        "--worker",
        "--mutant",
        name,
        "--start",
        str(seeds.start),
        "--seeds",
        str(len(seeds)),
        "--patience",
        str(patience_s),
    ]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    number = chance.number_of(name)
    limit_s = patience_s + (_LAST_RUNS_S if number is None else _ALL_SCENARIOS_S)
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return Found(name, dirty=f"its process did not end within {limit_s:g} s")
    if number is not None and ended.returncode == -signal.SIGALRM:
        violation = f"a run did not end within {_RUN_S} s"
        return Found(name, "a run", 1, violation=violation, bug=chance.drawn(number).bug)
    if ended.returncode:
        last = ended.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return Found(name, dirty=f"its process ended with {ended.returncode}: {' '.join(last)}")
    return msgspec.json.decode(ended.stdout, type=Found)
