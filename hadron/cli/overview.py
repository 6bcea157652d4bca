"""What the nodes of a replica set say, put together: who leads now, and what is to change.

Roles are in the configuration file, and a file counts when its leader has been started with it and
a majority has promised its epoch. Until then nodes with another file may run already, so who leads
is asked of the ballots, not of the newest file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hadron.node.supervision.reasons import LOST_DISKS
from hadron.replication.life import Life
from hadron.wire.connection import SILENCE_LIMIT_S
from hadron.wire.messages import cluster_pb2

_FED: Final = frozenset({"in sync", "catching up"})
"""How a leader calls peers that take what it logs."""


@dataclass(slots=True)
class Overview:
    """One replica set.

    Attributes:
        newest: as the node with the newest configuration file has it.
        files: by address, as the node there has it.
        found: by address, what the node says of itself, or why it says nothing.
    """

    newest: cluster_pb2.ReplicaSet
    files: dict[str, cluster_pb2.ReplicaSet] = field(default_factory=dict)
    found: Mapping[str, cluster_pb2.StatusResponse | str] = field(default_factory=dict)

    @property
    def addresses(self) -> list[str]:
        """Of every node in any file."""
        files = [self.newest, *self.files.values()]
        return list(dict.fromkeys(node.address for file in files for node in file.nodes))

    def learn(self, address: str, file: cluster_pb2.ReplicaSet) -> None:
        """The node at `address` was started with `file`."""
        self.files[address] = file
        self.hear(file)

    def hear(self, file: cluster_pb2.ReplicaSet) -> None:
        """Some node knows that this configuration exists."""
        if file.epoch > self.newest.epoch:
            self.newest = file

    @property
    def leader(self) -> cluster_pb2.StatusResponse | None:
        """Who serves, with the highest ballot of those who think that they do."""
        serving = [
            said
            for address, said in self.found.items()
            if address in self.addresses
            and not isinstance(said, str)
            and said.state == Life.SERVING
        ]
        return max(
            serving, key=lambda said: (said.ballot.epoch, said.ballot.incarnation), default=None
        )

    @property
    def in_force(self) -> cluster_pb2.ReplicaSet:
        """The configuration that the leader leads with; the newest while nobody leads."""
        leader = self.leader
        if leader is None:
            return self.newest
        return next(
            (file for address, file in self.files.items() if self.found.get(address) is leader),
            # One that only others can reach.
            self.newest,
        )

    @property
    def nodes(self) -> list[cluster_pb2.Node]:
        """Members of the newest configuration, then those that only the one in force has."""
        named = {node.name for node in self.newest.nodes}
        return [
            *self.newest.nodes,
            *(node for node in self.in_force.nodes if node.name not in named),
        ]

    def role(self, name: str) -> str:
        """The role in force: "leader", "replica", or "pending" of a member that is to come."""
        members = {node.name: node.role for node in self.in_force.nodes}
        return members.get(name, "pending")

    def lags(self) -> dict[str, int]:
        """By node, how many entries of the leader are not known to be on its disk."""
        leader = self.leader
        if leader is None:
            return {}
        lags = {peer.name: max(0, leader.last_lsn - peer.match_lsn) for peer in leader.peers}
        return lags | {leader.node: 0}

    def pending(self) -> str:
        """What changes with the newest file, and when, in words; "" when it is in force."""
        leader, newest = self.leader, self.newest
        if leader is None or newest.epoch <= leader.ballot.epoch:
            return ""
        next_leader = next(node for node in newest.nodes if node.role == "leader")
        own = self.files.get(next_leader.address)
        if own is not None and own.epoch == newest.epoch:
            when = f"{next_leader.name} leads with it once a majority has promised it"
        else:
            when = f"{next_leader.name} leads once it is started with epoch {newest.epoch}"
        now = f"until then {leader.node} leads with epoch {leader.ballot.epoch}"
        holders = [
            node.name
            for node in newest.nodes
            if (file := self.files.get(node.address)) and file.epoch == newest.epoch
        ]
        return (
            f"{_verb(holders, 'was', 'were')} started with epoch {newest.epoch} of {newest.name}: "
            f"{when}; {now}"
        )

    def way_out(self, config: str, several: bool) -> str:
        """How a set whose leader or whose majority is away, or that waits for disks that are lost,
        takes writes, and answers reads, again, in words; "" when it needs nothing.

        Args:
            config: the option that says where the configuration is; "" for the local cluster's.
            several: the cluster has other replica sets, too.
        """
        newest = self.newest
        leader = next(node for node in newest.nodes if node.role == "leader")
        said = self.found.get(leader.address)
        if self.leader is not None:
            return self._without_majority(self.in_force, config)
        if said is None:
            return ""
        if not isinstance(said, str):
            if said.memories_missing:
                return self._apart(said) or self._with_lost_disks()
            return self._without_majority(newest, config)
        there = [
            said
            for node in newest.nodes
            if (said := self.found.get(node.address)) is not None and not isinstance(said, str)
        ]
        if followers := [said.node for said in there if said.state == Life.FOLLOWING]:
            return self._out_of_sight(followers, leader.name)
        if 2 * len(there) <= len(newest.nodes):
            return self._without_majority(newest, config)
        away = f"{newest.name} takes no writes, and answers no reads, while {leader.name} is away"
        remembering = [said for said in there if not said.lacks_memory]
        if 2 * len(remembering) < len(newest.nodes):
            # So few do not meet every majority (PROTOCOL B3): no other would win a ballot.
            new = [said.node for said in there if said.lacks_memory]
            return (
                f"{away}, and nobody can lead in its place, as {_verb(new, 'counts', 'count')} in "
                f"no majority before {'it has' if len(new) == 1 else 'they have'} been taught: "
                f"bring {leader.name} back; {LOST_DISKS}"
            )
        best = max(remembering, key=lambda said: (said.last_lsn, said.committed_lsn)).node
        options = config + (f" --replica-set {newest.name}" if several else "")
        then = (
            f", then restart {best} with that file" if config else "` and `hadron cluster restart"
        )
        return (
            f"{away}: bring it back, or let {best} lead, which loses nothing that was acknowledged:"
            f" `hadron promote {best}{options}" + (f"`{then}" if config else f"{then}`")
        )

    def _out_of_sight(self, followers: Sequence[str], leader: str) -> str:
        """The others have not missed the leader: yet, or it is not there for who asks alone."""
        return (
            f"{_verb(followers, 'follows', 'follow')} {leader}: either it hangs, which is noticed "
            f"within {SILENCE_LIMIT_S:g} s, so look again then; or only this command does not reach"
            " it: see to the way there, to its log and to how many connections it has"
        )

    def _apart(self, said: cluster_pb2.StatusResponse) -> str:
        """The leader lacks memories, and those that have them answer others: it has just started,
        or does not reach them; "" where that would not be enough."""
        addresses = {node.name: node.address for node in self.newest.nodes}
        apart = [
            peer.name
            for peer in said.peers
            if peer.state == "connecting"
            and (found := self.found.get(addresses.get(peer.name, ""))) is not None
            and not isinstance(found, str)
            and not found.lacks_memory
        ]
        if len(apart) < said.memories_missing:
            return ""
        return (
            f"{self.newest.name} takes no writes, and answers no reads, until {said.node} reaches "
            f"{' and '.join(apart)}: it tries again and again; if that lasts, see to the way "
            "between them"
        )

    def _without_majority(self, file: cluster_pb2.ReplicaSet, config: str) -> str:
        """Which nodes to start where less than a majority of the file's answer, and how; "" where
        enough do."""
        leader = self.leader
        # Whom this client does not reach may be there for the leader.
        fed = {each.name for each in leader.peers if each.state in _FED} if leader else set()
        away = [
            node
            for node in file.nodes
            if isinstance(self.found.get(node.address), str) and node.name not in fed
        ]
        size = len(file.nodes)
        needed = size // 2 + 1 - (size - len(away))
        if needed <= 0:
            return ""
        # The leader first: without it the others could do nothing but promote another.
        leading = [node.name for node in away if node.role == "leader"]
        others = [node.name for node in away if node.role != "leader"]
        first = f"{leading[0]}, which leads" if leading else ""
        if more := needed - len(leading):
            some = _some(others, more)
            first = f"{first}, and {some}" if first else some
        how = f"`hadron node --config FILE --name {(leading or others)[0]}`"
        what = "takes no writes" if leader else "takes no writes, and answers no reads"
        be = "is" if len(away) == 1 else "are"
        return (
            f"{file.name} {what}, while {', '.join(node.name for node in away)} {be} away: start "
            f"{first}, by {how if config else '`hadron cluster up`'}"
        )

    def _with_lost_disks(self) -> str:
        """The leader answers, and too few disks are left that remember what was committed."""
        nodes = self.newest.nodes
        away = [node.name for node in nodes if isinstance(self.found.get(node.address), str)]
        back = f"bring {', '.join(away)} back; " if away else ""
        return f"{self.newest.name} takes no writes, and answers no reads: {back}{LOST_DISKS}"


def _some(names: Sequence[str], count: int) -> str:
    """`n2`, `n2 and n3`, `one of n2, n3`: so many of these."""
    if count == len(names):
        return " and ".join(names)
    return f"{'one' if count == 1 else count} of {', '.join(names)}"


def _verb(names: Sequence[str], one: str, several: str) -> str:
    return f"{', '.join(names)} {one if len(names) == 1 else several}"
