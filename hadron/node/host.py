"""What a node's process has, whichever opening of its data directory it is at."""

from __future__ import annotations

from dataclasses import dataclass

from hadron.model.ports import Clock, Disk, Network, Random
from hadron.node.discovery import Discovery
from hadron.node.replica_set import NodeConfig, ReplicaSetConfig
from hadron.node.settings import Settings
from hadron.partition.gate import ByteGate
from hadron.replication.membership import Membership
from hadron.serving.leading import Door
from hadron.state.machine import StateMachine
from hadron.wire.budget import Budget
from hadron.wire.connection import Cork


def membership_of(config: ReplicaSetConfig, node: str, machine: StateMachine) -> Membership:
    """What peers must agree with."""
    return Membership(
        cluster=config.cluster,
        replica_set=config.name,
        epoch=config.epoch,
        members=tuple((item.name, item.role) for item in config.nodes),
        node=node,
        digest=config.digest,
        addresses={item.name: item.address for item in config.nodes},
        apply_version=machine.version,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Host:
    """Of one node, as long as its process runs.

    Attributes:
        machine: what the log drives.
        gate, budget: bounds of what clients and peers have under way here.
        door: to its leadership, while it has one.
    """

    config: ReplicaSetConfig
    node: NodeConfig
    membership: Membership
    machine: StateMachine
    clock: Clock
    random: Random
    network: Network
    disk: Disk
    discovery: Discovery
    cork: Cork
    gate: ByteGate
    budget: Budget
    door: Door
    started_ms: int

    @property
    def settings(self) -> Settings:
        return self.config.settings

    @property
    def durability(self) -> str:
        """With a single node there is no other memory to survive in (PROTOCOL C)."""
        return "fsync" if len(self.config.nodes) == 1 else self.settings.durability
