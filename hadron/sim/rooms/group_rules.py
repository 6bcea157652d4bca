"""What must be true of consumer groups at every moment, from the rules alone (docs/GROUPS.md,
PROTOCOL D2, E2): sets and dicts of single offsets, told what members say and are told, and what is
committed. It knows nothing of how the room keeps its ranges.

A record is at each moment settled, held by one member, taken by a transaction, on its way to the
dead letters, or nobody's. What could have gone either way, because only the leader knows how far it
has got, is left open.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from hadron.model.ranges import Range
from hadron.model.transactions import TransactionId
from hadron.sim.rooms.group_letters import Letter, letter_of
from hadron.sim.rooms.group_lives import Committed, GaveBack, Given, Holder, Life, Progress, Record
from hadron.sim.rooms.group_log import offsets_of
from hadron.state.groups.attempts import Attempts
from hadron.state.groups.progress import GroupOptions

MOST: Final = 12
"""Complaints that are kept: one bug makes many."""

_SLACK_S: Final = 1e-6
_LATE_S: Final = 0.001

LETTER_PAUSE_S: Final = 2.5
"""Before a record whose dead letter could not be written comes again, at least."""


class Rules:
    """Holds what happens against the rules."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.reached: Counter[str] = Counter()
        self.records: list[Record] = []
        self.first = 0
        """The first offset that is kept."""
        self.has_letters = True
        """Whether there is a stream of dead letters, with a partition here."""
        self.lives: dict[int, Life] = {}
        """By the group's id; what was reset or deleted is not here."""
        self._made = 0

    def _next(self) -> int:
        self._made += 1
        return self._made

    def complain(self, text: str) -> None:
        if len(self.complaints) < MOST:
            self.complaints.append(text)

    # --- the stream -----------------------------------------------------------------------------

    def trimmed(self, first: int) -> None:
        self.first = first
        for life in self.lives.values():
            progress = life.progress
            progress.settled.update(range(progress.floor, first))
            for each in [each for each in progress.attempts if each < first]:
                del progress.attempts[each]
        self.reached["trimmed"] += 1

    def committed(self) -> Committed:
        lives = {
            each: (life.name, life.options, copy.deepcopy(life.progress), life.number)
            for each, life in self.lives.items()
        }
        return Committed(list(self.records), self.first, self.has_letters, lives)

    def restored(self, before: Committed) -> None:
        """The log has lost its end: all is as it was."""
        self.records, self.first = list(before.records), before.first
        self.has_letters = before.has_letters
        rightful = {each: life.rightful for each, life in self.lives.items()}
        self.lives = {}
        for group_id, (name, options, progress, number) in before.progress.items():
            life = self.lives[group_id] = Life(name, options, copy.deepcopy(progress), number)
            life.rightful |= rightful.get(group_id, set())

    def led_anew(self, locked: Iterable[tuple[int, Range, TransactionId]]) -> None:
        """Another leader, which knows what the tables have: `locked` by group."""
        for life in self.lives.values():
            life.taken = {}
            life.renew(None)
        for group_id, wanted, transaction in locked:
            if group_id in self.lives:
                self.take(self.lives[group_id], transaction, [wanted], 0.0)

    # --- groups ---------------------------------------------------------------------------------

    def made(self, group_id: int, name: str, options: GroupOptions, floor: int) -> None:
        if group_id not in self.lives:
            self.lives[group_id] = Life(name, options, Progress(group_id, floor), self._next())

    def reset(self, group_id: int, new_id: int, floor: int) -> None:
        old = self.lives.pop(group_id)
        progress = Progress(new_id, floor)
        self.lives[new_id] = Life(old.name, old.options, progress, self._next())
        self.reached["reset"] += 1

    def deleted(self, group_id: int) -> None:
        self.lives.pop(group_id, None)
        self.reached["deleted"] += 1

    def life_of(self, name: str) -> Life | None:
        return next((life for life in self.lives.values() if life.name == name), None)

    def floor(self, life: Life) -> int:
        """Everything below is settled."""
        offset, settled = max(life.progress.floor, self.first), life.progress.settled
        while offset in settled:
            offset += 1
        return offset

    def told_floor(self, group_id: int, floor: int) -> None:
        life = self.lives.get(group_id)
        if life is not None and floor != (wanted := self.floor(life)):
            self.complain(f"{life.name}: its floor is {floor}, and all below {wanted} is settled")

    # --- deliveries -----------------------------------------------------------------------------

    def served(self, life: Life, driver: object, now: float) -> None:
        """Whoever joins it is served by this. G5: of its delays its leader forgets none."""
        if life.driver is driver:
            return
        waits = [
            each
            for each, until in life.not_before.items()
            if until > now + _SLACK_S and each >= self.first and each not in life.progress.settled
        ]
        if waits and life.driver is not None and not life.is_given_up:
            self.complain(f"{life.name}: at {now:.3f} its leader forgets that {waits} are to wait")
        life.renew(driver)
        self.reached["driver"] += 1

    def given_up(self, group_id: int) -> None:
        """What ends its deliveries, or changes it, is refused by the log."""
        if group_id in self.lives:
            self.lives[group_id].is_given_up = True

    def delivered(
        self,
        life: Life,
        to: Holder,
        number: int,
        ranges: Range,
        attempt: int,
        now: float,
        *,
        ends_batch: bool,
    ) -> None:
        first, last = ranges
        count = last - first + 1
        what = f"{life.name}: {first} to {last} to {to.name} at {now:.3f}"
        deadline_ms = life.options.ack_deadline_ms
        given = Given(
            to, number, attempt, now, now + deadline_ms / 1_000 if deadline_ms else float("inf")
        )
        own = self._window(life, to)
        if own + count > to.max_in_flight:
            self.complain(f"{what}, which holds {own} and takes {to.max_in_flight}")
        if to.is_over or not to.is_writable:
            self.complain(f"{what}, which has gone, or does not read")
        if to.is_stalled and count > 1:
            self.complain(f"{what}, which let a deadline pass and dealt with nothing since")
        to.tried = number if to.gives_back or to.is_stalled else 0
        if to.batch_size:
            to.filled += count
            if to.filled > to.batch_size:
                self.complain(f"{what}: {to.filled} in a batch of {to.batch_size}")
            to.filled = 0 if ends_batch else to.filled
        if life.is_strict and count > 1:
            self.complain(f"{what}: more than one in strict order")
        beside = [each for each, held in life.given() if held.holder is to]
        if beside and not life.apart.isdisjoint([*beside, *range(first, last + 1)]):
            self.complain(f"{what}, which holds {beside}, and one of these is to be alone")
        if count > 1 and not life.apart.isdisjoint(range(first, last + 1)):
            self.complain(f"{what}: one of these is to be alone")
        if last >= len(self.records):
            self.complain(f"{what}: the stream ends at {len(self.records)}")
            return
        for offset in range(first, last + 1):
            self._give(life, offset, given, now, what)
        self.reached["delivered"] += count
        self.reached["delivered again"] += count * (attempt > 1)

    def _give(self, life: Life, offset: int, given: Given, now: float, what: str) -> None:
        progress = life.progress
        if offset in progress.settled or offset < self.first:
            self.complain(f"{what}: {offset} is settled, or dropped")
        if offset in life.accepted:
            self.complain(f"{what}: {offset} was acknowledged")
        if offset in life.held:
            self.complain(f"{what}: {life.held[offset].holder.name} holds {offset}")
        if offset in life.taken:
            self.complain(f"{what}: {life.taken[offset][0]} has taken {offset}")
        if given.attempt != (wanted := life.ended.get(offset, 0) + 1):
            self.complain(f"{what}: attempt {given.attempt} of {offset}, it is its {wanted}.")
        if now < life.not_before.pop(offset, now) - _SLACK_S:
            self.complain(f"{what}: {offset} was to wait")
        most = life.options.max_attempts
        if 0 < most < given.attempt and not self._may_be_refused(life, offset):
            self.complain(f"{what}: attempts of {offset} were used up, it is a dead letter")
        if offset in life.dying:
            if now < life.dying[offset] + LETTER_PAUSE_S - _SLACK_S:
                self.complain(f"{what}: {offset} was just going to the dead letters")
            self.reached["letter refused, delivered again"] += 1
            del life.dying[offset]
        self._check_order(life, offset, what)
        life.held[offset] = given

    def _check_order(self, life: Life, offset: int, what: str) -> None:
        if not (life.is_strict or life.is_by_key):
            return
        key = self.records[offset].key
        if life.is_by_key and not key:
            return
        for before in range(self.floor(life), offset):
            if before not in life.progress.settled and (
                life.is_strict or self.records[before].key == key
            ):
                self.complain(f"{what}: {before} comes before {offset}, and is not settled")
                return

    def _window(self, life: Life, holder: Holder) -> int:
        return sum(given.holder is holder for _, given in life.given())

    def check_deadlines(self, now: float) -> None:
        """Called whenever time has passed and all has come to rest."""
        for life in self.lives.values():
            late = [
                each
                for each, given in life.held.items()
                if given.expires < now - _LATE_S and not given.holder.is_over
            ]
            if late:
                self.complain(f"{life.name}: at {now:.3f} the deadlines of {late} have passed")

    # --- what members say -----------------------------------------------------------------------

    def acknowledged(
        self,
        life: Life,
        by: Holder,
        number: int,
        wanted: Range,
        numbers: Sequence[int],
        now: float,
        *,
        is_own: bool,
        is_late: bool,
    ) -> frozenset[int]:
        """What of it is surely not refused: it counts, or was dealt with before. `is_own`: the
        delivery is one of this ballot to this call; `numbers` are of the records as they were
        delivered, none where that was before the group was made."""
        sure, is_of_these, released = set[int](), True, list[Given]()
        for place, offset in enumerate(range(wanted[0], wanted[1] + 1)):
            if not numbers or self.number_at(offset) != numbers[place]:
                # Then the leader need not take the others, either.
                is_of_these = False
                self.reached["ack of what was lost, or reset"] += 1
                continue
            given = life.held.get(offset)
            if given is not None:
                is_whose = is_own and given.holder is by and given.number == number
                if is_whose:
                    released.append(life.held.pop(offset))
                    self._accept(life, offset, by, now)
                    sure.add(offset)
                else:
                    self.reached["ack of what another holds"] += 1
            else:
                if is_own and life.has_taken(offset, by, number):
                    life.words.setdefault(offset, None)
                if self._nobodys(life, offset, by, now, is_late=is_late):
                    sure.add(offset)
        self._rearm(life, released, now)
        return frozenset(sure) if is_of_these else frozenset()

    def _nobodys(self, life: Life, offset: int, by: Holder, now: float, *, is_late: bool) -> bool:
        """Whether an acknowledgement of what no member holds surely counts, or has before."""
        if offset in life.taken:
            self.reached["ack of what is taken"] += 1
            return False
        first = max(self.first, life.progress.floor)
        used_up = 0 < life.options.max_attempts <= life.ended.get(offset, 0)
        if offset in life.progress.settled or offset in life.accepted or offset < first:
            # Of a dead letter, or what retention drops, its leader hears later.
            is_known = not used_up and offset >= first
            self.reached["ack of what was dealt with"] += is_known
            return is_known
        if used_up:
            if self._may_be_refused(life, offset) or offset not in life.dying:
                life.rightful.add((offset, self.records[offset].number))
                by.dealt_at = now
                self.reached["ack of what may be dying"] += 1
            return False
        self.reached["late ack" if is_late else "ack of what waits"] += 1
        self._accept(life, offset, by, now)
        return True

    def _accept(self, life: Life, offset: int, by: Holder, now: float) -> None:
        life.apart.discard(offset)
        life.accepted.add(offset)
        life.not_before.pop(offset, None)
        life.rightful.add((offset, self.records[offset].number))
        by.dealt_at = now
        by.gives_back, by.tried = False, 0

    def number_at(self, offset: int) -> int:
        return self.records[offset].number if offset < len(self.records) else -1

    def refused(
        self,
        life: Life,
        by: Holder,
        number: int,
        wanted: Range,
        now: float,
        *,
        delay_s: float,
        is_unseen: bool,
    ) -> None:
        released, is_heard = list[Given](), False
        for offset in range(wanted[0], wanted[1] + 1):
            given = life.held.get(offset)
            if given is not None and given.holder is by and given.number == number:
                released.append(life.held.pop(offset))
                self._end(life, offset, now, delay_s=delay_s, is_unseen=is_unseen)
            elif life.has_taken(offset, by, number) and offset not in life.words:
                life.words[offset] = GaveBack(now, delay_s, is_unseen)
                is_heard = True
        if (released or is_heard) and not is_unseen:
            by.dealt_at = now
        by.gives_back = by.gives_back or is_heard or bool(released)
        self._rearm(life, released, now)

    def extended(self, life: Life, by: Holder, number: int | None, now: float) -> None:
        """A delivery of the member, or all."""
        of = [given for given in life.held.values() if given.holder is by]
        self._arm(life, [given for given in of if number in (None, given.number)], now)

    def _rearm(self, life: Life, released: list[Given], now: float) -> None:
        for given in released:
            given.holder.is_stalled = False
        self._arm(life, released, now)

    def _arm(self, life: Life, some: Iterable[Given], now: float) -> None:
        """Deadlines begin anew with whatever members do."""
        if life.options.ack_deadline_ms:
            for given in some:
                given.armed = now
                given.expires = now + life.options.ack_deadline_ms / 1_000

    def _end(
        self,
        life: Life,
        offset: int,
        now: float,
        *,
        delay_s: float = 0.0,
        is_unseen: bool = False,
        is_death: bool = False,
    ) -> None:
        """It was delivered in vain; `is_death`: its member died of it, maybe."""
        is_last = 0 < life.options.max_attempts <= life.ended.get(offset, 0) + 1
        if is_unseen:
            pass
        elif is_last and life.spared[offset] and not is_death:
            life.apart.discard(offset)
            life.spared[offset] -= 1
            self.reached["failed, and had lost attempts with others"] += 1
        else:
            life.apart.discard(offset)
            life.ended[offset] = life.ended.get(offset, 0) + 1
            if is_last:
                life.dying[offset] = now
                del life.spared[offset]
                return
        life.not_before[offset] = now + delay_s

    # --- members that end -----------------------------------------------------------------------

    def left(self, life: Life, holder: Holder, now: float) -> None:
        """G16: which of its records ended it nobody knows."""
        holder.is_over = True
        is_shared = self._window(life, holder) > 1
        for offset in [each for each, given in life.held.items() if given.holder is holder]:
            del life.held[offset]
            self._lost(life, offset, now, is_shared=is_shared)

    def _lost(self, life: Life, offset: int, now: float, *, is_shared: bool) -> None:
        most = life.options.max_attempts
        if not is_shared or most == 1:
            self._end(life, offset, now, is_death=True)
        elif life.ended.get(offset, 0) + 1 < most or not most:
            life.spared[offset] += 1
            self._end(life, offset, now, is_death=True)
        else:
            life.apart.add(offset)
            life.not_before[offset] = now
            self.reached["left for somebody who is alone with it"] += 1

    def expired(
        self, life: Life, holder: Holder, number: int, ranges: Iterable[Range], now: float
    ) -> None:
        """A deadline has ended what is left of a delivery."""
        for offset in offsets_of(ranges):
            given = life.held.pop(offset, None)
            if given is None or given.holder is not holder or given.number != number:
                self.complain(f"{life.name}: {offset} expires, and is not held by {holder.name}")
                continue
            if now < given.expires - _SLACK_S:
                self.complain(
                    f"{life.name}: {offset} expires at {now:.3f}, its deadline is at "
                    f"{given.expires:.3f}"
                )
            holder.is_stalled = holder.dealt_at <= given.armed
            holder.gives_back = True
            self._end(life, offset, now)
            self.reached["expired"] += 1

    # --- transactions ---------------------------------------------------------------------------

    def take(
        self, life: Life, transaction: TransactionId, ranges: Iterable[Range], now: float
    ) -> None:
        """They are the transaction's; where another one had them, the log gives them to this."""
        touched = list[Given]()
        for offset in offsets_of(ranges):
            known = life.taken.get(offset)
            given = known[1] if known is not None else life.held.pop(offset, None)
            if known is None and given is not None:
                touched.append(given)
            elif known is not None and known[0] != transaction:
                self.reached["the log gave it to another transaction"] += 1
                life.overruled.add(offset)
            life.taken[offset] = transaction, given
        self._arm(life, touched, now)
        self.reached["taken"] += 1

    def free(self, transaction: TransactionId, now: float) -> None:
        """It was rolled back; what is still its own comes back."""
        for life in self.lives.values():
            back = list[Given]()
            for offset in [each for each, (own, _) in life.taken.items() if own == transaction]:
                _, given = life.taken.pop(offset)
                if given is None:
                    continue
                if offset in life.words:
                    self._keep_word(life, offset, given.holder, now)
                elif given.holder.is_over:
                    is_alone = offset in life.apart or life.is_strict
                    self._lost(life, offset, now, is_shared=not is_alone)
                    self.reached["untaken, and its member has gone"] += 1
                else:
                    life.held[offset] = given
                    back.append(given)
                    self.reached["untaken"] += 1
            self._arm(life, back, now)

    def _keep_word(self, life: Life, offset: int, holder: Holder, now: float) -> None:
        """What its holder has said of it counts now."""
        holder.is_stalled = False
        word = life.words.pop(offset)
        if word is None:
            self._accept(life, offset, holder, now)
            self.reached["untaken, and was acknowledged"] += 1
        else:
            delay_s = max(0.0, word.at + word.delay_s - now)
            self._end(life, offset, now, delay_s=delay_s, is_unseen=word.is_unseen)
            self.reached["untaken, and was given back"] += 1

    def finished(self, group_id: int, ranges: Iterable[Range], floor: int, now: float) -> None:
        """A transaction has acknowledged these."""
        life = self.lives.get(group_id)
        if life is None:
            self.complain(f"a transaction has acknowledged {ranges} of {group_id}, which is none")
            return
        for offset in offsets_of(ranges):
            given = None
            if offset in life.taken:
                _, given = life.taken.pop(offset)
            elif offset in life.overruled:
                given = life.held.pop(offset, None)
            else:
                self.complain(f"{life.name}: a transaction ends {offset}, and has not taken it")
            life.overruled.discard(offset)
            life.words.pop(offset, None)
            if given is not None:
                given.holder.dealt_at = now
                given.holder.is_stalled = False
            self._settle(life, offset)
        self.told_floor(group_id, floor)
        self.reached["finished"] += 1

    # --- what is committed ----------------------------------------------------------------------

    def settled(
        self, group_id: int, attempts: Iterable[Attempts], ranges: Iterable[Range], floor: int
    ) -> None:
        """Deliveries have ended, in vain or not, and that is committed."""
        life = self.lives.get(group_id)
        if life is None:
            return
        progress = life.progress
        for first, last, number in attempts:
            for offset in range(max(first, self.floor(life)), last + 1):
                if number > life.ended.get(offset, 0) and life.driver is not None:
                    self.complain(
                        f"{life.name}: {number} attempts of {offset} are logged, it had "
                        f"{life.ended.get(offset, 0)}"
                    )
                if offset not in progress.settled:
                    progress.attempts[offset] = number
        for offset in offsets_of(ranges):
            is_rightful = (offset, self.number_at(offset)) in life.rightful
            if not is_rightful and offset not in progress.settled:
                self.complain(f"{life.name}: {offset} is settled, and nobody could do that")
            if offset in life.held:
                self.complain(f"{life.name}: {offset} is settled, and a member holds it")
            if offset in life.taken:
                self.complain(f"{life.name}: {offset} is settled, and a transaction has it")
            self._settle(life, offset)
        self.told_floor(group_id, floor)

    def _settle(self, life: Life, offset: int) -> None:
        life.progress.settled.add(offset)
        life.progress.attempts.pop(offset, None)

    def lettered(
        self, group_id: int, ranges: Iterable[Range], found: list[Letter], floor: int
    ) -> None:
        """Dead letters were written, and settle their records; `found` is what they say."""
        life = self.lives.get(group_id)
        if life is None:
            self.complain(f"dead letters of {group_id}, which is none")
            return
        offsets = offsets_of(ranges)
        wanted = [
            letter_of(*self.records[each], life.name, each, life.ended.get(each, 0))
            for each in offsets
        ]
        if found != wanted:
            self.complain(f"{life.name}: dead letters of {wanted} are {found}")
        for offset in offsets:
            if offset in life.progress.settled or offset in life.held or offset in life.accepted:
                self.complain(f"{life.name}: a dead letter of {offset}, which is in another place")
            if life.ended.get(offset, 0) < max(1, life.options.max_attempts):
                self.complain(f"{life.name}: a dead letter of {offset}, which has attempts left")
            life.dying.pop(offset, None)
            self._settle(life, offset)
        self.told_floor(group_id, floor)
        self.reached["lettered"] += len(offsets)

    def letters_gone(self) -> None:
        """Their stream was deleted, or has no partition here any more: from here on none can be
        written, whether somebody says so or not."""
        self.has_letters = False
        self.reached["letters without a place"] += 1

    def letters_submitted(self, group_id: int) -> None:
        if not self.has_letters:
            self.complain(f"dead letters of {group_id} are to go where nobody finds them")

    def _may_be_refused(self, life: Life, offset: int) -> bool:
        """Whether the letter of a record whose attempts were used up may have been refused."""
        return not self.has_letters or life.letter_refused_at >= life.dying.get(offset, 0.0)

    def letter_refused(self, group_id: int, now: float) -> None:
        life = self.lives.get(group_id)
        if life is not None:
            life.letter_refused_at = now
            self.reached["letter refused"] += 1

    # --- the end --------------------------------------------------------------------------------

    def left_over(self) -> list[str]:
        """What is not settled although everything has healed."""
        return [
            f"{life.name}: {offset} {self._place(life, offset)}"
            for life in self.lives.values()
            for offset in range(max(life.progress.floor, self.first), len(self.records))
            if offset not in life.progress.settled
        ]

    def _place(self, life: Life, offset: int) -> str:
        places: dict[str, Any] = {
            "is held": life.held,
            "is taken": life.taken,
            "was acknowledged, and is not settled": life.accepted,
            "goes to the dead letters": life.dying,
        }
        return next((text for text, some in places.items() if offset in some), "comes to nobody")
