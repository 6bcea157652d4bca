"""How this node is, and the cluster as it sees it."""

from __future__ import annotations

from typing import Final

import msgspec
import trio
from starlette.responses import Response

from hadron.doors.http.call import Call, NoQuery, json_response
from hadron.doors.http.door import Door
from hadron.doors.http.messages import plain
from hadron.doors.http.problems import HttpError
from hadron.model.errors import HadronError
from hadron.model.ids import DEFAULT_NAMESPACE

_AT_WORK: Final = frozenset({"serving", "following"})
_READY_S: Final = 3.0
"""What an orchestrator waits for such an answer, or less."""


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
    """Whether requests are better sent here than elsewhere: the node is at work, and its replica
    set answers."""
    page = door.node.status()
    if page.state not in _AT_WORK:
        raise HttpError(
            503,
            f"node {page.node} is {page.state}" + (f": {page.trouble}" if page.trouble else ""),
            "ask again",
            retryable=True,
        )
    trouble = f"the leader of {page.replica_set} does not answer"
    with trio.move_on_after(_READY_S):
        try:
            client = await door.clients.of(DEFAULT_NAMESPACE)
            await client._session.connect(page.replica_set)
            return json_response(Health("ready"))
        except HadronError as error:
            trouble = error.message
    raise HttpError(503, trouble, "ask again", retryable=True)


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
