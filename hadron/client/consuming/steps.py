"""Consume, transform, publish: a subscription's records in steps, each one a transaction.

    async for step in subscription.transactions(max_records=1_000):
        await step.publish_many("out", [transform(record) for record in step.records])

A step's records are of one partition, whose leader drives its transaction: where the outputs go
there as well, it is one entry of that log. The end of the loop's body commits it. While it commits,
the body works on the next one, which is committed once that is known to be done.

Safety rule: steps are committed in order, and none behind one that was not. When a commit fails,
the next step, whatever its body has done by then, is rolled back with it, and the records of both
are given back. A body does not hear that its step was lost meanwhile: what it still publishes goes
nowhere, and it gets these records again. What is known of nobody needs no answer here: the records
were acknowledged with their outputs, or are delivered again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from math import inf
from typing import Any, Final

import anyio
import msgspec

from hadron.client.consuming.channel import Channel, Parcel
from hadron.client.consuming.consumer import Consumer
from hadron.client.consuming.deliveries import Source
from hadron.client.terms.arguments import seconds_of, whole_of
from hadron.client.terms.results import Receipt
from hadron.client.transactions.calls import TransactionCalls
from hadron.client.transactions.contents import Claim, Claimable, Claimed, Published, PublishedMany
from hadron.client.transactions.settings import TransactionSettings
from hadron.client.transactions.work import State, Work
from hadron.model.backoff import Backoff
from hadron.model.errors import (
    CommitUnknownError,
    ConnectionLostError,
    HadronError,
    RequestError,
    TransactionExpiredError,
)
from hadron.model.limits import MAX_BATCH_WAIT_MS, MAX_IN_FLIGHT
from hadron.model.record import Headers, Record
from hadron.model.words import counted

_log = logging.getLogger(__name__)

DEFAULT_MAX_RECORDS: Final = 1_000

_PATIENCE: Final = 3
"""So many steps in a row may fail for reasons of their own, as when others have got their records
meanwhile, or the body is slower than a transaction may be, before the loop does."""

_LEAVE_S: Final = 5.0
"""For a commit under way at leaving: after that its records are delivered again, or not."""


class Step:
    """Some records of one partition, and what is done with them: a transaction.

    Attributes:
        records: in order.
        attempt: 1 when the group is given all of them for the first time.
    """

    def __init__(
        self,
        work: Work,
        source: Source,
        turn: Callable[[Step], Awaitable[None]],
        parcels: list[Parcel],
        records: list[Record],
    ) -> None:
        """`turn`: returns once it may be committed."""
        self.records = records
        self._turn = turn
        self._source = source
        self.attempt = max(parcel.attempt for parcel in parcels)
        self._work = work
        self._parcels = parcels
        self._is_claimed = False

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        first = self.records[0]
        where = f"{first.stream}/{first.partition}/{first.offset}"
        return f"<Step of {counted(len(self), 'record')} from {where} on, {self._work}>"

    @property
    def partition(self) -> str:
        return self.records[0].partition

    @property
    def receipts(self) -> list[Receipt]:
        """Of what it has published, once it is committed; as `Transaction.receipts`."""
        return self._work.contents.receipts()

    async def publish(
        self,
        stream: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        type: str = "",
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        id: str = "",
        partition: str | None = None,
        timestamp: datetime | None = None,
        expect_offset: int | None = None,
        expect_key_offset: int | None = None,
    ) -> Published:
        """Add a record to the step's transaction; see `Transaction.publish`. When that was rolled
        back meanwhile, as its driver was lost, this goes nowhere: the records come again."""
        return await self._work.publish(
            stream,
            value,
            key,
            type,
            timestamp_ms,
            headers,
            id,
            partition,
            timestamp,
            expect_offset,
            expect_key_offset,
        )

    async def publish_many(
        self, stream: str, values: Iterable[Any], *, partition: str | None = None
    ) -> PublishedMany:
        """Add many records: the fast way; see `Transaction.publish_many`."""
        return await self._work.publish_many(stream, values, partition)

    async def ack(self, delivery: Claimable) -> None:
        """Acknowledge a delivery of another subscription with it; its own records are anyway."""
        self._work.ack(delivery)

    async def commit(self) -> None:
        """Commit now, before the body goes on, or leaves the loop. Raises why it is not committed,
        which may be that the step before it was not; the records are delivered again then."""
        self._work.is_settled = True
        await self._turn(self)
        await self._commit()

    async def rollback(self) -> None:
        """Do nothing of it; its records are delivered again, as after an attempt that failed.
        Raises what `Transaction.rollback` raises."""
        self._work.give_up()

    async def _commit(self) -> None:
        """With its records acknowledged."""
        work = self._work
        if not self._is_claimed and work.state is State.OPEN:
            self._is_claimed = True
            work.acknowledge(self._claim())
        await work.commit()

    def _claim(self) -> Claim:
        return Claim(
            self._source.session,
            self.partition,
            self._source.stream,
            self._source.group,
            [
                Claimed(parcel.ballot, parcel.number, first, last)
                for parcel in self._parcels
                for first, last in parcel.ranges()
            ],
        )


class Steps:
    """`async for step in subscription.transactions()`."""

    def __init__(
        self,
        consumer: Consumer,
        calls: TransactionCalls,
        settings: TransactionSettings,
        max_records: int,
        max_wait_s: float,
    ) -> None:
        self._consumer = consumer
        self._calls = calls
        self._settings = settings
        self._max_records = min(max_records, consumer.max_in_flight)
        self._max_wait_s = max_wait_s
        self._arrived: dict[Channel, deque[Parcel]] = {}
        self._step: Step | None = None
        """Whose body runs."""
        self._committing: tuple[Step, anyio.Event] | None = None
        self._failures = 0
        """In a row."""
        self._failed: HadronError | None = None
        """Why the last commit came to nothing, until that was dealt with."""
        self._backoff = Backoff(consumer.source.session.ports.random)
        self._has_begun = False

    def __repr__(self) -> str:
        return f"<Steps of {self._consumer}>"

    def __aiter__(self) -> Steps:
        return self

    async def __anext__(self) -> Step:
        step = await self._next()
        if step is None:
            raise StopAsyncIteration
        return step

    async def _next(self) -> Step | None:
        """End the step whose body has ended, and give the next one; None once the subscription is
        closed. Raises why a step cannot be committed, if not just now."""
        if self._consumer.steps is not self:
            await self._begin()
        are_settled = await self._settle()
        # Not before: who cancels this asks again, and then it is still to be ended.
        step, self._step = self._step, None
        if step is not None:
            if not are_settled:
                # It is behind one that was not committed.
                step._work.rollback()
            self._end(step)
        if self._failed is not None:
            await self._recover()
        while (found := await self._gather()) is not None:
            if self._failed is None:
                parcels, records = found
                settings = msgspec.structs.replace(self._settings, driver=parcels[0].partition)
                work = self._calls.begin(settings)
                work.is_redone = True
                source = self._consumer.source
                self._step = Step(work, source, self._turn, parcels, records)
                return self._step
            # It has failed while nothing else had arrived.
            _give_back(found[0])
            await self._settle()
            await self._recover()
        await self._settle()
        return None

    async def _begin(self) -> None:
        """Where the loop before this one was left: steps are in order over both."""
        if self._has_begun:
            raise RequestError(
                "another loop over transactions of this subscription has begun since",
                "have a subscription for each loop",
            )
        self._has_begun = True
        before = self._consumer.steps
        self._consumer.take_from_steps()
        self._consumer.steps = self
        self._consumer.on_other_way, self._consumer.on_leave = self._release, self._leave
        if isinstance(before, Steps):
            await before._settle()
            self._failed, before._failed = before._failed, None

    def _release(self) -> list[Parcel]:
        """See `Consumer.on_other_way`."""
        step = self._step
        if step is not None and step._work.state is not State.COMMITTED:
            step._work.rollback(
                RequestError(
                    "records were asked of the subscription in another way before the step's end",
                    "take them from the loop's steps only, and others from another subscription",
                )
            )
            _give_back(step._parcels)
            # Should its body go on after all, they are not given back again.
            step._parcels = []
        arrived = [each for parcels in self._arrived.values() for each in parcels]
        self._arrived = {}
        return sorted(arrived, key=lambda each: each.since)

    def _end(self, step: Step) -> None:
        """Its body has ended."""
        work = step._work
        if self._consumer.source.session.closed is not None:
            # No task would commit it any more.
            work.rollback()
        if work.state is State.OPEN:
            done = anyio.Event()
            self._committing = step, done
            self._consumer.source.session.background.start(self._commit, step, done)
        elif work.state is not State.COMMITTED:
            if work.error is not None and not work.is_settled:
                self._failed = work.error
            _give_back(step._parcels, is_attempt=work.is_settled or _is_own_fault(work.error))

    async def _commit(self, step: Step, done: anyio.Event) -> None:
        try:
            await step._commit()
            self._failures = 0
            self._backoff.reset()
        except HadronError as error:
            self._failed = error
            _give_back(step._parcels, is_attempt=_is_own_fault(error))
        finally:
            done.set()

    async def _turn(self, step: Step) -> None:
        """Until the step before it is committed. Raises why it is not."""
        if not await self._settle():
            error = self._failed
            assert error is not None
            step._work.rollback(
                ConnectionLostError(
                    f"the step before this one was not committed: {error.message}",
                    "its records, and these, are delivered again",
                )
            )

    async def _settle(self) -> bool:
        """Until the step that is being committed has its outcome; whether all up to it have."""
        committing = self._committing
        if committing is not None:
            await committing[1].wait()
            if self._committing is committing:
                self._committing = None
        return self._failed is None

    async def _recover(self) -> None:
        """From a commit that has failed: its records come again. Raises where that is no use."""
        error, self._failed = self._failed, None
        assert error is not None
        is_cured = error.retryable and not _is_own_fault(error)
        if not (is_cured or isinstance(error, CommitUnknownError)):
            self._failures += 1
            if self._failures >= _PATIENCE:
                raise error
        _log.warning("a step is done again: %s", error)
        await anyio.sleep(self._backoff.next_s())

    async def _leave(self, waits: bool) -> None:
        """The member leaves: what is not committed is delivered again."""
        step, self._step = self._step, None
        if step is not None:
            step._work.rollback()
        if waits:
            with anyio.move_on_after(_LEAVE_S):
                await self._settle()

    # --- records --------------------------------------------------------------------------------

    async def _gather(self) -> tuple[list[Parcel], list[Record]] | None:
        """Records of one partition; None once the subscription is closed."""
        self._consumer.take_rest_back()
        until_s: float | None = None
        while True:
            channel = self._oldest()
            if channel is not None:
                if until_s is None:
                    until_s = anyio.current_time() + self._max_wait_s
                has_all = sum(each.count() for each in self._arrived[channel]) >= self._max_records
                if has_all or anyio.current_time() >= until_s:
                    found = self._open(channel)
                    if found[1]:
                        return found
                    continue
            parcel = None
            with anyio.move_on_at(inf if channel is None else until_s or 0.0) as scope:
                parcel = await self._consumer.next_parcel()
            if parcel is not None:
                self._arrived.setdefault(parcel.channel, deque()).append(parcel)
            elif not scope.cancelled_caught:
                return None

    def _oldest(self) -> Channel | None:
        """Which call has brought the oldest of those records that are here, and are still ours."""
        while (parcel := self._consumer.next_parcel_now()) is not None:
            self._arrived.setdefault(parcel.channel, deque()).append(parcel)
        found: Channel | None = None
        for channel, parcels in list(self._arrived.items()):
            while parcels and parcels[0].is_empty:
                # Others have them, or they were given back before their deadline.
                parcels.popleft()
            if not parcels or not self._consumer.holds(channel):
                del self._arrived[channel]
            elif found is None or parcels[0].since < self._arrived[found][0].since:
                found = channel
        return found

    def _open(self, channel: Channel) -> tuple[list[Parcel], list[Record]]:
        waiting = self._arrived[channel]
        parcels: list[Parcel] = []
        records: list[Record] = []
        while waiting and len(records) < self._max_records:
            parcel = waiting[0]
            if parcel.is_empty:
                waiting.popleft()
                continue
            head, some = parcel.open_first(self._max_records - len(records))
            if head is parcel:
                waiting.popleft()
            parcels.append(head)
            records += some
        return parcels, records


def _is_own_fault(error: HadronError | None) -> bool:
    """The body was too slow, and will be again: its program must hear of it, and so must the
    group, which counts attempts."""
    return isinstance(error, TransactionExpiredError)


def _give_back(parcels: Iterable[Parcel], *, is_attempt: bool = False) -> None:
    for parcel in parcels:
        parcel.channel.send_nack(parcel.number, parcel.ranges(), unseen=not is_attempt)


def checked(max_records: int, max_wait_s: float) -> tuple[int, float]:
    """Raises `RequestError` for what makes no sense."""
    return (
        whole_of("max_records", max_records, 1, MAX_IN_FLIGHT),
        seconds_of("max_wait_s", max_wait_s, 0, MAX_BATCH_WAIT_MS // 1_000),
    )
