"""The outside of a client: time, randomness and network, real by default.

The simulator and tests give their own; a program never needs to.
"""

from __future__ import annotations

import msgspec

from hadron.client.connecting.url import Endpoint
from hadron.model.ports import Clock, Network, Random
from hadron.wire.sockets import SocketNetwork
from hadron.wire.system import SystemClock, SystemRandom


class ClientPorts(msgspec.Struct, frozen=True):
    """Everything nondeterministic that a client touches."""

    network: Network = msgspec.field(default_factory=SocketNetwork)
    clock: Clock = msgspec.field(default_factory=SystemClock)
    random: Random = msgspec.field(default_factory=SystemRandom)


def ports_of(endpoint: Endpoint) -> ClientPorts:
    """What a program has that gives none. Raises `RequestError` where a library is missing."""
    if not endpoint.over_grpc:
        return ClientPorts()
    from hadron.client.connecting.over_grpc import GrpcNetwork

    return ClientPorts(network=GrpcNetwork(endpoint.addresses))
