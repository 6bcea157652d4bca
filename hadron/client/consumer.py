"""Consuming with a group: deliveries one by one or in batches, acknowledged in any order.

Acks cost no wait: they are collected and sent by a task that runs at the next turn of the event
loop, when the loop over deliveries runs dry, or when many have gathered.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, Final

import anyio
import anyio.lowlevel

from hadron.client.membership import Feed, Membership, Parcel
from hadron.client.session import Session
from hadron.model.errors import ConnectionLostError, HadronError, PeerError, RequestError
from hadron.model.record import Record
from hadron.wire.messages import groups_pb2

_log = logging.getLogger(__name__)

DEFAULT_MAX_IN_FLIGHT: Final = 1_000

ACKS_PER_MESSAGE: Final = 128
"""Acks that go out without waiting for the next turn, so that the leader can send more records
while the user works on those that are here."""


class Delivery:
    """One record given to this member, to be acknowledged."""

    __slots__ = ("_parcel", "_subscription", "record")

    def __init__(self, subscription: Subscription, parcel: Parcel, record: Record) -> None:
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

    async def ack(self) -> None:
        """The record is dealt with. Returns before that is committed; see `Subscription.flush`.

        Does nothing when the record is no longer this member's: then it is delivered again.
        """
        parcel, offset = self._parcel, self.record.offset
        if self._subscription.acknowledge(parcel.feed, parcel.number, offset, offset):
            await anyio.lowlevel.checkpoint()

    async def nack(self, delay_s: float = 0.0) -> None:
        """Give the record back, to be delivered again after `delay_s` seconds."""
        parcel, offset = self._parcel, self.record.offset
        parcel.feed.send_nack(parcel.number, offset, offset, round(delay_s * 1000))

    def __repr__(self) -> str:
        return f"Delivery({self.record!r}, attempt={self.attempt})"


class DeliveryBatch:
    """Consecutive records given to this member together."""

    __slots__ = ("_parcel", "_subscription", "records")

    def __init__(
        self, subscription: Subscription, parcel: Parcel, records: list[Record]
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

    async def ack(self) -> None:
        """All of them are dealt with; like `Delivery.ack`."""
        parcel = self._parcel
        if self._subscription.acknowledge(parcel.feed, parcel.number, parcel.first, parcel.last):
            await anyio.lowlevel.checkpoint()

    async def nack(self, delay_s: float = 0.0) -> None:
        """Give all of them back, to be delivered again after `delay_s` seconds."""
        parcel = self._parcel
        parcel.feed.send_nack(parcel.number, parcel.first, parcel.last, round(delay_s * 1000))


class DeliveryBatches:
    """`async for batch in subscription.batches()`."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def __aiter__(self) -> DeliveryBatches:
        return self

    async def __anext__(self) -> DeliveryBatch:
        parcel = await self._subscription.next_parcel()
        if parcel is None:
            raise StopAsyncIteration
        return DeliveryBatch(self._subscription, parcel, parcel.open())


class Subscription:
    """A member of a group at some partitions. Made by `Client.subscribe`, used inside its block.

    Iterate it for one `Delivery` at a time, or `batches()`. When a connection is lost the member
    joins again by itself; what it had not acknowledged is delivered again, perhaps to another
    member. Leaving the block sends the acks, then leaves the group: the rest goes to others.
    """

    def __init__(
        self,
        session: Session,
        openings: Sequence[groups_pb2.SubscribeRequest],
        *,
        open_timeout_s: float,
    ) -> None:
        self._session = session
        self._open_timeout_s = open_timeout_s
        self._memberships = [
            Membership(session, opening, on_parcel=self._arrived, on_change=self._notify)
            for opening in openings
        ]
        self._parcels: deque[Parcel] = deque()
        self._news: anyio.Event | None = None
        self._ack_news: anyio.Event | None = None
        self._deliveries: Iterator[Delivery] = iter(())
        self._feed: Feed | None = None
        self._scopes: list[anyio.CancelScope] = []
        self._closed = False
        self._late_acks = 0
        """Records acknowledged after the call that had brought them was lost."""

    # --- iterating ------------------------------------------------------------------------------

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Delivery:
        feed = self._feed
        if feed is not None and feed.alive:
            for delivery in self._deliveries:
                return delivery
        while True:
            parcel = await self.next_parcel()
            if parcel is None:
                raise StopAsyncIteration
            records = parcel.open()
            self._feed = parcel.feed
            self._deliveries = map(Delivery, repeat(self), repeat(parcel), records)
            for delivery in self._deliveries:
                return delivery

    def batches(self) -> DeliveryBatches:
        """Deliveries as the leader sends them: consecutive records of one batch at a time."""
        return DeliveryBatches(self)

    async def next_parcel(self) -> Parcel | None:
        """The next delivery message; None once the subscription is closed.

        Raises what ended the membership for good.
        """
        while True:
            parcel = self.next_parcel_now()
            if parcel is not None:
                return parcel
            if self._closed:
                return None
            self._check_failure()
            self.send_acks()
            await self._wait_news()

    def next_parcel_now(self) -> Parcel | None:
        """The next delivery message if one has arrived."""
        while self._parcels:
            parcel = self._parcels.popleft()
            if parcel.feed.alive:
                return parcel
        return None

    # --- acknowledging --------------------------------------------------------------------------

    def acknowledge(self, feed: Feed, number: int, first: int, last: int) -> bool:
        """Collect an ack; whether so many were sent that other tasks should get a turn."""
        if not feed.alive:
            self._late_acks += last - first + 1
            return False
        feed.acks.add(number, first, last)
        if feed.acks.count >= ACKS_PER_MESSAGE:
            feed.send_acks()
            return True
        if self._ack_news is not None:
            self._ack_news.set()
            self._ack_news = None
        return False

    def send_acks(self) -> None:
        """Send what is acknowledged now."""
        for membership in self._memberships:
            if membership.feed is not None:
                membership.feed.send_acks()

    async def flush(self) -> None:
        """Until every ack so far is committed.

        Raises `ConnectionLostError` when a connection took acks along, or was gone before they
        came: their records will be delivered again.
        """
        trouble: HadronError | None = None
        for membership in self._memberships:
            try:
                await membership.flush()
            except HadronError as error:
                trouble = error
        self._session.check_open()
        late, self._late_acks = self._late_acks, 0
        if trouble is not None:
            raise trouble
        if late:
            raise ConnectionLostError(
                f"{late} acknowledgements came after the connection was lost that had brought "
                "their records",
                "the records are delivered again",
            )

    async def _send_acks_soon(self) -> None:
        while True:
            self._ack_news = event = anyio.Event()
            await event.wait()
            self.send_acks()

    # --- arrivals -------------------------------------------------------------------------------

    def _arrived(self, parcel: Parcel) -> None:
        self._parcels.append(parcel)
        self._notify()

    def _notify(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None

    async def _wait_news(self) -> None:
        if self._news is None:
            self._news = anyio.Event()
        await self._news.wait()

    def _check_failure(self) -> None:
        for membership in self._memberships:
            failure = membership.failure
            if failure is not None:
                raise type(failure)(failure.message, failure.hint, retryable=failure.retryable)

    # --- life -----------------------------------------------------------------------------------

    async def __aenter__(self) -> Subscription:
        background = self._session.background
        self._scopes = [
            background.start(self._send_acks_soon),
            *(background.start(membership.standing.run) for membership in self._memberships),
        ]
        try:
            await self._wait_open()
        except BaseException:
            self._close()
            raise
        return self

    async def _wait_open(self) -> None:
        """Until the member is known everywhere; partitions that are down are joined later."""
        waiting = self._memberships
        with anyio.move_on_after(self._open_timeout_s):
            while waiting:
                await self._wait_news()
                self._check_failure()
                waiting = [member for member in self._memberships if not member.is_open]
        if len(waiting) == len(self._memberships):
            trouble = waiting[0].trouble or "no answer"
            raise PeerError(
                f"no partition of {waiting[0].stream} could be joined within "
                f"{self._open_timeout_s:g} s: {trouble}",
                "are the partitions' leaders up? see `hadron status`",
            )
        for member in waiting:
            _log.warning("%s is joined later: %s", member.partition, member.trouble)

    async def __aexit__(
        self, _: object, error: BaseException | None, traceback: object
    ) -> None:
        try:
            self.send_acks()
            if error is None or isinstance(error, Exception):
                with anyio.move_on_after(self._session.request_timeout_s):
                    await self.flush()
        except HadronError as trouble:
            _log.warning("leaving a group: %s", trouble)
        finally:
            self._close()

    def _close(self) -> None:
        self._closed = True
        for scope in self._scopes:
            scope.cancel()
        for membership in self._memberships:
            membership.close()
        self._parcels.clear()
        self._deliveries = iter(())
        self._notify()


def check_subscribe(group: str, start: object, max_in_flight: int) -> str:
    """The wire's form of `start`. Raises `RequestError` naming the argument that is wrong."""
    if not group:
        raise RequestError("a subscription needs a group", 'for example group="billing"')
    if not 0 < max_in_flight < 1 << 32:
        raise RequestError(f"max_in_flight {max_in_flight} makes no sense", "use 1 or more")
    is_offset = isinstance(start, int) and not isinstance(start, bool) and start >= 0
    if start not in ("earliest", "latest") and not is_offset:
        raise RequestError(
            f"{start!r} is not where a group can start", 'use "earliest", "latest" or an offset'
        )
    return str(start)
