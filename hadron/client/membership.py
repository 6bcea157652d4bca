"""One partition of a subscription: the member's call to the partition's leader.

Safety rule: a delivery belongs to the call it came on. When that call ends, the leader gives the
unacknowledged records out again, so what the old call delivered is forgotten here: it is neither
handed to the user any more nor acknowledged.
"""

from __future__ import annotations

import itertools
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import anyio

from hadron.client.acks import AckBuffer, AckRange
from hadron.client.session import Session
from hadron.client.standing import StandingCall
from hadron.model.batch import RecordBatch, decode_batch
from hadron.model.errors import ConnectionLostError, HadronError, PeerError
from hadron.model.limits import SUBSCRIPTION_BATCH_MEMORY
from hadron.model.record import Record
from hadron.wire.calls import Call
from hadron.wire.messages import groups_pb2, method

_log = logging.getLogger(__name__)

_SUBSCRIBE: Final = method("Subscribe")

_RECORDS_PER_TOKEN: Final = 1_000
"""Acks are confirmed at least this often, so that it is known how many a lost call took along."""


class DeliveredBatch:
    """A batch that came on a call; decoded when its first record is wanted."""

    __slots__ = ("_attachment", "_base_offset", "_batch", "_partition", "_stream")

    def __init__(
        self, stream: str, partition: str, base_offset: int, attachment: memoryview
    ) -> None:
        self._stream = stream
        self._partition = partition
        self._base_offset = base_offset
        self._attachment = attachment
        self._batch: RecordBatch | None = None

    def records(self, first_offset: int, last_offset: int) -> list[Record]:
        """Records by offset, both ends inclusive. Raises `CorruptionError`."""
        batch = self._batch
        if batch is None:
            batch = self._batch = decode_batch(
                self._attachment,
                base_offset=self._base_offset,
                stream=self._stream,
                partition=self._partition,
            )
            self._attachment = memoryview(b"")
        return batch.records(first_offset - self._base_offset, last_offset + 1 - self._base_offset)


class Feed:
    """One call of the member: what it delivered and what is to be acknowledged on it."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.alive = True
        self.acks = AckBuffer()
        self.unconfirmed = 0
        """Records acknowledged on the call without a confirmation yet."""
        self._tokens: dict[int, tuple[int, anyio.Event | None]] = {}
        self._next_token = itertools.count(1)
        self._without_token = 0
        self._memory: OrderedDict[int, DeliveredBatch] = OrderedDict()

    # --- deliveries -----------------------------------------------------------------------------

    def batch(
        self, stream: str, partition: str, base_offset: int, attachment: memoryview
    ) -> DeliveredBatch | None:
        """The batch of a delivery: attached, or one of those that both sides remember."""
        if not attachment:
            return self._memory.get(base_offset)
        batch = DeliveredBatch(stream, partition, base_offset, attachment)
        self._memory.pop(base_offset, None)
        self._memory[base_offset] = batch
        if len(self._memory) > SUBSCRIPTION_BATCH_MEMORY:
            self._memory.popitem(last=False)
        return batch

    # --- acknowledgements -----------------------------------------------------------------------

    def send_acks(self, confirmed: anyio.Event | None = None) -> None:
        """Send what is acknowledged; `confirmed` is set once all acks so far are committed."""
        if not self.alive or not (self.acks.count or confirmed is not None):
            return
        count = self.acks.count
        self.unconfirmed += count
        self._without_token += count
        token = 0
        if confirmed is not None or self._without_token >= _RECORDS_PER_TOKEN:
            token = next(self._next_token)
            self._tokens[token] = (self._without_token, confirmed)
            self._without_token = 0
        ack = groups_pb2.SubscribeRequest.Ack(ranges=_ranges(self.acks.take()), token=token)
        self.call.send(groups_pb2.SubscribeRequest(ack=ack))

    def confirmed(self, token: int) -> None:
        """The leader has committed every ack up to the one with this token."""
        for earlier in [known for known in self._tokens if known <= token]:
            count, event = self._tokens.pop(earlier)
            self.unconfirmed -= count
            if event is not None:
                event.set()

    def send_nack(self, delivery: int, first: int, last: int, delay_ms: int) -> None:
        """Give records back, to be delivered again after `delay_ms`."""
        if self.alive:
            self.send_acks()
            ranges = _ranges([AckRange(delivery, first, last)])
            nack = groups_pb2.SubscribeRequest.Nack(ranges=ranges, delay_ms=delay_ms)
            self.call.send(groups_pb2.SubscribeRequest(nack=nack))

    def end(self) -> int:
        """The call is over; return how many acks may not have been committed."""
        if not self.alive:
            return 0
        self.alive = False
        for _, event in self._tokens.values():
            if event is not None:
                event.set()
        return self.unconfirmed + self.acks.count


class Parcel:
    """One delivery message: consecutive records of one batch."""

    __slots__ = ("attempt", "batch", "feed", "first", "last", "number", "size")

    def __init__(
        self, feed: Feed, message: groups_pb2.SubscribeEvent.Delivery, batch: DeliveredBatch,
        size: int,
    ) -> None:
        self.feed = feed
        self.batch = batch
        self.number = message.delivery
        self.first = message.first_offset
        self.last = message.last_offset
        self.attempt = message.attempt
        self.size = size

    def open(self) -> list[Record]:
        """Its records; what they took of the stream's window is granted again."""
        self.feed.call.consumed(self.size)
        return self.batch.records(self.first, self.last)


class Membership:
    """A member of a group at one partition (`standing.Owner`).

    Args:
        on_parcel: called with each delivery.
        on_change: called when the call was opened, lost or has failed for good.
    """

    def __init__(
        self,
        session: Session,
        opening: groups_pb2.SubscribeRequest,
        *,
        on_parcel: Callable[[Parcel], None],
        on_change: Callable[[], None],
    ) -> None:
        self.stream = opening.open.stream
        self.partition = opening.open.partition
        self.feed: Feed | None = None
        self.is_open = False
        """The leader has said that the member may expect deliveries."""
        self.failure: HadronError | None = None
        self.trouble: HadronError | None = None
        self.lost_acks = 0
        """Acks that calls took along when they were lost, since somebody last asked."""
        self._opening = opening
        self._on_parcel = on_parcel
        self._on_change = on_change
        self.standing = StandingCall(session, self.partition, _SUBSCRIBE, self)

    def opening(self) -> groups_pb2.SubscribeRequest:
        return self._opening

    def opened(self, call: Call) -> None:
        self.feed = Feed(call)

    def received(self, message: groups_pb2.SubscribeEvent, attachment: memoryview) -> None:
        feed = self.feed
        assert feed is not None
        kind = message.WhichOneof("kind")
        if kind == "delivery":
            size = message.ByteSize() + len(attachment)
            delivery = message.delivery
            data = attachment if delivery.batch.length else memoryview(b"")
            batch = feed.batch(self.stream, self.partition, delivery.batch.base_offset, data)
            if batch is None:
                raise PeerError(
                    f"{self.partition} delivered offset {delivery.first_offset} without its batch",
                    "the node remembers another number of batches; are the versions the same?",
                )
            self._on_parcel(Parcel(feed, delivery, batch, size))
        elif kind == "acked":
            feed.call.consumed(message.ByteSize())
            feed.confirmed(message.acked.token)
        elif kind == "opened":
            feed.call.consumed(message.ByteSize())
            self.is_open = True
            self._on_change()

    def lost(self, error: HadronError | None) -> None:
        self._end()
        self.trouble = error
        self._on_change()

    def failed(self, error: HadronError) -> None:
        self._end()
        self.failure = error
        self._on_change()

    def close(self) -> None:
        """Forget what is not acknowledged; it is given to others."""
        self._end()

    def _end(self) -> None:
        self.is_open = False
        feed, self.feed = self.feed, None
        if feed is not None:
            self.lost_acks += feed.end()

    async def flush(self) -> None:
        """Until every ack so far is committed; raises `ConnectionLostError` when some are lost."""
        feed = self.feed
        if feed is not None and (feed.acks.count or feed.unconfirmed):
            confirmed = anyio.Event()
            feed.send_acks(confirmed)
            await confirmed.wait()
        lost, self.lost_acks = self.lost_acks, 0
        if lost:
            raise ConnectionLostError(
                f"up to {lost} acknowledgements to {self.partition} were lost with a connection",
                "their records are delivered again",
            )


def _ranges(ranges: list[AckRange]) -> list[groups_pb2.Range]:
    return [
        groups_pb2.Range(delivery=entry.delivery, first_offset=entry.first, last_offset=entry.last)
        for entry in ranges
    ]
