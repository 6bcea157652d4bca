"""Who calls, as a value.

Rule: a principal says who somebody *says* to be. Nobody is asked for a proof yet (CLUSTER R11), so
what it names is for logs, for people, and for telling late messages of a node from its present
ones; nobody may do more for the sake of it than an unknown client may.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_MAX_CLAIM: Final = 200
"""Characters of what somebody says of itself: room for an address and a program's name."""


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
        who = self.name
        return who if self.forwarded_by is None else f"{who} through {self.forwarded_by}"

    @property
    def name(self) -> str:
        """Who it is, without the way that it came."""
        return str(self.node) if self.node is not None else "a client"


ANONYMOUS = Principal()
"""A client: none of them has a name as long as nobody is asked for a token."""


def claimed(text: str) -> str:
    """What somebody says of itself, fit to be shown: printable, and short. Pure."""
    shown = "".join(each if each.isprintable() else "?" for each in text[: _MAX_CLAIM + 1])
    return shown if len(shown) <= _MAX_CLAIM else f"{shown[: _MAX_CLAIM - 1]}…"
