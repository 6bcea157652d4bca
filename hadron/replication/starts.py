"""Which start of each peer was seen last, remembered on disk (PROTOCOL B3).

A disk that went back in time, a machine restored from an image for instance, looks like a member
that remembers, and has forgotten what it promised and acknowledged since. Its peers notice: every
start of a node has a boot number above all before it, so one that comes with a number that they
have seen with another start is an old copy, and counts as a node without memory.

The same record lets messages of an earlier start be told from those of the one that came after it,
however long they were under way.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from hadron.replication.ballot import run_on_writer
from hadron.storage.identity import PeerStart
from hadron.storage.store import Store
from hadron.wire.messages import check_number, replication_pb2

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who shook hands on a connection, and with which of its starts."""

    name: str
    start: PeerStart


def is_old_copy(known: PeerStart | None, seen: PeerStart) -> bool:
    """Whether a disk that says that it remembers must have forgotten something. Pure."""
    return known is not None and seen != known and seen.boot <= known.boot


class PeerStarts:
    """Remembers what `node.db` keeps of the peers' starts."""

    def __init__(self, store: Store, own: bytes) -> None:
        """
        Args:
            own: random, minted when this node started: tells two starts of one number apart.
        """
        self._store = store
        self.own = own

    async def note(self, peer: replication_pb2.HandshakeRequest) -> bool:
        """A peer has said who it is. Returns whether its disk is an old copy; otherwise its start
        is remembered, on disk, before this returns."""
        identity = self._store.identity
        seen = PeerStart(check_number("boot", peer.boot), peer.start)
        known = identity.peer_starts.get(peer.node)
        if peer.is_member and is_old_copy(known, seen):
            assert known is not None
            _log.warning(
                "the disk of %s is an old copy, or it is an earlier start of it: this is its start "
                "%d, start %d was seen before; it counts once it has been taught",
                peer.node, seen.boot, known.boot,
            )
            return True
        if seen != known:
            await run_on_writer(
                self._store, lambda _: identity.remember_start(peer.node, seen)
            )
        return False

    def caller(self, peer: replication_pb2.HandshakeRequest) -> Caller:
        return Caller(peer.node, PeerStart(check_number("boot", peer.boot), peer.start))

    def is_latest(self, caller: Caller) -> bool:
        """Whether nothing is known of a later start than the caller's."""
        return self._store.identity.peer_starts.get(caller.name) == caller.start
