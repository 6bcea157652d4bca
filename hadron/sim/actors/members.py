"""Members of groups at work in a simulated world: they acknowledge, give back, sit on
records, leave and come again, and note what they are given and what they say to it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal

import trio

from hadron.client import Client
from hadron.client.consuming.deliveries import Delivery, DeliveryBatch
from hadron.client.consuming.subscription import Subscription
from hadron.model.errors import HadronError
from hadron.sim.actors.clients import STREAM, ClientActor, text
from hadron.sim.actors.dealings import Dealings
from hadron.sim.actors.group_plans import STRICT_BACKLOG, GroupPlan
from hadron.sim.evidence.history import History, Settle
from hadron.sim.world.replica_set import World

_POISON: Final = 23
"""One record in so many is one that nobody can use."""

_SCATTER: Final = 0.2
"""Of members: those who settle in no order."""

_MIXES: Final = 0.3
"""Of members: those who ask for single records and for batches in turn."""

_HAND: Final = 12
"""Deliveries that such a member gathers at most."""

How = Literal["ack", "nack", "keep", "late"]


class MemberActor(ClientActor):
    """A member of a group, in one of the ways in which members are."""

    def __init__(
        self,
        world: World,
        history: History,
        host: str,
        seed: str,
        group: str | GroupPlan,
        stream: str = STREAM,
    ) -> None:
        super().__init__(world, history, host, seed)
        self.stream = stream
        self.label = stream
        """What the history calls it."""
        self.plan = GroupPlan(group) if isinstance(group, str) else group
        self.group = self.plan.name
        self._dealings = Dealings(history, self.group, stream)
        self._late: list[tuple[float, Delivery | DeliveryBatch]] = []
        self._scatters = False
        self._hand: list[tuple[Delivery | DeliveryBatch, list[tuple[int, str]]]] = []

    def _options(self) -> dict[str, Any]:
        return self.plan.options(self.world.clocks[self.world.names[0]].now_ms())

    async def session(self, client: Client) -> None:
        self._dealings.begin(self.name)
        self._late = []
        self._hand, self._scatters = [], self.random.random() < _SCATTER
        batched = self.random.random() < 0.4
        async with client.subscribe(
            self.stream,
            max_in_flight=self.random.choice((1, 4, 30, 200)),
            member=self.name,
            batch_size=self.random.choice((None, 3, 20)) if batched else None,
            batch_wait_s=self.random.choice((0.0, 0.02, 0.2)),
            heartbeat_s=self.random.choice((0.2, 1.0, 3.0)),
            heartbeat_misses=self.random.choice((2, 5)),
            **self._options(),
        ) as subscription:
            with self._leaving():
                await self._work(subscription, batched=batched)

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        """From the end of the block on the member gives back what it has not looked at."""
        try:
            yield
        finally:
            self.history.event("leaving", self.name)

    async def _work(self, subscription: Subscription, *, batched: bool) -> None:
        leaves_at = trio.current_time() + self.random.uniform(0.5, 10.0)
        freezes = self.random.random() < 0.2
        mixes = self.random.random() < _MIXES
        while not self.stopping and trio.current_time() < leaves_at:
            with trio.move_on_after(0.5):
                if batched:
                    await self._take_batch(subscription)
                else:
                    await self._take_one(subscription)
            if mixes and self.random.random() < 0.3:
                # What one way has left comes first in the other.
                batched = not batched
            if freezes and self.random.random() < 0.2:
                freezes = False
                await self.random.choice((self._freeze, self._suspend))()
            await self._answer_late()
            if self._hand and self.random.random() < 0.3:
                await self._settle_some()
            if self._dealings.many_unconfirmed or self.random.random() < 0.1:
                await self._dealings.flush(subscription)
        await self._dealings.flush(subscription)

    async def _freeze(self) -> None:
        """The process stands still: it is not heard of for a while, and hears nothing; then
        everything arrives."""
        network, names = self.world.network, self.world.names
        network.isolate(self.host, *names)
        self.world.faults["frozen member"] += 1
        try:
            await trio.sleep(self.random.uniform(0.3, 5.0))
        finally:
            for name in names:
                network.heal(self.host, name)

    async def _suspend(self) -> None:
        """The machine was suspended: by its clock that took long, its timers know nothing of it."""
        self.world.client_clocks[self.host].suspended_s += self.random.uniform(0.3, 20.0)
        self.world.faults["suspended member"] += 1

    # --- records --------------------------------------------------------------------------------

    async def _take_one(self, subscription: Subscription) -> None:
        delivery = await anext(subscription)
        self._given(delivery, delivery.offset, [text(delivery.value)])
        await self._take(delivery, [(delivery.offset, text(delivery.value))])

    async def _take_batch(self, subscription: Subscription) -> None:
        batch = await anext(subscription.batches())
        for run in runs([(record.offset, text(record.value)) for record in batch.records]):
            self._given(batch, run[0][0], [value for _, value in run])
        await self._take(batch, [(record.offset, text(record.value)) for record in batch.records])

    async def _take(self, given: Delivery | DeliveryBatch, records: list[tuple[int, str]]) -> None:
        """Deal with it at once, or gather a hand full that is settled in any order."""
        if not self._scatters:
            await self._deal_with(given, records)
            return
        self._hand.append((given, records))
        if len(self._hand) >= _HAND:
            await self._settle_some()

    async def _settle_some(self) -> None:
        """Of what is at hand, whatever became of it meanwhile; the rest stays for later, or for
        those who come after."""
        self.random.shuffle(self._hand)
        chosen = self.random.randint(1, len(self._hand))
        self._hand, settled = self._hand[chosen:], self._hand[:chosen]
        for given, records in settled:
            await self._deal_with(given, records)

    async def _deal_with(
        self, given: Delivery | DeliveryBatch, records: list[tuple[int, str]]
    ) -> None:
        how = self._choose(records)
        if how == "ack":
            await self._acknowledge(given, [offset for offset, _ in records])
        elif how == "nack":
            self._settle("nack", given, [offset for offset, _ in records])
            await given.nack(self.random.choice((0.0, 0.1, 1.0)), reason="cannot be used")
        elif how == "late":
            due = trio.current_time() + self.random.choice((0.1, 0.5, 2.0, 5.0))
            self._late.append((due, given))

    def _choose(self, records: list[tuple[int, str]]) -> How:
        dice = self.random.random()
        if self.plan.max_attempts and any(_is_poison(value) for _, value in records):
            return "nack" if dice < 0.9 else "keep"
        if dice < 0.82:
            return "ack"
        return "nack" if dice < 0.90 else "late" if dice < 0.96 else "keep"

    async def _answer_late(self) -> None:
        """Acknowledge what took long, whether it is still ours or not; say of some that they take
        longer."""
        waiting, self._late = self._late, []
        for due, given in waiting:
            if trio.current_time() < due:
                if self.random.random() < 0.05:
                    await given.extend()
                self._late.append((due, given))
            elif isinstance(given, Delivery):
                await self._acknowledge(given, [given.offset])
            else:
                await self._acknowledge(given, [record.offset for record in given.records])

    async def _acknowledge(self, given: Delivery | DeliveryBatch, offsets: list[int]) -> None:
        settle = self._settle("ack", given, offsets)
        await given.ack()
        self._dealings.acknowledged(settle)

    def _given(self, given: Delivery | DeliveryBatch, offset: int, values: list[str]) -> None:
        self._dealings.given(given.partition, offset, values, attempt=given.attempt)

    def _settle(
        self, how: Literal["ack", "nack"], given: Delivery | DeliveryBatch, offsets: list[int]
    ) -> Settle:
        ranges = [(run[0][0], run[-1][0]) for run in runs([(x, "") for x in offsets])]
        return self._dealings.settle(how, given.partition, ranges)


class DrainingMember(MemberActor):
    """Takes and acknowledges everything until the group has nothing left."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.drains = self.group

    async def run(self) -> None:
        while not self.stopping:
            self._sessions += 1
            try:
                async with self.world.client(self.host, connect_timeout_s=3.0) as client:
                    if self.plan.order == "strict":
                        await self._skip_most(client)
                    await self._drain(client)
            except HadronError:
                await trio.sleep(0.1)

    def _options(self) -> dict[str, Any]:
        # Where a deleted group began may have been dropped since.
        return super()._options() | {"start": "earliest"}

    async def _skip_most(self, client: Client) -> None:
        """One by one a long backlog takes too long: go on near its end, as users do."""
        for group in await client.groups(self.stream):
            to = group.next_offset - STRICT_BACKLOG
            if group.group == self.group and group.floor < to:
                noted = self.history.regroup(
                    self.name, self.group, self.label, self.partition, "reset", str(to)
                )
                try:
                    await client.reset_group(self.stream, self.group, to, force=True)
                except HadronError as error:
                    self.history.unknown(noted, error)
                    raise
                self.history.ok(noted)

    async def _drain(self, client: Client) -> None:
        self._dealings.begin(self.name)
        async with client.subscribe(
            self.stream, max_in_flight=500, member=self.name, **self._options()
        ) as subscription:
            with self._leaving():
                while not await self._is_drained(client):
                    with trio.move_on_after(0.2):
                        while True:
                            await self._take_batch(subscription)
                    await self._dealings.flush(subscription)
        self.stop()

    async def _is_drained(self, client: Client) -> bool:
        asked = self.history.tick()
        for group in await client.groups(self.stream):
            if group.group == self.group and group.floor >= group.next_offset:
                self.history.event("drained", self.drains, str(group.floor), at=asked)
                return True
        return False

    def _choose(self, _records: list[tuple[int, str]]) -> How:
        return "ack"


def runs(records: list[tuple[int, str]]) -> list[list[tuple[int, str]]]:
    """Parts of consecutive offsets; a batch may leave some out that others have dealt with."""
    runs: list[list[tuple[int, str]]] = []
    for record in records:
        if runs and runs[-1][-1][0] + 1 == record[0]:
            runs[-1].append(record)
        else:
            runs.append([record])
    return runs


def _is_poison(value: str) -> bool:
    return zlib.crc32(value.encode()) % _POISON == 0
