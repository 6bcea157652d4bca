"""Who calls, as a value.

Rule: a principal says who somebody *says* to be. Nobody is asked for a proof yet (CLUSTER R11), so
what it names is for logs, for people, and for telling late messages of a node from its present
ones; nobody may do more for the sake of it than an unknown client may.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeName:
    """A node of the cluster. Its own name is unique in its replica set only."""

    replica_set: str
    node: str

    def __str__(self) -> str:
        return f"node {self.node} of {self.replica_set}"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls.

    Attributes:
        node: which node; None for a client.
        forwarded_by: the node that passed the call on, and says so; None when it came directly.
    """

    node: NodeName | None = None
    forwarded_by: NodeName | None = None

    def __str__(self) -> str:
        who = str(self.node) if self.node is not None else "a client"
        return who if self.forwarded_by is None else f"{who} through {self.forwarded_by}"


ANONYMOUS = Principal()
"""A client: none of them has a name as long as nobody is asked for a token."""
