"""A simulated world: the nodes of a replica set, their clients, and what can happen to them.

Several replica sets that share a network are `regions.Regions`.

Nodes are the real `node.runtime.Node`, clients the real `hadron.client`; only what is behind the
ports is simulated. A crash happens in an instant, also inside synchronous code: from then on
nothing that the node's remaining code does reaches the network, or the disk that its next life will
find.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from hadron.client import Client, connect
from hadron.client.connecting.ports import ClientPorts
from hadron.fakes import vfs
from hadron.fakes.clocks import SimClock, SimRandom
from hadron.fakes.disk import FAST, ORDINARY, SLOW, SimDisk
from hadron.fakes.files import STYLES, Style
from hadron.fakes.network import HostNetwork, SimNetwork
from hadron.fakes.trace import Trace
from hadron.fakes.volume import Volume, forget_volumes
from hadron.node.recovery import recover
from hadron.node.replica_set import ReplicaSetConfig
from hadron.node.runtime import Node
from hadron.node.settings import Settings
from hadron.replication.life import Life
from hadron.sim.world.closing import without_closing
from hadron.sim.world.config_files import members, replica_set, with_address, with_data
from hadron.wire.messages import cluster_pb2

_POLL_S: Final = 0.01

SETTINGS: Final = Settings(
    keepalive_s=1.0,
    silence_limit_s=3.0,
    checkpoint_bytes=1 << 20,
    reader_threads=2,
    state_digest_interval_s=1.0,
    scrub_interval_s=4.0,
)
"""Of simulated nodes: silence is noticed, checkpoints happen, tables are compared and disks looked
through, within a short run."""

_MEMORY: Final = Path("/dev/shm")


class Steward(Protocol):
    """Whoever breaks nodes by a schedule, and knows what may still be done to them."""

    damageable: list[str]

    def may_damage(self, name: str) -> bool: ...

    async def hand_out(self) -> None: ...

    async def revive(self, name: str) -> None: ...


@dataclass(slots=True)
class _Life:
    """A node from its start to its end."""

    node: Node
    volume: Volume
    host: HostNetwork
    scope: trio.CancelScope
    is_listening: bool = False
    is_dead: bool = False
    """Crashed: what its code still does is nobody's."""
    ended: trio.Event = field(default_factory=trio.Event)


class _Started(trio.TaskStatus[None]):
    """Tells a node that cannot start from one that stops later."""

    def __init__(self, task_status: trio.TaskStatus[None], life: _Life) -> None:
        self._task_status = task_status
        self._life = life

    def started(self, value: None = None) -> None:
        self._life.is_listening = True
        self._task_status.started(value)


class World:
    """A replica set of nodes, n1 … with n1 leading unless told otherwise, on simulated hosts of the
    same names.

    Args:
        nodes: how many; with `settings`, what makes the replica set when no `config` is given.
        spares: nodes that no configuration has yet, for `promote`.
        config: the replica set's own, with nodes that no other set of `network` has.
        network: the one that several sets share; its faults are theirs as well.
        is_foreign: it stands beside what the run is about: nobody is held to its promises.

    Attributes:
        seed: decides everything.
        entrances: the addresses that clients are given.
        client_clocks: of clients' hosts.
        random: for the workload's choices, a stream of its own.
        config: what nodes are started with; `data` is where their life's volume is. May be
            replaced, for promotions; `configs` has those of nodes that differ on purpose.
        awaiting_copies: nodes whose tables are worth nothing before another's have come, as far as
            a history notes it (`notes.nodes.noting_divergence`).
        failures: why a node stopped by itself.
        faults: how often each kind of fault has fired.
    """

    def __init__(
        self,
        seed: int | str,
        root: Path,
        nursery: trio.Nursery,
        *,
        nodes: int = 3,
        spares: int = 0,
        settings: Settings = SETTINGS,
        trace: Trace | None = None,
        config: ReplicaSetConfig | None = None,
        network: SimNetwork | None = None,
        is_foreign: bool = False,
    ) -> None:
        self.seed = seed
        self.root = root
        self.random = self._stream("workload")
        if network is None:
            network = SimNetwork(
                self._stream("network"), trace or Trace(trio.current_time), Counter()
            )
        self.network = network
        self.trace, self.faults = network.trace, network.faults
        self.config = config or replica_set(root, nodes, settings)
        self.spares = () if config else members(root, "n", nodes + spares)[nodes:]
        self.entrances = tuple(node.address for node in self.config.nodes)
        self.configs: dict[str, ReplicaSetConfig] = {}
        self.awaiting_copies: set[str] = set()
        self.failures: dict[str, BaseException] = {}
        self.nemesis: Steward | None = None
        self._nursery = nursery
        self._crashes = self._stream("crashes")
        speeds = self._stream("speeds")
        self.disks: dict[str, SimDisk] = {}
        self.clocks: dict[str, SimClock] = {}
        for name in (*self.names, *(spare.name for spare in self.spares)):
            disk = self.disks[name] = SimDisk(
                name,
                root,
                self._stream(f"disk/{name}"),
                trace=self.trace,
                faults=self.faults,
                speed=speeds.choice((FAST, FAST, ORDINARY, SLOW)),
                is_foreign=is_foreign,
            )
            self.clocks[name] = SimClock(disk.local_s)
        self.client_clocks: defaultdict[str, SimClock] = defaultdict(SimClock)
        self._lives: dict[str, _Life] = {}
        self._starting: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)
        self._starts = 0
        self._others = 0
        self._clients = 0

    def _stream(self, name: str) -> random.Random:
        return random.Random(f"{name}/{self.seed}")

    @property
    def names(self) -> tuple[str, ...]:
        """Every node's name."""
        return self.config.members

    def now_s(self) -> float:
        """Simulated seconds since the start."""
        return trio.current_time()

    def data(self, name: str) -> Path:
        """The node's directory as it is now; read files in it only while the node is stopped."""
        return self.disks[name].volume.path

    def node(self, name: str) -> Node:
        """The node's running code."""
        return self._lives[name].node

    def running(self, name: str) -> bool:
        """Whether the node's process lives."""
        life = self._lives.get(name)
        return life is not None and not life.is_dead and not life.ended.is_set()

    def listens(self, name: str) -> bool:
        """Whether the node lives and has come as far as listening: before, it has no status."""
        return self.running(name) and self._lives[name].is_listening

    # --- life -----------------------------------------------------------------------------------

    async def start(self, *names: str) -> None:
        """Start nodes, all of them when none is named, and return once they listen, or have crashed
        before that. Raises what a node raises that cannot start.
        """
        for name in names or self.names:
            # Two that bring a node back at the same moment would begin two lives on one disk.
            async with self._starting[name]:
                if not self.running(name):
                    await self._nursery.start(self._run, name)

    async def _run(self, name: str, task_status: trio.TaskStatus[None]) -> None:
        self._starts += 1
        disk = self.disks[name]
        host = self.network.boot(name, disk.local_s)
        config = self.configs.get(name, self.config)
        node = Node(
            with_data(config, name, disk.volume.path),
            name,
            clock=self.clocks[name],
            random=SimRandom(f"{self.seed}/{name}/{self._starts}"),
            network=host,
            disk=disk.volume,
        )
        scope = trio.CancelScope()
        life = self._lives[name] = _Life(node, disk.volume, host, scope)
        disk.on_crash = lambda: self._crash_in_the_act(name)
        self.failures.pop(name, None)
        self.trace.log(f"{name}: starts")
        try:
            # What a node raises with its last breath is without its cancellation only out here.
            with scope:
                await node.run(_Started(task_status, life))
        except Exception as caught:
            error = without_closing(caught)
            if error is not None and not life.is_dead:
                self._stopped(name, error)
                if not life.is_listening:
                    raise error from None
        finally:
            self._ended(name, life)
        if not life.is_listening:
            task_status.started()

    def _stopped(self, name: str, error: BaseException) -> None:
        self.trace.log(f"{name}: stops: {type(error).__name__}: {error}")
        self.failures[name] = error

    def _ended(self, name: str, life: _Life) -> None:
        disk = self.disks[name]
        if life.is_dead:
            disk.throw_away(life.volume)
        else:
            # The process is gone; what it wrote is still in its kernel.
            self.network.kill(name)
            disk.kill()
            disk.throw_away(life.volume)
        life.ended.set()

    def _crash_in_the_act(self, name: str) -> None:
        """The n-th write or sync, at which a crash was asked for."""
        self.crash_now(name, power=self._may_lose_power(name))

    def _may_lose_power(self, name: str) -> bool:
        """Not where a majority might forget with that what it has not flushed, and a nemesis, which
        is no operator, has to go on."""
        flushes = self.config.settings.durability == "fsync"
        return flushes or self.nemesis is None or self.nemesis.may_damage(name)

    def crash_now(self, name: str, *, power: bool, style: Style | None = None) -> None:
        """End a running node in this instant, without waiting for its code to notice.

        Args:
            power: the host loses power, and of unsynced writes some are lost or torn; otherwise
                only the process dies.
            style: what becomes of unsynced writes; drawn when not given.
        """
        life = self._lives[name]
        if life.is_dead or life.ended.is_set():
            return
        life.is_dead = True
        if power:
            chosen: Style = style if style is not None else self._crashes.choice(STYLES)
            self.network.power_off(name)
            self.disks[name].power_off(chosen)
            self.faults["power loss"] += 1
            self.trace.log(f"{name}: loses power; unsynced writes: {chosen}")
        else:
            self.network.kill(name)
            self.disks[name].kill()
            self.faults["kill"] += 1
            self.trace.log(f"{name}: is killed")
        life.scope.cancel()

    async def crash(
        self, *names: str, power: bool | None = None, style: Style | None = None
    ) -> None:
        """End nodes at once, all of them when none is named, wherever they are.

        Args as in `crash_now`; whether power is lost is drawn when not given, for all alike.
        """
        if power is None:
            power = self._crashes.random() < 0.6
        chosen = [name for name in names or self.names if name in self._lives]
        for name in chosen:
            self.crash_now(name, power=power and self._may_lose_power(name), style=style)
        for name in chosen:
            await self._lives[name].ended.wait()

    async def stop(self, *names: str) -> None:
        """Let nodes end in good order, as on SIGTERM."""
        for name in names or tuple(self._lives):
            life = self._lives.get(name)
            if life is not None and not life.ended.is_set():
                self.trace.log(f"{name}: is stopped")
                life.scope.cancel()
                await life.ended.wait()

    async def heal_everything(self) -> None:
        """Undo every fault that can be undone and start every node that is down.

        A node that refuses its damaged disk gets an empty one, if the nemesis has damaged it.
        Raises what a node raises that cannot start although its disk is whole.
        """
        self.network.heal_all()
        for name in self.names:
            self.disks[name].heal()
            self.clocks[name].offset_s = self.clocks[name].drift = 0.0
        self.trace.log("everything healed")
        if self.nemesis is not None:
            await self.nemesis.hand_out()
        for name in self.names:
            life = self._lives.get(name)
            if life is not None and life.scope.cancel_called:
                # Whoever stopped it may be gone.
                await life.ended.wait()
            if not self.running(name):
                if self.nemesis is not None:
                    await self.nemesis.revive(name)
                if not self.running(name):
                    await self.start(name)

    async def operate(self, damaged: Collection[str]) -> None:
        """What an operator does, once everything is healed, about nodes that stopped by themselves:
        one of the `damaged` disks is replaced by an empty one, and a node whose disk had answered
        with an error before is started again, however late it found out."""
        for name in self.names:
            if self.running(name) or name not in self.failures:
                continue
            if name in damaged:
                self.wipe(name)
                await self.start(name)
            elif self._lives[name].volume.has_failed:
                await self.start(name)

    async def restart(self, *names: str) -> None:
        """Crash and start nodes, all of them when none is named."""
        await self.crash(*names)
        await self.start(*names)

    def promote(self, leader: str, members: Sequence[str] = ()) -> None:
        """Write the configuration file of the next epoch: these members (the present ones when none
        is named; spares may be among them), `leader` leading. Whoever runs has the old file until
        `hand_out`."""
        old = self.config
        pool = {node.name: node for node in (*old.nodes, *self.spares)}
        assert leader in (members or old.members), f"{leader} is to lead, and is no member"
        for name in self.names:
            self.configs.setdefault(name, old)
        self.config = replace(
            old,
            epoch=old.epoch + 1,
            nodes=tuple(
                replace(node, role="leader" if node.name == leader else "replica")
                for node in pool.values()
                if node.name in (members or old.members)
            ),
        )
        self.trace.log(f"{leader} is to lead epoch {self.config.epoch}")

    def move(self, name: str) -> None:
        """Another port for a node, from its next start on. No epoch begins with that. Other sets
        hear of it from itself; its peers have the old file until `hand_out`."""
        host, _, port = self.config.node(name).address.rpartition(":")
        address = f"{host}:{int(port) + 1}"
        for other in self.names:
            if other != name:
                self.configs.setdefault(other, self.config)
        self.config = with_address(self.config, name, address)
        if name in self.configs:
            self.configs[name] = with_address(self.configs[name], name, address)
        self.trace.log(f"{name}: moves to {address}")

    @asynccontextmanager
    async def another(self) -> AsyncIterator[World]:
        """A second replica set for the length of a block, from a copy of this one's configuration
        file and with empty disks, on the same hosts; nobody of this one runs meanwhile."""
        async with AsyncExitStack() as held:
            for name in self.names:
                await held.enter_async_context(self._starting[name])
            await self.crash(power=False)
            self._others += 1
            self.trace.log(f"a second {self.config.name} begins")
            root = self.root / f"{self.names[0]}-again-{self._others}"
            root.mkdir()
            other = World(
                f"{self.seed}/{root.name}",
                root,
                self._nursery,
                config=self.config,
                network=self.network,
                is_foreign=True,
            )
            try:
                await other.start()
                yield other
            finally:
                with trio.CancelScope(shield=True):
                    await other.crash(power=False)
                self.trace.log(f"the second {self.config.name} is gone")

    def turn_calendar(self, seconds: float) -> None:
        """Let that much time have passed in which nothing happened; the nodes must be stopped."""
        assert not any(map(self.running, self.names))
        for name, disk in self.disks.items():
            disk.calendar_s += seconds
            self.clocks[name].calendar_s += seconds
        self.trace.log(f"{seconds:g} s later")

    def hand_out(self, name: str) -> None:
        """Give a node the newest configuration file, for its next start."""
        self.configs.pop(name, None)

    def wipe(self, name: str) -> None:
        """Lose a stopped node's disk."""
        assert not self.running(name)
        self.faults["wiped disk"] += 1
        self.trace.log(f"{name}: its disk is empty")
        self.disks[name].wipe()
        self.awaiting_copies.discard(name)

    # --- looking --------------------------------------------------------------------------------

    def recover(self, name: str) -> None:
        """What an operator does who takes a stopped node's disk as it is (`hadron recover`)."""
        assert not self.running(name)
        self.trace.log(f"{name}: recovered as it is")
        volume = self.disks[name].volume
        recover(with_data(self.config, name, volume.path), name, volume)

    def status(self, name: str) -> cluster_pb2.StatusResponse:
        """What a running node says of itself; a process that does not listen yet says nothing."""
        life = self._lives[name]
        if not life.is_listening:
            return cluster_pb2.StatusResponse(node=name, state=Life.STARTING)
        return life.node.status()

    async def wait_for(
        self,
        what: str,
        condition: Callable[[], bool],
        timeout_s: float = 60.0,
        *,
        poll_s: float = _POLL_S,
    ) -> None:
        """Wait until `condition` holds; raises `AssertionError` saying what was seen instead."""
        with trio.move_on_after(timeout_s):
            # Conditions look at nodes' insides, which set no event.
            while not condition():  # noqa: ASYNC110
                await trio.sleep(poll_s)
            return
        seen = "\n  ".join(self.describe(name) for name in self.names)
        raise AssertionError(f"not {what} after {timeout_s:g} simulated seconds:\n  {seen}")

    def describe(self, name: str) -> str:
        """A node's state in one line."""
        if not self.running(name):
            return f"{name} is down{f': {self.failures[name]}' if name in self.failures else ''}"
        if not self.listens(name):
            return f"{name} is starting"
        status = self.status(name)
        peers = ", ".join(f"{peer.name} {peer.state} {peer.trouble}" for peer in status.peers)
        return (
            f"{name} {status.state} {status.trouble} at {status.last_lsn}, committed "
            f"{status.committed_lsn}, applied {status.applied_lsn}; peers: {peers}"
        )

    def is_serving(self) -> bool:
        """Whether the leader serves."""
        leader = self.config.leader.name
        return self.listens(leader) and self.status(leader).state == Life.SERVING

    async def wait_serving(self, timeout_s: float = 60.0) -> None:
        """Until the leader serves."""
        await self.wait_for(f"{self.config.leader.name} serving", self.is_serving, timeout_s)

    async def wait_in_step(self, *names: str, timeout_s: float = 60.0) -> None:
        """Until the named nodes (all when none is named) have applied all that there is."""

        def in_step() -> bool:
            if not self.is_serving():
                return False
            end = self.status(self.config.leader.name)
            return end.committed_lsn == end.last_lsn > 0 and all(
                is_at(end, name) for name in names or self.names
            )

        def is_at(end: cluster_pb2.StatusResponse, name: str) -> bool:
            if not self.running(name):
                return False
            status = self.status(name)
            # An old leader may have applied as much, of its own.
            return status.applied_lsn == end.last_lsn and status.chain == end.chain

        # It takes seconds, and asking all nodes for their state takes CPU.
        await self.wait_for("all nodes in step", in_step, timeout_s, poll_s=5 * _POLL_S)

    # --- clients --------------------------------------------------------------------------------

    def client(self, host: str = "c1", **kwargs: Any) -> Client:
        """The real client on the simulated network; `kwargs` as of `hadron.client.connect`."""
        self._clients += 1
        ports = ClientPorts(
            network=self.network.boot(host),
            clock=self.client_clocks[host],
            random=SimRandom(f"{self.seed}/{host}/{self._clients}"),
        )
        return connect(f"hadron://{','.join(self.entrances)}", ports=ports, **kwargs)


def _new_directory() -> Path:
    memory = _MEMORY if _MEMORY.is_dir() else None
    return Path(tempfile.mkdtemp(prefix="hadron-sim-", dir=memory)).resolve()


@asynccontextmanager
async def playground(seed: int, trace: Trace | None) -> AsyncIterator[tuple[Path, trio.Nursery]]:
    """Where a world can be for the length of a block, in a loop of `scheduling.run_seeded`: a
    directory, gone at its end, and a nursery."""
    vfs.install(seed)
    root = _new_directory()
    try:
        async with trio.open_nursery() as nursery:
            if trace is not None:
                trace.hide(str(root))
            yield root, nursery
    finally:
        vfs.uninstall()
        forget_volumes(root)
        shutil.rmtree(root, ignore_errors=True)


@asynccontextmanager
async def open_world(
    seed: int,
    *,
    nodes: int = 3,
    spares: int = 0,
    settings: Settings = SETTINGS,
    trace: Trace | None = None,
    start: bool = True,
) -> AsyncIterator[World]:
    """A world for the length of a block: its nodes started and serving, and everything gone at its
    end."""
    async with playground(seed, trace) as (root, nursery):
        world = World(
            seed, root, nursery, nodes=nodes, spares=spares, settings=settings, trace=trace
        )
        nursery.start_soon(world.network.run)
        if start:
            await world.start()
            await world.wait_serving()
        yield world
        await world.crash(power=False)
        nursery.cancel_scope.cancel()
