"""The blocking subscription: deliveries cross threads a message at a time, acks in groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Final

import anyio
from anyio.from_thread import BlockingPortal

from hadron.client.acks import runs
from hadron.client.consumer import Subscription
from hadron.client.deliveries import GivenBatch, GivenRecord, delay_ms
from hadron.client.feed import Parcel
from hadron.model.record import Record

_ACK_DELAY_S: Final = 0.0005
"""How long acks gather before a task is sent to fetch them: a hop costs 100 µs, ten acks one."""


_Part = tuple[Parcel, Sequence[tuple[int, int]]]
"""A delivery, and ranges of its offsets."""


class SyncDelivery(GivenRecord["SyncSubscription"]):
    """One record given to this member, to be acknowledged; see `hadron.client.Delivery`."""

    __slots__ = ()

    def ack(self) -> None:
        """The record is dealt with. Returns before that is committed; see `flush`."""
        offset = self.record.offset
        self._subscription.acknowledge(self._parcel, offset, offset)

    def nack(self, delay_s: float | None = None, reason: str = "") -> None:
        """Give the record back; see `hadron.client.Delivery.nack`."""
        offset = self.record.offset
        self._subscription.give_back([(self._parcel, ((offset, offset),))], delay_s, reason)

    def extend(self) -> None:
        """Still at work: the ack deadline starts again."""
        offset = self.record.offset
        self._subscription.extend([(self._parcel, ((offset, offset),))])


class SyncDeliveryBatch(GivenBatch["SyncSubscription"]):
    """Records of one partition given to this member together, in order."""

    __slots__ = ()

    def _parts(self) -> list[_Part]:
        return [(parcel, parcel.ranges()) for parcel in self._parcels]

    def ack(self) -> None:
        """All of them are dealt with."""
        for parcel, ranges in self._parts():
            for first, last in ranges:
                self._subscription.acknowledge(parcel, first, last)

    def nack(self, delay_s: float | None = None, reason: str = "") -> None:
        """Give all of them back; see `hadron.client.Delivery.nack`."""
        self._subscription.give_back(self._parts(), delay_s, reason)

    def extend(self) -> None:
        """Still at work: the ack deadline of all of them starts again."""
        self._subscription.extend(self._parts())


class SyncSubscription:
    """A member of a group. Made by `SyncClient.subscribe`, used inside its block, by one thread.

    Iterate it for one `SyncDelivery` at a time, or `batches()`.
    """

    def __init__(self, portal: BlockingPortal, subscription: Subscription) -> None:
        self._portal = portal
        self._subscription = subscription
        self._acks: deque[tuple[Parcel, int, int]] = deque()
        self._scheduled = False
        self._ready: deque[tuple[Parcel, list[Record]]] = deque()
        self._parcel: Parcel | None = None
        self._deliveries: Iterator[SyncDelivery] = iter(())

    def __iter__(self) -> SyncSubscription:
        return self

    def __next__(self) -> SyncDelivery:
        while True:
            if self._parcel is not None and self._subscription.holds(self._parcel.feed):
                for delivery in self._deliveries:
                    return delivery
            item = self._next_parcel()
            if item is None:
                raise StopIteration
            parcel, records = item
            self._parcel = parcel
            self._deliveries = map(SyncDelivery, repeat(self), repeat(parcel), records)

    def batches(self) -> Iterator[SyncDeliveryBatch]:
        """See `Subscription.batches`."""
        while (item := self._portal.call(self._next_batch)) is not None:
            yield SyncDeliveryBatch(self, *item)

    def flush(self) -> None:
        """Until every ack so far is committed; see `Subscription.flush`."""
        self._portal.call(self._flush)

    def acknowledge(self, parcel: Parcel, first: int, last: int) -> None:
        """Collect an ack."""
        self._acks.append((parcel, first, last))
        if not self._scheduled:
            self._scheduled = True
            self._portal.start_task_soon(self._send_soon)

    def give_back(self, parts: Sequence[_Part], delay_s: float | None, reason: str) -> None:
        """Nack ranges."""
        after_ms = delay_ms(delay_s)

        async def nack() -> None:
            await self._send()
            for parcel, ranges in parts:
                parcel.feed.send_nack(parcel.number, ranges, after_ms, reason)

        self._portal.call(nack)

    def extend(self, parts: Sequence[_Part]) -> None:
        """Start the ack deadline of ranges again."""

        async def extend() -> None:
            for parcel, ranges in parts:
                parcel.feed.send_extend(parcel.number, ranges)

        self._portal.call(extend)

    def _next_parcel(self) -> tuple[Parcel, list[Record]] | None:
        while True:
            while self._ready:
                parcel, records = self._ready.popleft()
                if self._subscription.holds(parcel.feed):
                    return parcel, records
            if not self._portal.call(self._receive):
                return None

    # --- in the event loop's thread -------------------------------------------------------------

    async def _receive(self) -> bool:
        """Fetch all that has arrived, at least one; False once the subscription is closed."""
        self._collect()
        parcel = await self._subscription.next_parcel()
        while parcel is not None:
            self._ready.append((parcel, parcel.open()))
            parcel = self._subscription.next_parcel_now()
        return bool(self._ready)

    async def _next_batch(self) -> tuple[list[Parcel], list[Record]] | None:
        self._collect()
        while self._ready:
            # Fetched for iterating one by one, which the user has left for batches.
            parcel, records = self._ready.popleft()
            if self._subscription.holds(parcel.feed):
                return [parcel], records
        return await self._subscription.next_batch()

    def _collect(self) -> None:
        while self._acks:
            parcel, first, last = self._acks.popleft()
            parcel.feed.acknowledge(parcel.number, first, last)
            self._subscription.acknowledged(parcel.feed)

    async def _send(self) -> None:
        self._collect()
        self._subscription.send_acks()

    async def _send_soon(self) -> None:
        await anyio.sleep(_ACK_DELAY_S)
        self._scheduled = False
        await self._send()

    async def _flush(self) -> None:
        self._collect()
        await self._subscription.flush()

    async def leave(self) -> None:
        """What leaving the block does first: send the acks, and give back what nobody has seen."""
        self._collect()
        self._subscription.pause()
        left = list(self._deliveries)
        if left and self._parcel is not None:
            offsets = runs(delivery.offset for delivery in left)
            self._parcel.feed.send_nack(self._parcel.number, offsets, unseen=True)
        for parcel, records in self._ready:
            offsets = runs(record.offset for record in records)
            parcel.feed.send_nack(parcel.number, offsets, unseen=True)
        self._ready.clear()
