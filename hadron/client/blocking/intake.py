"""What is behind a blocking subscription: parcels cross threads a few at a time, acks in groups.

Any thread may take deliveries, each of which is given to one of them, acknowledge them, and close
the subscription.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from itertools import repeat
from time import monotonic
from typing import Any, Final, TypeVar

import anyio

from hadron.client.blocking.bases import OpenedBase
from hadron.client.blocking.faces.deliveries import SyncDelivery, SyncDeliveryBatch
from hadron.client.blocking.faces.steps import SyncStep
from hadron.client.blocking.portal import Portal
from hadron.client.consuming.channel import Parcel
from hadron.client.consuming.deliveries import (
    AnyDelivery,
    AnyDeliveryBatch,
    Source,
    delay_ms,
    nack_reason,
)
from hadron.client.consuming.steps import Step, Steps
from hadron.client.consuming.subscription import Subscription, closed_error
from hadron.client.terms.arguments import patience_of
from hadron.client.terms.ending import Ending
from hadron.model.errors import ClosedError, ForkedError
from hadron.model.ranges import Range, runs
from hadron.model.record import Record

T = TypeVar("T")

_ACK_DELAY_S: Final = 0.0005
"""How long acks gather before a task is sent to fetch them: a hop costs 100 µs, ten acks one."""


_Part = tuple[Parcel, Sequence[Range]]
"""A parcel, and ranges of its offsets."""


class Intake:
    """What is open of a blocking subscription; an iterator over its deliveries."""

    def __init__(self, portal: Portal, subscription: Subscription) -> None:
        self._portal = portal
        self._subscription = subscription
        self._consumer = subscription._consumer
        self._acks: deque[tuple[Parcel, int, int, bool]] = deque()
        self._scheduled = False
        self._ready: deque[tuple[Parcel, list[Record]]] = deque()
        self._parcel: Parcel | None = None
        self._deliveries: Iterator[SyncDelivery] = iter(())
        self._handed: list[Parcel] = []
        """A batch that is on its way to a thread, which may have been interrupted by Ctrl-C: then
        it is still here when that, or another one, asks for more."""
        self._taking = threading.RLock()
        """Of who fetches what comes next: two at a time would lose what the other has begun. A
        signal's handler may ask for more in the middle of that."""
        self._consumer.on_look = self._give_old_back

    def __str__(self) -> str:
        return f"to {self._consumer}"

    @property
    def source(self) -> Source:
        return self._consumer.source

    # --- from any thread ------------------------------------------------------------------------

    def __iter__(self) -> Intake:
        return self

    def __next__(self) -> SyncDelivery:
        while True:
            if self._parcel is not None and self._consumer.holds(self._parcel.channel):
                for delivery in self._deliveries:
                    return delivery
            with self._taking:
                if (begun := self._begun()) is not None:
                    return begun
                taken = self._next_parcel()
                if taken is None:
                    raise StopIteration
                self._begin(*taken)

    def _begun(self) -> SyncDelivery | None:
        """The next of a parcel that another thread has begun meanwhile."""
        if self._parcel is not None and self._consumer.holds(self._parcel.channel):
            return next(self._deliveries, None)
        return None

    @contextmanager
    def _taking_until(self, until_s: float | None) -> Iterator[bool]:
        """Whether this thread's turn comes in time, on the clock `time.monotonic`."""
        left_s = _left_s(until_s)
        patience_s = -1 if left_s is None else min(left_s, threading.TIMEOUT_MAX)
        is_mine = self._taking.acquire(timeout=patience_s)
        try:
            yield is_mine
        finally:
            if is_mine:
                self._taking.release()

    def poll(self, timeout_s: float | None) -> SyncDelivery | None:
        """See `Subscription.poll`."""
        until_s = None if timeout_s is None else monotonic() + timeout_s
        while True:
            if self._parcel is not None and self._consumer.holds(self._parcel.channel):
                for delivery in self._deliveries:
                    return delivery
            with self._taking_until(until_s) as is_mine:
                if not is_mine:
                    return None
                if (begun := self._begun()) is not None:
                    return begun
                taken = self._ready_parcel()
                if taken is not None:
                    self._begin(*taken)
                    continue
                received = self._portal.call(self._receive, _left_s(until_s))
                if received is None:
                    return None
                if not received:
                    raise closed_error()

    def poll_batch(self, timeout_s: float | None) -> SyncDeliveryBatch | None:
        """See `Subscription.poll_batch`."""
        until_s = None if timeout_s is None else monotonic() + timeout_s
        with self._taking_until(until_s) as is_mine:
            taken = self._portal.call(self._next_batch, _left_s(until_s)) if is_mine else None
            if taken is None:
                return None
            if not taken:
                raise closed_error()
            return self._got(taken)

    def next_batch(self) -> SyncDeliveryBatch | None:
        """The next one; None when the subscription is closed, or the client."""
        with self._taking:
            taken = self._unless_closed(self._next_batch)
            return self._got(taken) if taken else None

    def _got(self, taken: tuple[list[Parcel], list[Record]]) -> SyncDeliveryBatch:
        batch = SyncDeliveryBatch(self, *taken)
        self._handed = []
        return batch

    def steps(self, **settings: Any) -> Steps:
        """See `Subscription.transactions`."""
        return self._portal.call(  # type: ignore[no-any-return]
            partial(self._subscription.transactions, **settings)
        )

    def next_step(self, steps: Steps) -> SyncStep | None:
        """The next one; None when the subscription is closed, or the client."""
        with self._taking:
            step = self._unless_closed(partial(self._next_step, steps))
        return None if step is None else SyncStep(self._portal, step)

    def _begin(self, parcel: Parcel, records: list[Record]) -> None:
        self._parcel = parcel
        self._deliveries = map(SyncDelivery, repeat(self), repeat(parcel), records)

    def flush(self, timeout_s: float | None) -> None:
        """See `Subscription.flush`."""
        self._portal.call(self._flush, patience_of(timeout_s))

    # --- acknowledging, from any thread (`deliveries.AckIntake`) ---------------------------------

    def ack(self, delivery: AnyDelivery[Any]) -> None:
        """Collect an ack."""
        parcel, offset, again = delivery._parcel, delivery.record.offset, delivery._is_acked
        delivery._is_acked = True
        self._acks.append((parcel, offset, offset, again))
        if not (self._scheduled and parcel.channel.alive):
            self._acked(parcel, again)

    def ack_batch(self, batch: AnyDeliveryBatch[Any]) -> None:
        again, batch._is_acked = batch._is_acked, True
        for parcel, ranges in _parts(batch):
            for first, last in ranges:
                self._acks.append((parcel, first, last, again))
                self._acked(parcel, again)

    def _acked(self, parcel: Parcel, again: bool) -> None:
        """Have it sent; `again`: it was not the first time."""
        if not parcel.channel.alive:
            self._consumer.ack_too_late(again)
        if not self._scheduled:
            self._scheduled = True
            try:
                self._portal.post(self._send_soon)
            except ForkedError:
                raise
            except ClosedError:
                self._consumer.ack_too_late(again)
            except BaseException:
                # Ctrl-C, too: the next one has them sent.
                self._scheduled = False
                raise

    def nack(
        self, delivery: AnyDelivery[Any], delay_s: float | timedelta | None, reason: str
    ) -> None:
        self._give_back(_part(delivery), delay_s, reason, delivery._is_acked)

    def nack_batch(
        self, batch: AnyDeliveryBatch[Any], delay_s: float | timedelta | None, reason: str
    ) -> None:
        self._give_back(_parts(batch), delay_s, reason, batch._is_acked)

    def _give_back(
        self, parts: Sequence[_Part], delay_s: float | timedelta | None, reason: str, is_acked: bool
    ) -> None:
        """Nack ranges, unless they were acknowledged."""
        after_ms, reason = delay_ms(delay_s), nack_reason(reason)
        if is_acked:
            self._consumer.nack_too_late()
            return

        async def nack() -> None:
            await self._send()
            for parcel, ranges in parts:
                parcel.channel.send_nack(parcel.number, ranges, after_ms, reason)

        self._portal.call(nack)

    def extend(self, delivery: AnyDelivery[Any]) -> None:
        self._extend(_part(delivery))

    def extend_batch(self, batch: AnyDeliveryBatch[Any]) -> None:
        self._extend(_parts(batch))

    def _extend(self, parts: Sequence[_Part]) -> None:
        """Start the ack deadline of ranges again."""

        async def extend() -> None:
            for parcel, ranges in parts:
                parcel.channel.send_extend(parcel.number, ranges)

        self._portal.call(extend)

    # --- its end --------------------------------------------------------------------------------

    def finish(self, ending: Ending) -> None:
        """Send the acks, give back what nobody has seen, and leave the group."""
        with suppress(ClosedError):
            self._portal.call(self._leave, ending)

    def forked(self) -> None:
        """In a child process: the records are its parent's, and so is the turn."""
        self._taking = threading.RLock()
        self._scheduled = False
        self._deliveries = iter(())
        self._ready.clear()
        self._acks.clear()

    def _next_parcel(self) -> tuple[Parcel, list[Record]] | None:
        while True:
            taken = self._ready_parcel()
            if taken is not None or not self._unless_closed(self._receive):
                return taken

    def _ready_parcel(self) -> tuple[Parcel, list[Record]] | None:
        while self._ready:
            parcel, records = self._ready.popleft()
            if self._consumer.holds(parcel.channel):
                return parcel, records
        return None

    def _unless_closed(self, function: Callable[..., Any]) -> Any:
        """What it gives in the loop; None when the client was closed, which ends loops."""
        try:
            return self._portal.call(function)
        except ForkedError:
            raise
        except ClosedError:
            return None

    # --- in the event loop's thread -------------------------------------------------------------

    async def _receive(self, timeout_s: float | None = None) -> bool | None:
        """Fetch all that has arrived, at least one; False once the subscription is closed, None
        when nothing has come in time."""
        self._collect()
        self._take_back_handed()
        self._consumer.take_from_steps()
        parcel = None
        with anyio.move_on_after(timeout_s) as scope:
            parcel = await self._consumer.next_parcel()
        if parcel is None:
            return None if scope.cancelled_caught else False
        while parcel is not None:
            self._ready.append((parcel, parcel.open()))
            parcel = self._consumer.next_parcel_now()
        return True

    async def _next_batch(
        self, timeout_s: float | None = None
    ) -> tuple[list[Parcel], list[Record]] | tuple[()] | None:
        """The next batch; nothing in it once the subscription is closed, None when none has come
        in time."""
        self._collect()
        self._take_left_back()
        self._take_back_handed()
        with anyio.move_on_after(timeout_s):
            taken = await self._consumer.next_batch()
            if taken is None:
                return ()
            self._handed = taken[0]
            return taken
        return None

    async def _next_step(self, steps: Steps) -> Step | None:
        """The next one, of what was fetched for iterating one by one first: steps are made of what
        the consumer has."""
        self._collect()
        self._take_back_handed()
        self._take_left_back()
        return await steps._next()

    def _take_left_back(self) -> None:
        """What was fetched for iterating one by one, which the user has left for another way."""
        while self._ready:
            parcel, records = self._ready.pop()
            self._consumer.take_back(parcel, [each.offset for each in records])
        left, self._deliveries = [each.offset for each in self._deliveries], iter(())
        if self._parcel is not None:
            self._consumer.take_back(self._parcel, left)

    def _take_back_handed(self) -> None:
        """What a thread has not got comes next."""
        while self._handed:
            parcel = self._handed.pop()
            offsets = [n for first, last in parcel.ranges() for n in range(first, last + 1)]
            self._consumer.take_back(parcel, offsets)

    def _collect(self) -> None:
        while self._acks:
            parcel, first, last, again = self._acks.popleft()
            parcel.channel.acknowledge(parcel, first, last)
            self._consumer.acknowledged(parcel.channel, again)

    async def _send(self) -> None:
        self._collect()
        self._consumer.send_acks()

    async def _send_soon(self) -> None:
        await anyio.sleep(_ACK_DELAY_S)
        self._scheduled = False
        await self._send()

    async def _flush(self, timeout_s: float | None) -> None:
        self._collect()
        await self._consumer.flush(timeout_s)

    def _give_old_back(self, before: float, now: float) -> None:
        """See `Consumer.give_old_back`."""
        self._collect()
        if self._parcel is not None and self._parcel.is_lying(before, now):
            self._give_rest_back()
        with suppress(IndexError):  # another thread was quicker
            while self._ready[0][0].is_lying(before, now):
                self._give_ready_back()

    def _give_rest_back(self) -> None:
        # Away first: another thread may be taking them, and gets what comes before these.
        deliveries, self._deliveries = self._deliveries, iter(())
        left = list(deliveries)
        if left and self._parcel is not None:
            offsets = runs(delivery.offset for delivery in left)
            self._parcel.channel.send_nack(self._parcel.number, offsets, unseen=True)

    def _give_ready_back(self) -> None:
        parcel, records = self._ready.popleft()
        offsets = runs(record.offset for record in records)
        parcel.channel.send_nack(parcel.number, offsets, unseen=True)

    async def _leave(self, ending: Ending) -> None:
        if self._consumer.is_closed:
            return
        self._collect()
        self._consumer.pause()
        self._give_rest_back()
        with suppress(IndexError):  # another thread was quicker
            while self._ready:
                self._give_ready_back()
        with anyio.move_on_after(ending.timeout_s):
            await self._consumer.leave(waits=ending.waits)


class SyncSteps:
    """`for step in subscription.transactions()`."""

    def __init__(self, intake: Intake, **settings: Any) -> None:
        self._intake = intake
        self._steps = intake.steps(**settings)

    def __repr__(self) -> str:
        return f"<SyncSteps {self._intake}>"

    def __iter__(self) -> SyncSteps:
        return self

    def __next__(self) -> SyncStep:
        step = self._intake.next_step(self._steps)
        if step is None:
            raise StopIteration
        return step


class SyncDeliveryBatches:
    """`for batch in subscription.batches()`."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    def __repr__(self) -> str:
        return f"<SyncDeliveryBatches {self._intake}>"

    def __iter__(self) -> SyncDeliveryBatches:
        return self

    def __next__(self) -> SyncDeliveryBatch:
        batch = self._intake.next_batch()
        if batch is None:
            raise StopIteration
        return batch


class SubscriptionBase(OpenedBase[Intake]):
    """A member of a group. Made by `SyncClient.subscribe`; used in a `with` block or, as well,
    without one and closed with `close`, with its client, or when the program ends. Any thread may
    take deliveries, each of which is given to one of them, acknowledge them, and close it; a loop
    over transactions is one thread's. Loops end when the subscription or the client is closed; what
    is acknowledged after that is delivered again.
    """

    _core = Intake

    def close(self) -> None:
        """Send the acks and leave the group; from any thread. A second time does nothing. Loops
        over the subscription end; what is acknowledged after this is delivered again."""
        self._lazy.close()

    def __iter__(self) -> Iterator[SyncDelivery]:
        return self._intake() or iter(())

    def __next__(self) -> SyncDelivery:
        return next(iter(self))

    def _batches(self) -> Iterator[SyncDeliveryBatch]:
        intake = self._intake()
        return SyncDeliveryBatches(intake) if intake is not None else iter(())

    def _steps(self, **settings: Any) -> Iterator[SyncStep]:
        intake = self._intake()
        return SyncSteps(intake, **settings) if intake is not None else iter(())

    def _within(
        self, timeout_s: float | None, poll: Callable[[Intake, float | None], T | None]
    ) -> T | None:
        """What `poll` gives; None when opening takes longer, which goes on then."""
        timeout_s = patience_of(timeout_s)
        until_s = None if timeout_s is None else monotonic() + timeout_s
        intake = self._lazy.get_within(timeout_s)
        return None if intake is None else poll(intake, _left_s(until_s))

    def _intake(self) -> Intake | None:
        """None when it is closed, or its client was just closed by somebody: loops end. Of a client
        that was closed before, there is nothing to loop over."""
        was_closed = self._hold.is_closed
        try:
            return self._lazy.get()
        except ForkedError:
            raise
        except ClosedError:
            if was_closed and not self._lazy.is_closed:
                raise
            return None


def _left_s(until_s: float | None) -> float | None:
    return None if until_s is None else max(0.0, until_s - monotonic())


def _part(delivery: AnyDelivery[Any]) -> Sequence[_Part]:
    offset = delivery.record.offset
    return [(delivery._parcel, ((offset, offset),))]


def _parts(batch: AnyDeliveryBatch[Any]) -> Sequence[_Part]:
    return [(parcel, parcel.ranges()) for parcel in batch._parcels]
