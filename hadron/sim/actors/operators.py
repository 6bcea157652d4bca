"""Who operates a simulated world while others are at work in it: looks at groups, resets them,
deletes them; changes how much is kept; takes backups of nodes that run, one soon after the other,
and puts some in the place of nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import trio

from hadron.client import Client
from hadron.model.errors import HadronError, NotFoundError
from hadron.model.schema import Retention, SchemaObject, StreamSpec
from hadron.sim.actors.clients import STREAM, ClientActor
from hadron.sim.evidence.history import History
from hadron.sim.world.backups import Backups
from hadron.sim.world.replica_set import World

_CHANGES: Final = 2
"""Resets and deletions of a run: each costs the groups' members work that is done already."""

_BACK: Final = 80
"""Records that a reset goes back by, at most."""


_RESTORES: Final = 2
"""Of single nodes, in a run: each is taught what it lacks before the next one."""


class GroupOperator(ClientActor):
    """Changes now one group, now another."""

    def __init__(
        self, world: World, history: History, host: str, seed: str, groups: Sequence[str]
    ) -> None:
        super().__init__(world, history, host, seed)
        self._groups = groups
        self._changes = 0

    async def session(self, client: Client) -> None:
        for _ in range(self.random.randint(1, 5)):
            await trio.sleep(self.random.uniform(0.5, 5.0))
            if self.stopping:
                return
            group = self.random.choice(self._groups)
            if self._changes >= _CHANGES or self.random.random() < 0.3:
                await self._look_at(client, group)
            elif self.random.random() < 0.75:
                await self._reset(client, group)
            else:
                await self._delete(client, group)

    async def _look_at(self, client: Client, group: str) -> None:
        try:
            await client.describe_group(STREAM, group)
        except NotFoundError:
            return

    async def _reset(self, client: Client, group: str) -> None:
        (known,) = await client.offsets(STREAM, partition=self.partition)
        last = known.next_offset
        back = max(known.first_offset, last - self.random.randint(0, _BACK))
        clock = self.world.clocks[self.world.names[0]]
        to = self.random.choice((str(back), str(back), "latest", f"@{clock.now_ms() - 1_000}"))
        noted = self.history.regroup(self.name, group, STREAM, self.partition, "reset", to)
        try:
            await client.reset_group(STREAM, group, to, force=self.random.random() < 0.8)
        except HadronError as error:
            self.ended(noted, error)
            raise
        self._changes += 1
        self.history.ok(noted)

    async def _delete(self, client: Client, group: str) -> None:
        noted = self.history.regroup(self.name, group, STREAM, self.partition, "delete")
        try:
            await client.delete_group(STREAM, group, force=self.random.random() < 0.8)
        except HadronError as error:
            self.ended(noted, error)
            raise
        self._changes += 1
        self.history.ok(noted)


def note_retention(history: History, limits: Retention) -> None:
    """The stream that everybody uses may have these from here on."""
    history.event("retention", STREAM, f"{limits.max_age_ms} {limits.max_bytes}")


class RetentionOperator(ClientActor):
    """Lets the stream that everybody uses keep more, or less, or all of it again."""

    async def session(self, client: Client) -> None:
        for _ in range(self.random.randint(1, 3)):
            await trio.sleep(self.random.uniform(1.0, 5.0))
            if self.stopping:
                return
            limits = Retention(
                max_age_ms=self.random.choice((0, 0, 2_000, 5_000)),
                max_bytes=self.random.choice((0, 2_000, 10_000, 40_000)),
            )
            note_retention(self.history, limits)
            spec = StreamSpec(partitions=(self.partition,), retention=limits)
            noted = self.history.apply(self.name, [("Stream", STREAM)])
            try:
                # What is over the new limits goes.
                applied = await client.apply(
                    [SchemaObject(kind="Stream", name=STREAM, spec=spec)], allow_destructive=True
                )
            except HadronError as error:
                self.ended(noted, error)
                raise
            noted.metadata_index = applied.metadata_index
            self.history.ok(noted)


class BackupOperator(ClientActor):
    """Takes backups. What is in them is judged where they are taken (`watch`). Now and then one,
    perhaps an old one, or another node's, takes the place of a node's state: as after the loss of a
    disk, so of one that may be lost."""

    def __init__(self, world: World, history: History, host: str, seed: str) -> None:
        super().__init__(world, history, host, seed)
        self._backups: Backups | None = None
        self._taken: list[Path] = []
        self._restores = 0

    async def session(self, client: Client) -> None:
        # Its disk is made where somebody takes some: there is one in a world.
        self._backups = self._backups or Backups(self.world)
        for _ in range(self.random.randint(1, 3)):
            await trio.sleep(self.random.uniform(0.2, 3.0))
            if self.stopping:
                return
            self._taken.append(
                await self._backups.take(client, self.world, self.random.choice(self.world.names))
            )
            if self._restores < _RESTORES and self.random.random() < 0.4:
                with trio.CancelScope(shield=True):
                    await self._restore(self._backups)

    async def _restore(self, backups: Backups) -> None:
        """Also while the node is down for another reason, or about to start."""
        world, nemesis = self.world, self.world.nemesis
        if nemesis is None or not nemesis.damageable:
            return
        name = self.random.choice(nemesis.damageable)
        await world.crash(name)
        if nemesis.may_damage(name) and not world.running(name):
            self._restores += 1
            world.faults["restored node"] += 1
            self.history.event("restore", name, "from a backup")
            try:
                backups.restore(world, name, self.random.choice(self._taken))
            except (HadronError, OSError) as error:
                # Refused, or a disk that cannot be read or written: people see that, and go on.
                world.trace.log(f"{name}: not restored: {error}")
        await nemesis.revive(name)
