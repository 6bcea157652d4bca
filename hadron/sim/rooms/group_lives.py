"""A consumer group as its rules see it: single offsets, members, and what is committed of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from hadron.model.transactions import TransactionId
from hadron.state.groups.progress import ORDER_KEY, ORDER_STRICT, GroupOptions


class Record(NamedTuple):
    """One that was appended: a number of its own, and its key, "" for none."""

    number: int
    key: str


@dataclass(eq=False)
class Holder:
    """A member over one call, as the rules see it."""

    name: str
    max_in_flight: int
    batch_size: int
    filled: int = 0
    is_over: bool = False
    is_writable: bool = True
    dealt_at: float = float("-inf")
    is_stalled: bool = False
    gives_back: bool = False
    """Something, since it has acknowledged anything."""
    tried: int = 0
    """The latest delivery that it was given since, or since it was too late: it gets no other
    while it works on that one."""


@dataclass(eq=False)
class Given:
    """A delivery."""

    holder: Holder
    number: int
    attempt: int
    armed: float
    expires: float


class GaveBack(NamedTuple):
    """A member's word: it could not use a record."""

    at: float
    delay_s: float
    is_unseen: bool


@dataclass(eq=False)
class Progress:
    """What is committed of a group between its making, or a reset, and the next one."""

    group_id: int
    floor: int
    settled: set[int] = field(default_factory=set)
    attempts: dict[int, int] = field(default_factory=dict)


class Life:
    """A group from its making, or a reset, on."""

    def __init__(self, name: str, options: GroupOptions, progress: Progress, number: int) -> None:
        self.name = name
        self.number = number
        """They rise: what was delivered in an earlier one counts for nothing here."""
        self.options = options
        self.progress = progress
        self.rightful: set[tuple[int, int]] = set()
        """Offsets, and numbers of their records, that somebody may have settled."""
        self.driver: object = None
        self.taken: dict[int, tuple[TransactionId, Given | None]] = {}
        self.renew(None)

    def renew(self, driver: object) -> None:
        """Somebody else serves it, who knows what is committed, and nothing else."""
        self.driver = driver
        self.held: dict[int, Given] = {}
        self.accepted: set[int] = set()
        self.ended = dict(self.progress.attempts)
        self.not_before: dict[int, float] = {}
        self.dying: dict[int, float] = {}
        self.apart: set[int] = set()
        """G16: each is to be alone with its member."""
        self.spared: Counter[int] = Counter()
        """G16: attempts that each lost with a member that had others."""
        self.words: dict[int, GaveBack | None] = {}
        """G15: what holders have said of what transactions have, None for an acknowledgement: that
        counts once these are rolled back."""
        self.letter_refused_at = float("-inf")
        self.overruled: set[int] = set()
        """A transaction wanted them, and the log gave them to another one. Where that one is rolled
        back they are with their members again, and the first may be decided all the same: once."""
        self.is_given_up = False
        """Its leader knows that it knows nothing any more: somebody else may serve it."""
        self.taken = {each: (owner, None) for each, (owner, _) in self.taken.items()}

    def given(self) -> list[tuple[int, Given]]:
        """What members hold, and what transactions have taken from them."""
        taken = [(each, given) for each, (_, given) in self.taken.items() if given is not None]
        return [*self.held.items(), *taken]

    def has_taken(self, offset: int, by: Holder, number: int) -> bool:
        """Whether a transaction has it out of this delivery."""
        _, given = self.taken.get(offset, (None, None))
        return given is not None and given.holder is by and given.number == number

    @property
    def is_by_key(self) -> bool:
        return self.options.order == ORDER_KEY

    @property
    def is_strict(self) -> bool:
        return self.options.order == ORDER_STRICT


class Committed(NamedTuple):
    """What a restore brings back."""

    records: list[Record]
    first: int
    has_letters: bool
    progress: dict[int, tuple[str, GroupOptions, Progress, int]]
