"""What is said of transactions, between the wire and memory: clients' calls, and leaders' links.

A statement of another replica set stays as it came: who leads there reads it (`server.statements`).
Batches are parts of the attachment, in the order of what they belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, TypeAlias

from hadron.model.errors import FrameError, HadronError, RequestError
from hadron.model.transactions import StatementResult, TransactionId, check_id
from hadron.transactions.claims import Claim
from hadron.transactions.messages import (
    Abort,
    Asked,
    Block,
    Body,
    Committed,
    CommitUnknown,
    Fate,
    Finish,
    Finished,
    FinishFailed,
    Forget,
    Message,
    Prepare,
    Prepared,
    PrepareRefused,
    Results,
    RolledBack,
    Told,
    Unfit,
)
from hadron.transactions.messages import Answer as ToClient
from hadron.wire.messages import (
    ballot_to,
    check_number,
    error_from_message,
    error_to_message,
    set_transaction,
    transaction_from,
    transactions_pb2,
)

Wired: TypeAlias = transactions_pb2.TransactionMessage

_FATES: Final = {
    Fate.WAIT: Wired.Told.WAIT,
    Fate.COMMITTED: Wired.Told.COMMITTED,
    Fate.ABORTED: Wired.Told.ABORTED,
    Fate.OVER: Wired.Told.OVER,
}
_FATES_FROM: Final = {int(number): fate for fate, number in _FATES.items()}

_SMALL: Final = 4
"""A batch that is a smaller part of its frame than one of so many is copied: else a few bytes that
wait for their transaction's end would keep all that came with them."""


# --- parts ----------------------------------------------------------------------------------------


def _wired(transaction: TransactionId) -> Wired:
    wired = Wired()
    set_transaction(wired.transaction, transaction)
    return wired


def id_from(message: transactions_pb2.TransactionId) -> TransactionId:
    """Raises `RequestError` for what is no transaction's id."""
    transaction = transaction_from(message)
    check_id(transaction)
    return transaction


class Batches:
    """The batches of an attachment, one after the other. Raises `FrameError` when it has more, or
    fewer bytes than was said."""

    def __init__(self, attachment: memoryview) -> None:
        self._attachment = attachment
        self._at = 0

    def take(self, length: int) -> memoryview:
        start = self._at
        end = self._at = start + length
        size = len(self._attachment)
        if end > size:
            raise FrameError(f"batches of {end} bytes are announced, {size} came")
        part = self._attachment[start:end]
        return part if length * _SMALL >= size else memoryview(bytes(part))

    def end(self) -> None:
        if self._at != len(self._attachment):
            raise FrameError(
                f"batches of {self._at} bytes are announced, {len(self._attachment)} came"
            )


def results_to(results: Results) -> Iterator[transactions_pb2.StatementResult]:
    for each in results:
        yield transactions_pb2.StatementResult(
            base_offset=each.base_offset if each.base_offset >= 0 else None,
            count=each.count,
            append_ms=each.append_ms,
            deleted=each.is_deleted,
        )


def results_from(messages: Iterable[transactions_pb2.StatementResult]) -> Results:
    return tuple(
        StatementResult(
            check_number("an offset", each.base_offset) if each.HasField("base_offset") else -1,
            each.count,
            each.append_ms,
            each.deleted,
        )
        for each in messages
    )


def all_results_to(results: Mapping[str, Results]) -> Iterator[transactions_pb2.ReplicaSetResults]:
    for name, each in results.items():
        yield transactions_pb2.ReplicaSetResults(replica_set=name, results=results_to(each))


# --- to a client ----------------------------------------------------------------------------------


def add_answer(event: transactions_pb2.TransactEvent, answer: ToClient) -> int:
    """Let a client's call say this, too; returns how many bytes that takes."""
    added = event.answers.add()
    if isinstance(answer, Committed):
        committed = added.committed
        committed.number = answer.transaction.number
        if answer.transactions > 1:
            committed.transactions = answer.transactions
        for name, results in answer.results.items():
            of_set = committed.results.add(replica_set=name)
            for each in results:
                result = of_set.results.add(count=each.count, append_ms=each.append_ms)
                if each.base_offset >= 0:
                    result.base_offset = each.base_offset
                if each.is_deleted:
                    result.deleted = True
    elif isinstance(answer, Block):
        first, block = answer.first, added.block
        block.replica_set, block.first_number, block.size = (
            first.replica_set,
            first.number,
            answer.size,
        )
        block.ballot.CopyFrom(ballot_to(first.ballot))
    else:
        said = getattr(added, _FAILURES[type(answer)])
        said.number = answer.transaction.number
        said.error.CopyFrom(error_to_message(answer.error))
    return added.ByteSize()


_FAILURES: Final = {RolledBack: "rolled_back", CommitUnknown: "commit_unknown", Unfit: "unfit"}


# --- between leaders ------------------------------------------------------------------------------


def message_to(message: Message) -> Iterator[tuple[Wired, Body]]:
    """What a leader says to another one, with the batches of it; a question about many is many."""
    if isinstance(message, Asked):
        for each in message.transactions:
            wired = _wired(each)
            wired.asked.SetInParent()
            yield wired, b""
        return
    if isinstance(message, Forget):
        first, *others = message.transactions
        wired = _wired(first)
        wired.forget.SetInParent()
        for each in others:
            set_transaction(wired.forget.others.add(), each)
        yield wired, b""
        return
    wired = _wired(message.transaction)
    body: Body = b""
    if isinstance(message, Prepare):
        body = message.body
        wired.prepare.first = message.first
        for statement in message.statements:
            wired.prepare.statements.add().MergeFromString(statement)
    elif isinstance(message, Finish):
        wired.finish.prepared_lsn, wired.finish.count = message.prepared_lsn, message.count
    elif isinstance(message, Told):
        told = wired.told
        told.fate = _FATES[message.fate]
        told.prepared_lsn, told.count = message.prepared_lsn, message.count
    elif isinstance(message, Prepared):
        wired.prepared.first, wired.prepared.prepared_lsn = message.first, message.prepared_lsn
    elif isinstance(message, PrepareRefused):
        wired.prepare_refused.first = message.first
        wired.prepare_refused.error.CopyFrom(error_to_message(message.error))
    elif isinstance(message, Finished):
        wired.finished.results.extend(results_to(message.results))
        wired.finished.SetInParent()
    elif isinstance(message, FinishFailed):
        wired.finish_failed.error.CopyFrom(error_to_message(message.error))
    else:
        assert isinstance(message, Abort)
        wired.abort.SetInParent()
    yield wired, body


Read: TypeAlias = Callable[[Claim, transactions_pb2.Statement, memoryview], bytes]
"""Told a statement of this replica set and its batch; returns the encoded command, or raises."""


def message_from(wired: Wired, batches: Batches, read: Read) -> Message:
    """What another leader says. What it wants prepared that cannot be is as good as refused:
    returns `PrepareRefused`, to be sent back.

    Raises `FrameError`, and `RequestError` for what is no message.
    """
    transaction = id_from(wired.transaction)
    kind = wired.WhichOneof("kind") or ""
    if kind == "prepare":
        return _prepare_from(transaction, wired.prepare, batches, read)
    make = _MESSAGES.get(kind)
    if make is None:
        raise RequestError(f"of transaction {transaction} nothing is said that is known here")
    return make(transaction, wired)


def _prepare_from(
    transaction: TransactionId, prepare: Wired.Prepare, batches: Batches, read: Read
) -> Prepare | PrepareRefused:
    # All of them, however one is refused: other messages' batches follow.
    parts = [batches.take(each.length) for each in prepare.statements]
    # A number that no driver gives ends the call: it names no statements that could be refused.
    claim = transaction, check_number("a statement's number", prepare.first)
    try:
        commands = tuple(map(partial(read, claim), prepare.statements, parts))
    except HadronError as error:
        return PrepareRefused(transaction, prepare.first, error)
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    return Prepare(transaction, prepare.first, commands, body)


def _told(transaction: TransactionId, wired: Wired) -> Told:
    told = wired.told
    fate = _FATES_FROM.get(told.fate)
    if fate is None:
        raise RequestError(f"fate {told.fate} of transaction {transaction} is not known here")
    lsn = check_number("lsn", told.prepared_lsn)
    return Told(transaction, fate, lsn, check_number("count", told.count))


def _finish(transaction: TransactionId, wired: Wired) -> Finish:
    lsn = check_number("lsn", wired.finish.prepared_lsn)
    return Finish(transaction, lsn, check_number("count", wired.finish.count))


def _prepared(transaction: TransactionId, wired: Wired) -> Prepared:
    lsn = check_number("lsn", wired.prepared.prepared_lsn)
    return Prepared(transaction, wired.prepared.first, lsn)


_MESSAGES: Final[dict[str, Callable[[TransactionId, Wired], Message]]] = {
    "finish": _finish,
    "abort": lambda transaction, _: Abort(transaction),
    "forget": lambda transaction, wired: Forget((transaction, *map(id_from, wired.forget.others))),
    "told": _told,
    "prepared": _prepared,
    "prepare_refused": lambda transaction, wired: PrepareRefused(
        transaction, wired.prepare_refused.first, error_from_message(wired.prepare_refused.error)
    ),
    "finished": lambda transaction, wired: Finished(
        transaction, results_from(wired.finished.results)
    ),
    "finish_failed": lambda transaction, wired: FinishFailed(
        transaction, error_from_message(wired.finish_failed.error)
    ),
    "asked": lambda transaction, _: Asked((transaction,)),
}
