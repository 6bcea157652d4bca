"""What a driver's machine is told, and what it says is to be done.

What clients say is in `messages`, as is what participants say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from hadron.model.errors import HadronError
from hadron.model.transactions import Note, Participant, TransactionId
from hadron.transactions.messages import Answer, Body, Message, Request, Results, ToDriver

# --- events ---------------------------------------------------------------------------------------


class CallerJoined(msgspec.Struct, frozen=True):
    """A client's call was opened."""

    caller: int


class CallerLeft(msgspec.Struct, frozen=True):
    """It has ended."""

    caller: int


class Requested(msgspec.Struct, frozen=True):
    """A client says something on its call."""

    caller: int
    request: Request


class Received(msgspec.Struct, frozen=True):
    """A participant says something."""

    replica_set: str
    message: ToDriver


class Unanswered(msgspec.Struct, frozen=True):
    """A replica set cannot be reached; what was sent there may be lost."""

    replica_set: str
    error: HadronError


class Decided(msgspec.Struct, frozen=True):
    """The decision is committed.

    Attributes:
        results: of the statements that it did itself.
    """

    transaction: TransactionId
    results: Results


class DecisionRefused(msgspec.Struct, frozen=True):
    """Nothing was decided, nor will be."""

    transaction: TransactionId
    error: HadronError


class DecisionLost(msgspec.Struct, frozen=True):
    """This leadership has ended before the decision was committed: the next one may find it."""

    transaction: TransactionId
    error: HadronError


class Noted(msgspec.Struct, frozen=True):
    """It is committed that participants have finished."""

    notes: tuple[Note, ...]


class Unfinished(msgspec.Struct, frozen=True):
    """An earlier leadership has decided this, and not all have done their part.

    Attributes:
        participants: those that have not.
        results: of those that have.
    """

    transaction: TransactionId
    participants: tuple[Participant, ...]
    results: Mapping[str, Results]


class GivenUp(msgspec.Struct, frozen=True):
    """An operator does not wait any more for a participant of what is decided."""

    transaction: TransactionId
    replica_set: str


class LeadershipEnded(msgspec.Struct, frozen=True):
    """Nothing can be decided any more."""

    error: HadronError


class RollbackForced(msgspec.Struct, frozen=True):
    """Roll back what is not on its way to be decided: its client asks what became of it and will
    say no more, or an operator wants it."""

    transaction: TransactionId
    error: HadronError


class TimePassed(msgspec.Struct, frozen=True):
    """Something may be due."""


Event: TypeAlias = (
    CallerJoined
    | CallerLeft
    | Requested
    | Received
    | Unanswered
    | Decided
    | DecisionRefused
    | DecisionLost
    | Noted
    | Unfinished
    | GivenUp
    | LeadershipEnded
    | RollbackForced
    | TimePassed
)

# --- effects --------------------------------------------------------------------------------------


class Send(msgspec.Struct, frozen=True):
    """Tell a replica set's leader; it may be lost."""

    replica_set: str
    message: Message


class LogDecision(msgspec.Struct, frozen=True):
    """Log that the transaction is committed, with what it does here, or several that share its
    statement (`messages.Commit.records`)."""

    transaction: TransactionId
    participants: tuple[Participant, ...]
    statements: tuple[bytes, ...]
    bodies: Sequence[Body]
    records: tuple[int, ...] = ()


class LogFinished(msgspec.Struct, frozen=True):
    """Log what participants have done."""

    notes: tuple[Note, ...]


class FinishRefused(msgspec.Struct, frozen=True):
    """A participant says, for the first time, why it does not finish what is decided. It is asked
    again; `Machine.stuck` has it until it has."""

    transaction: TransactionId
    participant: str
    reason: str


class LookUp(msgspec.Struct, frozen=True):
    """A participant asks for transactions that are not held here: what the tables say, once a
    majority has confirmed this leadership."""

    replica_set: str
    transactions: tuple[TransactionId, ...]


class Reply(msgspec.Struct, frozen=True):
    """Tell a client."""

    caller: int
    answer: Answer


Effect: TypeAlias = Send | LogDecision | LogFinished | FinishRefused | LookUp | Reply
