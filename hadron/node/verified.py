"""What a verification of files, or of running nodes, has found: for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hadron.storage.identity import Owner
from hadron.storage.report import Report


@dataclass(slots=True)
class VerifiedFile:
    """One file and what was found in it. `owner` is None without a `node.db`, or a backup's
    manifest, beside it."""

    path: Path
    owner: Owner | None
    live: bool
    report: Report
    is_backup: bool = False
    remedy: str = ""
    """What a running node does about its problems, in words that follow its name."""

    @property
    def name(self) -> str:
        """What people call it: its node, or its path."""
        if self.owner is None:
            return str(self.path)
        return f"the backup of {self.owner.node}" if self.is_backup else self.owner.node


@dataclass(slots=True)
class Agreement:
    """How far the logs of one replica set's files are the same.

    Attributes:
        lsn: the highest entry at which all of them have the same chain.
        problem: "" unless they differ where both say that it is committed.
    """

    replica_set: str
    names: list[str]
    lsn: int
    chain: str
    problem: str = ""


@dataclass(slots=True)
class Apart:
    """Files that could not be compared with others of their replica set.

    Attributes:
        why: in words that follow `names`.
        is_problem: they are members' files that cannot both be members of one set.
    """

    replica_set: str
    names: list[str]
    why: str
    is_problem: bool = False


@dataclass(slots=True)
class TableComparison:
    """Whether running replicas hold the same rows as their leader.

    Attributes:
        rows: how many were compared.
        is_complete: these were all of them.
        members: whose tables are the same.
        problems: about the others, in words.
    """

    replica_set: str
    leader: str
    rows: int = 0
    is_complete: bool = False
    members: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Verified:
    """All files, and the comparison of those that belong together."""

    files: list[VerifiedFile] = field(default_factory=list)
    agreements: list[Agreement] = field(default_factory=list)
    apart: list[Apart] = field(default_factory=list)
    """What stands in no agreement, with the reason; empty for a file on its own."""
    tables: list[TableComparison] = field(default_factory=list)
    """Of running nodes."""

    @property
    def problem_count(self) -> int:
        return (
            sum(file.report.problem_count for file in self.files)
            + sum(bool(agreement.problem) for agreement in self.agreements)
            + sum(each.is_problem for each in self.apart)
            + sum(len(comparison.problems) for comparison in self.tables)
        )

    @property
    def ok(self) -> bool:
        return not self.problem_count
