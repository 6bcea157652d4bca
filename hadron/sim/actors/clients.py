"""Clients at work in a simulated world: producers and readers.

Each lives on a host of its own and notes everything that it asks and is told. They use nothing but
the public client, in the ways that its users do, and they leave in all the ways that users leave:
in good order, with calls under way, or because their host died.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from typing import Final

import trio

from hadron.client import Client
from hadron.client.producing.producer import Producer
from hadron.client.producing.publisher import Pending
from hadron.model.errors import (
    DeadlineExceededError,
    HadronError,
    OffsetOutOfRangeError,
    RequestError,
)
from hadron.model.record import NewRecord
from hadron.model.record_batch import decode_batch
from hadron.sim.evidence.history import Acks, History, Operation, Publish
from hadron.sim.world.replica_set import World

STREAM: Final = "events"

_BIG_BYTES: Final = 70_000
"""A record of this size makes a commit that goes the way of large ones."""


class Actor(ABC):
    """Somebody on a host, who goes on until `stop`.

    Attributes:
        stays: it goes on after that, for others who need it until the end.
    """

    stays = False

    def __init__(self, world: World, history: History, host: str, seed: str) -> None:
        self.world = world
        self.history = history
        self.host = host
        self.random = random.Random(seed)
        self._stopped = trio.Event()
        self.partition = world.config.name
        self._sessions = 0

    @property
    def stopping(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        """Finish what is under way and begin nothing new."""
        self._stopped.set()

    @abstractmethod
    async def run(self) -> None:
        """Its life, until `stop`."""

    @property
    def name(self) -> str:
        """Of this session, unique in the history."""
        return f"{self.host}.{self._sessions}"

    async def pause(self, mean_s: float) -> None:
        """Between two requests: often none, sometimes a long one."""
        if self.random.random() < 0.5:
            with trio.move_on_after(self.random.expovariate(0.5 / mean_s)):
                await self._stopped.wait()
        else:
            await trio.lowlevel.checkpoint()

    def ended(self, operation: Operation, error: HadronError) -> None:
        """Note how an operation failed, as far as its error promises anything."""
        if isinstance(error, DeadlineExceededError | RequestError):
            self.history.refused(operation, error)
        else:
            self.history.unknown(operation, error)


class ClientActor(Actor):
    """One who connects again and again; `session` is one connected client's life."""

    async def run(self) -> None:
        while not self.stopping:
            self._sessions += 1
            try:
                await self._one_session()
            except HadronError:
                await trio.sleep(self.random.uniform(0.05, 0.5))

    async def _one_session(self) -> None:
        with trio.CancelScope() as scope:
            if self.random.random() < 0.25:
                scope.deadline = trio.current_time() + self.random.uniform(0.2, 8.0)
            async with self.world.client(
                self.host, connect_timeout_s=3.0, request_timeout_s=self.random.uniform(3.0, 8.0)
            ) as client:
                await self.session(client)
        if scope.cancelled_caught:
            # With calls under way; half of the time the whole host goes.
            if self.random.random() < 0.5:
                self.world.network.kill(self.host)
            await trio.sleep(self.random.uniform(0.0, 1.0))

    @abstractmethod
    async def session(self, client: Client) -> None:
        """What it does with one client, until that is taken away from it."""


class ProducerActor(ClientActor):
    """Publishes one at a time, many at once, or without waiting."""

    def __init__(self, world: World, history: History, host: str, seed: str) -> None:
        super().__init__(world, history, host, seed)
        self._values = 0

    async def session(self, client: Client) -> None:
        acks: Acks = self.random.choice(("majority",) * 8 + ("leader", "all"))
        async with client.producer(
            STREAM,
            acks=acks,
            codec=self.random.choice(("none", "none", "zstd")),
            batch_bytes=self.random.choice((600, 4_000, 100_000)),
            linger_ms=self.random.choice((0.0, 1.0, 5.0)),
            delivery_timeout_s=self.random.choice((1.0, 4.0, 15.0)),
        ) as producer:
            for _ in range(self.random.randint(3, 25)):
                if self.stopping:
                    break
                way = self.random.choice((self._send, self._send_soon, self._send_many))
                try:
                    await way(producer, acks)
                except HadronError:
                    self._check_room(producer)
                    if self.random.random() < 0.3:
                        break
                else:
                    self._check_room(producer)
                await self.pause(0.5)

    def _check_room(self, producer: Producer) -> None:
        """What has an outcome takes no room any more, whatever the outcome is."""
        kept = producer._publisher.buffer.bytes
        if kept:
            raise AssertionError(f"{self.name} waits for nothing, its buffer holds {kept} bytes")

    def _make(self, count: int) -> list[str]:
        """New values: unique, and naming who made them."""
        made = []
        for _ in range(count):
            self._values += 1
            size = _BIG_BYTES if self.random.random() < 0.002 else self.random.randrange(120)
            made.append(f"{self.host}/{self._values}:".ljust(size, "."))
        return made

    def _record(self, value: str) -> NewRecord:
        """With a key, as often as not; a few keys have most of the records."""
        key = int(self.random.expovariate(0.2))
        return NewRecord(value=value, key=f"k{key}" if self.random.random() < 0.5 else None)

    def _begin(self, values: list[str], acks: Acks) -> Publish:
        return self.history.publish(self.name, self.name, STREAM, self.partition, values, acks=acks)

    async def _send(self, producer: Producer, acks: Acks) -> None:
        for value in self._make(self.random.randint(1, 4)):
            operation = self._begin([value], acks)
            try:
                receipt = await producer.send(self._record(value))
            except HadronError as error:
                self.ended(operation, error)
                raise
            self.history.published(operation, receipt.offset, duplicate=receipt.duplicate)

    async def _send_soon(self, producer: Producer, acks: Acks) -> None:
        waiting: list[tuple[Publish, Pending]] = []
        # Now and then so slowly that one is given up and the next one is not.
        pause_s = self.random.choice((0.002, 0.002, 0.002, 0.3))
        for value in self._make(self.random.randint(2, 20)):
            operation = self._begin([value], acks)
            waiting.append((operation, await producer.send_soon(self._record(value))))
            await self.pause(pause_s)
        trouble: HadronError | None = None
        for operation, pending in waiting:
            try:
                receipt = await pending.wait()
            except HadronError as error:
                self.ended(operation, error)
                trouble = error
            else:
                self.history.published(operation, receipt.offset, duplicate=receipt.duplicate)
        if trouble is not None:
            raise trouble

    async def _send_many(self, producer: Producer, acks: Acks) -> None:
        values = self._make(self.random.randint(5, 40))
        operation = self._begin(values, acks)
        plain: list[str | bytes | NewRecord] = [self._record(value) for value in values]
        if self.random.random() < 0.5:
            plain = [value.encode() for value in values]
        try:
            receipts = await producer.send_many(plain)
        except HadronError as error:
            # Some of them may be in the log, whatever the error says of the others.
            self.history.unknown(operation, error)
            raise
        operation.runs = [(receipt.base_offset, receipt.count) for receipt in receipts]
        operation.duplicate = any(receipt.duplicate for receipt in receipts)
        self.history.ok(operation)


class ReaderActor(ClientActor):
    """Reads from wherever it was, from the beginning, or from anywhere, and follows."""

    def __init__(self, world: World, history: History, host: str, seed: str) -> None:
        super().__init__(world, history, host, seed)
        self._position = 0
        self._end = 0

    async def session(self, client: Client) -> None:
        for _ in range(self.random.randint(3, 20)):
            if self.stopping:
                return
            if self.random.random() < 0.1:
                self._position = self.random.randint(0, self._end)
            if self.random.random() < 0.15:
                await self._iterate(client)
            else:
                await self._fetch(client)
            await trio.sleep(self.random.uniform(0.0, 0.3))

    async def _fetch(self, client: Client) -> None:
        operation = self.history.read(self.name, STREAM, self.partition, self._position)
        try:
            fetched = await client.fetch(
                STREAM,
                self.partition,
                self._position,
                max_bytes=self.random.choice((1, 5_000, 1 << 20)),
                max_wait_ms=self.random.choice((0, 0, 200, 2_000)),
            )
        except HadronError as error:
            self.history.unknown(operation, error)
            if isinstance(error, OffsetOutOfRangeError):
                await self._go_on_from_the_first(client)
            raise
        for batch in fetched.batches:
            records = decode_batch(batch.data, base_offset=batch.base_offset).records(
                max(0, self._position - batch.base_offset)
            )
            operation.values.extend(text(record.value) for record in records)
            self._position = batch.next_offset
        operation.end = self._end = fetched.next_offset
        self.history.ok(operation)

    async def _go_on_from_the_first(self, client: Client) -> None:
        """Retention was faster."""
        (kept,) = await client.offsets(STREAM, partition=self.partition)
        self._position = kept.first_offset

    async def _iterate(self, client: Client) -> None:
        operation = self.history.read(self.name, STREAM, self.partition, self._position)
        limit = self.random.choice((None, 5, 50))
        follow = self.random.random() < 0.5
        patience_s = self.random.uniform(0.2, 5.0) if follow else math.inf
        try:
            with trio.move_on_after(patience_s):
                async for record in client.read(
                    STREAM,
                    partition=self.partition,
                    offset=self._position,
                    limit=limit,
                    follow=follow,
                ):
                    if record.offset != operation.offset + len(operation.values):
                        raise AssertionError(f"{self.name} was given {record.offset} out of turn")
                    operation.values.append(text(record.value))
        except HadronError as error:
            self.history.unknown(operation, error)
            raise
        self._position = operation.offset + len(operation.values)
        self.history.ok(operation)


def text(value: object) -> str:
    """A record's value as the history has it."""
    return value.decode() if isinstance(value, bytes) else str(value)
