"""Members of a group, what each holds, and whose turn it is. Pure.

A member is in the line of takers while it would take something; whoever is picked goes to the end
of it. So a delivery costs the same with one member and with hundreds, and one that takes nothing,
because it is slow or does not read, is not even looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from hadron.delivery.patience import (
    BATCH_LINGERS,
    DRAIN_PAUSE_S,
    DRAIN_S,
    FREE_IN_A_ROW,
    LINGER_S,
    rest_s,
)
from hadron.delivery.tries import Tries
from hadron.model.ranges import Range, RangeSet


class DeliveryNumbers:
    """Numbers of deliveries: unique in the ballot, whatever the group (PROTOCOL D2)."""

    def __init__(self) -> None:
        self.last = 0

    def __iter__(self) -> DeliveryNumbers:
        return self

    def __next__(self) -> int:
        self.last += 1
        return self.last


@dataclass(slots=True)
class Delivery:
    """Offsets that one member holds; `number` is unique in the ballot (PROTOCOL D2)."""

    number: int
    member: int
    tries: Tries
    held: RangeSet
    since: float
    armed: float = 0.0
    """When its deadline began, for the last time."""
    expires: float = float("inf")


@dataclass(slots=True)
class Member:
    """A connected member.

    Attributes:
        credit: how many more records it takes; below 0 when its window was made smaller.
        batch_size: records that it wants at a time, 0 for no batches.
        dealt_at: when it last acknowledged or refused something.
        is_stalled: a deadline of it passed in which it dealt with nothing, nor has it in time
            since: it gets one record at a time.
        filled: records of the batch that it is being sent.
        waiting_since: when there was the first record for its next batch.
        has_apart: what it was given last is to be alone with it.
        drains: it gets nothing before it holds nothing, or that takes too long.
        tried: the delivery of one record that it was given last while it was on trial.
        lingered: how often `LINGER_S` has passed with credit that is less than a quantum.
        in_vain: ranges that it has given back since it acknowledged something.
        rests: how often it has rested since then.
        rests_until: it gets nothing before; None while it does not rest.
    """

    number: int
    max_in_flight: int
    credit: int
    deliveries: dict[int, Delivery] = field(default_factory=dict)
    is_writable: Callable[[], bool] = lambda: True
    batch_size: int = 0
    batch_wait_s: float = 0.0
    dealt_at: float = float("-inf")
    is_stalled: bool = False
    filled: int = 0
    waiting_since: float | None = None
    has_apart: bool = False
    drains: bool = False
    tried: int = 0
    lingered: int = 0
    in_vain: int = 0
    rests: int = 0
    rests_until: float | None = None
    delivered: int = 0
    acknowledged: int = 0

    @property
    def is_on_trial(self) -> bool:
        """It gets one record at a time, beside what it held before, until it deals with one."""
        return self.is_stalled or self.rests > 0

    @property
    def quantum(self) -> int:
        """Smallest useful delivery, but for what has lingered: sending single records to a member
        that takes hundreds would cost a message each."""
        if self.batch_size:
            return min(self.batch_size, self.max_in_flight)
        return max(1, self.max_in_flight // 4)

    @property
    def wants(self) -> bool:
        """Whether it has credit that is worth a message."""
        if self.credit <= 0 or self.rests_until is not None:
            return False
        if (self.has_apart or self.drains) and self.is_alone:
            return False
        if self.is_on_trial:
            return self.tried not in self.deliveries
        return (
            not self.deliveries
            or self.credit >= self.quantum
            or self.filled > 0
            or self.has_lingered
        )

    @property
    def has_lingered(self) -> bool:
        """Its credit is small, and nothing more has come to it for a while."""
        return self.lingered >= (BATCH_LINGERS if self.batch_size else 1)

    @property
    def lingers(self) -> bool:
        """It would be given something if its credit had been there for a while."""
        return (
            0 < self.credit < self.quantum
            and not (self.is_on_trial or self.is_alone)
            and self.is_writable()
        )

    @property
    def is_alone(self) -> bool:
        """It gets nothing beside what it holds."""
        return self.outstanding > 0 and (self.has_apart or self.drains)

    @property
    def takes_more(self) -> bool:
        return self.wants and self.is_writable()

    @property
    def most(self) -> int:
        """Records that it may be given at once."""
        if self.is_on_trial:
            return 1
        return min(self.credit, self.batch_size - self.filled) if self.batch_size else self.credit

    @property
    def outstanding(self) -> int:
        """Records that it holds, or that a transaction has taken from it."""
        return self.max_in_flight - self.credit

    def regain(self, records: int) -> None:
        """It has dealt with these, or given them back: credit again, and no deadline passes over
        them."""
        self.credit += records
        self.is_stalled = False
        self.tried = self.tried if self.is_on_trial else 0

    def holds(self) -> list[Range]:
        return [part for each in self.deliveries.values() for part in each.held.ranges()]


class Next(NamedTuple):
    """What comes next, whoever is given it.

    Attributes:
        avoid: the member that it is rather not given to.
        is_apart: whoever is given it must hold nothing else.
    """

    offset: int
    avoid: int = 0
    is_apart: bool = False


class Chosen(NamedTuple):
    """What comes next, and whose turn it is. It is so until anything happens."""

    next: Next
    member: Member


class Takers:
    """The members that would take something, in the order of their turns."""

    def __init__(self) -> None:
        self._line: dict[int, Member] = {}
        self.patient: dict[int, Member] = {}
        """Those in the line that wait for a batch to become full."""
        self.filling: Member | None = None
        """Its batch is being sent: it goes on before anybody else gets something."""
        self.resting: dict[int, Member] = {}
        """Those that have given back too much in a row."""
        self.lingering: dict[int, Member] = {}
        """Those with little credit, which has been there for less than a while."""
        self._linger_until: float | None = None
        self.draining: Member | None = None
        """It is to hold nothing, so that it can be given a record apart."""
        self._drains_since = 0.0
        self._drain_again = float("-inf")
        self.interrupted: list[int] = []
        """Members whose batches ended without a delivery that could have said so."""

    def __bool__(self) -> bool:
        return bool(self._line)

    @property
    def is_timed(self) -> bool:
        """Whether somebody waits for a time."""
        return bool(self.patient or self.resting or self.lingering or self.draining)

    def is_alone_on_trial(self, number: int) -> bool:
        """Whether only this member would take something, and gets one record at a time."""
        member = self._line.get(number)
        return member is not None and len(self._line) == 1 and member.is_on_trial

    def offer(self, member: Member) -> None:
        """The member may have become one that takes something."""
        if member.number in self._line:
            return
        if member.takes_more:
            self._line[member.number] = member
        elif member.lingers:
            self.lingering[member.number] = member

    def remove(self, member: Member) -> None:
        self._line.pop(member.number, None)
        self.patient.pop(member.number, None)
        if self.filling is member:
            self.filling = None

    def forget(self, member: Member) -> None:
        """The member has gone."""
        self.remove(member)
        self.resting.pop(member.number, None)
        self.lingering.pop(member.number, None)
        self._drained(member)

    # --- records that are delivered apart -------------------------------------------------------

    def make_way(self, now: float) -> bool:
        """Whether somebody takes something who holds nothing. If not, one gets nothing more until
        that is so; see `patience`."""
        takes = [each for each in self._line.values() if each.takes_more]
        if any(not each.outstanding for each in takes):
            return True
        if takes and self.draining is None and now >= self._drain_again:
            self.draining, self._drains_since = takes[0], now
            takes[0].drains = True
        return False

    def look_at_drain(self, now: float, *, is_needed: bool) -> None:
        """It is over once nothing waits that is to be delivered apart, or its member has dealt with
        nothing for too long."""
        member = self.draining
        if member is None or (is_needed and now < self._drains_until(member)):
            return
        if is_needed:
            self._drain_again = now + DRAIN_PAUSE_S
        self._drained(member)
        self.offer(member)

    def _drains_until(self, member: Member) -> float:
        return max(self._drains_since, member.dealt_at) + DRAIN_S

    def _drained(self, member: Member) -> None:
        if self.draining is member:
            self.draining = None
            member.drains = False

    # --- those that give everything back --------------------------------------------------------

    def gave_back(self, member: Member, now: float, share: float) -> None:
        """A range that the member could not use; see `patience`."""
        member.in_vain += 1
        if member.in_vain > FREE_IN_A_ROW and member.rests_until is None:
            member.rests_until = now + rest_s(member.rests, share)
            member.rests += 1
            self.resting[member.number] = member

    def recovered(self, member: Member) -> None:
        """It has dealt with a record."""
        member.in_vain = member.rests = member.tried = 0
        self._end_rest(member)
        self.offer(member)

    def wake(self, now: float) -> None:
        """Those that have rested may be given something again."""
        for member in list(self.resting.values()):
            assert member.rests_until is not None
            if member.rests_until <= now:
                self._end_rest(member)
                self.offer(member)

    def _end_rest(self, member: Member) -> None:
        member.rests_until = None
        self.resting.pop(member.number, None)

    # --- those with little credit ---------------------------------------------------------------

    def end_linger(self, now: float) -> None:
        """All of them at once, however short a time each has been among them: a timer for all."""
        if self._linger_until is None or now < self._linger_until:
            return
        lingering, self.lingering, self._linger_until = self.lingering, {}, None
        for member in lingering.values():
            member.lingered = member.lingered + 1 if member.lingers else 0
            self.offer(member)

    # --- whose turn it is -----------------------------------------------------------------------

    def pick(self, available: int, now: float, wanted: Next) -> Member | None:
        """Whose turn it is; `available` is how many records there are: who wants a batch may wait
        for more."""
        if self.filling is not None:
            if self.filling.takes_more and not wanted.is_apart:
                return self.filling
            self.interrupt()
        idle: list[Member] = []
        found: Member | None = None
        for member in self._line.values():
            if not member.takes_more:
                idle.append(member)
            elif wanted.is_apart:
                if not member.outstanding:
                    return member
            elif not member.batch_size or self._batch_is_ready(member, available, now):
                found = member
                if member.number != wanted.avoid:
                    break
        for member in idle:
            # Offered again when it has read something, or acknowledged.
            self.remove(member)
        return found

    def _batch_is_ready(self, member: Member, available: int, now: float) -> bool:
        if available >= min(member.batch_size, member.max_in_flight):
            return True
        if member.waiting_since is None:
            member.waiting_since = now
        # Again: it may have been out of the line since, as it did not read.
        self.patient[member.number] = member
        return now >= member.waiting_since + member.batch_wait_s

    def served(self, member: Member, count: int, *, is_last: bool) -> bool:
        """So many records go to the member. Returns whether its batch is complete with them;
        `is_last`: there is nothing more for it now."""
        self.remove(member)
        self._drained(member)
        member.lingered = 0
        ends = False
        if member.batch_size:
            member.filled += count
            member.waiting_since = None
            ends = member.filled >= member.batch_size or is_last or not member.wants
            if ends:
                member.filled = 0
            else:
                self.filling = member
        self.offer(member)
        return ends

    def interrupt(self) -> None:
        """A batch that was begun must be ended as it is: nothing follows for it now."""
        member, self.filling = self.filling, None
        if member is not None:
            member.filled = 0
            self.interrupted.append(member.number)

    def end_batches(self) -> list[int]:
        """Nothing follows for anybody: members that are to be told that their batch has ended."""
        if self.filling is not None:
            self.interrupt()
        return self.take_interrupted() if self.interrupted else []

    def take_interrupted(self) -> list[int]:
        """Members that are to be told so, before they are given anything more."""
        numbers, self.interrupted = self.interrupted, []
        return numbers

    def nothing_there(self) -> None:
        """There is no record: the wait for a batch begins with the next one."""
        for member in self.patient.values():
            member.waiting_since = None
        self.patient.clear()

    def next_due(self, now: float) -> float | None:
        """When somebody will have waited, rested, lingered or been drained for long enough."""
        dues = [
            member.waiting_since + member.batch_wait_s
            for member in self.patient.values()
            if member.waiting_since is not None
        ]
        dues += [
            member.rests_until for member in self.resting.values() if member.rests_until is not None
        ]
        if self.draining is not None:
            dues.append(self._drains_until(self.draining))
        if self.lingering:
            if self._linger_until is None:
                self._linger_until = now + LINGER_S
            dues.append(self._linger_until)
        return min((due for due in dues if due > now), default=None)
