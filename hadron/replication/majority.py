"""Whether a majority follows this ballot *now*, asked once for all who want to know.

Whoever comes while a round is under way waits for the next one: what a member has answered may be
older than the question. That begins when the one before it is confirmed, or takes long. So it is a
few rounds a second at most that are never answered, however many ask.

Safety rule: a round confirms what a majority of those who count has answered to it or to a later
one (PROTOCOL A2, B3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Final

import trio

from hadron.replication.feed import Feed
from hadron.replication.quorum import Quorum

_SPACE_S: Final = 0.25
"""A round that takes longer holds up the next one no more: of a slow disk each may take seconds."""


class MajorityRounds:
    """The rounds of one ballot, numbered from 1."""

    def __init__(self, quorum: Quorum, feeds: Mapping[str, Feed], *, node: str) -> None:
        """
        Args:
            feeds: of all connected peers, by name.
            node: who leads, and follows itself.
        """
        self._quorum = quorum
        self._feeds = feeds
        self._answered = dict.fromkeys(quorum.members, 0)
        """By member: the latest round that it has answered as one who counts."""
        self._node = node
        self._begun = 0
        self._begun_s = -math.inf
        self._wanted = 0
        """The latest round that somebody waits for; at most one that has not begun."""
        self._confirmed = 0
        self._moved = trio.Event()
        self._has_ended = False

    async def confirm(self, timeout_s: float) -> tuple[int, bool]:
        """How many members follow, and whether these are a majority: none once the ballot is over,
        which ends the waiting."""
        wanted = self._wanted = self._begun + 1
        with trio.move_on_after(timeout_s):
            while True:
                self._begin_if_due()
                if self._confirmed >= wanted or self._has_ended:
                    break
                due_s = self._begun_s + _SPACE_S if self._begun < wanted else math.inf
                with trio.move_on_at(due_s):
                    await self._moved.wait()
        # Of a round that could not begin, those before it say who answers.
        asked = min(wanted, self._begun)
        return (
            sum(number >= asked for number in self._answered.values()),
            self._confirmed >= wanted,
        )

    def ask(self, feed: Feed) -> None:
        """A peer is fed, or counts, from now on: what it was asked before may be lost."""
        if self._confirmed < self._begun:
            feed.send_notice(partial(self._note, feed.name, self._begun))

    def stop(self) -> None:
        """This ballot is over: nobody waits any longer."""
        self._has_ended = True
        self._wake()

    def _begin_if_due(self) -> None:
        if self._begun >= self._wanted:
            return
        now_s = trio.current_time()
        if self._begun == self._confirmed or now_s >= self._begun_s + _SPACE_S:
            self._begun += 1
            self._begun_s = now_s
            for feed in list(self._feeds.values()):
                self.ask(feed)
            self._note(self._node, self._begun)

    def _note(self, name: str, number: int) -> None:
        """It has said that it follows, after this round had begun."""
        assert number <= self._begun
        if not self._quorum.is_voter(name) or number <= self._answered[name]:
            return
        self._answered[name] = number
        followed = sorted(self._answered.values(), reverse=True)
        confirmed = followed[len(followed) // 2]
        if confirmed > self._confirmed:
            self._confirmed = confirmed
            self._wake()
            self._begin_if_due()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = trio.Event()
