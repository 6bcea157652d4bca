"""What the nodes that run say, and whether a configuration file fits it.

Looked at before any node is stopped: a leader that is restarted with a file that cannot work takes
its replica set's writes away, and finds out only then. What counts are the epochs that disks have
promised (PROTOCOL B1) and the configuration of whoever serves (PROTOCOL B5), not other nodes'
files: one that nobody has led with yet may be taken back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hadron.model.errors import ConfigurationError, HadronError
from hadron.node.replica_set import ReplicaSetConfig
from hadron.node.supervision.processes import ProcessIdentity
from hadron.replication.life import Life

if TYPE_CHECKING:
    from hadron.wire.messages import cluster_pb2

_ANSWER_WITHIN_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class RunningNode:
    """What a node says of itself, and the replica set as the file has it that it was started
    with."""

    status: cluster_pb2.StatusResponse
    file: cluster_pb2.ReplicaSet

    @property
    def roles(self) -> dict[str, str]:
        """Of every member, as its file has them."""
        return {node.name: node.role for node in self.file.nodes}


def ask_running(
    addresses: Mapping[str, str], processes: Mapping[str, ProcessIdentity]
) -> dict[str, RunningNode]:
    """What the nodes say of themselves whose `processes` run; who does not answer is left out.

    Args:
        addresses: node name to `host:port`.
    """
    found: dict[str, RunningNode] = {}
    _ask_all(addresses, processes, found)
    # Others know of nodes that the file does not have any more, or has with another address.
    theirs = {node.name: node.address for each in found.values() for node in each.file.nodes}
    _ask_all(theirs, processes, found)
    return found


def _ask_all(
    addresses: Mapping[str, str],
    processes: Mapping[str, ProcessIdentity],
    found: dict[str, RunningNode],
) -> None:
    for name, process in processes.items():
        if name in addresses and name not in found:
            with contextlib.suppress(HadronError, OSError):
                node = _ask(addresses[name])
                # Somebody else's cluster may answer at an address that was changed in the file.
                if node is not None and node.status.pid == process.pid:
                    found[name] = node


def _ask(address: str) -> RunningNode | None:
    import hadron

    with hadron.connect_sync(f"hadron://{address}", connect_timeout_s=_ANSWER_WITHIN_S) as client:
        topology = client.topology(address)
        status = client.status(address)
    file = next((each for each in topology.replica_sets if each.name == status.replica_set), None)
    return None if file is None else RunningNode(status, file)


def check_fits(config: ReplicaSetConfig, running: Mapping[str, RunningNode]) -> None:
    """Raise `ConfigurationError` when the nodes that run would refuse this configuration."""
    for name, node in sorted(running.items()):
        _check_promise(config, name, node)
    for name, node in sorted(running.items()):
        if node.status.state == Life.SERVING:
            _check_majority(config, name, node)


def _check_promise(config: ReplicaSetConfig, name: str, node: RunningNode) -> None:
    promised = node.status.ballot.epoch
    theirs, ours = (node.status.cluster, node.status.replica_set), (config.cluster, config.name)
    if theirs != ours:
        raise ConfigurationError(
            f"{config.path} is for replica set {ours[1]} of cluster {ours[0]}, node {name} runs "
            f"for {theirs[1]} of {theirs[0]}",
            "nothing was started or stopped; neither name can be changed",
        )
    if config.epoch < promised:
        raise ConfigurationError(
            f"{config.path} has epoch {config.epoch}, node {name} has promised epoch {promised}",
            "nothing was started or stopped; use the newest configuration file of the replica set",
        )
    if config.epoch == promised == node.file.epoch and _roles(config) != node.roles:
        raise ConfigurationError(
            f"{config.path} has other members or roles than node {name} runs with, but the same "
            f"epoch {promised}: {_difference(node.roles, _roles(config))}",
            f"nothing was started or stopped; set `epoch: {promised + 1}` when names or roles "
            "change",
        )


def _check_majority(config: ReplicaSetConfig, name: str, leader: RunningNode) -> None:
    members = sorted(leader.roles)
    left = [member for member in members if member in config.members]
    needed = len(members) // 2 + 1
    if config.epoch > leader.file.epoch and len(left) < needed:
        raise ConfigurationError(
            f"{config.path} keeps {', '.join(left) or 'none'} of {', '.join(members)}, which "
            f"{name} leads with epoch {leader.file.epoch}: {needed} of them have to store the "
            "change before it counts",
            "nothing was started or stopped; exchange members in steps, so that a majority of the "
            "old ones stays",
        )


def _roles(config: ReplicaSetConfig) -> dict[str, str]:
    return {node.name: node.role for node in config.nodes}


def _difference(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Which members came, went or changed, in words."""
    words = [f"{name} is new" for name in new if name not in old]
    words += [f"{name} is missing" for name in old if name not in new]
    words += [
        f"{name} was {old[name]}, is {role}"
        for name, role in new.items()
        if name in old and old[name] != role
    ]
    return ", ".join(words)
