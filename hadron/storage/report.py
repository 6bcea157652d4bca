"""What a verification finds, and what each of its checks is: for all rooms that bring one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import apsw

SLICE_ROWS: Final = 500
SLICE_BYTES: Final = 2 << 20
"""What one slice reads at most: some 10 ms, so that nobody who waits for the WAL notices."""

NAMED_PROBLEMS: Final = 1_000
"""Problems that a report spells out; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        text: what, in words, naming the values.
        table: where, "" when it is about the file as a whole.
        lsn: the entry, 0 when it is not about one.
        stream_id, offset: the record, -1 when it is not about one.
        is_unreadable: SQLite itself cannot make sense of the file there; no row says anything.
    """

    text: str
    table: str = ""
    lsn: int = 0
    stream_id: int = -1
    offset: int = -1
    is_unreadable: bool = False


@dataclass(slots=True)
class Report:
    """What was looked at, and what was found.

    Attributes:
        first_lsn, last_lsn: the entries that were checked.
        chain: the chain at `last_lsn`, hex.
        entries, bodies, batches: how many were checked.
        bytes: of commands and bodies read.
        dropped_bodies: entries whose body retention has dropped.
        tables: how many rows of each table were compared with what the log makes of it.
        checked: what kinds of checks were made.
        skipped: what was not done, and why.
        problems: the first `NAMED_PROBLEMS`; `problem_count` counts all.
    """

    first_lsn: int = 1
    last_lsn: int = 0
    chain: str = ""
    committed_lsn: int = 0
    applied_lsn: int = 0
    entries: int = 0
    bodies: int = 0
    batches: int = 0
    bytes: int = 0
    dropped_bodies: int = 0
    tables: dict[str, int] = field(default_factory=dict)
    checked: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0

    @property
    def ok(self) -> bool:
        return not self.problem_count

    def add(self, text: str, **where: Any) -> None:
        """Note a problem; `where` are the other attributes of `Problem`."""
        self.problem_count += 1
        if len(self.problems) < NAMED_PROBLEMS:
            self.problems.append(Problem(text, **where))


class Check(Protocol):
    """A check that is made in slices."""

    name: str

    def step(self, db: apsw.Connection) -> bool:
        """Look at one slice, inside a read transaction; whether that was the last one."""
        ...
