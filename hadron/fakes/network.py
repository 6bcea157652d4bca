"""A network in memory: many hosts in one process, whose wires delay, hold back, cut and break.

It keeps the contract of `ports.Network` as TCP does (one suite tests both): a stream's bytes are
ordered and none is lost while it lives, a full buffer takes nothing. Delays are drawn anew for
every piece, so messages on different connections overtake each other. A cut holds bytes back
instead of dropping them, as TCP's retransmissions do, and after healing they arrive, late: from an
incarnation that may be long dead. What was under way when a connection broke arrives up to an
arbitrary byte, so a client cannot know what became of its request.

With chance, deliveries are made by one task, `run`, in the order of their due times. Without, what
is sent has arrived, as long as nothing is between the hosts: tests of single parts need no task and
no patience.
"""

from __future__ import annotations

import errno
import heapq
import itertools
import math
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

import trio

from hadron.fakes.alarms import Alarm
from hadron.fakes.connections import Pair, SimTransport, Wire, os_error
from hadron.fakes.trace import Trace

_FIRST_EPHEMERAL_PORT: Final = 40_000

_SPLIT_SHARE: Final = 0.05
"""Of the pieces that arrive in two parts, so that frames are cut at any byte."""

_DIAL_TIMEOUT_S: Final = 10.0
"""Of a host that does not answer at all. Linux takes two minutes; nobody should depend on it."""


class SimNetwork:
    """The wires between hosts. `host(name)` gives the `ports.Network` of one of them.

    An address is `host:port` with the host's name; port 0 takes a free one.

    Args:
        rng: draws delays, and where things break; `run` must be running then. None for wires that
            take no time.
    """

    def __init__(
        self,
        rng: random.Random | None = None,
        trace: Trace | None = None,
        faults: Counter[str] | None = None,
    ) -> None:
        self.random = rng
        self.trace = trace or Trace()
        self.faults = faults if faults is not None else Counter()
        self._wires: dict[tuple[str, str], Wire] = {}
        self._hosts: dict[str, HostNetwork] = {}
        self._came_up: dict[str, trio.Event] = {}
        self._pairs: dict[Pair, None] = {}
        self._ports = itertools.count(_FIRST_EPHEMERAL_PORT)
        self._due: list[tuple[float, int, Wire, Callable[[], None]]] = []
        self._order = itertools.count()
        self._alarm = Alarm()
        self._runs = rng is not None
        self._dials: Counter[tuple[str, str]] = Counter()

    # --- hosts ----------------------------------------------------------------------------------

    def host(self, name: str) -> HostNetwork:
        """The network as a host has it; it is booted when it is not up."""
        host = self._hosts.get(name)
        return host if host is not None and host.is_alive else self.boot(name)

    def boot(self, name: str, local_s: Callable[[], float] = trio.current_time) -> HostNetwork:
        """The network as a host has it from now on; an earlier one of that name is forgotten.

        `local_s` is the time at the host: what it sends leaves no earlier.
        """
        host = self._hosts[name] = HostNetwork(self, name, local_s)
        came_up = self._came_up.pop(name, None)
        if came_up is not None:
            came_up.set()
            self._answer_for_the_dead(name)
        return host

    def kill(self, name: str) -> None:
        """The host's process ends; its kernel resets connections after what was sent already."""
        host = self._hosts[name]
        host.die()
        for pair in list(self._pairs):
            for end in pair.ends:
                if end.host is host:
                    end.outgoing.finish(broken=True)
                    end.incoming.abandon()

    def power_off(self, name: str) -> None:
        """The host is gone without a word, until `boot` makes a new one: peers hear nothing."""
        host = self._hosts[name]
        host.die()
        self._came_up.setdefault(name, trio.Event())
        for pair in list(self._pairs):
            for end in pair.ends:
                if end.host is host:
                    end.outgoing.stop()
                    end.incoming.swallow()

    def _answer_for_the_dead(self, name: str) -> None:
        """A host that is up again resets the connections that its predecessor had."""
        for pair in list(self._pairs):
            for end in pair.ends:
                if end.host.name == name and not end.host.is_alive:
                    end.incoming.abandon()
                    end.incoming.reset_writer()

    def hosts(self) -> list[str]:
        """The names of all hosts so far."""
        return list(self._hosts)

    def is_up_again(self, host: HostNetwork) -> bool:
        """Whether another host has taken the name of a dead one."""
        return self._hosts[host.name] is not host

    def dials(self, source: str, target: str) -> int:
        """How often `source` has dialed `target`, successfully or not."""
        return self._dials[source, target]

    def is_dark(self, name: str) -> bool:
        """Whether the host is without power."""
        return name in self._came_up

    # --- faults ---------------------------------------------------------------------------------

    def cut_one_way(self, source: str, target: str) -> None:
        """Nothing that `source` sends reaches `target` until `heal`; the other way still works."""
        self.trace.log(f"network: {source} -> {target} cut")
        self.wire(source, target).is_cut = True

    def cut(self, one: str, other: str) -> None:
        """Nothing passes between two hosts, either way, until `heal`."""
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def isolate(self, host: str, *others: str) -> None:
        """Cut `host` off from each of `others`."""
        for other in others:
            self.cut(host, other)

    def heal(self, one: str, other: str) -> None:
        """Undo a cut; what was held back arrives now, in order."""
        for wire in (self.wire(one, other), self.wire(other, one)):
            if wire.is_cut:
                self.trace.log(f"network: {wire.source} -> {wire.target} healed")
                self._mend(wire)

    def heal_all(self) -> None:
        """Undo every cut, and every `delay` and `slow`."""
        for wire in self._wires.values():
            if wire.is_cut:
                self._mend(wire)
            wire.be_normal()
        self.trace.log("network: healed")

    def delay(self, source: str, target: str, low_s: float, high_s: float | None = None) -> None:
        """What `source` sends from now on takes `low_s` to `high_s` to reach `target`."""
        wire = self.wire(source, target)
        wire.low_s, wire.high_s = low_s, low_s if high_s is None else high_s
        self.trace.log(f"network: {source} -> {target} takes {low_s:g} to {wire.high_s:g} s")

    def slow(
        self, source: str, target: str, bytes_per_s: float, buffer_bytes: int = 16 << 10
    ) -> None:
        """A thin wire with small buffers."""
        wire = self.wire(source, target)
        wire.bytes_per_s, wire.buffer_bytes = bytes_per_s, buffer_bytes
        self.trace.log(f"network: {source} -> {target} carries {bytes_per_s:g} bytes/s")

    def break_connections(
        self, host: str, other: str | None = None, *, lose_all: bool = False
    ) -> int:
        """Break every connection of `host`, or those with `other`; returns how many.

        Of what is under way in each direction an arbitrary part arrives, or nothing with
        `lose_all`; then an error.
        """
        broken = 0
        for pair in list(self._pairs):
            names = {end.host.name for end in pair.ends}
            if host in names and (other is None or names == {host, other}):
                broken += 1
                for end in pair.ends:
                    end.incoming.break_somewhere(lose_all=lose_all)
        if broken:
            self.trace.log(f"network: {broken} connections of {host} broken")
        return broken

    def reset(self, host: str, other: str) -> int:
        """Tell `host` that its connections with `other` are gone, as a box between them may; what
        it has sent is still under way. Returns how many."""
        told = 0
        for pair in list(self._pairs):
            if {end.host.name for end in pair.ends} == {host, other}:
                told += 1
                for end in pair.ends:
                    if end.host.name == host:
                        end.incoming.break_reader()
        if told:
            self.trace.log(f"network: {told} connections of {host} with {other} reset")
        return told

    # --- inside ---------------------------------------------------------------------------------

    def wire(self, source: str, target: str) -> Wire:
        wire = self._wires.get((source, target))
        if wire is None:
            wire = self._wires[source, target] = Wire(
                source, target, takes_time=self.random is not None
            )
        return wire

    def _mend(self, wire: Wire) -> None:
        wire.is_cut = False
        held, wire.held = wire.held, []
        for action in held:
            self.schedule(wire, trio.current_time(), action)

    def next_port(self) -> int:
        return next(self._ports)

    def schedule(self, wire: Wire, due_s: float, action: Callable[[], None]) -> None:
        """Do `action` at the far end of `wire` at `due_s`, or once it is healed after that."""
        if not self._runs:
            if due_s <= trio.current_time():
                self._arrive(wire, action)
                return
            self._runs = True
            trio.lowlevel.spawn_system_task(self.run)
        heapq.heappush(self._due, (due_s, next(self._order), wire, action))
        self._alarm.bring_forward(due_s)

    def transit_s(self, wire: Wire, size: int) -> float:
        """How long `size` bytes take now."""
        low_s, high_s = wire.low_s, wire.high_s
        drawn_s = self.random.uniform(low_s, high_s) if self.random is not None else high_s
        return drawn_s + size / wire.bytes_per_s

    def splits(self, size: int) -> int:
        """Where a piece is cut in two; 0 where it is not."""
        if self.random is None or size < 2 or self.random.random() >= _SPLIT_SHARE:
            return 0
        return self.random.randrange(1, size)

    def loses(self, under_way: int) -> int:
        """How much of what is under way is lost where a connection breaks."""
        if self.random is None:
            return under_way
        return under_way - self.random.randrange(under_way + 1)

    async def run(self) -> None:
        """Deliver, for ever."""
        while True:
            now = trio.current_time()
            while self._due and self._due[0][0] <= now:
                _, _, wire, action = heapq.heappop(self._due)
                self._arrive(wire, action)
            await self._alarm.wait(self._due[0][0] if self._due else math.inf)

    def _arrive(self, wire: Wire, action: Callable[[], None]) -> None:
        if wire.is_cut:
            self.faults["held back by a cut"] += 1
            wire.held.append(action)
        else:
            action()

    async def dial(self, host: HostNetwork, address: str) -> SimTransport:
        target = address.rpartition(":")[0]
        self._dials[host.name, target] += 1
        there, back = self.wire(host.name, target), self.wire(target, host.name)
        with trio.move_on_after(_DIAL_TIMEOUT_S):
            await self._cross(there)
            came_up = self._came_up.get(target)
            if came_up is not None:
                await came_up.wait()
            listener = self._listener(target, address)
            if listener is None:
                await self._cross(back)
                raise os_error(errno.ECONNREFUSED)
            pair = Pair(self, host, listener.host, address, there, back)
            self._pairs[pair] = None
            dialing, accepted = pair.ends
            listener.arrived(accepted)
            try:
                await self._cross(back)
            except BaseException:
                dialing.close()
                raise
            return dialing
        raise os_error(errno.ETIMEDOUT)

    def _listener(self, target: str, address: str) -> SimListener | None:
        host = self._hosts.get(target)
        return host.listeners.get(address) if host is not None and host.is_alive else None

    async def _cross(self, wire: Wire) -> None:
        crossed = trio.Event()
        self.schedule(wire, trio.current_time() + self.transit_s(wire, 0), crossed.set)
        await crossed.wait()

    def forget(self, pair: Pair) -> None:
        self._pairs.pop(pair, None)


class HostNetwork:
    """`ports.Network` as one host has it, from its start to its crash."""

    def __init__(self, network: SimNetwork, name: str, local_s: Callable[[], float]) -> None:
        self._network = network
        self.name = name
        self.is_alive = True
        self.local_s = local_s
        self.listeners: dict[str, SimListener] = {}

    def die(self) -> None:
        """From here on nothing leaves this host and nothing reaches it."""
        self.is_alive = False
        self.listeners.clear()

    async def dial(self, address: str) -> SimTransport:
        await trio.lowlevel.checkpoint()
        if not self.is_alive:
            raise os_error(errno.ENETDOWN)
        return await self._network.dial(self, address)

    async def listen(self, address: str) -> SimListener:
        await trio.lowlevel.checkpoint()
        name, _, port = address.rpartition(":")
        if name != self.name:
            raise os_error(errno.EADDRNOTAVAIL)
        bound = f"{name}:{int(port) or self._network.next_port()}"
        if bound in self.listeners:
            raise os_error(errno.EADDRINUSE)
        listener = SimListener(self, bound)
        if self.is_alive:
            self.listeners[bound] = listener
        return listener


class SimListener:
    """`ports.Listener` at one address."""

    def __init__(self, host: HostNetwork, address: str) -> None:
        self.host = host
        self.address = address
        self._waiting: deque[SimTransport] = deque()
        self._arrival = trio.Event()
        self._closed = False

    def arrived(self, transport: SimTransport) -> None:
        self._waiting.append(transport)
        self._arrival.set()

    async def accept(self) -> SimTransport:
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            if self._closed:
                raise os_error(errno.EBADF)
            self._arrival = trio.Event()
            await self._arrival.wait()
        return self._waiting.popleft()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.host.listeners.pop(self.address, None)
            while self._waiting:
                self._waiting.popleft().close()
            self._arrival.set()
