"""One consumer group at one partition: which member gets which offsets. Pure.

Every offset at or above the floor is in exactly one of these: acknowledged, in flight with one
member, waiting to be delivered again, or not yet reached by the cursor. Safety rule: an offset
leaves "in flight" only by an acknowledgement from who holds it, by a nack, or by the member's end;
so nothing is forgotten and nobody's late acknowledgement counts for somebody else's delivery
(PROTOCOL D2).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hadron.delivery.ranges import Range, RangeSet


@dataclass(slots=True)
class Delivery:
    """Offsets that one member holds."""

    number: int
    member: int
    attempt: int
    held: RangeSet


@dataclass(slots=True)
class Member:
    """A connected member; `credit` is how many more records it takes."""

    number: int
    max_in_flight: int
    credit: int
    deliveries: dict[int, Delivery] = field(default_factory=dict)
    is_writable: Callable[[], bool] = lambda: True

    @property
    def quantum(self) -> int:
        """Smallest useful delivery: sending single records to a member that takes hundreds would
        cost a message each."""
        return max(1, self.max_in_flight // 4)

    @property
    def takes_more(self) -> bool:
        return (self.credit >= self.quantum or not self.deliveries) and (
            self.credit > 0 and self.is_writable()
        )


@dataclass(frozen=True, slots=True)
class Assignment:
    """Send these offsets, all of one batch, to a member."""

    member: int
    delivery: int
    first: int
    last: int
    attempt: int


@dataclass(order=True, slots=True)
class _Again:
    """Offsets to be delivered again, not before a time."""

    not_before: float
    first: int
    last: int = field(compare=False)
    attempt: int = field(compare=False)


class Group:
    """The machine. Times are seconds on the monotonic clock."""

    def __init__(self, floor: int, acknowledged: Iterable[Range]) -> None:
        self.floor = floor
        self.dropped_below = 0
        """Nothing below this can be delivered: retention has dropped it."""
        self.acknowledged = RangeSet(acknowledged)
        self.cursor = self.acknowledged.next_gap(floor)
        self.members: dict[int, Member] = {}
        self._deliveries: dict[int, Delivery] = {}
        self._again: list[_Again] = []
        self._turn: int = 0
        self._numbers = itertools.count(1)
        self._member_numbers = itertools.count(1)

    @property
    def in_flight(self) -> int:
        return sum(len(delivery.held) for delivery in self._deliveries.values())

    # --- members --------------------------------------------------------------------------------

    def join(self, max_in_flight: int, is_writable: Callable[[], bool]) -> Member:
        member = Member(
            next(self._member_numbers), max_in_flight, max_in_flight, is_writable=is_writable
        )
        self.members[member.number] = member
        return member

    def leave(self, number: int, now: float) -> None:
        """What the member holds goes to another one, at once."""
        member = self.members.pop(number, None)
        if member is None:
            return
        for delivery in member.deliveries.values():
            del self._deliveries[delivery.number]
            for first, last in delivery.held.ranges():
                self._put_again(first, last, delivery.attempt + 1, now)

    # --- deliveries -----------------------------------------------------------------------------

    def next_wanted(self, visible_end: int, now: float) -> int | None:
        """The offset that should be delivered next, None when there is none or nobody takes it."""
        if not any(member.takes_more for member in self.members.values()):
            return None
        if self._again and self._again[0].not_before <= now:
            return self._again[0].first
        return self.cursor if self.cursor < visible_end else None

    def next_due(self) -> float | None:
        """When a delayed redelivery becomes due."""
        return self._again[0].not_before if self._again else None

    def assign(self, batch_end: int, visible_end: int, now: float) -> Assignment | None:
        """Give `next_wanted` and what follows it, below `batch_end`, to the member whose turn it
        is. Offsets acknowledged before are skipped."""
        if self.next_wanted(visible_end, now) is None:
            return None
        member = self._next_member()
        assert member is not None
        if self._again and self._again[0].not_before <= now:
            return self._assign_again(member, batch_end)
        end = min(batch_end, visible_end, self.cursor + member.credit)
        blocked = self.acknowledged.next_member(self.cursor)
        if blocked is not None:
            end = min(end, blocked)
        first, attempt = self.cursor, 1
        self.cursor = self.acknowledged.next_gap(end)
        return self._hold(member, first, end - 1, attempt)

    def _assign_again(self, member: Member, batch_end: int) -> Assignment:
        again = heapq.heappop(self._again)
        last = min(again.last, batch_end - 1, again.first + member.credit - 1)
        if last < again.last:
            self._put_again(last + 1, again.last, again.attempt, again.not_before)
        return self._hold(member, again.first, last, again.attempt)

    def _hold(self, member: Member, first: int, last: int, attempt: int) -> Assignment:
        delivery = Delivery(
            next(self._numbers), member.number, attempt, RangeSet([(first, last)])
        )
        self._deliveries[delivery.number] = delivery
        member.deliveries[delivery.number] = delivery
        member.credit -= last - first + 1
        return Assignment(member.number, delivery.number, first, last, attempt)

    def _next_member(self) -> Member | None:
        """Round robin over the members that take more."""
        for number in sorted(self.members, key=lambda number: (number <= self._turn, number)):
            if self.members[number].takes_more:
                self._turn = number
                return self.members[number]
        return None

    # --- acknowledgements -----------------------------------------------------------------------

    def acknowledge(self, member: int, number: int, first: int, last: int) -> list[Range]:
        """Offsets that count as acknowledged now; the caller logs them.

        Offsets that this member does not hold under this delivery do not count, unless nobody
        holds them: then it is as good as anybody's.
        """
        delivery = self._deliveries.get(number)
        counted: list[Range] = []
        if delivery is not None and delivery.member == member:
            counted = self._release(delivery, first, last)
        if sum(b - a + 1 for a, b in counted) < last - first + 1:
            counted += self._take_from_again(first, last)
        for a, b in counted:
            self.acknowledged.add(a, b)
        return counted

    def refuse(self, member: int, number: int, first: int, last: int, *, not_before: float) -> None:
        """A nack: deliver again, not before a time. Only who holds the offsets can refuse them."""
        delivery = self._deliveries.get(number)
        if delivery is not None and delivery.member == member:
            for a, b in self._release(delivery, first, last):
                self._put_again(a, b, delivery.attempt + 1, not_before)

    def _release(self, delivery: Delivery, first: int, last: int) -> list[Range]:
        released = delivery.held.remove(first, last)
        holder = self.members[delivery.member]
        holder.credit += sum(b - a + 1 for a, b in released)
        if not delivery.held:
            del self._deliveries[delivery.number]
            del holder.deliveries[delivery.number]
        return released

    def _take_from_again(self, first: int, last: int) -> list[Range]:
        taken: list[Range] = []
        for again in list(self._again):
            if again.last < first or again.first > last:
                continue
            self._again.remove(again)
            if again.first < first:
                self._again.append(_Again(again.not_before, again.first, first - 1, again.attempt))
            if again.last > last:
                self._again.append(_Again(again.not_before, last + 1, again.last, again.attempt))
            taken.append((max(first, again.first), min(last, again.last)))
        heapq.heapify(self._again)
        return taken

    def _put_again(self, first: int, last: int, attempt: int, not_before: float) -> None:
        first = max(first, self.dropped_below)
        if first > last:
            return
        heapq.heappush(self._again, _Again(not_before, first, last, attempt))

    def skip_below(self, offset: int) -> None:
        """Retention has dropped everything below `offset` and moved the floor there. What members
        hold of it they may still acknowledge; it is not delivered again."""
        if offset <= self.dropped_below:
            return
        self.dropped_below = offset
        again, self._again = self._again, []
        for item in again:
            self._put_again(item.first, item.last, item.attempt, item.not_before)
        self.raise_floor(offset)
        self.cursor = self.acknowledged.next_gap(max(self.cursor, offset))

    def raise_floor(self, floor: int) -> None:
        """Progress was committed; what lies below the floor is forgotten."""
        self.floor = max(self.floor, floor)
        self.acknowledged.remove_below(self.floor)
