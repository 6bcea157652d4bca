"""The blocking subscription: deliveries cross threads a message at a time, acks in groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import repeat
from typing import Any, Final

import anyio
from anyio.from_thread import BlockingPortal

from hadron.client.consumer import Subscription
from hadron.client.membership import Parcel
from hadron.model.record import Record

_ACK_DELAY_S: Final = 0.0005
"""How long acks gather before a task is sent to fetch them: a hop costs 100 µs, ten acks one."""


class SyncDelivery:
    """One record given to this member, to be acknowledged; see `hadron.client.Delivery`."""

    __slots__ = ("_parcel", "_subscription", "record")

    def __init__(self, subscription: SyncSubscription, parcel: Parcel, record: Record) -> None:
        self._subscription = subscription
        self._parcel = parcel
        self.record = record

    @property
    def value(self) -> Any:
        return self.record.value

    @property
    def key(self) -> bytes | str | None:
        return self.record.key

    @property
    def type(self) -> str:
        return self.record.type

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def partition(self) -> str:
        return self.record.partition

    @property
    def attempt(self) -> int:
        """1 when the group is given this record for the first time."""
        return self._parcel.attempt

    def ack(self) -> None:
        """The record is dealt with. Returns before that is committed; see `flush`."""
        offset = self.record.offset
        self._subscription.acknowledge(self._parcel, offset, offset)

    def nack(self, delay_s: float = 0.0) -> None:
        """Give the record back, to be delivered again after `delay_s` seconds."""
        offset = self.record.offset
        self._subscription.give_back(self._parcel, offset, offset, delay_s)


class SyncDeliveryBatch:
    """Consecutive records given to this member together."""

    __slots__ = ("_parcel", "_subscription", "records")

    def __init__(
        self, subscription: SyncSubscription, parcel: Parcel, records: list[Record]
    ) -> None:
        self._subscription = subscription
        self._parcel = parcel
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    @property
    def partition(self) -> str:
        return self.records[0].partition

    @property
    def first_offset(self) -> int:
        return self._parcel.first

    @property
    def attempt(self) -> int:
        """1 when the group is given these records for the first time."""
        return self._parcel.attempt

    def ack(self) -> None:
        """All of them are dealt with."""
        self._subscription.acknowledge(self._parcel, self._parcel.first, self._parcel.last)

    def nack(self, delay_s: float = 0.0) -> None:
        """Give all of them back, to be delivered again after `delay_s` seconds."""
        self._subscription.give_back(
            self._parcel, self._parcel.first, self._parcel.last, delay_s
        )


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
            if self._parcel is not None and self._parcel.feed.alive:
                for delivery in self._deliveries:
                    return delivery
            item = self._next_parcel()
            if item is None:
                raise StopIteration
            parcel, records = item
            self._parcel = parcel
            self._deliveries = map(SyncDelivery, repeat(self), repeat(parcel), records)

    def batches(self) -> Iterator[SyncDeliveryBatch]:
        """Deliveries as the leader sends them: consecutive records of one batch at a time."""
        while (item := self._next_parcel()) is not None:
            yield SyncDeliveryBatch(self, *item)

    def flush(self) -> None:
        """Until every ack so far is committed; see `Subscription.flush`."""
        self._portal.call(self._flush)

    def acknowledge(self, parcel: Parcel, first: int, last: int) -> None:
        """Collect an ack."""
        if not parcel.feed.alive:
            return
        self._acks.append((parcel, first, last))
        if not self._scheduled:
            self._scheduled = True
            self._portal.start_task_soon(self._send_soon)

    def give_back(self, parcel: Parcel, first: int, last: int, delay_s: float) -> None:
        """Nack a range."""

        async def nack() -> None:
            await self._send()
            parcel.feed.send_nack(parcel.number, first, last, round(delay_s * 1000))

        self._portal.call(nack)

    def _next_parcel(self) -> tuple[Parcel, list[Record]] | None:
        while True:
            while self._ready:
                parcel, records = self._ready.popleft()
                if parcel.feed.alive:
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

    def _collect(self) -> None:
        while self._acks:
            parcel, first, last = self._acks.popleft()
            self._subscription.acknowledge(parcel.feed, parcel.number, first, last)

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
        """What leaving the block does first."""
        await self._send()
