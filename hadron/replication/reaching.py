"""Reaching each member while it is connected: its promise, where the logs part, its feed.

What the log cannot bring up to date any more is told to fetch a snapshot, again and again until it
comes back with one (PROTOCOL B6).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

from hadron.model.backoff import Backoff
from hadron.model.errors import DiskFullError, FencedError, HadronError, PeerError, TrimmedError
from hadron.model.ids import LogPosition
from hadron.model.ports import Random
from hadron.replication.ballot import OutbidError, ask_position, ask_promise, ask_resync
from hadron.replication.feed import Feed, find_common
from hadron.replication.feeding import Feeding
from hadron.replication.membership import Membership
from hadron.replication.peers import PeerLink, PeerLinks
from hadron.storage.log import position_at
from hadron.storage.store import Store

_log = logging.getLogger(__name__)

_SNAPSHOT_PAUSE_S: Final = 1.0
"""Before a peer that needs a snapshot is looked at again."""

_PAUSE_S: Final = 0.05
"""Before a peer is fed again whose feed has ended."""

_LONGEST_PAUSE_S: Final = 4.0
"""The same, of one that has refused a whole window of entries for want of room, again and again."""


class Reaching:
    """Feeds peers over their links, under one ballot."""

    def __init__(
        self,
        feeding: Feeding,
        membership: Membership,
        store: Store,
        links: PeerLinks,
        *,
        uuid: bytes,
        window_bytes: int,
        random: Random,
        on_outbid: Callable[[FencedError], None],
    ) -> None:
        """
        Args:
            uuid: of the replica set.
            on_outbid: told that another ballot is needed.
        """
        self._feeding = feeding
        self._membership = membership
        self._store = store
        self._links = links
        self._uuid = uuid
        self._window_bytes = window_bytes
        self._random = random
        self._on_outbid = on_outbid

    async def run(self, link: PeerLink) -> None:
        """Feed a peer whenever it is connected."""
        told, lacks_room = "", False
        pauses = Backoff(self._random, _PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            changed = self._links.changed
            if link.connection is not None:
                try:
                    await self._feed(link, has_room=not lacks_room)
                except OutbidError as error:
                    # Promised before this ballot was won, by a member that was away: start over
                    # above it.
                    self._on_outbid(FencedError(error.message, "another ballot is needed"))
                    return
                except TrimmedError as error:
                    await self._send_to_snapshot(link, error)
                    # It comes back with a new connection once it has been reopened.
                    with trio.move_on_after(_SNAPSHOT_PAUSE_S):
                        await changed.wait()
                except HadronError as error:
                    lacks_room = isinstance(error, DiskFullError)
                    # Why it ends again and again, a few times a second, is said once; of a full
                    # disk it has other numbers each time.
                    why = type(error).__name__ if lacks_room else str(error)
                    if why != told:
                        told = why
                        _log.warning("feeding %s ended: %s", link.name, error)
                if not lacks_room:
                    pauses.reset()
                await trio.sleep(pauses.next_s() if lacks_room else _PAUSE_S)
            else:
                told, lacks_room = "", False
                pauses.reset()
                self._feeding.peer_space(link.name, is_low=False)
                await changed.wait()

    async def _send_to_snapshot(self, link: PeerLink, error: TrimmedError) -> None:
        """The log cannot bring the peer up to date any more."""
        feeding = self._feeding
        if feeding.note_straggler(link.name, str(error)):
            _log.warning("%s needs a snapshot: %s", link.name, error)
        if link.connection is not None:
            try:
                # As of now: an older copy might need what is trimmed since.
                await ask_resync(
                    link.connection, feeding.ballot, error.message, feeding.written_lsn
                )
            except HadronError as refusal:
                _log.info("%s does not fetch a snapshot: %s", link.name, refusal)

    async def _feed(self, link: PeerLink, *, has_room: bool) -> None:
        connection = link.connection
        if connection is None:
            return
        feeding, ballot = self._feeding, self._feeding.ballot
        promised = await ask_promise(connection, self._membership, ballot, self._uuid)
        if link.connection is connection and link.answer is not None:
            # It may have learnt since its handshake that its disk is an old copy.
            link.answer.is_member = promised.is_member
        match = await find_common(
            self._own_position,
            lambda lsn: ask_position(connection, ballot, lsn),
            max(self._store.log.anchor.lsn, promised.first_lsn - 1),
            min(promised.last.lsn, feeding.written_lsn),
            likely=promised.last,
        )
        if link.connection is not connection:
            # What it says on another one may be of another disk.
            raise PeerError(f"{link.name} went away")
        feed = Feed(
            feeding,
            link.name,
            connection,
            match,
            window_bytes=self._window_bytes,
            has_room=has_room,
        )
        self._admit(link, feed)
        if has_room:
            _log.info(
                "feeding %s, which has %d of %d entries", link.name, match.lsn, feeding.written_lsn
            )
        feeding.attach(feed)
        try:
            await feed.run()
        finally:
            feeding.detach(feed)
            if link.connection is connection and link.answer is not None:
                # It may have been taught meanwhile.
                link.answer.is_member = feeding.quorum.is_voter(link.name)

    def _admit(self, link: PeerLink, feed: Feed) -> None:
        """Count the peer's disk, or teach it first (PROTOCOL B3)."""
        if link.answer is not None and link.answer.is_member:
            self._feeding.admit(link.name)
        else:
            _log.info("%s has an empty or new disk; it counts once it has caught up", link.name)
            self._feeding.teach(feed, self._uuid)

    async def _own_position(self, lsn: int) -> LogPosition | None:
        return await self._store.readers.run(lambda db: position_at(db, lsn))
