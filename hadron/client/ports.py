"""The outside of a client: time, randomness and network, real by default.

The simulator and tests give their own; a program never needs to.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from hadron.model.ports import Clock, Network, Random
from hadron.wire.sockets import SocketNetwork

_AWAKE_OR_NOT: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that goes on while the machine is suspended: on Linux the monotonic one does not, and a
laptop that wakes up would think that its leases are as fresh as before."""


class SystemClock:
    """`ports.Clock` of this machine. Its seconds pass while the machine is suspended, too.

    Attributes:
        monotonic_s: as a method it would take three times as long, and members look at the clock
            for each record.
    """

    monotonic_s: Callable[[], float]

    def __init__(self) -> None:
        self.monotonic_s = partial(time.clock_gettime, _AWAKE_OR_NOT)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class SystemRandom:
    """`ports.Random` of this machine."""

    def token_bytes(self, count: int) -> bytes:
        return secrets.token_bytes(count)

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)


class ClientPorts(msgspec.Struct, frozen=True):
    """Everything nondeterministic that a client touches."""

    network: Network = msgspec.field(default_factory=SocketNetwork)
    clock: Clock = msgspec.field(default_factory=SystemClock)
    random: Random = msgspec.field(default_factory=SystemRandom)
