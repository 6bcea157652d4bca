"""Whether a way that brings nothing is dead, asked when somebody waits for it.

A connection whose packets are dropped looks like one to a leader that has nothing to say, until the
limit for silence (15 s) has passed. What every node answers at any time tells the two apart sooner.
To end the connection is safe at any time: what was under way is in doubt then, and is sent again as
it is (PROTOCOL D1), on another way if there is one.
"""

from __future__ import annotations

import logging
from typing import Final

import anyio

from hadron.client.connecting.background import Background
from hadron.model.errors import ConnectionLostError, DeadlineExceededError, HadronError
from hadron.wire.calling import Caller
from hadron.wire.messages import cluster_pb2, method

_log = logging.getLogger(__name__)

ASK_TIMEOUT_S: Final = 3.0
"""For one node's answer about the topology, which every node gives at any time. Three packets in a
row may be lost in it."""

_GRACE_S: Final = 0.1
"""What has arrived while this program did not get to its event loop is read first."""

_TOPOLOGY: Final = method("Topology")


async def ask(way: Caller) -> cluster_pb2.TopologyResponse:
    """What the node at the other end says of the cluster. When nothing at all comes from there
    meanwhile, the way is closed. Raises `PeerError`."""
    heard = way.heard
    try:
        answer, _ = await way.request(
            _TOPOLOGY, cluster_pb2.TopologyRequest(), timeout_s=ASK_TIMEOUT_S
        )
    except DeadlineExceededError:
        await anyio.sleep(_GRACE_S)
        if way.heard == heard:
            way.close(
                ConnectionLostError(
                    f"{way.peer} said nothing for {ASK_TIMEOUT_S:g} s", "is it stopped or cut off?"
                )
            )
        raise
    assert isinstance(answer, cluster_pb2.TopologyResponse)
    return answer


class Probes:
    """Of one client: at most one question under way on each way."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._asking: set[Caller] = set()

    def start(self, way: Caller) -> None:
        """The leader at its other end owes an answer for longer than usual."""
        if way not in self._asking and not way.is_closed:
            self._asking.add(way)
            self._background.start(self._probe, way)

    async def _probe(self, way: Caller) -> None:
        try:
            await ask(way)
        except HadronError as error:
            # Whoever waits hears of it by the end of the way, if that is what came of it.
            _log.debug("%s: %s", way.peer, error)
        finally:
            self._asking.discard(way)
