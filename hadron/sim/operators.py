"""Who operates a simulated world while others are at work in it: looks at groups, resets them,
deletes them; takes backups of nodes that run, one soon after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from hadron.client import Client
from hadron.model.errors import HadronError, NotFoundError
from hadron.sim.backups import Backups
from hadron.sim.history import History
from hadron.sim.workload_clients import STREAM, ClientActor
from hadron.sim.world import World

_CHANGES: Final = 2
"""Resets and deletions of a run: each costs the groups' members work that is done already."""

_BACK: Final = 80
"""Records that a reset goes back by, at most."""


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
        noted = self.history.regroup(
            self.name, group, STREAM, self.partition, "reset", to
        )
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


class BackupOperator(ClientActor):
    """Takes backups. What is in them is judged where they are taken (`watch`)."""

    def __init__(self, world: World, history: History, host: str, seed: str) -> None:
        super().__init__(world, history, host, seed)
        self._backups: Backups | None = None

    async def session(self, client: Client) -> None:
        # Its disk is made where somebody takes some: there is one in a world.
        self._backups = self._backups or Backups(self.world)
        for _ in range(self.random.randint(1, 3)):
            await trio.sleep(self.random.uniform(0.2, 3.0))
            if self.stopping:
                return
            await self._backups.take(client, self.world, self.random.choice(self.world.names))
