"""Members' calls: what each still keeps of what it was sent, and when it was last heard of."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from hadron.delivery.members import Member
from hadron.model.batch import StampedBatch
from hadron.model.errors import RequestError
from hadron.model.limits import MAX_IN_FLIGHT, SUBSCRIPTION_BATCH_MEMORY
from hadron.model.ranges import Range
from hadron.model.transactions import TransactionId
from hadron.wire.calls import Call
from hadron.wire.messages import groups_pb2

MemberCall: TypeAlias = Call[groups_pb2.SubscribeRequest, groups_pb2.SubscribeEvent]

if TYPE_CHECKING:
    from hadron.delivery.driver import GroupDriver
    from hadron.delivery.effects import Assignment


_STALE: Final = 64


_MAX_REFUSED: Final = 20_000
"""Refused ranges that wait for a member to ask: clients ask every 1,000 records."""


class DeliveryEvent:
    """The message that says a delivery, filled anew for every one of a group: to make one takes six
    times as long, a quarter of what a delivery cost. `Call.send` is done with it at once."""

    def __init__(self) -> None:
        self._event = groups_pb2.SubscribeEvent()
        self._delivery = self._event.delivery
        self._batch_at = -1

    def fill(
        self, assignment: Assignment, batch: StampedBatch, *, attach: bool
    ) -> groups_pb2.SubscribeEvent:
        """Valid until the next one is filled. `attach`: the batch goes along."""
        delivery = self._delivery
        delivery.delivery = assignment.delivery
        delivery.first_offset = assignment.first
        delivery.last_offset = assignment.last
        delivery.attempt = assignment.attempt
        delivery.ends_batch = assignment.ends_batch
        if batch.base_offset != self._batch_at:
            # What is visible to a leadership at an offset stays the same.
            self._batch_at = batch.base_offset
            info = delivery.batch
            info.base_offset = batch.base_offset
            info.count = batch.count
            info.append_ms = batch.append_ms
            info.ballot.epoch = batch.epoch
            info.ballot.incarnation = batch.incarnation
        delivery.batch.length = len(batch.data) if attach else 0
        return self._event


@dataclass(slots=True)
class MemberSession:
    """A member and its call.

    Attributes:
        attached: the batches that its client still keeps.
        last_heard: monotonic seconds.
        refused: what of its acknowledgements did not count since it last asked.
    """

    driver: GroupDriver
    member: Member
    call: MemberCall
    name: str = ""
    joined: float = 0.0
    last_heard: float = 0.0
    heartbeat_interval_ms: int = 0
    heartbeat_threshold: int = 3
    attached: deque[int] = field(default_factory=deque)
    refused: list[groups_pb2.Range] = field(default_factory=list)

    @property
    def patience_s(self) -> float | None:
        """Silence after which it counts as gone; None for any."""
        if not self.heartbeat_interval_ms:
            return None
        return self.heartbeat_interval_ms * self.heartbeat_threshold / 1_000

    @property
    def label(self) -> str:
        """For errors and logs."""
        return self.name or f"member {self.member.number}"

    def refuse(self, item: groups_pb2.Range) -> None:
        """Some of an acknowledgement did not count. Raises `RequestError` when it never asks."""
        if len(self.refused) >= _MAX_REFUSED:
            raise RequestError(
                f"{len(self.refused)} acknowledgements of {self.label} did not count, and it never "
                "asked",
                "ask for a confirmation with a token every 1,000 records",
            )
        self.refused.append(item)

    def take_refused(self) -> list[groups_pb2.Range]:
        """Of all messages since it last asked: a token stands for all that came before it."""
        refused, self.refused = self.refused, []
        return refused

    def deliver(self, assignment: Assignment, batch: StampedBatch) -> None:
        attach = batch.base_offset not in self.attached
        if attach:
            self.attached.append(batch.base_offset)
            if len(self.attached) > SUBSCRIPTION_BATCH_MEMORY:
                self.attached.popleft()
        event = self.driver.delivery_event.fill(assignment, batch, attach=attach)
        self.call.send(event, (batch.data,) if attach else ())

    def end_batch(self) -> None:
        self.call.send(groups_pb2.SubscribeEvent(batch_end=groups_pb2.SubscribeEvent.BatchEnd()))

    def answer_heartbeat(self) -> None:
        self.call.send(groups_pb2.SubscribeEvent(heartbeat=groups_pb2.SubscribeEvent.Heartbeat()))

    def revoke(self, delivery: int, ranges: tuple[Range, ...], reason: str) -> None:
        """Say that it does not hold these any more."""
        self.call.send(
            groups_pb2.SubscribeEvent(
                revoked=groups_pb2.SubscribeEvent.Revoked(
                    ranges=[
                        groups_pb2.Range(delivery=delivery, first_offset=a, last_offset=b)
                        for a, b in ranges
                    ],
                    reason=reason,
                )
            )
        )

    def tell_conflict(self, delivery: int, found: Range, transaction: TransactionId) -> None:
        """Say that it cannot end these now, and who has them; it holds them for that one."""
        item = groups_pb2.Range(delivery=delivery, first_offset=found[0], last_offset=found[1])
        self.call.send(
            groups_pb2.SubscribeEvent(
                conflict=groups_pb2.SubscribeEvent.Conflict(
                    ranges=[item], transaction=str(transaction)
                )
            )
        )


class Silence:
    """Who has promised to be heard of, and until when; costs nothing per message."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, MemberSession]] = []

    def watch(self, session: MemberSession) -> None:
        if session.patience_s is not None:
            due = session.last_heard + session.patience_s
            heapq.heappush(self._heap, (due, session.member.number, session))

    def tidy(self, members: dict[int, MemberSession]) -> None:
        """Forget those that have left, once they are most: their time may be days away."""
        if len(self._heap) > 2 * len(members) + _STALE:
            self._heap = [
                entry for entry in self._heap if members.get(entry[2].member.number) is entry[2]
            ]
            heapq.heapify(self._heap)

    def next_due(self) -> float | None:
        """When somebody may have been silent for too long."""
        return self._heap[0][0] if self._heap else None

    def broken(self, now: float, members: dict[int, MemberSession]) -> list[MemberSession]:
        """Those that have been silent for too long."""
        found: list[MemberSession] = []
        while self._heap and self._heap[0][0] <= now:
            session = heapq.heappop(self._heap)[2]
            if members.get(session.member.number) is not session:
                continue
            assert session.patience_s is not None
            if session.last_heard + session.patience_s <= now:
                found.append(session)
            else:
                self.watch(session)
        return found


def check_ranges(ranges: Sequence[groups_pb2.Range]) -> None:
    """Raises `RequestError` for what no member says."""
    if len(ranges) > MAX_IN_FLIGHT:
        raise RequestError(
            f"{len(ranges)} ranges in one message are more than {MAX_IN_FLIGHT}",
            "a member holds no more records: send what was acknowledged more often",
        )
    for item in ranges:
        if item.first_offset > item.last_offset:
            raise RequestError(
                f"offsets {item.first_offset} to {item.last_offset} are no range",
                "the first must not be above the last",
            )
