"""Whether calls are better sent to this node than elsewhere: what `/readyz` answers, and gRPC's
health service."""

from __future__ import annotations

from typing import Final, Protocol

import trio

from hadron.doors.clients import Clients
from hadron.model.errors import HadronError, NotReadyError
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.wire.messages import cluster_pb2

_AT_WORK: Final = frozenset({"serving", "following"})
_READY_S: Final = 3.0
"""What an orchestrator waits for such an answer, or less."""


class OwnNode(Protocol):
    """The node that a door is in."""

    @property
    def address(self) -> str:
        """Where others dial it."""
        ...

    def status(self) -> cluster_pb2.StatusResponse:
        """Raises `NotReadyError` before it is anything."""
        ...


async def unready(node: OwnNode, clients: Clients) -> str:
    """Why the node is not ready; "" while it is at work, and its replica set answers."""
    try:
        page = node.status()
    except NotReadyError as error:
        return error.message
    if page.state not in _AT_WORK:
        return f"node {page.node} is {page.state}" + (f": {page.trouble}" if page.trouble else "")
    with trio.move_on_after(_READY_S):
        try:
            client = await clients.of(DEFAULT_NAMESPACE)
            await client._session.connect(page.replica_set)
            return ""
        except HadronError as error:
            return error.message
    return f"the leader of {page.replica_set} does not answer"
