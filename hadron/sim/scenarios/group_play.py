"""What scenarios of consumer groups are written in: a member that does what it is told.

Beside `play`, whose sentences are about nodes and producers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

from hadron.client.consuming.deliveries import Delivery
from hadron.client.consuming.steps import Steps
from hadron.client.consuming.subscription import Subscription
from hadron.model.errors import ConnectionLostError
from hadron.model.record import NewRecord, Record
from hadron.sim.actors.clients import STREAM, text
from hadron.sim.actors.group_plans import GroupPlan
from hadron.sim.actors.members import DrainingMember
from hadron.sim.evidence.history import Settle
from hadron.sim.scenarios.play import Play

PLAN: Final = GroupPlan("g")


@dataclass
class Member:
    """A member that does what it is told, and notes it."""

    play: Play
    host: str
    plan: GroupPlan
    subscription: Subscription
    taken: dict[int, Delivery] = field(default_factory=dict)
    sent: list[Settle] = field(default_factory=list)

    async def take(self, *offsets: int, acknowledging: bool = False) -> None:
        """Wait for these records; each is acknowledged before the next one, or none is."""
        with trio.fail_after(30.0):
            while not self.taken.keys() >= set(offsets):
                record = await anext(self.subscription)
                self.taken[record.offset] = record
                self._note([record.record], record.attempt)
                if acknowledging:
                    await self.ack(record.offset)

    async def give_all_back(self) -> None:
        """Whatever comes, as fast as it comes."""
        async for record in self.subscription:
            self.taken[record.offset] = record
            self._note([record.record], record.attempt)
            await self.nack(record.offset)

    async def take_batch(self) -> list[int]:
        """Deal with the next batch, as `batches()` has it; returns its offsets."""
        with trio.fail_after(30.0):
            batch = await anext(self.subscription.batches())
        self._note(batch.records, batch.attempt)
        offsets = [record.offset for record in batch.records]
        self.sent += [self._settle(offset, "ack") for offset in offsets]
        await batch.ack()
        return offsets

    async def take_step(self, steps: Steps) -> list[int]:
        """Deal with the next step; returns its offsets."""
        with trio.fail_after(30.0):
            step = await anext(steps)
        self._note(step.records, step.attempt)
        offsets = [record.offset for record in step.records]
        self.sent += [self._settle(offset, "ack") for offset in offsets]
        await step.commit()
        return offsets

    def _note(self, records: Sequence[Record], attempt: int) -> None:
        for record in records:
            self.play.history.deliver(
                self.host,
                self.plan.name,
                self.host,
                STREAM,
                self.play.world.config.name,
                record.offset,
                [text(record.value)],
                attempt=attempt,
            )

    async def ack(self, *offsets: int) -> None:
        for offset in offsets:
            self.sent.append(self._settle(offset, "ack"))
            await self.taken[offset].ack()

    async def nack(self, *offsets: int, delay_s: float | None = None) -> None:
        for offset in offsets:
            self._settle(offset, "nack")
            await self.taken[offset].nack(delay_s)

    def _settle(self, offset: int, how: str) -> Settle:
        return self.play.history.settle(
            self.host,
            self.plan.name,
            self.host,
            STREAM,
            self.play.world.config.name,
            [(offset, offset)],
            how="ack" if how == "ack" else "nack",
        )

    async def confirm(self, sent: list[Settle] | None = None) -> bool:
        """Whether all acknowledgements counted, or these."""
        if sent is None:
            sent, self.sent = self.sent, []
        try:
            await self.subscription.flush(20.0)
        except ConnectionLostError as error:
            for settle in sent:
                self.play.history.unknown(settle, error)
            return False
        for settle in sent:
            self.play.history.ok(settle)
        return True


@asynccontextmanager
async def join_group(
    play: Play,
    host: str,
    plan: GroupPlan = PLAN,
    *,
    max_in_flight: int = 10,
    heartbeat_s: float = 0.0,
) -> AsyncIterator[Member]:
    now_ms = play.world.clocks["n1"].now_ms()
    async with (
        play.world.client(host) as client,
        client.subscribe(
            STREAM,
            max_in_flight=max_in_flight,
            member=host,
            heartbeat_s=heartbeat_s,
            **plan.options(now_ms),
        ) as subscription,
    ):
        try:
            yield Member(play, host, plan, subscription)
        finally:
            play.history.event("leaving", host)


async def drain(play: Play, plan: GroupPlan = PLAN, *, host: str = "d0") -> None:
    """Acknowledge what is left, for no longer than a minute."""
    play.history.event("draining", plan.name)
    with trio.move_on_after(60.0):
        seed = f"{play.world.seed}/{host}"
        await DrainingMember(play.world, play.history, host, seed, plan).run()


async def fill_one_by_one(play: Play, count: int) -> None:
    """As many records, each in a batch of its own."""
    for _ in range(count):
        await play.fill(1)


async def publish_keys(play: Play, keys: Sequence[str], size: int = 100) -> None:
    for key in keys:
        value = play.value(size)
        noted = play.history.publish("c7", "", STREAM, play.world.config.name, [value])
        async with play.world.client("c7") as client, client.producer(STREAM) as producer:
            receipt = await producer.send(NewRecord(value=value, key=key))
        noted.runs = [(receipt.offset, 1)]
        play.history.ok(noted)
