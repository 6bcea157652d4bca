"""The watermark's arithmetic: which lsn a majority has on disk. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from hadron.state.leadership import Configuration


class Quorum:
    """What is known to be on whose disk, under one ballot.

    Invariants: `committed` never goes down; it covers nothing before this ballot's
    `BeginBallot` is on a majority (PROTOCOL B2: Raft §5.4.2, Figure 8), of this configuration
    and of the older ones that may still count (B5); it never passes what the leader itself has on
    disk (A3).
    """

    def __init__(
        self,
        leader: str,
        members: Iterable[str],
        *,
        started_lsn: int,
        older: Iterable[Configuration] = (),
    ) -> None:
        """
        Args:
            started_lsn: where this ballot's `BeginBallot` stands.
            older: configurations of which a majority must have it as well (PROTOCOL B5).
        """
        self._leader = leader
        self._persisted = dict.fromkeys(members, 0)
        self.on_all = 0
        """What every configured member has on disk."""
        self._voters = {leader}
        self._started_lsn = started_lsn
        self._majority = len(self._persisted) // 2 + 1
        self._older = tuple(older)
        self.committed = 0

    def admit(self, member: str) -> None:
        """Count a member's disk from now on; until then it is a learner (PROTOCOL B3). `committed`
        may have moved: what it holds may be what a majority lacked."""
        self._voters.add(member)
        self._advance()

    def demote(self, member: str) -> None:
        """The member's disk is not the one that was counted before: it starts over."""
        self._voters.discard(member)
        self._persisted[member] = self.on_all = 0

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
        self.on_all = min(self._persisted.values())
        # What is committed already needs no further disk.
        return lsn > self.committed and self._advance()

    def _advance(self) -> bool:
        candidate = min(self._held_by(self._voters, self._majority), self._persisted[self._leader])
        if self.committed < self._started_lsn:
            for configuration in self._older:
                counted = self._voters & configuration.names
                candidate = min(candidate, self._held_by(counted, configuration.majority))
        if candidate <= self.committed or candidate < self._started_lsn:
            return False
        self.committed = candidate
        holders = sum(self._persisted[name] >= candidate for name in self._voters)
        assert holders >= self._majority, (candidate, self._persisted)
        return True

    def _held_by(self, names: Collection[str], count: int) -> int:
        """The highest lsn that `count` of these have on disk; 0 when they are fewer."""
        held = sorted((self._persisted[name] for name in names), reverse=True)
        return held[count - 1] if len(held) >= count else 0

    def persisted(self, member: str) -> int:
        return self._persisted[member]
