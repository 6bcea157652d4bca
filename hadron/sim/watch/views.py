"""What is known of each node, and of each question that it was asked."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import apsw

from hadron.fakes.volume import Volume
from hadron.model.ids import Ballot
from hadron.partition.controller import Controller
from hadron.replication.follower import FollowerLog
from hadron.storage.identity import Identity
from hadron.storage.store import Store

SHOWN = 3
"""Violations told per rule: one defect breaks it again and again."""


@dataclass(slots=True, eq=False)
class NodeView:
    """A node from one opening of its data directory to the next.

    Attributes:
        follower, controller: as soon as there are any; the latest.
        is_fsynced: whether its commits survive a power failure, as it is configured.
        start_applied: where its tables were when it opened them.
        told_lsn: the highest watermark that it was told, or had noted.
        is_ahead: it has led in this view, or tried to: its tables may be ahead of the watermark.
        whole_lsn: up to where its log was seen to have no hole when it acknowledged that.
        wrote: whether its latest append brought entries that it did not have.
        has_ended: it was stopped in good order, with all that it had on its disk.
    """

    name: str
    store: Store
    volume: Volume
    is_fsynced: bool = True
    follower: FollowerLog | None = None
    controller: Controller | None = None
    start_applied: int = 0
    told_lsn: int = 0
    is_ahead: bool = False
    whole_lsn: int = 0
    wrote: bool = False
    has_ended: bool = False

    @property
    def is_alive(self) -> bool:
        return not self.volume.is_dead

    @property
    def identity(self) -> Identity:
        return self.store.identity.current

    @property
    def replica_set(self) -> str:
        return self.identity.replica_set

    @property
    def committed_lsn(self) -> int:
        """The watermark as this node knows it."""
        known = self.follower.committed_lsn if self.follower is not None else 0
        if self.controller is not None and self.controller.leads:
            known = max(known, self.controller.quorum.committed)
        return known

    def lacks_commit(self) -> bool:
        """Whether something of its log is not yet as safe as it is to be."""
        return self.store.writer.connection.in_transaction or (
            self.is_fsynced and bool(self.unsynced(f"{self.store.path}-wal"))
        )

    def unsynced(self, *names: str) -> list[str]:
        """Which of these files have writes that are not on the platter."""
        found = []
        for name in names:
            path = name if os.path.isabs(name) else str(self.store.directory / name)
            try:
                file = self.volume.files.get(os.stat(path).st_ino)
            except FileNotFoundError:
                continue
            if file is not None and file.pending:
                found.append(os.path.basename(path))
        return found

    def select(self, query: str, *values: Any) -> Any:
        """The first row, as the writer has it; None when there is none, or no asking: a damaged
        disk, a closed file. A query that does not fit the tables is nobody's damage."""
        try:
            with self.volume.unharmed():
                return self.store.writer.connection.execute(query, values).fetchone()
        except apsw.SQLError:
            raise
        except apsw.Error:
            return None


@dataclass(slots=True, eq=False)
class Question:
    """A call that a node serves.

    Attributes:
        order: of its arrival, among everything that is numbered.
        applied_lsn: of the node's tables then.
        promised: by the node then.
        controller: its leadership's then.
    """

    view: NodeView
    service: str
    method: str
    message: Any
    order: int
    applied_lsn: int
    promised: Ballot
    controller: Controller | None


@dataclass(slots=True)
class Complaints:
    """Rules that were broken, in words."""

    found: list[str] = field(default_factory=list)
    _counts: dict[str, int] = field(default_factory=dict)

    def add(self, rule: str, text: str) -> None:
        count = self._counts[rule] = self._counts.get(rule, 0) + 1
        if count <= SHOWN:
            self.found.append(f"{rule}: {text}")


Told = Callable[[Any, Any], None]
