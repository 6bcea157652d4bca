"""Whether some node knows more of the schema than the one at which a client follows it.

A node that tells nothing because nothing has changed looks like one that hears of no change: its
replica set has gone on without it, it is cut off from its leader, or its set from the metadata set.
It cannot always know, so whoever follows asks others, now and then (CLUSTER R13).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

import anyio

from hadron.client.connecting.probes import ASK_TIMEOUT_S
from hadron.client.connecting.session import Session
from hadron.model.errors import HadronError
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.wire.calling import Caller
from hadron.wire.messages import method, schema_pb2

_GET: Final = method("GetObjects")

_QUIET_S: Final = 10.0
"""A watch may tell nothing for so long before the metadata set's leader is asked, for one object. A
thousand idle clients cost it a hundred such answers a second, and where it answers no other node
is dialed."""

_GRACE_S: Final = 2.0
"""By then a node in step has told of what others know already."""


class Elsewhere:
    """Of one client.

    Attributes:
        told: messages of its watches, counted by whoever reads them.
        ahead: the way to a node that knows more than the last watch has told; None when none is
            known. Whoever takes it puts None there.
    """

    def __init__(self, session: Session) -> None:
        self.told = 0
        self.ahead: Caller | None = None
        self._session = session
        self._turn = 0

    async def look(self, stands: Callable[[], int], at: Caller) -> None:
        """Return once `ahead` is known: a node stands above what a watch has told, which `stands`
        gives, and that one, `at` another node, tells nothing."""
        while True:
            told = self.told
            await anyio.sleep(_QUIET_S)
            if self.told == told and (way := await self._above(stands(), at)) is not None:
                await anyio.sleep(_GRACE_S)
                if self.told == told:
                    self.ahead = way
                    return

    async def _above(self, index: int, at: Caller) -> Caller | None:
        """Ask the metadata set's leader, which has the latest word, or, where that does not answer,
        one of the others, each in turn."""
        session = self._session
        metadata = session.topology.metadata
        leader = session.topology.leader(metadata)
        if leader is not None:
            with contextlib.suppress(HadronError):
                way = session.connection_now(metadata) or await session.connect_to(leader)
                return way if await _index_at(way, latest=True) > index and way is not at else None
        addresses = session.topology.addresses(session.endpoint.addresses)
        if others := [address for address in addresses if address != leader]:
            self._turn += 1
            with contextlib.suppress(HadronError):
                way = await session.connect_to(others[self._turn % len(others)])
                return way if await _index_at(way) > index and way is not at else None
        return None


async def _index_at(way: Caller, *, latest: bool = False) -> int:
    request = schema_pb2.GetObjectsRequest(
        kind="Namespace", namespace=DEFAULT_NAMESPACE, name=DEFAULT_NAMESPACE, latest=latest
    )
    answer, _ = await way.request(_GET, request, timeout_s=ASK_TIMEOUT_S)
    return int(answer.metadata_index)
