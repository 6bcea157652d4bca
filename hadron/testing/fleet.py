"""Several local replica sets whose processes break, and the wires between them and to clients.

    with FaultyFleet(directory, {"meta": 3, "eu/p0": 3, "us/p0": 3}, clients=("c1",)) as fleet:
        fleet.cut("us/p0", "eu/p0"); fleet.pause("eu/p0"); ...; fleet.heal_all()
        async with hadron.connect(fleet.url, ports=fleet.ports("c1")) as client: ...

A side is a replica set or a client. Each has links of its own, in one fault proxy, to every node of
the other sets; members of one set dial each other directly (`cluster` breaks what is between them).
So a set can be cut off as a whole, from any of the others and from any client.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from hadron.client.connecting.ports import ClientPorts
from hadron.node.supervision.cluster import free_ports
from hadron.node.supervision.local_fleet import LocalFleet
from hadron.testing.cluster import Routes
from hadron.testing.proxy import CLEAR, CUT, FaultProxy

_HOST: Final = "127.0.0.1"


class FaultyFleet(LocalFleet):
    """Replica sets that see each other, and clients, through a fault proxy.

    Args:
        directory: where configuration, data and logs go; made when missing.
        sets: name → how many nodes; the first owns the schema.
        durability: "fsync" or "os".
        clients: names of clients that can be cut off; any other reaches every node always.
    """

    def __init__(
        self,
        directory: Path,
        sets: Mapping[str, int],
        *,
        durability: str = "fsync",
        clients: Sequence[str] = (),
    ) -> None:
        super().__init__(directory, sets, durability=durability)
        self._proxy = FaultProxy(self.directory / "proxy.log")
        self._clients = tuple(clients)
        self._links: dict[tuple[str, str], dict[str, str]] = {}
        """(side, set) → the set's addresses → what that side dials."""
        self._cut: dict[tuple[str, str], None] = {}

    def __enter__(self) -> Self:
        self._proxy.__enter__()
        try:
            self._open_links()
            for name, each in self.items():
                routes = str(self._write_routes(name))
                each.program = (sys.executable, "-m", "hadron.testing.routed_node", routes)
            return super().__enter__()
        except BaseException:
            self._proxy.__exit__(None, None, None)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            super().__exit__(kind, error, traceback)
        finally:
            self._proxy.__exit__(kind, error, traceback)

    def _open_links(self) -> None:
        nodes = {name: [node.address for node in each.config.nodes] for name, each in self.items()}
        pairs = [(side, name) for side in (*self, *self._clients) for name in self if side != name]
        # Nodes do not listen yet: their ports look free.
        taken = {address for addresses in nodes.values() for address in addresses}
        wanted = sum(len(nodes[name]) for _, name in pairs)
        found = (f"{_HOST}:{port}" for port in free_ports(wanted + len(taken)))
        free = iter([address for address in found if address not in taken])
        for side, name in pairs:
            self._links[side, name] = links = {address: next(free) for address in nodes[name]}
            for address, link in links.items():
                self._proxy.open(_link(side, address), link, target=address)

    def _write_routes(self, name: str) -> Path:
        path = self.directory / f"{name.replace('/', '-')}.routes"
        path.write_bytes(msgspec.json.encode(self.routes(name)))
        return path

    # --- clients --------------------------------------------------------------------------------

    def routes(self, side: str) -> dict[str, str]:
        """The address of every node that is not of this side → what this side dials instead."""
        return {
            address: link
            for (source, _), links in self._links.items()
            if source == side
            for address, link in links.items()
        }

    def ports(self, client: str) -> ClientPorts:
        """The outside as the client called `client` has it."""
        return ClientPorts(network=Routes(self.routes(client)))

    # --- the network ----------------------------------------------------------------------------

    def cut(self, one: str, other: str) -> None:
        """Nothing passes between two sides, either way; what they send arrives after healing."""
        for pair in ((one, other), (other, one)):
            if pair in self._links:
                self._cut[pair] = None
                self._apply(pair)

    def reset(self, one: str, other: str) -> None:
        """Break every connection between two sides; both see an error, and may dial again."""
        for pair in ((one, other), (other, one)):
            for address in self._links.get(pair, ()):
                self._proxy.reset(_link(pair[0], address))

    def heal_all(self) -> None:
        """Undo every cut; what was held back arrives now."""
        touched = list(self._cut)
        self._cut.clear()
        for pair in touched:
            self._apply(pair)

    def _apply(self, pair: tuple[str, str]) -> None:
        weather = CUT if pair in self._cut else CLEAR
        for address in self._links[pair]:
            self._proxy.set(_link(pair[0], address), there=weather, back=weather)

    # --- processes ------------------------------------------------------------------------------

    def pause(self, name: str) -> None:
        """SIGSTOP every node of a set: connections stay, nobody answers."""
        for node in self[name].names:
            self[name].pause(node)

    def resume(self, name: str) -> None:
        """SIGCONT."""
        for node in self[name].names:
            self[name].resume(node)


def _link(side: str, address: str) -> str:
    return f"{side}>{address}"
