"""Members of a group that make something of each record, and acknowledge it in the same
transaction: step by step, as `subscription.transactions()` has it, or by hand, sometimes two of one
delivery."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal

import trio

from hadron.client import Client
from hadron.client.consuming.deliveries import DeliveryBatch
from hadron.client.consuming.steps import Step
from hadron.client.consuming.subscription import Subscription
from hadron.model.errors import HadronError
from hadron.model.record import Record
from hadron.sim.actors.clients import text
from hadron.sim.actors.dealings import Dealings
from hadron.sim.actors.group_plans import GroupPlan
from hadron.sim.actors.members import runs
from hadron.sim.actors.transactions import DEALS, OUTPUTS, Noted, Transactor
from hadron.sim.evidence.history import Settle
from hadron.sim.evidence.made import made_of
from hadron.sim.evidence.regions import drained

MAKERS: Final = "makers"
"""The group."""

_BURST: Final = 8

_NEVER: Final = 1_000_000
"""Deliveries that no run comes to."""


class Maker(Transactor):
    """A member of the group that makes outputs of what is dealt.

    Attributes:
        holds: how many records it takes at most, one of these.
    """

    holds: Sequence[int] = (1, 4, 30)

    def __init__(self, *given: Any, plan: GroupPlan) -> None:
        super().__init__(*given)
        self.plan = plan
        self._dealings = Dealings(self.history, plan.name, DEALS)

    async def _join(self, client: Client) -> None:
        """For a while."""
        self._dealings.begin(self.name)
        options = self.plan.options(0)
        async with client.subscribe(
            DEALS,
            member=self.name,
            max_in_flight=self.random.choice(self.holds),
            heartbeat_s=self.random.choice((0.2, 1.0)),
            **options,
        ) as subscription:
            with self._leaving(), trio.move_on_after(self.random.uniform(0.5, 10.0)):
                await self.work(client, subscription)

    async def session(self, client: Client) -> None:
        await self.resolve(client)
        await self._join(client)
        await self.pause(0.5)

    async def work(self, client: Client, subscription: Subscription) -> None:
        raise NotImplementedError

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.history.event("leaving", self.name)

    def _given(self, records: Sequence[Record], attempt: int) -> None:
        """They were delivered to it."""
        for run in runs([(record.offset, text(record.value)) for record in records]):
            values = [value for _, value in run]
            self._dealings.given(records[0].partition, run[0][0], values, attempt=attempt)

    def _note(self, work: Any, records: Sequence[Record]) -> Noted:
        """They are to be acknowledged by this transaction."""
        noted = Noted(self.history, self.name, work)
        settle = self._settle("ack", records)
        noted.acknowledged(settle, DEALS, settle.partition, self.plan.name)
        return noted

    def _settle(self, how: Literal["ack", "nack"], records: Sequence[Record]) -> Settle:
        """To be called before it is said."""
        found = runs([(record.offset, "") for record in records])
        ranges = [(run[0][0], run[-1][0]) for run in found]
        return self._dealings.settle(how, records[0].partition, ranges)

    async def _make(self, tx: Any, noted: Noted, record: Record) -> None:
        """One output of a record."""
        place = self.place()
        value = self.value(made_of(record.partition, record.offset))
        given = await tx.publish(OUTPUTS, value, partition=place or None)
        noted.published(OUTPUTS, place, value, given)


class StepActor(Maker):
    """Takes them in steps: some are rolled back, some are left, some take long, and some cannot be
    committed. Now and then it deals itself some, so that one step follows the other at once.

    Attributes:
        mistakes: the share of those that cannot be committed.
        sizes: how many records they have at most, one of these.
    """

    mistakes = 0.2
    sizes: Sequence[int] = (1, 1, 3, 20)

    def __init__(self, *given: Any, plan: GroupPlan) -> None:
        super().__init__(*given, plan=plan)
        self._bursts = 3

    async def session(self, client: Client) -> None:
        if self._bursts and not self.stopping and self.random.random() < 0.7:
            self._bursts -= 1
            await self._deal(client)
        await super().session(client)

    async def _deal(self, client: Client) -> None:
        place = self.random.choice(self.partitions)
        async with client.transaction() as tx:
            noted = Noted(self.history, self.name, tx._work)
            try:
                for _ in range(_BURST):
                    value = self.value()
                    given = await tx.publish(DEALS, value, partition=place)
                    noted.published(DEALS, place, value, given)
                noted.asks()
                await tx.commit()
            finally:
                self.over(noted)

    async def work(self, _client: Client, subscription: Subscription) -> None:
        under_way: list[Noted] = []
        try:
            while await self._take_steps(subscription, under_way):
                await self._take_otherwise(subscription)
        finally:
            self._look(under_way, is_last=True)

    async def _take_steps(self, subscription: Subscription, under_way: list[Noted]) -> bool:
        """Until it leaves their loop; whether it goes on in another way."""
        steps = subscription.transactions(
            max_records=self.random.choice(self.sizes), max_wait_s=self.random.choice((0.0, 0.05))
        )
        async for step in steps:
            self._given(step.records, step.attempt)
            noted = self._note(step._work, step.records)
            under_way.append(noted)
            if not await self._do(step, noted):
                return self.random.random() < 0.5
            self._look(under_way)
            if self.stopping:
                await step.commit()
                return False
        return False

    async def _take_otherwise(self, subscription: Subscription) -> None:
        """Single records of those that are here, which it cannot use."""
        for _ in range(self.random.randint(1, 3)):
            delivery = await subscription.poll(0.0)
            if delivery is None:
                return
            self._given([delivery.record], delivery.attempt)
            self._settle("nack", [delivery.record])
            await delivery.nack(0.0)

    async def _do(self, step: Step, noted: Noted) -> bool:
        """Whether it goes on."""
        for record in step.records:
            await self._make(step, noted, record)
        dice = self.random.random()
        if dice < 0.05:
            return False
        if dice < 0.1:
            self._settle("nack", step.records)
            await step.rollback()
            return True
        if dice < 0.2:
            await trio.sleep(self.random.uniform(0.1, 3.0))
        noted.asks()
        if self.random.random() < self.mistakes:
            _spoil(step)
        if dice > 0.9:
            await step.commit()
        return True

    def _look(self, under_way: list[Noted], *, is_last: bool = False) -> None:
        for noted in list(under_way):
            if is_last or noted.has_ended:
                under_way.remove(noted)
                self.over(noted)


def _spoil(step: Step) -> None:
    """Have it acknowledge what nobody holds: its driver refuses that when it is to be committed,
    while the next step's body may be at work."""
    claim = step._claim()
    others = [each._replace(delivery=each.delivery + _NEVER) for each in claim.ranges]
    step._work.acknowledge(claim._replace(ranges=others))


class ByHandActor(Maker):
    """Takes batches, and has one or two transactions acknowledge each."""

    async def work(self, client: Client, subscription: Subscription) -> None:
        async for batch in subscription.batches():
            self._given(batch.records, batch.attempt)
            if self.random.random() < 0.1:
                # Somebody else's, once this one leaves or its deadline has passed.
                continue
            both = self.random.random() < 0.25
            async with trio.open_nursery() as nursery:
                for _ in range(1 + both):
                    nursery.start_soon(self._transact, client, batch)
            if self.stopping:
                return

    async def _transact(self, client: Client, batch: DeliveryBatch) -> None:
        try:
            async with client.transaction() as tx:
                noted = self._note(tx._work, batch.records)
                try:
                    # Which this client would not do twice.
                    batch._unclaim()
                    await tx.ack(batch)
                    for record in batch.records:
                        await self._make(tx, noted, record)
                    await self.pause(0.2)
                    if self.random.random() < 0.15:
                        await tx.rollback()
                    else:
                        noted.asks()
                        await tx.commit()
                finally:
                    self.over(noted)
        except HadronError:
            self._settle("nack", batch.records)
            await batch.nack(self.random.choice((0.0, 0.1)))


class DrainingMaker(Maker):
    """Makes something of everything that is left, at every partition."""

    async def run(self) -> None:
        while not self.stopping:
            self._sessions += 1
            try:
                async with self.world.client(self.host, connect_timeout_s=3.0) as client:
                    await self.resolve(client, len(self.unresolved))
                    await self._drain(client)
            except HadronError:
                await trio.sleep(0.1)
        self.has_ended = True

    async def _drain(self, client: Client) -> None:
        self._dealings.begin(self.name)
        async with client.subscribe(
            DEALS, member=self.name, max_in_flight=200, **self.plan.options(0)
        ) as subscription:
            # What it makes of many may be more than a batch may have here, where that is little.
            steps = subscription.transactions(max_records=self.random.choice((1, 20)))
            with self._leaving():
                while not await self._is_drained(client):
                    step = None
                    with trio.move_on_after(0.5):
                        step = await anext(steps)
                    if step is not None:
                        await self._finish(step)

    async def _finish(self, step: Step) -> None:
        self._given(step.records, step.attempt)
        noted = self._note(step._work, step.records)
        try:
            for record in step.records:
                await self._make(step, noted, record)
            noted.asks()
            await step.commit()
        finally:
            self.over(noted)

    async def _is_drained(self, client: Client) -> bool:
        asked = self.history.tick()
        rows = [row for row in await client.groups(DEALS) if row.group == self.plan.name]
        if {row.partition for row in rows} != set(self.partitions) or any(
            row.floor < row.next_offset for row in rows
        ):
            return False
        for row in rows:
            subject = drained_as(self.plan.name, row.partition, self.partitions)
            self.history.event("drained", subject, str(row.floor), at=asked)
        self.stop()
        return True


def drained_as(group: str, partition: str, of: Sequence[str]) -> str:
    """What a history calls a group that is emptied at one of so many partitions."""
    return drained(group, partition) if len(of) > 1 else group
