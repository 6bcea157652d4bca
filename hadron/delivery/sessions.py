"""Who has joined: what each still keeps of what it was sent, and when it was last heard of."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hadron.delivery.members import Member
from hadron.delivery.port import DeliveryRange, MemberSink
from hadron.model.batch import StampedBatch
from hadron.model.errors import DeadlineExceededError, RequestError
from hadron.model.limits import SUBSCRIPTION_BATCH_MEMORY
from hadron.model.ranges import Range

if TYPE_CHECKING:
    from hadron.delivery.driver import GroupDriver
    from hadron.delivery.effects import Assignment


_STALE: Final = 64

_AGAIN_S: Final = 0.05
"""Who is not listened to for long is looked at so often: its silence does not grow meanwhile."""


_MAX_REFUSED: Final = 20_000
"""Refused ranges that wait for a member to ask: clients ask every 1,000 records."""

_MAX_PARTS: Final = 1_000
"""Of one acknowledgement; of more, all between the first and the last one counts as refused."""


@dataclass(slots=True)
class MemberSession:
    """A member, and where it is told.

    Attributes:
        attached: the batches that its client still keeps.
        last_heard: monotonic seconds; `heard` then.
        deaf: seconds for which nobody had listened to it by then.
        refused: what of its acknowledgements did not count since it last asked.
    """

    driver: GroupDriver
    member: Member
    sink: MemberSink
    name: str = ""
    joined: float = 0.0
    last_heard: float = 0.0
    heartbeat_interval_ms: int = 0
    heartbeat_threshold: int = 3
    attached: deque[int] = field(default_factory=deque)
    refused: list[DeliveryRange] = field(default_factory=list)
    deaf: float = 0.0

    def heard(self, now: float) -> None:
        self.last_heard, self.deaf = now, self.sink.deaf_s

    def silent_s(self, now: float) -> float:
        """For how long it has said nothing to who listened."""
        return now - self.last_heard - (self.sink.deaf_s - self.deaf)

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

    def silence(self, now: float) -> DeadlineExceededError:
        """What it is told that was silent for too long."""
        return DeadlineExceededError(
            f"{self.label} of group {self.driver.origin.group!r} sent nothing for "
            f"{self.silent_s(now):.1f} s, it had promised to every "
            f"{self.heartbeat_interval_ms} ms",
            "join again; is the process or the network stopped for so long?",
        )

    def note_refused(self, item: DeliveryRange, parts: Sequence[Range]) -> None:
        """These parts of an acknowledgement did not count. Raises `RequestError` when it never
        asks."""
        if len(self.refused) >= _MAX_REFUSED:
            raise RequestError(
                f"{len(self.refused)} acknowledgements of {self.label} did not count, and it never "
                "asked",
                "ask for a confirmation every 1,000 records",
            )
        if len(parts) > _MAX_PARTS:
            parts = [(parts[0][0], parts[-1][1])]
        self.refused += [DeliveryRange(item.delivery, first, last) for first, last in parts]

    def take_refused(self) -> list[DeliveryRange]:
        """Of all messages since it last asked: a confirmation stands for all before it."""
        refused, self.refused = self.refused, []
        return refused

    def deliver(self, assignment: Assignment, batch: StampedBatch) -> None:
        attach = batch.base_offset not in self.attached
        if attach:
            self.attached.append(batch.base_offset)
            if len(self.attached) > SUBSCRIPTION_BATCH_MEMORY:
                self.attached.popleft()
        self.sink.deliver(assignment, batch, attach=attach)

    def revoke(self, delivery: int, ranges: tuple[Range, ...], reason: str) -> None:
        """Say that it does not hold these any more."""
        self.sink.revoke([DeliveryRange(delivery, first, last) for first, last in ranges], reason)


class Silence:
    """Who has promised to be heard of, and until when; costs nothing per message."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, MemberSession]] = []

    def watch(self, session: MemberSession, now: float) -> None:
        if session.patience_s is not None:
            due = now + max(_AGAIN_S, session.patience_s - session.silent_s(now))
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
            if session.silent_s(now) >= session.patience_s:
                found.append(session)
            else:
                self.watch(session, now)
        return found
