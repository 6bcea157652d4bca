"""One consumer group at one partition: which member gets which offsets. Pure.

Every offset at or above the floor is in exactly one of these: acknowledged, in flight with one
member, waiting to be delivered again, taken by a transaction, in line behind its key, on its way
to the dead letters, or not yet reached by the cursor. Safety rule: an offset leaves "in flight"
only by an acknowledgement from who holds it, by a nack, by its deadline, by the member's end, or to
be taken; so nothing is forgotten and nobody's late acknowledgement counts for somebody else's
delivery (PROTOCOL D2). What is taken leaves by its transaction's end alone (GROUPS G15).

What is acknowledged below the cursor is not kept: it is all that is in none of the other places.
What lies ahead of it is the `frontier`'s. So the machine's memory is what members hold and what
waits, and where that is in too many pieces nothing new is delivered until there are fewer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from hadron.delivery.effects import PLAIN, Assignment, Effects, Exhausted, Expired, Rules
from hadron.delivery.frontier import Frontier
from hadron.delivery.held import Held
from hadron.delivery.keys import BatchKeys, KeyLines, KeyRoom
from hadron.delivery.members import Chosen, Delivery, Member, Next, Takers
from hadron.delivery.taking import DEALT_WITH, Taking
from hadron.delivery.tries import Cause, Refusal, Tries
from hadron.delivery.waiting import Again, Waiting
from hadron.model.ranges import Range, RangeSet, size
from hadron.model.transactions import TransactionId
from hadron.state.groups.attempts import Attempts

MAX_UNSETTLED: Final = 65_536
"""Pieces of what is in flight, waits, stands in line, dies or is not logged yet. There is at most
one range of acknowledged offsets more than that, in memory and in the tables: about 100 bytes each
here, 20 there. Pulsar stops at 200,000 unacknowledged records, Kafka's share groups at 2,000."""

MAX_GROUP_IN_FLIGHT: Final = 1 << 20
"""Records in flight of one group. What is in flight may come apart later, at worst into half as
many pieces."""

_MEMBER_GONE: Final = "its member has gone"
_USED_UP: Final = "its attempts were used up under an earlier leader"


class Group:
    """The machine. Times are seconds on the monotonic clock."""

    def __init__(
        self,
        floor: int,
        acknowledged: Iterable[Range],
        attempts: Iterable[Attempts] = (),
        *,
        window_end: int | None = None,
        rules: Rules = PLAIN,
        numbers: Iterator[int] | None = None,
        key_room: KeyRoom | None = None,
    ) -> None:
        """
        Args:
            acknowledged, attempts, window_end: what is known from the floor on, and up to where.
            numbers: of deliveries, unique in the ballot.
            key_room: of all groups of the leader; its own without.
        """
        self.floor = floor
        acknowledged = tuple(acknowledged)
        assert all(first > floor for first, _ in acknowledged), (floor, acknowledged)
        self.dropped_below = 0
        """Nothing below this can be delivered: retention has dropped it."""
        self.rules = rules
        self.members: dict[int, Member] = {}
        self.held = Held(self.members, rules.deadline_s, numbers)
        self.waiting = Waiting()
        self.taken = Taking(self.held, self.waiting)
        self.keys = KeyLines(key_room or KeyRoom()) if rules.is_by_key else None
        self.takers = Takers()
        self.frontier = Frontier(floor, acknowledged, attempts, window_end)
        self.dying = 0
        """Pieces on their way to the dead letters; kept by the driver, who writes them."""
        self.unlogged = 0
        """Pieces that members have dealt with and no entry has yet; kept by the driver, too."""
        self._settling = 0
        """Strict order: records that are acknowledged, and it is not committed yet."""
        self._late = RangeSet()
        """Order by key: the same of records that the cursor had not reached, whose keys nobody has
        looked at. Nothing new follows before."""
        self._member_numbers = itertools.count(1)

    # --- members --------------------------------------------------------------------------------

    def join(
        self,
        max_in_flight: int,
        is_writable: Callable[[], bool],
        *,
        batch_size: int = 0,
        batch_wait_s: float = 0.0,
    ) -> Member:
        member = Member(
            next(self._member_numbers),
            max_in_flight,
            max_in_flight,
            is_writable=is_writable,
            batch_size=batch_size,
            batch_wait_s=batch_wait_s,
        )
        self.members[member.number] = member
        self.takers.offer(member)
        return member

    def leave(self, number: int, now: float, reason: str = _MEMBER_GONE) -> Effects:
        """What the member holds goes to another one, at once; what is taken, once it comes back."""
        effects = Effects()
        member = self.members.pop(number, None)
        if member is None:
            return effects
        self.takers.forget(member)
        self.held.leave(member)
        cause = Cause.LOST_ALONE if member.outstanding == 1 else Cause.LOST_WITH_OTHERS
        for delivery in member.deliveries.values():
            self._end(delivery, delivery.held.ranges(), now, cause, effects, reason)
        return effects

    def resize(self, number: int, max_in_flight: int) -> None:
        """The member's window changes; 0 pauses it. It keeps what it holds."""
        member = self.members[number]
        member.credit += max_in_flight - member.max_in_flight
        member.max_in_flight = max_in_flight
        self.takers.offer(member)

    def became_writable(self, number: int) -> None:
        """The member has read what it was sent."""
        member = self.members.get(number)
        if member is not None:
            self.takers.offer(member)

    # --- deliveries -----------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Records that members hold, but for those that are taken."""
        return self.held.records

    @property
    def unsettled(self) -> int:
        """Pieces of what is in flight, waits, is taken, stands in line, goes to the dead letters or
        waits for the log."""
        behind = self.keys.behind if self.keys is not None else 0
        back = self.waiting.fragments + self.taken.pieces
        return self.held.pieces + back + behind + self.dying + self.unlogged

    @property
    def is_full(self) -> bool:
        """Nothing new is delivered before there are fewer pieces."""
        return self.unsettled >= MAX_UNSETTLED

    @property
    def has_enough_in_flight(self) -> bool:
        """The same, before fewer are held or taken, or fewer of all groups are ordered by key."""
        return self.in_flight + self.taken.records >= MAX_GROUP_IN_FLIGHT or self.is_crowded

    def needs_keys(self, chosen: Chosen) -> bool:
        """Whether `assign` has to know the keys of the batch with this record."""
        return self.keys is not None and chosen.next.offset == self.frontier.cursor

    @property
    def is_crowded(self) -> bool:
        """The groups of this leader have no room for more records in order by key."""
        return self.keys is not None and self.keys.left <= 0

    def choose(self, visible_end: int, now: float) -> Chosen | None:
        """What should be delivered next, and to whom; None when there is nothing or nobody takes
        it."""
        if self.takers.resting:
            self.takers.wake(now)
        if self.takers.lingering:
            self.takers.end_linger(now)
        if self.takers.draining is not None:
            self.takers.look_at_drain(now, is_needed=self.waiting.any_apart)
        if not self.takers:
            return None
        chosen = self._choose(visible_end, now)
        if chosen is not None and chosen.member.number == chosen.next.avoid:
            # To ask the others may be to find that they take nothing: now it is alone.
            chosen = self._choose(visible_end, now)
        return chosen

    def _choose(self, visible_end: int, now: float) -> Chosen | None:
        found = self._source(visible_end, now)
        if found is None:
            if self.takers.patient:
                self.takers.nothing_there()
            return None
        member = self.takers.pick(self._available(visible_end, now), now, found)
        return Chosen(found, member) if member is not None else None

    def _source(self, visible_end: int, now: float) -> Next | None:
        """What comes next, whoever takes it."""
        if self.rules.is_strict:
            return self._next_in_order(visible_end, now)
        again = self.waiting.due(now) if self.waiting else None
        if again is not None and again.tries.is_apart and not self.takers.make_way(now):
            again = self.waiting.due(now, beside_others=True)
        if again is not None:
            # Who gets one record at a time, and could not deal with this one, is tried with another
            # one: else nothing would ever follow it.
            is_tried = self.takers.is_alone_on_trial(again.avoid) and self._has_new(visible_end)
            if not is_tried:
                return Next(again.first, again.avoid, again.tries.is_apart)
        return Next(self.frontier.cursor) if self._has_new(visible_end) else None

    def _next_in_order(self, visible_end: int, now: float) -> Next | None:
        """Strict order: nothing passes what is not over; a taken record holds up what follows."""
        if self.in_flight or self._settling:
            return None
        again, barrier = self.waiting.lowest(), self.taken.lowest()
        wanted = again.first if again is not None else self.frontier.cursor
        if barrier is not None and barrier <= wanted:
            return None
        if again is not None:
            return Next(wanted, again.avoid) if again.not_before <= now else None
        return Next(wanted) if self._has_new(visible_end) else None

    def _has_new(self, visible_end: int) -> bool:
        """Whether something follows at the cursor that may be delivered."""
        frontier = self.frontier
        return (
            frontier.cursor < visible_end
            and not frontier.needs_window
            and not self._late
            and not self.is_full
            and not self.has_enough_in_flight
        )

    def _available(self, visible_end: int, now: float) -> int:
        """Records that could be delivered now, about: who wants a batch waits for enough."""
        again = self.waiting.records if self.waiting and self.waiting.due(now) else 0
        return again + max(0, visible_end - self.frontier.cursor)

    def next_due(self, now: float) -> float | None:
        """When something is to be done without anybody's doing: a delayed redelivery, a deadline,
        a batch that has waited long enough, a member that has rested. What is due and waits for
        somebody to take it is nothing that time brings about; only deadlines may have passed."""
        deadline = self.held.next_deadline()
        if not (self.waiting or deadline is not None or self.takers.is_timed):
            return None
        dues = (self.waiting.next_due(now), deadline, self.takers.next_due(now))
        return min((due for due in dues if due is not None), default=None)

    def assign(
        self,
        chosen: Chosen,
        batch_end: int,
        visible_end: int,
        now: float,
        keys: BatchKeys | None = None,
    ) -> Assignment | Exhausted | None:
        """Give what `choose` has just said, and what follows it, below `batch_end`, to that member.
        Offsets acknowledged before are skipped. `keys` are of that batch, where they are needed.
        None when what comes next only had to be set aside; dead letters when it has no attempts
        left. Choose again then.
        """
        (wanted, _, is_apart), member = chosen
        most = 1 if self.rules.is_strict or is_apart else member.most
        if wanted != self.frontier.cursor:
            first = wanted
            last, tries = self.waiting.pop(first, now, below=batch_end, count=most)
        else:
            run = self._advance(min(batch_end, visible_end, wanted + most), keys, now)
            if run is None:
                return None
            first, last, attempt = run
            if 0 < self.rules.max_attempts < attempt:
                # The leader before had no time to write them.
                return self._exhaust(first, last, attempt - 1, _USED_UP)
            tries = Tries(attempt)
        assert is_apart <= tries.is_apart, (wanted, tries)
        return self._hold(member, first, last, tries, visible_end, now)

    def _advance(self, end: int, keys: BatchKeys | None, now: float) -> Attempts | None:
        """Move the cursor to `end` at most; returns what is to be delivered of what it passed."""
        first = self.frontier.cursor
        end, attempt = self.frontier.run(end)
        is_taken, end = self.taken.run(first, end)
        if self.keys is not None and keys is not None:
            first, end = self.keys.advance(first, end, attempt, keys)
        self.frontier.move(end)
        if first == end:
            return None
        if is_taken:
            # Under an earlier leader. It comes back to those that wait, and keeps its key busy.
            self.taken.keep(Again(first, end - 1, Tries(attempt), now, 0))
            return None
        return first, end - 1, attempt

    def _hold(
        self, member: Member, first: int, last: int, tries: Tries, visible_end: int, now: float
    ) -> Assignment:
        count = last - first + 1
        assert first >= self.floor, (first, self.floor)
        assert 0 < count <= member.credit, (count, member.credit)
        delivery = self.held.begin(member, first, last, tries, now)
        member.has_apart = tries.is_apart
        member.tried = delivery.number if member.is_on_trial else 0
        assert not tries.is_apart or member.outstanding == 0 < count == 1, (member.holds(), count)
        member.credit -= count
        member.delivered += count
        is_last = bool(member.batch_size) and self._source(visible_end, now) is None
        ends = self.takers.served(member, count, is_last=is_last)
        return Assignment(member.number, delivery.number, first, last, tries.attempt, ends)

    def rest(self) -> Sequence[int]:
        """Nothing can be delivered now: members whose batch was begun, and ends as it is."""
        return self.takers.end_batches()

    # --- acknowledgements -----------------------------------------------------------------------

    def acknowledge(
        self, member: int, number: int, first: int, last: int, now: float = 0.0
    ) -> list[Range]:
        """Offsets that count as acknowledged now; the caller logs them.

        Offsets that this member does not hold under this delivery do not count, unless nobody
        holds them: then it is as good as anybody's. What a transaction has of the delivery counts
        once that is rolled back.
        """
        counted: list[Range] = []
        delivery = self.held.under(member, number)
        if delivery is not None:
            counted = self._release(delivery, first, last, now)
            released = size(counted)
            self.members[member].acknowledged += released
            self._note_work(member, counted, now)
            if released > last - first and not self.rules.is_strict:
                return counted
        self.taken.hear(member, number, first, last, DEALT_WITH)
        if self.waiting:
            # What is in flight under another token is somebody else's, and stays there.
            counted += self.waiting.take(first, last)
            self._note_work(member, counted, now)
        self._note_settling(counted)
        return counted

    def _note_work(self, member: int, counted: Sequence[Range], now: float) -> None:
        """The member has dealt with something, in time or late."""
        if not counted or (holder := self.members.get(member)) is None:
            return
        holder.dealt_at = now
        if holder.in_vain or holder.tried:
            self.takers.recovered(holder)

    def acknowledge_late(self, first: int, last: int, by: int = 0, now: float = 0.0) -> list[Range]:
        """The same of what was delivered in an earlier ballot, or before the group was forgotten
        here: also where it stands in line, or the cursor has not reached it yet (PROTOCOL D2)."""
        counted: list[Range] = []
        for a, b in self.taken.untaken(first, last):
            counted += self.waiting.take(a, b)
            fresh = self.frontier.acknowledge(a, b)
            if self.keys is not None:
                counted += self.keys.acknowledge(a, b)
                for above in fresh:
                    self._late.add(*above)
            counted += fresh
        self._note_work(by, counted, now)
        self._note_settling(counted)
        return counted

    def unacknowledged(self, first: int, last: int) -> list[Range]:
        """What of these nobody has dealt with: a member holds it or a transaction has it, it stands
        in line, or is not reached yet. Nothing of them may wait; what dies the driver knows."""
        found = self.taken.had(first, last)
        behind = self.keys.unacknowledged(first, last) if self.keys is not None else []
        for a, b in (*behind, *self.frontier.unacknowledged(first, last)):
            found.add(a, b)
        return found.ranges()

    def _note_settling(self, counted: Sequence[Range]) -> None:
        if self.rules.is_strict:
            self._settling += size(counted)

    def settled(self, ranges: Sequence[Range], now: float) -> Effects:
        """These acknowledgements are committed: what order held back may follow."""
        effects = Effects()
        self._note_settled(ranges)
        if self.keys is not None:
            for first, last in ranges:
                self._late.remove(first, last)
            self._free_keys(ranges, now, effects)
        return effects

    def _note_settled(self, ranges: Sequence[Range]) -> None:
        if self.rules.is_strict:
            self._settling -= size(ranges)

    def _free_keys(self, ranges: Sequence[Range], now: float, effects: Effects) -> None:
        assert self.keys is not None
        for parked in self.keys.finish(ranges, above=self.dropped_below):
            offset, attempt = parked.offset, parked.attempt
            self._put_again_or_exhaust(Again(offset, offset, Tries(attempt), now, 0), effects)

    # --- deliveries that end --------------------------------------------------------------------

    def refuse(
        self,
        member: int,
        number: int,
        first: int,
        last: int,
        now: float,
        *,
        delay_s: float | None = None,
        reason: str = "",
        is_unseen: bool = False,
        share: float = 1.0,
    ) -> Effects:
        """A nack: deliver again, after `delay_s` or what `patience` makes of it. Only who holds the
        offsets can refuse them; what a transaction has of them, once it is rolled back. `share` is
        random, 0.5 to 1."""
        effects = Effects()
        refusal = Refusal(now, delay_s, reason or "refused", is_unseen, share)
        is_given_back = self.taken.hear(member, number, first, last, refusal)
        delivery = self.held.under(member, number)
        if delivery is not None:
            ranges = self._release(delivery, first, last, now)
            self._end_refused(delivery, ranges, refusal, effects)
            is_given_back = is_given_back or bool(ranges)
        if is_given_back and not is_unseen:
            self.members[member].dealt_at = now
        if is_given_back and not effects.exhausted and refusal.is_soon:
            self.takers.gave_back(self.members[member], now, share)
        return effects

    def _end_refused(
        self, delivery: Delivery, ranges: Iterable[Range], refusal: Refusal, effects: Effects
    ) -> None:
        not_before = refusal.not_before(delivery.tries.attempt)
        self._end(delivery, ranges, not_before, refusal.cause, effects, refusal.reason)

    def expire(self, now: float) -> Effects:
        """End the deliveries whose deadline has passed."""
        effects = Effects()
        while (delivery := self.held.overdue(now)) is not None:
            # Each piece that is given back begins the deadline of the others anew.
            ranges, armed = delivery.held.ranges(), delivery.armed
            for first, last in ranges:
                self._release(delivery, first, last, now)
            member = self.members[delivery.member]
            # What it dealt with in the moment in which this began was before it.
            member.is_stalled = member.dealt_at <= armed
            self.takers.gave_back(member, now, 1.0)
            self._end(delivery, ranges, now, Cause.FAILED, effects, "its ack deadline passed")
            effects.expired.append(Expired(member.number, delivery.number, tuple(ranges)))
        return effects

    def extend(self, member: int, number: int, now: float) -> bool:
        """The member is still at work; returns whether it holds the delivery."""
        if (delivery := self.held.under(member, number)) is not None:
            self.held.arm(delivery, now)
        return delivery is not None

    def _release(self, delivery: Delivery, first: int, last: int, now: float) -> list[Range]:
        """The member gives some of a delivery back, one way or another."""
        released = self.held.release(delivery, first, last, now)
        if released:
            self._regain(delivery.member, size(released))
        return released

    def _regain(self, member: int, records: int) -> None:
        """The member does not stand for these any more, if it is still here."""
        if (holder := self.members.get(member)) is not None:
            holder.regain(records)
            self.takers.offer(holder)

    def _end(
        self,
        delivery: Delivery,
        ranges: Iterable[Range],
        not_before: float,
        cause: Cause,
        effects: Effects,
        reason: str,
    ) -> None:
        """These offsets were delivered in vain."""
        tries, member = delivery.tries, delivery.member
        then = tries.after(cause, self.rules.max_attempts)
        for first, last in ranges:
            if then is None or then.attempt > tries.attempt:
                effects.ended.append((first, last, tries.attempt))
            if then is None:
                effects.exhausted.append(self._exhaust(first, last, tries.attempt, reason))
            else:
                self._put_again(Again(first, last, then, not_before, member), effects)

    def _exhaust(self, first: int, last: int, attempts: int, reason: str) -> Exhausted:
        self._note_settling([(first, last)])
        return Exhausted(first, last, attempts, reason)

    def put_back(self, dead: Exhausted, not_before: float) -> Effects:
        """It could not be written to the dead letters: deliver it again."""
        effects = Effects()
        self._note_settled([(dead.first, dead.last)])
        again = Again(dead.first, dead.last, Tries(dead.attempts + 1), not_before, 0)
        self._put_again(again, effects)
        return effects

    def _put_again(self, again: Again, effects: Effects) -> None:
        """It is delivered again, if it is still there, and nobody has taken it."""
        for each in self.taken.keep(again):
            first, last, kept = each.first, each.last, self.dropped_below
            if first < kept and self.keys is not None:
                self._free_keys([(first, min(last, kept - 1))], again.not_before, effects)
            if kept <= last:
                self.waiting.put(replace(each, first=max(first, kept)))

    def _put_again_or_exhaust(self, again: Again, effects: Effects) -> None:
        """The same of what an earlier leader may have had no time to write as a dead letter."""
        if 0 < self.rules.max_attempts < again.tries.attempt:
            for each in self.taken.keep(again):
                dead = self._exhaust(each.first, each.last, each.tries.attempt - 1, _USED_UP)
                effects.exhausted.append(dead)
        else:
            self._put_again(again, effects)

    # --- transactions ---------------------------------------------------------------------------

    def take(self, transaction: TransactionId, ranges: Iterable[Range], now: float) -> None:
        """The transaction acknowledges these, and is not over: nobody else is given them or ends
        them. Whoever holds them gets them back with `untake`; they count as its own until then."""
        self.taken.mark(transaction, ranges, self.frontier.cursor, now)

    def untake(self, transaction: TransactionId, ranges: Sequence[Range], now: float) -> Effects:
        """It was rolled back. What it had is with its member again, its deadline begins anew, or is
        what that has said meanwhile; where that has gone, and said nothing, the delivery was in
        vain, and somebody else gets it."""
        effects = Effects()
        for first, last, known in self.taken.give_back(transaction, ranges):
            place, span = known.place, [(first, last)]
            if isinstance(place, Again):
                self._put_again_or_exhaust(replace(place, first=first, last=last), effects)
            elif place is not None and isinstance(known.word, Refusal):
                self._regain(place.member, last - first + 1)
                self._end_refused(place, span, known.word, effects)
            elif place is not None and known.word is not None:
                self._dealt_with(place.member, span, now)
                self._note_settling(span)
                effects.acknowledged += span
            elif place is not None and place.member in self.members:
                self.held.put(place, first, last, now)
            elif place is not None:
                # What else it had, nobody remembers.
                is_alone = place.tries.is_apart or self.rules.is_strict
                cause = Cause.LOST_ALONE if is_alone else Cause.LOST_WITH_OTHERS
                self._end(place, span, now, cause, effects, _MEMBER_GONE)
        return effects

    def finish(self, ranges: Sequence[Range], now: float) -> Effects:
        """A transaction has acknowledged these, and that is committed."""
        effects = Effects()
        for first, last, delivery in self.taken.finish(ranges, self.frontier.cursor, now):
            self._dealt_with(delivery.member, [(first, last)], now)
        for first, last in ranges:
            self.frontier.acknowledge(first, last)
            if self.keys is not None:
                self.keys.acknowledge(first, last)
                self._late.remove(first, last)
        if self.keys is not None:
            self._free_keys(ranges, now, effects)
        return effects

    def _dealt_with(self, member: int, ranges: Sequence[Range], now: float) -> None:
        """These, which the member had and a transaction took, are acknowledged."""
        if member in self.members:
            self.members[member].acknowledged += size(ranges)
            self._regain(member, size(ranges))
            self._note_work(member, ranges, now)

    # --- what is over ---------------------------------------------------------------------------

    def skip_below(self, offset: int, now: float = 0.0) -> Effects:
        """Retention has dropped everything below `offset` and moved the floor there. What members
        hold of it they may still acknowledge; it is not delivered again."""
        effects = Effects()
        if offset <= self.dropped_below:
            return effects
        self.dropped_below = offset
        dropped = self.waiting.take_below(offset)
        if self.keys is not None:
            self._free_keys(dropped, now, effects)
        self.raise_floor(offset)
        self.frontier.move(max(self.frontier.cursor, offset))
        return effects

    def raise_floor(self, floor: int) -> None:
        """Progress was committed. It comes from several at the same time, and may be late; or
        early, where retention has moved the log's floor, and `skip_below` comes with the next turn:
        what waits may stand below it until then, and what is held. `_hold` gives none of it."""
        self.floor = max(self.floor, floor)
