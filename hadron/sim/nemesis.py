"""The nemesis: a seeded schedule of faults against a world, and the way back to health.

It keeps to what the guarantees allow (PROTOCOL C): disks are damaged, wiped or lying on at most a
minority of nodes in a whole run; everything else may happen to all of them, also at once.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from hadron.model.errors import HadronError
from hadron.sim.disk import FAST, ORDINARY, SLOW

if TYPE_CHECKING:
    from hadron.sim.world import World

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
    "full disk": 0.7,
    "clock jump": 1.0,
    "clock drift": 0.5,
    "bit flips": 0.7,
    "wiped disk": 0.7,
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
        self._world = world
        self._plan = plan
        self._random = random.Random(f"nemesis/{world.seed}")
        self._kinds: dict[str, Callable[[], Awaitable[None]]] = {
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
            "full disk": self._full_disk,
            "clock jump": self._clock_jump,
            "clock drift": self._clock_drift,
            "bit flips": self._bit_flips,
            "wiped disk": self._wiped_disk,
        }
        unknown = sorted(set(plan.weights) - set(self._kinds))
        assert not unknown, unknown
        minority = (len(world.names) - 1) // 2
        self._damageable = self._random.sample(world.names, minority)
        """Nodes whose disks may lose what was synced; the others' never do."""

    async def run(self) -> None:
        """Do faults, for ever."""
        for name in self._damageable[: self._plan.lying_disks]:
            self._world.disks[name].broken.is_lying = True
        kinds = [kind for kind in self._kinds if self._plan.weights.get(kind)]
        weights = [self._plan.weights[kind] for kind in kinds]
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(self._random.uniform(*self._plan.pause_s))
                kind = self._random.choices(kinds, weights)[0]
                self._world.trace.log(f"nemesis: {kind}")
                if self._random.random() < 0.3:
                    nursery.start_soon(self._kinds[kind])
                else:
                    await self._kinds[kind]()

    # --- nodes ----------------------------------------------------------------------------------

    async def _kill(self) -> None:
        await self._crash_and_start(self._node(), power=False)

    async def _power_loss(self) -> None:
        await self._crash_and_start(self._node(), power=True)

    async def _crash_and_start(self, *names: str, power: bool) -> None:
        await self._world.crash(*names, power=power)
        await self._last(0.3)
        for name in names:
            await self.revive(name)

    async def _crash_all(self, *, power: bool) -> None:
        self._world.faults["all at once"] += 1
        names = list(self._world.names)
        await self._world.crash(power=power)
        self._random.shuffle(names)
        for name in names:
            await self._last(0.1)
            await self.revive(name)

    async def _power_loss_at(self, which: str, within: int) -> None:
        name = self._node()
        broken = self._world.disks[name].broken
        setattr(broken, which, self._random.randint(1, within))
        await self._until_stopped(name)
        setattr(broken, which, 0)
        await self.revive(name)

    async def _stop(self) -> None:
        name = self._node()
        await self._world.stop(name)
        self._world.faults["stop"] += 1
        await self.revive(name)

    async def _pause(self) -> None:
        """As by SIGSTOP and SIGCONT."""
        length_s = self._length()
        self._world.disks[self._node()].pause(length_s)
        await trio.sleep(length_s)

    async def _until_stopped(self, name: str) -> None:
        """Give a node that is to stop by itself some time for it."""
        with trio.move_on_after(self._length()):
            while self._world.running(name):  # noqa: ASYNC110
                await trio.sleep(0.05)

    async def revive(self, name: str) -> None:
        """Start a node that is down, as an operator would: with an empty disk if its own is
        damaged and it may be."""
        world = self._world
        if world.running(name):
            return
        try:
            await world.start(name)
        except* (HadronError, OSError) as group:
            world.trace.log(f"nemesis: {name} does not start: {group.exceptions[0]}")
            if name in self._damageable:
                world.wipe(name)

    # --- network --------------------------------------------------------------------------------

    async def _cut(self) -> None:
        one, other = self._pair()
        self._world.network.cut(one, other)
        self._world.faults["cut"] += 1
        await self._last()
        self._world.network.heal(one, other)

    async def _cut_one_way(self) -> None:
        one, other = self._pair()
        self._world.network.cut_one_way(one, other)
        self._world.faults["one-way cut"] += 1
        await self._last()
        if self._random.random() < 0.5:
            # What was held back is lost; otherwise it arrives late.
            self._world.network.break_connections(one, other)
        self._world.network.heal(one, other)

    async def _isolate(self) -> None:
        name = self._node()
        others = [other for other in self._world.network.hosts() if other != name]
        self._world.network.isolate(name, *others)
        self._world.faults["isolation"] += 1
        await self._last()
        for other in others:
            self._world.network.heal(name, other)

    async def _partition(self) -> None:
        """Some nodes lose the others, and clients reach all of them; then often one of those who
        knew more dies, perhaps for good, and others are away when it comes back."""
        world = self._world
        side = self._part()
        await self._last()
        if self._random.random() < 0.6:
            leader = world.config.leader.name
            name = leader if self._random.random() < 0.6 else self._random.choice(side)
            await world.crash(name)
            if name in self._damageable and self._random.random() < 0.6:
                world.wipe(name)
            self._join_all()
            if self._random.random() < 0.5:
                self._part()
            await self.revive(name)
            await self._last(0.5)
        self._join_all()

    def _part(self) -> list[str]:
        """Cut some nodes, not the same ones each time, off from the others; returns them."""
        names = list(self._world.names)
        self._random.shuffle(names)
        side = names[: self._random.randint(1, max(1, len(names) - 1))]
        for name in side:
            self._world.network.isolate(name, *(other for other in names if other not in side))
        self._world.faults["partition"] += 1
        return side

    def _join_all(self) -> None:
        network, names = self._world.network, self._world.names
        for number, one in enumerate(names):
            for other in names[number + 1 :]:
                if self._random.random() < 0.5:
                    network.break_connections(one, other)
                network.heal(one, other)

    async def _break_connections(self) -> None:
        one, other = self._pair()
        if self._world.network.break_connections(one, other):
            self._world.faults["broken connections"] += 1

    async def _slow_wire(self) -> None:
        one, other = self._pair()
        high_s = self._random.choice((0.01, 0.1, 1.0))
        self._world.network.delay(one, other, high_s / 10, high_s)
        self._world.faults["slow wire"] += 1
        await self._last()
        self._world.network.wire(one, other).be_normal()

    async def _thin_wire(self) -> None:
        one, other = self._pair()
        self._world.network.slow(one, other, self._random.choice((1e4, 1e5, 1e6)))
        self._world.faults["thin wire"] += 1
        await self._last()
        self._world.network.wire(one, other).be_normal()

    # --- disks ----------------------------------------------------------------------------------

    async def _slow_disk(self) -> None:
        disk = self._world.disks[self._node()]
        usual = disk.speed
        disk.speed = self._random.choice((FAST, ORDINARY, SLOW))
        self._world.faults["disk speed"] += 1
        await self._last()
        disk.speed = usual

    async def _disk_error(self, which: str, within: int) -> None:
        name = self._node()
        broken = self._world.disks[name].broken
        setattr(broken, which, self._random.randint(1, within))
        await self._until_stopped(name)
        setattr(broken, which, 0)
        await self.revive(name)

    async def _full_disk(self) -> None:
        name = self._node()
        disk = self._world.disks[name]
        usual = disk.broken.capacity_bytes
        disk.broken.capacity_bytes = disk.volume.used_bytes() + self._random.randrange(64 << 10)
        await self._last()
        disk.broken.capacity_bytes = usual
        await self.revive(name)

    async def _bit_flips(self) -> None:
        await self._damage(lambda name: self._flip(name))

    def _flip(self, name: str) -> None:
        flipped = self._world.disks[name].flip_bits(self._random.choice((1, 1, 3, 20)))
        self._world.trace.log(f"{name}: bits flipped: {', '.join(flipped)}")

    async def _wiped_disk(self) -> None:
        await self._damage(self._world.wipe)

    async def _damage(self, damage: Callable[[str], None]) -> None:
        if not self._damageable:
            return
        name = self._random.choice(self._damageable)
        await self._world.crash(name)
        damage(name)
        await self.revive(name)

    # --- clocks ---------------------------------------------------------------------------------

    async def _clock_jump(self) -> None:
        limit_s = self._plan.max_skew_s
        self._world.clocks[self._node()].offset_s = self._random.uniform(-limit_s, limit_s)
        self._world.faults["clock jump"] += 1

    async def _clock_drift(self) -> None:
        self._world.clocks[self._node()].drift = self._random.uniform(-1e-3, 1e-3)
        self._world.faults["clock drift"] += 1

    # --- choices --------------------------------------------------------------------------------

    def _node(self) -> str:
        return self._random.choice(self._world.names)

    def _pair(self) -> tuple[str, str]:
        """A node, and another host, a client's perhaps."""
        one = self._node()
        others = [name for name in self._world.network.hosts() if name != one]
        pair = one, self._random.choice(others)
        return pair if self._random.random() < 0.5 else pair[::-1]

    def _length(self) -> float:
        return self._random.uniform(*self._plan.length_s)

    async def _last(self, share: float = 1.0) -> None:
        await trio.sleep(self._length() * share)


async def run_faults(world: World, plan: FaultPlan | None = None) -> None:
    """Do the faults of `plan`, in an order that the world's seed decides, until cancelled.

    Call `world.heal_everything()` then: a fault under way stays as it is.
    """
    world.nemesis = Nemesis(world, plan or FaultPlan())
    await world.nemesis.run()
