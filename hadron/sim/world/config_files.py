"""What stands in the configuration files of simulated nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from hadron.node.replica_set import NodeConfig, ReplicaSetConfig
from hadron.node.settings import Settings

_PORT: Final = 7000


def replica_set(root: Path, count: int, settings: Settings) -> ReplicaSetConfig:
    nodes = members(root, "n", count)
    return ReplicaSetConfig(
        cluster="sim",
        name="local/p0",
        epoch=1,
        nodes=nodes,
        metadata="local/p0",
        discovery=(nodes[0].address,),
        settings=settings,
    )


def members(root: Path, letter: str, count: int) -> tuple[NodeConfig, ...]:
    """Nodes called by a letter and a number, the first one leading."""
    return tuple(
        NodeConfig(
            name=f"{letter}{number}",
            role="leader" if number == 1 else "replica",
            address=f"{letter}{number}:{_PORT}",
            data=root / f"{letter}{number}",
        )
        for number in range(1, count + 1)
    )


def with_data(config: ReplicaSetConfig, name: str, data: Path) -> ReplicaSetConfig:
    return with_node(config, replace(config.node(name), data=data))


def with_address(config: ReplicaSetConfig, name: str, address: str) -> ReplicaSetConfig:
    """Nothing else of the node changes: in an older file it may have another role."""
    return with_node(config, replace(config.node(name), address=address))


def with_node(config: ReplicaSetConfig, changed: NodeConfig) -> ReplicaSetConfig:
    nodes = tuple(changed if node.name == changed.name else node for node in config.nodes)
    return replace(config, nodes=nodes)
