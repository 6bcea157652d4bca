"""Serves consumer groups on the leader: batches in, deliveries out, progress into the log.

One `GroupDriver` per group that has members. Everything on the fast path runs in callbacks: a
batch becomes visible, or an acknowledgement arrives, and deliveries leave in the same turn of the
loop. A task is started only to read batches that are no longer in memory, and to wait for a
delayed redelivery.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from hadron.delivery.machine import Assignment, Group, Member
from hadron.delivery.ranges import Range
from hadron.model.batch import StampedBatch
from hadron.model.errors import HadronError, RequestError
from hadron.model.limits import SUBSCRIPTION_BATCH_MEMORY
from hadron.partition.controller import Controller
from hadron.partition.visible import VisibleStreams
from hadron.state.groups import AckRecords, CreateGroup, Progress
from hadron.wire.connection import Call
from hadron.wire.messages import ballot_to, common_pb2, groups_pb2

_log = logging.getLogger(__name__)

_READ_BYTES: Final = 1 << 20
_KEPT_BYTES: Final = 4 << 20
"""Batches that one group keeps at hand; older ones are read again."""

_DELIVERIES_PER_TURN: Final = 64
"""Deliveries to one group before others get a turn of the loop."""

MAX_IN_FLIGHT: Final = 100_000

_MAX_OFFSET_DIGITS: Final = 18
"""More do not fit into a table's integer."""


@dataclass(slots=True)
class MemberSession:
    """A member and its call; `attached` are the batches that its client still keeps."""

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
    ) -> None:
        self.group_id = group_id
        self.machine = Group(progress.floor, progress.acknowledged)
        self._stream_id = stream_id
        self._controller = controller
        self._visible = visible
        self._nursery = nursery
        self._sessions: dict[int, MemberSession] = {}
        self._batches: list[StampedBatch] = []
        self._batch_bytes = 0
        self._reading = False
        self._timer_at: float | None = None
        self._pumping_later = False
        self._unlogged: list[Range] = []
        self._logging = False
        self._tokens: list[tuple[Call, int, list[groups_pb2.Range]]] = []
        self._unwatch = visible.watch(stream_id, self.pump)

    # --- members --------------------------------------------------------------------------------

    def join(self, call: Call, max_in_flight: int) -> MemberSession:
        member = self.machine.join(max_in_flight, lambda: call.writable)
        session = MemberSession(member, call)
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

    @property
    def members(self) -> int:
        return len(self._sessions)

    @property
    def is_idle(self) -> bool:
        """Nobody is here and nothing is on its way: the driver can be forgotten."""
        return not self._sessions and not self._logging and not self._unlogged

    def close(self, reason: HadronError | None = None) -> None:
        self._unwatch()
        for session in list(self._sessions.values()):
            if reason is not None:
                session.call.fail(reason)
        self._sessions.clear()

    # --- deliveries -----------------------------------------------------------------------------

    def pump(self) -> None:
        """Deliver what can be delivered now."""
        for _ in range(_DELIVERIES_PER_TURN):
            now = trio.current_time()
            end = self._visible.bounds(self._stream_id).next_offset
            wanted = self.machine.next_wanted(end, now)
            if wanted is None:
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
            _log.error("group %d cannot read offset %d: %s", self.group_id, offset, error)
            for session in list(self._sessions.values()):
                session.call.fail(error)
            return
        finally:
            self._reading = False
        for batch in batches:
            self._keep(batch)
        self.pump()

    def _keep(self, batch: StampedBatch) -> None:
        index = bisect_right(self._batches, batch.base_offset, key=lambda known: known.base_offset)
        if index and self._batches[index - 1].base_offset == batch.base_offset:
            return
        self._batches.insert(index, batch)
        self._batch_bytes += len(batch.data)
        while self._batch_bytes > _KEPT_BYTES and len(self._batches) > 1:
            # The lowest is the one that the cursor has left behind.
            victim = 0 if self._batches[0].base_offset != batch.base_offset else -1
            self._batch_bytes -= len(self._batches.pop(victim).data)

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
        if due is None or due <= now or self._timer_at is not None:
            return
        self._timer_at = due
        self._nursery.start_soon(self._timer, due)

    async def _timer(self, due: float) -> None:
        await trio.sleep_until(due)
        self._timer_at = None
        self.pump()

    # --- acknowledgements -----------------------------------------------------------------------

    def acknowledge(self, session: MemberSession, message: groups_pb2.SubscribeRequest.Ack) -> None:
        refused: list[groups_pb2.Range] = []
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
        ranges, self._unlogged = self._unlogged, []
        tokens, self._tokens = self._tokens, []
        if not ranges:
            _answer(tokens)
            return
        self._logging = True

        def done(floor: Any, error: HadronError | None) -> None:
            self._logging = False
            if error is not None:
                for call, _, _ in tokens:
                    call.fail(error)
                return
            self.machine.raise_floor(floor)
            _answer(tokens)
            if self._unlogged or self._tokens:
                self._log_progress()

        self._controller.submit(
            AckRecords(self.group_id, tuple(_melt(ranges))), done=done
        )


def _answer(tokens: list[tuple[Call, int, list[groups_pb2.Range]]]) -> None:
    for call, token, refused in tokens:
        call.send(
            groups_pb2.SubscribeEvent(
                acked=groups_pb2.SubscribeEvent.Acked(token=token, refused=refused)
            )
        )


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
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Must be running for groups to be served."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await trio.sleep_forever()

    async def subscribe(
        self, call: Call, stream_id: int, name: str, start: str, max_in_flight: int
    ) -> tuple[GroupDriver, MemberSession]:
        """Make the caller a member; the group is created when it does not exist.

        Raises `RequestError` for a bad start or window.
        """
        if not 1 <= max_in_flight <= MAX_IN_FLIGHT:
            raise RequestError(f"max_in_flight is {max_in_flight}, it may be 1 to {MAX_IN_FLIGHT}")
        floor = self._start(stream_id, start)
        progress: Progress = await self._controller.execute(CreateGroup(stream_id, name, floor))
        driver = self._drivers.get((stream_id, name))
        if driver is None:
            # Progress may have moved on since the command was judged; nobody else serves it.
            assert self._nursery is not None
            driver = GroupDriver(
                progress.group_id, stream_id, progress, self._controller, self._visible,
                self._nursery,
            )
            self._drivers[stream_id, name] = driver
        return driver, driver.join(call, max_in_flight)

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

    def leave(self, stream_id: int, name: str, session: MemberSession) -> None:
        driver = self._drivers.get((stream_id, name))
        if driver is not None:
            driver.leave(session)
            if driver.is_idle:
                driver.close()
                del self._drivers[stream_id, name]

    def live(self, stream_id: int, name: str) -> GroupDriver | None:
        """The driver of a group that has members."""
        return self._drivers.get((stream_id, name))

    def stop(self, reason: HadronError) -> None:
        """End all subscriptions."""
        for driver in self._drivers.values():
            driver.close(reason)
        self._drivers.clear()
