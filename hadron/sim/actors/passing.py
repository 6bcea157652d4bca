"""Clients at work with a stream that comes and goes: producers, readers and members of a group.

They call it `name#id` in the history (`labels`): made again, it is another stream (PROTOCOL D3).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import apsw
import trio

from hadron.client import Client
from hadron.client.consuming.subscription import Subscription
from hadron.model.errors import HadronError, NotFoundError
from hadron.model.record_batch import decode_batch
from hadron.model.schema import SchemaObject
from hadron.sim.actors.clients import Actor, ClientActor, text
from hadron.sim.actors.curious import SchemaActor
from hadron.sim.actors.dealings import Dealings
from hadron.sim.actors.group_plans import GroupPlan, drawn_plan
from hadron.sim.actors.members import DrainingMember, MemberActor
from hadron.sim.actors.part import Part
from hadron.sim.evidence.history import History
from hadron.sim.evidence.labels import PASSING, label
from hadron.sim.world.replica_set import World

_WORLDS: Final = 0.35
"""Of all worlds of one replica set: where there is such a stream."""

GROUP: Final = "pg"
"""What the group of such a stream is called."""

_STREAM_ID: Final = "SELECT id FROM hadron_schema_object WHERE kind = 'Stream' AND name = ?"

_LOOKS: Final = 0.3
"""Of records sent: after which the stream is read."""


class PassingActor(ClientActor):
    """Publishes to a stream that may be deleted under its hands, and reads it."""

    def __init__(
        self, world: World, history: History, host: str, seed: str, streams: Sequence[str] = PASSING
    ) -> None:
        super().__init__(world, history, host, seed)
        self._streams = streams
        self._values = 0

    async def session(self, client: Client) -> None:
        name = self.random.choice(self._streams)
        item = await _found(client, name, self)
        if item is None:
            return
        stream = label(name, item.id)
        async with client.producer(
            name, delivery_timeout_s=self.random.choice((1.0, 4.0))
        ) as producer:
            if (await client.stream(name)).id != item.id:
                return  # Nobody knows which of the two it has.
            for _ in range(self.random.randint(2, 25)):
                if self.stopping:
                    return
                self._values += 1
                operation = self.history.publish(
                    self.name, "", stream, "", [f"{self.host}/{self._values}"], failover="unkeyed"
                )
                try:
                    receipt = await producer.send(operation.values[0])
                except HadronError as error:
                    self.ended(operation, error)
                    raise
                operation.partition = receipt.partition
                self.history.published(operation, receipt.offset, duplicate=receipt.duplicate)
                if self.random.random() < _LOOKS:
                    await self._read(client, name, stream, receipt.partition)
                await self.pause(0.3)

    async def _read(self, client: Client, name: str, stream: str, partition: str) -> None:
        operation = self.history.read(self.name, stream, partition, 0)
        try:
            fetched = await client.fetch(name, partition, 0)
            item = await client.stream(name)
        except HadronError as error:
            self.history.unknown(operation, error)
            raise
        if label(name, item.id) != stream:
            self.history.unknown(operation, "it is another stream now")
            return
        for batch in fetched.batches:
            records = decode_batch(batch.data, base_offset=batch.base_offset).records(0)
            operation.values.extend(text(record.value) for record in records)
        operation.end = fetched.next_offset
        self.history.ok(operation)


async def _found(client: Client, name: str, actor: Actor) -> SchemaObject | None:
    """The stream, once there is one; None when the actor is to stop before that."""
    while not actor.stopping:
        try:
            return await client.stream(name)
        except NotFoundError:
            await trio.sleep(0.3)
    return None


class PassingMember(MemberActor):
    """A member of a group of whichever stream has the name."""

    def __init__(
        self, world: World, history: History, host: str, seed: str, plan: GroupPlan, stream: str
    ) -> None:
        super().__init__(world, history, host, seed, plan, stream)
        self._client: Client | None = None
        self._id = 0

    async def session(self, client: Client) -> None:
        item = await _found(client, self.stream, self)
        if item is not None:
            self._client, self._id = client, item.id
            self.label = label(self.stream, item.id)
            self._dealings = Dealings(self.history, self.group, self.label)
            await super().session(client)

    async def _work(self, subscription: Subscription, *, batched: bool) -> None:
        assert self._client is not None
        if (await self._client.stream(self.stream)).id == self._id:
            await super()._work(subscription, batched=batched)


class DrainingPassingMember(DrainingMember):
    """Empties the group of the stream that there is at the end."""

    def __init__(
        self,
        world: World,
        history: History,
        host: str,
        seed: str,
        plan: GroupPlan,
        stream: str,
        item: SchemaObject,
    ) -> None:
        super().__init__(world, history, host, seed, plan, stream)
        self.label = label(stream, item.id)
        self._dealings = Dealings(history, self.group, self.label)
        self.drains = f"{self.group}@{self.label}"


class Passing(Part):
    """A stream that comes and goes, and everybody who has to do with it."""

    def __init__(self, world: World, history: History, seed: int | str) -> None:
        chance = random.Random(f"passing/{seed}")
        self.is_there = chance.random() < _WORLDS
        self._world, self._history, self._seed = world, history, seed
        # Dead letters name streams as they were declared.
        self._plan = replace(drawn_plan(chance, GROUP), max_attempts=0, members=2)
        self._stream = PASSING[0]
        self._schema = SchemaActor(world, history, "s1", f"{seed}/s1", (self._stream,))

    def actors(self) -> Iterator[Actor]:
        """All of them; nobody when the seed's world has none."""
        if not self.is_there:
            return
        world, history, seed = self._world, self._history, self._seed
        yield self._schema
        for number in range(2):
            host = f"y{number}"
            yield PassingActor(world, history, host, f"{seed}/{host}", (self._stream,))
        for number in range(self._plan.members):
            host = f"{GROUP}m{number}"
            yield PassingMember(world, history, host, f"{seed}/{host}", self._plan, self._stream)

    async def drain(self) -> None:
        """Empty the group, if there is a stream when nobody makes or deletes it any more."""
        if not self.is_there:
            return
        await self._schema.finished.wait()
        item = await self._look()
        if item is not None:
            member = DrainingPassingMember(
                self._world, self._history, "dp", f"{self._seed}/dp", self._plan, self._stream, item
            )
            self._history.event("draining", member.drains)
            await member.run()

    async def _look(self) -> SchemaObject | None:
        """The stream as the leader has it: a member that was replaced may run on, and shows what
        it knows."""
        while True:
            await self._world.wait_serving()
            current = self._id_at_leader()
            if current is None:
                return None
            try:
                async with self._world.client("dp") as client:
                    item = await client.stream(self._stream)
            except HadronError:
                item = None
            if item is not None and item.id == current:
                return item
            await trio.sleep(0.2)

    def _id_at_leader(self) -> int | None:
        """None where it has none; -1 where its disk does not say."""
        store = self._world.node(self._world.config.leader.name).member._store
        try:
            found: int | None = store.writer.connection.execute(_STREAM_ID, (self._stream,)).get
        except apsw.Error:
            return -1
        return found
