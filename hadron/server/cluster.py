"""Serves `hadron.v1.Cluster`: topology and status, answered by every node at any time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hadron.wire.calls import Call, Handler
from hadron.wire.messages import cluster_pb2, method


class ClusterService:
    """`describe` and `topology` are the node's own: only it sees all of its parts."""

    def __init__(
        self,
        topology: Callable[[], cluster_pb2.TopologyResponse],
        describe: Callable[[], cluster_pb2.StatusResponse],
    ) -> None:
        self._topology = topology
        self._describe = describe

    def handlers(self) -> dict[int, Handler]:
        return {
            method("Topology").number: self._answer_topology,
            method("Status").number: self._answer_status,
        }

    def _answer_topology(self, call: Call, _request: Any, _attachment: memoryview) -> None:
        call.send(self._topology(), end=True)

    def _answer_status(self, call: Call, _request: Any, _attachment: memoryview) -> None:
        call.send(self._describe(), end=True)
