"""Serves consumer groups on the leader: batches in, deliveries out, progress into the log.

One `GroupDriver` per group that has members. Everything on the fast path runs in callbacks: a
batch becomes visible, or an acknowledgement arrives, and deliveries leave in the same turn of the
loop. A task is started only to read batches that are no longer in memory, and to wait for a
delayed redelivery.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from hadron.delivery.machine import Assignment, Group, Member
from hadron.delivery.ranges import Range
from hadron.model.batch import StampedBatch
from hadron.model.errors import (
    HadronError,
    NotFoundError,
    OffsetOutOfRangeError,
    RequestError,
    ShuttingDownError,
)
from hadron.model.limits import SUBSCRIPTION_BATCH_MEMORY
from hadron.partition.controller import Controller
from hadron.partition.visible import STAMPED_BATCH_BYTES, VisibleStreams
from hadron.state.groups import AckRecords, CreateGroup, Progress
from hadron.wire.calls import Call
from hadron.wire.messages import ballot_to, common_pb2, groups_pb2

_log = logging.getLogger(__name__)

_READ_BYTES: Final = 1 << 20
_KEPT_BYTES: Final = 4 << 20
"""Batches that one group keeps at hand; older ones are read again."""

_RANGES_PER_ENTRY: Final = 2_000
"""Ranges acknowledged by one command: about 20 ms of the writer's time when none of them touch."""

_DELIVERIES_PER_TURN: Final = 64
"""Deliveries to one group before others get a turn of the loop."""

MAX_IN_FLIGHT: Final = 100_000

_MAX_OFFSET_DIGITS: Final = 18
"""More do not fit into a table's integer."""


@dataclass(slots=True)
class MemberSession:
    """A member and its call; `attached` are the batches that its client still keeps."""

    driver: GroupDriver
    member: Member
    call: Call
    attached: deque[int] = field(default_factory=deque)


class GroupDriver:
    """One group with its members."""

    def __init__(
        self,
        group_id: int,
        stream_id: int,
        progress: Progress,
        controller: Controller,
        visible: VisibleStreams,
        nursery: trio.Nursery,
        on_idle: Callable[[], None],
    ) -> None:
        """`on_idle` is told when the driver can be forgotten, or must be."""
        self.group_id = group_id
        self.machine = Group(progress.floor, progress.acknowledged)
        self._stream_id = stream_id
        self._controller = controller
        self._visible = visible
        self._nursery = nursery
        self._on_idle = on_idle
        self._closed = False
        self._sessions: dict[int, MemberSession] = {}
        self._batches: list[StampedBatch] = []
        self._reading = False
        self._timer_at = float("inf")
        self._timer_scope = trio.CancelScope()
        self._pumping_later = False
        self._unlogged: list[Range] = []
        self._logging = False
        self._tokens: list[tuple[Call, int, list[groups_pb2.Range]]] = []
        self._unwatch = visible.watch(stream_id, self.pump)

    # --- members --------------------------------------------------------------------------------

    def join(self, call: Call, max_in_flight: int) -> MemberSession:
        member = self.machine.join(max_in_flight, lambda: call.writable)
        session = MemberSession(self, member, call)
        self._sessions[member.number] = session
        call.on_writable = self.pump
        call.send(
            groups_pb2.SubscribeEvent(
                opened=groups_pb2.SubscribeEvent.Opened(
                    ballot=ballot_to(self._controller.ballot), floor=self.machine.floor
                )
            )
        )
        self.pump()
        return session

    def leave(self, session: MemberSession) -> None:
        if self._sessions.pop(session.member.number, None) is not None:
            self.machine.leave(session.member.number, trio.current_time())
            self.pump()
            self._tell_when_idle()

    @property
    def members(self) -> int:
        return len(self._sessions)

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def is_idle(self) -> bool:
        """Nobody is here and nothing is on its way: the driver can be forgotten."""
        return not self._sessions and not self._logging and not self._unlogged

    def _tell_when_idle(self) -> None:
        if self.is_idle and not self._closed:
            self._on_idle()

    def close(self, reason: HadronError | None = None) -> None:
        """Serve no more; members that are left are told why."""
        if self._closed:
            return
        self._closed = True
        self._unwatch()
        self._timer_scope.cancel()
        sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            if reason is not None:
                session.call.fail(reason)

    def _give_up(self, reason: HadronError) -> None:
        """What this driver knows is worth nothing any more: its members join again, and the next
        driver begins with what is committed."""
        _log.error("group %d is served anew: %s", self.group_id, reason)
        self.close(reason)
        self._on_idle()

    # --- deliveries -----------------------------------------------------------------------------

    def pump(self) -> None:
        """Deliver what can be delivered now."""
        for _ in range(_DELIVERIES_PER_TURN):
            if self._closed:
                return
            now = trio.current_time()
            first, end = self._visible.bounds(self._stream_id)
            self.machine.skip_below(first)
            wanted = self.machine.next_wanted(end, now)
            if wanted is None:
                if self.machine.cursor >= end:
                    self._batches.clear()
                self._arm_timer(now)
                return
            batch = self._batch_at(wanted)
            if batch is None:
                self._read(wanted)
                return
            assignment = self.machine.assign(batch.next_offset, end, now)
            if assignment is None:
                return
            self._send(assignment, batch)
        if not self._pumping_later:
            self._pumping_later = True
            self._nursery.start_soon(self._pump_later)

    async def _pump_later(self) -> None:
        await trio.lowlevel.checkpoint()
        self._pumping_later = False
        self.pump()

    def _batch_at(self, offset: int) -> StampedBatch | None:
        index = bisect_right(self._batches, offset, key=lambda batch: batch.base_offset) - 1
        if index >= 0 and offset < self._batches[index].next_offset:
            return self._batches[index]
        recent = self._visible.recent(self._stream_id, offset, 1)
        return recent[0] if recent else None

    def _read(self, offset: int) -> None:
        if not self._reading:
            self._reading = True
            self._nursery.start_soon(self._read_task, offset)

    async def _read_task(self, offset: int) -> None:
        try:
            batches = await self._visible.read(self._stream_id, offset, _READ_BYTES)
        except HadronError as error:
            self._give_up(error)
            return
        finally:
            self._reading = False
        self._keep(batches)
        self.pump()

    def _keep(self, batches: list[StampedBatch]) -> None:
        """Keep these at hand, for what is delivered next, and of the others what there is room
        for: were the newest let go for older ones, the same would be read again and again."""
        new = {batch.base_offset: batch for batch in batches}
        size = sum(map(_footprint, batches))
        for known in reversed(self._batches):
            size += _footprint(known)
            if size > _KEPT_BYTES:
                break
            new.setdefault(known.base_offset, known)
        self._batches = [new[base_offset] for base_offset in sorted(new)]

    def _send(self, assignment: Assignment, batch: StampedBatch) -> None:
        session = self._sessions[assignment.member]
        attach = batch.base_offset not in session.attached
        if attach:
            session.attached.append(batch.base_offset)
            if len(session.attached) > SUBSCRIPTION_BATCH_MEMORY:
                session.attached.popleft()
        event = groups_pb2.SubscribeEvent(
            delivery=groups_pb2.SubscribeEvent.Delivery(
                delivery=assignment.delivery,
                first_offset=assignment.first,
                last_offset=assignment.last,
                attempt=assignment.attempt,
                batch=common_pb2.BatchInfo(
                    base_offset=batch.base_offset,
                    count=batch.count,
                    append_ms=batch.append_ms,
                    ballot=common_pb2.Ballot(
                        epoch=batch.epoch, incarnation=batch.incarnation
                    ),
                    length=len(batch.data) if attach else 0,
                ),
            )
        )
        session.call.send(event, (batch.data,) if attach else ())

    def _arm_timer(self, now: float) -> None:
        due = self.machine.next_due()
        if due is None or due <= now or due >= self._timer_at:
            return
        self._timer_scope.cancel()
        self._timer_at, self._timer_scope = due, trio.CancelScope()
        self._nursery.start_soon(self._timer, due, self._timer_scope)

    async def _timer(self, due: float, scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep_until(due)
            self._timer_at = float("inf")
            self.pump()

    # --- acknowledgements -----------------------------------------------------------------------

    def acknowledge(self, session: MemberSession, message: groups_pb2.SubscribeRequest.Ack) -> None:
        refused: list[groups_pb2.Range] = []
        _check_ranges(message.ranges)
        for item in message.ranges:
            counted = self.machine.acknowledge(
                session.member.number, item.delivery, item.first_offset, item.last_offset
            )
            if sum(last - first + 1 for first, last in counted) < (
                item.last_offset - item.first_offset + 1
            ):
                refused.append(item)
            self._unlogged.extend(counted)
        if message.token:
            self._tokens.append((session.call, message.token, refused))
        self._log_progress()
        self.pump()

    def refuse(self, session: MemberSession, message: groups_pb2.SubscribeRequest.Nack) -> None:
        _check_ranges(message.ranges)
        not_before = trio.current_time() + message.delay_ms / 1000
        for item in message.ranges:
            self.machine.refuse(
                session.member.number, item.delivery, item.first_offset, item.last_offset,
                not_before=not_before,
            )
        self.pump()

    def _log_progress(self) -> None:
        """One command at a time per group: what arrives meanwhile goes into the next one."""
        if self._logging:
            return
        ranges = _melt(self._unlogged)
        ranges, self._unlogged = ranges[:_RANGES_PER_ENTRY], ranges[_RANGES_PER_ENTRY:]
        tokens: list[tuple[Call, int, list[groups_pb2.Range]]] = []
        if not self._unlogged:
            tokens, self._tokens = self._tokens, []
        if not ranges:
            _answer(tokens)
            return
        self._logging = True

        def done(floor: Any, error: HadronError | None) -> None:
            self._logging = False
            if error is not None:
                self._give_up(error)
                return
            self.machine.raise_floor(floor)
            _answer(tokens)
            if self._unlogged or self._tokens:
                self._log_progress()
            self._tell_when_idle()

        self._controller.submit(AckRecords(self.group_id, tuple(ranges)), done=done)


def _answer(tokens: list[tuple[Call, int, list[groups_pb2.Range]]]) -> None:
    for call, token, refused in tokens:
        call.send(
            groups_pb2.SubscribeEvent(
                acked=groups_pb2.SubscribeEvent.Acked(token=token, refused=refused)
            )
        )


def _check_ranges(ranges: Iterable[groups_pb2.Range]) -> None:
    for item in ranges:
        if item.first_offset > item.last_offset:
            raise RequestError(
                f"offsets {item.first_offset} to {item.last_offset} are no range",
                "the first must not be above the last",
            )


def _footprint(batch: StampedBatch) -> int:
    """Bytes of memory that a batch takes, about."""
    return len(batch.data) + STAMPED_BATCH_BYTES


def _melt(ranges: list[Range]) -> list[Range]:
    """Join ranges that touch; acknowledgements of single records mostly come in order."""
    melted: list[Range] = []
    for first, last in sorted(ranges):
        if melted and first <= melted[-1][1] + 1:
            melted[-1] = (melted[-1][0], max(last, melted[-1][1]))
        else:
            melted.append((first, last))
    return melted


class Groups:
    """All groups of a leadership that have members."""

    def __init__(self, controller: Controller, visible: VisibleStreams) -> None:
        self._controller = controller
        self._visible = visible
        self._drivers: dict[tuple[int, str], GroupDriver] = {}
        self._joining: Counter[tuple[int, str]] = Counter()
        self._nursery: trio.Nursery | None = None
        visible.on_gone(self._end_stream)

    async def run(self) -> None:
        """Must be running for groups to be served."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await trio.sleep_forever()
        finally:
            # Calls that end from here on must not start anything any more. Members must hear of
            # it here: this may end before whoever knows a better reason has a word.
            self.stop(ShuttingDownError("this node does not serve the group any more"))

    async def subscribe(
        self, call: Call, stream_id: int, name: str, start: str, max_in_flight: int
    ) -> tuple[GroupDriver, MemberSession]:
        """Make the caller a member; the group is created when it does not exist.

        Raises `RequestError` for a bad start or window.
        """
        if not 1 <= max_in_flight <= MAX_IN_FLIGHT:
            raise RequestError(f"max_in_flight is {max_in_flight}, it may be 1 to {MAX_IN_FLIGHT}")
        self._start(stream_id, start)
        key = stream_id, name
        self._joining[key] += 1
        try:
            progress = await self._create(stream_id, name, start)
            driver = self._drivers.get(key)
            if driver is None:
                driver = self._drivers[key] = self._new_driver(key, progress)
            return driver, driver.join(call, max_in_flight)
        finally:
            self._joining[key] -= 1
            self._forget_if_idle(key)

    async def _create(self, stream_id: int, name: str, start: str) -> Progress:
        while True:
            floor = self._start(stream_id, start)
            try:
                progress = await self._controller.execute(CreateGroup(stream_id, name, floor))
            except OffsetOutOfRangeError:
                # What was the earliest offset may have been dropped on the way.
                if self._start(stream_id, start) == floor:
                    raise
            else:
                assert isinstance(progress, Progress)
                return progress

    def _new_driver(self, key: tuple[int, str], progress: Progress) -> GroupDriver:
        """Nobody served the group since `progress` was read, or its driver would still be here."""
        assert self._nursery is not None
        return GroupDriver(
            progress.group_id, key[0], progress, self._controller, self._visible, self._nursery,
            on_idle=lambda: self._forget_if_idle(key),
        )

    def _forget_if_idle(self, key: tuple[int, str]) -> None:
        driver = self._drivers.get(key)
        if driver is not None and driver.is_closed:
            del self._drivers[key]
        elif driver is not None and driver.is_idle and not self._joining[key]:
            driver.close()
            del self._drivers[key]
        if not self._joining[key]:
            del self._joining[key]

    def _start(self, stream_id: int, start: str) -> int:
        limits = self._visible.bounds(stream_id)
        if start in ("", "earliest"):
            return limits.first_offset
        if start == "latest":
            return limits.next_offset
        if start.isascii() and start.isdecimal() and len(start) <= _MAX_OFFSET_DIGITS:
            return int(start)
        raise RequestError(
            f"a group cannot start at {start!r}", "use earliest, latest or an offset"
        )

    def leave(self, session: MemberSession) -> None:
        session.driver.leave(session)

    def live(self, stream_id: int, name: str) -> GroupDriver | None:
        """The driver of a group that has members."""
        return self._drivers.get((stream_id, name))

    def _end_stream(self, stream_id: int) -> None:
        """A stream was deleted: its groups went with it."""
        for key in [key for key in self._drivers if key[0] == stream_id]:
            self._drivers.pop(key).close(
                NotFoundError(f"the stream of consumer group {key[1]!r} was deleted")
            )

    def stop(self, reason: HadronError) -> None:
        """End all subscriptions."""
        drivers, self._drivers = list(self._drivers.values()), {}
        for driver in drivers:
            driver.close(reason)
