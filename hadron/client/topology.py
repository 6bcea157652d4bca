"""What a client knows of the cluster: which node leads which replica set.

Pure. Safety rule: of two statements about one replica set the one with the higher epoch wins,
because after a promotion a node that has not been told yet still names the old leader.
"""

from __future__ import annotations

from collections.abc import Iterable

from hadron.wire.messages import cluster_pb2


class Topology:
    """The answers of nodes, merged."""

    def __init__(self) -> None:
        self._sets: dict[str, cluster_pb2.ReplicaSet] = {}
        self.latest: cluster_pb2.TopologyResponse | None = None
        """The last answer, whoever gave it."""
        self.metadata = ""
        """The replica set that owns the schema; "" before the first answer."""

    def merge(self, answer: cluster_pb2.TopologyResponse) -> None:
        """Take in one node's answer."""
        self.latest = answer
        self.metadata = answer.metadata or self.metadata
        for replica_set in answer.replica_sets:
            known = self._sets.get(replica_set.name)
            if known is None or replica_set.epoch >= known.epoch:
                self._sets[replica_set.name] = replica_set

    def leader(self, replica_set: str) -> str | None:
        """The leader's address, or None for an unknown replica set."""
        known = self._sets.get(replica_set)
        if known is None:
            return None
        return next((node.address for node in known.nodes if node.role == "leader"), None)

    def rule(self, replica_set: str) -> tuple[int, str]:
        """(epoch, the leader's name); (0, "") for an unknown replica set. Addresses do not tell
        whether another node leads: nodes may have different ones for the same."""
        known = self._sets.get(replica_set)
        if known is None:
            return 0, ""
        return known.epoch, next((node.name for node in known.nodes if node.role == "leader"), "")

    def nodes(self, replica_set: str) -> list[cluster_pb2.Node]:
        """The members of a replica set; none when it is unknown."""
        known = self._sets.get(replica_set)
        return [] if known is None else list(known.nodes)

    def names(self) -> list[str]:
        """All known replica sets."""
        return list(self._sets)

    def addresses(self, first: Iterable[str] = ()) -> list[str]:
        """Every known node's address, those in `first` at the front, none twice."""
        known = [node.address for entry in self._sets.values() for node in entry.nodes]
        return list(dict.fromkeys([*first, *known]))
