"""What many seeds' runs amount to, for people and as JSON."""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from hadron.model.words import counted
from hadron.sim.checks.checker import CHECKS
from hadron.sim.model.machine import AREAS
from hadron.sim.runs.run import Outcome

_CHECKS: Final = (*(check.__name__ for check in CHECKS), *AREAS)
_SHOWN_FAILURES: Final = 20
_SHOWN_EVERY_S: Final = {True: 1.0, False: 10.0}
"""How often progress is told on a terminal, and to a file, which keeps each line."""


def encode_outcome(outcome: Outcome) -> bytes:
    """One line of JSON."""
    return msgspec.json.encode(outcome)


def decode_outcome(line: bytes | str) -> Outcome:
    """Raises `ValueError` for anything else than `encode_outcome` gives."""
    try:
        return msgspec.json.decode(line, type=Outcome)
    except msgspec.DecodeError as error:
        raise ValueError(f"a worker said {str(line)[:200]!r}: {error}") from error


def replay_command(seed: int) -> str:
    """What to type to see a seed's run again."""
    return f"python -m hadron.sim --seed {seed} --replay"


@dataclass
class Summary:
    """Sums over seeds."""

    seeds: int = 0
    simulated_s: float = 0.0
    acknowledged: int = 0
    operations: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    rare_paths: Counter[str] = field(default_factory=Counter)
    judged: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(_CHECKS, 0)))
    """By check: seeds in which it had something to judge."""
    unjudged: Counter[str] = field(default_factory=Counter)
    """What the model of the tables could not be held against."""
    rooms: Counter[str] = field(default_factory=Counter)
    """Steps of rooms' own worlds."""
    failures: dict[int, list[str]] = field(default_factory=dict)
    """What was violated, by seed."""
    compared: int = 0
    mismatches: list[int] = field(default_factory=list)
    """Seeds whose second run left another trace."""
    wall_s: float = 0.0

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.simulated_s += outcome.simulated_s
        self.acknowledged += outcome.acknowledged
        self.operations += outcome.operations
        self.faults.update(outcome.faults)
        self.rare_paths.update(outcome.rare_paths)
        self.judged.update(outcome.judged)
        self.unjudged.update(outcome.unjudged)
        self.rooms.update(outcome.rooms)
        if outcome.violations:
            self.failures[outcome.seed] = outcome.violations

    def compare(self, seed: int, first: str, second: str) -> None:
        self.compared += 1
        if first != second:
            self.mismatches.append(seed)

    @property
    def violations(self) -> int:
        return sum(len(violations) for violations in self.failures.values())

    @property
    def never_reached(self) -> list[str]:
        """Rare paths that no seed came by."""
        return sorted(name for name, count in self.rare_paths.items() if not count)

    def status(self) -> int:
        """The exit status: 0 only when something was acknowledged and nothing was wrong."""
        return 1 if self.violations or self.mismatches or not self.acknowledged else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "seeds": self.seeds,
            "simulated_s": round(self.simulated_s, 3),
            "acknowledged": self.acknowledged,
            "operations": self.operations,
            "faults": dict(sorted(self.faults.items())),
            "rare_paths": dict(sorted(self.rare_paths.items())),
            "never_reached": self.never_reached,
            "judged": dict(sorted(self.judged.items())),
            "unjudged": dict(sorted(self.unjudged.items())),
            "rooms": dict(sorted(self.rooms.items())),
            "violations": self.violations,
            "trace_mismatches": len(self.mismatches),
            "traces_compared": self.compared,
            "failures": [
                {"seed": seed, "violations": violations, "replay": replay_command(seed)}
                for seed, violations in sorted(self.failures.items())
            ],
            "mismatched_seeds": sorted(self.mismatches),
            "wall_s": round(self.wall_s, 1),
        }

    def describe(self) -> list[str]:
        """Lines for people."""
        lines = [
            f"{counted(self.seeds, 'seed')}, {self.simulated_s:,.0f} simulated seconds, "
            f"{self.operations:,} operations, {self.acknowledged:,} records acknowledged",
            f"faults: {_counts(self.faults)}",
            f"rare paths: {_counts(+self.rare_paths)}",
        ]
        if self.rooms:
            lines.append(f"steps in rooms: {_counts(self.rooms)}")
        if self.never_reached:
            lines.append(f"never reached: {', '.join(self.never_reached)}")
        if idle := sorted(name for name, count in self.judged.items() if not count):
            lines.append(f"checks that had nothing to judge: {', '.join(idle)}")
        if self.unjudged:
            lines.append(f"entries without a model: {_counts(self.unjudged)}")
        if self.compared:
            lines.append(f"traces: {self.compared} compared, {len(self.mismatches)} differ")
        lines += [
            f"seed {seed} left another trace when it was run again"
            for seed in sorted(self.mismatches)
        ]
        for seed, violations in sorted(self.failures.items())[:_SHOWN_FAILURES]:
            lines += _failure(seed, violations)
        if len(self.failures) > _SHOWN_FAILURES:
            lines.append(f"… and {counted(len(self.failures) - _SHOWN_FAILURES, 'more seed')}")
        if not self.acknowledged:
            lines.append("unknown: nothing was acknowledged, so nothing was shown")
        else:
            lines.append(counted(self.violations, "violation"))
        return lines


class Progress:
    """Tells on the standard error how far a long run has come: a line that is written over on a
    terminal, else one every now and then.

    Args:
        total: runs until the end.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._told: set[int] = set()
        self._is_terminal = sys.stderr.isatty()
        self._every_s = _SHOWN_EVERY_S[self._is_terminal]
        self._started_s = self._shown_s = time.monotonic()

    def step(self, summary: Summary) -> None:
        """One more run is over."""
        self._done += 1
        # Who has them run for hours, or stops them, wants to look at what is found.
        for seed in summary.failures.keys() - self._told:
            self._told.add(seed)
            clear = "\r\x1b[K" if self._is_terminal else ""
            self._show(clear + "\n".join(_failure(seed, summary.failures[seed])) + "\n")
        now_s = time.monotonic()
        if self._done == self._total:
            self._show("\r\x1b[K" if self._is_terminal and self._shown_s > self._started_s else "")
        elif now_s >= self._shown_s + self._every_s:
            self._shown_s = now_s
            left_s = (now_s - self._started_s) / self._done * (self._total - self._done)
            left = f"{left_s / 60:.0f} min" if left_s >= 90 else f"{left_s:.0f} s"
            text = (
                f"{self._done:,} of {counted(self._total, 'run')}, "
                f"{counted(summary.violations, 'violation')}, about {left} left"
            )
            self._show(f"\r{text}\x1b[K" if self._is_terminal else f"{text}\n")

    def _show(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def _failure(seed: int, violations: list[str]) -> list[str]:
    many = counted(len(violations), "violation")
    told = [f"    {violation}" for violation in violations[:3]]
    return [f"seed {seed}: {many}; {replay_command(seed)}", *told]


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counter.most_common()) or "none"
