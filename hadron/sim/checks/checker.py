"""The judge: holds a history and the nodes' files against what Hadron promises (PROTOCOL C).

Pure. Each check is a function from `Evidence` to violations, in a module by what it looks at:
`logs` (acknowledged records and the log), `tables` (what the log makes), `reads`
(what readers were shown), `groups` (consumer groups), `letters` (what became of records
that nobody could use), `bounds` (time and retention), `pipelines` (instances and their
outputs), `transactions` (all or nothing, and once). A history in which nothing was
acknowledged proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal

from hadron.sim.checks import bounds, groups, letters, logs, pipelines, reads, tables, transactions
from hadron.sim.evidence.evidence import SECOND, Evidence, Rules, Violation
from hadron.sim.evidence.history import Deliver, History, Publish, Read, Settle
from hadron.sim.evidence.node_files import NodeFile

Check = Callable[[Evidence], Iterable[Violation]]

SHOWN: Final = 5
"""Violations told per check; one defect breaks a promise for many records."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome: "valid", "invalid" with its violations, or "unknown"."""

    status: Literal["valid", "invalid", "unknown"]
    violations: tuple[Violation, ...]
    acknowledged: int
    """Records whose publish was acknowledged."""
    operations: int
    """What clients asked for, deliveries included."""
    read: int
    delivered: int
    judged: frozenset[str]
    """The checks that had something to judge."""

    @classmethod
    def of(
        cls, history: History, violations: Sequence[Violation], judged: Collection[str]
    ) -> Verdict:
        """What the history amounts to, with these violations."""
        acknowledged = sum(
            len(publish.values) for publish in history.of(Publish) if publish.outcome == "ok"
        )
        operations = sum(
            len(entry.values) if isinstance(entry, Publish | Deliver) else 1
            for entry in history.entries
            if isinstance(entry, Publish | Deliver | Read | Settle)
        )
        return cls(
            "invalid" if violations else "valid" if acknowledged else "unknown",
            tuple(violations),
            acknowledged,
            operations,
            sum(len(read.values) for read in history.of(Read)),
            sum(len(delivery.values) for delivery in history.of(Deliver)),
            frozenset(judged),
        )

    def __str__(self) -> str:
        what = "; ".join(map(str, self.violations))
        return f"{self.status}, {self.acknowledged} acknowledged{': ' if what else ''}{what}"


def progress(evidence: Evidence) -> Iterable[Violation]:
    """After healing, publishes succeed again within the bound."""
    heals = evidence.history.events("heal")
    bound_s = evidence.rules.progress_s
    if not heals or bound_s is None:
        return
    healed = heals[-1].at
    evidence.judged["progress"] += 1
    ends = [publish.ended for publish in evidence.acknowledged if publish.began > healed]
    if not ends:
        yield Violation("progress", "no publish that began after the last heal succeeded")
    elif min(ends) - healed > bound_s * SECOND:
        took_s = (min(ends) - healed) / SECOND
        yield Violation("progress", f"the first publish took {took_s:.1f} s, not {bound_s:g}")


def no_unprovoked_stop(evidence: Evidence) -> Iterable[Violation]:
    """A node stops itself when its disk failed, and for nothing else."""
    evidence.judged["no_unprovoked_stop"] += 1
    for name, reason in sorted(evidence.rules.stops.items()):
        yield Violation("no_unprovoked_stop", f"{name} stopped: {reason}")


def nothing_is_owed(evidence: Evidence) -> Iterable[Violation]:
    """Nodes at rest have done what they put off: dropped what was deleted and what is too old, let
    go of their logs, and heard of the schema."""
    evidence.judged["nothing_is_owed"] += 1
    for name, debts in sorted(evidence.rules.owed.items()):
        for debt in debts:
            yield Violation("nothing_is_owed", f"{name} owes {debt}")


CHECKS: Final[tuple[Check, ...]] = (
    *logs.CHECKS,
    *tables.CHECKS,
    *reads.CHECKS,
    *groups.CHECKS,
    *letters.CHECKS,
    *bounds.CHECKS,
    *pipelines.CHECKS,
    *transactions.CHECKS,
    progress,
    no_unprovoked_stop,
    nothing_is_owed,
)


def check(history: History, files: Sequence[NodeFile], rules: Rules) -> Verdict:
    """Judge a history by the files that it left behind."""
    return check_evidence(Evidence(history, list(files), rules))


def check_evidence(evidence: Evidence) -> Verdict:
    violations: list[Violation] = []
    for judge in CHECKS:
        violations.extend(islice(judge(evidence), SHOWN))
    return Verdict.of(evidence.history, violations, evidence.judged)
