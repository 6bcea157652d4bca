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
        self._places: dict[tuple[str, int], str] = {}
        """By partition and offset, under which id it is held."""

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
        """What it was given and has not acknowledged, by its ids, which stay as they are: the first
        of it, as much as an answer may have."""
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
        self._held.pop(self._places.get(place, ""), None)
        number = f"{delivery.partition}:{delivery.offset}:{next(self._numbers)}"
        self._held[number], self._places[place] = delivery, number
        return number

    async def settle(
        self, deliveries: Iterable[str], do: Callable[[Delivery], Any], *, ends: bool
    ) -> list[str]:
        """Do something with what it was given; `ends`: it holds them no longer then. Returns what
        it does not hold, or no longer."""
        unknown = []
        for each in dict.fromkeys(deliveries):
            delivery = self._held.get(each)
            if delivery is None:
                unknown.append(each)
                continue
            await do(delivery)
            if ends:
                del self._held[each]
                self._places.pop((delivery.partition, delivery.offset), None)
        return unknown

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


class Consumers:
    """Of one door. `run` must be running."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._numbers: OrderedDict[Name, Iterator[int]] = OrderedDict()
        self._nursery: trio.Nursery | None = None
        self._open: dict[Name, Consumer] = {}
        self._opening: dict[Name, trio.Lock] = {}

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
        """The member of this name, joined when it is not there. Raises what joining does."""
        known = self._open.get(name)
        if known is not None:
            return known
        if len(self._opening) >= self._most and name not in self._opening:
            raise HttpError(
                429,
                f"{self._most} consumers poll at this node",
                "use another node, or let some leave",
                retryable=True,
            )
        async with self._opening.setdefault(name, trio.Lock()):
            known = self._open.get(name)
            if known is None:
                assert self._nursery is not None
                opened: list[Consumer | HadronError] = []
                await self._nursery.start(self._keep, name, joined, subscribe, opened)
                if isinstance(opened[0], HadronError):
                    raise opened[0]
                known = opened[0]
        return known

    def find(self, name: Name) -> Consumer:
        """Raises `NotFoundError` for one that is not here."""
        known = self._open.get(name)
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
        joined: Joined,
        subscribe: Callable[[], AbstractAsyncContextManager[Subscription]],
        opened: list[Consumer | HadronError],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """A member's life."""
        try:
            async with subscribe() as subscription:
                consumer = self._open[name] = Consumer(subscription, joined, self._numbers_of(name))
                opened.append(consumer)
                task_status.started()
                while not (consumer.is_idle or consumer.is_leaving.is_set()):
                    with trio.move_on_after(consumer.idle_s * _LOOK):
                        await consumer.is_leaving.wait()
                del self._open[name]
        except Exception as failure:
            # Also a defect is this member's own: the others, and the node, go on.
            error = failure if isinstance(failure, HadronError) else defect(failure)
            if opened:
                _log.info("consumer %s of group %s: %s", name.consumer, name.group, error)
            else:
                opened.append(error)
                task_status.started()
        finally:
            self._open.pop(name, None)
            self._opening.pop(name, None)
