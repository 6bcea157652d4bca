"""The watermark's arithmetic: which lsn a majority has on disk. Pure."""

from __future__ import annotations

from collections.abc import Iterable


class Quorum:
    """What is known to be on whose disk, under one ballot.

    Invariants: `committed` never goes down; it covers nothing before this ballot's
    `LeaderStarted` is on a majority (PROTOCOL B2: Raft §5.4.2, Figure 8); it never passes what
    the leader itself has on disk (PROTOCOL A3).
    """

    def __init__(self, leader: str, members: Iterable[str], *, started_lsn: int) -> None:
        """`started_lsn`: where this ballot's `LeaderStarted` stands."""
        self._leader = leader
        self._persisted = dict.fromkeys(members, 0)
        self._voters = {leader}
        self._started_lsn = started_lsn
        self._majority = len(self._persisted) // 2 + 1
        self.committed = 0

    def admit(self, member: str) -> bool:
        """Count a member's disk from now on; until then it is a learner (PROTOCOL B3).

        Returns whether `committed` moved: what it holds may be what a majority lacked.
        """
        self._voters.add(member)
        return self._advance()

    def demote(self, member: str) -> None:
        """The member's disk is not the one that was counted before: it starts over."""
        self._voters.discard(member)
        self._persisted[member] = 0

    def is_voter(self, member: str) -> bool:
        return member in self._voters

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(self._persisted)

    def record(self, member: str, lsn: int) -> bool:
        """`member` has everything up to `lsn` on disk; returns whether `committed` moved.

        An lsn below one recorded before is a late message and changes nothing.
        """
        if lsn <= self._persisted[member]:
            return False
        self._persisted[member] = lsn
        return self._advance()

    def _advance(self) -> bool:
        voting = sorted((self._persisted[name] for name in self._voters), reverse=True)
        if len(voting) < self._majority:
            return False
        candidate = min(voting[self._majority - 1], self._persisted[self._leader])
        if candidate <= self.committed or candidate < self._started_lsn:
            return False
        self.committed = candidate
        return True

    def persisted(self, member: str) -> int:
        return self._persisted[member]

    @property
    def on_all(self) -> int:
        """What every configured member has on disk."""
        return min(self._persisted.values())
