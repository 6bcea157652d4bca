"""The connection to one node, as all of a client share it: dialed once for all who ask.

Safety rule: it is open once the node has answered on it, and is of the cluster that is meant.
"""

from __future__ import annotations

from typing import Final

from hadron.client.connecting import probes
from hadron.client.connecting.background import Background, SingleFlight
from hadron.client.connecting.ports import ClientPorts
from hadron.client.connecting.topology import Recognize
from hadron.model.errors import HadronError, PeerError
from hadron.wire.connection import KEEPALIVE_S, SILENCE_LIMIT_S, Connection
from hadron.wire.dialing import DIAL_TIMEOUT_S, dial
from hadron.wire.messages import cluster_pb2

START_HINT: Final = (
    "say where it runs, naming every node of the cluster: HADRON_URL, --server of commands, or the "
    "URL in a program; or start one with `hadron dev` or `hadron cluster up`"
)


class Link:
    """The connection to one node: open once the node has answered on it.

    *(A forwarder of ports, a balancer or a stopped node takes connections and answers nothing: such
    a leader counts as one that cannot be dialed, and is reached through others.)*
    """

    def __init__(
        self,
        address: str,
        ports: ClientPorts,
        background: Background,
        closed: HadronError,
        recognize: Recognize,
        *,
        keepalive_s: float = KEEPALIVE_S,
        silence_limit_s: float = SILENCE_LIMIT_S,
    ) -> None:
        """`recognize`: of the cluster that is meant; nothing is said to a node of another one."""
        self.address = address
        self.connection: Connection | None = None
        self.greeting = cluster_pb2.TopologyResponse()
        """What the node said of the cluster when it was dialed last."""
        self._ports = ports
        self._recognize = recognize
        self._background = background
        self._dialing = SingleFlight(background, self._dial, closed)
        self._patience = keepalive_s, silence_limit_s

    @property
    def is_open(self) -> bool:
        return self.connection is not None and not self.connection.is_closed

    async def open(self) -> Connection:
        """The open connection, dialed when there is none. Raises `PeerError`."""
        connection = self.connection
        if connection is not None and not connection.is_closed:
            return connection
        return await self._dialing.get()

    async def _dial(self) -> Connection:
        keepalive_s, silence_limit_s = self._patience
        try:
            connection = await dial(
                self._ports.network,
                self.address,
                timeout_s=DIAL_TIMEOUT_S,
                keepalive_s=keepalive_s,
                silence_limit_s=silence_limit_s,
            )
        except TimeoutError:
            raise PeerError(
                f"{self.address} did not answer within {DIAL_TIMEOUT_S:g} s",
                "is the node reachable? a firewall may drop the packets",
            ) from None
        except OSError as error:
            raise PeerError(
                f"cannot connect to {self.address}: {error.strerror or error}", START_HINT
            ) from error
        scope = self._background.start(connection.run)
        try:
            if not scope.cancel_called:
                greeting = await probes.ask(connection)
                self._recognize(self.address, greeting)
                self.greeting, self.connection = greeting, connection
        finally:
            if self.connection is not connection:
                connection.close()
        return connection
