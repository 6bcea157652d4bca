"""Why nodes are not ready yet: told while somebody waits for them, and judged.

A node knows what it waits for long before anybody loses patience. Whatever stays true for a while
is told once; what no waiting can change ends the waiting.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from hadron.node.supervision.processes import ClusterError
from hadron.replication.life import Life

if TYPE_CHECKING:
    from hadron.wire.messages import cluster_pb2

_TELL_AFTER_S: Final = 1.5
"""A start passes through several reasons in less."""
_FINAL_AFTER_S: Final = 2.0
"""A node that is fenced tries again every second; a file that another contradicts stays so."""

NO_ANSWER: Final = "no answer"

LOST_DISKS: Final = (
    "where too many disks are lost or damaged: `hadron restore --help` (from a backup), `hadron "
    "recover --help` (with what the disks still have; `hadron backup DEST --data DIR` keeps a copy "
    "of it)"
)
"""What whoever waits for a majority does that will not come back."""


def reason_of(status: cluster_pb2.StatusResponse) -> str:
    """A node's state, with what is wrong in its own words."""
    words = [status.state, status.trouble]
    words += [
        f"with {peer.name}: {peer.trouble}"
        for peer in status.peers
        if peer.state == "mismatch" and peer.trouble != status.trouble
    ]
    return ": ".join(word for word in words if word)


def is_final(status: cluster_pb2.StatusResponse) -> bool:
    """Whether this node's file, or a peer's, must be changed before it can be ready."""
    return status.state == Life.FENCED or any(peer.state == "mismatch" for peer in status.peers)


class Reasons:
    """What nodes have said while they were waited for.

    Args:
        tell: told each reason once, as "n1: …".
    """

    def __init__(
        self, tell: Callable[[str], None], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell = tell
        self._now_s = now_s
        self._first_s: dict[tuple[str, str], float] = {}
        self._told: set[tuple[str, str]] = set()
        self.last: dict[str, str] = {}
        """Each node's latest reason."""
        self.without_majority: set[str] = set()
        """Nodes that wait for a majority, as they said last."""

    def has_answered(self, name: str) -> bool:
        """Whether the node has ever said how it is."""
        return any(known == name for known, _ in self._first_s)

    def note_silence(self, name: str, why: str) -> None:
        """A node does not answer."""
        self.last[name] = why
        self.without_majority.discard(name)

    def note(self, name: str, status: cluster_pb2.StatusResponse) -> None:
        """A node says that it is not ready. Raises `ClusterError` when it gives a reason that no
        waiting changes, and has given it for a while."""
        now_s = self._now_s()
        reason = self.last[name] = reason_of(status)
        if status.state == Life.WAITING_FOR_MAJORITY:
            self.without_majority.add(name)
        else:
            self.without_majority.discard(name)
        said = (name, reason)
        age_s = now_s - self._first_s.setdefault(said, now_s)
        if is_final(status) and age_s >= _FINAL_AFTER_S:
            raise ClusterError(f"node {name} cannot be ready: {reason}")
        if reason != status.state and age_s >= _TELL_AFTER_S and said not in self._told:
            self._told.add(said)
            self._tell(f"{name}: {reason}")
