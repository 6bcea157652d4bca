"""One call of a group's member: what it has brought, and what is to be acknowledged on it.

Bounds: what a call may bring unread is its window; in batch delivery the batch that is being
gathered is granted again at once while no other one waits, so one batch may be larger.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Final

import anyio

from hadron.client.consuming.acks import AckBuffer, AckRange, LateAcks
from hadron.model.ids import NO_BALLOT, Ballot
from hadron.model.limits import SUBSCRIPTION_BATCH_MEMORY
from hadron.model.range_maps import RangeMap
from hadron.model.ranges import Range, RangeSet, runs
from hadron.model.ranges import size as count_of
from hadron.model.record import Record
from hadron.model.record_batch import RecordBatch, decode_batch
from hadron.wire.calling import OpenedCall
from hadron.wire.messages import ballot_from, ballot_to, groups_pb2

_RECORDS_PER_CONFIRMATION: Final = 1_000
"""Acks are confirmed at least this often, so that few are in doubt when a call is lost."""

_RANGES_PER_MESSAGE: Final = 5_000
"""Acks of many single records, and what of a batch is given back between them, must not make a
message too large for its receiver (`limits.MAX_RANGES`)."""


class LazyBatch:
    """A batch that came on a call; decoded when its first record is wanted."""

    __slots__ = ("_attachment", "_base_offset", "_batch", "_stream", "partition", "record_type")

    def __init__(
        self, stream: str, partition: str, base_offset: int, attachment: memoryview
    ) -> None:
        self._stream = stream
        self.partition = partition
        self._base_offset = base_offset
        self._attachment = attachment
        self._batch: RecordBatch | None = None
        self.record_type = Record

    def records(self, first_offset: int, last_offset: int) -> list[Record]:
        """Records by offset, both ends inclusive. Raises `CorruptionError`."""
        batch = self._batch
        if batch is None:
            batch = self._batch = decode_batch(
                self._attachment,
                base_offset=self._base_offset,
                stream=self._stream,
                partition=self.partition,
            )
            self._attachment = memoryview(b"")
            batch.record_type = self.record_type
        return batch.records(first_offset - self._base_offset, last_offset + 1 - self._base_offset)


@dataclass(slots=True)
class _Sent:
    """Acks on their way: confirmed as one."""

    count: int
    ranges: list[tuple[Ballot | None, AckRange]]
    late: bool
    confirmed: anyio.Event | None


class Channel:
    """One call of the member.

    Args:
        late: of the member: takes what is in doubt when the call ends.
        on_late: told of an acknowledgement that came after the call had ended.
    """

    def __init__(self, call: OpenedCall, late: LateAcks, on_late: Callable[[], None]) -> None:
        self.call = call
        self.alive = True
        self.ballot = NO_BALLOT
        self.acks = AckBuffer()
        self.unconfirmed = 0
        """Records acknowledged on the call without a confirmation yet."""
        self.brought = 0
        """Records that have come on the call."""
        self.is_answered = False
        """Whether the program has acknowledged any of them, given back, or is still at work."""
        self.heard = True
        """Whether the leader has said anything since somebody last looked."""
        self.silent_beats = 0
        self.unread: dict[int, Parcel] = {}
        """By number: what nobody has looked at of a delivery, one parcel of each."""
        self._again: RangeMap[int] = RangeMap()
        """Numbers of those that have come since some parcel was given to others, by offset."""
        self.assembling: list[Parcel] = []
        self._ready: set[int] = set()
        """Of each batch that is complete: the last of its parcels, while that is unread."""
        self.held_until = float("inf")
        """By the client's clock: afterwards the leader may have given to others what this has
        brought, as it has heard nothing for so long. Once the call has ended, long ago."""
        self.has_revoked = False
        """Some parcel was given to others: its acks are late ones from here on."""
        self._late = late
        self._on_late = on_late
        self._confirmations: dict[int, _Sent] = {}
        """That were asked for, by number."""
        self._next_confirmation = itertools.count(1)
        self._unasked: list[tuple[Ballot | None, AckRange]] = []
        self._count_unasked = 0
        self._memory: OrderedDict[int, LazyBatch] = OrderedDict()

    # --- parcels --------------------------------------------------------------------------------

    def batch(
        self, stream: str, partition: str, base_offset: int, attachment: memoryview
    ) -> LazyBatch | None:
        """The batch of a parcel: attached, or one of those that both sides remember."""
        if not attachment:
            return self._memory.get(base_offset)
        batch = LazyBatch(stream, partition, base_offset, attachment)
        self._memory.pop(base_offset, None)
        self._memory[base_offset] = batch
        if len(self._memory) > SUBSCRIPTION_BATCH_MEMORY:
            self._memory.popitem(last=False)
        return batch

    def gather(self, parcel: Parcel) -> None:
        """Batch delivery: one more parcel of the batch that is being gathered."""
        self.assembling.append(parcel)
        if not self._ready:
            parcel.grant()

    def complete(self) -> list[Parcel]:
        """Batch delivery: the parcels of the batch that is now complete; the last one says so."""
        parts, self.assembling = self.assembling, []
        if parts:
            parts[-1].ends_batch = True
            if parts[-1].number in self.unread:
                self._ready.add(parts[-1].number)
        return parts

    def lay(self, parcel: Parcel) -> None:
        """Nobody has looked at it, or at what is left of it."""
        self.unread[parcel.number] = parcel
        if self.has_revoked:
            for first, last in self._again.gaps(parcel.first, parcel.last):
                self._again.add(first, last, parcel.number)

    def is_read(self, number: int) -> None:
        """Somebody has looked at a delivery, or nobody here will."""
        if (parcel := self.unread.pop(number, None)) is not None:
            self._forget(number, parcel.first, parcel.last)
        if number in self._ready:
            self._ready.remove(number)
            if not self._ready:
                for parcel in self.assembling:
                    parcel.grant()

    def _forget(self, number: int, first: int, last: int) -> None:
        """These do not lie here again."""
        for start, stop, found in self._again.within(first, last):
            if found == number:
                self._again.take(start, stop)

    def put_back(self, parcel: Parcel, left: Iterable[int]) -> Parcel | None:
        """The records at these offsets of an open parcel were not handed out after all. Returns
        what has them now; None where that is the parcel with the others that nobody has looked
        at."""
        ranges = RangeSet(runs(left))
        known = self.unread.get(parcel.number)
        if known is not None:
            for first, last in known.ranges():
                ranges.add(first, last)
            self._forget(known.number, known.first, known.last)
            known.hand_out(ranges)
            self.lay(known)
            return None
        rest = copy(parcel)
        rest.hand_out(ranges)
        self.lay(rest)
        return rest

    def revoke(self, number: int, first: int, last: int) -> None:
        """Others have these records now; those that nobody has looked at are not handed out."""
        self.has_revoked = True
        parcel = self.unread.get(number)
        if parcel is not None:
            parcel.skip(first, last)
            self._forget(number, first, last)

    # --- acknowledgements -----------------------------------------------------------------------

    def acknowledge(self, parcel: Parcel, first: int, last: int) -> None:
        """Collect an ack; after the call has ended it is sent on the next one."""
        self.is_answered = True
        if self.alive:
            if self.has_revoked:
                self.acks.touched.add(parcel.number)
                self._acknowledge_again(parcel, first, last)
            else:
                self.acks.add(parcel.number, first, last, parcel.written)
        elif self.ballot != NO_BALLOT:
            self._late.add(self.ballot, [AckRange(parcel.number, first, last, parcel.written)])
            self._on_late()

    def _acknowledge_again(self, parcel: Parcel, first: int, last: int) -> None:
        """What an ack deadline took away may have come here again. Nobody has looked at it, so it
        is that parcel which is acknowledged."""
        for start, stop, number in self._again.within(first, last):
            if number == parcel.number:
                continue
            if first < start:
                self.acks.add(parcel.number, first, start - 1, parcel.written)
            unread = self.unread[number]
            unread.skip(start, stop)
            self.acks.add(number, start, stop, unread.written)
            first = stop + 1
        if first <= last:
            self.acks.add(parcel.number, first, last, parcel.written)

    def send_acks(self, confirmed: anyio.Event | None = None) -> None:
        """Send what is acknowledged; `confirmed` is set once all acks so far are committed."""
        if not self.alive or not (self.acks.count or confirmed is not None):
            return
        ballot = self.ballot if self.has_revoked else None
        self._send(self.acks.take_counted(), ballot, confirmed)

    def send_late(self) -> None:
        """Send what earlier calls of the member left in doubt."""
        if self._count_unasked:
            # What is refused of this call's own acks is told apart from what is refused of those.
            self._send((0, []), None, anyio.Event())
        for ballot, ranges in self._late.take():
            for start in range(0, len(ranges), _RANGES_PER_MESSAGE):
                part = ranges[start : start + _RANGES_PER_MESSAGE]
                count = sum(entry.last - entry.first + 1 for entry in part)
                self._send((count, part), ballot, anyio.Event(), late=True)

    def ask_confirmation(self) -> None:
        """Acks whose confirmation nobody asked for should not stay in doubt for long."""
        if self._count_unasked and not self._confirmations:
            self._send((0, []), None, anyio.Event())

    def _send(
        self,
        taken: tuple[int, list[AckRange]],
        ballot: Ballot | None,
        confirmed: anyio.Event | None,
        *,
        late: bool = False,
    ) -> None:
        count, ranges = taken
        self.unconfirmed += count
        self._count_unasked += count
        self._unasked.extend((ballot, entry) for entry in ranges)
        asked = 0
        if confirmed is not None or self._count_unasked >= _RECORDS_PER_CONFIRMATION:
            asked = next(self._next_confirmation)
            self._confirmations[asked] = _Sent(self._count_unasked, self._unasked, late, confirmed)
            self._count_unasked, self._unasked = 0, []
        of_ballot = ballot_to(ballot) if ballot is not None else None
        *first, last = portions(ranges)
        for some in first:
            ack = groups_pb2.SubscribeRequest.Ack(ranges=some, ballot=of_ballot)
            self.call.send(groups_pb2.SubscribeRequest(ack=ack))
        ack = groups_pb2.SubscribeRequest.Ack(ranges=last, confirmation=asked, ballot=of_ballot)
        self.call.send(groups_pb2.SubscribeRequest(ack=ack))

    def confirmed(self, acked: groups_pb2.SubscribeEvent.Acked) -> None:
        """The leader has committed every ack up to the one that asked for this."""
        for asked in [each for each in self._confirmations if each <= acked.confirmation]:
            sent = self._confirmations.pop(asked)
            self.unconfirmed -= sent.count
            if asked == acked.confirmation and sent.late:
                refused = [(entry.first_offset, entry.last_offset) for entry in acked.refused]
                self._late.answered([entry for _, entry in sent.ranges], refused, acked.floor)
            elif asked == acked.confirmation:
                self._late.floor_moved(acked.floor)
                self._late.lost += sum(
                    entry.last_offset + 1 - max(entry.first_offset, acked.floor)
                    for entry in acked.refused
                    if entry.last_offset >= acked.floor
                )
            if sent.confirmed is not None:
                sent.confirmed.set()

    def send_nack(
        self,
        number: int,
        ranges: Iterable[Range],
        delay_ms: int | None = None,
        reason: str = "",
        *,
        unseen: bool = False,
    ) -> None:
        """Give records back, to be delivered again after `delay_ms`; None is up to the leader."""
        self.is_answered = True
        if self.alive:
            self.send_acks()
            for some in portions([AckRange(number, first, last) for first, last in ranges]):
                nack = groups_pb2.SubscribeRequest.Nack(
                    ranges=some, delay_ms=delay_ms, reason=reason, unseen=unseen
                )
                self.call.send(groups_pb2.SubscribeRequest(nack=nack))

    def send_extend(self, number: int, ranges: Iterable[Range]) -> None:
        """Start the ack deadline of a parcel again."""
        self.is_answered = True
        if self.alive:
            self.acks.touched.add(number)
            for some in portions([AckRange(number, first, last) for first, last in ranges]):
                extend = groups_pb2.SubscribeRequest.Extend(ranges=some)
                self.call.send(groups_pb2.SubscribeRequest(extend=extend))

    def pause(self) -> None:
        """Bring nothing more: what is given back must not come here again."""
        if self.alive:
            flow = groups_pb2.SubscribeRequest.Flow(max_in_flight=0)
            self.call.send(groups_pb2.SubscribeRequest(flow=flow))

    def give_unread_back(self) -> None:
        """The member leaves: nobody has looked at these, so the attempts do not count."""
        for parcel in list(self.unread.values()):
            self.give_back(parcel)

    def give_old_back(self, before: float, now: float) -> None:
        """Those that have lain here since before then, by the client's clock."""
        for parcel in list(self.unread.values()):
            if parcel.is_lying(before, now):
                self.give_back(parcel)

    def give_back(self, parcel: Parcel) -> None:
        """A parcel that nobody has looked at, and nobody will here."""
        self.send_nack(parcel.number, parcel.ranges(), unseen=True)
        self.is_read(parcel.number)
        parcel.skip(parcel.first, parcel.last)
        parcel.grant()

    def end(self) -> None:
        """The call is over; what may not have been committed is late from here on."""
        if not self.alive:
            return
        self.alive = False
        self.held_until = float("-inf")
        asked, self._confirmations = self._confirmations, {}
        in_doubt = [entry for sent in asked.values() for entry in sent.ranges]
        in_doubt += self._unasked
        in_doubt += [(None, entry) for entry in self.acks.take()]
        for ballot, entry in in_doubt:
            self._late.add(ballot or self.ballot, [entry])
        self.unconfirmed = 0
        self._unasked = []
        self.unread.clear()
        self._again = RangeMap()
        self._ready.clear()
        self.assembling.clear()
        for sent in asked.values():
            if sent.confirmed is not None:
                sent.confirmed.set()


class Parcel:
    """Consecutive records of one batch, which came in one message."""

    __slots__ = (
        "_granted",
        "_skipped",
        "attempt",
        "batch",
        "channel",
        "ends_batch",
        "first",
        "last",
        "number",
        "since",
        "size",
        "written",
    )

    def __init__(
        self,
        channel: Channel,
        message: groups_pb2.SubscribeEvent.Delivery,
        batch: LazyBatch,
        size: int,
        *,
        ends_batch: bool,
        since: float,
    ) -> None:
        """`since`: when it came, by the client's clock."""
        self.channel = channel
        self.since = since
        self.batch = batch
        self.number = message.delivery
        self.first = message.first_offset
        self.last = message.last_offset
        self.attempt = message.attempt
        self.written = ballot_from(message.batch.ballot)
        self.size = size
        self.ends_batch = ends_batch
        self._granted = False
        self._skipped: RangeSet | None = None
        channel.brought += self.last - self.first + 1
        channel.lay(self)

    def skip(self, first: int, last: int) -> None:
        """These are not handed out."""
        if self._skipped is None:
            self._skipped = RangeSet()
        self._skipped.add(first, last)

    def hand_out(self, ranges: RangeSet) -> None:
        """These, and nothing else of its batch."""
        found = ranges.ranges()
        self.first, self.last = found[0][0], found[-1][1]
        self._skipped = RangeSet(ranges.gaps(self.first, self.last))

    @property
    def is_empty(self) -> bool:
        return not self.ranges()

    def ranges(self) -> Sequence[Range]:
        """What it hands out."""
        if self._skipped is None:
            return ((self.first, self.last),)
        return self._skipped.gaps(self.first, self.last)

    def grant(self) -> None:
        """What it took of the call's window may be used again."""
        if not self._granted:
            self._granted = True
            self.channel.call.consumed(self.size)

    def is_lying(self, before: float, now: float) -> bool:
        """Whether its ack deadline has begun before then."""
        if self.number in self.channel.acks.touched:
            # It began again.
            self.since = now
        return self.since <= before

    def open(self) -> list[Record]:
        """Its records; what they took of the call's window is granted again."""
        self.channel.is_read(self.number)
        self.grant()
        records: list[Record] = []
        for first, last in self.ranges():
            records += self.batch.records(first, last)
        return records

    @property
    def ballot(self) -> Ballot:
        """In which it was delivered."""
        return self.channel.ballot

    @property
    def partition(self) -> str:
        return self.batch.partition

    def count(self) -> int:
        """Of the records that it hands out."""
        return count_of(self.ranges())

    def open_first(self, count: int) -> tuple[Parcel, list[Record]]:
        """Open the first `count` records that it hands out; it keeps the others, which nobody has
        looked at, and may be given back as a whole parcel may."""
        last = self.first - 1
        for first, end in self.ranges():
            last = min(end, first + count - 1)
            count -= last - first + 1
            if not count:
                break
        if last == self.last:
            return self, self.open()
        # The call's window counts them together.
        self.grant()
        head = copy(self)
        head.last = last
        if self._skipped is not None:
            # What others have of the rest by and by is no part of it.
            head._skipped = RangeSet(self._skipped.ranges())
        records = head.open()
        self.first = last + 1
        self.channel.lay(self)
        return head, records

    def acknowledge(self) -> None:
        """All that it handed out is dealt with."""
        for first, last in self.ranges():
            self.channel.acknowledge(self, first, last)


def portions(ranges: Sequence[AckRange]) -> Iterator[list[groups_pb2.Range]]:
    """For one message each; one at least."""
    for start in range(0, len(ranges) or 1, _RANGES_PER_MESSAGE):
        yield _to_ranges(ranges[start : start + _RANGES_PER_MESSAGE])


def _to_ranges(ranges: Iterable[AckRange]) -> list[groups_pb2.Range]:
    return [
        groups_pb2.Range(delivery=entry.delivery, first_offset=entry.first, last_offset=entry.last)
        for entry in ranges
    ]
