"""grpc.health.v1: whether calls are better sent here than elsewhere, as HTTP's `/readyz` says it.

All services of a node are ready together, and none of them while the node is about to stop.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import trio
from grpc_health.v1 import health_pb2 as pb

from hadron.doors.clients import Clients
from hadron.doors.grpc.requests import receive_one
from hadron.doors.grpc.rpc import Talk
from hadron.doors.grpc.statuses import stopping
from hadron.doors.readiness import OwnNode, unready
from hadron.model.errors import NotFoundError
from hadron.model.problems import shorten

CHECK: Final = "/grpc.health.v1.Health/Check"
WATCH: Final = "/grpc.health.v1.Health/Watch"

_LOOK_S: Final = 1.0
"""A leader's failover takes a second or two; who watches hears of it as late as who asks."""

_Status = pb.HealthCheckResponse


class Health:
    """At one door.

    Args:
        services: that are known by name; "" is the node.
    """

    def __init__(self, node: OwnNode, clients: Clients, services: Iterable[str]) -> None:
        self._node = node
        self._clients = clients
        self._services = frozenset(("", *services))
        self._draining = trio.Event()

    def drain(self) -> None:
        """The node is about to stop: watchers are told, and let go."""
        self._draining.set()

    async def check(self, talk: Talk) -> None:
        name = (await receive_one(talk, pb.HealthCheckRequest)).service
        if name not in self._services:
            raise NotFoundError(
                f"there is no service {shorten(name)} here", 'reflection lists them; "" is the node'
            )
        await self._say(talk, await self._status())

    async def watch(self, talk: Talk) -> None:
        name = (await receive_one(talk, pb.HealthCheckRequest)).service
        # Who serves the call ends it; until then it hears what there is to hear.
        talk.rpc.on_drain = self.drain
        told: int | None = None
        while True:
            is_last = self._draining.is_set()
            known = name in self._services
            status = await self._status() if known else _Status.SERVICE_UNKNOWN
            if status != told:
                await self._say(talk, status)
                told = status
            if is_last:
                raise stopping()
            with trio.move_on_after(_LOOK_S):
                await self._draining.wait()

    async def _status(self) -> pb.HealthCheckResponse.ServingStatus:
        if self._draining.is_set() or await unready(self._node, self._clients):
            return _Status.NOT_SERVING
        return _Status.SERVING

    async def _say(self, talk: Talk, status: pb.HealthCheckResponse.ServingStatus) -> None:
        await talk.send(_Status(status=status).SerializeToString())
