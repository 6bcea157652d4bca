"""Members of groups at work in a simulated world: they acknowledge, give back, sit on
records, leave and come again, and note what they are given and what they say to it.
"""

from __future__ import annotations

from typing import Final, Literal

import trio

from hadron.client import Client
from hadron.client.consumer import Subscription
from hadron.model.errors import ConnectionLostError, HadronError
from hadron.sim.history import History, Settle
from hadron.sim.workload_clients import STREAM, ClientActor, text
from hadron.sim.world import World

_FLUSH_S: Final = 8.0


class MemberActor(ClientActor):
    """A member of a group: acknowledges, gives back, sits on records, leaves and comes again."""

    def __init__(
        self, world: World, history: History, host: str, seed: str, group: str
    ) -> None:
        super().__init__(world, history, host, seed)
        self.group = group
        self._unconfirmed: list[Settle] = []

    async def session(self, client: Client) -> None:
        self._unconfirmed = []
        async with client.subscribe(
            STREAM, group=self.group, max_in_flight=self.random.choice((1, 4, 30, 200))
        ) as subscription:
            leaves_at = trio.current_time() + self.random.uniform(0.5, 10.0)
            batched = self.random.random() < 0.4
            while not self.stopping and trio.current_time() < leaves_at:
                with trio.move_on_after(0.5):
                    if batched:
                        await self._take_batch(subscription)
                    else:
                        await self._take_one(subscription)
                if len(self._unconfirmed) > 20 or self.random.random() < 0.1:
                    await self._flush(subscription)
            await self._flush(subscription)

    async def _take_one(self, subscription: Subscription) -> None:
        delivery = await anext(subscription)
        self._given(delivery.offset, [text(delivery.value)], delivery.attempt)
        how = self._choose()
        settle = self._settle(how, delivery.offset, delivery.offset)
        if how == "ack":
            await delivery.ack()
        elif how == "nack":
            await delivery.nack(self.random.choice((0.0, 0.1, 1.0)))
        if settle is not None:
            self._unconfirmed.append(settle)

    async def _take_batch(self, subscription: Subscription) -> None:
        batch = await anext(subscription.batches())
        self._given(
            batch.first_offset, [text(record.value) for record in batch.records], batch.attempt
        )
        how = self._choose()
        settle = self._settle(how, batch.first_offset, batch.first_offset + len(batch) - 1)
        if how == "ack":
            await batch.ack()
        elif how == "nack":
            await batch.nack(self.random.choice((0.0, 0.1, 1.0)))
        if settle is not None:
            self._unconfirmed.append(settle)

    def _choose(self) -> Literal["ack", "nack", "keep"]:
        dice = self.random.random()
        return "ack" if dice < 0.85 else "nack" if dice < 0.95 else "keep"

    def _given(self, offset: int, values: list[str], attempt: int) -> None:
        self.history.deliver(
            self.name, self.group, self.name, STREAM, self.partition, offset, values,
            attempt=attempt,
        )

    def _settle(
        self, how: Literal["ack", "nack", "keep"], first: int, last: int
    ) -> Settle | None:
        if how == "keep":
            return None
        settle = self.history.settle(
            self.name, self.group, self.name, STREAM, self.partition, [(first, last)], how=how
        )
        return settle if how == "ack" else None

    async def _flush(self, subscription: Subscription) -> None:
        settles, self._unconfirmed = self._unconfirmed, []
        with trio.move_on_after(_FLUSH_S):
            try:
                await subscription.flush()
            except ConnectionLostError as error:
                for settle in settles:
                    self.history.unknown(settle, error)
            else:
                for settle in settles:
                    self.history.ok(settle)


class DrainingMember(MemberActor):
    """Takes and acknowledges everything until the group has nothing left."""

    async def run(self) -> None:
        while not self.stopping:
            self._sessions += 1
            try:
                async with self.world.client(self.host, connect_timeout_s=3.0) as client:
                    await self._drain(client)
            except HadronError:
                await trio.sleep(0.1)

    async def _drain(self, client: Client) -> None:
        self._unconfirmed = []
        async with client.subscribe(STREAM, group=self.group, max_in_flight=500) as subscription:
            while True:
                asked = self.history.tick()
                for group in await client.groups(STREAM):
                    if group.group == self.group and group.floor >= group.next_offset:
                        self.history.event("drained", self.group, str(group.floor), at=asked)
                        self.stop()
                        return
                with trio.move_on_after(0.2):
                    while True:
                        await self._take_batch(subscription)
                await self._flush(subscription)

    def _choose(self) -> Literal["ack", "nack", "keep"]:
        return "ack"
