"""What a member is handed: records to be acknowledged, one by one or in batches.

What such a record or batch is stands here for the blocking client too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import anyio.lowlevel
import msgspec

from hadron.client.connecting.session import Session
from hadron.client.consuming.channel import Channel, Parcel
from hadron.client.terms.arguments import seconds_of, text_of
from hadron.client.transactions.contents import Claim, Claimed, StreamName
from hadron.model.errors import RequestError
from hadron.model.record import Record
from hadron.wire.messages import text_to

_MAX_DELAY_S: Final = 49 * 86_400
"""Milliseconds are 32 bits on the wire."""

_MAX_REASON: Final = 500
"""Characters that a leader keeps of a reason (`delivery.driver`). Each record that is given back is
told it: ten thousand times a MiB waited to be sent."""


class Source(NamedTuple):
    """Whose deliveries they are: of which client, stream and group."""

    session: Session
    stream: StreamName
    group: str


class Sourced(Protocol):
    """Whoever hands out deliveries."""

    @property
    def source(self) -> Source: ...


S = TypeVar("S", bound=Sourced)
"""The subscription."""


class AnyDelivery(msgspec.Struct, Generic[S], eq=False):
    """A record given to this member; async or blocking."""

    # Made for each record: see `Record`.
    _subscription: S
    _parcel: Parcel
    record: Record
    _is_acked: bool = False

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
    def headers(self) -> Mapping[str, str]:
        return self.record.headers

    @property
    def timestamp(self) -> datetime:
        """Event time, in UTC."""
        return self.record.timestamp

    @property
    def timestamp_ms(self) -> int:
        return self.record.timestamp_ms

    @property
    def id(self) -> str:
        """The id given by the producer, or `stream/partition/offset`."""
        return self.record.id

    @property
    def stream(self) -> str:
        return self.record.stream

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def partition(self) -> str:
        return self.record.partition

    @property
    def damage(self) -> str:
        """Why the record cannot be read, though it is as its producer sent it; "" when it can."""
        return self.record.damage

    @property
    def raw(self) -> bytes:
        """Bytes as they are stored: the value's, or the body of its whole batch when that cannot be
        taken apart."""
        return self.record.raw

    @property
    def attempt(self) -> int:
        """1 when the group is given this record for the first time."""
        return self._parcel.attempt

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.record!r}, attempt={self.attempt})"

    # --- in a transaction (`transactions.contents.Claimable`) -------------------------------------

    def _claim(self) -> Claim:
        if self._is_acked:
            raise _acknowledged(self)
        self._is_acked = True
        offset = self.record.offset
        return _claim(self._subscription.source, self.partition, [(self._parcel, offset, offset)])

    def _unclaim(self) -> None:
        self._is_acked = False


class AnyDeliveryBatch(msgspec.Struct, Generic[S], eq=False):
    """Records of one partition given to this member together, in order; async or blocking."""

    _subscription: S
    _parcels: Sequence[Parcel]
    records: list[Record]
    _is_acked: bool = False

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __repr__(self) -> str:
        first = self.records[0]
        where = f"{first.stream}/{first.partition}/{first.offset}"
        if len(self) > 1:
            where = f"{len(self)} records, {where} to {self.records[-1].offset}"
        return f"{type(self).__name__}({where}, attempt={self.attempt})"

    # --- in a transaction (`transactions.contents.Claimable`) -------------------------------------

    def _claim(self) -> Claim:
        if self._is_acked:
            raise _acknowledged(self)
        self._is_acked = True
        ranges = [
            (parcel, first, last) for parcel in self._parcels for first, last in parcel.ranges()
        ]
        return _claim(self._subscription.source, self.partition, ranges)

    def _unclaim(self) -> None:
        self._is_acked = False

    @property
    def partition(self) -> str:
        return self.records[0].partition

    @property
    def first_offset(self) -> int:
        return self.records[0].offset

    @property
    def attempt(self) -> int:
        """1 when the group is given all of these records for the first time."""
        return max(parcel.attempt for parcel in self._parcels)


def _claim(source: Source, partition: str, ranges: Iterable[tuple[Parcel, int, int]]) -> Claim:
    claimed = []
    for parcel, first, last in ranges:
        parcel.channel.is_answered = True
        claimed.append(Claimed(parcel.ballot, parcel.number, first, last))
    return Claim(source.session, partition, source.stream, source.group, claimed)


def _acknowledged(what: object) -> RequestError:
    return RequestError(
        f"{what!r} was acknowledged before", "acknowledge it once: in one transaction, or by itself"
    )


class AckSender(Protocol):
    """What deliveries need of their subscription."""

    @property
    def source(self) -> Source: ...

    def acknowledged(self, channel: Channel, again: bool) -> bool:
        """Something was, perhaps for a second time; whether so much was sent that other tasks
        should get a turn."""
        ...

    def said(self) -> bool:
        """Something else was said to a leader; returns the same."""
        ...

    def nack_too_late(self) -> None:
        """Something was given back after it had been acknowledged."""
        ...


class Delivery(AnyDelivery[AckSender]):
    """One record given to this member, to be acknowledged."""

    async def ack(self) -> None:
        """The record is dealt with. Returns before that is committed; see `Subscription.flush`.

        Once the connection is lost that has brought it, or its deadline has passed, the ack counts
        if nobody else has got the record meanwhile (PROTOCOL D2).
        """
        parcel, offset, again = self._parcel, self.record.offset, self._is_acked
        self._is_acked = True
        parcel.channel.acknowledge(parcel, offset, offset)
        if self._subscription.acknowledged(parcel.channel, again):
            await anyio.lowlevel.checkpoint()

    async def nack(self, delay_s: float | timedelta | None = None, reason: str = "") -> None:
        """Give the record back, to be delivered again; once it was acknowledged, this does nothing.

        Without `delay_s` it comes again after 0.1 s, and after twice as long each further time, up
        to 30 s. With it, after so many seconds, at most 49 days; 0 is at once, to another member
        if there is one, but from the third attempt on less than a second grows as well. A member
        that gives back more than 32 records in a row and acknowledges none gets single ones, ever
        more rarely, until it acknowledges one (unless its delays are a second or more). In strict
        order everything behind the record waits for it, by key what has its key.

        The delay is in the leader's memory: when another node leads, or this one starts again, the
        record is delivered at once. `reason` stands in the dead letter when this was the last
        attempt. Raises `RequestError` for a delay that makes no sense.
        """
        parcel, offset = self._parcel, self.record.offset
        after_ms, reason = delay_ms(delay_s), nack_reason(reason)
        if self._is_acked:
            self._subscription.nack_too_late()
        else:
            parcel.channel.send_nack(parcel.number, [(offset, offset)], after_ms, reason)
            if self._subscription.said():
                await anyio.lowlevel.checkpoint()

    async def extend(self) -> None:
        """Still at work: the ack deadline starts again, for all records that came together. For
        what another member has got meanwhile it does nothing: `flush` tells of that."""
        parcel, offset = self._parcel, self.record.offset
        parcel.channel.send_extend(parcel.number, [(offset, offset)])
        if self._subscription.said():
            await anyio.lowlevel.checkpoint()


class DeliveryBatch(AnyDeliveryBatch[AckSender]):
    """Records of one partition given to this member together, in order."""

    async def ack(self) -> None:
        """All of them are dealt with; like `Delivery.ack`."""
        again, self._is_acked = self._is_acked, True
        for parcel in self._parcels:
            parcel.acknowledge()
            if self._subscription.acknowledged(parcel.channel, again):
                await anyio.lowlevel.checkpoint()

    async def nack(self, delay_s: float | timedelta | None = None, reason: str = "") -> None:
        """Give all of them back; like `Delivery.nack`."""
        after_ms, reason = delay_ms(delay_s), nack_reason(reason)
        if self._is_acked:
            self._subscription.nack_too_late()
            return
        for parcel in self._parcels:
            parcel.channel.send_nack(parcel.number, parcel.ranges(), after_ms, reason)
            if self._subscription.said():
                await anyio.lowlevel.checkpoint()

    async def extend(self) -> None:
        """Still at work: the ack deadline of all of them starts again."""
        for parcel in self._parcels:
            parcel.channel.send_extend(parcel.number, parcel.ranges())
            if self._subscription.said():
                await anyio.lowlevel.checkpoint()


def delay_ms(delay_s: float | timedelta | None) -> int | None:
    """As it is sent. Raises `RequestError` for what makes no sense."""
    if delay_s is None:
        return None
    return round(seconds_of("delay_s", delay_s, 0, _MAX_DELAY_S) * 1_000)


def nack_reason(reason: str) -> str:
    """As it is sent. Raises `RequestError` for what is no text."""
    return text_to(text_of("reason", reason)[:_MAX_REASON]) if reason != "" else ""
