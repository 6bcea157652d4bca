"""The network of a node's own doors: to the node itself without a socket, elsewhere as usual."""

from __future__ import annotations

from collections.abc import Callable

from hadron.model.ports import Listener, Network, Transport
from hadron.wire.pipes import pipe


class OwnNetwork:
    """`ports.Network` for a client inside a node.

    Args:
        own_address: where others dial the node.
        accept: takes in a connection there; raises `OSError` while the node takes in none.
        name: what the node calls this client by.
    """

    def __init__(
        self,
        network: Network,
        own_address: Callable[[], str],
        accept: Callable[[Transport], None],
        name: str,
    ) -> None:
        self._name = name
        self._network = network
        self._own_address = own_address
        self._accept = accept

    async def dial(self, address: str) -> Transport:
        if address != self._own_address():
            return await self._network.dial(address)
        return self.dial_own(self._name)

    def dial_own(self, peer: str) -> Transport:
        """To the node, for somebody whom it knows as `peer`. Raises `OSError`."""
        dialed, accepted = pipe(peer, self._own_address())
        self._accept(accepted)
        return dialed

    async def listen(self, address: str) -> Listener:
        return await self._network.listen(address)
