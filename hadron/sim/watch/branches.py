"""PROTOCOL A3, B6, B3: what was committed, entry by entry, and who calls something so that was not.

What leaders have sent is a tree: each entry's chain has one predecessor. Of each replica set one
branch was committed, up to where a majority had it. A number alone says little: another leader's
entry may have that number, and be the one that counts.
"""

from __future__ import annotations

from typing import Any

from hadron.model.ids import LogPosition
from hadron.partition.controller import Controller
from hadron.partition.group_commit import GroupCommit
from hadron.sim.watch.ballots import Ballots
from hadron.sim.watch.marks import Key
from hadron.sim.watch.views import Complaints, NodeView
from hadron.storage.log import hash_body
from hadron.storage.snapshot import Manifest
from hadron.wire.messages import ballot_from


class Branches:
    """What leaders have sent, and what of it was committed.

    Attributes:
        before: by an entry's chain, the chain of the one before.
        bodies: by an entry's chain, the hash of its body.
        committed: by replica set and lsn, the chain of what was committed there.
    """

    def __init__(self, complaints: Complaints, ballots: Ballots) -> None:
        self.before: dict[bytes, bytes] = {}
        self.bodies: dict[bytes, bytes] = {}
        self.committed: dict[tuple[str, int], bytes] = {}
        self._complaints = complaints
        self._ballots = ballots
        self._sent: dict[tuple[Key, int], bytes] = {}
        """What stands where in the log of each leader, as it has sent it."""

    def prepared(self, group: GroupCommit) -> None:
        """A leader has made entries."""
        for entry in group.entries:
            self.bodies[entry.chain] = hash_body(entry.body)

    def append_sent(self, view: NodeView, request: Any) -> None:
        """A leader shows its log to its members."""
        key = view.replica_set, ballot_from(request.ballot)
        before = request.previous.chain
        for entry in request.entries:
            self.before[entry.chain] = before
            self._sent[key, entry.lsn] = before = entry.chain

    def releases(self, controller: Controller) -> None:
        """The watermark has moved, and with it what lies below on the same branch."""
        mark = self._ballots.mark_of(controller)
        if mark is None:
            return
        lsn = mark.true_lsn
        chain = self._sent.get((mark.key, lsn))
        while chain is not None and self.committed.get((mark.key[0], lsn)) != chain:
            self.committed[mark.key[0], lsn] = chain
            chain = self.before.get(chain)
            lsn -= 1

    def forget(self, replica_set: str) -> None:
        """Somebody goes on with what is left: what was committed may be committed no more."""
        for key in [key for key in self.committed if key[0] == replica_set]:
            del self.committed[key]

    def is_another_body(self, replica_set: str, lsn: int, body: bytes) -> bool:
        """Whether the entry that was committed there had other bytes than these."""
        known = self.bodies.get(self.committed.get((replica_set, lsn), b""))
        return known is not None and hash_body(body) != known

    # --- what is called so ----------------------------------------------------------------------

    def described(self, manifest: Manifest) -> None:
        """B6: a copy says what of it is committed, whoever made it, and for whom."""
        name = manifest.replica_set
        wrong = self._beyond(name, manifest.committed_lsn)
        if not wrong and manifest.is_committed:
            wrong = self._another(name, manifest.position)
        if wrong:
            self._complaints.add(
                "B6 a copy is committed",
                f"a copy of {manifest.node} as of entry {manifest.lsn} of ballot "
                f"{manifest.position.ballot} says that {manifest.committed_lsn} is committed; "
                f"{wrong}",
            )

    def marked(self, view: NodeView, mark: LogPosition) -> None:
        """B3: what a node notes as never to be dropped is what nobody can make it drop."""
        name = view.replica_set
        if not view.is_alive or not mark.lsn:
            return
        wrong = self._beyond(name, mark.lsn) or self._another(name, mark)
        if wrong:
            self._complaints.add(
                "B3 a mark is of a committed entry",
                f"{view.name} notes that its log has entry {mark.lsn} of ballot {mark.ballot} for "
                f"ever; {wrong}",
            )

    def _beyond(self, replica_set: str, lsn: int) -> str:
        reached = self._ballots.reached(replica_set)
        return f"a majority has {reached}" if lsn > reached else ""

    def _another(self, replica_set: str, end: LogPosition) -> str:
        committed = self.committed.get((replica_set, end.lsn))
        if committed in (None, end.chain):
            return ""
        return "another entry of that number was"
