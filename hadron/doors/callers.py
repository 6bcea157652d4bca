"""Who calls through a door, in words: for who serves the call, and for people who read logs.

Rule: it is what somebody says of itself. Nobody is asked for a proof yet (HTTP H2), so nobody may
do more, or less, for the sake of it.
"""

from __future__ import annotations

from hadron.model.principals import claimed
from hadron.model.problems import shorten


def who_calls(door: str, address: str, agent: str) -> str:
    """`127.0.0.1:50124 by HTTP ('curl/8.5.0')`: printable, and short.

    Args:
        door: the protocol.
        agent: the program, as it calls itself; "" says nothing.
    """
    name = f" ({shorten(agent)})" if agent else ""
    return claimed(f"{address} by {door}{name}")
