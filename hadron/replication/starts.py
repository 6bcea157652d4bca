"""Which disk, and which start of it, each peer was seen with last; remembered (PROTOCOL B3).

A disk that went back in time, a machine restored from an image for instance, looks like a member
that remembers, and has forgotten what it promised and acknowledged since. Its peers notice: every
start from a disk has a boot number above all before it, so one that comes with a number that they
have seen with another start of that disk is an old copy, and so is a disk that another one of the
same node has followed since. It counts as a node without memory, and takes another name as it
forgets. A disk that was never seen before is a new one: it says that it remembers only once it has
been taught.

The same record lets messages of an earlier start be told from those of the one that came after it,
however long they were under way.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Final

from hadron.model.errors import HandshakeError
from hadron.model.principals import NodeName, Principal
from hadron.replication.ballot import run_on_writer
from hadron.storage.identity import PeerStart
from hadron.storage.store import Store
from hadron.wire.messages import check_number, replication_pb2

_log = logging.getLogger(__name__)

_MAX_PEERS: Final = 64
"""Of whom starts are remembered: four times what a replica set may have."""


@dataclass(frozen=True, slots=True)
class CallingMember(Principal):
    """A node that shook hands, and with which of its starts."""

    node: NodeName
    start: PeerStart = field(kw_only=True)

    @property
    def name(self) -> str:
        return self.node.node


def is_old_copy(known: Sequence[PeerStart], seen: PeerStart) -> bool:
    """Whether a disk that says that it remembers must have forgotten something. Pure.

    Args:
        known: the latest start of each of the node's disks, the latest disk last.
    """
    of_disk = [index for index, each in enumerate(known) if each.disk == seen.disk]
    if not of_disk:
        return False
    (index,) = of_disk
    is_latest_disk = index == len(known) - 1
    return (seen != known[index] and seen.boot <= known[index].boot) or not is_latest_disk


def _what_came_between(known: Sequence[PeerStart], seen: PeerStart) -> str:
    """Why `is_old_copy` says so, in words."""
    of_disk = next(each for each in known if each.disk == seen.disk)
    name = seen.disk.hex()[:8]
    if of_disk != known[-1]:
        return f"since it was on disk {name} it has been on disk {known[-1].disk.hex()[:8]}"
    if of_disk.boot == seen.boot:
        return f"this is another start {seen.boot} of disk {name} than the one seen before"
    return f"this is start {seen.boot} of disk {name}, and start {of_disk.boot} was seen before"


class PeerStarts:
    """Remembers, in `node.db`, what the peers have shown of their starts."""

    def __init__(self, store: Store, own: bytes, members: Container[str]) -> None:
        """
        Args:
            own: random, minted when this node started: tells two starts of one number apart.
            members: names that have a place here whoever else has been heard of.
        """
        self._store = store
        self.own = own
        self._members = members

    def check_room(self, name: str) -> None:
        """Raises `HandshakeError` for one stranger too many: nodes of another epoch are members of
        a configuration that this node has not seen, and nobody can tell them from liars."""
        known = self._store.identity.peer_starts
        if name not in self._members and name not in known and len(known) >= _MAX_PEERS:
            raise HandshakeError(
                f"node {name} is in no configuration of this node, and {len(known)} such names "
                "were heard of before",
                "hand the latest configuration out to every node",
                retryable=True,
            )

    async def note(self, peer: replication_pb2.HandshakeRequest) -> bool:
        """A peer has said who it is. Returns whether its disk is an old copy; otherwise its start
        is remembered, on disk, before this returns."""
        identity = self._store.identity
        seen = _start_of(peer)
        known = identity.peer_starts.get(peer.node, ())
        if peer.is_member and is_old_copy(known, seen):
            _log.warning(
                "the disk of %s is an old copy, or this is an earlier start: %s; it counts once it "
                "has been taught",
                peer.node,
                _what_came_between(known, seen),
            )
            return True
        if not known or seen != known[-1]:
            await run_on_writer(self._store, lambda _: identity.remember_start(peer.node, seen))
        return False

    def caller(self, peer: replication_pb2.HandshakeRequest) -> CallingMember:
        return CallingMember(NodeName(peer.replica_set, peer.node), start=_start_of(peer))

    def is_latest(self, caller: CallingMember) -> bool:
        """Whether nothing is known of a later start than the caller's."""
        known = self._store.identity.peer_starts.get(caller.name, ())
        return bool(known) and known[-1] == caller.start


def _start_of(peer: replication_pb2.HandshakeRequest) -> PeerStart:
    return PeerStart(peer.disk, check_number("boot", peer.boot), peer.start)
