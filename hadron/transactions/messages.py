"""What clients, drivers and participants of transactions say to each other, as it is in memory.

Safety rule: every message names its transaction, and what it is about in it: which statements, how
many of them, by which entry they were prepared. What does not fit to what its receiver knows of
just that transaction is refused, or passed over when it is a copy of what was done. So messages may
be lost, late, doubled and in any order, and nothing meets another transaction (PROTOCOL E1).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from hadron.model.errors import HadronError
from hadron.model.transactions import StatementResult, TransactionId

Body: TypeAlias = bytes | memoryview

Results: TypeAlias = tuple[StatementResult, ...]
"""Of the statements at one replica set, in their order."""


class Statement(msgspec.Struct, frozen=True):
    """One thing that a transaction does at one replica set.

    Attributes:
        command: encoded as it is logged.
        body: its record batches.
    """

    target: str
    command: bytes
    body: Body = b""


# --- a client to its driver -----------------------------------------------------------------------


class TakeBlock(msgspec.Struct, frozen=True):
    """Give this call numbers for more transactions."""


class Add(msgspec.Struct, frozen=True):
    """Statements of a transaction, from its `first` on; its first ones begin it."""

    transaction: TransactionId
    first: int
    statements: Sequence[Statement]


class Commit(msgspec.Struct, frozen=True):
    """Do all of its statements, or none: those before `first`, which came, and these.

    Attributes:
        is_noted_at_once: more than its client waits for the note that participants have finished.
        records: several transactions, this one and those numbered behind it, of which nothing else
            is said: how many records each has of the one statement, which appends them here.
    """

    transaction: TransactionId
    first: int
    statements: Sequence[Statement] = ()
    is_noted_at_once: bool = False
    records: tuple[int, ...] = ()


class Rollback(msgspec.Struct, frozen=True):
    """Do none of them.

    Attributes:
        error: why, where it is not the client's wish: one of them was refused at the door.
        records: as in `Commit`.
    """

    transaction: TransactionId
    error: HadronError | None = None
    records: tuple[int, ...] = ()


Request: TypeAlias = TakeBlock | Add | Commit | Rollback


# --- the driver's answers -------------------------------------------------------------------------


class Block(msgspec.Struct, frozen=True):
    """The call may use these numbers, each once, rising.

    Attributes:
        first: a transaction of the driver; `size` numbers from its number on are the call's.
    """

    first: TransactionId
    size: int


class Committed(msgspec.Struct, frozen=True):
    """It is done, everywhere.

    Attributes:
        results: of each replica set's statements; `DELETED` at one that an operator has given up.
        transactions: of several that were committed together, the first of which this names: the
            one result is of the records of all.
    """

    transaction: TransactionId
    results: Mapping[str, Results]
    transactions: int = 1


class RolledBack(msgspec.Struct, frozen=True):
    """Nothing of it was done, nor will be."""

    transaction: TransactionId
    error: HadronError


class CommitUnknown(msgspec.Struct, frozen=True):
    """The driver's leadership has ended between the decision and its commit. Whoever leads next
    knows what became of it."""

    transaction: TransactionId
    error: HadronError


class Unfit(msgspec.Struct, frozen=True):
    """A message was passed over. This says nothing of the transaction's outcome."""

    transaction: TransactionId
    error: HadronError


Answer: TypeAlias = Block | Committed | RolledBack | CommitUnknown | Unfit


# --- a driver to a participant --------------------------------------------------------------------


class Prepare(msgspec.Struct, frozen=True):
    """Write statements as intents: those from `first` on, of what this transaction does here.

    Attributes:
        body: the statements' batches, one after the other.
    """

    transaction: TransactionId
    first: int
    statements: tuple[bytes, ...]
    body: Body


class Finish(msgspec.Struct, frozen=True):
    """It is decided: do its `count` intents, the first of which entry `prepared_lsn` has."""

    transaction: TransactionId
    prepared_lsn: int
    count: int


class Abort(msgspec.Struct, frozen=True):
    """It will never be decided."""

    transaction: TransactionId


class Forget(msgspec.Struct, frozen=True):
    """The driver has logged what these came to; nobody asks for that here again."""

    transactions: tuple[TransactionId, ...]


class Fate(enum.Enum):
    """What a participant is told that asks what became of a transaction."""

    WAIT = "wait"
    """It may still become anything."""
    COMMITTED = "committed"
    ABORTED = "aborted"
    OVER = "over"
    """The driver waits for nothing here: it was done and the driver knows, or an operator has given
    it up. What was prepared by another entry is a copy that came late."""


class Told(msgspec.Struct, frozen=True):
    """What became of a transaction, for who has asked.

    Attributes:
        prepared_lsn, count: as in `Finish`, where it is committed, or is known to have been.
    """

    transaction: TransactionId
    fate: Fate
    prepared_lsn: int = 0
    count: int = 0


# --- a participant to a driver --------------------------------------------------------------------


class Prepared(msgspec.Struct, frozen=True):
    """The intents of one `Prepare` are on a majority of the disks.

    Attributes:
        prepared_lsn: of the entry there with the transaction's first intent.
    """

    transaction: TransactionId
    first: int
    prepared_lsn: int


class PrepareRefused(msgspec.Struct, frozen=True):
    """They are not, and will not be."""

    transaction: TransactionId
    first: int
    error: HadronError


class Finished(msgspec.Struct, frozen=True):
    """All intents were done."""

    transaction: TransactionId
    results: Results


class FinishFailed(msgspec.Struct, frozen=True):
    """They cannot be done now: a member is old, say, or intents are missing."""

    transaction: TransactionId
    error: HadronError


class Asked(msgspec.Struct, frozen=True):
    """What became of these? Something of them is here."""

    transactions: tuple[TransactionId, ...]


ToParticipant: TypeAlias = Prepare | Finish | Abort | Forget | Told
ToDriver: TypeAlias = Prepared | PrepareRefused | Finished | FinishFailed | Asked
Message: TypeAlias = ToParticipant | ToDriver
