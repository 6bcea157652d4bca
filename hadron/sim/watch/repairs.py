"""PROTOCOL A6: what a repair has written belongs where it stands.

What leaders have sent is a tree: each entry's chain has one predecessor. Whatever a repair has put
back is on the branch that this log goes on from, before it and after it, and below the watermark
that branch is the one that was committed. A node that is to learn another leader's entries drops
its own first; a repair never mixes the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hadron.partition.controller import Controller
from hadron.partition.group_commit import WrittenGroup
from hadron.sim.watch.ballots import Ballots
from hadron.sim.watch.marks import Key
from hadron.sim.watch.views import Complaints, NodeView
from hadron.storage.log import chain_of_row, hash_body, is_well_formed
from hadron.wire.messages import ballot_from

_ROW = (
    "SELECT lsn, epoch, incarnation, now_ms, command, body_hash, chain FROM hadron_log"
    " WHERE lsn = ?"
)


class Repairs:
    """What leaders have sent, what of it was committed, and what nodes have put back."""

    def __init__(self, complaints: Complaints, ballots: Ballots) -> None:
        self._complaints = complaints
        self._ballots = ballots
        self._before: dict[bytes, bytes] = {}
        """By an entry's chain: the chain of the one before."""
        self._bodies: dict[bytes, bytes] = {}
        """By an entry's chain: the hash of its body."""
        self._sent: dict[tuple[Key, int], bytes] = {}
        """What stands where in the log of each leader, as it has sent it."""
        self._committed: dict[tuple[str, int], bytes] = {}

    # --- what there was -------------------------------------------------------------------------

    def prepared(self, group: WrittenGroup) -> None:
        """A leader has made entries."""
        for entry in group.entries:
            self._bodies[entry.chain] = hash_body(entry.body)

    def append_sent(self, view: NodeView, request: Any) -> None:
        """A leader shows its log to its members."""
        key = view.replica_set, ballot_from(request.ballot)
        before = request.previous.chain
        for entry in request.entries:
            self._before[entry.chain] = before
            self._sent[key, entry.lsn] = before = entry.chain

    def releases(self, controller: Controller) -> None:
        """The watermark has moved, and with it what lies below on the same branch."""
        mark = self._ballots.mark_of(controller)
        if mark is None:
            return
        lsn = mark.true_lsn
        chain = self._sent.get((mark.key, lsn))
        while chain is not None and self._committed.get((mark.key[0], lsn)) != chain:
            self._committed[mark.key[0], lsn] = chain
            chain = self._before.get(chain)
            lsn -= 1

    def forget(self, replica_set: str) -> None:
        """Somebody goes on with what is left: what was committed may be committed no more."""
        for key in [key for key in self._committed if key[0] == replica_set]:
            del self._committed[key]

    # --- what was put back ----------------------------------------------------------------------

    def repaired(self, view: NodeView, lsns: Iterable[int]) -> None:
        """A node has written these entries anew, or says that they are whole again."""
        if not view.is_alive:
            return
        for lsn in lsns:
            row = view.select(_ROW, lsn)
            body = view.select("SELECT bytes FROM hadron_body WHERE lsn = ?", lsn)
            body_hash = hash_body(body[0]) if body is not None and body[0] else None
            if row is None:
                self._check_trimmed(view, lsn, body_hash)
            elif not is_well_formed(row):
                self._complain(view, lsn, "is no row of a log")
            else:
                self._check_row(view, row, body_hash)

    def _check_row(self, view: NodeView, row: Any, body_hash: bytes | None) -> None:
        lsn, chain = row[0], row[6]
        before = self._before.get(chain)
        if before is not None and chain_of_row(before, row) != chain:
            self._complain(view, lsn, "is not what its chain stands for")
        if body_hash is not None and body_hash != row[5]:
            self._complain(view, lsn, "has another body than its hash says")
        previous, following = view.select(_ROW, lsn - 1), view.select(_ROW, lsn + 1)
        # A neighbour with a chain that nobody has ever sent is damaged itself.
        if previous is not None and previous[6] in self._before and before not in (
            None, previous[6],
        ):
            self._complain(view, lsn, f"does not go on from entry {lsn - 1}")
        if following is not None and self._before.get(following[6], chain) != chain:
            self._complain(view, lsn, f"is not what entry {lsn + 1} goes on from")
        committed = self._committed.get((view.replica_set, lsn))
        if lsn <= view.committed_lsn and committed not in (None, chain):
            self._complaints.add(
                "A6 what is put back was committed",
                f"{view.name} has repaired entry {lsn} with one of ballot {row[1]}.{row[2]}; "
                "another one was committed",
            )

    def _check_trimmed(self, view: NodeView, lsn: int, body_hash: bytes | None) -> None:
        """Of an entry whose row was trimmed a body is left."""
        committed = self._committed.get((view.replica_set, lsn))
        known = self._bodies.get(committed) if committed is not None else None
        if body_hash is not None and known is not None and body_hash != known:
            self._complaints.add(
                "A6 what is put back was committed",
                f"{view.name} has repaired the body of entry {lsn} with another one than was "
                "committed",
            )

    def _complain(self, view: NodeView, lsn: int, what: str) -> None:
        self._complaints.add(
            "A6 the chain is whole after a repair",
            f"{view.name} has repaired entry {lsn}, which {what}",
        )
