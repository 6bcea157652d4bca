"""One process that does transactions of every kind on one client, and what it knows of them.

Run by `transacting` as `python transactor.py PLAN`, PLAN being JSON. Before anything of a
transaction is sent, it is in the journal what that would do; then its name, before it is committed;
then what its program was told. Each is one write, so that the journal of a process that is killed
ends with what it knew. Every commit is a line of standard output, at once. Orders are `worker`'s:
`halt` ends the transactions, `end` the process.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal

import msgspec
import trio

import hadron
from hadron.client import Client
from hadron.client.connecting.ports import ClientPorts
from hadron.client.consuming.deliveries import Delivery
from hadron.client.transactions.contents import Published, PublishedMany
from hadron.client.transactions.transaction import Transaction
from hadron.model.errors import CommitUnknownError, HadronError
from hadron.testing.cluster import Routes

WORK, GROUP = "work", "movers"
"""What is consumed, and by whom."""

_REST_S: Final = 0.05
"""Before something is done after a failure."""

_BULK: Final = 40
_ROLLED_BACK: Final = 0.1
_LINGERED: Final = 0.2
"""Of transactions: those that are rolled back on purpose, and that take their time."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """
    Attributes:
        tasks: so many do the same side by side.
        streams: that records are published to.
        pause_s: between two transactions of a task.
    """

    kind: Literal["publisher", "mover"]
    tasks: int
    streams: tuple[str, ...]
    pause_s: float = 0.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a process does, and where.

    Attributes:
        request_timeout_s: a short one makes outcomes unknown.
    """

    name: str
    url: str
    request_timeout_s: float
    routes: dict[str, str]
    journal: str
    jobs: tuple[Job, ...]


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """What a transaction does if it is committed.

    Attributes:
        records: (stream, value), in the order in which they are published.
        moved: (partition, offset) of what it acknowledges.
    """

    uid: str
    records: list[tuple[str, str]]
    moved: list[tuple[str, int]]
    is_to_roll_back: bool


class Named(msgspec.Struct, frozen=True, tag="named"):
    uid: str
    transaction: str


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """What its program was told.

    Attributes:
        receipts: (value, partition, offset) of records, as far as they have come.
        is_retryable: whether the failure was said to be.
    """

    uid: str
    outcome: Literal["committed", "rolled back", "unknown"]
    receipts: list[tuple[str, str, int]] = []
    error: str = ""
    is_retryable: bool = True


Entry = Begun | Named | Ended


class Done(msgspec.Struct, frozen=True, array_like=True):
    """A line of output: a transaction over these streams began and was committed, in ns."""

    began: int
    ended: int
    streams: list[str]


class Transactor:
    """Runs a plan's jobs on one client."""

    def __init__(self, plan: Plan, client: Client) -> None:
        self._plan = plan
        self._client = client
        self._chance = random.Random(plan.name)
        self._numbers = itertools.count()
        self._journal = os.open(plan.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._halted = False

    async def run(self) -> None:
        """Until told to end."""
        async with trio.open_nursery() as nursery:
            for job in self._plan.jobs:
                for _ in range(job.tasks):
                    nursery.start_soon(
                        self._publish if job.kind == "publisher" else self._move, job
                    )
            await _order("halt")
            self._halted = True
        print("halted", flush=True)
        await _order("end")

    def _note(self, entry: Entry) -> None:
        os.write(self._journal, msgspec.json.encode(entry) + b"\n")

    # --- publishers -----------------------------------------------------------------------------

    async def _publish(self, job: Job) -> None:
        chance = self._chance
        while not self._halted:
            wanted = chance.sample(job.streams, chance.randint(1, len(job.streams)))
            counts = [chance.choice((1, 1, 2, 3)) for _ in wanted]
            if chance.random() < 0.05:
                counts[0] = _BULK
            uid = self._uid()
            streams = [
                name for name, count in zip(wanted, counts, strict=True) for _ in range(count)
            ]
            records = [(name, f"{uid}#{number}") for number, name in enumerate(streams)]
            async with self._transaction(uid, records, []) as tx:
                for name, some in itertools.groupby(records, key=lambda record: record[0]):
                    tx.published += await _publish_to(tx.work, name, [value for _, value in some])
            await trio.sleep(job.pause_s)

    def _uid(self) -> str:
        return f"{self._plan.name}-{next(self._numbers):06}"

    # --- members of a group ---------------------------------------------------------------------

    async def _move(self, job: Job) -> None:
        """Be a member, and publish each record that is delivered once to each stream."""
        while not self._halted:
            try:
                async with self._client.subscribe(
                    WORK, group=GROUP, max_in_flight=20, ack_deadline_s=20.0
                ) as subscription:
                    while not self._halted:
                        first = await subscription.poll(1.0)
                        if first is None:
                            continue
                        deliveries = [first]
                        while len(deliveries) < self._chance.choice((1, 2, 3)):
                            another = await subscription.poll(0.0)
                            if another is None:
                                break
                            deliveries.append(another)
                        await self._move_some(job, deliveries)
                        await trio.sleep(job.pause_s)
            except HadronError:
                await trio.sleep(_REST_S)

    async def _move_some(self, job: Job, deliveries: list[Delivery]) -> None:
        uid = self._uid()
        moved = [(each.partition, each.offset) for each in deliveries]
        records = [
            (stream, f"{uid}#{number}/{partition}@{offset}")
            for number, (partition, offset) in enumerate(moved)
            for stream in job.streams
        ]
        async with self._transaction(uid, records, moved) as tx:
            for delivery in deliveries:
                await tx.work.ack(delivery)
            for stream, value in records:
                tx.published.append(([value], await tx.work.publish(stream, value)))
        if not tx.is_committed:
            for delivery in deliveries:
                try:
                    await delivery.nack()
                except HadronError:
                    # Its call has ended: others have it.
                    await trio.sleep(_REST_S)

    # --- one transaction ------------------------------------------------------------------------

    @asynccontextmanager
    async def _transaction(
        self, uid: str, records: list[tuple[str, str]], moved: list[tuple[str, int]]
    ) -> AsyncIterator[_Running]:
        """A block that fills it; its end is noted, and raised by nobody."""
        is_to_roll_back = self._chance.random() < _ROLLED_BACK
        self._note(Begun(uid, records, moved, is_to_roll_back))
        began = time.monotonic_ns()
        running = None
        try:
            async with self._client.transaction() as work:
                running = _Running(work)
                yield running
                if self._chance.random() < _LINGERED:
                    await trio.sleep(self._chance.uniform(0.0, 0.05))
                if is_to_roll_back:
                    await work.rollback()
                elif work.id is not None:
                    self._note(Named(uid, work.id))
        except CommitUnknownError as error:
            if error.transaction:
                self._note(Named(uid, error.transaction))
            self._note(Ended(uid, "unknown", error=str(error)))
        except HadronError as error:
            self._note(Ended(uid, "rolled back", error=str(error), is_retryable=error.retryable))
            await trio.sleep(_REST_S)
        else:
            assert running is not None
            if is_to_roll_back:
                self._note(Ended(uid, "rolled back"))
                return
            running.is_committed = True
            assert running.work.id is not None
            self._note(Named(uid, running.work.id))
            self._note(Ended(uid, "committed", running.receipts()))
            done = Done(began, time.monotonic_ns(), sorted({stream for stream, _ in records}))
            print(msgspec.json.encode(done).decode(), flush=True)


class _Running:
    """A transaction, and what has been published in it so far."""

    def __init__(self, work: Transaction) -> None:
        self.work = work
        self.published: list[tuple[list[str], Published | PublishedMany]] = []
        self.is_committed = False

    def receipts(self) -> list[tuple[str, str, int]]:
        found = []
        for values, published in self.published:
            if isinstance(published, Published):
                places = [published.receipt] if published.receipt is not None else []
                where = [(each.partition, each.offset) for each in places]
            else:
                where = [
                    (run.partition, run.base_offset + index)
                    for run in published.receipts
                    for index in range(run.count)
                ]
            if where:
                found += [(v, *place) for v, place in zip(values, where, strict=True)]
        return found


async def _publish_to(
    tx: Transaction, stream: str, values: list[str]
) -> list[tuple[list[str], Published | PublishedMany]]:
    if len(values) == _BULK:
        return [(values, await tx.publish_many(stream, [value.encode() for value in values]))]
    return [([value], await tx.publish(stream, value)) for value in values]


async def _order(expected: str) -> None:
    """The next order. Ends the process when whoever gives them is gone."""
    order = await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
    if order.strip() != expected:
        raise SystemExit(f"expected the order {expected!r}, got {order!r}")


def read_journal(path: Path) -> list[Entry]:
    """Without a last line that was cut off."""
    *lines, _ = path.read_bytes().split(b"\n")
    decoder = msgspec.json.Decoder(Entry)
    return [decoder.decode(line) for line in lines]


async def _main() -> None:
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    ports = ClientPorts(network=Routes(plan.routes))
    async with hadron.connect(
        plan.url, ports=ports, request_timeout_s=plan.request_timeout_s
    ) as client:
        await Transactor(plan, client).run()


if __name__ == "__main__":
    trio.run(_main)
