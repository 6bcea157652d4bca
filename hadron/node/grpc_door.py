"""A node's gRPC door: its server, and its life around the node's."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from hadron.client.connecting.ports import ClientPorts
from hadron.doors.grpc.bridge import Bridge
from hadron.doors.grpc.door import GrpcDoor, paths, services
from hadron.doors.grpc.limits import Limits
from hadron.doors.grpc.server import GrpcServer
from hadron.model.errors import ConfigurationError
from hadron.node.door_life import run_behind
from hadron.node.own_network import OwnNetwork
from hadron.node.runtime import Node

_log = logging.getLogger(__name__)

_END_S: Final = 2.0
"""For gRPC's own thread to end."""

RunNode = Callable[[trio.TaskStatus[None]], Awaitable[None]]


async def run_with_grpc(
    node: Node, run: RunNode, task_status: trio.TaskStatus[None], limits: Limits | None = None
) -> None:
    """Run a node, by `run`, until it ends, with its door open. Whoever cancels this closes the door
    first: calls that are under way may end, for some seconds, before the node does."""
    opened = _Opened(node, limits or Limits())

    async def open_door(nursery: trio.Nursery) -> None:
        await nursery.start(opened.door.run)
        await opened.open()

    await run_behind(open_door, lambda: run(task_status), opened.close)


class _Opened:
    """The door's two halves."""

    def __init__(self, node: Node, limits: Limits) -> None:
        host = node.host
        assert host.node.grpc is not None
        self._node = node
        self._address = host.node.grpc
        self._most_s = limits.drain_s + _END_S

        name = f"the gRPC door of {host.node.name}"
        network = OwnNetwork(host.network, lambda: node.address, node.take_own, name)
        ports = ClientPorts(network, host.clock, host.random)
        self.door = GrpcDoor(node, ports, network.dial_own, limits)
        self._bridge = Bridge()
        self._started = trio.Event()
        self._stopped = trio.Event()
        self._outcome: int | Exception | None = None
        self._server = GrpcServer(
            self._address,
            paths(),
            services(),
            self._bridge,
            self.door.accept,
            limits,
            self._on_started,
            self._stopped.set,
        )

    def _on_started(self, outcome: int | Exception) -> None:
        self._outcome = outcome
        self._started.set()

    async def open(self) -> None:
        """Raises `ConfigurationError` for an address that cannot be had."""
        self._server.start()
        await self._started.wait()
        if isinstance(self._outcome, Exception):
            raise ConfigurationError(
                f"node {self._node.host.node.name} cannot listen for gRPC on {self._address}: "
                f"{self._outcome}",
                "is another process using the port? change `grpc:`, or stop that process",
            ) from self._outcome
        self._node.grpc_address = f"{self._address.rpartition(':')[0]}:{self._outcome}"
        _log.info("gRPC is served at %s", self._node.grpc_address)

    async def close(self) -> None:
        if self._outcome is None or isinstance(self._outcome, Exception):
            return
        self.door.drain()
        self._bridge.to_grpc.put(self._server.stop)
        self._node.waits_for = f"calls over gRPC, for {self._most_s:g} s at most"
        with trio.move_on_after(self._most_s):
            await self._stopped.wait()
        self._node.waits_for = ""
