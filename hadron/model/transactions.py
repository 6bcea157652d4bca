"""Transactions: their ids, what each of their statements came to, what they lock. Pure.

An id is `replica-set/epoch.incarnation/number`: the driver's replica set, the ballot of the
leadership that drives it, and a number of that leadership. Safety rule: an id is never used again.
No two leaderships have one ballot, while incarnations alone repeat: a set that was restored begins
anew with 0, in a higher epoch. So a message that comes late can touch no other transaction
(PROTOCOL E1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from hadron.model.errors import RequestError
from hadron.model.ids import Ballot, is_valid_replica_set_name
from hadron.model.ranges import Range

BLOCK_BITS: Final = 20
"""A driver gives its clients blocks of a million numbers, in which they number themselves: so a
transaction has its name before any answer."""

MAX_NUMBER: Final = (1 << 63) - 1
"""SQLite's largest integer."""

_FORM: Final = "write it as Hadron has printed it: replica-set/epoch.incarnation/number"
_BALLOT: Final = re.compile(r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)", re.ASCII)
_NUMBER: Final = re.compile(r"0|[1-9][0-9]*", re.ASCII)


class TransactionId(NamedTuple):
    """Names a transaction, for ever."""

    replica_set: str
    """The driver's."""
    epoch: int
    incarnation: int
    number: int

    @classmethod
    def of(cls, replica_set: str, ballot: Ballot, number: int) -> TransactionId:
        return cls(replica_set, ballot.epoch, ballot.incarnation, number)

    @property
    def ballot(self) -> Ballot:
        """Of the leadership that drives it."""
        return Ballot(self.epoch, self.incarnation)

    @property
    def block(self) -> int:
        return self.number >> BLOCK_BITS

    def __str__(self) -> str:
        return f"{self.replica_set}/{self.epoch}.{self.incarnation}/{self.number}"


def numbered(first: TransactionId, count: int) -> Iterator[TransactionId]:
    """So many, one behind the other."""
    replica_set, epoch, incarnation, number = first
    for each in range(number, number + count):
        yield TransactionId(replica_set, epoch, incarnation, each)


def check_id(transaction: TransactionId) -> None:
    """Raises `RequestError` for what is no transaction's id."""
    replica_set, epoch, incarnation, number = transaction
    if not (
        0 <= epoch <= MAX_NUMBER
        and 0 <= incarnation <= MAX_NUMBER
        and 0 <= number <= MAX_NUMBER
        and is_valid_replica_set_name(replica_set)
    ):
        raise RequestError(f"{str(transaction)[:200]!r} is not a transaction's id", _FORM)


def parse_transaction_id(text: str) -> TransactionId:
    """Raises `RequestError` for what is none."""
    parts = text.rsplit("/", 2)
    if len(parts) == 3:
        ballot, number = _BALLOT.fullmatch(parts[1]), _NUMBER.fullmatch(parts[2])
        # Longer ones are none, and Python refuses to read very long ones.
        if ballot is not None and number is not None and max(map(len, parts[1:])) < 40:
            found = TransactionId(parts[0], int(ballot[1]), int(ballot[2]), int(number[0]))
            check_id(found)
            if 0 in found[1:]:
                raise RequestError(
                    f"{str(found)!r} is not a transaction's id: epoch, incarnation and number "
                    "begin with 1",
                    _FORM,
                )
            return found
    raise RequestError(f"{text[:200]!r} is not a transaction's id", _FORM)


class StatementResult(msgspec.Struct, frozen=True, array_like=True):
    """What a statement of a transaction came to, once that was committed.

    Attributes:
        base_offset: the first offset of the records that it appended; -1 when it appended none.
        count: of records.
        append_ms: their stamp.
        is_deleted: its stream, group or pipeline was deleted (a group: or reset) between prepare
            and finish: nothing was done (PROTOCOL E2).
    """

    base_offset: int = -1
    count: int = 0
    append_ms: int = 0
    is_deleted: bool = False


DONE: Final = StatementResult()
"""Of a statement that appends nothing."""

DELETED: Final = StatementResult(is_deleted=True)


class Participant(NamedTuple):
    """A replica set that has statements of a transaction, besides the driver's own.

    Attributes:
        prepared_lsn: of the entry there with the transaction's first intent. Whoever finishes names
            it: intents that come late, after all was finished and forgotten, have another one, so
            that nothing is done twice.
        statements: how many it has there.
    """

    replica_set: str
    prepared_lsn: int
    statements: int


class Note(NamedTuple):
    """That a participant has finished, and what its statements came to, in their order."""

    transaction: TransactionId
    participant: str
    results: tuple[StatementResult, ...]


DELIVERIES: Final = "group"
STAGES: Final = "stage"


class Lock(NamedTuple):
    """What a statement keeps others from ending, from its prepare on until its finish or abort.

    Attributes:
        kind: `DELIVERIES` of a group, `STAGES` of a pipeline's instances, or a later feature's.
        owner_id: the group's, or the pipeline's.
        name: the stage's; "" of deliveries.
        ranges: offsets, or the ids of instances.
    """

    kind: str
    owner_id: int
    name: str
    ranges: tuple[Range, ...]
