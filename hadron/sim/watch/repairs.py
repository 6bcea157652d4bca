"""PROTOCOL A6: what a repair has written belongs where it stands.

Whatever a repair has put back is on the branch (`branches`) that this log goes on from, before it
and after it, and below the watermark that branch is the one that was committed. A node that is to
learn another leader's entries drops its own first; a repair never mixes the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hadron.sim.watch.branches import Branches
from hadron.sim.watch.views import Complaints, NodeView
from hadron.storage.log import chain_of_row, hash_body, is_well_formed

_ROW = (
    "SELECT lsn, epoch, incarnation, now_ms, command, body_hash, chain FROM hadron_log"
    " WHERE lsn = ?"
)


class Repairs:
    """What nodes have put back."""

    def __init__(self, complaints: Complaints, branches: Branches) -> None:
        self._complaints = complaints
        self._branches = branches

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
        before = self._branches.before.get(chain)
        if before is not None and chain_of_row(before, row) != chain:
            self._complain(view, lsn, "is not what its chain stands for")
        if body_hash is not None and body_hash != row[5]:
            self._complain(view, lsn, "has another body than its hash says")
        previous, following = view.select(_ROW, lsn - 1), view.select(_ROW, lsn + 1)
        # A neighbour with a chain that nobody has ever sent is damaged itself.
        if (
            previous is not None
            and previous[6] in self._branches.before
            and before not in (None, previous[6])
        ):
            self._complain(view, lsn, f"does not go on from entry {lsn - 1}")
        if following is not None and self._branches.before.get(following[6], chain) != chain:
            self._complain(view, lsn, f"is not what entry {lsn + 1} goes on from")
        committed = self._branches.committed.get((view.replica_set, lsn))
        if lsn <= view.committed_lsn and committed not in (None, chain):
            self._complaints.add(
                "A6 what is put back was committed",
                f"{view.name} has repaired entry {lsn} with one of ballot {row[1]}.{row[2]}; "
                "another one was committed",
            )

    def _check_trimmed(self, view: NodeView, lsn: int, body_hash: bytes | None) -> None:
        """Of an entry whose row was trimmed a body is left."""
        committed = self._branches.committed.get((view.replica_set, lsn))
        known = self._branches.bodies.get(committed) if committed is not None else None
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
