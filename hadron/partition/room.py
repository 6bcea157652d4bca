"""Whether a leader may log ordinary commands: its own disk has room, and a majority's have.

A majority without room would take records that it cannot drop again: retention is logged too, and
needs the reserve of each disk that is to store it (PROTOCOL B7).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

import trio

from hadron.model.errors import DiskFullError
from hadron.replication.feed import Feed
from hadron.storage.space import Space

_log = logging.getLogger(__name__)

_ASK_AGAIN_S: Final = 1.0
"""A replica tells of its room when it answers; without writes nobody would ask."""


class Room:
    """The room on the members' disks, as their answers tell. `run` must be running."""

    def __init__(self, own: Space, members: Sequence[str]) -> None:
        """
        Args:
            members: all names, this node's as well.
        """
        self._own = own
        self._most_low = len(members) - (len(members) // 2 + 1)
        self._low: dict[str, None] = {}
        self._is_some_low = trio.Event()

    @property
    def is_low(self) -> bool:
        """Ordinary commands are to be refused."""
        return self._own.is_low or len(self._low) > self._most_low

    def refusal(self) -> DiskFullError:
        """What to tell those whose commands are refused."""
        if self._own.is_low:
            return self._own.refusal()
        return DiskFullError(
            f"the disks of {', '.join(sorted(self._low))} have no room for more, and the others "
            "are no majority",
            "make room on those disks; `hadron status` shows how much is missing",
        )

    def note(self, name: str, *, is_low: bool) -> None:
        """What a peer says of its disk; one that has gone says nothing."""
        if not is_low:
            self._low.pop(name, None)
        elif name not in self._low:
            _log.warning("%s is low on disk space", name)
            self._low[name] = None
            self._is_some_low.set()

    async def run(self, feeds: Mapping[str, Feed]) -> None:
        """Ask those that are low how they are, for ever."""
        while True:
            await self._is_some_low.wait()
            self._is_some_low = trio.Event()
            while self._low:
                await trio.sleep(_ASK_AGAIN_S)
                for name in list(self._low):
                    if (feed := feeds.get(name)) is not None:
                        feed.send_notice()
