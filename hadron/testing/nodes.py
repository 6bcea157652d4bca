"""Whole nodes in one process: real directories and threads, a network in memory.

For tests of what nodes promise each other: start, crash, wipe and cut them off, and look at what
they and their clients say. Processes and sockets are left out, so a cluster starts in tens of
milliseconds; `testing.cluster` breaks those.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import trio

from hadron.client import Client, connect
from hadron.client.connecting.ports import ClientPorts
from hadron.fakes.network import SimNetwork
from hadron.model.ports import Clock, Disk
from hadron.node.replica_set import NodeConfig, ReplicaSetConfig
from hadron.node.runtime import Node
from hadron.node.settings import Settings
from hadron.node.world import SystemDisk
from hadron.replication.life import Life
from hadron.state.features import MACHINE
from hadron.state.machine import StateMachine
from hadron.wire.connection import Connection
from hadron.wire.dialing import dial
from hadron.wire.messages import cluster_pb2
from hadron.wire.system import SystemClock

CLIENT: Final = "client"
"""The host that `Nodes.connection` and `Nodes.client` dial from."""

_PORT: Final = 7000
_POLL_S: Final = 0.005
_PATIENCE_S: Final = 120.0
"""How long a condition may take, on trio's clock, before the test is told what was seen."""

_QUICK: Final = Settings(
    keepalive_s=2.0,
    silence_limit_s=6.0,
    checkpoint_bytes=4 << 20,
    reader_threads=2,
    # What tests count and compare is what they have written; those of these two turn them on.
    state_digest_interval_s=0.0,
    scrub_interval_s=0.0,
)


class SeededRandom:
    """`ports.Random` that gives the same numbers in every run."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)

    def token_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)


class _Started(trio.TaskStatus[None]):
    """Tells a node that cannot start from one that stops later."""

    def __init__(self, task_status: trio.TaskStatus[None], name: str, listening: set[str]) -> None:
        self._task_status = task_status
        self._name = name
        self._listening = listening

    def started(self, value: None = None) -> None:
        self._listening.add(self._name)
        self._task_status.started(value)


class Nodes:
    """A replica set of nodes n1 … in one trio loop; n1 leads.

    Args:
        directory: where data directories go, one per node.
        nursery: where the nodes run. Cancelling it crashes them all.
        config: a replica set other than the default one, with hosts of its own on `network`.

    `configs` holds a node's own configuration, where it differs from the others' on purpose,
    `clocks` its own clock, `disks` what it has instead of this machine's disk, and `machines`
    another version of the state machine.
    """

    def __init__(
        self,
        directory: Path,
        count: int,
        nursery: trio.Nursery,
        *,
        network: SimNetwork | None = None,
        settings: Settings = _QUICK,
        seed: int | str = 0,
        config: ReplicaSetConfig | None = None,
    ) -> None:
        self._seed = seed
        self.network = network or SimNetwork()
        self.config = config or replica_set(directory, count, settings=settings)
        self.configs: dict[str, ReplicaSetConfig] = {}
        self.clocks: dict[str, Clock] = {}
        self.disks: dict[str, Disk] = {}
        self.machines: dict[str, StateMachine] = {}
        self.failures: dict[str, BaseException] = {}
        self._unasked: dict[str, BaseException] = {}
        self._nursery = nursery
        self._nodes: dict[str, Node] = {}
        self._scopes: dict[str, trio.CancelScope] = {}
        self._ended: dict[str, trio.Event] = {}
        self._listening: set[str] = set()
        self._starts = 0

    @property
    def names(self) -> tuple[str, ...]:
        return self.config.members

    def data(self, name: str) -> Path:
        """The node's data directory."""
        return self.config.node(name).data

    def node(self, name: str) -> Node:
        return self._nodes[name]

    def host(self, name: str) -> str:
        """The node's host on `network`, for cuts and delays."""
        return self.configs.get(name, self.config).node(name).address.rpartition(":")[0]

    @property
    def running(self) -> tuple[str, ...]:
        """The nodes that listen, in the order of the configuration."""
        return tuple(name for name in self.names if name in self._listening)

    # --- life -----------------------------------------------------------------------------------

    async def start(self, *names: str) -> None:
        """Start nodes, all of them when none is named, and return once they listen.

        Raises what a node raises that cannot start.
        """
        for name in names or self.names:
            await self._nursery.start(self._run, name)

    async def _run(self, name: str, task_status: trio.TaskStatus[None]) -> None:
        self._starts += 1
        node = Node(
            self.configs.get(name, self.config),
            name,
            clock=self.clocks.get(name, SystemClock()),
            random=SeededRandom(f"{self._seed}/{name}/{self._starts}"),
            network=self.network.host(self.host(name)),
            disk=self.disks.get(name) or SystemDisk(),
            machine=self.machines.get(name, MACHINE),
        )
        ended = trio.Event()
        with trio.CancelScope() as scope:
            self._nodes[name], self._scopes[name], self._ended[name] = node, scope, ended
            self.failures.pop(name, None)
            try:
                await node.run(_Started(task_status, name, self._listening))
            except Exception as error:
                if name not in self._listening:
                    raise
                self.failures[name] = error
                # The first one stays, also when the node is started again.
                self._unasked.setdefault(name, error)
            finally:
                self._listening.discard(name)
                ended.set()

    async def crash(self, *names: str) -> None:
        """Stop nodes at once, wherever they are; their files stay as they are."""
        for name in names or tuple(self._scopes):
            self._scopes[name].cancel()
        for name in names or tuple(self._scopes):
            await self._ended[name].wait()

    def stop_now(self, name: str) -> None:
        """Like `crash`, from where nothing can be waited for."""
        self._scopes[name].cancel()

    async def wait_stopped(self, name: str) -> BaseException:
        """Wait for a node to stop by itself; returns why."""
        with trio.fail_after(_PATIENCE_S):
            await self._ended[name].wait()
        self._unasked.pop(name, None)
        return self.failures[name]

    def check_failures(self) -> None:
        """Raise what stopped a node by itself, unless `wait_stopped` or `status` has told of it."""
        for error in self._unasked.values():
            raise error

    async def restart(self, *names: str) -> None:
        await self.crash(*names)
        await self.start(*names)

    def wipe(self, name: str) -> None:
        """Lose a stopped node's disk."""
        assert self._ended[name].is_set()
        shutil.rmtree(self.data(name))

    # --- looking --------------------------------------------------------------------------------

    def status(self, name: str) -> cluster_pb2.StatusResponse:
        """What the node says of itself. Raises what stopped it, if something did."""
        if name in self.failures:
            self._unasked.pop(name, None)
            raise self.failures[name]
        return self._nodes[name].status()

    async def wait_for(
        self, what: str, condition: Callable[[], bool], *, patience_s: float = _PATIENCE_S
    ) -> None:
        """Wait until `condition` holds; fails naming `what` and every node's status."""
        await _wait_for(what, condition, self.describe, patience_s)

    def describe(self) -> str:
        """What every node that was ever started says of itself, in a line, for messages."""
        return "; ".join(self._describe(name) for name in self._nodes)

    def _describe(self, name: str) -> str:
        if name in self.failures:
            return f"{name} stopped: {self.failures[name]}"
        status = self._nodes[name].status()
        return (
            f"{name} {status.state} {status.trouble} at {status.last_lsn}, "
            f"committed {status.committed_lsn}, applied {status.applied_lsn}, "
            f"peers {[(peer.name, peer.state, peer.trouble) for peer in status.peers]}"
        )

    async def wait_serving(self) -> None:
        """Until the leader serves."""
        name = self.config.leader.name
        await self.wait_for(f"serving at {name}", lambda: self.status(name).state == Life.SERVING)

    async def wait_in_step(self, *names: str) -> None:
        """Until the named nodes (all running ones) have applied what the leader has committed."""
        leader = self.config.leader.name
        waited = [name for name in names or tuple(self._nodes) if not self._ended[name].is_set()]

        def in_step() -> bool:
            end = self.status(leader)
            return end.committed_lsn == end.last_lsn > 0 and all(
                self.status(name).applied_lsn == end.last_lsn for name in waited
            )

        await self.wait_for(f"{', '.join(waited)} in step", in_step)

    # --- clients --------------------------------------------------------------------------------

    @asynccontextmanager
    async def connection(self, name: str, host: str = CLIENT) -> AsyncIterator[Connection]:
        """A bare connection to one node."""
        connection = await dial(self.network.host(host), self.config.node(name).address)
        # In the nodes' nursery: one of its own would wrap what the block raises in a group.
        self._nursery.start_soon(connection.run)
        try:
            yield connection
        finally:
            connection.close()

    def client(
        self, host: str = CLIENT, *, through: Sequence[str] = (), request_timeout_s: float = 30.0
    ) -> Client:
        """The real client, on the network in memory, whose URL names all nodes, or those in
        `through`. Two of one host draw the same random numbers, their producers' ids among them."""
        nodes = [self.config.node(name) for name in through or self.names]
        return _client(self.network, host, nodes, request_timeout_s)


class Cluster(Mapping[str, Nodes]):
    """Several replica sets in one trio loop, by name; each is a `Nodes`. The first one owns the
    schema.

    Nodes of different sets have the same names (n1 …) on hosts of their own: n1 of `eu/p0` is on
    `eu-p0-n1`.

    Args:
        sets: name → how many nodes, whose n1 leads.
        discovery: addresses that every configuration has; n1 of the first set when left out.
    """

    def __init__(
        self,
        directory: Path,
        sets: Mapping[str, int],
        nursery: trio.Nursery,
        *,
        settings: Settings = _QUICK,
        seed: int = 0,
        discovery: Sequence[str] = (),
    ) -> None:
        self._directory = directory
        self._nursery = nursery
        self._settings = settings
        self._seed = seed
        self.network = SimNetwork()
        self.metadata = next(iter(sets))
        self.discovery = tuple(discovery) or (f"{host_of(self.metadata, 'n1')}:{_PORT}",)
        self._sets: dict[str, Nodes] = {}
        self._all: list[Nodes] = []
        for name, count in sets.items():
            self.add(name, count)

    def add(self, name: str, count: int, *, config: ReplicaSetConfig | None = None) -> Nodes:
        """One more replica set, not started yet; with the `config` given, if any. A set whose
        name is taken is not put into this mapping: whoever wants two of one name holds it."""
        config = config or replica_set(
            self._directory / host_of(name, "")[:-1],
            count,
            settings=self._settings,
            name=name,
            metadata=self.metadata,
            discovery=self.discovery,
            host=lambda node: host_of(name, node),
        )
        nodes = Nodes(
            self._directory,
            count,
            self._nursery,
            network=self.network,
            seed=f"{self._seed}/{name}/{config.leader.address}",
            config=config,
        )
        self._sets.setdefault(name, nodes)
        self._all.append(nodes)
        return nodes

    def __getitem__(self, name: str) -> Nodes:
        return self._sets[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sets)

    def __len__(self) -> int:
        return len(self._sets)

    async def start(self, *sets: str) -> None:
        """Start all nodes of the sets that are named, of all when none is, in that order."""
        for name in sets or tuple(self._sets):
            await self._sets[name].start()

    async def crash(self, *sets: str) -> None:
        """Stop whole sets at once; their files stay as they are."""
        for name in sets or tuple(self._sets):
            await self._sets[name].crash()

    def check_failures(self) -> None:
        """As `Nodes.check_failures`, of every set that was ever added."""
        for nodes in self._all:
            nodes.check_failures()

    async def wait_serving(self, *sets: str) -> None:
        """Until the leaders of the sets (all of them) serve."""
        for name in sets or tuple(self._sets):
            await self._sets[name].wait_serving()

    async def wait_in_step(self) -> None:
        """Until every running node has applied what its leader has committed."""
        for nodes in self._sets.values():
            if nodes.running:
                await nodes.wait_in_step(*nodes.running)

    async def wait_for(
        self, what: str, condition: Callable[[], bool], *, patience_s: float = _PATIENCE_S
    ) -> None:
        """Wait until `condition` holds; fails naming `what` and every node's status."""
        await _wait_for(what, condition, self.describe, patience_s)

    def describe(self) -> str:
        """What every node says of itself, for messages."""
        return "".join(f"\n{name}: {nodes.describe()}" for name, nodes in self._sets.items())

    # --- the network ----------------------------------------------------------------------------

    def hosts(self, *sets: str) -> list[str]:
        """Hosts of all nodes of these sets, of all sets when none is named."""
        return [
            nodes.host(node)
            for nodes in (self._sets[name] for name in sets or tuple(self._sets))
            for node in nodes.names
        ]

    def cut(self, one: Iterable[str], other: Iterable[str]) -> None:
        """Nothing passes between two groups of hosts, either way, until `network.heal_all()`."""
        others = tuple(other)
        for host in one:
            self.network.isolate(host, *others)

    def isolate(self, name: str, *, clients: Sequence[str] = ()) -> None:
        """Cut a set off from all others, and from the client hosts given."""
        others = [host for each in self._sets if each != name for host in self.hosts(each)]
        self.cut(self.hosts(name), [*others, *clients])

    def client(
        self, host: str = CLIENT, *, through: Sequence[str] = (), request_timeout_s: float = 30.0
    ) -> Client:
        """The real client on the network in memory. Its URL names n1 of each set, or of those in
        `through`."""
        nodes = [self._sets[name].config.nodes[0] for name in through or tuple(self._sets)]
        return _client(self.network, host, nodes, request_timeout_s)


def host_of(replica_set: str, node: str) -> str:
    """The host of a node in a `Cluster`."""
    return f"{replica_set.replace('/', '-')}-{node}"


def replica_set(
    directory: Path,
    count: int,
    *,
    settings: Settings = _QUICK,
    name: str = "local/p0",
    metadata: str = "",
    discovery: Sequence[str] = (),
    host: Callable[[str], str] = str,
    cluster: str = "test",
) -> ReplicaSetConfig:
    """The configuration of n1 …, n1 leading, on the hosts that `host` names after nodes."""
    nodes = tuple(
        NodeConfig(
            name=f"n{number}",
            role="leader" if number == 1 else "replica",
            address=f"{host(f'n{number}')}:{_PORT}",
            data=directory / f"n{number}",
        )
        for number in range(1, count + 1)
    )
    return ReplicaSetConfig(
        cluster=cluster,
        name=name,
        epoch=1,
        nodes=nodes,
        metadata=metadata or name,
        discovery=tuple(discovery) or (nodes[0].address,),
        settings=settings,
    )


def with_nodes(config: ReplicaSetConfig, nodes: Sequence[NodeConfig]) -> ReplicaSetConfig:
    """The same configuration with other members."""
    return replace(config, nodes=tuple(nodes))


@asynccontextmanager
async def running_nodes(
    directory: Path, count: int, *, settings: Settings = _QUICK, start: bool = True, seed: int = 0
) -> AsyncIterator[Nodes]:
    """Nodes for the length of a block: started, the leader serving, and crashed at its end.

    Raises what stopped a node that nobody asked about.
    """
    async with trio.open_nursery() as nursery:
        nodes = Nodes(directory, count, nursery, settings=settings, seed=seed)
        if start:
            await nodes.start()
            await nodes.wait_serving()
        yield nodes
        await nodes.crash()
        nursery.cancel_scope.cancel()
    nodes.check_failures()


@asynccontextmanager
async def running_cluster(
    directory: Path,
    sets: Mapping[str, int],
    *,
    settings: Settings = _QUICK,
    start: bool = True,
    seed: int = 0,
    discovery: Sequence[str] = (),
) -> AsyncIterator[Cluster]:
    """Several replica sets for the length of a block, as `running_nodes` has one:

    async with running_cluster(tmp_path, {"meta": 1, "eu/p0": 3, "us/p0": 3}) as cluster:
        async with cluster.client() as client: ...
        await cluster["eu/p0"].crash("n1")
    """
    async with trio.open_nursery() as nursery:
        cluster = Cluster(
            directory, sets, nursery, settings=settings, seed=seed, discovery=discovery
        )
        if start:
            await cluster.start()
            await cluster.wait_serving()
        yield cluster
        await cluster.crash()
        nursery.cancel_scope.cancel()
    cluster.check_failures()


async def _wait_for(
    what: str, condition: Callable[[], bool], describe: Callable[[], str], patience_s: float
) -> None:
    with trio.move_on_after(patience_s):
        # What is looked at are disks and threads as well, which set no event.
        while not condition():  # noqa: ASYNC110
            await trio.sleep(_POLL_S)
        return
    raise AssertionError(f"not {what} after {patience_s:g} s: {describe()}")


def _client(
    network: SimNetwork, host: str, nodes: Sequence[NodeConfig], request_timeout_s: float
) -> Client:
    return connect(
        "hadron://" + ",".join(node.address for node in nodes),
        request_timeout_s=request_timeout_s,
        ports=ClientPorts(
            network=network.host(host), clock=SystemClock(), random=SeededRandom(host)
        ),
    )
