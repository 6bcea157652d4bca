"""Whoever follows the schema, at whichever node, and keeps nothing but what he is told (R13)."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import trio

from hadron.model.errors import HadronError
from hadron.model.schema import spec_to_json
from hadron.sim.actors.clients import Actor
from hadron.sim.actors.part import Part
from hadron.sim.evidence.history import History
from hadron.sim.world.replica_set import World
from hadron.wire.connection import Connection
from hadron.wire.dialing import dial, talk
from hadron.wire.messages import method, schema_pb2

_WATCH: Final = method("WatchSchema")
_WORLDS: Final = 0.3
_TOLD_S: Final = 20.0
"""Simulated seconds within which a node that is in step tells all that there is."""


class _Known(NamedTuple):
    """What a follower was told of an object."""

    kind: str
    name: str
    metadata_index: int
    spec_json: str


class SchemaFollower(Actor):
    """Follows at one node after the other: on from where it was, or from the beginning."""

    def __init__(self, worlds: Sequence[World], history: History, host: str) -> None:
        super().__init__(worlds[0], history, host, f"{worlds[0].seed}/{host}")
        self._worlds = worlds
        self._known: dict[int, _Known] = {}
        self._index = 0
        self._ended = trio.Event()
        self.complaints: list[str] = []

    async def run(self) -> None:
        while not self.stopping:
            world = self.random.choice(self._worlds)
            if self.random.random() < 0.2:
                self._begin_anew()
            with trio.move_on_after(self.random.expovariate(0.3)):
                await self._follow(world, self.random.choice(world.names))
            await trio.sleep(self.random.uniform(0.05, 0.5))
        self._ended.set()

    async def look_everywhere(self) -> None:
        """Once all is healed: each node tells all that it shows."""
        await self._ended.wait()
        places = [(world, name) for world in self._worlds for name in world.names]
        for world, name in places:
            self._begin_anew()
            with trio.move_on_after(_TOLD_S):
                while not self._has_all_of(world, name):
                    await self._follow(world, name, only_all=True)
                    await trio.sleep(0.1)
            if not self._has_all_of(world, name):
                self.complaints.append(
                    f"R13: {name} has not told in {_TOLD_S:g} s all that it shows of the schema: "
                    f"who follows it is at {self._index}"
                )

    def _begin_anew(self) -> None:
        self._known, self._index = {}, 0

    def _has_all_of(self, world: World, name: str) -> bool:
        copy = world.node(name).member._schema_copy if world.listens(name) else None
        return copy is not None and copy.is_known and self._index >= copy.index

    async def _follow(self, world: World, name: str, *, only_all: bool = False) -> None:
        """Until the node ends it, or, `only_all`, once it has told all that there is."""

        async def follow(connection: Connection) -> None:
            request = schema_pb2.WatchSchemaRequest(from_index=self._index)
            told = dict(self._known)
            seen: set[int] = set()
            async with connection.open_stream(_WATCH, request) as changes:
                async for message, _ in changes:
                    if message.lost and self._index:
                        # What it was told may be among what was lost.
                        self._begin_anew()
                        return
                    if message.to_index < self._index:
                        return
                    _take(message, told, seen)
                    if message.more_follows:
                        continue
                    if message.is_whole:
                        told = {number: told[number] for number in told if number in seen}
                    self._known, self._index = dict(told), message.to_index
                    seen.clear()
                    self._compare(world, name)
                    if only_all and self._has_all_of(world, name):
                        return

        network = world.network.boot(self.host)
        with contextlib.suppress(OSError, HadronError):
            await talk(await dial(network, world.config.node(name).address), follow)

    def _compare(self, world: World, name: str) -> None:
        """With what the node shows, where it stands at the same index by now."""
        copy = world.node(name).member._schema_copy if world.listens(name) else None
        if copy is None or not copy.is_known or copy.index != self._index:
            return
        there = {
            item.id: _Known(
                item.kind, item.name, item.metadata_index, spec_to_json(item.spec).decode()
            )
            for item in copy.catalog.all()
            if item.id
        }
        wrong = {number for number, _ in there.items() ^ self._known.items()}
        if wrong and len(self.complaints) < 3:
            number = min(wrong)
            self.complaints.append(
                f"R13: at {self._index} {name} shows object {number} as {there.get(number)}, "
                f"and has told who follows it of {self._known.get(number)}"
            )


def _take(message: Any, told: dict[int, _Known], seen: set[int]) -> None:
    for each in message.deleted:
        told.pop(each.id, None)
        seen.discard(each.id)
    for item in message.objects:
        told[item.id] = _Known(item.kind, item.name, item.metadata_index, item.spec_json)
        seen.add(item.id)


class Following(Part):
    """One who follows the schema of all nodes of `worlds`."""

    def __init__(self, worlds: Sequence[World], history: History) -> None:
        self._follower = SchemaFollower(worlds, history, "fs")

    def actors(self) -> Iterable[Actor]:
        return (self._follower,)

    async def drain(self) -> None:
        await self._follower.look_everywhere()

    def complaints(self) -> Sequence[str]:
        return self._follower.complaints


def has_followers(seed: int | str) -> bool:
    """Whether a world has somebody who follows its schema."""
    return random.Random(f"follows the schema/{seed}").random() < _WORLDS
