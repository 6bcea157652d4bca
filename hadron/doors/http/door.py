"""What handlers have to do with: the cluster's clients, this node, and what is bounded here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from hadron.client.connecting.ports import ClientPorts
from hadron.doors.clients import Clients
from hadron.doors.http.call import room_of
from hadron.doors.http.consumers import Consumers
from hadron.doors.http.draining import Draining
from hadron.doors.http.limits import Limits
from hadron.doors.http.problems import HttpError
from hadron.doors.readiness import OwnNode


class Door:
    """Of one node, as long as it runs.

    Attributes:
        clients: by namespace, with which everything is done.
        node: which this door is in.
        consumers: members of groups that poll.
        draining: the node is about to stop: who waits for what may come is let go.
        documents: for threads that read what is to be declared: one at a time, because together
            they would leave the event loop, which waits for each of them in turn, nothing.
    """

    def __init__(self, node: OwnNode, ports: ClientPorts, limits: Limits) -> None:
        self.node = node
        self.limits = limits
        self.ports = ports
        self.clients = Clients(lambda: node.address, ports)
        self.consumers = Consumers(limits.consumers)
        self.documents = trio.CapacityLimiter(1)
        self.room = room_of(limits)
        self._streams = 0
        self.draining = Draining()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. `task_status` is told when requests may come."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.clients.run)
            await nursery.start(self.consumers.run)
            task_status.started()

    def now_ms(self) -> int:
        return self.ports.clock.now_ms()

    @contextmanager
    def following(self) -> Iterator[None]:
        """While an answer is open that goes on. Raises `HttpError` where there are too many."""
        if self._streams >= self.limits.streams:
            raise HttpError(
                429,
                f"{self.limits.streams} streams are open at this node",
                "close some, or use another node",
                retryable=True,
            )
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1
