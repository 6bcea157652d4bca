"""A world of groups: members, transactions, retention, resets and leaders that fail, by chance."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import trio

from hadron.delivery.joining import Joining, WantedOptions
from hadron.delivery.port import DeliveryRange
from hadron.model.batch import read_head
from hadron.model.batch_building import BatchBuilder
from hadron.model.errors import HadronError
from hadron.model.ids import Ballot
from hadron.model.ranges import Range
from hadron.model.transactions import DELIVERIES, TransactionId
from hadron.sim.rooms.group_calls import Call, Token, part_of
from hadron.sim.rooms.group_letters import letters_in, record_of
from hadron.sim.rooms.group_lives import Committed, Holder, Life, Record
from hadron.sim.rooms.group_log import (
    SET,
    Leadership,
    Log,
    Snapshot,
    Tables,
    offsets_of,
    stream_change,
)
from hadron.sim.rooms.group_rules import Rules
from hadron.sim.rooms.transaction_sets import SeededRandom
from hadron.state import schema
from hadron.state.events import PartitionTrimmed
from hadron.state.execute import Outcome
from hadron.state.groups.changes import DeleteGroup, ResetGroup
from hadron.state.groups.endings import DeadLetterRecords, EndDeliveries
from hadron.state.groups.progress import AckRecords, CreateGroup
from hadron.state.machine import Command, encode
from hadron.state.schema import ApplySchema, DeleteObjects
from hadron.state.streams.partitions import AppendBatch
from hadron.state.streams.retention import TrimStream
from hadron.state.transactions.decisions import Decide
from hadron.state.transactions.events import (
    IntentsWritten,
    RecordsAcknowledged,
    TransactionAborted,
    TransactionFinished,
)
from hadron.state.transactions.intents import AbortTransaction, FinishTransaction, WriteIntents
from hadron.state.transactions.locks import all_held, deliveries

_STEPS: Final = 350
"""Of one history."""

_NAMES: Final = ("one", "two", "three")
_SEATS: Final = 5
_REMEMBERED: Final = 40
"""Deliveries of a seat, over calls and leaders."""

_ORDERS: Final = (0, 0, 0, 1, 2, 2)
_KEYS: Final = (("", "a", "a", "b", "c"), ("", *"abcdefghijklmnopqrst"))

COMING_S: Final = 0.02
"""Within that members join again once another node leads."""


@dataclass(eq=False)
class Seat:
    """A program that joins one group, over all of its calls."""

    name: str
    group: str
    call: Call | None = None
    is_joining: bool = False
    tokens: list[Token] = field(default_factory=list)

    @property
    def open_call(self) -> Call | None:
        return self.call if self.call is not None and self.call.is_open else None

    def note(self, token: Token) -> None:
        self.tokens.append(token)
        del self.tokens[:-_REMEMBERED]


@dataclass(eq=False)
class Transaction:
    """One that acknowledges records of one group; `prepared_lsn` once it is prepared."""

    name: TransactionId
    group_id: int
    ranges: tuple[Range, ...]
    prepared_lsn: int = 0
    is_asked: bool = False
    """Whether what ends it is on its way."""


class World:
    """One history."""

    def __init__(self, seed: int, nursery: trio.Nursery, look: Callable[[World], None]) -> None:
        """`look`: called whenever time has passed and all has come to rest."""
        self.chance = random.Random(f"groups/{seed}")
        self.whims = random.Random(f"groups/{seed}/stubborn")
        self.is_contrary = self.whims.random() < 0.5
        """Members say what contradicts others, or what they said before, in so many more ways."""
        self.nursery = nursery
        self.look = partial(look, self)
        self.rules = Rules()
        self.tables = Tables()
        self.stream, self.letters = self.tables.declare("s", "letters")
        self.has_letters = True
        self.ballot = Ballot(1, 0)
        self.transactions: dict[TransactionId, Transaction] = {}
        self.snapshot: tuple[Snapshot, Committed, list[Transaction], bool] | None = None
        self._numbers = 0
        self._keys: dict[bytes, list[Record]] = {}
        names = _NAMES[: self.chance.choice((1, 1, 2, 3))]
        self.options = {name: self._options() for name in names}
        self.seats = [Seat(f"m{each}", self.chance.choice(names)) for each in range(_SEATS)]
        self.is_restored = self.chance.random() < 0.4
        self.fails = self.chance.choice((0.01, 0.01, 0.03))
        self.is_transactional = self.chance.random() < 0.4
        self.sizes = self.chance.choice(((1, 1, 2, 5, 9), (1, 5, 12), (12, 25)))
        self.keys = self.chance.choice(_KEYS)
        self.whole = self.chance.choice((0.2, 0.6, 0.6))
        self.in_pieces = self.chance.choice((0.0, 0.3, 0.8))
        """Of what members give back: so much comes piece by piece."""
        self.leadership: Leadership
        self.lead()

    def _options(self) -> WantedOptions:
        chance = self.chance
        has_limit = chance.random() < 0.5
        return WantedOptions(
            chance.choice(_ORDERS),
            chance.choice((0, 0, 300, 2_000, 10_000)),
            chance.choice((1, 2, 3)) if has_limit else 0,
            "letters" if has_limit else None,
        )

    # --- leaders --------------------------------------------------------------------------------

    def lead(self) -> None:
        self.ballot = self.ballot._replace(incarnation=self.ballot.incarnation + 1)
        log = Log(
            self.tables, self.ballot, self.chance, self._submitted, self._applied, self._refused
        )
        log.is_slow = self.chance.random() < 0.4
        self.leadership = Leadership(log, SeededRandom(self.chance))
        self.nursery.start_soon(self.leadership.run)

    @property
    def log(self) -> Log:
        return self.leadership.log

    def change_leader(self) -> None:
        chance, log = self.chance, self.log
        # What waits, and is not lost, is committed before anybody leads anew.
        log.end(chance.randint(0, log.waiting))
        self.leadership.scope.cancel()
        for seat in self.seats:
            if seat.call is not None:
                seat.call.holder.is_over = True
        restored = self.snapshot if self.is_restored and chance.random() < 0.3 else None
        if restored is not None:
            snapshot, committed, prepared, self.has_letters = restored
            self.tables.restore(snapshot)
            self.rules.restored(committed)
            self.transactions = {
                each.name: Transaction(each.name, each.group_id, each.ranges, each.prepared_lsn)
                for each in prepared
            }
            self.ballot = Ballot(self.ballot.epoch + 1, 0)
            self.rules.reached["restored"] += 1
        self.transactions = {
            name: each for name, each in self.transactions.items() if each.prepared_lsn
        }
        for each in self.transactions.values():
            each.is_asked = False
        self.rules.led_anew(
            (each.lock.owner_id, wanted, each.transaction)
            for each in all_held(self.tables.db)
            if each.lock.kind == DELIVERIES
            for wanted in each.lock.ranges
        )
        self.rules.reached["led anew"] += 1
        self.lead()

    def lose_calls(self) -> None:
        """All that members have open breaks, and they come back to the same leader."""
        for seat in self.seats:
            self.leave(seat)
        self.rules.reached["all calls were lost"] += 1
        self.come_back()

    def come_back(self) -> None:
        """Members join again at about the same time, and drivers end what they had prepared."""
        for seat in self.seats:
            self.nursery.start_soon(self._soon, lambda it=seat: self.join(it))
        for _ in range(self.chance.choice((0, len(self.transactions)))):
            self.nursery.start_soon(self._soon, self.end)

    async def _soon(self, do: Callable[[], None]) -> None:
        leadership = self.leadership
        await trio.sleep(self.chance.choice((0.0, 0.001, 0.005, COMING_S)))
        if leadership is self.leadership:
            do()

    def keep(self) -> None:
        """Where a restore goes back to."""
        prepared = [
            Transaction(each.name, each.group_id, each.ranges, each.prepared_lsn)
            for each in self.transactions.values()
            if each.prepared_lsn
        ]
        self.snapshot = (self.tables.snapshot(), self.rules.committed(), prepared, self.has_letters)

    # --- what is committed ----------------------------------------------------------------------

    def _applied(self, command: Command, body: bytes, outcome: Outcome) -> None:
        rules, now, result = self.rules, trio.current_time(), outcome.result
        match command:
            case AppendBatch():
                rules.records += self._keys[body]
            case AckRecords():
                rules.settled(command.group_id, (), command.ranges, result)
            case EndDeliveries():
                rules.settled(command.group_id, command.attempts, command.acknowledged, result)
            case DeadLetterRecords():
                found = list(letters_in(body))
                rules.lettered(command.group_id, command.ranges, found, result.floor)
            case CreateGroup():
                rules.made(result.group_id, command.name, result.options, result.floor)
            case ResetGroup():
                rules.reset(command.group_id, result, command.floor)
            case DeleteGroup():
                rules.deleted(command.group_id)
            case DeleteObjects() | ApplySchema():
                rules.letters_gone()
            case WriteIntents() if (each := self.transactions.get(command.transaction)) is not None:
                each.prepared_lsn = result.prepared_lsn
        for event in outcome.events:
            match event:
                case PartitionTrimmed() if event.stream_id == self.stream:
                    rules.trimmed(event.first_offset)
                case IntentsWritten():
                    for lock in event.locks:
                        if lock.owner_id in rules.lives:
                            life = rules.lives[lock.owner_id]
                            rules.take(life, event.transaction, lock.ranges, now)
                case RecordsAcknowledged():
                    rules.finished(event.group_id, event.ranges, event.floor, now)
                case TransactionAborted() | TransactionFinished():
                    rules.free(event.transaction, now)
                    self.transactions.pop(event.transaction, None)

    def _submitted(self, command: Command) -> None:
        if isinstance(command, DeadLetterRecords):
            self.rules.letters_submitted(command.group_id)

    def _refused(self, command: Command) -> None:
        if isinstance(command, DeadLetterRecords):
            self.rules.letter_refused(command.group_id, trio.current_time())
        elif isinstance(command, AckRecords | EndDeliveries | ResetGroup | DeleteGroup):
            self.rules.given_up(command.group_id)

    def submit(self, command: Command, body: bytes = b"") -> None:
        self.log.submit(command, body, done=lambda _result, _error: None)

    # --- the stream -----------------------------------------------------------------------------

    def append(self) -> None:
        builder, records = BatchBuilder(), list[Record]()
        for _ in range(self.chance.choice(self.sizes)):
            self._numbers += 1
            key = self.chance.choice(self.keys)
            records.append(Record(self._numbers, key))
            builder.add(record_of(self._numbers, key), 0)
        body = bytes(builder.build())
        self._keys[body] = records
        self.submit(AppendBatch.of(self.stream, read_head(body), len(body)), body)

    def trim(self) -> None:
        rules = self.rules
        if len(rules.records) - rules.first > 10:
            self.submit(TrimStream(self.stream, rules.first + self.chance.randint(1, 8)))

    def lose_room(self) -> None:
        self.log.has_room = not self.log.has_room

    def take_letters_away(self) -> None:
        """Their stream is deleted, or is on other sets from here on."""
        lot = self.chance.random()
        if self.has_letters and lot < 0.2:
            self.has_letters = False
            index = schema.current_index(self.tables.db)
            self.submit(
                DeleteObjects(index, (self.letters,))
                if lot < 0.1
                else ApplySchema(index, (stream_change("letters", "local/p1"),))
            )

    # --- groups ---------------------------------------------------------------------------------

    def change_group(self) -> None:
        self.nursery.start_soon(
            self._change_group, self.chance.choice(list(self.options)), self.chance.random() < 0.3
        )

    async def _change_group(self, name: str, deletes: bool) -> None:
        served = self.leadership.groups
        try:
            if deletes:
                await served.delete(self.stream, name, force=True)
            else:
                end = len(self.rules.records)
                to = self.chance.choice(("earliest", str(self.chance.randint(0, end))))
                await served.reset(self.stream, name, to, force=True)
        except HadronError:
            return

    # --- members --------------------------------------------------------------------------------

    def join(self, seat: Seat, *, is_healthy: bool = False) -> None:
        if seat.open_call is None and not seat.is_joining:
            seat.is_joining = True
            self.nursery.start_soon(self._join, seat, is_healthy)

    async def _join(self, seat: Seat, is_healthy: bool) -> None:
        chance, leadership, name = self.chance, self.leadership, seat.group
        options = self.options[name]
        if self.rules.life_of(name) is not None:
            options = WantedOptions()
        elif not self.has_letters:
            options = WantedOptions(options.order, options.ack_deadline_ms)
        batch_size = 0 if is_healthy else chance.choice((0, 0, 0, 3, 6))
        beats_ms = 0 if is_healthy else chance.choice((0, 0, 500))
        joining = Joining(
            name,
            chance.choice(("earliest", "earliest", "latest")),
            chance.choice((1, 2, 5, 12, 30)),
            options,
            seat.name,
            beats_ms,
            2,
            batch_size,
            chance.choice((0, 40)),
        )
        holder = Holder(seat.name, joining.max_in_flight, batch_size)
        groups_ = leadership.groups
        call = Call(
            self.rules,
            name,
            holder,
            lambda: groups_.live(self.stream, name),
            lambda: leadership is self.leadership and leadership.log.leads,
            seat.note,
            names_ballots=self.is_contrary,
        )
        try:
            call.driver, call.session = await groups_.subscribe(call, self.stream, joining)
            seat.call = call
            if leadership is not self.leadership:
                holder.is_over = True
        except HadronError:
            holder.is_over = True
        finally:
            seat.is_joining = False

    def leave(self, seat: Seat) -> None:
        call = seat.open_call
        if call is not None and call.session is not None and call.life is not None:
            self.rules.left(call.life, call.holder, trio.current_time())
            self.leadership.groups.leave(call.session)

    def speak(self, seat: Seat) -> None:
        """The member of a seat says something, or comes, or goes."""
        chance, call = self.chance, seat.open_call
        if call is None:
            if chance.random() < 0.6:
                self.join(seat)
            return
        what = chance.random()
        if what < 0.04:
            self.leave(seat)
        elif what < 0.1:
            call.set_writable(is_writable=not call.writable)
        elif what < 0.15:
            call.flow(chance.choice((0, 1, 3, 8, 20)))
        elif what < 0.2:
            call.beats()
        elif parts := self._parts(seat, call):
            if what < 0.65:
                call.acknowledge(parts, confirms=chance.random() < 0.6)
            elif parts[0][0].call is not call:
                return
            elif what < 0.9:
                self._give_back(seat, call, parts)
            else:
                call.extend(parts if chance.random() < 0.6 else ())

    def _parts(self, seat: Seat, call: Call, *, holds: bool = False) -> list[tuple[Token, Range]]:
        """Of deliveries that it may still hold, mostly, or of earlier ones; of one that it `holds`
        something of."""
        chance = self.chance
        own = [token for token in seat.tokens if token.call is call]
        if holds and call.life is not None:
            held = {each.number for each in call.life.held.values() if each.holder is call.holder}
            own = [token for token in own if token.number in held]
            return [(each, part_of(each, chance, self.whole)) for each in own[-1:]]
        some = own[-4:]
        if chance.random() < 0.25 or not own:
            token = chance.choice(seat.tokens) if seat.tokens else None
            some = [
                each
                for each in seat.tokens
                if token is not None
                and (
                    each.call is token.call
                    if token.call is call
                    else each.ballot == token.ballot and each.call is not call
                )
            ]
        picked = chance.sample(some, min(len(some), chance.choice((1, 1, 1, 2, 3))))
        return [(token, part_of(token, chance, self.whole)) for token in picked]

    def _give_back(self, seat: Seat, call: Call, parts: list[tuple[Token, Range]]) -> None:
        """All of it at once; or a whole delivery in pieces that follow each other, some of which it
        has dealt with after all."""
        chance, delays_s = self.chance, (None, 0.0, 0.3, 1.5)
        held = self._parts(seat, call, holds=True)
        if not held or chance.random() >= self.in_pieces:
            call.refuse(parts, chance.choice(delays_s), is_unseen=chance.random() < 0.2)
            return
        token = held[0][0]
        first = token.first
        while first <= token.last:
            end = min(token.last, first + chance.choice((0, 1, 3, 6)))
            is_unseen = chance.random() < 0.2
            delay_s = chance.choice((*delays_s, 0.5, 1.0))
            call.refuse([(token, (first, end))], delay_s, is_unseen=is_unseen)
            first = end + 1
        if chance.random() < 0.5 and call.is_open:
            part = part_of(token, chance, self.whole)
            call.acknowledge([(token, part)], confirms=chance.random() < 0.6)

    # --- transactions ---------------------------------------------------------------------------

    def begin(self) -> None:
        """Somebody has a member's records acknowledged by a transaction."""
        chance = self.chance
        seat = chance.choice(self.seats)
        call = seat.open_call
        parts = self._parts(seat, call, holds=chance.random() < 0.7) if call is not None else []
        if call is None or call.life is None or not parts:
            return
        self._numbers += 1
        home = chance.choice((SET, "local/p1"))
        name = TransactionId.of(home, self.ballot, self._numbers)
        wanted = [DeliveryRange(token.number, *part) for token, part in parts]
        leadership, ballot = self.leadership, parts[0][0].ballot
        if self.is_contrary and self.whims.random() < 0.1:
            # As of a delivery of the same number by the leader before: each counts from 1.
            ballot = ballot._replace(incarnation=ballot.incarnation - 1)
        try:
            group_id = leadership.groups.check_held(name, self.stream, seat.group, ballot, wanted)
        except HadronError:
            return
        ranges = tuple(sorted({(first, last) for _, first, last in wanted}))
        self._check_held(call.life, ranges, wanted, ballot)
        each = Transaction(name, group_id, ranges)
        # Else it is asked for elsewhere, and this leader hears of it once it is prepared.
        is_known = chance.random() < 0.9
        if is_known:
            try:
                leadership.locks.take(name, [deliveries(group_id, ranges)])
            except HadronError:
                return
            self.rules.take(call.life, name, ranges, trio.current_time())
        elif home == SET:
            return
        self.transactions[name] = each
        if home != SET:
            self._prepare(each)
            if not is_known and self.is_contrary:
                self._contradict(call, parts)

    def _contradict(self, call: Call, parts: list[tuple[Token, Range]]) -> None:
        """A member ends what a transaction is to have: that comes behind it in the log, which
        refuses it."""
        if parts[0][0].call is call and self.whims.random() < 0.5:
            call.refuse(parts, 0.0, is_unseen=False)
        else:
            call.acknowledge(parts, confirms=self.whims.random() < 0.6)

    def _check_held(
        self, life: Life, ranges: tuple[Range, ...], wanted: list[DeliveryRange], ballot: Ballot
    ) -> None:
        """The leader has found that members hold them."""
        if ballot != self.ballot:
            self.rules.complain(f"{life.name}: a transaction finds deliveries of {ballot} held")
        numbers = {
            offset: number for number, first, last in wanted for offset in range(first, last + 1)
        }
        for offset in offsets_of(ranges):
            given = life.held.get(offset)
            if given is None or given.number != numbers[offset]:
                self.rules.complain(f"{life.name}: a transaction finds {offset} held, it is not")

    def _prepare(self, each: Transaction) -> None:
        log = self.log
        statement = encode(AckRecords(each.group_id, each.ranges))

        def done(_result: Any, error: HadronError | None) -> None:
            if error is not None and log is self.log and not each.prepared_lsn:
                self._give_up(each)

        log.submit(WriteIntents(each.name, 0, (statement,)), done=done)

    def _give_up(self, each: Transaction) -> None:
        """It is rolled back, and the log knows nothing of it."""
        if self.transactions.pop(each.name, None) is not None:
            self.rules.free(each.name, trio.current_time())
            self.leadership.locks.free(each.name, [deliveries(each.group_id, each.ranges)])

    def end(self) -> None:
        """A transaction is over, one way or the other."""
        waiting = [each for each in self.transactions.values() if not each.is_asked]
        if not waiting:
            return
        each, log = self.chance.choice(waiting), self.log
        commits = self.chance.random() < 0.5
        if each.prepared_lsn:
            each.is_asked = True
            self.submit(
                FinishTransaction(each.name, each.prepared_lsn, 1)
                if commits
                else AbortTransaction(each.name)
            )
        elif each.name.replica_set == SET:
            if not commits:
                self._give_up(each)
                return
            each.is_asked = True

            def done(_result: Any, error: HadronError | None) -> None:
                if log is not self.log:
                    return
                if error is not None:
                    self._give_up(each)
                self.transactions.pop(each.name, None)

            statement = encode(AckRecords(each.group_id, each.ranges))
            log.submit(Decide(each.name, (), (statement,)), done=done)

    # --- all of it ------------------------------------------------------------------------------

    async def play(self) -> int:
        chance = self.chance
        deeds = (
            [self.append] * 4
            + [self.begin] * (15 if self.is_transactional else 5)
            + [self.end] * 4
            + [self.trim, self.lose_room, self.take_letters_away]
        )
        talk = 0.55 if self.is_transactional else 0.7
        steps = 0
        for _ in range(_STEPS):
            steps += 1
            what = chance.random()
            if what < talk:
                self.speak(chance.choice(self.seats))
            elif what < 0.97 - self.fails:
                chance.choice(deeds)()
            elif what < 0.985 - self.fails:
                self.lose_calls()
            elif what < 0.993 - self.fails:
                self.change_group()
            elif what < 1 - self.fails:
                self.keep()
            else:
                self.change_leader()
                if chance.random() < 0.7:
                    self.come_back()
            if chance.random() < 0.4:
                await trio.sleep(chance.choice((0.0, 0.001, 0.01, 0.1, 0.1, 0.7)))
                self.rules.check_deadlines(trio.current_time())
                self.look()
            if self.rules.complaints:
                break
        return steps
