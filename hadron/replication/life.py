"""A member's life, as a table: what it may be, and what may follow what.

It is the member's own word, in which `hadron status` shows it, others wait for it to be at work,
and discovery is told whether a majority serves. What it does is decided elsewhere, by ballots and
by its links; a step that is not in the table means that two of those contradict each other, and is
a defect of ours. Whatever peers may send is in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Protocol

_STEPS_TOLD: Final = 8


class Life(StrEnum):
    """In the words that people read; nodes of other versions may have more."""

    STARTING = "starting"
    WAITING_FOR_LEADER = "waiting for the leader"
    FOLLOWING = "following"
    WAITING_FOR_MAJORITY = "waiting for a majority"
    RECONCILING = "reconciling"
    """From gathering promises to the ballot's first entry on a majority's disks."""
    NEEDS_SNAPSHOT = "needs a snapshot"
    SERVING = "serving"
    FENCED = "fenced"
    DAMAGED = "damaged"
    RESYNCING = "resyncing"
    """Shown for any other while a snapshot is being fetched: it goes on living that one, until it
    is opened anew on the snapshot."""


class Report(Protocol):
    """Told what a member is now, what troubles it, in words, and how many more members that
    remember the log it waits for."""

    def __call__(self, life: Life, trouble: str, memories_missing: int = 0, /) -> None: ...


_CANDIDATE: Final = frozenset({Life.WAITING_FOR_MAJORITY, Life.RECONCILING, Life.FENCED})

OF_A_REPLICA: Final[Mapping[Life, frozenset[Life]]] = {
    Life.STARTING: frozenset({Life.WAITING_FOR_LEADER}),
    Life.WAITING_FOR_LEADER: frozenset({Life.FOLLOWING}),
    Life.FOLLOWING: frozenset({Life.WAITING_FOR_LEADER}),
}

# Any of these may become FOLLOWING: the leader of a newer configuration feeds this node, and does
# not wait until it has found out that its own is old. Until then it goes on being a candidate.
OF_A_LEADER: Final[Mapping[Life, frozenset[Life]]] = {
    Life.STARTING: _CANDIDATE | {Life.FOLLOWING},
    Life.WAITING_FOR_MAJORITY: frozenset({Life.RECONCILING, Life.FENCED, Life.FOLLOWING}),
    Life.RECONCILING: frozenset(
        {
            Life.WAITING_FOR_MAJORITY,
            Life.NEEDS_SNAPSHOT,
            Life.SERVING,
            Life.FENCED,
            Life.DAMAGED,
            Life.FOLLOWING,
        }
    ),
    Life.NEEDS_SNAPSHOT: _CANDIDATE | {Life.FOLLOWING},
    Life.SERVING: frozenset({Life.FENCED, Life.DAMAGED, Life.FOLLOWING}),
    # Damage may be met while a leadership that was fenced ends.
    Life.FENCED: _CANDIDATE | {Life.DAMAGED, Life.FOLLOWING},
    Life.DAMAGED: _CANDIDATE | {Life.FOLLOWING},
    Life.FOLLOWING: _CANDIDATE | {Life.NEEDS_SNAPSHOT, Life.DAMAGED},
}


def at_work(*, leads: bool) -> Life:
    """What a member is for, by its configured role."""
    return Life.SERVING if leads else Life.FOLLOWING


class Course:
    """The life of one member, from one opening of its data directory to the next.

    Attributes:
        life: what it is now.
        trouble: what is wrong, in words; "" when nothing is.
        memories_missing: how many more members that remember the log it waits for.
    """

    def __init__(self, *, leads: bool) -> None:
        """`leads`: whether it is the configured leader."""
        self._steps = OF_A_LEADER if leads else OF_A_REPLICA
        self._role = "leader" if leads else "replica"
        self._at_work = at_work(leads=leads)
        self._story = deque([Life.STARTING], maxlen=_STEPS_TOLD)
        self.trouble = ""
        self.memories_missing = 0

    @property
    def life(self) -> Life:
        return self._story[-1]

    @property
    def is_at_work(self) -> bool:
        """Whether it does what its role is for."""
        return self.life is self._at_work

    def go(self, life: Life, trouble: str, memories_missing: int = 0) -> bool:
        """Returns whether it is another life, or only another trouble."""
        is_new = life is not self.life
        assert not is_new or life in self._steps[self.life], (
            f"a {self._role} cannot go from {self.life} to {life}; it came by "
            f"{', '.join(self._story)}"
        )
        if is_new:
            self._story.append(life)
        self.trouble = trouble
        self.memories_missing = memories_missing
        return is_new
