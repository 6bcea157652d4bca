"""What a client knows of the cluster: which node leads which replica set.

Pure. Safety rule: of two statements about one replica set the one with the higher epoch wins,
because after a promotion a node that has not been told yet still names the old leader; and where a
node is, it says itself, because it may move without a new epoch. But a configuration begins with
its leader: before that one has said that it goes by it, some other node has just been started
early, and the leader of the epoch before may well be serving.
*(The file with n4 as leader is written, n3 crashes and starts with it; n1 leads n2 and n4 on.)*
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from hadron.model.errors import NotReadyError, OtherClusterError
from hadron.wire.messages import cluster_pb2

Recognize = Callable[[str, cluster_pb2.TopologyResponse], None]
"""`OneCluster.recognize`."""

_EPOCHS: Final = 4
"""Configurations of one replica set that are remembered: the newest."""


class Topology:
    """The answers of nodes, merged."""

    def __init__(self) -> None:
        self._sets: dict[str, dict[int, cluster_pb2.ReplicaSet]] = {}
        """By name and epoch."""
        self._goes_by: dict[tuple[str, str], int] = {}
        """The epoch of the file that a node (replica set, name) was started with, as it says."""
        self.latest: cluster_pb2.TopologyResponse | None = None
        """The last answer, whoever gave it."""
        self.metadata = ""
        """The replica set that owns the schema; "" before the first answer."""

    def merge(self, answer: cluster_pb2.TopologyResponse) -> None:
        """Take in one node's answer."""
        self.latest = answer
        self.metadata = answer.metadata or self.metadata
        for replica_set in answer.replica_sets:
            self._take(replica_set)
            if replica_set.name == answer.replica_set:
                self._goes_by[answer.replica_set, answer.node] = replica_set.epoch

    def _take(self, said: cluster_pb2.ReplicaSet) -> None:
        known = self._sets.setdefault(said.name, {})
        newest = known[max(known)] if known else said
        if known and newest.uuid and said.uuid and newest.uuid != said.uuid:
            # Two sets want the name: the metadata set has given it to one of them.
            if (said.registered, said.epoch) < (newest.registered, newest.epoch):
                return
            known.clear()
        before = known.get(said.epoch)
        if before is None or said.agreed >= before.agreed:
            known[said.epoch] = said
        # Where nothing else decides, the later answer; where a node is, it says itself.
        heard = [*known.values(), said] if before is None else [*known.values(), before, said]
        for epoch, entry in known.items():
            known[epoch] = _located(entry, heard)
        for epoch in sorted(known)[:-_EPOCHS]:
            del known[epoch]

    def doubt(self, replica_set: str) -> None:
        """The leader does not answer: what it said is no reason any more to prefer it."""
        _, leader = self.rule(replica_set)
        self._goes_by.pop((replica_set, leader), None)

    def _current(self, replica_set: str) -> cluster_pb2.ReplicaSet | None:
        known = [entry for _, entry in sorted(self._sets.get(replica_set, {}).items())]
        begun = [
            entry
            for entry in known
            if entry.agreed or self._goes_by.get((replica_set, _leader(entry).name)) == entry.epoch
        ]
        candidates = begun or known
        return candidates[-1] if candidates else None

    def leader(self, replica_set: str) -> str | None:
        """The leader's address, or None for an unknown replica set."""
        known = self._current(replica_set)
        return None if known is None else _leader(known).address or None

    def rule(self, replica_set: str) -> tuple[int, str]:
        """(epoch, the leader's name); (0, "") for an unknown replica set. Addresses do not tell
        whether another node leads: nodes may have different ones for the same."""
        known = self._current(replica_set)
        return (0, "") if known is None else (known.epoch, _leader(known).name)

    def nodes(self, replica_set: str) -> list[cluster_pb2.Node]:
        """The members of a replica set; none when it is unknown."""
        known = self._current(replica_set)
        return [] if known is None else list(known.nodes)

    def replica_sets(self) -> list[cluster_pb2.ReplicaSet]:
        """All known replica sets, each by the statement that counts."""
        return [known for name in self._sets if (known := self._current(name)) is not None]

    def names(self) -> list[str]:
        """All known replica sets."""
        return list(self._sets)

    def addresses(self, first: Iterable[str] = ()) -> list[str]:
        """Every known node's address, those in `first` at the front, none twice."""
        current = [node.address for name in self._sets for node in self.nodes(name)]
        others = [
            node.address
            for known in self._sets.values()
            for _, entry in sorted(known.items(), reverse=True)
            for node in entry.nodes
        ]
        return list(dict.fromkeys([*first, *current, *others]))


class OneCluster:
    """The cluster that is meant: the one that is named, or that the first node that answers is of
    (CLIENTS K14); but one that serves before one that does not. Of clusters with one name, as all
    have that `hadron dev` begins, the histories of their replica sets tell which it is."""

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._is_certain = bool(name)
        self._histories: dict[str, cluster_pb2.ReplicaSet] = {}
        """By replica set, what a node of it said of its own that served."""

    def recognize(self, address: str, said: cluster_pb2.TopologyResponse) -> None:
        """Raises `OtherClusterError` for a node of another one: its streams may have the same
        names, and the same ids."""
        serves = _serves(said)
        if not self._is_certain and (serves or not self._name):
            self._name = said.cluster
        if said.cluster not in ("", self._name):
            raise OtherClusterError(
                f"{address} is a node of cluster {said.cluster!r}, and not of {self._name!r}",
                f"start {self._name!r} there again; to use {said.cluster!r}, connect to it anew",
            )
        self._check_history(address, said)
        self._is_certain |= serves

    def _check_history(self, address: str, said: cluster_pb2.TopologyResponse) -> None:
        own = next((each for each in said.replica_sets if each.name == said.replica_set), None)
        if own is None or not own.uuid:
            return
        known = self._histories.get(own.name)
        if known is not None and known.uuid != own.uuid and not _follows(own, known, said.metadata):
            raise OtherClusterError(
                f"{address} is a node of another {own.name} than the one before, in a cluster that "
                f"is called {said.cluster!r} as well: another one was started there, or its data "
                "was removed",
                "start the one before there again; to use this one, connect to it anew",
            )
        if own.agreed:
            self._histories[own.name] = own


def owner_not_found(metadata: str, known: Iterable[str]) -> NotReadyError:
    """For those who ask for the schema's owner, which the nodes that answer have not heard of: not
    yet, or not since they were started. What is known of the schema any node tells."""
    return NotReadyError(
        f"the schema belongs to replica set {metadata!r} (`metadata:`), which nodes of "
        f"{', '.join(known) or 'this cluster'} have not heard of: nothing can be created or "
        "changed without it",
        "start it; if it runs, correct `metadata:` and `discovery:` in the nodes' configuration "
        "(the same `metadata:` in all files), and see `hadron status`",
    )


def _serves(said: cluster_pb2.TopologyResponse) -> bool:
    """Whether the node is in a replica set that is at work."""
    return any(each.agreed for each in said.replica_sets if each.name == said.replica_set)


def _follows(said: cluster_pb2.ReplicaSet, known: cluster_pb2.ReplicaSet, metadata: str) -> bool:
    """Whether it is what a restore has made of the one that is known, whose epoch is higher; or
    what the metadata set has given the name to, where that is heard of later."""
    is_named = said.name != metadata and said.registered > known.registered
    return said.epoch > known.epoch or is_named


def _leader(entry: cluster_pb2.ReplicaSet) -> cluster_pb2.Node:
    """The leader by a statement; an empty node where it names none."""
    return next((node for node in entry.nodes if node.role == "leader"), cluster_pb2.Node())


def _located(
    entry: cluster_pb2.ReplicaSet, heard: Iterable[cluster_pb2.ReplicaSet]
) -> cluster_pb2.ReplicaSet:
    """A statement with every node where its own latest word has it."""
    latest: dict[str, cluster_pb2.Node] = {}
    for node in (node for each in heard for node in each.nodes):
        if node.name not in latest or node.stated_ms > latest[node.name].stated_ms:
            latest[node.name] = node
    located = cluster_pb2.ReplicaSet()
    located.CopyFrom(entry)
    for node in located.nodes:
        own = latest.get(node.name)
        if own is not None and own.stated_ms > node.stated_ms:
            node.address, node.stated_ms = own.address, own.stated_ms
    return located
