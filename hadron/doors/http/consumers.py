"""Members of groups that poll: each is a subscription that this node keeps between two requests.

A member is there while it asks: after its `idle_s` without a request it leaves its group, and what
it had goes to others, as after a lost connection. Safety rule: an answer that nobody has received
costs no record: whoever is told nothing has acknowledged nothing.
"""

from __future__ import annotations

import itertools
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, NamedTuple

import trio

from hadron.client.consuming.channel import Channel
from hadron.client.consuming.deliveries import Delivery
from hadron.client.consuming.settings import ORDERS
from hadron.client.consuming.subscription import Subscription
from hadron.doors.damage import told_raw
from hadron.doors.defects import defect
from hadron.doors.http import limits as bounds
from hadron.doors.http.problems import HttpError
from hadron.model.errors import ConnectionLostError, HadronError, NotFoundError, RequestError
from hadron.model.problems import setting
from hadron.wire.messages import groups_pb2

_log = logging.getLogger(__name__)

_LOOK: Final = 1 / 4
"""Of its `idle_s`: so often a member is looked at."""


_NAMES: Final = 10
"""For each member that there may be, names whose numbers are known."""


class Name(NamedTuple):
    """Whose member it is, and what it calls itself."""

    namespace: str
    stream: str
    group: str
    consumer: str


class Joined(NamedTuple):
    """What a member has joined with, that is its own."""

    idle_s: float
    start: str
    max_in_flight: int


_ORDERS: Final = {number: name for name, number in ORDERS.items()}

OF_GROUPS: Final[Mapping[str, Callable[[groups_pb2.GroupOptions], Any]]] = {
    "order": lambda has: _ORDERS.get(has.order),
    "ack_deadline_s": lambda has: has.ack_deadline_ms / 1_000,
    "max_attempts": lambda has: has.max_attempts,
    "dead_letter": lambda has: has.dead_letter_stream,
    "ephemeral": lambda has: has.ephemeral,
}
"""What a group keeps from whoever creates it, as it is found in what its leader tells."""


class Consumer:
    """One member.

    Args:
        numbers: of its deliveries' ids. Whoever has its name next goes on with them, so that what
            was given before means nothing then.
    """

    def __init__(self, subscription: Subscription, joined: Joined, numbers: Iterator[int]) -> None:
        self._subscription = subscription
        self._joined = joined
        self.idle_s = joined.idle_s
        self.seen_s = trio.current_time()
        self.requests = 0
        """Under way."""
        self.is_leaving = trio.Event()
        self._polling = trio.Lock()
        self._numbers = numbers
        self._held: dict[str, Delivery] = {}
        self._late: dict[str, Delivery] = {}
        """What it was given and others may have by now, or be done with. Its acknowledgement counts
        where they do not; so it is kept, but as much as may be held at most: the latest of it."""
        self._places: dict[tuple[str, int], str] = {}
        """By partition and offset, under which id it is there."""
        self._partitions: set[str] = set()
        subscription._consumer.on_gone = self._gone

    @property
    def is_idle(self) -> bool:
        return not self.requests and trio.current_time() - self.seen_s >= self.idle_s

    def check(self, name: Name, own: Mapping[str, Any], kept: Mapping[str, Any]) -> None:
        """Whether it is as a later poll asks for; None asks for nothing. Raises `RequestError`
        naming what it has, as programs are told of their groups.

        Args:
            own: what is a member's own.
            kept: what the group keeps.
        """
        for what, wanted in own.items():
            if wanted is not None and wanted != (has := getattr(self._joined, what)):
                raise RequestError(
                    f"consumer {name.consumer!r} has joined with {what} {setting(has)}, this poll "
                    f"asks for {setting(wanted)}",
                    "leave it out, poll as another consumer, or let this one leave before (DELETE)",
                )
        if (options := self._subscription._consumer.group_options) is None:
            return
        for what, wanted in kept.items():
            if wanted is not None and not _same(wanted, has := OF_GROUPS[what](options)):
                raise RequestError(
                    f"group {name.group!r} has {what} {setting(has)}, this poll asks for "
                    f"{setting(wanted)}",
                    "a group keeps the options that it was created with: leave them out, or use "
                    "another group, or delete this one first",
                )

    def held(self, most: int) -> dict[str, Delivery]:
        """What it was given, has not acknowledged, and nobody else has, by its ids, which stay as
        they are: the first of it, as much as an answer may have."""
        found: dict[str, Delivery] = {}
        size = 0
        for number, delivery in itertools.islice(self._held.items(), most):
            if size >= bounds.MAX_ANSWER_BYTES:
                break
            found[number] = delivery
            size += _size_of(delivery)
        return found

    async def poll(self, max_records: int, wait_s: float, taken: dict[str, Delivery]) -> None:
        """Add to `taken` up to so many records, by ids, once there is one or time is up; fewer
        where they are as much as an answer may have. Raises what ended the membership, and
        `HttpError` while another poll is under way."""
        if self._polling.locked():
            raise HttpError(
                409,
                "this consumer is polling already",
                "one request at a time, or another consumer for each task",
            )
        async with self._polling:
            patience_s, size = wait_s, 0
            for _ in range(max_records):
                if size >= bounds.MAX_ANSWER_BYTES:
                    break
                delivery = await self._subscription.poll(patience_s)
                if delivery is None:
                    break
                taken[self._hold(delivery)] = delivery
                size += _size_of(delivery)
                patience_s = 0

    def _hold(self, delivery: Delivery) -> str:
        place = delivery.partition, delivery.offset
        # It comes again because it was given back, or its time was up: the one before is void.
        self._forget(self._places.get(place, ""))
        number = f"{delivery.partition}:{delivery.offset}:{next(self._numbers)}"
        self._held[number], self._places[place] = delivery, number
        self._partitions.add(delivery.partition)
        while len(self._held) > self._most:
            # Leaders do not count it as its own any more.
            self._is_late(next(iter(self._held)))
        return number

    @property
    def _most(self) -> int:
        """As much as leaders let it have, of all partitions that it was given something of."""
        return self._joined.max_in_flight * len(self._partitions)

    def _gone(self, channel: Channel, parcel: int | None, first: int, last: int) -> None:
        """See `Consumer.on_gone` of clients: others are given these, or have them already."""
        for number, each in list(self._held.items()):
            own = each._parcel
            if own.channel is channel and (
                parcel is None or (own.number == parcel and first <= each.offset <= last)
            ):
                self._is_late(number)

    def _is_late(self, number: str) -> None:
        self._late[number] = self._held.pop(number)
        while len(self._late) > self._most:
            self._forget(next(iter(self._late)))

    def _forget(self, number: str) -> None:
        delivery = self._held.pop(number, None) or self._late.pop(number, None)
        if delivery is not None:
            del self._places[delivery.partition, delivery.offset]

    async def settle(
        self, deliveries: Iterable[str], do: Callable[[Delivery], Any], *, ends: bool
    ) -> list[str]:
        """Do something with what it was given; `ends`: it holds them no longer then, so it may also
        be late. Returns what it does not hold, or no longer."""
        unknown = []
        for each in dict.fromkeys(deliveries):
            delivery = self._held.get(each) or (self._late.get(each) if ends else None)
            if delivery is None:
                unknown.append(each)
                continue
            await do(delivery)
            if ends:
                self._forget(each)
        return unknown

    def give_back_unseen(self, deliveries: Mapping[str, Delivery]) -> None:
        """Nobody was told of these, so that the attempts do not count."""
        for number, each in deliveries.items():
            own = each._parcel
            own.channel.send_nack(own.number, [(each.offset, each.offset)], unseen=True)
            self._forget(number)

    async def flush(self) -> None:
        """Raises `HttpError` when some acknowledgements came too late."""
        try:
            await self._subscription.flush()
        except ConnectionLostError as error:
            raise HttpError(409, error.message, "those records are delivered again") from error


def _size_of(delivery: Delivery) -> int:
    record = delivery.record
    return len(told_raw(record)) if record.damage else len(record.value_bytes)


def _same(wanted: Any, has: Any) -> bool:
    """Seconds as far as a group keeps them, in milliseconds."""
    if isinstance(wanted, float):
        return bool(abs(has - wanted) < 0.001)
    return bool(wanted == has)


class _Place:
    """Of a name, from when somebody joins under it until that one has left its group: whoever comes
    next under the name waits for that.

    Attributes:
        consumer: None while it joins.
    """

    def __init__(self) -> None:
        self.consumer: Consumer | None = None
        self._news = trio.Event()

    @property
    def member(self) -> Consumer | None:
        """Unless it joins yet, or is leaving."""
        consumer = self.consumer
        return None if consumer is None or consumer.is_leaving.is_set() else consumer

    async def wait(self) -> None:
        """For the next change."""
        await self._news.wait()

    def changed(self) -> None:
        self._news.set()
        self._news = trio.Event()


class Consumers:
    """Of one door. `run` must be running."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._numbers: OrderedDict[Name, Iterator[int]] = OrderedDict()
        self._nursery: trio.Nursery | None = None
        self._places: dict[Name, _Place] = {}

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    async def open(
        self,
        name: Name,
        joined: Joined,
        subscribe: Callable[[], AbstractAsyncContextManager[Subscription]],
    ) -> Consumer:
        """The member of this name, joined when it is not there, or no longer. Raises what joining
        does."""
        while (known := self._places.get(name)) is not None:
            if known.member is not None:
                return known.member
            await known.wait()
        if len(self._places) >= self._most:
            raise HttpError(
                429,
                f"{self._most} consumers poll at this node, or are leaving",
                "use another node, or let some leave",
                retryable=True,
            )
        assert self._nursery is not None
        place = self._places[name] = _Place()
        opened: Consumer | HadronError = await self._nursery.start(
            self._keep, name, place, joined, subscribe
        )
        if isinstance(opened, HadronError):
            raise opened
        return opened

    def find(self, name: Name) -> Consumer:
        """Raises `NotFoundError` for one that is not here."""
        place = self._places.get(name)
        known = None if place is None else place.member
        if known is None:
            who = f"consumer {name.consumer!r} of group {name.group!r} of stream {name.stream!r}"
            if name in self._numbers:
                raise NotFoundError(
                    f"{who} has left, or was silent for its idle_s: what it had not acknowledged "
                    "is delivered again",
                    "poll under this name to come back; give a larger idle_s for longer work",
                )
            raise NotFoundError(
                f"{who} is unknown at this node: nobody has polled here under this name",
                "poll first, and acknowledge at the node that was polled, as the same consumer",
            )
        return known

    def _numbers_of(self, name: Name) -> Iterator[int]:
        numbers = self._numbers.pop(name, None) or itertools.count(1)
        self._numbers[name] = numbers
        if len(self._numbers) > _NAMES * self._most:
            self._numbers.popitem(last=False)
        return numbers

    async def _keep(
        self,
        name: Name,
        place: _Place,
        joined: Joined,
        subscribe: Callable[[], AbstractAsyncContextManager[Subscription]],
        task_status: trio.TaskStatus[Consumer | HadronError] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """A member's life. Safety rule: its place is its own until it has left its group."""
        try:
            async with subscribe() as subscription:
                consumer = place.consumer = Consumer(subscription, joined, self._numbers_of(name))
                place.changed()
                task_status.started(consumer)
                while not (consumer.is_idle or consumer.is_leaving.is_set()):
                    with trio.move_on_after(consumer.idle_s * _LOOK):
                        await consumer.is_leaving.wait()
                consumer.is_leaving.set()
        except Exception as failure:
            # Also a defect is this member's own: the others, and the node, go on.
            error = failure if isinstance(failure, HadronError) else defect(failure)
            if place.consumer is not None:
                _log.info("consumer %s of group %s: %s", name.consumer, name.group, error)
            else:
                task_status.started(error)
        finally:
            del self._places[name]
            place.changed()
