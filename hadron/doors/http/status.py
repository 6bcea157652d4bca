"""How this node is, and the cluster as it sees it."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from hadron.doors.http.call import Call, NoQuery, json_response
from hadron.doors.http.door import Door
from hadron.doors.http.messages import plain
from hadron.doors.http.problems import HttpError
from hadron.doors.readiness import unready
from hadron.model.ids import DEFAULT_NAMESPACE


class Health(msgspec.Struct):
    """The process answers."""

    status: str


class NodeAnswer(msgspec.Struct):
    """A node of a replica set."""

    name: str
    role: str
    address: str


class ReplicaSetAnswer(msgspec.Struct):
    """A replica set, as its configuration has it."""

    name: str
    epoch: int
    nodes: list[NodeAnswer]


class TopologyAnswer(msgspec.Struct):
    """The cluster, as this node knows it."""

    cluster: str
    metadata: str
    node: str
    version: str
    replica_sets: list[ReplicaSetAnswer]


async def health(_door: Door, _call: Call, _query: NoQuery) -> Response:
    return json_response(Health("ok"))


async def ready(door: Door, _call: Call, _query: NoQuery) -> Response:
    if trouble := await unready(door.node, door.clients):
        raise HttpError(503, trouble, "ask again", retryable=True)
    return json_response(Health("ready"))


async def status(door: Door, _call: Call, _query: NoQuery) -> Response:
    return json_response(plain(door.node.status()))


async def topology(door: Door, _call: Call, _query: NoQuery) -> Response:
    client = await door.clients.of(DEFAULT_NAMESPACE)
    seen = await client.topology(door.node.address)
    return json_response(
        TopologyAnswer(
            seen.cluster,
            seen.metadata,
            seen.node,
            seen.version,
            [
                ReplicaSetAnswer(
                    each.name,
                    each.epoch,
                    [NodeAnswer(node.name, node.role, node.address) for node in each.nodes],
                )
                for each in seen.replica_sets
            ],
        )
    )
