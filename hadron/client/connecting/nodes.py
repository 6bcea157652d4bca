"""What single nodes are asked, whoever leads: how they are, and what they know of the cluster."""

from __future__ import annotations

import contextlib
from typing import Final

import anyio

from hadron.client.connecting.session import Session
from hadron.model.errors import HadronError
from hadron.wire.connection import Connection
from hadron.wire.messages import cluster_pb2, method

_STATUS: Final = method("Status")
_TOPOLOGY: Final = method("Topology")

_ANSWER_WITHIN_S: Final = 5.0
"""Of several nodes that are asked at once, each: those that are down must not hold up the rest."""


class Nodes:
    """Of one client. One try each: raises `PeerError`.

    Args:
        timeout_s: for each answer.
    """

    def __init__(self, session: Session, timeout_s: float) -> None:
        self._session = session
        self._timeout_s = timeout_s

    async def connect(self, address: str | None) -> Connection:
        """A connection to the node at `address` (None: any), for what only nodes and operators
        ask; it stays the client's."""
        session = self._session
        return await (session.connect_to(address) if address else session.connect_any())

    async def topology(self, address: str | None) -> cluster_pb2.TopologyResponse:
        """As the node at `address` sees it; as any, which is retried."""
        request = cluster_pb2.TopologyRequest()
        if address is None:
            answer, _ = await self._session.request("", _TOPOLOGY, request)
        else:
            connection = await self.connect(address)
            answer, _ = await connection.request(_TOPOLOGY, request, timeout_s=self._timeout_s)
        self._session.topology.merge(answer)
        return answer  # type: ignore[no-any-return]

    async def agreed_topology(self) -> cluster_pb2.TopologyResponse:
        """As all nodes that answer see it together, each replica set by the statement that counts:
        a node that still has the old file may never hear of a promotion. Raises `PeerError` when
        nobody answers."""
        agreed = cluster_pb2.TopologyResponse()
        agreed.CopyFrom(await self.topology(None))
        known = self._session.topology
        asked: set[str] = set()

        async def ask(address: str) -> None:
            # Who does not answer has said nothing: the others know it, or nobody does.
            with contextlib.suppress(HadronError), anyio.move_on_after(_ANSWER_WITHIN_S):
                await self.topology(address)

        while new := set(known.addresses(self._session.endpoint.addresses)) - asked:
            asked |= new
            async with anyio.create_task_group() as tasks:
                for address in new:
                    tasks.start_soon(ask, address)
        del agreed.replica_sets[:]
        agreed.replica_sets.extend(known.replica_sets())
        return agreed

    async def status(self, address: str | None) -> cluster_pb2.StatusResponse:
        """How the node at `address` is."""
        return await self._status(address, cluster_pb2.StatusRequest())

    async def status_through(
        self, address: str | None, replica_set: str, node: str
    ) -> cluster_pb2.StatusResponse:
        """How a node is that cannot be reached from here: the node at `address` asks it. Raises
        `PeerError` when it does not answer there either."""
        request = cluster_pb2.StatusRequest(replica_set=replica_set, node=node)
        return await self._status(address, request)

    async def _status(
        self, address: str | None, request: cluster_pb2.StatusRequest
    ) -> cluster_pb2.StatusResponse:
        connection = await self.connect(address)
        answer, _ = await connection.request(_STATUS, request, timeout_s=self._timeout_s)
        return answer  # type: ignore[no-any-return]
