"""PROTOCOL D2, GROUPS G10, G11: what a member does with what it is sent.

Each record of a delivery goes one way: to the program, once; or back, unseen; or it is acknowledged
for a program that has dealt with it before; or its leader takes it back. In which order a program
asks for single records, batches and steps changes nothing of that. And while a program waits for
more, or leaves, nothing lies with its member: nobody else is given it, and it would never be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

from hadron.client.consuming.channel import Channel, Parcel
from hadron.client.consuming.consumer import Consumer
from hadron.client.consuming.steps import Steps
from hadron.model.ranges import Range, RangeSet
from hadron.model.record import Record
from hadron.sim.watch.views import Complaints


class Handing:
    """Every member, over each of its calls."""

    def __init__(self, complaints: Complaints) -> None:
        self._complaints = complaints
        self._lying: WeakKeyDictionary[Channel, dict[int, RangeSet]] = WeakKeyDictionary()
        """Of each call, by delivery: what has gone no way yet."""
        self._acknowledging: Channel | None = None

    def came(self, channel: Channel, number: int, first: int, last: int) -> None:
        """A delivery has come."""
        self._lying.setdefault(channel, {})[number] = RangeSet.of(first, last)

    def went(self, channel: Channel, number: int, ranges: Iterable[Range]) -> None:
        """These are given back, acknowledged or taken back, as far as they were here."""
        lying = self._lying.get(channel, {})
        if number in lying:
            for first, last in ranges:
                lying[number].remove(first, last)
            if not lying[number]:
                del lying[number]

    def acknowledges(self, channel: Channel | None) -> None:
        """What is acknowledged next is so on this call."""
        self._acknowledging = channel

    def acknowledged(self, number: int, first: int, last: int) -> None:
        """Some of a delivery."""
        if self._acknowledging is not None:
            self.went(self._acknowledging, number, [(first, last)])

    def handed_out(self, parcels: Sequence[Parcel], records: Iterable[Record]) -> None:
        """A program is given these."""
        for record in records:
            offset = record.offset
            parcel = next(each for each in parcels if each.first <= offset <= each.last)
            lying = self._lying.get(parcel.channel, {}).get(parcel.number)
            if not parcel.channel.alive or lying is None or offset not in lying:
                self._complaints.add(
                    "D2 what a member is sent is handed out once",
                    f"a member hands out offset {offset} of delivery {parcel.number}, which it "
                    "has handed out, given back or acknowledged, or has no more",
                )
            self.went(parcel.channel, parcel.number, [(offset, offset)])

    def waits(self, consumer: Consumer) -> None:
        """A program has asked for more, and there is nothing."""
        if not consumer._parcels:
            self._check(consumer, _for_later(consumer), "waits for more")

    def leaves(self, consumer: Consumer) -> None:
        """A member has given back what it was not asked for."""
        self._check(consumer, [], "leaves")

    def _check(self, consumer: Consumer, later: Iterable[Parcel], what: str) -> None:
        rightly = [(each.channel, each.number, *part) for each in later for part in each.ranges()]
        for member in consumer._memberships.values():
            channel = member.channel
            if channel is None or not member.is_open or not consumer.holds(channel):
                continue
            for number, lying in self._lying.get(channel, {}).items():
                left = RangeSet(lying.ranges())
                for of, of_number, first, last in rightly:
                    if (of, of_number) == (channel, number):
                        left.remove(first, last)
                if left:
                    self._complaints.add(
                        "D2 what a member is sent does not stay with it",
                        f"a member of {member.stream} at {member.partition} {what}, and keeps "
                        f"{left.ranges()[:3]} of delivery {number} for nobody",
                    )


def _for_later(consumer: Consumer) -> list[Parcel]:
    """What is here rightly: of a batch that is not complete, or to be in one of the next steps."""
    found = [
        parcel
        for member in consumer._memberships.values()
        if member.channel is not None
        for parcel in member.channel.assembling
    ]
    if isinstance(consumer.steps, Steps):
        found += [parcel for some in consumer.steps._arrived.values() for parcel in some]
    return found
