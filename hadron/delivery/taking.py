"""Records of a group that transactions acknowledge, from their prepare on until their end. Pure.

Safety rule: what is taken is given to nobody and ends in no other way. It is over once the log says
that it is acknowledged, or that its transaction was rolled back (PROTOCOL E2); a deadline, or the
end of its member, changes nothing. Whose it is says the log: `mark` gives what another transaction
only wanted to the one that was prepared.

A taken record has a place where it comes back to: its delivery, or among those that wait to be
delivered again. Where it has none it is only marked: it is not reached by the cursor yet, stands in
line behind its key, or is on its way to the dead letters. When it comes out of there it comes here.

What its member says of it meanwhile is kept: it may be of after the rollback, of which the leader
has not heard. It counts once the transaction is rolled back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from hadron.delivery.held import Held
from hadron.delivery.members import Delivery
from hadron.delivery.tries import Refusal
from hadron.delivery.waiting import Again, Waiting
from hadron.model.range_maps import RangeMap
from hadron.model.ranges import Range, RangeSet
from hadron.model.transactions import TransactionId

Place = Delivery | Again | None
"""Where a record comes back to."""

DEALT_WITH: Final = "acknowledged"
"""What a member says of a record; or it gives it back."""

Word = Refusal | str


@dataclass(frozen=True, slots=True)
class Taken:
    """
    Attributes:
        transaction: None of what is acknowledged at this moment.
        word: what its member has said of it since it was taken, the first time.
    """

    transaction: TransactionId | None
    place: Place = None
    word: Word | None = None

    def is_from(self, member: int, number: int) -> bool:
        """Whether it was taken out of this delivery."""
        place = self.place
        return isinstance(place, Delivery) and (place.member, place.number) == (member, number)


class Taking:
    """All of a group."""

    def __init__(self, held: Held, waiting: Waiting) -> None:
        self.records = 0
        self._held = held
        self._waiting = waiting
        self._taken: RangeMap[Taken] = RangeMap()

    def __bool__(self) -> bool:
        return bool(self._taken)

    @property
    def pieces(self) -> int:
        return len(self._taken)

    def ranges(self) -> list[tuple[int, int, Taken]]:
        """All of them, ascending."""
        return list(self._taken)

    def lowest(self) -> int | None:
        return self._taken.lowest()

    def holders(self, first: int, last: int) -> list[tuple[int, int, TransactionId]]:
        """What transactions have of first … last."""
        found = self._taken.within(first, last) if self._taken else ()
        return [(a, b, each.transaction) for a, b, each in found if each.transaction is not None]

    def had(self, first: int, last: int) -> RangeSet:
        """What of first … last members hold, or transactions have."""
        found = [*self._held.within(first, last), *self._taken.within(first, last)]
        return RangeSet((a, b) for a, b, _ in found)

    def untaken(self, first: int, last: int) -> list[Range]:
        """What none has."""
        return self._taken.gaps(first, last) if self._taken else [(first, last)]

    def is_from(self, member: int, number: int, first: int, last: int) -> bool:
        """Whether all of first … last is taken out of this delivery."""
        found = self._taken.within(first, last)
        return not self._taken.gaps(first, last) and all(
            each.is_from(member, number) for _, _, each in found
        )

    def hear(self, member: int, number: int, first: int, last: int, word: Word) -> bool:
        """The member says this of what was taken out of its delivery; whether anything was. The
        first word counts, as of a record that nobody has taken."""
        found = self._taken.within(first, last) if self._taken else ()
        own = [
            (a, b, each)
            for a, b, each in found
            if each.word is None and each.is_from(member, number)
        ]
        for a, b, each in own:
            self._taken.take(a, b)
            self._taken.add(a, b, replace(each, word=word))
        return bool(own)

    def run(self, first: int, end: int) -> tuple[bool, int]:
        """Whether `first` is taken, and up to where, below `end`, it goes on like that."""
        following = self._taken.next(first) if self._taken else None
        if following is None:
            return False, end
        a, b = following
        return (True, min(end, b + 1)) if a <= first else (False, min(end, a))

    # --- coming ---------------------------------------------------------------------------------

    def mark(
        self, transaction: TransactionId | None, ranges: Iterable[Range], below: int, now: float
    ) -> None:
        """They are the transaction's, wherever they are. Nobody holds what is not `below`."""
        for first, last in ranges:
            others = [
                (a, b)
                for a, b, known in self._taken.within(first, last)
                if known.transaction != transaction
            ]
            for wanted in others:
                for a, b, known in self._taken.take(*wanted):
                    self._taken.add(a, b, replace(known, transaction=transaction))
            for gap in self._taken.gaps(first, last):
                self._take(Taken(transaction), gap, below, now)

    def _take(self, taken: Taken, wanted: Range, below: int, now: float) -> None:
        first, last = wanted
        self.records += last - first + 1
        left = RangeSet.of(first, last)
        for item in self._waiting.take_items(first, last):
            left.remove(item.first, item.last)
            self._taken.add(item.first, item.last, replace(taken, place=item))
        if left and first < below:
            for a, b, delivery in self._held.within(first, last):
                self._held.release(delivery, a, b, now)
                left.remove(a, b)
                self._taken.add(a, b, replace(taken, place=delivery))
        for a, b in left.ranges():
            self._taken.add(a, b, taken)

    def keep(self, item: Again) -> list[Again]:
        """This is to be delivered again; what is taken of it stays here. Returns the others."""
        if not self._taken:
            return [item]
        for a, b, known in self._taken.take(item.first, item.last):
            self._taken.add(a, b, replace(known, place=replace(item, first=a, last=b)))
        gaps = self._taken.gaps(item.first, item.last)
        return [replace(item, first=a, last=b) for a, b in gaps]

    # --- going ----------------------------------------------------------------------------------

    def give_back(
        self, transaction: TransactionId, ranges: Sequence[Range]
    ) -> list[tuple[int, int, Taken]]:
        """The transaction does not have them any more; what it had, and where that belongs."""
        found: list[tuple[int, int, Taken]] = []
        for wanted in ranges:
            for first, last, known in self._taken.within(*wanted):
                if known.transaction == transaction:
                    self._taken.take(first, last)
                    self.records -= last - first + 1
                    found.append((first, last, known))
        return found

    def finish(
        self, ranges: Sequence[Range], below: int, now: float
    ) -> list[tuple[int, int, Delivery]]:
        """They are acknowledged, whoever had them; returns those that were in deliveries."""
        found: list[tuple[int, int, Delivery]] = []
        for wanted in ranges:
            if self._taken.gaps(*wanted):
                # It was decided and done before anybody heard that it was prepared.
                self.mark(None, [wanted], below, now)
            for first, last, known in self._taken.take(*wanted):
                self.records -= last - first + 1
                if isinstance(known.place, Delivery):
                    found.append((first, last, known.place))
        return found
