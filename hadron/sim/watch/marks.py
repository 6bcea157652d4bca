"""What each ballot has really reached: who promised it, and what whose disk has of its log."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from hadron.model.ids import Ballot
from hadron.partition.controller import Controller
from hadron.sim.watch.views import NodeView

Key = tuple[str, Ballot]
"""A replica set's name, and a ballot of its leaders."""


@dataclass(slots=True, eq=False)
class Mark:
    """A leadership, as its messages show it.

    Attributes:
        older: members of the latest configuration before this one that is known to have begun;
            empty when it is this one. A majority of them must have the first entry as well.
        acked: the highest lsn that a member has said to be on its disk, as one that counts.
        taught: the same of members without memory: (the disk, lsn). They count once that disk does.
        written_lsn: what the leader's own disk has.
        rounds: of each peer that counts, the number of the latest message that it has answered.
        sent: appends so far.
    """

    key: Key
    view: NodeView
    controller: Controller
    members: tuple[str, ...]
    started_lsn: int
    written_lsn: int
    older: frozenset[str] = frozenset()
    acked: dict[str, int] = field(default_factory=dict)
    taught: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    sent: int = 0
    true_lsn: int = 0
    checked_lsn: int = 0
    trims: set[int] = field(default_factory=set)

    @property
    def majority(self) -> int:
        return len(self.members) // 2 + 1

    def held_by(self, names: Iterable[str], views: dict[str, NodeView]) -> list[int]:
        """What these have on disk and count with, the highest first."""
        found = []
        for name in names:
            if name == self.view.name:
                found.append(self.written_lsn)
                continue
            lsn = self.acked.get(name, 0)
            disk, taught = self.taught.get(name, (b"", 0))
            view = views.get(name)
            if taught > lsn and view is not None:
                identity = view.identity
                if identity.is_member and identity.disk == disk:
                    lsn = taught
            found.append(lsn)
        return sorted(found, reverse=True)

    def reach(self, views: dict[str, NodeView]) -> int:
        """How far a majority has this ballot's log now; never goes back."""
        held = self.held_by(self.members, views)
        lsn = min(held[self.majority - 1], self.written_lsn)
        if self.true_lsn < self.started_lsn and self.older:
            before = self.held_by(sorted(self.older), views)
            lsn = min(lsn, before[len(self.older) // 2])
        if lsn >= self.started_lsn:
            self.true_lsn = max(self.true_lsn, lsn)
        return self.true_lsn

    def on_all(self) -> int:
        """What every member has said to have."""
        lowest = self.written_lsn
        for name in self.members:
            if name != self.view.name:
                _, taught = self.taught.get(name, (b"", 0))
                lowest = min(lowest, max(self.acked.get(name, 0), taught))
        return lowest


def is_majority(names: Collection[str], of: Collection[str]) -> bool:
    """Whether more than half of `of` are among the names; half of an even number is not."""
    return len(set(names) & set(of)) > len(of) / 2
