"""What a client knows of the cluster: which node leads which replica set.

Pure. Safety rule: of two statements about one replica set the one with the higher epoch wins,
because after a promotion a node that has not been told yet still names the old leader; and where a
node is, it says itself, because it may move without a new epoch.
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
            self._sets[replica_set.name] = (
                replica_set if known is None else _merged(known, replica_set)
            )

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


def _merged(
    known: cluster_pb2.ReplicaSet, said: cluster_pb2.ReplicaSet
) -> cluster_pb2.ReplicaSet:
    """Two nodes' statements about one name; where nothing else decides, the later answer."""
    if known.uuid and said.uuid and known.uuid != said.uuid:
        # Two sets want the name: the metadata set has given it to one of them.
        newer = (said.registered, said.epoch) >= (known.registered, known.epoch)
        return said if newer else known
    newer = (said.epoch, said.agreed) >= (known.epoch, known.agreed)
    chosen, other = (said, known) if newer else (known, said)
    stated = {node.name: node for node in other.nodes}
    merged = cluster_pb2.ReplicaSet()
    merged.CopyFrom(chosen)
    for node in merged.nodes:
        before = stated.get(node.name)
        if before is not None and before.stated_ms > node.stated_ms:
            node.address, node.stated_ms = before.address, before.stated_ms
    return merged
