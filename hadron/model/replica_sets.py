"""What one node can tell another about a replica set: a statement, made by its members.

Here because discovery merges statements, and whoever dials leaders of other sets reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class KnownNode:
    """One member.

    Attributes:
        role: "leader" or "replica".
        address: `host:port`.
        stated_ms: since when the node itself says that this is its address (its own clock, ms since
            the Unix epoch); 0 when only a configuration file of another node says so.
    """

    name: str
    role: str
    address: str
    stated_ms: int = 0


@dataclass(frozen=True)
class KnownSet:
    """A replica set as some configuration file of that epoch has it.

    Attributes:
        uuid: minted when the set was founded (or restored); empty before.
        nodes: exactly one leads; in the file's order, which means nothing.
        agreed: whether a majority of its members is known to serve by this configuration.
        registered: the epoch with which the metadata set has registered this uuid for this name;
            0 when it has not, as far as the speaker knows.
    """

    name: str
    epoch: int
    uuid: bytes
    nodes: tuple[KnownNode, ...]
    agreed: bool = False
    registered: int = 0

    @cached_property
    def leader(self) -> KnownNode:
        return next(node for node in self.nodes if node.role == "leader")

    @cached_property
    def members(self) -> tuple[tuple[str, str], ...]:
        """(name, role) of every node, sorted: what tells two configurations of an epoch apart."""
        return tuple(sorted((node.name, node.role) for node in self.nodes))

    def node(self, name: str) -> KnownNode | None:
        """The member called `name`, if there is one."""
        return next((node for node in self.nodes if node.name == name), None)


def in_region(replica_set: str, region: str) -> bool:
    """Whether a name lies below a prefix: `aws.us-east-1` has `aws.us-east-1/p0` and
    `aws.us-east-1.a/p0`, but not `aws.us-east-10/p0`."""
    return replica_set == region or replica_set.startswith((f"{region}/", f"{region}."))
