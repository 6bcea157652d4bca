"""The nemesis: a seeded schedule of faults against a world, and the way back to health.

It keeps to what the guarantees allow (PROTOCOL C): disks are damaged, wiped or lying on at most a
minority of nodes in a whole run; everything else may happen to all of them, also at once.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from hadron.fakes.disk import FAST, ORDINARY, SLOW
from hadron.model.errors import HadronError
from hadron.sim.faults import plots
from hadron.sim.world.replica_set import World

WEIGHTS: Final = {
    "kill": 3.0,
    "power loss": 3.0,
    "power loss at a write": 3.0,
    "power loss at a sync": 3.0,
    "kill of all": 0.7,
    "power loss of all": 0.7,
    "stop": 0.7,
    "pause": 1.0,
    "cut": 2.0,
    "one-way cut": 2.0,
    "isolation": 2.0,
    "partition": 3.0,
    "broken connections": 3.0,
    "slow wire": 1.5,
    "thin wire": 1.0,
    "slow disk": 1.0,
    "write error": 0.7,
    "sync error": 0.7,
    "read error": 0.7,
    "clock jump": 1.0,
    "clock drift": 0.5,
    "bit flips": 0.7,
    "live bit flips": 0.7,
    "wiped disk": 0.7,
    "log header": 1.2,
    **plots.WEIGHTS,
}
"""How often each kind of fault is chosen, relative to the others."""


@dataclass(frozen=True)
class FaultPlan:
    """What a nemesis may do.

    Attributes:
        weights: relative frequency by kind; a kind that is missing never happens.
        pause_s: simulated seconds between the end of a fault and the next one, low and high.
        length_s: how long what heals by itself lasts, low and high.
        max_skew_s: how far a wall clock may jump.
        lying_disks: disks, of the minority that may be damaged, that report syncs they do not do.
    """

    weights: dict[str, float] = field(default_factory=lambda: dict(WEIGHTS))
    pause_s: tuple[float, float] = (0.05, 1.5)
    length_s: tuple[float, float] = (0.05, 5.0)
    max_skew_s: float = 4.0
    lying_disks: int = 0


class Nemesis:
    """Does one fault after the other, sometimes several at a time."""

    def __init__(self, world: World, plan: FaultPlan) -> None:
        self.world = world
        self._plan = plan
        self.random = random.Random(f"nemesis/{world.seed}")
        self._plots = plots.Plots(self)
        self._kinds: dict[str, Callable[[], Awaitable[object]]] = {
            "kill": self._kill,
            "power loss": self._power_loss,
            "power loss at a write": lambda: self._power_loss_at("crash_at_write_in", 40),
            "power loss at a sync": lambda: self._power_loss_at("crash_at_sync_in", 12),
            "kill of all": lambda: self._crash_all(power=False),
            "power loss of all": lambda: self._crash_all(power=True),
            "stop": self._stop,
            "pause": self._pause,
            "cut": self._cut,
            "one-way cut": self._cut_one_way,
            "isolation": self._isolate,
            "partition": self._partition,
            "broken connections": self._break_connections,
            "slow wire": self._slow_wire,
            "thin wire": self._thin_wire,
            "slow disk": self._slow_disk,
            "write error": lambda: self._disk_error("write_error_in", 30),
            "sync error": lambda: self._disk_error("sync_error_in", 10),
            "read error": lambda: self._disk_error("read_error_in", 20),
            "clock jump": self._clock_jump,
            "clock drift": self._clock_drift,
            "bit flips": self._bit_flips,
            "live bit flips": self._live_bit_flips,
            "wiped disk": self._wiped_disk,
            "log header": self._log_header,
            **self._plots.kinds(),
        }
        unknown = sorted(set(plan.weights) - set(self._kinds))
        assert not unknown, unknown
        minority = (len(world.names) - 1) // 2
        self.damageable = self.random.sample(world.names, minority)
        """Nodes whose disks may lose what was synced; the others' never do."""

    def _let_lie(self) -> bool:
        """Let disks lie, if this plan has any; returns whether one does.

        A node on such a disk forgets, and does not know it: what a majority counts on it for may be
        gone. Only a leader whose disk does not lie, and that stays the leader, makes up for that.
        """
        leader = self.world.config.leader.name
        able = [name for name in self.damageable if name != leader]
        for name in able[: self._plan.lying_disks]:
            self.world.disks[name].broken.is_lying = True
        return bool(able[: self._plan.lying_disks])

    async def run(self) -> None:
        """Do faults, for ever."""
        lying = self._let_lie()
        kinds = [
            kind
            for kind in self._kinds
            if self._plan.weights.get(kind) and not (lying and kind in plots.PROMOTIONS)
        ]
        weights = [self._plan.weights[kind] for kind in kinds]
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(self.random.uniform(*self._plan.pause_s))
                kind = self.random.choices(kinds, weights)[0]
                self.world.trace.log(f"nemesis: {kind}")
                if self.random.random() < 0.3:
                    nursery.start_soon(self._kinds[kind])
                else:
                    await self._kinds[kind]()

    # --- nodes ----------------------------------------------------------------------------------

    async def _kill(self) -> None:
        await self._crash_and_start(self._node(), power=False)

    async def _power_loss(self) -> None:
        await self._crash_and_start(self._node(), power=True)

    async def _crash_and_start(self, *names: str, power: bool) -> None:
        await self.world.crash(*names, power=power)
        await self.last(0.3)
        for name in names:
            await self.revive(name)

    async def _crash_all(self, *, power: bool) -> None:
        self.world.faults["all at once"] += 1
        names = list(self.world.names)
        await self.world.crash(power=power)
        self.random.shuffle(names)
        for name in names:
            await self.last(0.1)
            await self.revive(name)

    async def _power_loss_at(self, which: str, within: int) -> None:
        name = self._node()
        broken = self.world.disks[name].broken
        setattr(broken, which, self.random.randint(1, within))
        await self._until_stopped(name)
        setattr(broken, which, 0)
        await self.revive(name)

    async def _stop(self) -> None:
        name = self._node()
        await self.world.stop(name)
        self.world.faults["stop"] += 1
        await self.revive(name)

    async def _pause(self) -> None:
        """As by SIGSTOP and SIGCONT."""
        length_s = self.length()
        self.world.disks[self._node()].pause(length_s)
        await trio.sleep(length_s)

    async def _until_stopped(self, name: str) -> None:
        """Give a node that is to stop by itself some time for it."""
        with trio.move_on_after(self.length()):
            while self.world.running(name):  # noqa: ASYNC110
                await trio.sleep(0.05)

    async def revive(self, name: str) -> None:
        """Start a node that is down, as an operator would: with an empty disk if its own is
        damaged and it may be."""
        world = self.world
        if world.running(name) or (name not in world.names and name in world.configs):
            # A member that was replaced stays away.
            return
        try:
            await world.start(name)
        except* (HadronError, OSError) as group:
            world.trace.log(f"nemesis: {name} does not start: {group.exceptions[0]}")
            if name in world.configs:
                # It was told of a later epoch, and its file is old.
                world.hand_out(name)
                world.faults["old configuration"] += 1
            elif name in self.damageable:
                world.wipe(name)

    async def hand_out(self) -> None:
        """Start every node that has an old configuration file again, with the newest."""
        for name in self.world.names:
            if name in self.world.configs:
                self.world.hand_out(name)
                await self.world.crash(name)
                await self.revive(name)

    # --- network --------------------------------------------------------------------------------

    async def _cut(self) -> None:
        one, other = self._pair()
        self.world.network.cut(one, other)
        self.world.faults["cut"] += 1
        await self.last()
        self.world.network.heal(one, other)

    async def _cut_one_way(self) -> None:
        one, other = self._pair()
        self.world.network.cut_one_way(one, other)
        self.world.faults["one-way cut"] += 1
        await self.last()
        if self.random.random() < 0.5:
            # What was held back is lost; otherwise it arrives late.
            self.world.network.break_connections(one, other)
        self.world.network.heal(one, other)

    async def _isolate(self) -> None:
        name = self._node()
        others = [other for other in self.world.network.hosts() if other != name]
        self.world.network.isolate(name, *others)
        self.world.faults["isolation"] += 1
        await self.last()
        for other in others:
            self.world.network.heal(name, other)

    async def _partition(self) -> None:
        """Some nodes lose the others, and clients reach all of them; then often one of those who
        knew more dies, perhaps for good, and others are away when it comes back."""
        world = self.world
        side = self._part()
        await self.last()
        if self.random.random() < 0.6:
            leader = world.config.leader.name
            name = leader if self.random.random() < 0.6 else self.random.choice(side)
            await world.crash(name)
            if self.may_damage(name) and self.random.random() < 0.6:
                world.wipe(name)
            self.join_all()
            if self.random.random() < 0.5:
                self._part()
            await self.revive(name)
            await self.last(0.5)
        self.join_all()

    def _part(self) -> list[str]:
        """Cut some nodes, not the same ones each time, off from the others; returns them."""
        names = list(self.world.names)
        self.random.shuffle(names)
        side = names[: self.random.randint(1, max(1, len(names) - 1))]
        for name in side:
            self.world.network.isolate(name, *(other for other in names if other not in side))
        self.world.faults["partition"] += 1
        return side

    def join_all(self) -> None:
        network, names = self.world.network, self.world.names
        for number, one in enumerate(names):
            for other in names[number + 1 :]:
                if self.random.random() < 0.5:
                    network.break_connections(one, other)
                network.heal(one, other)

    async def _break_connections(self) -> None:
        one, other = self._pair()
        if self.world.network.break_connections(one, other):
            self.world.faults["broken connections"] += 1

    async def _slow_wire(self) -> None:
        one, other = self._pair()
        high_s = self.random.choice((0.01, 0.1, 1.0))
        self.world.network.delay(one, other, high_s / 10, high_s)
        self.world.faults["slow wire"] += 1
        await self.last()
        self.world.network.wire(one, other).be_normal()

    async def _thin_wire(self) -> None:
        one, other = self._pair()
        self.world.network.slow(one, other, self.random.choice((1e4, 1e5, 1e6)))
        self.world.faults["thin wire"] += 1
        await self.last()
        self.world.network.wire(one, other).be_normal()

    # --- disks ----------------------------------------------------------------------------------

    async def _slow_disk(self) -> None:
        disk = self.world.disks[self._node()]
        usual = disk.speed
        disk.speed = self.random.choice((FAST, ORDINARY, SLOW))
        self.world.faults["disk speed"] += 1
        await self.last()
        disk.speed = usual

    async def _disk_error(self, which: str, within: int) -> None:
        name = self._node()
        broken = self.world.disks[name].broken
        setattr(broken, which, self.random.randint(1, within))
        await self._until_stopped(name)
        setattr(broken, which, 0)
        await self.revive(name)

    async def _bit_flips(self) -> None:
        name = await self._damage(lambda name: self._flip(name))
        if name and self.random.random() < 0.4:
            await self._plots.fetch_slowly(name)

    async def _live_bit_flips(self) -> None:
        """Beneath a running node, whose caches have what was written; often it is killed before or
        after it has noticed."""
        if not self.damageable:
            return
        name = self.random.choice(self.damageable)
        if not self.world.running(name) or not self.may_damage(name):
            return
        flipped = self.world.disks[name].flip_live(self.random.choice((1, 1, 3)))
        self.world.trace.log(f"{name}: bits flipped beneath it: {', '.join(flipped)}")
        await self.last(0.5)
        if self.random.random() < 0.5:
            await self._crash_and_start(name, power=self.random.random() < 0.5)

    def _flip(self, name: str) -> None:
        flipped = self.world.disks[name].flip_bits(self.random.choice((1, 1, 3, 20)))
        self.world.trace.log(f"{name}: bits flipped: {', '.join(flipped)}")

    async def _log_header(self) -> None:
        """Of one that dies at a write, in the middle of a checkpoint perhaps: the file has some of
        its log's pages then, and not all."""
        if not self.damageable:
            return
        name = self.random.choice(self.damageable)
        disk = self.world.disks[name]
        if self.random.random() < 0.7:
            disk.broken.crash_at_write_in = self.random.randint(1, 80)
            await self._until_stopped(name)
            disk.broken.crash_at_write_in = 0
        await self.world.crash(name, power=False)
        if self.may_damage(name) and not self.world.running(name):
            spoiled = disk.spoil_log_header()
            self.world.trace.log(f"{name}: spoiled: {', '.join(spoiled) or 'nothing'}")
        await self.revive(name)

    async def _wiped_disk(self) -> None:
        name = await self._damage(self.world.wipe)
        if name and self.random.random() < 0.4:
            await self._plots.teach_without_room(name)

    def may_damage(self, name: str) -> bool:
        """Not while another node awaits its tables, as an old leader does whose tail was dropped:
        until they have come its disk counts as one of the minority that is lost."""
        return (
            name in self.damageable
            and name in self.world.names
            and self.world.awaiting_copies <= {name}
        )

    async def _damage(self, damage: Callable[[str], None]) -> str:
        """Returns whose disk it was; "" when none may be damaged."""
        if not self.damageable:
            return ""
        name = self.random.choice(self.damageable)
        await self.world.crash(name)
        if not self.may_damage(name):
            await self.revive(name)
            return ""
        damage(name)
        await self.revive(name)
        return name

    # --- clocks ---------------------------------------------------------------------------------

    async def _clock_jump(self) -> None:
        limit_s = self._plan.max_skew_s
        self.world.clocks[self._node()].offset_s = self.random.uniform(-limit_s, limit_s)
        self.world.faults["clock jump"] += 1

    async def _clock_drift(self) -> None:
        self.world.clocks[self._node()].drift = self.random.uniform(-1e-3, 1e-3)
        self.world.faults["clock drift"] += 1

    # --- choices --------------------------------------------------------------------------------

    def _node(self) -> str:
        return self.random.choice(self.world.names)

    def _pair(self) -> tuple[str, str]:
        """A node, and another host, a client's perhaps."""
        one = self._node()
        others = [name for name in self.world.network.hosts() if name != one]
        pair = one, self.random.choice(others)
        return pair if self.random.random() < 0.5 else pair[::-1]

    def length(self) -> float:
        return self.random.uniform(*self._plan.length_s)

    async def last(self, share: float = 1.0) -> None:
        await trio.sleep(self.length() * share)


async def run_faults(world: World, plan: FaultPlan | None = None) -> None:
    """Do the faults of `plan`, in an order that the world's seed decides, until cancelled.

    Call `world.heal_everything()` then: a fault under way stays as it is.
    """
    world.nemesis = Nemesis(world, plan or FaultPlan())
    await world.nemesis.run()
