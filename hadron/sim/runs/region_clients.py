"""Clients at work over several replica sets: producers that change partitions, members of groups,
and somebody who changes the schema all the time.

As in `actors.clients` they use nothing but the public client.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
import trio
import xxhash

from hadron.client import Client
from hadron.client.consuming.subscription import Subscription
from hadron.client.producing.failover import Failover
from hadron.client.producing.producer import Producer
from hadron.client.producing.publisher import Pending
from hadron.model.errors import HadronError, SchemaError
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.sim.actors.clients import STREAM, ClientActor, ReaderActor, text
from hadron.sim.actors.dealings import Dealings
from hadron.sim.evidence.history import Acks, Publish
from hadron.sim.evidence.labels import PASSING
from hadron.sim.evidence.regions import drained
from hadron.sim.runs.region_run import RegionRun
from hadron.sim.world.regions import AMERICA, EUROPE

PARTITIONS: Final = (EUROPE, AMERICA)
"""Of the stream that everybody uses, as it is declared."""

_FAILOVERS: Final[tuple[Failover, ...]] = (
    "unkeyed",
    "unkeyed",
    "unkeyed",
    "any",
    "any",
    "none",
    "duplicate",
)


class RegionActor(ClientActor):
    """A client that knows all sets."""

    def __init__(self, run: RegionRun, host: str) -> None:
        # Whose world it is does not matter: its clients get the addresses of all nodes.
        seed = f"{run.regions.seed}/{host}"
        super().__init__(run.regions.metadata, run.history, host, seed)
        self._run = run


class RegionProducerActor(RegionActor):
    """Publishes to all regions, or to one of them, with every kind of failover."""

    def __init__(self, run: RegionRun, host: str) -> None:
        super().__init__(run, host)
        self._values = 0
        self._failover: Failover = "unkeyed"
        self._only = ""
        self._acks: Acks = "majority"

    async def session(self, client: Client) -> None:
        rng = self.random
        self._failover = rng.choice(_FAILOVERS)
        self._only = rng.choice(("", "", "", EUROPE, AMERICA))
        self._acks = rng.choice(("majority",) * 5 + ("all",))
        region = rng.choice((self._only, self._only.partition(".")[0])) if self._only else None
        async with client.producer(
            STREAM,
            acks=self._acks,
            region=region,
            failover=self._failover,
            batch_bytes=rng.choice((600, 4_000, 100_000)),
            linger_ms=rng.choice((0.0, 1.0, 5.0)),
            delivery_timeout_s=rng.choice((1.0, 4.0, 15.0)),
        ) as producer:
            for _ in range(rng.randint(3, 20)):
                if self.stopping:
                    break
                try:
                    await self._send(producer, rng.choice((1, 1, 3, 10, 20)))
                except HadronError:
                    if rng.random() < 0.3:
                        break
                await self.pause(0.5)

    async def _send(self, producer: Producer, count: int) -> None:
        """Without waiting for each other; raises the last failure."""
        waiting: list[tuple[Publish, Pending]] = []
        for _ in range(count):
            key = self.random.choice((None, None, "a", "b", "c", "d"))
            operation = self._begin(key)
            waiting.append((operation, await producer.send_soon(operation.values[0], key=key)))
            await self.pause(0.002)
        trouble: HadronError | None = None
        for operation, pending in waiting:
            trouble = await self._run.settle(operation, pending) or trouble
        if trouble is not None:
            raise trouble

    def _begin(self, key: str | None) -> Publish:
        self._values += 1
        value = f"{self.host}/{self._values}:".ljust(self.random.randrange(120), ".")
        stays = self._failover == "none" or (self._failover == "unkeyed" and key is not None)
        allowed: tuple[str, ...] = (self._only,) if self._only else ()
        if stays and key is not None and not self._only:
            index = xxhash.xxh3_64_intdigest(key.encode()) % len(PARTITIONS)
            allowed = (PARTITIONS[index],)
        # What may move has no order; with "unkeyed" two kinds of records go their own ways.
        kind = "" if self._failover == "none" else "/keyed"
        return self.history.publish(
            self.name,
            f"{self.name}{kind}" if stays else "",
            STREAM,
            "",
            [value],
            acks=self._acks,
            failover=self._failover,
            allowed=allowed,
        )


class RegionReaderActor(ReaderActor):
    """Reads one of the partitions."""

    def __init__(self, run: RegionRun, host: str, partition: str) -> None:
        super().__init__(run.regions.metadata, run.history, host, f"{run.regions.seed}/{host}")
        self.partition = partition


class RegionMemberActor(RegionActor):
    """A member of a group over all partitions: acknowledges, gives back, leaves, comes again."""

    def __init__(self, run: RegionRun, host: str, group: str) -> None:
        super().__init__(run, host)
        self.group = group
        self._dealings = Dealings(self.history, group, STREAM)

    async def session(self, client: Client) -> None:
        self._dealings.begin(self.name)
        async with client.subscribe(
            STREAM, group=self.group, max_in_flight=self.random.choice((1, 4, 30, 200))
        ) as subscription:
            leaves_at = trio.current_time() + self.random.uniform(1.0, 10.0)
            while not self.stopping and trio.current_time() < leaves_at:
                with trio.move_on_after(0.5):
                    await self.take(subscription)
                if self._dealings.many_unconfirmed or self.random.random() < 0.1:
                    await self._dealings.flush(subscription)
            await self._dealings.flush(subscription)

    async def take(self, subscription: Subscription) -> None:
        """One batch of records."""
        batch = await anext(subscription.batches())
        first, last = batch.first_offset, batch.first_offset + len(batch) - 1
        values = [text(record.value) for record in batch.records]
        self._dealings.given(batch.partition, first, values, attempt=batch.attempt)
        how = self.choose()
        if how == "keep":
            return
        settle = self._dealings.settle(how, batch.partition, [(first, last)])
        if how == "ack":
            self._dealings.acknowledged(settle)
            await batch.ack()
        else:
            await batch.nack(self.random.choice((0.0, 0.1, 1.0)))

    def choose(self) -> Literal["ack", "nack", "keep"]:
        dice = self.random.random()
        return "ack" if dice < 0.85 else "nack" if dice < 0.95 else "keep"


class DrainingRegionMember(RegionMemberActor):
    """Takes and acknowledges everything until the group has nothing left anywhere."""

    async def run(self) -> None:
        while not self.stopping:
            self._sessions += 1
            try:
                async with self.world.client(self.host, connect_timeout_s=3.0) as client:
                    await self._drain(client)
            except HadronError:
                await trio.sleep(0.1)

    async def _drain(self, client: Client) -> None:
        self._dealings.begin(self.name)
        async with client.subscribe(STREAM, group=self.group, max_in_flight=500) as subscription:
            while not self.stopping:
                await self._look(client)
                with trio.move_on_after(0.2):
                    while True:
                        await self.take(subscription)
                await self._dealings.flush(subscription)

    async def _look(self, client: Client) -> None:
        """Stop when every partition says that nothing is left."""
        asked = self.history.tick()
        rows = [row for row in await client.groups(STREAM) if row.group == self.group]
        if {row.partition for row in rows} == set(PARTITIONS) and all(
            row.floor >= row.next_offset for row in rows
        ):
            for row in rows:
                subject = drained(self.group, row.partition)
                self.history.event("drained", subject, str(row.floor), at=asked)
            self.stop()

    def choose(self) -> Literal["ack", "nack", "keep"]:
        return "ack"


class SchemaActor(RegionActor):
    """Declares streams, changes them, adds partitions, deletes them, and declares them again."""

    async def session(self, client: Client) -> None:
        for _ in range(self.random.randint(2, 10)):
            if self.stopping:
                return
            if self.random.random() < 0.1:
                await self._take_a_partition(client)
                continue
            name = self.random.choice(PASSING)
            found = await client.objects("Stream", "default", name)
            if not found:
                await self._apply(client, name, self._some_partitions())
            elif self.random.random() < 0.4:
                await self._delete(client, name)
            else:
                spec = found[0].spec
                assert isinstance(spec, StreamSpec)
                added = [each for each in self._some_partitions() if each not in spec.partitions]
                await self._apply(client, name, (*spec.partitions, *added))
            await self.pause(0.8)

    async def _take_a_partition(self, client: Client) -> None:
        """From the stream that everybody uses, without insisting: it must be refused."""
        found = await client.objects("Stream", "default", STREAM)
        if not found:
            return
        known = found[0].spec
        assert isinstance(known, StreamSpec)
        spec = msgspec.structs.replace(known, partitions=known.partitions[1:])
        noted = self.history.apply(self.name, [("Stream", STREAM)])
        try:
            await client.apply([SchemaObject(kind="Stream", name=STREAM, spec=spec)])
        except HadronError as error:
            self.ended(noted, error)
            if not isinstance(error, SchemaError):
                raise
        else:
            raise AssertionError(f"{self.name} has taken {known.partitions[0]} from {STREAM}")

    def _some_partitions(self) -> tuple[str, ...]:
        return tuple(self.random.sample(PARTITIONS, self.random.randint(1, 2)))

    async def _apply(self, client: Client, name: str, partitions: tuple[str, ...]) -> None:
        spec = StreamSpec(
            partitions=partitions, description=f"of {trio.current_time():.3f}, by {self.name}"
        )
        operation = self.history.apply(self.name, [("Stream", name)])
        try:
            applied = await client.apply([SchemaObject(kind="Stream", name=name, spec=spec)])
        except HadronError as error:
            self.ended(operation, error)
            raise
        operation.metadata_index = applied.metadata_index
        self.history.ok(operation)

    async def _delete(self, client: Client, name: str) -> None:
        """Of which stream it was, the answer tells: another one of that name may be there since."""
        operation = self.history.apply(self.name, [("Stream", name)], deletes=True)
        try:
            (gone,) = await client.delete([("Stream", "default", name)], allow_destructive=True)
        except HadronError as error:
            self.ended(operation, error)
            raise
        operation.ids = [gone.id]
        self.history.ok(operation)
