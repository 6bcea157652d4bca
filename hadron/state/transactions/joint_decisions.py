"""Decisions that wait at the same time, as one entry: of transactions that only publish at the
driver's own set, whatever they do at others. A client that commits many such at the same time says
so itself, and their records share a batch.

Such a transaction is a few rows; an entry of its own, with its body and its hashes, would cost more
than they do. What only appends is refused for no other's sake and sees nothing of it, so each of
them is as if it stood alone. Safety rule: all of an entry is done, or none; who is refused takes
the others with it, and then each is tried by itself (`partition.group_commit`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from hadron.model.errors import RequestError
from hadron.model.ids import Ballot
from hadron.model.transactions import (
    MAX_NUMBER,
    Participant,
    StatementResult,
    TransactionId,
    check_id,
    numbered,
)
from hadron.state import bodies
from hadron.state.bodies import Place
from hadron.state.machine import BatchShape, Command, Context, Feature, Gather, number_of
from hadron.state.streams import partitions as streams
from hadron.state.streams.appends import Append, append_all
from hadron.state.streams.partitions import AppendBatch
from hadron.state.transactions import decisions
from hadron.state.transactions.decisions import Decide, Decided

MAX_STATEMENTS: Final = 8
"""Of one that is joined by others, and participants: what does more is worth an entry."""

_APPEND: Final = AppendBatch.__struct_config__.tag

_decode = msgspec.msgpack.Decoder(AppendBatch).decode


class Appending(NamedTuple):
    """A transaction, by its number, what it appends here, and who does the rest of it."""

    number: int
    appends: tuple[AppendBatch, ...]
    participants: tuple[Participant, ...] = ()


class DecideAppends(Command[tuple[Decided, ...]], frozen=True, array_like=True, tag=42):
    """As a `Decide` for each of these transactions, one after the other. The entry's body is their
    batches, in order. Returns a `Decided` for each.

    Attributes:
        replica_set, ballot: of the ids of all of them.
    """

    replica_set: str
    ballot: Ballot
    transactions: tuple[Appending, ...]

    @property
    def batches(self) -> tuple[BatchShape, ...]:
        return tuple(
            [
                BatchShape(append.count, append.size)
                for each in self.transactions
                for append in each.appends
            ]
        )


class DecideRun(Command[Decided], frozen=True, array_like=True, tag=57):
    """As a `Decide` for each of several transactions, numbered one behind the other, which only
    publish to one stream here: their records are a batch, the entry's body. Returns the first
    one's `Decided`, with what came of the batch; refused as `DecideAppends`.

    Attributes:
        transaction: the first one.
        records: how many each has, in order.
        statement: the `AppendBatch` of all of them, encoded.
    """

    transaction: TransactionId
    records: tuple[int, ...]
    statement: bytes

    @property
    def joined(self) -> tuple[bytes, ...]:
        return (self.statement,)


def apply_decide_run(context: Context, command: DecideRun) -> Decided:
    """Raises what a `Decide` does, and `RequestError` when one was decided before, or the batch is
    no plain one, or has not as many records as they have."""
    first = command.transaction
    if not 0 <= first.number <= MAX_NUMBER - len(command.records):
        check_id(first)
        check_id(first._replace(number=first.number + len(command.records) - 1))
    decisions.check_driven_here(context, first, first.ballot)
    append = context.machine.decode(command.statement)
    if type(append) is not AppendBatch:
        raise RequestError(
            f"{len(command.records)} transactions from {first} on cannot share an "
            f"{type(append).__name__}",
            "they share a batch for a stream without an index of keys",
        )
    if min(command.records, default=0) < 1 or sum(command.records) != append.count:
        raise RequestError(
            f"{len(command.records)} transactions from {first} on have "
            f"{sum(command.records)} records, and their batch has {append.count}",
            "each has one of them at least, and all are in the batch",
        )
    context.machine.statement(append).check(context, append)
    appended = streams.append(context, append.stream_id, append.count, append.size)
    base, now_ms, lsn = appended.base_offset, context.now_ms, context.lsn
    decided: list[Decided] = []
    transactions = numbered(first, len(command.records))
    for transaction, count in zip(transactions, command.records, strict=True):
        results = (StatementResult(base, count, now_ms),)
        decided.append(Decided(transaction, lsn, now_ms, results, {}, ()))
        base += count
    decisions.keep_all(context, decided)
    whole = StatementResult(appended.base_offset, append.count, now_ms)
    return Decided(first, lsn, now_ms, (whole,), {}, ())


def apply_decide_appends(context: Context, command: DecideAppends) -> tuple[Decided, ...]:
    """Raises what a `Decide` does, and `RequestError` when one was decided before."""
    decisions.check_driven_here(
        context, TransactionId.of(command.replica_set, command.ballot, 0), command.ballot
    )
    appends = [append for each in command.transactions for append in each.appends]
    _check(context, command, appends)
    batches: list[Append] = []
    start = 0
    for append in appends:
        place = Place(context.lsn, start)
        batches.append(Append(append.stream_id, append.count, append.size, place))
        start += append.size
    if batches:
        bodies.count(context, start, batches=len(batches))
    bases = iter(append_all(context, batches))
    now_ms, lsn = context.now_ms, context.lsn
    decided: list[Decided] = []
    for number, own, participants in command.transactions:
        results = tuple([StatementResult(next(bases), each.count, now_ms) for each in own])
        transaction = TransactionId.of(command.replica_set, command.ballot, number)
        decided.append(Decided(transaction, lsn, now_ms, results, {}, participants))
    decisions.keep_all(context, decided)
    return tuple(decided)


def _check(context: Context, command: DecideAppends, appends: Sequence[AppendBatch]) -> None:
    """What is so of one batch for a stream is so of all."""
    for number, own, participants in command.transactions:
        transaction = TransactionId.of(command.replica_set, command.ballot, number)
        if not 0 <= number <= MAX_NUMBER:
            check_id(transaction)
        decisions.check_parts(context, transaction, participants, has_statements=bool(own))
    known: set[int] = set()
    for each in appends:
        if each.stream_id not in known or each.producer_id:
            context.machine.statement(each).check(context, each)
            known.add(each.stream_id)


# --- those that wait ----------------------------------------------------------------------------


def _key(command: Decide) -> Any:
    statements = command.statements
    if (
        len(statements) > MAX_STATEMENTS
        or len(command.participants) > MAX_STATEMENTS
        or not 0 <= command.transaction.number <= MAX_NUMBER
    ):
        return None
    for each in statements:
        if number_of(each) != _APPEND:
            return None
    return command.transaction[:3]


def _join(commands: Sequence[Decide]) -> DecideAppends:
    first = commands[0].transaction
    return DecideAppends(
        first.replica_set,
        first.ballot,
        tuple(
            [
                Appending(
                    each.transaction.number, tuple(map(_decode, each.statements)), each.participants
                )
                for each in commands
            ]
        ),
    )


FEATURE: Final = Feature(
    name="joint decisions",
    commands={DecideAppends: apply_decide_appends, DecideRun: apply_decide_run},
    gathers={Decide: Gather(key=_key, join=_join)},
)
