"""Noticing that no majority confirms what the leader has on its own disk.

What its own disk does not finish is told by `storage.stalls`, here and at each replica.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import trio

from hadron.replication.feed import Feed
from hadron.replication.quorum import Quorum
from hadron.storage.stalls import LOOK_EVERY_S, STALLED_S, Stall

_COUNTED_S: Final = 2 * LOOK_EVERY_S
"""Of the time between two looks. In more than that this process stood still itself, and has not
heard what others said meanwhile."""


class MajorityStalls:
    """Watches one entry at a time. `run` must be running."""

    def __init__(self, quorum: Quorum, feeds: Mapping[str, Feed], *, node: str) -> None:
        """
        Args:
            feeds: of all connected peers, by name.
            node: who leads.
        """
        self._quorum = quorum
        self._feeds = feeds
        self._node = node
        self._lsn = 0
        """The entry that is watched: on the leader's disk, and not known to be on a majority's."""
        self._waited_s = 0.0
        self._late = ""
        """Whom it waited for, at the latest look."""
        self._looked_s = -math.inf
        self._stall = Stall("a majority confirms entries in time again")

    @property
    def trouble(self) -> str:
        """That a majority does not confirm an entry, in words; "" while it does."""
        return self._stall.trouble

    def look(self) -> None:
        """See how long an entry has been waiting."""
        now_s = trio.current_time()
        passed_s, self._looked_s = min(now_s - self._looked_s, _COUNTED_S), now_s
        trouble = ""
        if self._lsn > self._quorum.committed:
            self._waited_s += passed_s
            self._late = self._who_is_late()
            if self._waited_s >= STALLED_S:
                trouble = (
                    f"entry {self._lsn} has been waiting for a majority's disks for "
                    f"{self._waited_s:.0f} s: {self._late}"
                )
        else:
            if self._waited_s >= STALLED_S:
                trouble = (
                    f"entry {self._lsn} had to wait for a majority's disks for "
                    f"{self._waited_s:.0f} s; meanwhile {self._late}"
                )
            own = self._quorum.persisted(self._node)
            self._lsn = own if own > self._quorum.committed else 0
            self._waited_s = 0.0
        self._stall.note(now_s, trouble)

    def _who_is_late(self) -> str:
        names = [
            name
            for name in self._quorum.members
            if name != self._node
            and not (self._quorum.is_voter(name) and self._quorum.persisted(name) >= self._lsn)
        ]
        groups = {
            "not confirmed it": [name for name in names if self._answers(name)],
            "to catch up before {} count{}": [name for name in names if self._learns(name)],
            "no connection to this node": [name for name in names if name not in self._feeds],
        }
        return ", ".join(_have(who, what) for what, who in groups.items() if who)

    def _answers(self, name: str) -> bool:
        return name in self._feeds and self._quorum.is_voter(name)

    def _learns(self, name: str) -> bool:
        return name in self._feeds and not self._quorum.is_voter(name)

    async def run(self) -> None:
        """Look now and then, for ever."""
        while True:
            await trio.sleep(LOOK_EVERY_S)
            self.look()


def _have(names: list[str], what: str) -> str:
    one = len(names) == 1
    what = what.format("it" if one else "they", "s" if one else "")
    return f"{' and '.join(names)} {'has' if one else 'have'} {what}"
