"""A local cluster whose processes, wires and disks break when told to.

    with FaultyCluster(directory, clients=("c1",)) as cluster:
        cluster.isolate("n1"); ...; cluster.heal_all()
        async with hadron.connect(cluster.url, ports=cluster.ports("c1")) as client: ...

Every node has a configuration file of its own, in which the others' addresses are ports of a fault
proxy: one link for each pair and direction of dialing. Addresses are no part of what members must
agree on (PROTOCOL B1), so nodes take this for an ordinary network. A client dials by the link of
its own that leads to a node, whatever address for it the client was told by another node.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from hadron.client.connecting.ports import ClientPorts
from hadron.model.ports import Listener, Transport
from hadron.node.config import load_config, render
from hadron.node.replica_set import NodeConfig, ReplicaSetConfig
from hadron.node.supervision.cluster import LocalCluster, free_ports
from hadron.testing.proxy import CLEAR, CUT, FaultProxy, Weather
from hadron.wire.sockets import SocketNetwork

_HOST: Final = "127.0.0.1"


class Routes:
    """`ports.Network` of a client: where a node's addresses really lead.

    Args:
        addresses: address as told → address to dial; others are dialed as they are.
    """

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._addresses = addresses
        self._sockets = SocketNetwork()

    async def dial(self, address: str) -> Transport:
        return await self._sockets.dial(self._addresses.get(address, address))

    async def listen(self, address: str) -> Listener:
        return await self._sockets.listen(address)


class FaultyCluster(LocalCluster):
    """Node processes that see each other through a fault proxy.

    Args:
        directory: where configuration, data and logs go; made when missing.
        nodes: how many; the first leads.
        durability: "fsync" or "os".
        clients: names of clients that can be cut off; any other reaches every node always.
    """

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 3,
        durability: str = "fsync",
        clients: Sequence[str] = (),
    ) -> None:
        super().__init__(directory, nodes=nodes, durability=durability)
        self._proxy = FaultProxy(self.directory / "proxy.log")
        self._clients = tuple(clients)
        self._links: dict[tuple[str, str], str] = {}
        self._weather: dict[tuple[str, str], Weather] = {}
        self._refusing: set[tuple[str, str]] = set()

    def __enter__(self) -> Self:
        self._proxy.__enter__()
        try:
            self._open_links()
            self._write_own_configs(self.names)
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

    # --- configuration --------------------------------------------------------------------------

    def reconfigure(self, config: ReplicaSetConfig) -> None:
        """Give every node this configuration; it is read at a node's next start."""
        self.config_path.write_text(render(config))
        self.reload()

    def reload(self, *, but: Collection[str] = ()) -> None:
        """Take over what somebody else has written into the common file, `but` for those nodes
        that keep the file that they have.

        A new member gets links of its own. Clients that exist already do not know them: they reach
        it through those of whichever node told them of it.
        """
        self.release()
        self.config = load_config(self.config_path, os.environ)
        self._open_links()
        self._write_own_configs(name for name in self.names if name not in but)

    def _open_links(self) -> None:
        sides = (*self.names, *self._clients)
        pairs = [
            (one, other)
            for one in sides
            for other in self.names
            if one != other and (one, other) not in self._links
        ]
        for (source, target), address in zip(pairs, self._free_addresses(len(pairs)), strict=True):
            self._links[source, target] = address
            self._proxy.open(_link(source, target), address, target=self.address(target))

    def newcomer(self, name: str) -> NodeConfig:
        """A replica that can be put into a configuration."""
        (address,) = self._free_addresses(1)
        return NodeConfig(name=name, role="replica", address=address, data=self.directory / name)

    def _free_addresses(self, count: int) -> list[str]:
        """Addresses that neither anybody uses nor a node will, which does not run now."""
        taken = {self.address(name) for name in self.names}
        found = [f"{_HOST}:{port}" for port in free_ports(count + len(taken))]
        return [address for address in found if address not in taken][:count]

    def _write_own_configs(self, names: Iterable[str]) -> None:
        for name in names:
            nodes = tuple(self._as_seen_by(name, node) for node in self.config.nodes)
            # What is asked for news is dialed through the same links, or a cut would leak.
            by_address = {
                node.address: seen.address
                for node, seen in zip(self.config.nodes, nodes, strict=True)
            }
            discovery = tuple(by_address.get(each, each) for each in self.config.discovery)
            path = self.config_path.with_name(f"{name}.yaml")
            path.write_text(
                render(replace(self.config, nodes=nodes, discovery=discovery, path=path))
            )
            self.own_configs[name] = path

    def _as_seen_by(self, name: str, node: NodeConfig) -> NodeConfig:
        address = self._links.get((name, node.name), node.address)
        return node if node.name == name else replace(node, address=address)

    # --- clients --------------------------------------------------------------------------------

    def routes(self, client: str) -> dict[str, str]:
        """Every address that anybody gives for a node → where `client` dials that node."""
        routes = {}
        for name in self.names:
            own = self._links.get((client, name), self.address(name))
            routes[self.address(name)] = own
            for (_, target), address in self._links.items():
                if target == name:
                    routes[address] = own
        return routes

    def ports(self, client: str) -> ClientPorts:
        """The outside as the client called `client` has it."""
        return ClientPorts(network=Routes(self.routes(client)))

    # --- the network ----------------------------------------------------------------------------

    def cut_one_way(self, source: str, target: str) -> None:
        """Nothing that `source` sends reaches `target` until healed; the other way still works."""
        self.weather(source, target, CUT)

    def cut(self, one: str, other: str) -> None:
        """Nothing passes between two, either way; what they send arrives after healing."""
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def isolate(self, name: str, others: Iterable[str] | None = None) -> None:
        """Cut a node off from all other nodes, or from those given; clients still reach it."""
        for other in self.names if others is None else others:
            if other != name:
                self.cut(name, other)

    def weather(self, source: str, target: str, weather: Weather) -> None:
        """How bytes get from `source` to `target`, over whichever connection."""
        self._weather[source, target] = weather
        self._apply(source, target)

    def refuse(self, source: str, target: str, refused: bool = True) -> None:
        """Whether `source`, when it dials `target`, finds nobody listening."""
        (self._refusing.add if refused else self._refusing.discard)((source, target))
        self._apply(source, target)

    def reset(self, one: str, other: str) -> None:
        """Break every connection between two; both see an error, and may dial again."""
        for pair in ((one, other), (other, one)):
            if pair in self._links:
                self._proxy.reset(_link(*pair))

    def connections(self, source: str, target: str) -> int:
        """How often `source` has dialed `target` so far."""
        return self._proxy.traffic(_link(source, target)).connections

    def heal_all(self) -> None:
        """Undo every cut, delay, throttle and refusal; what was held back arrives now."""
        touched = list(self._weather) + list(self._refusing)
        self._weather.clear()
        self._refusing.clear()
        for pair in dict.fromkeys(touched):
            self._apply(*pair)

    def _apply(self, one: str, other: str) -> None:
        for source, target in ((one, other), (other, one)):
            if (source, target) in self._links:
                self._proxy.set(
                    _link(source, target),
                    there=self._weather.get((source, target), CLEAR),
                    back=self._weather.get((target, source), CLEAR),
                    refuse=(source, target) in self._refusing,
                )

    # --- processes and disks --------------------------------------------------------------------

    def kill_all(self) -> None:
        """SIGKILL every running node at the same moment.

        The nearest that processes come to a power failure: what was written and not synced stays
        in the system's page cache. What a disk forgets is the simulator's subject.
        """
        running = [name for name in self.names if self.running(name)]
        for name in running:
            os.kill(self.pid(name), signal.SIGKILL)
        for name in running:
            self._processes[name].wait()

    def wipe(self, name: str) -> None:
        """Lose a stopped node's disk."""
        assert not self.running(name), f"{name} is still running"
        shutil.rmtree(self.config.node(name).data)

    def damage(self, name: str, bits: int, seed: int) -> list[int]:
        """Flip single bits of a stopped node's `hadron.db`, anywhere; returns their bytes."""
        assert not self.running(name), f"{name} is still running"
        chance = random.Random(seed)
        path = self.database(name)
        places = sorted(chance.sample(range(path.stat().st_size), bits))
        with path.open("r+b") as file:
            for place in places:
                file.seek(place)
                byte = file.read(1)[0] ^ (1 << chance.randrange(8))
                file.seek(place)
                file.write(bytes([byte]))
        return places


def _link(source: str, target: str) -> str:
    return f"{source}>{target}"
