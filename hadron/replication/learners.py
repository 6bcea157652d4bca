"""Peers without memory, and when each counts again (PROTOCOL B3).

Safety rule: who has lost its memory may have promised a higher ballot with it. It counts once it
has caught up with the watermark and with this ballot's first entry (all that may have been
committed comes before), and so many others as meet every majority have said since it came back
that they follow this ballot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hadron.replication.feed import Feed
from hadron.replication.quorum import Quorum
from hadron.state.leadership import Configuration


@dataclass(slots=True)
class _Learner:
    """`heard` are the voters that have confirmed this ballot since it came back."""

    name: str
    uuid: bytes
    heard: set[str]


class Learners:
    """Those that are taught under one ballot."""

    def __init__(
        self,
        quorum: Quorum,
        feeds: Mapping[str, Feed],
        *,
        node: str,
        started_lsn: int,
        older: Iterable[Configuration] = (),
        begins_epoch: bool = False,
    ) -> None:
        """
        Args:
            feeds: of all connected peers, by name.
            node: who leads, and is heard.
            started_lsn: where this ballot's BeginBallot will stand.
            older: configurations of which a majority must store that as well (PROTOCOL B5).
            begins_epoch: nobody has led with this configuration before.
        """
        self._quorum = quorum
        self._feeds = feeds
        self._node = node
        self._started_lsn = started_lsn
        self._older = tuple(older)
        self._begins_epoch = begins_epoch
        self._learners: dict[str, _Learner] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._learners

    def teach(self, feed: Feed, uuid: bytes) -> None:
        """Feed a peer without memory: it does not count until it is granted that."""
        self._quorum.demote(feed.name)
        learner = _Learner(feed.name, uuid, {self._node})
        self._learners[feed.name] = learner
        for other in list(self._feeds.values()):
            self._hear(learner, other)

    def ask(self, feed: Feed) -> None:
        """A peer is fed, or counts, from now on: it can be heard for all that are taught."""
        for learner in self._learners.values():
            self._hear(learner, feed)

    def forget(self, name: str) -> bool:
        """It is not taught any more; returns whether it was."""
        return self._learners.pop(name, None) is not None

    def note_persisted(self, name: str, match_lsn: int) -> None:
        if name in self:
            self._grant_if_caught_up(name, match_lsn)

    def _hear(self, learner: _Learner, feed: Feed) -> None:
        def follows() -> None:
            if self._learners.get(learner.name) is learner and self._quorum.is_voter(feed.name):
                learner.heard.add(feed.name)
                self._grant_if_caught_up(learner.name, self._quorum.persisted(learner.name))

        if feed.name != learner.name:
            feed.send_notice(follows)

    def _has_heard_enough(self, learner: _Learner) -> bool:
        """Until the first entry of an epoch is committed, its members cannot have stored anything
        without the older ones: those must be heard then."""
        committed = self._quorum.committed >= self._started_lsn
        if not committed and not all(
            len(learner.heard & known.names) >= known.amnesia_quorum for known in self._older
        ):
            return False
        members = self._quorum.members
        needed = len(members) - len(members) // 2
        return len(learner.heard) >= needed or (self._begins_epoch and not committed)

    def _grant_if_caught_up(self, name: str, match_lsn: int) -> None:
        learner = self._learners[name]
        feed = self._feeds.get(name)
        if (
            feed is not None
            and self._has_heard_enough(learner)
            and max(self._quorum.committed, self._started_lsn) <= match_lsn
        ):
            feed.grant_membership(learner.uuid)
