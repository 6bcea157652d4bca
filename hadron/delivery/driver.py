"""Serves one consumer group on the leader: batches in, deliveries out, progress into the log.

There is a driver per group that has members, or something of theirs on its way. Everything on the
fast path runs in callbacks: a batch becomes visible, or an acknowledgement arrives, and deliveries
leave in the same turn of the loop. A task is started only to read what is no longer in memory, to
write dead letters, and to wait for the next thing that is due.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import trio

from hadron.delivery.effects import Effects, Exhausted, Rules
from hadron.delivery.ground import Ground
from hadron.delivery.joining import Joining
from hadron.delivery.ledger import Confirmation, Ledger, LoggedLedger, MemoryLedger
from hadron.delivery.letters import DeadLetters, Origin, pause_s
from hadron.delivery.machine import Group
from hadron.delivery.port import (
    Ack,
    DeliveryRange,
    Extend,
    Flow,
    Heartbeat,
    MemberSink,
    Nack,
    Opened,
    Said,
    check_ranges,
)
from hadron.delivery.sessions import MemberSession, Silence
from hadron.delivery.shelf import Shelf
from hadron.model.backoff import jitter
from hadron.model.errors import (
    ConflictError,
    HadronError,
    NotFoundError,
    NotReadyError,
    PeerError,
    RequestError,
)
from hadron.model.ids import Ballot
from hadron.model.ranges import Range, melted, size
from hadron.model.transactions import TransactionId
from hadron.state.groups import progress as groups
from hadron.state.groups.progress import Progress, Token
from hadron.state.transactions.locks import conflict, deliveries

_log = logging.getLogger(__name__)

_DELIVERIES_PER_TURN: Final = 64
"""Deliveries to one group before others get a turn of the loop."""

_MAX_REASON: Final = 500


class GroupDriver:
    """One group with its members."""

    def __init__(
        self,
        progress: Progress,
        ground: Ground,
        *,
        origin: Origin,
        dead_letter_stream: str,
        on_idle: Callable[[], None],
        is_ephemeral: bool = False,
    ) -> None:
        """
        Args:
            dead_letter_stream: as members are told it (`port.Opened`).
            on_idle: told when the driver can be forgotten, or must be.
        """
        self.progress = progress
        self.origin = origin
        self.is_ephemeral = is_ephemeral
        self.dead_letter_stream = dead_letter_stream
        window = progress.window
        self.machine = Group(
            progress.floor,
            window.acknowledged,
            window.attempts,
            window_end=window.end,
            rules=Rules.of(progress.options),
            numbers=ground.numbers,
            key_room=ground.key_room,
        )
        self.ledger: Ledger = (
            MemoryLedger(progress.floor, self._committed)
            if is_ephemeral
            else LoggedLedger(
                ground.controller,
                progress.group_id,
                progress.floor,
                self._committed,
                self._give_up,
                is_awaited=self.machine.rules.waits_for_commits,
            )
        )
        self.sessions: dict[int, MemberSession] = {}
        self._stream_id = progress.stream_id
        self._ground = ground
        self._visible = ground.visible
        self._nursery = ground.nursery
        self._letters = DeadLetters(
            ground, origin, self._dead_letters_written, self._dead_letters_refused
        )
        self.idle_since = 0.0
        """For an ephemeral group, with `is_fading`: it will be forgotten some time after that."""
        self.is_fading = False
        self._on_idle = on_idle
        self._closed = False
        self._shelf = Shelf(ground.visible, self._stream_id, ground.shelves)
        self._silence = Silence()
        self._reading = False
        self._timer_at = float("inf")
        self._timer_scope = trio.CancelScope()
        self._pumping_later = False
        self._unwatch = ground.visible.watch(self._stream_id, self.pump)

    # --- members --------------------------------------------------------------------------------

    def join(self, sink: MemberSink, joining: Joining, *, skipped: int = 0) -> MemberSession:
        """`skipped`: as the member is told it (`port.Opened`)."""
        now = trio.current_time()
        member = self.machine.join(
            joining.max_in_flight,
            lambda: sink.writable,
            batch_size=joining.batch_size,
            batch_wait_s=joining.batch_wait_ms / 1_000,
        )
        session = MemberSession(
            self,
            member,
            sink,
            joining.member,
            now,
            now,
            joining.heartbeat_interval_ms,
            joining.heartbeat_threshold,
        )
        self.sessions[member.number] = session
        session.heard(now)
        self._silence.watch(session, now)
        self._silence.tidy(self.sessions)

        def on_writable() -> None:
            self.machine.became_writable(member.number)
            self.pump()

        sink.on_writable = on_writable
        progress = self.progress
        sink.open(
            Opened(
                self._ground.controller.ballot,
                self.floor,
                progress.options,
                self.dead_letter_stream,
                self.is_ephemeral,
                progress.fence,
                skipped,
            )
        )
        self.pump()
        return session

    def leave(self, session: MemberSession, reason: str = "its member has gone") -> None:
        if self.sessions.pop(session.member.number, None) is not None:
            now = trio.current_time()
            self._carry_out(self.machine.leave(session.member.number, now, reason))
            self.pump()
            self._tell_when_idle()

    @property
    def floor(self) -> int:
        return max(self.ledger.floor, self.machine.floor)

    @property
    def members(self) -> int:
        return len(self.sessions)

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def is_idle(self) -> bool:
        """Nobody is here, and nothing is on its way or taken: the driver can be forgotten."""
        is_over = self.ledger.is_idle and self._letters.is_idle and not self.machine.taken
        return is_over and not self.sessions

    @property
    def knows_more(self) -> bool:
        """Than the tables have: of what waits for its time (GROUPS G5), or is to be delivered apart
        (G16)."""
        waiting = self.machine.waiting
        return waiting.any_apart or waiting.next_due(trio.current_time()) is not None

    def _tell_when_idle(self) -> None:
        if self.is_idle and not self._closed:
            self._on_idle()

    def close(self, reason: HadronError | None = None) -> None:
        """Serve no more; members that are left are told why."""
        if self._closed:
            return
        self._closed = True
        self.ledger.close()
        self._letters.close()
        self._unwatch()
        self._shelf.clear()
        if self.machine.keys is not None:
            self.machine.keys.clear()
        self._timer_scope.cancel()
        sessions, self.sessions = list(self.sessions.values()), {}
        for session in sessions:
            if reason is not None:
                session.sink.fail(reason)

    def _give_up(self, reason: HadronError) -> None:
        """What this driver knows is worth nothing any more: its members join again, and the next
        driver begins with what is committed."""
        if self._closed:
            return
        _log.error("group %s is served anew: %s", self.origin.group, reason)
        if isinstance(reason, NotReadyError | ConflictError):
            # Members take the one for a reset, and forget what they have acknowledged. The other
            # is not theirs: a transaction was prepared while one acknowledged what it has.
            reason = PeerError(
                f"group {self.origin.group!r} is served anew: {reason.message}",
                "members join again",
            )
        self.close(reason)
        self._on_idle()

    # --- deliveries -----------------------------------------------------------------------------

    def pump(self) -> None:
        """Deliver what can be delivered now."""
        if self._closed:
            return
        machine = self.machine
        now = trio.current_time()
        try:
            first, end = self._visible.bounds(self._stream_id)
        except NotFoundError as error:
            self._give_up(error)
            return
        if first > machine.dropped_below:
            self._carry_out(machine.skip_below(first, now))
            self.ledger.raise_floor(first)
        machine.dying, machine.unlogged = self._letters.waiting, self.ledger.unlogged
        for _ in range(_DELIVERIES_PER_TURN):
            # To send may be to find that a member is gone, and all that follows from that.
            if self._closed:
                return
            chosen = machine.choose(end, now)
            if chosen is None:
                self._rest(end, now)
                return
            batch = self._shelf.at(chosen.next.offset)
            if batch is None:
                self._read(chosen.next.offset)
                self._arm_timer(now)
                return
            keys = self._shelf.keys(batch) if machine.needs_keys(chosen) else None
            effect = machine.assign(chosen, batch.next_offset, end, now, keys)
            if machine.takers.interrupted:
                self._end_batches(machine.takers.take_interrupted())
            if isinstance(effect, Exhausted):
                self._carry_out(Effects(exhausted=[effect]))
                machine.dying = self._letters.waiting
            elif effect is not None and effect.member in self.sessions:
                # Else its connection broke with the end of another one's batch; it has left.
                self.sessions[effect.member].deliver(effect, batch)
        self._pump_soon()

    def _rest(self, end: int, now: float) -> None:
        """Nothing can be delivered now."""
        machine = self.machine
        if machine.frontier.cursor >= end:
            self._shelf.clear()
        elif machine.frontier.needs_window:
            self._read_window()
        if machine.keys is not None:
            machine.keys.wait_for_room(self._pump_soon)
        if ended := machine.rest():
            self._end_batches(ended)
        self._arm_timer(now)

    def _end_batches(self, numbers: Sequence[int]) -> None:
        for session in filter(None, map(self.sessions.get, numbers)):
            session.sink.end_batch()

    def _pump_soon(self) -> None:
        if not self._pumping_later:
            self._pumping_later = True
            self._nursery.start_soon(self._pump_later)

    async def _pump_later(self) -> None:
        await trio.lowlevel.checkpoint()
        self._pumping_later = False
        self.pump()
        # It may have been told that there is room for keys, and have left some.
        self._ground.key_room.wake()

    def _read(self, offset: int) -> None:
        if not self._reading:
            self._reading = True
            self._nursery.start_soon(self._read_task, offset)

    async def _read_task(self, offset: int) -> None:
        try:
            batches = await self._shelf.read(offset)
            if not self._closed:
                self._shelf.keep(batches)
        except HadronError as error:
            self._give_up(error)
            return
        finally:
            self._reading = False
        self.pump()

    def _read_window(self) -> None:
        if not self._reading and not self._closed:
            self._reading = True
            self._nursery.start_soon(self._read_window_task, self.machine.frontier.cursor)

    async def _read_window_task(self, offset: int) -> None:
        group_id = self.progress.group_id
        try:
            window = await self._ground.controller.query(
                lambda db: groups.window(db, group_id, offset)
            )
        except HadronError as error:
            self._give_up(error)
            return
        finally:
            self._reading = False
        self.machine.frontier.resume(window.acknowledged, window.attempts, window.end)
        self.pump()

    # --- what is due ----------------------------------------------------------------------------

    def _arm_timer(self, now: float) -> None:
        due, silent = self.machine.next_due(now), self._silence.next_due()
        if silent is not None and (due is None or silent < due):
            due = silent
        if due is None or due >= self._timer_at or self._closed:
            return
        self._timer_scope.cancel()
        self._timer_at, self._timer_scope = due, trio.CancelScope()
        self._nursery.start_soon(self._timer, max(due, now), self._timer_scope)

    async def _timer(self, due: float, scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep_until(due)
            self._timer_at = float("inf")
            self._expire(trio.current_time())
            self.pump()
            self._tell_when_idle()

    def _expire(self, now: float) -> None:
        self._carry_out(self.machine.expire(now))
        for session in self._silence.broken(now, self.sessions):
            error = session.silence(now)
            _log.warning("%s; its records go to others", error.message)
            session.sink.fail(error)
            self.leave(session, f"its member was silent for {session.silent_s(now):.1f} s")

    # --- what members say -----------------------------------------------------------------------

    def receive(self, session: MemberSession, said: Said) -> None:
        """Raises `RequestError` for what makes no sense."""
        now = trio.current_time()
        session.heard(now)
        match said:
            case Ack():
                self.acknowledge(session, said, now)
            case Nack():
                self.refuse(session, said, now)
            case Extend():
                self.extend(session, said, now)
            case Heartbeat():
                session.sink.beat()
            case Flow():
                self.resize(session, said.max_in_flight)

    def acknowledge(self, session: MemberSession, said: Ack, now: float) -> None:
        ranges, asked, late_ballot = said
        check_ranges(ranges)
        try:
            for item in ranges:
                counted = self._count(session, item, late_ballot, now)
                # Before anything is raised: they are in no other place any more.
                self.ledger.acknowledge(counted)
                if size(counted) <= item.last - item.first:
                    session.note_refused(item, self._refused(item, late_ballot))
                    self._tell_conflicts(session, item)
            if asked:
                self.ledger.confirm(Confirmation(session.sink, asked, session.take_refused()))
        finally:
            self.ledger.flush()
            self.pump()

    def _count(
        self, session: MemberSession, item: DeliveryRange, late_ballot: Ballot | None, now: float
    ) -> list[Range]:
        """What of a range counts: under a token that is current, or as a late acknowledgement."""
        delivery, first, last = item
        ballot = self._ground.controller.ballot
        token = (*(late_ballot or ballot), delivery)
        if token <= self.progress.fence:
            # From before the group was made, or reset: whoever has the record now, or gave it back.
            return []
        counted: list[Range] = []
        if late_ballot in (None, ballot):
            counted = self.machine.acknowledge(session.member.number, delivery, first, last, now)
        if late_ballot is not None and self._may_have_been(token, last):
            counted += self.machine.acknowledge_late(first, last, session.member.number, now)
        return counted

    def _refused(self, item: DeliveryRange, late_ballot: Ballot | None) -> list[Range]:
        """What of an acknowledgement that did not count nobody has dealt with. Of what was dealt
        with it may be the second one, and nobody need hear of that.

        *(An acknowledgement was committed, its call was lost before it was confirmed, and it comes
        again on the next one: its member was told that it came too late.)*
        """
        delivery, first, last = item
        token = (*(late_ballot or self._ground.controller.ballot), delivery)
        is_late = late_ballot is not None
        if token <= self.progress.fence or (is_late and not self._may_have_been(token, last)):
            # It is of other records.
            return [(first, last)]
        dying = self._letters.unwritten(first, last)
        return melted([*dying, *self.machine.unacknowledged(first, last)])

    def _may_have_been(self, token: Token, last: int) -> bool:
        """Whether there can have been a delivery with this token: given out before now, and of
        records that were there then. *(A restore, or `recover`, has put others at their offsets.)*
        """
        ballot = self._ground.controller.ballot
        if token[:2] < ballot:
            return last < self._visible.ended_at(self._stream_id, Ballot(*token[:2]))
        latest = (*ballot, self._ground.numbers.last)
        return token <= latest and last < self._visible.bounds(self._stream_id).next_offset

    def refuse(self, session: MemberSession, said: Nack, now: float) -> None:
        check_ranges(said.ranges)
        share = jitter(self._ground.random)
        effects = Effects()
        for item in said.ranges:
            refused = self.machine.refuse(
                session.member.number,
                *item,
                now,
                delay_s=said.delay_s,
                reason=said.reason[:_MAX_REASON],
                is_unseen=said.is_unseen,
                share=share,
            )
            effects.then(refused)
        self._carry_out(effects)
        for item in said.ranges:
            self._tell_conflicts(session, item)
        self.pump()

    def extend(self, session: MemberSession, said: Extend, now: float) -> None:
        check_ranges(said.ranges)
        number = session.member.number
        if not said.ranges:
            for delivery in list(session.member.deliveries):
                self.machine.extend(number, delivery, now)
        lost = [
            item
            for item in said.ranges
            if not (
                self.machine.extend(number, item.delivery, now)
                or self.machine.taken.is_from(number, *item)
            )
        ]
        if lost:
            session.sink.revoke(lost, "not held")
        self._arm_timer(now)

    def resize(self, session: MemberSession, max_in_flight: int) -> None:
        Joining(self.origin.group, max_in_flight=max_in_flight or 1).check()
        self.machine.resize(session.member.number, max_in_flight)
        self.pump()

    def _tell_conflicts(self, session: MemberSession, item: DeliveryRange) -> None:
        """The member cannot end what a transaction has."""
        for first, last, transaction in self.machine.taken.holders(item.first, item.last):
            session.sink.tell_conflict(DeliveryRange(item.delivery, first, last), transaction)

    # --- transactions ---------------------------------------------------------------------------

    def check_held(
        self, transaction: TransactionId, ballot: Ballot, ranges: Sequence[DeliveryRange]
    ) -> None:
        """Raises `RequestError` unless members hold all of these under the deliveries that they are
        said to be of, whoever they are; but for what the transaction has taken before. What another
        one has is a `ConflictError`."""
        is_current = ballot == self._ground.controller.ballot
        for delivery, first, last in ranges:
            for a, b, holder in self.machine.taken.holders(first, last):
                if holder != transaction:
                    raise conflict(holder, deliveries(self.progress.group_id, ((a, b),)), (a, b))
            for a, b in self.machine.taken.untaken(first, last):
                if not (is_current and self.machine.held.has(delivery, a, b)):
                    raise RequestError(
                        f"nobody holds offsets {a} to {b} of group {self.origin.group!r} "
                        f"under delivery {delivery} of ballot {ballot}",
                        "they are delivered again: roll back, and go on with what comes then",
                    )

    def take(self, transaction: TransactionId, ranges: Sequence[Range]) -> None:
        """The transaction acknowledges these, and is not over."""
        self.machine.take(transaction, ranges, trio.current_time())

    def untake(self, transaction: TransactionId, ranges: Sequence[Range]) -> None:
        """It was rolled back, or has acknowledged them."""
        if not self._closed:
            self._carry_out(self.machine.untake(transaction, ranges, trio.current_time()))
            self.pump()
            self._tell_when_idle()

    def finish(self, ranges: Sequence[Range], floor: int) -> None:
        """A transaction has acknowledged these; the group's floor is there now."""
        if not self._closed:
            self.ledger.raise_floor(floor)
            self.machine.raise_floor(floor)
            self._letters.finish(ranges)
            self._carry_out(self.machine.finish(ranges, trio.current_time()))
            self.pump()
            self._tell_when_idle()

    # --- progress -------------------------------------------------------------------------------

    def _carry_out(self, effects: Effects) -> None:
        """All that follows from a decision of the machine, but deliveries."""
        if effects.ended:
            self.ledger.record_attempts(effects.ended)
        if effects.acknowledged:
            self.ledger.acknowledge(effects.acknowledged)
            self.ledger.flush()
        if effects.exhausted:
            self._letters.write(effects.exhausted)
        for expired in effects.expired:
            session = self.sessions.get(expired.member)
            if session is not None:
                session.revoke(expired.delivery, expired.ranges, "ack deadline")

    def _committed(self, ranges: Sequence[Range], floor: int) -> None:
        """`ledger.OnCommitted`."""
        machine = self.machine
        machine.raise_floor(floor)
        if ranges and machine.rules.waits_for_commits:
            self._carry_out(machine.settled(ranges, trio.current_time()))
            self.pump()
        elif machine.is_full:
            # Members may have waited for fewer to wait for the log.
            self.pump()
        self._tell_when_idle()

    def _dead_letters_written(self, ranges: Sequence[Range], floor: int) -> None:
        if self._closed:
            return
        if not ranges:
            self._tell_when_idle()
        elif self.is_ephemeral:
            self.ledger.acknowledge(ranges)
            self.ledger.flush()
        else:
            self.ledger.raise_floor(floor)
            self._committed(ranges, floor)
        if self.machine.takers:
            # They may have waited for fewer to be on their way there.
            self.pump()

    def _dead_letters_refused(self, dead: Exhausted) -> None:
        # It is tried again with each delivery beyond those that are allowed.
        times = dead.attempts - self.machine.rules.max_attempts + 1
        share = jitter(self._ground.random)
        not_before = trio.current_time() + pause_s(times, share)
        self._carry_out(self.machine.put_back(dead, not_before))
        self.pump()
