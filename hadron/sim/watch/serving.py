"""PROTOCOL D2: what leaders of groups owe their members, and members each other: nothing is late,
comes too early, or is somebody else's by now.

Times are those of who promised: a leader's deadlines begin where it hears something, a member's
time where it has said something.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import trio

from hadron.client.consuming.acks import LateAcks
from hadron.client.consuming.channel import Channel, Parcel
from hadron.client.consuming.consumer import Consumer
from hadron.client.consuming.membership import Membership
from hadron.delivery.driver import GroupDriver
from hadron.delivery.effects import Assignment, Exhausted
from hadron.delivery.ledger import LoggedLedger
from hadron.delivery.port import Ack, Extend, Nack, Said
from hadron.delivery.sessions import MemberSession
from hadron.model.batch import StampedBatch
from hadron.model.errors import NotFoundError
from hadron.model.ids import Ballot
from hadron.model.ranges import Range
from hadron.model.record import Record
from hadron.model.record_batch import decode_batch
from hadron.sim.watch.ballots import Ballots
from hadron.sim.watch.entries import Acknowledged
from hadron.sim.watch.marks import Mark
from hadron.sim.watch.places import Places
from hadron.sim.watch.views import Complaints
from hadron.state.groups.progress import ORDER_KEY, ORDER_NONE

_LATE_S: Final = 0.5
"""By which a leader may be late: it wakes up on time, and has little to do then."""

_WRITTEN: Final = (
    "SELECT epoch, incarnation FROM hadron_stream_batch WHERE stream_id = ? AND base_offset <= ?"
    " ORDER BY base_offset DESC LIMIT 1"
)

_GROUP_ID: Final = "SELECT group_id FROM hadron_group WHERE stream_id = ? AND name = ?"


class Serving:
    """Every group on every leader, and every member."""

    def __init__(
        self, complaints: Complaints, ballots: Ballots, acknowledged: Acknowledged
    ) -> None:
        self._complaints = complaints
        self._ballots = ballots
        self._acknowledged = acknowledged
        self._places = Places(complaints)
        self._looked: WeakKeyDictionary[GroupDriver, float] = WeakKeyDictionary()
        self._dues: WeakKeyDictionary[GroupDriver, dict[int, float]] = WeakKeyDictionary()
        """By delivery: when it is to end."""
        self._heard: dict[tuple[GroupDriver, int], float] = {}
        """When each member was heard of."""
        self._settling: WeakKeyDictionary[LoggedLedger, set[int]] = WeakKeyDictionary()
        """Offsets that are acknowledged or to be dead letters; some of them are committed."""
        self._keys: dict[tuple[str, int, int], Any] = {}
        """By replica set, stream and offset: keys of records in batches that a group by key was
        given something of."""
        self._held_until: WeakKeyDictionary[Channel, float] = WeakKeyDictionary()
        self._seen: WeakKeyDictionary[LateAcks, dict[int, list[Any]]] = WeakKeyDictionary()
        """Of each member, by offset: what its program was given there."""

    def _mark(self, driver: GroupDriver) -> Mark | None:
        mark = self._ballots.mark_of(driver._ground.controller)
        return mark if mark is not None and mark.view.is_alive else None

    # --- which group ----------------------------------------------------------------------------

    def joined(self, driver: GroupDriver, session: MemberSession) -> None:
        """A member has joined a group."""
        self._heard[driver, session.member.number] = trio.current_time()

    def _check_group(self, driver: GroupDriver, mark: Mark) -> None:
        """While a group is changed nobody serves it: who does has read what the tables have."""
        progress = driver.progress
        if driver.is_ephemeral or not mark.controller.leads:
            return
        row = mark.view.select(_GROUP_ID, progress.stream_id, progress.name)
        if row is not None and row[0] != progress.group_id:
            self._complaints.add(
                "D2 a group is served as the tables have it",
                f"{mark.view.name} serves group {progress.name} as {progress.group_id}, by now it "
                f"is {row[0]}",
            )

    # --- in time --------------------------------------------------------------------------------

    def said(self, driver: GroupDriver, session: MemberSession, said: Said) -> None:
        """A member says something: it is heard of, and the deadlines of what that is about begin
        again."""
        now = trio.current_time()
        self._heard[driver, session.member.number] = now
        dues = self._dues.get(driver)
        if dues and isinstance(said, Ack | Nack | Extend):
            held = session.member.deliveries
            named = {number for number, _, _ in said.ranges}
            for number in named if named or not isinstance(said, Extend) else list(held):
                if number in dues and number in held:
                    dues[number] = self._due(driver, now)

    def moved(self, driver: GroupDriver, before: dict[int, int]) -> None:
        """Transactions have taken records, or given them back: the deadline begins again of what is
        left of each delivery. `before` says how many records each had."""
        now, dues = trio.current_time(), self._dues.get(driver, {})
        for delivery in driver.machine.held:
            if delivery.number in dues and before.get(delivery.number) != len(delivery.held):
                dues[delivery.number] = self._due(driver, now)

    def _due(self, driver: GroupDriver, now: float) -> float:
        return now + driver.progress.options.ack_deadline_ms / 1_000

    def look(self, driver: GroupDriver) -> None:
        """Now and then: whether it serves the group that there is, and something should have ended
        by now."""
        now, mark = trio.current_time(), self._mark(driver)
        if mark is None or driver.is_closed or now < self._looked.get(driver, 0.0):
            return
        self._looked[driver] = now + _LATE_S / 2
        self._check_group(driver, mark)
        if isinstance(driver.ledger, LoggedLedger) and mark.controller.leads:
            self._unsettled(driver, mark)
            self._places.look(driver, mark, self._unheard(driver, mark))
        self._check_deadlines(driver, mark, now)
        for session in driver.sessions.values():
            patience_s = session.heartbeat_interval_ms * session.heartbeat_threshold / 1_000
            silent_s = now - self._heard.get((driver, session.member.number), now)
            if patience_s and silent_s > patience_s + _LATE_S:
                self._complaints.add(
                    "D2 who is silent is gone",
                    f"{mark.view.name} has not heard of {session.label} of group "
                    f"{driver.progress.name} for {silent_s:.1f} s; it had promised {patience_s:g}",
                )

    def _unheard(self, driver: GroupDriver, mark: Mark) -> set[int]:
        """Offsets that were dealt with, of which the leader has not heard that a majority has
        that: answers may be held back for longer than it is so."""
        found = set(self._settling.get(driver.ledger, ()))  # type: ignore[call-overload]
        if driver.machine.keys is not None:
            for offset in driver.machine.keys._current:
                group_id = driver.progress.group_id
                lsn = self._acknowledged.lsn_of(mark.view.name, group_id, offset)
                if lsn is not None and lsn > mark.controller.committed_lsn:
                    found.add(offset)
        return found

    def _check_deadlines(self, driver: GroupDriver, mark: Mark, now: float) -> None:
        dues = self._dues.get(driver, {})
        for number, due in list(dues.items()):
            if number not in driver.machine.held:
                del dues[number]
            elif now > due + _LATE_S:
                self._complaints.add(
                    "D2 a deadline ends a delivery",
                    f"{mark.view.name} leaves delivery {number} of group {driver.progress.name} "
                    f"with its member {now - due:.1f} s after its deadline",
                )

    # --- in turn --------------------------------------------------------------------------------

    def acknowledged(self, ledger: LoggedLedger, ranges: Iterable[Range]) -> None:
        """Members have acknowledged records; it is not committed yet."""
        offsets = self._settling.setdefault(ledger, set())
        for first, last in ranges:
            offsets.update(range(first, last + 1))

    def exhausted(self, driver: GroupDriver, dead: Sequence[Exhausted]) -> None:
        """Records are to be dead letters."""
        if isinstance(driver.ledger, LoggedLedger):
            self.acknowledged(driver.ledger, ((each.first, each.last) for each in dead))

    def settled(self, driver: GroupDriver, ranges: Iterable[Range]) -> None:
        """These are over for their group, as far as its leader knows: nobody gets them any more."""
        mark = self._mark(driver)
        if mark is None or driver.is_closed or not isinstance(driver.ledger, LoggedLedger):
            return
        for first, last in ranges:
            self._places.settled(driver, mark, first, last)

    def put_back(self, driver: GroupDriver, dead: Exhausted) -> None:
        """These could not be written."""
        if isinstance(driver.ledger, LoggedLedger):
            self._settling[driver.ledger].difference_update(range(dead.first, dead.last + 1))

    def counted(self, driver: GroupDriver, late: Ballot | None, ranges: Iterable[Range]) -> None:
        """A leader takes these for acknowledged, by a token of an earlier ballot: what has been
        written since was in no delivery of that."""
        mark = self._mark(driver)
        if mark is None or late is None or late >= mark.controller.ballot:
            return
        for _, last in ranges:
            written = mark.view.select(_WRITTEN, driver.progress.stream_id, last)
            if written is not None and Ballot(*written) > late:
                self._complaints.add(
                    "D2 what is acknowledged late was there then",
                    f"{mark.view.name} takes offset {last} of group {driver.progress.name} for "
                    f"dealt with in ballot {late}; it was written in {Ballot(*written)}",
                )

    def delivered(self, session: MemberSession, given: Assignment, batch: StampedBatch) -> None:
        """Records are given to a member: in order, once what is before them is committed."""
        driver = session.driver
        options, mark = driver.progress.options, self._mark(driver)
        if options.ack_deadline_ms:
            due = self._due(driver, trio.current_time())
            self._dues.setdefault(driver, {})[given.delivery] = due
        if mark is None:
            return
        if isinstance(driver.ledger, LoggedLedger):
            self._places.delivered(driver, mark, given.first, given.last)
        if options.order == ORDER_NONE:
            return
        where = mark.view.replica_set, driver.progress.stream_id
        keys: dict[Any, int] = {}
        if options.order == ORDER_KEY:
            records = decode_batch(batch.data, base_offset=batch.base_offset).records()
            for offset, record in enumerate(records, batch.base_offset):
                self._keys[*where, offset] = record.key
                if record.key is not None and given.first <= offset <= given.last:
                    keys[record.key] = offset
        for offset in self._unsettled(driver, mark):
            follows = given.last
            if options.order == ORDER_KEY:
                follows = keys.get(self._keys.get((*where, offset)), -1)
            if offset < follows:
                self._complaints.add(
                    "D2 what follows waits for the commit",
                    f"{mark.view.name} delivers offset {follows} of group {driver.progress.name}; "
                    f"that {offset} before it was dealt with is not committed",
                )

    def _unsettled(self, driver: GroupDriver, mark: Mark) -> list[int]:
        """Kept offsets that were dealt with, while that is not committed yet, or their leader
        cannot know that it is: what it does then goes well by luck."""
        offsets = self._settling.get(driver.ledger, set())  # type: ignore[call-overload]
        try:
            kept = driver._visible.bounds(driver.progress.stream_id).first_offset
        except NotFoundError:
            return []  # Its stream was deleted just now, and it ends in this turn.
        for offset in list(offsets):
            lsn = self._acknowledged.lsn_of(mark.view.name, driver.progress.group_id, offset)
            # What retention dropped meanwhile is on its way too, and no entry will name it.
            is_moot = offset < kept and driver.ledger.is_idle and driver._letters.is_idle
            known_lsn = min(mark.true_lsn, mark.controller.committed_lsn)
            if is_moot or (lsn is not None and lsn <= known_lsn):
                offsets.discard(offset)
        return sorted(offset for offset in offsets if offset >= kept)

    # --- members --------------------------------------------------------------------------------

    def beats(self, member: Membership) -> None:
        """A member has said, or says again, that it is there. Once its time is over that comes too
        late: the leader may have given its records to others."""
        opening, channel, now = member._opening.open, member.channel, member._clock()
        patience_s = opening.heartbeat_interval_ms * opening.heartbeat_threshold / 1_000
        if channel is not None and patience_s and now <= self._held_until.get(channel, now):
            self._held_until[channel] = now + patience_s

    def acknowledged_at_once(self, parcel: Parcel) -> None:
        """A member hands some of these out to nobody, for its program has dealt with them: with
        these, not with others that were at their offsets before."""
        assert parcel._skipped is not None
        seen = self._seen.get(parcel.channel._late, {})
        for record in parcel.batch.records(parcel.first, parcel.last):
            if record.offset in parcel._skipped and record.value not in seen.get(record.offset, ()):
                self._complaints.add(
                    "D2 what is acknowledged was handed out",
                    f"a member acknowledges {record.value!r} at offset {record.offset} for its "
                    f"program, which has seen {seen.get(record.offset, 'nothing')} there",
                )

    def handed_out(
        self, consumer: Consumer, parcels: Sequence[Parcel], records: Iterable[Record]
    ) -> None:
        """A program is given records of a partition: those that are its member's still."""
        now = consumer._clock()
        seen = self._seen.setdefault(parcels[0].channel._late, {})
        for record in records:
            seen.setdefault(record.offset, []).append(record.value)
        for parcel in parcels:
            late_s = now - self._held_until.get(parcel.channel, now)
            if late_s > 0:
                self._complaints.add(
                    "D2 what others may have is not handed out",
                    f"a member hands out offset {parcel.first}, {late_s:.1f} s after its time",
                )
