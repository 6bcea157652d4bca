"""The outside of a client: time, randomness and network, real by default.

The simulator and tests give their own; a program never needs to.
"""

from __future__ import annotations

import msgspec

from hadron.model.ports import Clock, Network, Random
from hadron.wire.sockets import SocketNetwork
from hadron.wire.system import SystemClock, SystemRandom


class ClientPorts(msgspec.Struct, frozen=True):
    """Everything nondeterministic that a client touches."""

    network: Network = msgspec.field(default_factory=SocketNetwork)
    clock: Clock = msgspec.field(default_factory=SystemClock)
    random: Random = msgspec.field(default_factory=SystemRandom)
