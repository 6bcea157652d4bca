"""Subscribe: a member of a group for as long as the call is open.

Rule: what a program was sent is the program's. Of a delivery that is out the door keeps where its
record stands, and not its bytes, which are its whole batch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Any, Final, NamedTuple, TypeAlias, cast

import trio

from hadron.client.client import Client
from hadron.client.consuming.channel import Channel, LazyBatch, Parcel
from hadron.client.consuming.deliveries import Delivery
from hadron.client.consuming.subscription import Subscription
from hadron.doors.clients import Clients
from hadron.doors.grpc.messages import stored_record
from hadron.doors.grpc.reading import position_of
from hadron.doors.grpc.requests import deliveries, parse, receive_opening, senseless
from hadron.doors.grpc.rpc import Talk
from hadron.model.errors import NotFoundError, RequestError
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.limits import MAX_IN_FLIGHT
from hadron.model.ports import Random
from hadron.model.record import Record
from hadron.wire._pb import records_pb2 as pb

_DEFAULT_IN_FLIGHT: Final = 1_000
_MAX_CREDIT: Final = (1 << 31) - 1
_TOKEN_BYTES: Final = 12

_MAX_GONE: Final = 10_000
"""Deliveries that were taken back, and may still be acknowledged late: ten times what a member of
one partition holds, if it does not say otherwise."""

_Place: TypeAlias = tuple[Channel, int, int]
"""Of a delivery: its channel, its parcel's number, its offset."""


class _Spot(NamedTuple):
    """What an acknowledgement has of its record."""

    stream: str
    partition: str
    offset: int

    def __repr__(self) -> str:
        return f"Record({self.stream}/{self.partition}/{self.offset})"


class Member:
    """One call, and the deliveries that it has handed out and that are not acknowledged.

    What the leader has taken back, as its deadline has passed or its connection was lost, holds up
    nothing any more. The latest of it may be acknowledged late; as everywhere, that counts unless
    somebody else has got the record.

    Attributes:
        client: whose subscription it is.
    """

    def __init__(self, talk: Talk, client: Client) -> None:
        self._talk = talk
        self.client = client
        self._out: dict[int, Delivery] = {}
        self._places: dict[_Place, int] = {}
        """Under which numbers these are out."""
        self._gone: dict[int, Delivery] = {}
        self._forgotten = 0
        """The highest number that is not among them any more."""
        self._claimed: set[int] = set()
        """By transactions that are under way; they are out until one of them is committed."""
        self._next = 1
        self._parcels: tuple[Parcel, Parcel] | None = None
        """The latest one, and the same without its records."""
        self._credit: int | None = None
        self._news = trio.Event()

    def take(self, ids: Sequence[int]) -> list[Delivery]:
        """These are dealt with. Raises `RequestError` for one that is not out, or is a
        transaction's."""
        wanted = self._checked(ids)
        self._news.set()
        return [self._pop(each) for each in wanted]

    def claim(self, ids: Sequence[int]) -> dict[int, Delivery]:
        """These are dealt with if a transaction is committed. Raises like `take`."""
        wanted = self._checked(ids)
        self._claimed.update(wanted)
        return {each: self._out.get(each) or self._gone[each] for each in wanted}

    def unclaim(self, ids: Iterable[int], *, committed: bool) -> None:
        """The transaction is over."""
        self._claimed.difference_update(ids)
        if committed:
            for each in ids:
                if each in self._out or each in self._gone:
                    self._pop(each)
            self._news.set()

    def _checked(self, ids: Sequence[int]) -> list[int]:
        wanted = deliveries(ids)
        for each in wanted:
            if each in self._claimed:
                raise RequestError(
                    f"delivery {each} is in a transaction that is under way",
                    "acknowledge it there or here; or wait for the end of that one",
                )
            if each not in self._out and each not in self._gone:
                raise self._unknown(each)
        return wanted

    def _unknown(self, number: int) -> RequestError:
        if number >= self._next or not number:
            return RequestError(
                f"delivery {number} was never handed out in this call", "acknowledge it once"
            )
        if number > self._forgotten:
            return RequestError(
                f"delivery {number} was acknowledged before in this call", "acknowledge it once"
            )
        return RequestError(
            f"delivery {number} was acknowledged in this call, or taken back so long ago that "
            f"{_MAX_GONE} others were since",
            "acknowledge it once, before its deadline; subscribe again for what is open",
        )

    def _pop(self, number: int) -> Delivery:
        delivery = self._out.pop(number, None)
        if delivery is None:
            return self._gone.pop(number)
        self._places.pop(_place_of(delivery), None)
        return delivery

    def gone(self, channel: Channel, parcel: int | None, first: int, last: int) -> None:
        """See `Consumer.on_gone`."""
        if parcel is None:
            places = [each for each in self._places if each[0] is channel]
        else:
            places = [(channel, parcel, offset) for offset in range(first, last + 1)]
        for place in places:
            if (number := self._places.pop(place, None)) is not None:
                self._gone[number] = self._out.pop(number)
        while len(self._gone) > _MAX_GONE:
            oldest = next(iter(self._gone))
            del self._gone[oldest]
            self._forgotten = max(self._forgotten, oldest)
        self._news.set()

    def give_credit(self, records: int) -> None:
        self._credit = min((self._credit or 0) + records, _MAX_CREDIT)
        self._news.set()

    async def deliver(self, subscription: Subscription) -> None:
        async for delivery in subscription:
            number = self._next
            self._next += 1
            self._out[number] = self._without_bytes(delivery)
            self._places[_place_of(delivery)] = number
            event = pb.ConsumeEvent()
            event.delivery.id = number
            event.delivery.attempt = delivery.attempt
            event.delivery.record.CopyFrom(stored_record(delivery.record))
            await self._talk.send(event.SerializeToString())
            if self._credit is not None:
                self._credit -= 1
            await self.wait_turn()

    def _without_bytes(self, delivery: Delivery) -> Delivery:
        """As one to be acknowledged, or given back."""
        record, parcel = delivery.record, delivery._parcel
        if self._parcels is None or self._parcels[0] is not parcel:
            empty = copy(parcel)
            empty.batch = LazyBatch(record.stream, record.partition, parcel.first, memoryview(b""))
            self._parcels = parcel, empty
        spot = _Spot(record.stream, record.partition, record.offset)
        return Delivery(delivery._subscription, self._parcels[1], cast(Record, spot))

    async def wait_turn(self) -> None:
        """Until another record may be handed out."""
        while self._credit == 0 or len(self._out) >= MAX_IN_FLIGHT:
            self._news = trio.Event()
            await self._news.wait()

    async def listen(self, subscription: Subscription) -> None:
        """What the program says, up to its end."""
        while (data := await self._talk.receive()) is not None:
            request = parse(pb.ConsumeRequest, data)
            kind = request.WhichOneof("said")
            if kind == "ack":
                for each in self.take(request.ack.ids):
                    await each.ack()
            elif kind == "nack":
                nack = request.nack
                delay_s = nack.delay_ms / 1_000 if nack.HasField("delay_ms") else None
                for each in self.take(nack.ids):
                    await each.nack(delay_s, nack.reason)
            elif kind == "extend":
                for number in deliveries(request.extend.ids):
                    if (held := self._out.get(number)) is not None:
                        await held.extend()
            elif kind == "credit":
                self.give_credit(request.credit.records)
            elif kind == "flush":
                await subscription.flush()
                event = pb.ConsumeEvent(flushed=pb.ConsumeEvent.Flushed())
                await self._talk.send(event.SerializeToString())
            else:
                raise senseless(
                    self._talk, kind, "after `open` say ack, nack, extend, credit or flush"
                )


class Consuming:
    """At one door."""

    def __init__(self, clients: Clients, now_ms: Callable[[], int], random: Random) -> None:
        self._clients = clients
        self._now_ms = now_ms
        self._random = random
        self._members: dict[str, Member] = {}

    def member(self, subscription: str, client: Client) -> Member:
        """That of a call that is open here. Raises `NotFoundError`."""
        member = self._members.get(subscription)
        if member is None or member.client is not client:
            raise NotFoundError(
                f"no Subscribe call {subscription[:40]!r} of this namespace is open at this node",
                "open both calls at one node, and name what `opened` has said",
            )
        return member

    async def subscribe(self, talk: Talk) -> None:
        asked = await receive_opening(talk, pb.ConsumeRequest)
        client = await self._clients.of(asked.namespace or DEFAULT_NAMESPACE)
        member = Member(talk, client)
        if asked.HasField("credit"):
            member.give_credit(asked.credit)
        token = self._random.token_bytes(_TOKEN_BYTES).hex()
        async with client.subscribe(
            asked.stream,
            group=asked.group,
            start=self._start(asked.start),
            partitions=list(asked.partitions) or None,
            max_in_flight=asked.max_in_flight or _DEFAULT_IN_FLIGHT,
            member=asked.member,
            **_kept(asked),
        ) as subscription:
            subscription._consumer.on_gone = member.gone
            self._members[token] = member
            try:
                event = pb.ConsumeEvent(opened=pb.ConsumeEvent.Opened(subscription=token))
                await talk.send(event.SerializeToString())
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._deliver, member, subscription)
                    await member.listen(subscription)
                    nursery.cancel_scope.cancel()
            finally:
                del self._members[token]

    async def _deliver(self, member: Member, subscription: Subscription) -> None:
        await member.wait_turn()
        await member.deliver(subscription)

    def _start(self, text: str) -> Any:
        position = position_of(text, self._now_ms())
        if isinstance(position, int) and position < 0:
            raise RequestError(
                f"start={text!r} counts from the end", "a group begins at an offset, or a time"
            )
        return position


def _place_of(delivery: Delivery) -> _Place:
    parcel = delivery._parcel
    return parcel.channel, parcel.number, delivery.offset


def _kept(asked: pb.ConsumeRequest.Open) -> dict[str, Any]:
    """What a group keeps, as far as it is given."""
    kept: dict[str, Any] = {
        name: getattr(asked, name)
        for name in ("order", "max_attempts", "dead_letter", "ephemeral")
        if asked.HasField(name)
    }
    if asked.HasField("ack_deadline_ms"):
        kept["ack_deadline_s"] = asked.ack_deadline_ms / 1_000
    return kept
