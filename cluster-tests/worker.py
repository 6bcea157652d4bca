"""One process of the load: producers, members of a group and readers on one client, and what they
saw as a history.

Run by `load.Load` as `python worker.py PLAN`, PLAN being JSON. Every acknowledged publish is a line
of standard output, at once. Standard input gives the orders: `halt` ends the producers, and is
answered when they have; `end` ends the rest, writes the history and ends the process.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import msgspec
import trio

import hadron
from hadron.client import Client
from hadron.client.connecting.ports import ClientPorts
from hadron.client.consuming.deliveries import DeliveryBatch
from hadron.client.consuming.subscription import Subscription
from hadron.client.producing.producer import Producer
from hadron.client.producing.publisher import Pending
from hadron.client.terms.opening import Opening
from hadron.client.terms.results import BatchReceipt, Receipt
from hadron.model.errors import DeadlineExceededError, HadronError, RequestError
from hadron.model.record_batch import decode_batch
from hadron.sim.evidence.history import Acks, History, Publish, Settle
from hadron.testing.cluster import Routes

Kind = Literal["single", "pipelined", "bulk", "steady", "member", "reader"]

PIPELINED: Final = 20
BULK: Final = 50
"""Records of one publish, or under way at once."""

_IN_FLIGHT: Final = 500
_BATCHES_PER_STAY: Final = 300
"""Deliveries after which a member leaves its group and joins again."""

_NACKED: Final = 0.02
_REST_S: Final = 0.05
"""Before something that failed is tried again."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One producer, member or reader.

    Attributes:
        partition: of all records, or the one that is read; "" is the plan's.
        keys: records have so many keys in turn; 0 is none.
        pause_s: between two publishes, or two reads.
        delivery_timeout_s: a short one makes outcomes unknown.
        acks_per_flush: what a member lets gather before it asks whether that is committed.
        flush_s: for how long it asks, at most; None is the client's `request_timeout_s`.
        stays: a member that never leaves its group before the end.
    """

    kind: Kind
    name: str
    acks: Acks = "majority"
    partition: str = ""
    keys: int = 0
    pause_s: float = 0.0
    delivery_timeout_s: float = 120.0
    group: str = ""
    acks_per_flush: int = 10
    flush_s: float | None = None
    stays: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a process does, and where. `partition` is the stream's only one, "" where there are
    several: then records without a key promise no order, as any of them may take them."""

    name: str
    url: str
    routes: dict[str, str]
    stream: str
    partition: str
    history: str
    jobs: tuple[Job, ...]


class Acked(msgspec.Struct, frozen=True, array_like=True):
    """A line of output: a publish began and was acknowledged, in ns, by a partition."""

    began: int
    ended: int
    acks: Acks
    job: str
    partition: str


class Worker:
    """Runs a plan's jobs on one client."""

    def __init__(self, plan: Plan, client: Client) -> None:
        self.history = History(time.monotonic_ns)
        self._plan = plan
        self._client = client
        self._numbers = itertools.count()
        self._chance = random.Random(plan.name)
        self._halted = False
        self._ended = False
        self._endless: list[trio.CancelScope] = []

    async def run(self) -> None:
        """Until told to end."""
        async with trio.open_nursery() as endless:
            for job in self._plan.jobs:
                if job.kind == "member":
                    endless.start_soon(self._consume, job)
                elif job.kind == "reader":
                    endless.start_soon(self._read, job)
            async with trio.open_nursery() as producers:
                for job in self._plan.jobs:
                    if job.kind not in ("member", "reader"):
                        producers.start_soon(self._produce, job)
                await _order("halt")
                self._halted = True
            print("halted", flush=True)
            await _order("end")
            self._ended = True
            for scope in self._endless:
                scope.cancel()

    # --- producers ------------------------------------------------------------------------------

    async def _produce(self, job: Job) -> None:
        if job.kind == "steady":
            await self._steady(job)
            return
        publish = {"single": self._single, "pipelined": self._pipelined, "bulk": self._bulk}
        async with self._producer(job) as producer:
            while not self._halted:
                await publish[job.kind](producer, job)
                await trio.sleep(job.pause_s)

    def _producer(self, job: Job) -> Opening[Producer]:
        return self._client.producer(
            self._plan.stream,
            acks=job.acks,
            partition=job.partition or None,
            delivery_timeout_s=job.delivery_timeout_s,
        )

    async def _steady(self, job: Job) -> None:
        """One record after another, whatever becomes of those before."""
        async with self._producer(job) as producer, trio.open_nursery() as outcomes:
            for number in itertools.count():
                if self._halted:
                    break
                noted = self._begin(job, 1)
                key = f"{job.name}-{number % job.keys}" if job.keys else None
                pending = await producer.send_soon(noted.values[0], key=key)
                outcomes.start_soon(self._hear, noted, job, pending)
                await trio.sleep(job.pause_s)

    async def _hear(self, noted: Publish, job: Job, pending: Pending) -> None:
        with self._outcome(noted):
            self._acked(noted, job, [await pending.wait()])

    async def _single(self, producer: Producer, job: Job) -> None:
        noted = self._begin(job, 1)
        with self._outcome(noted):
            self._acked(noted, job, [await producer.send(noted.values[0])])

    async def _pipelined(self, producer: Producer, job: Job) -> None:
        """Many under way at once, each with an outcome of its own."""
        pending = []
        for _ in range(PIPELINED):
            noted = self._begin(job, 1)
            pending.append((noted, await producer.send_soon(noted.values[0])))
        for noted, handle in pending:
            await self._hear(noted, job, handle)

    async def _bulk(self, producer: Producer, job: Job) -> None:
        noted = self._begin(job, BULK)
        # Some of many may be in the log when it fails.
        with self._outcome(noted, refusals=()):
            self._acked(noted, job, await producer.send_many(v.encode() for v in noted.values))

    def _begin(self, job: Job, count: int) -> Publish:
        values = [f"{job.name}/{next(self._numbers):08}" for _ in range(count)]
        partition = job.partition or self._plan.partition
        return self.history.publish(
            self._plan.name,
            job.name if partition or job.keys else "",
            self._plan.stream,
            partition,
            values,
            acks=job.acks,
        )

    @contextmanager
    def _outcome(
        self,
        noted: Publish,
        refusals: tuple[type[HadronError], ...] = (DeadlineExceededError, RequestError),
    ) -> Iterator[None]:
        """Notes what the block raises; `refusals` promise that nothing is in the log."""
        try:
            yield
        except refusals as error:
            self.history.refused(noted, error)
        except HadronError as error:
            self.history.unknown(noted, error)

    def _acked(self, noted: Publish, job: Job, receipts: Sequence[Receipt | BatchReceipt]) -> None:
        """Of one partition."""
        noted.partition = receipts[0].partition
        noted.runs = [
            (receipt.base_offset, receipt.count)
            if isinstance(receipt, BatchReceipt)
            else (receipt.offset, 1)
            for receipt in receipts
        ]
        noted.duplicate = any(receipt.duplicate for receipt in receipts)
        self.history.ok(noted)
        acked = Acked(noted.began, noted.ended, noted.acks, job.name, noted.partition)
        print(msgspec.json.encode(acked).decode(), flush=True)

    # --- a group's members ----------------------------------------------------------------------

    async def _consume(self, job: Job) -> None:
        """Join, take some deliveries, leave; again and again."""
        while not self._ended:
            try:
                async with self._client.subscribe(
                    self._plan.stream, group=job.group, max_in_flight=_IN_FLIGHT
                ) as subscription:
                    await self._take(job, subscription)
            except HadronError:
                await trio.sleep(_REST_S)

    async def _take(self, job: Job, subscription: Subscription) -> None:
        sent: list[Settle] = []
        with self._until_ended():
            for _ in itertools.count() if job.stays else range(_BATCHES_PER_STAY):
                batch = await anext(subscription.batches())
                await self._settle(job, batch, sent)
                if len(sent) >= job.acks_per_flush:
                    await self._confirm(job, subscription, sent)
        await self._confirm(job, subscription, sent)

    async def _settle(self, job: Job, batch: DeliveryBatch, sent: list[Settle]) -> None:
        values = [text_of(record.value) for record in batch.records]
        plan, first = self._plan, batch.first_offset
        self.history.deliver(
            plan.name,
            job.group,
            job.name,
            plan.stream,
            batch.partition,
            first,
            values,
            attempt=batch.attempt,
        )
        how: Literal["ack", "nack"] = "nack" if self._chance.random() < _NACKED else "ack"
        noted = self.history.settle(
            plan.name,
            job.group,
            job.name,
            plan.stream,
            batch.partition,
            [(first, first + len(values) - 1)],
            how=how,
        )
        if how == "nack":
            await batch.nack(delay_s=_REST_S)
        else:
            sent.append(noted)
            await batch.ack()

    async def _confirm(self, job: Job, subscription: Subscription, sent: list[Settle]) -> None:
        """What `flush` does not complain about is committed."""
        settled, sent[:] = list(sent), []
        try:
            await subscription.flush(job.flush_s)
        except HadronError as error:
            for noted in settled:
                self.history.unknown(noted, error)
        else:
            for noted in settled:
                self.history.ok(noted)

    # --- readers --------------------------------------------------------------------------------

    async def _read(self, job: Job) -> None:
        """Follow the stream from its beginning, by single fetches."""
        plan, position = self._plan, 0
        partition = job.partition or plan.partition
        with self._until_ended():
            while True:
                noted = self.history.read(job.name, plan.stream, partition, position)
                try:
                    fetched = await self._client.fetch(plan.stream, partition, position)
                except HadronError as error:
                    self.history.unknown(noted, error)
                    await trio.sleep(_REST_S)
                    continue
                for stamped in fetched.batches:
                    batch = decode_batch(stamped.data, base_offset=stamped.base_offset)
                    start = max(0, position - stamped.base_offset)
                    noted.values += [text_of(record.value) for record in batch.records(start)]
                    position = max(position, stamped.next_offset)
                noted.end = fetched.next_offset
                self.history.ok(noted)
                await trio.sleep(job.pause_s)

    @contextmanager
    def _until_ended(self) -> Iterator[None]:
        """A block that is left when the worker is told to end."""
        with trio.CancelScope() as scope:
            self._endless.append(scope)
            if self._ended:
                scope.cancel()
            yield
        self._endless.remove(scope)


def text_of(value: object) -> str:
    """A record's value as the history has it."""
    return bytes(value).decode() if isinstance(value, bytes | memoryview) else str(value)


async def _order(expected: str) -> None:
    """The next order. Ends the process when whoever gives them is gone."""
    order = await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
    if order.strip() != expected:
        raise SystemExit(f"expected the order {expected!r}, got {order!r}")


async def _main() -> None:
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    ports = ClientPorts(network=Routes(plan.routes))
    async with hadron.connect(plan.url, ports=ports) as client:
        worker = Worker(plan, client)
        await worker.run()
    worker.history.save(Path(plan.history))


if __name__ == "__main__":
    trio.run(_main)
