"""Acknowledgements on their way to a partition's leader, coalesced into ranges. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from hadron.model.ids import NO_BALLOT, Ballot
from hadron.model.ranges import Range, melted

MAX_SETTLED: Final = 100_000
"""Offsets remembered whose acknowledgement is in doubt: as many as a member may hold at most."""


Token = tuple[Ballot, int]
"""Of a delivery, with its number: compared, the higher one is the later one (PROTOCOL D2)."""


class AckRange(NamedTuple):
    """Offsets of one delivery, both ends inclusive."""

    delivery: int
    first: int
    last: int
    written: Ballot = NO_BALLOT
    """Of the batch that the records came in: at one offset it tells records apart."""


class AckBuffer:
    """Collects acknowledged offsets; consecutive ones of a delivery become one range."""

    __slots__ = ("_delivery", "_first", "_last", "_ranges", "_written", "count", "touched")

    def __init__(self) -> None:
        self.count = 0
        """Records acknowledged since the last `take`."""
        self.touched: set[int] = set()
        """Deliveries of which something was acknowledged since the last `look`."""
        self._ranges: list[AckRange] = []
        self._delivery = -1
        self._first = 0
        self._last = 0
        self._written = NO_BALLOT

    def add(self, delivery: int, first: int, last: int, written: Ballot) -> None:
        """Acknowledge offsets `first` to `last` of a delivery."""
        self.count += last - first + 1
        if delivery == self._delivery and first == self._last + 1:
            self._last = last
            return
        self._close_range()
        self._delivery, self._first, self._last = delivery, first, last
        self._written = written
        self.touched.add(delivery)

    def look(self) -> None:
        """Begin anew with what was touched."""
        self._close_range()
        self.touched.clear()

    def take(self) -> list[AckRange]:
        """Everything since the last `take`, merged where acks came out of order."""
        self._close_range()
        ranges, self._ranges = self._ranges, []
        self.count = 0
        return _merge(ranges) if len(ranges) > 1 else ranges

    def take_counted(self) -> tuple[int, list[AckRange]]:
        """The same with the number of records."""
        return self.count, self.take()

    def _close_range(self) -> None:
        if self._delivery >= 0:
            self._ranges.append(AckRange(self._delivery, self._first, self._last, self._written))
            self._delivery = -1


class LateAcks:
    """Acknowledgements that a lost call took along, or that came after it was lost.

    They are sent on the next call with the ballot of their delivery, and count there unless
    somebody else holds the record now (PROTOCOL D2). The next call may also bring such a record
    to this very member again: then it is acknowledged at once and not handed out.

    Safety rule: neither is done with what was delivered before the group was made or reset, for
    that gave every record back, also to who has acknowledged it: whoever leads tells where that
    was, and everything up to there is forgotten. And only the record that was dealt with counts: a
    restore, a recovery or a lost tail puts others at its offset, in batches of other ballots (D4).
    """

    def __init__(self) -> None:
        self._ranges: dict[Ballot, list[AckRange]] = {}
        self._settled: dict[int, tuple[Token, Ballot]] = {}
        """By offset: the token of the delivery, and the ballot that the record was written in."""
        self._fence: Token = (NO_BALLOT, 0)
        self._forgot_some = False
        """More were in doubt than are remembered."""
        self.lost = 0
        """Records whose acknowledgement did not count, ever."""
        self.told = 0
        """So many of these somebody has heard of. Whoever was waiting then hears of them as well:
        it remembers what this was when it began to wait."""

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def add(self, ballot: Ballot, ranges: Iterable[AckRange]) -> None:
        for entry in ranges:
            token = ballot, entry.delivery
            if token <= self._fence:
                self.lost += entry.last - entry.first + 1
                continue
            self._ranges.setdefault(ballot, []).append(entry)
            if len(self._settled) >= MAX_SETTLED:
                self._forgot_some = True
            else:
                self._settled.update(
                    dict.fromkeys(range(entry.first, entry.last + 1), (token, entry.written))
                )

    def fenced(self, fence: Token) -> None:
        """The group was made, or reset last, when `fence` was the last delivery."""
        if fence <= self._fence:
            return
        self._fence = fence
        self._settled = {
            offset: known for offset, known in self._settled.items() if known[0] > fence
        }
        ranges, self._ranges = self._ranges, {}
        for ballot, of_ballot in ranges.items():
            self.add(ballot, of_ballot)

    def take(self) -> list[tuple[Ballot, list[AckRange]]]:
        """What is to be sent on a new call, by ballot; see `add` when that call is lost too."""
        taken, self._ranges = self._ranges, {}
        return [(ballot, _merge(ranges)) for ballot, ranges in taken.items()]

    def claim(
        self, first: int, last: int, ballot: Ballot, attempt: int, written: Ballot
    ) -> list[int]:
        """Offsets of a delivery to this member that the user has dealt with already.

        A record that was written in another ballot than the one that was dealt with is another.
        A first attempt in the ballot of the earlier delivery is none: a delivery that ended in
        this ballot was counted, so somebody has reset the group and wants its records again.
        """
        if not self._settled:
            return []
        known = [
            (offset, *self._settled[offset])
            for offset in range(first, last + 1)
            if offset in self._settled
        ]
        found = [
            offset
            for offset, token, before in known
            if before == written and (attempt > 1 or token[0] != ballot)
        ]
        for offset in found:
            del self._settled[offset]
        return found

    def answered(self, sent: Iterable[AckRange], refused: Iterable[Range], floor: int) -> None:
        """The leader has taken what was `sent`, except `refused`."""
        left = {offset for first, last in refused for offset in range(max(first, floor), last + 1)}
        self.lost += (
            len(left) if self._forgot_some else sum(offset in self._settled for offset in left)
        )
        for entry in sent:
            for offset in range(entry.first, entry.last + 1):
                if offset not in left:
                    self._settled.pop(offset, None)
        self.floor_moved(floor)

    def floor_moved(self, floor: int) -> None:
        """Everything below is acknowledged."""
        if self._settled:
            self._settled = {
                offset: known for offset, known in self._settled.items() if offset >= floor
            }

    def forget(self) -> None:
        """The group was reset: what was acknowledged before counts no more."""
        for ranges in self._ranges.values():
            self.lost += sum(entry.last - entry.first + 1 for entry in ranges)
        self._ranges.clear()
        self._settled.clear()


def _merge(ranges: list[AckRange]) -> list[AckRange]:
    """Those of each delivery as few, ascending."""
    ranges.sort()
    if len({each[0] for each in ranges}) == len(ranges):
        # Most deliveries are acknowledged as they were made: as a whole.
        return ranges
    merged: list[AckRange] = []
    for delivery, found in groupby(ranges, itemgetter(0)):
        of_it = list(found)
        merged += [
            AckRange(delivery, first, last, of_it[0].written)
            for first, last in melted([each[1:3] for each in of_it])
        ]
    return merged
