"""Members as a group's leader sees them: what each was given on its call, and what it says.

Whatever a member says is told to the rules first: the leader may hand out more before it returns.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import trio

from hadron.delivery.driver import GroupDriver
from hadron.delivery.port import Ack, DeliveryRange, Extend, Flow, Heartbeat, Nack, Opened, Said
from hadron.delivery.sessions import MemberSession
from hadron.model.errors import DeadlineExceededError, HadronError
from hadron.model.ids import NO_BALLOT, Ballot
from hadron.model.ranges import Range
from hadron.model.transactions import TransactionId
from hadron.sim.rooms.group_lives import Holder, Life
from hadron.sim.rooms.group_rules import Rules

if TYPE_CHECKING:
    from hadron.delivery.effects import Assignment
    from hadron.model.batch import StampedBatch


@dataclass(frozen=True, eq=False)
class Token:
    """A delivery that a member has in hand."""

    call: Call
    life: int
    ballot: Ballot
    number: int
    first: int
    last: int
    records: tuple[int, ...]


class Asserted(NamedTuple):
    """`sure`: offsets that are not to be refused."""

    item: DeliveryRange
    sure: frozenset[int]


@dataclass(eq=False)
class Call:
    """A member's call: `delivery.port.MemberSink`."""

    rules: Rules
    group: str
    holder: Holder
    find: Callable[[], object]
    """The group's driver."""
    is_current: Callable[[], bool]
    """Whether its leader leads: nobody hears one that does not."""
    on_delivered: Callable[[Token], None]
    life: Life | None = None
    ballot: Ballot = NO_BALLOT
    driver: GroupDriver | None = None
    session: MemberSession | None = None
    peer: str = ""
    deaf_s: float = 0.0
    names_ballots: bool = False
    """Once something was taken back it names the ballot of all that it says, as clients do."""
    has_revoked: bool = False
    _unasked: list[Asserted] = field(default_factory=list)
    asked: dict[int, list[Asserted]] = field(default_factory=dict)
    _questions: int = 0

    def __post_init__(self) -> None:
        self.on_writable: Callable[[], None] = lambda: None

    @property
    def is_open(self) -> bool:
        return self.session is not None and not self.holder.is_over

    # --- what it is told ------------------------------------------------------------------------

    @property
    def writable(self) -> bool:
        return self.holder.is_writable

    def set_writable(self, *, is_writable: bool) -> None:
        self.holder.is_writable = is_writable
        if is_writable and not self.holder.is_over:
            self.on_writable()

    def open(self, opened: Opened) -> None:
        if not self.is_current():
            return
        self.ballot = opened.ballot
        self.life = self.rules.life_of(self.group)
        if self.life is None:
            self.rules.complain(f"{self.holder.name} has joined {self.group}, which is none")
            return
        self.rules.served(self.life, self.find(), trio.current_time())

    def deliver(self, given: Assignment, batch: StampedBatch, *, attach: bool) -> None:  # noqa: ARG002
        if self.life is None or not self.is_current():
            return
        if not batch.base_offset <= given.first <= given.last < batch.next_offset:
            self.rules.complain(f"{given} is not within its batch from {batch.base_offset}")
        ranges = given.first, given.last
        self.rules.delivered(
            self.life,
            self.holder,
            given.delivery,
            ranges,
            given.attempt,
            trio.current_time(),
            ends_batch=given.ends_batch,
        )
        numbers = tuple(self.rules.number_at(each) for each in range(given.first, given.last + 1))
        token = Token(self, self.life.number, self.ballot, given.delivery, *ranges, numbers)
        self.on_delivered(token)

    def end_batch(self) -> None:
        self.holder.filled = 0

    def beat(self) -> None:
        """Nothing waits for it."""

    def confirm(self, confirmation: int, refused: Sequence[DeliveryRange], floor: int) -> None:
        rules, life = self.rules, self.life
        if not self.is_current():
            return
        if life is None or confirmation not in self.asked:
            rules.complain(f"{self.holder.name}: {confirmation} is confirmed, and was not asked")
            return
        rules.reached["refused"] += len(refused)
        told = Counter((number, offset) for number, a, b in refused for offset in range(a, b + 1))
        said, unsure = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
        for (number, first, last), sure in self.asked.pop(confirmation):
            for offset in range(first, last + 1):
                said[number, offset] += 1
                unsure[number, offset] += offset not in sure
        begin = max(rules.first, life.progress.floor)
        for which, times in said.items():
            offset = which[1]
            what = f"{self.holder.name} of {self.group}: {offset}"
            # The same may have been said before, and counted then.
            if told[which] > unsure[which]:
                rules.complain(f"{what} is refused, and counted")
            is_refused = told.pop(which, 0) >= times
            if not is_refused and offset >= begin and offset not in life.progress.settled:
                rules.complain(f"{what} is confirmed, and not settled")
        if told.total():
            rules.complain(f"{self.holder.name}: refused is {told}, which it never said")
        if floor > rules.floor(life):
            rules.complain(f"{self.holder.name} is told of a floor {floor}")

    def revoke(self, ranges: Sequence[DeliveryRange], reason: str) -> None:
        self.has_revoked = True
        if reason != "ack deadline" or self.life is None or not self.is_current():
            return
        for number, first, last in ranges:
            now = trio.current_time()
            self.rules.expired(self.life, self.holder, number, [(first, last)], now)

    def tell_conflict(self, item: DeliveryRange, transaction: TransactionId) -> None:
        life = self.life if self.is_current() else None
        if life is not None and all(
            life.taken.get(offset, (None,))[0] != transaction
            for offset in range(item[1], item[2] + 1)
        ):
            self.rules.complain(f"{self.holder.name}: {transaction} has nothing of {item}")

    def fail(self, error: HadronError) -> None:
        if not self.is_current():
            pass
        elif isinstance(error, DeadlineExceededError) and self.life is not None:
            self.rules.left(self.life, self.holder, trio.current_time())
            self.rules.reached["silent"] += 1
        elif self.life is not None and "served anew" in error.message:
            self.rules.reached["served anew"] += 1
        self.holder.is_over = True

    # --- what it says ---------------------------------------------------------------------------

    def say(self, said: Said) -> None:
        assert self.driver is not None
        assert self.session is not None
        self.driver.receive(self.session, said)

    def acknowledge(self, parts: Sequence[tuple[Token, Range]], *, confirms: bool) -> None:
        """Parts of deliveries, all of this call or all of one ballot."""
        life = self.life
        assert life is not None
        is_own = parts[0][0].call is self
        items: list[DeliveryRange] = []
        for token, (first, last) in parts:
            begin = first - token.first
            numbers = token.records[begin : begin + last - first + 1]
            sure = self.rules.acknowledged(
                life,
                self.holder,
                token.number,
                (first, last),
                numbers if token.life >= life.number else (),
                trio.current_time(),
                is_own=is_own,
                is_late=not is_own,
            )
            items.append(DeliveryRange(token.number, first, last))
            self._unasked.append(Asserted(items[-1], sure))
        question = 0
        if confirms:
            self._questions += 1
            question = self._questions
            self.asked[question], self._unasked = self._unasked, []
        ballot = (
            None if is_own and not (self.has_revoked and self.names_ballots) else parts[0][0].ballot
        )
        self.say(Ack(items, question, ballot))

    def refuse(
        self, parts: Sequence[tuple[Token, Range]], delay_s: float | None, *, is_unseen: bool
    ) -> None:
        assert self.life is not None
        for token, wanted in parts:
            self.rules.refused(
                self.life,
                self.holder,
                token.number,
                wanted,
                trio.current_time(),
                delay_s=(0.0 if is_unseen else 0.05) if delay_s is None else delay_s,
                is_unseen=is_unseen,
            )
        items = [DeliveryRange(token.number, *wanted) for token, wanted in parts]
        self.say(Nack(items, delay_s, "by chance", is_unseen))

    def extend(self, parts: Sequence[tuple[Token, Range]]) -> None:
        assert self.life is not None
        numbers: list[int | None] = [token.number for token, _ in parts]
        for number in numbers or [None]:
            self.rules.extended(self.life, self.holder, number, trio.current_time())
        self.say(Extend([DeliveryRange(token.number, *wanted) for token, wanted in parts]))

    def flow(self, max_in_flight: int) -> None:
        self.holder.max_in_flight = max_in_flight
        self.say(Flow(max_in_flight))

    def beats(self) -> None:
        self.say(Heartbeat())


def part_of(token: Token, chance: random.Random, whole: float) -> Range:
    """All of it, in so many cases, or a part."""
    if chance.random() < whole:
        return token.first, token.last
    first = chance.randint(token.first, token.last)
    return first, chance.randint(first, token.last)
