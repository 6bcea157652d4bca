"""A partition's log as producers know it, made up: what it takes and what it answers, written from
the rules (PROTOCOL D1, D5, D6) and not from the tables that follow them; and its leaders, which
crash, stop, or are cut off and never learn it.

A leader answers what it has judged by its log once that log is committed (A2). What is not
committed may be there under the next leader, or be gone for ever.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from hadron.model.batch import producer_id_of
from hadron.model.errors import (
    ConflictError,
    FencedError,
    HadronError,
    MetadataBehindError,
    NotFoundError,
    NotLeaderError,
    NotReadyError,
    OffsetMismatchError,
    OverloadedError,
    ProducerFencedError,
    RequestError,
    SequenceError,
    ShuttingDownError,
    UnreachableError,
)

REMEMBERED: Final = 5
"""Batches of each producer that are known again."""

NOTHING: Final = -1

BEFORE_LOGGING: Final[tuple[type[HadronError], ...]] = (
    NotReadyError,
    OverloadedError,
    MetadataBehindError,
    UnreachableError,
    NotLeaderError,
)
"""What a node says that has not looked into its log."""

AT_AN_END: Final[tuple[type[HadronError], ...]] = (ShuttingDownError, FencedError)
"""What a leader that ends says to all who wait, logged or not."""


class Batch(NamedTuple):
    """What a producer asks to be logged.

    Attributes:
        last: what its program has numbered the last record, or `NOTHING`.
    """

    producer: bytes
    epoch: int
    sequence: int
    values: tuple[bytes, ...]
    keys: tuple[bytes | None, ...]
    expect_offset: int | None = None
    expect_key_offset: int | None = None
    last: int = NOTHING


class Claiming(NamedTuple):
    """A name, and who asks for it."""

    name: str
    after: int
    token: bytes


class Forgotten(NamedTuple):
    """A producer that has been idle for long."""

    producer: bytes


Entry = Batch | Claiming | Forgotten


class Place(NamedTuple):
    """Where a batch is."""

    offset: int
    duplicate: bool


class Named(NamedTuple):
    """A name's latest claim."""

    claim: int
    last: int


Answer = Place | Named | HadronError
Told = Callable[[Answer], None]


@dataclass
class _Producer:
    epoch: int
    following: int = 0
    recent: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    """Sequence, count and offset."""


@dataclass
class _Name:
    claim: int = 0
    token: bytes = b""
    last: int = NOTHING


class State:
    """What the entries so far come to."""

    def __init__(self) -> None:
        self.lsn = 0
        self.values: list[bytes] = []
        self.keys: list[bytes | None] = []
        """By offset, both."""
        self.latest: dict[bytes, int] = {}
        """By key."""
        self.names: dict[bytes, _Name] = {}
        self.producers: dict[bytes, _Producer] = {}

    def check(self, batch: Batch, held: set[bytes]) -> Place | None:
        """Where it is already; None when it may be logged now. Raises what speaks against it."""
        known = self.producers.get(batch.producer)
        if known is None or batch.epoch > known.epoch:
            if batch.sequence:
                raise SequenceError(f"nobody has begun what goes on at {batch.sequence}")
        elif batch.epoch < known.epoch:
            raise ProducerFencedError("somebody else has the name")
        elif batch.sequence != known.following:
            for sequence, count, offset in known.recent:
                if (sequence, count) == (batch.sequence, len(batch.values)):
                    return Place(offset, True)
            raise SequenceError(f"{batch.sequence} does not follow, {known.following} would")
        if any(key in held for key in batch.keys):
            raise ConflictError("a transaction holds the key")
        self._check_conditions(batch)
        if batch.last != NOTHING:
            name = self.names.get(batch.producer)
            if name is None or batch.last <= name.last:
                raise RequestError(f"the sequence {batch.last} does not rise")
        return None

    def _check_conditions(self, batch: Batch) -> None:
        if batch.expect_offset is not None:
            self._expect(batch.expect_offset, len(self.values))
        if batch.expect_key_offset is not None:
            (key,) = batch.keys
            assert key is not None
            self._expect(batch.expect_key_offset, self.latest.get(key, NOTHING))

    def _expect(self, expected: int, actual: int) -> None:
        if expected != actual:
            raise OffsetMismatchError("not so", expected=expected, actual=actual)

    def check_claim(self, claiming: Claiming) -> Named | None:
        """Whose it is already; None when it may be claimed now. Raises that somebody else has."""
        name = self.names.get(producer_id_of(claiming.name), _Name())
        if name.claim and name.token == claiming.token:
            return Named(name.claim, name.last)
        if claiming.after != name.claim:
            raise ProducerFencedError("somebody else has claimed it since")
        return None

    def add(self, entry: Entry) -> Place | Named | None:
        """The next entry."""
        self.lsn += 1
        if isinstance(entry, Forgotten):
            self.producers.pop(entry.producer, None)
            return None
        if isinstance(entry, Claiming):
            producer = producer_id_of(entry.name)
            name = self.names.setdefault(producer, _Name())
            name.claim, name.token = self.lsn, entry.token
            self.producers[producer] = _Producer(self.lsn)
            return Named(name.claim, name.last)
        offset, count = len(self.values), len(entry.values)
        known = self.producers.get(entry.producer)
        if known is None or known.epoch < entry.epoch:
            known = self.producers[entry.producer] = _Producer(entry.epoch)
        known.following = entry.sequence + count
        known.recent.append((entry.sequence, count, offset))
        self.latest |= {key: offset + at for at, key in enumerate(entry.keys) if key is not None}
        self.values += entry.values
        self.keys += entry.keys
        if entry.last != NOTHING:
            self.names[entry.producer].last = entry.last
        return Place(offset, False)


class Weather(Protocol):
    """What a leader lives in."""

    chance: random.Random
    refusing: type[HadronError] | None
    """What all batches are refused with before they are looked at, by a share of the tries."""
    final: float
    """The share of batches that are refused for good."""
    commits_s: float
    deleted: bool
    """The stream is, for good."""

    @property
    def now_s(self) -> float: ...

    def later(self, delay_s: float, work: Callable[[], None]) -> None: ...


class Leader:
    """One leadership of a partition."""

    def __init__(self, partition: Partition, entries: list[Entry]) -> None:
        self.partition = partition
        self.entries = entries
        self.state = State()
        for entry in entries:
            self.state.add(entry)
        self.is_cut = self.is_over = self.is_gone = False
        self._waiting: deque[tuple[int, Answer, Told]] = deque()
        self._weather = partition.weather

    @property
    def leads(self) -> bool:
        return not self.is_over

    def append(self, batch: Batch, told: Told) -> None:
        """As a call that has arrived asks."""
        weather = self._weather
        self.partition.heard_s[batch.producer] = weather.now_s
        if self.is_over:
            told(NotLeaderError("another leads"))
        elif weather.deleted:
            told(NotFoundError("there is no such stream"))
        elif weather.refusing is not None and weather.chance.random() < 0.6:
            told(weather.refusing("not now"))
        elif weather.chance.random() < weather.final:
            told(RequestError("never"))
        else:
            try:
                known = self.state.check(batch, self.partition.held)
            except HadronError as error:
                self._answer(error, told)
            else:
                self._answer(known or self._log(batch), told)

    def claim(self, claiming: Claiming | str, told: Told) -> None:
        """Claim a name; or, given that alone, say who has it."""
        if self.is_over:
            told(NotLeaderError("another leads"))
            return
        if isinstance(claiming, str):
            name = self.state.names.get(producer_id_of(claiming), _Name())
            self._answer(Named(name.claim, name.last), told)
            return
        try:
            known = self.state.check_claim(claiming)
        except HadronError as error:
            self._answer(error, told)
        else:
            self._answer(known or self._log(claiming), told)

    def forget_idle(self, since_s: float) -> None:
        """Producers without a name that nothing has come from for so long."""
        heard = self.partition.heard_s
        for producer in self.state.producers.keys() - self.state.names.keys():
            if heard[producer] < since_s:
                self._log(Forgotten(producer))

    def confirm(self, told: Told) -> None:
        """That a majority follows it."""
        if self.is_cut or self.is_over:
            told(NotReadyError("no majority"))
        else:
            told(Place(0, False))

    def _log(self, entry: Entry) -> Answer:
        self.entries.append(entry)
        answer = self.state.add(entry)
        return answer or Place(0, False)

    def _answer(self, answer: Answer, told: Told) -> None:
        lsn = len(self.entries)
        self._waiting.append((lsn, answer, told))
        self.commit_soon(lsn)

    def commit_soon(self, lsn: int) -> None:
        delay_s = self._weather.chance.uniform(0.0, 2 * self._weather.commits_s)
        self._weather.later(delay_s, lambda: self._commit(lsn))

    def _commit(self, lsn: int) -> None:
        if self.is_cut or self.is_over:
            return
        self.partition.committed = max(self.partition.committed, lsn)
        while self._waiting and self._waiting[0][0] <= self.partition.committed:
            _, answer, told = self._waiting.popleft()
            told(answer)

    def stop(self, reason: HadronError | None) -> None:
        """It ends, and says so to those who wait, or (None) is gone without a word."""
        if not self.is_over:
            self.is_over = True
            self.is_gone = reason is None
            waiting, self._waiting = self._waiting, deque()
            if reason is not None:
                for _, _, told in waiting:
                    told(reason)


class Partition:
    """Its log, and who leads it."""

    def __init__(self, name: str, weather: Weather) -> None:
        self.name = name
        self.weather = weather
        self.held: set[bytes] = set()
        """Keys that a transaction holds."""
        self.committed = 0
        self.heard_s: dict[bytes, float] = {}
        """When a batch came from each producer last."""
        self.zombie: Leader | None = None
        """Cut off, and another leads."""
        self.leader: Leader | None = Leader(self, [])
        self._found: list[Entry] = []
        """What the next leader begins with."""

    def lose_leader(self) -> Leader | None:
        """In one of the ways in which leaders end; returns it."""
        leader = self.leader
        if leader is None:
            return None
        chance = self.weather.chance
        ending = chance.choice(("crash", "stop", "cut"))
        if ending == "cut" and self.zombie is None:
            leader.is_cut = True
            self.zombie = leader
        elif ending == "stop":
            leader.stop(chance.choice(AT_AN_END)("leads no more"))
        else:
            leader.stop(None)
        self.leader = None
        # Any part of what is not committed may be found where the next one looks.
        kept = chance.choice((self.committed, len(leader.entries)))
        if chance.random() < 0.5:
            kept = chance.randint(self.committed, len(leader.entries))
        self._found = leader.entries[:kept]
        return leader

    def take_over(self) -> None:
        """Another leads."""
        if self.leader is None:
            self.leader = Leader(self, self._found)
            self.leader.commit_soon(len(self._found))

    def end_zombie(self) -> None:
        """It hears of who leads now."""
        zombie, self.zombie = self.zombie, None
        if zombie is not None:
            zombie.stop(FencedError("another leads"))

    @property
    def logged(self) -> State:
        """What is committed."""
        assert self.leader is not None
        state = State()
        for entry in self.leader.entries[: self.committed]:
            state.add(entry)
        return state
