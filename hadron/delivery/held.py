"""What the members of a group hold, and until when. Pure.

Safety rule: no record is in two deliveries. A deadline ends what is left of one, and begins anew
with whatever its member does with it.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from hadron.delivery.members import Delivery, Member
from hadron.delivery.tries import Tries
from hadron.model.range_maps import RangeMap
from hadron.model.ranges import Range, RangeSet, size


class Held:
    """All deliveries of a group. Times are seconds on the monotonic clock."""

    def __init__(
        self, members: dict[int, Member], deadline_s: float | None, numbers: Iterator[int] | None
    ) -> None:
        self.records = 0
        self.pieces = 0
        self._members = members
        self._deadline_s = deadline_s
        self._numbers = numbers if numbers is not None else itertools.count(1)
        self._by_number: dict[int, Delivery] = {}
        self._by_offset: RangeMap[Delivery] | None = None
        """None until somebody has looked for offsets: most groups see no transaction."""
        self._deadlines: OrderedDict[int, Delivery] = OrderedDict()

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._by_number.values())

    def __contains__(self, number: object) -> bool:
        return number in self._by_number

    def under(self, member: int, number: int) -> Delivery | None:
        """The delivery that a member's token stands for, as long as it is current: nobody else's,
        and not one that has ended (PROTOCOL D2)."""
        delivery = self._by_number.get(number)
        return delivery if delivery is not None and delivery.member == member else None

    def has(self, number: int, first: int, last: int) -> bool:
        """Whether all of first … last is in a delivery that is current, whoever holds it."""
        delivery = self._by_number.get(number)
        return delivery is not None and not delivery.held.gaps(first, last)

    def within(self, first: int, last: int) -> list[tuple[int, int, Delivery]]:
        """What is held of first … last, ascending, with its delivery."""
        if self._by_offset is None:
            self._by_offset = RangeMap(
                (a, b, delivery) for delivery in self for a, b in delivery.held.ranges()
            )
        return self._by_offset.within(first, last)

    def begin(self, member: Member, first: int, last: int, tries: Tries, now: float) -> Delivery:
        number = next(self._numbers)
        delivery = Delivery(number, member.number, tries, RangeSet.of(first, last), now)
        self.pieces += 1
        self._take_in(delivery, first, last, now)
        return delivery

    def put(self, delivery: Delivery, first: int, last: int, now: float) -> None:
        """Its member holds these under it, which nobody holds; it may have ended meanwhile."""
        before = delivery.held.fragments
        delivery.held.add(first, last)
        self.pieces += delivery.held.fragments - before
        self._take_in(delivery, first, last, now)

    def _take_in(self, delivery: Delivery, first: int, last: int, now: float) -> None:
        self.records += last - first + 1
        if self._by_offset is not None:
            self._by_offset.add(first, last, delivery)
        self._by_number[delivery.number] = delivery
        self._members[delivery.member].deliveries[delivery.number] = delivery
        self.arm(delivery, now)

    def release(self, delivery: Delivery, first: int, last: int, now: float) -> list[Range]:
        """Its member does not hold these any more; returns what it held of them."""
        held = delivery.held
        before = held.fragments
        released = held.remove(first, last)
        if not released:
            return released
        self.records -= size(released)
        assert self.records >= 0, self.records
        if self._by_offset is not None:
            self._forget_offsets(released)
        if held:
            self.pieces += held.fragments - before
            self.arm(delivery, now)
        else:
            self.pieces -= before
            self._forget(delivery)
            del self._members[delivery.member].deliveries[delivery.number]
        return released

    def leave(self, member: Member) -> None:
        """The member has gone, and holds nothing any more."""
        for delivery in member.deliveries.values():
            self._forget(delivery)
            self.pieces -= delivery.held.fragments
            self.records -= len(delivery.held)
            self._forget_offsets(delivery.held.ranges())

    def _forget_offsets(self, ranges: Iterable[Range]) -> None:
        if self._by_offset is not None:
            for first, last in ranges:
                self._by_offset.take(first, last)

    def _forget(self, delivery: Delivery) -> None:
        del self._by_number[delivery.number]
        self._deadlines.pop(delivery.number, None)

    # --- deadlines ------------------------------------------------------------------------------

    def arm(self, delivery: Delivery, now: float) -> None:
        """The deadline, if there is one, begins anew."""
        if self._deadline_s is not None:
            # All deadlines are equally long, so they stand in the order in which they were armed.
            delivery.armed, delivery.expires = now, now + self._deadline_s
            self._deadlines[delivery.number] = delivery
            self._deadlines.move_to_end(delivery.number)

    def overdue(self, now: float) -> Delivery | None:
        """The delivery whose deadline has passed first, if one has."""
        due = self.next_deadline()
        return next(iter(self._deadlines.values())) if due is not None and due <= now else None

    def next_deadline(self) -> float | None:
        return next(iter(self._deadlines.values())).expires if self._deadlines else None
