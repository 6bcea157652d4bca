"""What a member of a group does: the inside of `subscription.Subscription` and of the blocking one,
by itself so that what users see of those is what they may call.

Acks cost no wait: they are collected and sent by a task that runs at the next turn of the event
loop, when the loop over deliveries runs dry, or when many have gathered.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Final

import anyio

from hadron.client.connecting import forks
from hadron.client.connecting.session import Session
from hadron.client.consuming.channel import Channel, Parcel
from hadron.client.consuming.deliveries import AckSender, Delivery, Source
from hadron.client.consuming.membership import Membership, flush_all
from hadron.client.consuming.settings import MemberSettings
from hadron.client.schema.catalog import Catalog
from hadron.client.terms.pickling import Unpicklable
from hadron.client.transactions.contents import StreamName
from hadron.model.errors import ClosedError, HadronError, NotFoundError, PeerError
from hadron.model.ranges import runs
from hadron.model.record import Record, record_type
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.wire.messages import groups_pb2

_log = logging.getLogger(__name__)

ACKS_PER_MESSAGE: Final = 128
"""Acks that go out without waiting for the next turn, so that the leader can send more records
while the user works on those that are here."""


_BEAT: Final = 0.75
"""Of the promised interval: so that a late one is not a missed one."""

_OTHERS_S: Final = 3.0
"""For partitions that do not answer, once a member is known at another one: its records wait for
the program to enter the block. A region that is cut off counts as silent only after 15 s."""

_STUCK_S: Final = 10.0
"""A program that has got all that it may have at once, has acknowledged none of it, and has waited
for so long for more, has probably forgotten to."""

_LEAVE_S: Final = 5.0
"""For acks at leaving, while a partition is away: what is lost then is delivered again."""


_LIES: Final = 3 / 8
_LOOK: Final = 1 / 8
_NO_DEADLINE_S: Final = 60.0
"""Of the ack deadline: after so much of it what the program has not been handed is given back, and
so often it is looked for. An acknowledgement that has begun the deadline again is noticed a look
later at most; so all is on its way back after five eighths."""


class Consumer(Unpicklable, AckSender):
    """A member of a group at some partitions; an iterator over `Delivery`s.

    What ends the membership for good is raised by the iteration; it ends when the member leaves,
    or the client is closed.
    """

    def __init__(
        self,
        session: Session,
        catalog: Catalog,
        stream: SchemaObject,
        partitions: Iterable[str],
        settings: MemberSettings,
        *,
        follows: bool,
        open_timeout_s: float,
    ) -> None:
        """`follows`: also partitions that are added later."""
        self._session = session
        self._clock = session.ports.clock.monotonic_s
        self._catalog = catalog
        self._stream = stream
        self._settings = settings
        self._open_timeout_s = open_timeout_s
        self._follows = follows
        self._memberships: dict[str, Membership] = {}
        self._parcels: deque[Parcel] = deque()
        self._news: anyio.Event | None = None
        self._ack_news: anyio.Event | None = None
        self._schema_news: anyio.Event | None = None
        self._deliveries: Iterator[Delivery] = iter(())
        self._parcel: Parcel | None = None
        self._scopes: list[anyio.CancelScope] = []
        self._closed = False
        self._paused = False
        self._told_late = False
        self._told_nack = False
        self._told_stuck = False
        self._dry_since_s = math.inf
        """Since when the program asks for more, and nothing is there."""
        self._said = 0
        """To leaders, besides what goes together."""
        self._record_type = record_type(settings.value_deserializer)
        self.on_look: Callable[[float, float], None] = lambda *_: None
        """Of who has taken parcels to hand them out itself; see `give_old_back`."""
        self.on_gone: Callable[[Channel, int | None, int, int], None] = lambda *_: None
        """Of who keeps what it was handed: the leader has taken these offsets of a parcel back, or
        (None) all that the channel has brought."""
        self.steps: object | None = None
        """The loop over steps that was begun last: it takes parcels, and makes transactions."""
        self.on_other_way: Callable[[], list[Parcel]] | None = None
        """Of that loop: it was left, so its step is rolled back; what it has fetched besides, the
        oldest first."""
        self.on_leave: Callable[[bool], Awaitable[None]] | None = None
        """Of that loop; see `leave`."""
        for name in partitions:
            self._make(name)

    def _make(self, partition: str, *, added: bool = False) -> Membership:
        opening = self._settings.opening(self._stream, partition, added=added)
        member = self._memberships[partition] = Membership(
            self._session,
            opening,
            on_parcel=self._arrived,
            on_revoked=self._revoked,
            on_ended=lambda channel: self.on_gone(channel, None, 0, -1),
            on_change=self._notify,
            clock=self._session.ports.clock,
        )
        if self._paused:
            member.pause()
        return member

    def __str__(self) -> str:
        # A list first: another thread may print what the loop's thread is changing.
        joined = [name for name, each in list(self._memberships.items()) if each.is_open]
        state = "closed" if self._closed else f"joined at {', '.join(joined) or 'none'}"
        return f"{self._stream.name!r}, group {self._settings.group!r}, {state}"

    @property
    def source(self) -> Source:
        stream = self._stream
        return Source(
            self._session,
            StreamName(stream.name, stream.id, stream.metadata_index),
            self._settings.group,
        )

    @property
    def max_in_flight(self) -> int:
        return self._settings.max_in_flight

    @property
    def group_options(self) -> groups_pb2.GroupOptions | None:
        """What the group has, every field set; None until a leader has told."""
        found = (each.options for each in self._memberships.values())
        return next((options for options in found if options is not None), None)

    # --- iterating ------------------------------------------------------------------------------

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> Delivery:
        parcel = self._parcel
        if parcel is not None and self._clock() <= parcel.channel.held_until:
            for delivery in self._deliveries:
                return delivery
        self.take_from_steps()
        while True:
            parcel = await self.next_parcel()
            if parcel is None:
                raise StopAsyncIteration
            self._begin(parcel, parcel.open())
            for delivery in self._deliveries:
                return delivery

    def _begin(self, parcel: Parcel, records: Iterable[Record]) -> None:
        self._parcel = parcel
        self._deliveries = map(Delivery, repeat(self), repeat(parcel), records)

    async def next_batch(self) -> tuple[list[Parcel], list[Record]] | None:
        """The parts of the next batch and their records; None once the subscription is closed.
        What an iteration has left comes first."""
        self.take_from_steps()
        self.take_rest_back()
        while True:
            parcel = await self.next_parcel()
            if parcel is None:
                return None
            if self._settings.batch_size:
                parcels, records = self._open_batch(parcel)
                if records:
                    return parcels, records
            elif parcel.is_empty:
                parcel.open()
            else:
                # Where some in the middle are not handed out, the others are several batches.
                first, last = parcel.ranges()[0]
                head, records = parcel.open_first(last - first + 1)
                if head is not parcel:
                    self._parcels.appendleft(parcel)
                return [head], records

    def _open_batch(self, parcel: Parcel) -> tuple[list[Parcel], list[Record]]:
        """That begins with this parcel. All others are there: they arrived one after the other."""
        parcels, records = [parcel], parcel.open()
        while (
            not parcel.ends_batch
            and self._parcels
            and self._parcels[0].channel is parcels[0].channel
        ):
            parcel = self._parcels.popleft()
            parcels.append(parcel)
            records += parcel.open()
        return parcels, records

    def take_back(self, parcel: Parcel, left: Sequence[int]) -> None:
        """The records at these offsets were not handed out after all: they are next."""
        if left and self.holds(parcel.channel):
            rest = parcel.channel.put_back(parcel, left)
            if rest is not None:
                self._parcels.appendleft(rest)

    def take_rest_back(self) -> None:
        """What an iteration has left comes next."""
        left, self._deliveries = [each.offset for each in self._deliveries], iter(())
        if self._parcel is not None:
            self.take_back(self._parcel, left)

    def take_from_steps(self) -> None:
        """What a loop over steps has left comes next."""
        if self.on_other_way is not None:
            self._parcels.extendleft(reversed(self.on_other_way()))

    async def next_parcel(self) -> Parcel | None:
        """The next parcel; None once the subscription is closed.

        Raises what ended the membership for good.
        """
        self.check_process()
        while True:
            parcel = self.next_parcel_now()
            if parcel is not None:
                return parcel
            if self._closed:
                self._session.check_end()
                return None
            self._check_failure()
            self.send_acks()
            self._dry_since_s = min(self._dry_since_s, self._clock())
            await self._wait_news()

    def next_parcel_now(self) -> Parcel | None:
        """The next parcel if one has arrived, or what is left of one."""
        while self._parcels:
            parcel = self._parcels.popleft()
            if self.holds(parcel.channel):
                self._dry_since_s = math.inf
                return parcel
        return None

    def holds(self, channel: Channel) -> bool:
        """Whether what the call has brought is this member's still, as far as it can know."""
        return self._clock() <= channel.held_until

    # --- acknowledging --------------------------------------------------------------------------

    def acknowledged(self, channel: Channel, again: bool) -> bool:
        if not channel.alive:
            self.ack_too_late(again)
            return self.said()
        if channel.acks.count >= ACKS_PER_MESSAGE:
            channel.send_acks()
            return True
        if self._ack_news is not None:
            self._ack_news.set()
            self._ack_news = None
        return False

    def said(self) -> bool:
        self._said += 1
        return self._said % ACKS_PER_MESSAGE == 0

    def check_process(self) -> None:
        """Raises `ForkedError` in a child process."""
        self._session.check_process()

    def ack_too_late(self, again: bool) -> None:
        """Say once that an acknowledgement came after the subscription was closed. Not an error:
        whoever closes it while others work, as at a program's end, expects that of the last
        records. Nor is it told of what was acknowledged before, and is now again."""
        self.check_process()
        if self._closed and not self._told_late and not again:
            self._told_late = True
            _log.warning(
                "records of %s were acknowledged after the subscription had been closed: they are "
                "delivered again",
                self._stream.name,
            )

    def nack_too_late(self) -> None:
        """Say once that a record was given back after it had been acknowledged. Not an error: an
        acknowledgement is the last line of many a block, and whatever ends the block gives back."""
        self.check_process()
        if not self._told_nack:
            self._told_nack = True
            _log.warning(
                "records of %s were given back after they had been acknowledged: they are not "
                "delivered again",
                self._stream.name,
            )

    def send_acks(self) -> None:
        """Send what is acknowledged now."""
        for membership in self._memberships.values():
            if membership.is_open and membership.channel is not None:
                membership.channel.send_acks()

    async def flush(self, timeout_s: float | None = None) -> None:
        """Until every ack so far is committed; while a partition is away, until it is back.

        Raises `ConnectionLostError` when some came too late, because others had got the records
        meanwhile and have not acknowledged them either, or when it takes longer than `timeout_s`
        (default: the client's `request_timeout_s`). Those records are delivered again.
        """
        limit_s = self._session.request_timeout_s if timeout_s is None else timeout_s
        try:
            await flush_all(list(self._memberships.values()), limit_s)
        finally:
            self._session.check_open()

    async def _send_acks_soon(self) -> None:
        while True:
            self._ack_news = event = anyio.Event()
            await event.wait()
            self.send_acks()

    async def _beat(self) -> None:
        while True:
            await anyio.sleep(self._settings.heartbeat_s * _BEAT)
            for membership in list(self._memberships.values()):
                membership.beat(self._settings.heartbeat_misses)

    # --- arrivals -------------------------------------------------------------------------------

    def _arrived(self, parcel: Parcel) -> None:
        parcel.batch.record_type = self._record_type
        self._parcels.append(parcel)
        self._notify()

    def _revoked(self, channel: Channel, number: int, first: int, last: int) -> None:
        """Others have these records now: what the user has not seen of them is not handed out."""
        self.on_gone(channel, number, first, last)
        parcel = self._parcel
        if parcel is not None and parcel.channel is channel and parcel.number == number:
            left = [delivery.record for delivery in self._deliveries]
            self._begin(parcel, [each for each in left if not first <= each.offset <= last])

    def _notify(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None

    async def _wait_news(self) -> None:
        if self._news is None:
            self._news = anyio.Event()
        await self._news.wait()

    def _check_failure(self) -> None:
        for membership in self._memberships.values():
            failure = membership.failure
            if failure is not None and failure is not self._session.closed:
                raise type(failure)(failure.message, failure.hint, retryable=failure.retryable)

    # --- partitions that are added --------------------------------------------------------------

    async def _follow(self) -> None:
        """Join partitions that are added to the stream."""
        stop = self._catalog.listen(self._schema_changed)
        try:
            while True:
                self._schema_news = event = anyio.Event()
                try:
                    stream = await self._catalog.stream(self._stream.name)
                except (NotFoundError, ClosedError):
                    # Deleted: the leaders end the memberships, and say so. Or the program leaves.
                    return
                except HadronError as error:
                    _log.warning("partitions added to %s: %s", self._stream.name, error)
                    stream = self._stream
                if stream.id != self._stream.id:
                    return
                self._join_added(stream)
                await event.wait()
        finally:
            stop()

    def _schema_changed(self) -> None:
        if self._schema_news is not None:
            self._schema_news.set()

    def _join_added(self, stream: SchemaObject) -> None:
        self._stream = stream
        assert isinstance(stream.spec, StreamSpec)
        for name in stream.spec.partitions:
            if name not in self._memberships and not self._closed:
                _log.info("partition %s was added to %s", name, stream.name)
                member = self._make(name, added=True)
                self._scopes.append(self._session.background.start(member.reconnecting.run))

    # --- life -----------------------------------------------------------------------------------

    async def join(self) -> None:
        """Until the member is known to the leaders. Raises `PeerError` when none answers."""
        forks.watch(self)
        self._session.on_close[self._close] = None
        start = self._session.background.start
        members = list(self._memberships.values())
        self._scopes = [start(self._send_acks_soon)]
        self._scopes += [start(member.reconnecting.run) for member in members]
        if self._settings.heartbeat_s:
            self._scopes.append(start(self._beat))
        if self._follows:
            self._scopes.append(start(self._follow))
        try:
            await self._wait_open(members)
        except BaseException:
            self._close()
            raise
        self._scopes.append(start(self._give_back_in_time))

    async def _wait_open(self, members: list[Membership]) -> None:
        """Until the member is known everywhere; partitions that are down are joined later."""
        waiting = members
        with anyio.move_on_after(self._open_timeout_s) as scope:
            while waiting:
                await self._wait_news()
                self._check_failure()
                if self._closed:
                    self._session.check_open()
                    raise ClosedError("the subscription was closed while it was opened")
                waiting = [member for member in members if not member.is_open]
                if len(waiting) == len(members):
                    continue
                if all(member.trouble for member in waiting):
                    # Some are there, the others are known not to be: records are not kept waiting.
                    break
                scope.deadline = min(scope.deadline, anyio.current_time() + _OTHERS_S)
        if len(waiting) == len(members):
            trouble = waiting[0].trouble or "no answer"
            raise PeerError(
                f"no partition of {waiting[0].stream} could be joined within "
                f"{self._open_timeout_s:g} s: {trouble}",
                "are the partitions' leaders up? see `hadron status`",
            )
        for member in waiting:
            reason = member.trouble or "no answer yet"
            if not member.outage.told:
                member.outage.told = True
                _log.warning("%s is joined later: %s", member.partition, reason)

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def leave(self, *, waits: bool = True) -> None:
        """Send the acks, give back the rest, and leave the group; a second time does nothing.

        Args:
            waits: for the acks to be committed; not in a block that was cancelled.
        """
        if self._closed:
            return
        try:
            self.give_back_unseen()
            if self.on_leave is not None:
                await self.on_leave(waits)
            if waits:
                await self.flush(min(_LEAVE_S, self._session.request_timeout_s))
        except HadronError as trouble:
            _log.warning("leaving a group: %s", trouble)
        finally:
            self._close()

    def pause(self) -> None:
        """Send the acks, and get nothing more; also where the member has not joined yet, or joins
        again."""
        self._paused = True
        for membership in self._memberships.values():
            membership.pause()
        self.send_acks()

    def give_back_unseen(self) -> None:
        """Send the acks, and give back what nobody has looked at; those attempts do not count."""
        self.pause()
        left, self._deliveries = [each.offset for each in self._deliveries], iter(())
        if left and self._parcel is not None:
            self._parcel.channel.send_nack(self._parcel.number, runs(left), unseen=True)
        for membership in self._memberships.values():
            if membership.is_open and membership.channel is not None:
                membership.channel.give_unread_back()
        self._parcels.clear()

    async def _give_back_in_time(self) -> None:
        """What a program that is busy has not been handed, before its deadline: else the group
        would count attempts that nobody has made, and write records to the dead letters that no
        program has seen."""
        while True:
            # Told anew whenever it joins again: the group may have got one, or another one.
            told = [m.options for m in self._memberships.values() if m.options is not None]
            deadlines = [each.ack_deadline_ms for each in told if each.ack_deadline_ms]
            deadline_s = min(deadlines, default=0) / 1_000
            await anyio.sleep((deadline_s or _NO_DEADLINE_S) * _LOOK)
            if deadline_s:
                self.give_old_back(self._clock() - deadline_s * _LIES)
            for membership in self._memberships.values():
                if membership.channel is not None:
                    membership.channel.acks.look()
                    self._look_whether_stuck(membership.channel)

    def _look_whether_stuck(self, channel: Channel) -> None:
        """Say once that the program waits for records, and they for its acknowledgements."""
        waits_s = self._clock() - self._dry_since_s
        holds_all = not channel.is_answered and channel.brought == self.max_in_flight
        if holds_all and waits_s >= _STUCK_S and not self._told_stuck:
            self._told_stuck = True
            _log.warning(
                "this member of %s has got all that it may have at once of %s (max_in_flight=%d), "
                "and acknowledged nothing: it gets more once it calls `.ack()` on some",
                self._settings.group,
                self._stream.name,
                self.max_in_flight,
            )

    def give_old_back(self, before: float) -> None:
        """Give back what came before then, and has not been handed out."""
        now = self._clock()
        self.on_look(before, now)
        if self._parcel is not None and self._parcel.is_lying(before, now):
            left, self._deliveries = [each.offset for each in self._deliveries], iter(())
            if left:
                self._parcel.channel.send_nack(self._parcel.number, runs(left), unseen=True)
        for membership in self._memberships.values():
            if membership.is_open and membership.channel is not None:
                membership.channel.give_old_back(before, now)

    def forked(self) -> None:
        """In a child process: the records here are its parent's."""
        self._closed = True
        self._deliveries = iter(())
        self._parcels.clear()
        for membership in self._memberships.values():
            if membership.channel is not None:
                membership.channel.alive = False

    def _close(self) -> None:
        self._closed = True
        self._session.on_close.pop(self._close, None)
        for scope in self._scopes:
            scope.cancel()
        for membership in self._memberships.values():
            membership.close()
        self._parcels.clear()
        self._deliveries = iter(())
        self._notify()
