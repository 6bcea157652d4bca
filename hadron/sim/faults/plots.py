"""Faults in several acts: each leads to states that single faults hardly ever do.

A leader that loses its peers, goes on taking records that nobody acknowledges, and comes back to
another one; a disk that is full on a majority; a replica that is slow while its connections break.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import trio

from hadron.fakes.disk import SLOW
from hadron.replication.life import Life

if TYPE_CHECKING:
    from hadron.fakes.connections import Wire
    from hadron.sim.faults.nemesis import Nemesis

WEIGHTS: Final = {
    "promotion": 1.5,
    "promotion of one cut off": 1.5,
    "clock far off": 1.5,
    "full disk": 1.5,
    "changed row": 1.5,
    "broken replication": 1.5,
    "members exchanged": 1.5,
}

_FAR_S: Final = (6.0, 60.0)
"""Beyond the 5 s that PROTOCOL B8 allows to a leader."""


PROMOTIONS: Final = ("promotion", "promotion of one cut off", "members exchanged")


class Plots:
    """Plays them for a nemesis, whose choices it shares."""

    def __init__(self, nemesis: Nemesis) -> None:
        self._nemesis = nemesis
        self._world = nemesis.world
        self._random = nemesis.random
        self._is_clock_off = False

    def kinds(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """By the names in `WEIGHTS`."""
        return {
            "promotion": lambda: self._promote(cuts=False),
            "promotion of one cut off": lambda: self._promote(cuts=True),
            "clock far off": self._clock_far_off,
            "full disk": self._full_disk,
            "changed row": self._changed_row,
            "broken replication": self._broken_replication,
            "members exchanged": self._exchange_members,
        }

    # --- leaders --------------------------------------------------------------------------------

    async def _promote(self, *, cuts: bool) -> None:
        """Let another node lead. The old leader goes on for a while: it has the old file, and is
        perhaps alone with its clients (`cuts`), or stands still."""
        world, nemesis = self._world, self._nemesis
        old = world.config.leader.name
        others = [name for name in world.names if name != old]
        if not others:
            return
        if cuts:
            self._cut_off(old, others)
            await nemesis.last(0.3)
        elif self._random.random() < 0.3:
            world.disks[old].pause(nemesis.length())
        # Meanwhile members may have been exchanged, or another may lead.
        others = [name for name in world.names if name != world.config.leader.name]
        leader = self._random.choice(others)
        world.faults["promotion"] += 1
        world.promote(leader)
        if self._random.random() < 0.3:
            await self._fall_at_once(leader)
            await self._restart_as_it_is(old)
        told = [
            leader,
            *(name for name in others if name != leader and self._random.random() < 0.6),
        ]
        for name in told:
            await self._restart(name)
        await nemesis.last()
        if cuts:
            nemesis.join_all()
            await nemesis.last(0.3)
        for name in world.names:
            if name in world.configs and self._random.random() < 0.8:
                await self._restart(name)

    async def _exchange_members(self) -> None:
        """A new machine takes the place of one whose disk may be lost, or comes beside the others;
        who is replaced goes when all the others are in step. Others may lead from then on."""
        world, nemesis = self._world, self._nemesis
        joining = [spare.name for spare in world.spares if spare.name not in world.names]
        if not joining or world.configs:
            return
        # The others must be a majority of the old members, and remember.
        leaving = [name for name in nemesis.damageable if name in world.names][:1]
        if len(world.names) < 3 or self._random.random() < 0.3:
            leaving = []
        # The new disk counts as the one that is lost until it has learned everything.
        nemesis.damageable = [
            name for name in nemesis.damageable[1:] if leaving and name not in leaving
        ]
        kept = [name for name in world.names if name not in leaving]
        leader = world.config.leader.name
        if leader not in kept or self._random.random() < 0.5:
            leader = self._random.choice(kept)
        world.faults["members exchanged"] += 1
        world.promote(leader, (*kept, joining[0]))
        await nemesis.revive(joining[0])
        self._random.shuffle(kept)
        for name in kept:
            await self._restart(name)
            await nemesis.last(0.1)
        with trio.move_on_after(10.0):
            await world.wait_in_step()
            for name in leaving:
                await world.stop(name)

    def _cut_off(self, leader: str, others: list[str]) -> None:
        """Take its peers from a leader, or let one of them hear it still."""
        network = self._world.network
        spared = self._random.choice((None, None, *others))
        for other in others:
            if other != spared:
                network.cut(leader, other)
            else:
                network.cut_one_way(other, leader)
        self._world.faults["cut"] += 1

    async def _restart(self, name: str) -> None:
        """With the newest file, unless it was replaced: then it stays as it is."""
        if name not in self._world.names:
            return
        self._world.hand_out(name)
        await self._world.crash(name)
        await self._nemesis.revive(name)

    async def _fall_at_once(self, leader: str) -> None:
        """The new leader loses power as soon as it has asked for promises: some members have given
        theirs, and nothing in their logs says why."""
        world = self._world
        world.hand_out(leader)
        await world.crash(leader)
        await self._nemesis.revive(leader)
        if world.running(leader):
            with trio.move_on_after(2.0):
                # Somebody else may have crashed it meanwhile, and may be starting it.
                while not (  # noqa: ASYNC110
                    world.listens(leader) and world.status(leader).state == Life.RECONCILING
                ):
                    await trio.sleep(0.001)
            await world.crash(leader)

    async def _restart_as_it_is(self, name: str) -> None:
        """With the file that it has."""
        await self._world.crash(name)
        await self._nemesis.last(0.1)
        await self._nemesis.revive(name)

    # --- clocks ---------------------------------------------------------------------------------

    async def _clock_far_off(self) -> None:
        """A clock is set to a wrong time, the leader's mostly, and mended after a while: before the
        node's start, while it asks its peers for theirs, or at any time. One at a time: a majority
        that agrees on a wrong time is believed."""
        if self._is_clock_off:
            return
        self._is_clock_off = True
        try:
            await self._set_clock_far_off(self._leader_or_any())
        finally:
            self._is_clock_off = False

    async def _set_clock_far_off(self, name: str) -> None:
        world = self._world
        off_s = self._random.uniform(*_FAR_S) * self._random.choice((-1, 1))
        when = self._random.choice(("before a start", "after a start", "at any time"))
        if when == "before a start":
            world.clocks[name].offset_s = off_s
        if when == "after a start":
            for wire in self._wires_to(name):
                world.network.delay(wire.source, name, 0.1, 0.5)
        if when != "at any time":
            await world.crash(name)
            await self._nemesis.revive(name)
        if when == "after a start":
            await trio.sleep(self._random.uniform(0.0, 1.5))
        world.clocks[name].offset_s = off_s
        world.faults["clock far off"] += 1
        await self._nemesis.last()
        world.clocks[name].offset_s = 0.0
        if when == "after a start":
            for wire in self._wires_to(name):
                wire.be_normal()

    # --- disks ----------------------------------------------------------------------------------

    async def _full_disk(self) -> None:
        """No room on the leader's disk, on anybody's, or on those of a majority: none at all, or
        less than is kept in reserve, for long enough to be noticed."""
        world, rng = self._world, self._random
        names = list(world.names)
        rng.shuffle(names)
        majority = names[: len(names) // 2 + 1]
        chosen = rng.choice(([world.config.leader.name], names[:1], majority))
        reserve = world.config.settings.disk_reserve_bytes
        room = rng.choice((64 << 10, reserve // 2, reserve))
        usual = {}
        for name in chosen:
            disk = world.disks[name]
            usual[name] = disk.broken.capacity_bytes
            disk.broken.capacity_bytes = disk.volume.used_bytes() + rng.randrange(room)
        world.faults["little room"] += 1
        await trio.sleep(1.0)
        await self._nemesis.last()
        for name, capacity_bytes in usual.items():
            world.disks[name].broken.capacity_bytes = capacity_bytes
            await self._nemesis.revive(name)

    async def teach_without_room(self, name: str) -> None:
        """A node with an empty disk is taught on thin wires, and again and again has no room for
        what comes next: what teaches it ends, and begins anew on the same connection."""
        world = self._world
        disk, reserve = world.disks[name], world.config.settings.disk_reserve_bytes
        usual = disk.broken.capacity_bytes
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.fetch_slowly, name)
            for _ in range(self._random.randint(1, 3)):
                disk.broken.capacity_bytes = disk.volume.used_bytes() + reserve // 32
                await trio.sleep(self._random.uniform(0.5, 2.0))
                disk.broken.capacity_bytes = usual
                await trio.sleep(self._random.uniform(0.1, 1.0))
        await self._nemesis.revive(name)

    async def _changed_row(self) -> None:
        """Entries change on a disk that may be damaged; its node's wires are thin for a while, so
        that what it fetches takes its time."""
        world, nemesis = self._world, self._nemesis
        if not nemesis.damageable:
            return
        name = self._random.choice(nemesis.damageable)
        if not world.running(name):
            return
        await world.stop(name)
        if world.running(name):
            return
        if not nemesis.may_damage(name):
            await nemesis.revive(name)
            return
        changed = world.disks[name].change_rows(self._random.choice((1, 2, 5)))
        world.trace.log(f"{name}: changed: {', '.join(changed)}")
        await nemesis.revive(name)
        await self.fetch_slowly(name)

    async def fetch_slowly(self, name: str) -> None:
        """Let a node wait for what its peers send it, while its log goes on."""
        network = self._world.network
        wires = self._wires_to(name)
        for wire in wires:
            network.slow(wire.source, wire.target, self._random.choice((3e4, 1e5, 1e6)))
        await self._nemesis.last()
        for wire in wires:
            wire.be_normal()

    def _wires_to(self, name: str) -> list[Wire]:
        """On which a node's peers answer it."""
        network = self._world.network
        return [network.wire(other, name) for other in self._world.names if other != name]

    # --- connections ----------------------------------------------------------------------------

    async def _broken_replication(self) -> None:
        """The connections of leader and replica break again and again. The leader mostly hears of
        it first: what it had sent before arrives among what it sends once more."""
        world = self._world
        leader = world.config.leader.name
        name = self._random.choice(world.names)
        if name == leader:
            return
        disk, network = world.disks[name], world.network
        usual, disk.speed = disk.speed, SLOW
        for _ in range(self._random.randint(2, 6)):
            if self._random.random() < 0.3:
                broken = network.break_connections(leader, name)
            else:
                network.delay(leader, name, 0.3, 1.0)
                await trio.sleep(self._random.uniform(0.1, 1.0))
                broken = network.reset(leader, name)
                network.wire(leader, name).be_normal()
            if broken:
                world.faults["broken connections"] += 1
            await trio.sleep(self._random.uniform(0.0, 1.0))
        disk.speed = usual

    def _leader_or_any(self) -> str:
        if self._random.random() < 0.7:
            return self._world.config.leader.name
        return self._random.choice(self._world.names)
