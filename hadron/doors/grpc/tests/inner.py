"""A node's door without gRPC before it: in the test's own loop, where its parts are at hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from hadron.client.client import Client
from hadron.client.connecting.ports import ClientPorts
from hadron.doors.grpc.bridge import Lane
from hadron.doors.grpc.door import GrpcDoor
from hadron.doors.grpc.limits import Limits
from hadron.doors.grpc.rpc import Rpc
from hadron.doors.grpc.statuses import Status
from hadron.node.own_network import OwnNetwork
from hadron.testing.nodes import CLIENT, Nodes


class InnerCall:
    """A call of a program that reads all that it is sent, on the connection `peer`.

    Attributes:
        answers: as bytes.
        status: how it has failed; None: it has not, or is under way.
    """

    def __init__(
        self, door: GrpcDoor, path: str, *said: Any, peer: str = "ipv4:10.0.0.1:5", **metadata: str
    ) -> None:
        self.answers: list[bytes] = []
        self.status: Status | None = None
        self._is_over = False
        self._news = trio.Event()
        self._rpc = Rpc(Lane(lambda drain: drain()), self, path, metadata, peer)
        door.accept(self._rpc)
        for each in said:
            self.say(each)

    def say(self, message: Any) -> None:
        self._rpc.receive(message.SerializeToString())

    def end(self) -> None:
        """Say nothing more."""
        self._rpc.ended()

    def cancel(self) -> None:
        self._rpc.over()

    async def until(self, count: int) -> None:
        """So many answers are here, or it is over."""
        with trio.fail_after(60):
            while len(self.answers) < count and not self._is_over:
                await self._news.wait()

    async def wait(self) -> str:
        """Until it is over. Returns the code."""
        with trio.fail_after(60):
            while not self._is_over:
                await self._news.wait()
        code: str = self.status.code.name if self.status is not None else "OK"
        return code

    def _tell(self) -> None:
        news, self._news = self._news, trio.Event()
        news.set()

    # --- the door's -----------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        self.answers.append(data)
        self._rpc.written(len(data))
        self._tell()

    def finish(self, status: Status | None) -> None:
        self.status, self._is_over = status, True
        self._rpc.over()
        self._tell()

    def cut(self, status: Status) -> None:
        self.finish(status)


@asynccontextmanager
async def a_door(
    directory: Path, nodes_count: int = 1, **limits: Any
) -> AsyncIterator[tuple[GrpcDoor, Client, Nodes]]:
    """That of the leader, with these limits."""
    async with trio.open_nursery() as nursery:
        nodes = Nodes(directory, nodes_count, nursery)
        await nodes.start()
        await nodes.wait_serving()
        node = nodes.node("n1")
        network = OwnNetwork(
            nodes.network.host(CLIENT), lambda: node.address, node.take_own, "a door"
        )
        door = GrpcDoor(node, ClientPorts(network=network), network.dial_own, Limits(**limits))
        await nursery.start(door.run)
        async with nodes.client() as client:
            yield door, client, nodes
        nursery.cancel_scope.cancel()
