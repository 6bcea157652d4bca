"""A transaction as its driver holds it, and what a participant has of it. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hadron.model.transactions import Participant, TransactionId, numbered
from hadron.transactions.limits import (
    CHUNK_BYTES,
    CHUNK_COMMAND_BYTES,
    CHUNK_STATEMENTS,
    MAX_CHUNKS_IN_FLIGHT,
    STATEMENT_BYTES,
    Limits,
)
from hadron.transactions.messages import Body, Prepare, Results, Statement


class Phase(enum.Enum):
    OPEN = "open"
    PREPARING = "preparing"
    """Its client wants it committed; some intents are not written yet."""
    DECIDING = "deciding"
    """The decision is on its way into the log: from here on only the log knows."""
    DECIDED = "decided"


class Branch:
    """What one participant has of a transaction that is not decided yet.

    Attributes:
        count: of its statements.
        chunks: entries of intents that are not acknowledged, by their first statement.
        unsent: statements of which none is made yet.
        prepared_lsn: of the entry there with its first intent; 0 until something is acknowledged.
        since: when it last was not waited for: it was begun, or something was acknowledged.
    """

    __slots__ = ("chunks", "count", "prepared_lsn", "since", "unsent")

    def __init__(self, now: float) -> None:
        self.count = self.prepared_lsn = 0
        self.chunks: dict[int, Prepare] = {}
        self.unsent: list[Statement] = []
        self.since = now

    @property
    def is_prepared(self) -> bool:
        return not self.chunks and not self.unsent

    def next_chunk(self, transaction: TransactionId) -> Prepare | None:
        """Make an entry of some of what is unsent; None when there is nothing, or enough on its
        way."""
        unsent = self.unsent
        if not unsent or len(self.chunks) >= MAX_CHUNKS_IN_FLIGHT:
            return None
        taken = command_bytes = body_bytes = 0
        for statement in unsent[:CHUNK_STATEMENTS]:
            command_bytes += len(statement.command)
            body_bytes += len(statement.body)
            if taken and (command_bytes > CHUNK_COMMAND_BYTES or body_bytes > CHUNK_BYTES):
                break
            taken += 1
        first = self.count - len(unsent)
        chunk = Prepare(
            transaction,
            first,
            tuple(each.command for each in unsent[:taken]),
            joined([each.body for each in unsent[:taken]]),
        )
        self.chunks[first] = chunk
        del unsent[:taken]
        return chunk


def joined(bodies: Sequence[Body]) -> Body:
    """One body is not copied."""
    with_bytes = [body for body in bodies if len(body)]
    return with_bytes[0] if len(with_bytes) == 1 else b"".join(with_bytes)


def cost(body: Body, commands: Sequence[bytes]) -> int:
    """Bytes that these statements take while they are in no log."""
    return len(body) + sum(map(len, commands)) + STATEMENT_BYTES * len(commands)


class Finishing:
    """What a decided transaction waits for.

    Attributes:
        unfinished: the participants that have not done their part as far as is known here.
        noting: those that have, and it is not committed here yet.
        results: of those that have, and of the driver's own set.
        reasons: why a participant cannot finish, as it says itself.
    """

    __slots__ = ("noting", "reasons", "results", "unfinished")

    def __init__(self, participants: Iterable[Participant], results: Mapping[str, Results]) -> None:
        self.unfinished = {each.replica_set: each for each in participants}
        self.noting: set[str] = set()
        self.results = dict(results)
        self.reasons: dict[str, str] = {}


class Transaction:
    """One transaction, or several that are decided together: of those `id` is the first.

    Attributes:
        caller: the client's call; 0 when an earlier leadership has decided it.
        home: what the driver's own set does in the deciding entry. It is a participant instead, as
            soon as that is too much for one.
        home_bytes, home_command_bytes: of it, its batches and the rest.
        branches: by participant, until it is decided.
        count: of the statements that came.
        size: of all of them, in bytes.
        kept: of those that are not in any log yet, with what they take besides (`cost`).
        is_noted_at_once: that participants have finished, without waiting for others' notes.
        unprepared: how many participants have not written all intents.
        finishing: once it is decided, and participants have to finish.
        records: of several: how many each has; of one it is empty.
    """

    __slots__ = (
        "begun_at",
        "branches",
        "caller",
        "count",
        "finishing",
        "home",
        "home_bytes",
        "home_command_bytes",
        "id",
        "is_noted_at_once",
        "kept",
        "phase",
        "records",
        "size",
        "touched_at",
        "unprepared",
    )

    def __init__(self, transaction: TransactionId, caller: int, now: float) -> None:
        self.id = transaction
        self.caller = caller
        self.phase = Phase.OPEN
        self.home: list[Statement] = []
        self.home_bytes = self.home_command_bytes = 0
        self.branches: dict[str, Branch] = {}
        self.count = self.size = self.kept = self.unprepared = 0
        self.begun_at = self.touched_at = now
        self.finishing: Finishing | None = None
        self.is_noted_at_once = False
        self.records: tuple[int, ...] = ()

    def ids(self) -> Iterator[TransactionId]:
        """Its own, or those of all."""
        return numbered(self.id, len(self.records) or 1)

    def has(self, transaction: TransactionId) -> bool:
        """Whether it is one of these."""
        behind = transaction.number - self.id.number
        return transaction[:3] == self.id[:3] and 0 <= behind < (len(self.records) or 1)

    def take_home(self, statement: Statement, limits: Limits) -> bool:
        """Whether the deciding entry has room for it, too."""
        self.home.append(statement)
        self.home_bytes += len(statement.body)
        self.home_command_bytes += len(statement.command)
        return (
            self.home_bytes <= limits.home_bytes
            and self.home_command_bytes <= limits.home_command_bytes
            and len(self.home) <= limits.home_statements
        )

    def participants(self) -> tuple[Participant, ...]:
        """Those of what is prepared."""
        if not self.branches:
            return ()
        return tuple(
            [
                Participant(name, branch.prepared_lsn, branch.count)
                for name, branch in self.branches.items()
            ]
        )

    def shown(self, now: float, reason: Callable[[str], str]) -> Shown:
        """
        Args:
            reason: why a replica set is not heard of; "" while it is.
        """
        waits_for = {
            name: reason(name) or "it writes intents"
            for name, branch in self.branches.items()
            if not branch.is_prepared
        }
        if (finishing := self.finishing) is not None:
            for name in finishing.unfinished:
                said = finishing.reasons.get(name) or reason(name)
                waits_for[name] = said or "it is finishing"
        age_s = now - self.begun_at
        return Shown(self.id, self.phase.value, age_s, self.count, self.size, waits_for)


def stuck(
    held: Iterable[Transaction], unfinished: Mapping[str, int], silence: Callable[[str], str]
) -> list[tuple[str, int, str]]:
    """(replica set, how many decided transactions wait for it, why), where that is known: what it
    says of the first one that it does not finish, or since when it says nothing."""
    refused: dict[str, str] = {}
    for each in held:
        if (finishing := each.finishing) is not None:
            for name, reason in finishing.reasons.items():
                if name in finishing.unfinished:
                    refused.setdefault(name, f"of {each.id} it says: {reason}")
    return [
        (name, count, reason)
        for name, count in unfinished.items()
        if count and (reason := refused.get(name) or silence(name))
    ]


class Open:
    """Those that are not decided, the oldest first; a call's own are found without the others."""

    __slots__ = ("_all", "_by_caller")

    def __init__(self) -> None:
        self._all: dict[TransactionId, Transaction] = {}
        self._by_caller: dict[int, dict[TransactionId, Transaction]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __setitem__(self, transaction: TransactionId, held: Transaction) -> None:
        self._all[transaction] = held
        self._by_caller.setdefault(held.caller, {})[transaction] = held

    def __delitem__(self, transaction: TransactionId) -> None:
        caller = self._all.pop(transaction).caller
        own = self._by_caller[caller]
        del own[transaction]
        if not own:
            del self._by_caller[caller]

    def values(self) -> Iterable[Transaction]:
        return self._all.values()

    def of(self, caller: int) -> list[Transaction]:
        return list(self._by_caller.get(caller, {}).values())


class Shown(NamedTuple):
    """A transaction, for people.

    Attributes:
        phase: "open", "preparing", "deciding" or "decided".
        age_s: since this driver has it.
        waits_for: by replica set, what is missing there, in words.
    """

    transaction: TransactionId
    phase: str
    age_s: float
    statements: int
    bytes: int
    waits_for: dict[str, str]
