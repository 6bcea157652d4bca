"""Serves `hadron.v1.Cluster`: topology and status, answered by every node at any time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from hadron.wire.calls import Call
from hadron.wire.messages import cluster_pb2
from hadron.wire.services import Served, served

_Topology: TypeAlias = Call[cluster_pb2.TopologyRequest, cluster_pb2.TopologyResponse]
_Status: TypeAlias = Call[cluster_pb2.StatusRequest, cluster_pb2.StatusResponse]


class ClusterService:
    """For the node called `node` of `replica_set`. What it answers is the node's own: only it sees
    all of its parts.

    Args:
        describe_other: asks another node of the cluster, by replica set and name, how it is.
    """

    def __init__(
        self,
        replica_set: str,
        node: str,
        *,
        topology: Callable[[], cluster_pb2.TopologyResponse],
        describe: Callable[[], cluster_pb2.StatusResponse],
        describe_other: Callable[[str, str], Awaitable[cluster_pb2.StatusResponse]],
    ) -> None:
        self._own = replica_set, node
        self._topology = topology
        self._describe = describe
        self._describe_other = describe_other

    def methods(self) -> tuple[Served, ...]:
        pb = cluster_pb2
        return (
            served("Topology", pb.TopologyRequest, pb.TopologyResponse, self._answer_topology),
            served("Status", pb.StatusRequest, pb.StatusResponse, self._answer_status),
        )

    def _answer_topology(
        self, call: _Topology, _request: cluster_pb2.TopologyRequest, _attachment: memoryview
    ) -> None:
        call.send(self._topology(), end=True)

    def _answer_status(
        self, call: _Status, request: cluster_pb2.StatusRequest, _attachment: memoryview
    ) -> None:
        wanted = request.replica_set, request.node
        if wanted in (("", ""), self._own):
            call.send(self._describe(), end=True)
        else:
            call.spawn(self._relay_status, call, *wanted)

    async def _relay_status(self, call: _Status, replica_set: str, node: str) -> None:
        call.send(await self._describe_other(replica_set, node), end=True)
