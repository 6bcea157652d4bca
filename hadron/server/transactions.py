"""Serves `hadron.v1.Transactions` to clients: transactions that a leader drives, what became of
them, and what operators do. What leaders say to each other is in `node/leader_links`.

Rules: statements of the own replica set are judged here, at the door, like the plain calls; a
statement that is refused ends its transaction, and no other on the call. What a call holds is
bounded by its driver's `Limits.held_bytes`, and its answers by who reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial
from typing import Final, TypeAlias

from hadron.metadata.adopter import SchemaAdopter
from hadron.model.errors import FrameError, HadronError, OverloadedError, RequestError
from hadron.model.ids import Ballot
from hadron.model.limits import MAX_MESSAGE_BYTES, MAX_TOGETHER
from hadron.model.transactions import MAX_NUMBER, TransactionId
from hadron.server.statements import Statements
from hadron.server.transaction_messages import Batches, add_answer, all_results_to, id_from
from hadron.serving.entrance import Led, led
from hadron.serving.leading import Leading
from hadron.state.transactions.participations import Participation
from hadron.transactions.callers import Caller
from hadron.transactions.claims import HOME
from hadron.transactions.driver import State
from hadron.transactions.held import Shown
from hadron.transactions.messages import Add, Answer, Commit, Rollback, Statement, TakeBlock
from hadron.transactions.part import Transactions
from hadron.wire.calls import Call
from hadron.wire.messages import (
    check_count,
    check_number,
    common_pb2,
    items_of,
    transaction_to,
    transactions_pb2,
)

_Transact: TypeAlias = Call[transactions_pb2.TransactRequest, transactions_pb2.TransactEvent]
_Outcome: TypeAlias = Call[transactions_pb2.OutcomeRequest, transactions_pb2.OutcomeResponse]
_List: TypeAlias = Call[
    transactions_pb2.ListTransactionsRequest, transactions_pb2.ListTransactionsResponse
]
_Resolve: TypeAlias = Call[transactions_pb2.ResolveTransactionRequest, common_pb2.Empty]
_Listed: TypeAlias = transactions_pb2.ListTransactionsResponse
_Part: TypeAlias = transactions_pb2.TransactRequest.Part
_End = transactions_pb2.TransactRequest
_Act = transactions_pb2.ResolveTransactionRequest

_ANSWERS_BYTES: Final = 64 << 10
"""Of answers that share a message: a thousand small ones."""

_MAX_PAGE: Final = 1_000
"""Transactions in one answer: each may wait for 64 replica sets, with a reason."""

_STATES: Final = {
    State.OPEN: transactions_pb2.OutcomeResponse.OPEN,
    State.COMMITTED: transactions_pb2.OutcomeResponse.COMMITTED,
    State.ABORTED: transactions_pb2.OutcomeResponse.ABORTED,
    State.FORGOTTEN: transactions_pb2.OutcomeResponse.FORGOTTEN,
}


def _served(leading: Leading) -> Transactions:
    """Raises `NotReadyError` while the set may be another one that has its name: that would give
    ids twice, and would know nothing of those that the first has given."""
    leading.part(SchemaAdopter).check_registered()
    return leading.part(Transactions)


# --- a client's call --------------------------------------------------------------------------


def _transact(
    statements: Statements,
    leading: Leading,
    call: _Transact,
    request: transactions_pb2.TransactRequest,
    attachment: memoryview,
) -> None:
    session = _Session(statements, leading, call)
    call.on_message = session.receive
    call.on_end = session.on_end
    session.take(request, attachment)


class _Session:
    """One client's call."""

    def __init__(self, statements: Statements, leading: Leading, call: _Transact) -> None:
        self._statements = statements
        self._leading = leading
        self._call = call
        self._home = leading.replica_set
        self._ballot: Ballot = leading.controller.ballot
        self._transactions = _served(leading)
        self._said = transactions_pb2.TransactEvent()
        """Answers that leave together, once all are made that can be made now."""
        self._said_bytes = 0
        self._caller: Caller = self._transactions.join(self._answer, self._fail)

    def _answer(self, answer: Answer) -> None:
        is_first = not self._said_bytes
        self._said_bytes += add_answer(self._said, answer)
        if self._said_bytes >= _ANSWERS_BYTES:
            self._flush()
        elif is_first:
            self._leading.controller.once_answered(self._flush)

    def _flush(self) -> None:
        said, size = self._said, self._said_bytes
        if not size:
            return
        self._said, self._said_bytes = transactions_pb2.TransactEvent(), 0
        if not self._call.writable and not self._call.has_room(size):
            error = OverloadedError(
                f"{self._call.peer} has not read the answers that it has here",
                "read them, and ask for the outcome of what was to be committed",
            )
            self._fail(error)
            return
        self._call.send(said)

    def _fail(self, error: HadronError) -> None:
        self._flush()
        self._call.fail(error)
        self._caller.leave()

    def receive(self, request: transactions_pb2.TransactRequest, attachment: memoryview) -> None:
        self.take(request, attachment)
        self._call.consumed(request.ByteSize() + len(attachment))

    def on_end(self, _error: HadronError | None) -> None:
        self._caller.leave()
        self._call.end()

    def take(self, request: transactions_pb2.TransactRequest, attachment: memoryview) -> None:
        """Raises `FrameError`, and `RequestError`, for what no client says: that ends the call."""
        check_count("transactions and statements", sum(map(items_of, request.parts)))
        if request.take_block:
            self._caller.receive(TakeBlock())
        batches = Batches(attachment)
        for part in request.parts:
            self._take(part, batches)
        batches.end()

    def _take(self, part: _Part, batches: Batches) -> None:
        number = check_number("a transaction's number", part.number)
        first = check_number("a statement's number", part.first)
        transaction = TransactionId.of(self._home, self._ballot, number)
        try:
            self._hand_over(part, batches, transaction, first)
        finally:
            if self._transactions.driver.machine.held(transaction) is None:
                # It is over, or never was: what its statements have claimed is no part of it.
                self._transactions.settle(transaction)

    def _hand_over(
        self, part: _Part, batches: Batches, transaction: TransactionId, first: int
    ) -> None:
        records = tuple(part.records)
        if records:
            _check_shared(part, self._home)
        statements: list[Statement] = []
        error: HadronError | None = None
        for each in part.statements:
            # Also behind one that is refused: other transactions' batches follow.
            batch = batches.take(each.length)
            if error is None:
                try:
                    statements.append(self._read(transaction, each, batch))
                except HadronError as refusal:
                    error = refusal
        if error is not None:
            self._caller.receive(Rollback(transaction, error, records))
        elif part.end == _End.COMMIT:
            self._caller.receive(Commit(transaction, first, statements, records=records))
        elif part.end == _End.ROLLBACK:
            self._caller.receive(Rollback(transaction))
        elif part.end == _End.OPEN:
            self._caller.receive(Add(transaction, first, statements))
        else:
            raise FrameError(f"{part.end} is no end of a transaction that is known here")

    def _read(
        self, transaction: TransactionId, statement: transactions_pb2.Statement, batch: memoryview
    ) -> Statement:
        target = statement.replica_set
        if target != self._home:
            return Statement(target, statement.SerializeToString(), batch)
        claim = transaction, HOME
        command = self._statements.read(self._leading, claim, statement, batch)
        return Statement(target, command, batch)


def _check_shared(part: _Part, home: str) -> None:
    """Several transactions share a statement. Raises `FrameError` for what no client says of
    them."""
    wrong = ""
    if len(part.records) > MAX_TOGETHER:
        wrong = f"at most {MAX_TOGETHER} do"
    elif not all(part.records):
        wrong = f"{list(part.records).count(0)} of them have 0 records"
    elif part.first:
        wrong = f"statement {part.first} is not their first"
    elif part.end != _End.COMMIT:
        wrong = f"their end is {part.end}, and not {_End.COMMIT}, to be committed"
    elif len(part.statements) != 1:
        wrong = f"they have {len(part.statements)} statements, not one"
    else:
        wrong = _not_shared(part.statements[0], home)
    if wrong:
        raise FrameError(
            f"{len(part.records)} transactions from number {part.number} on cannot share a "
            f"statement: {wrong}"
        )


def _not_shared(statement: transactions_pb2.Statement, home: str) -> str:
    """Why a statement is none of several transactions; "" for one that may be."""
    kind = statement.WhichOneof("kind")
    if statement.replica_set != home:
        return f"it is of {statement.replica_set[:100]!r}, and {home} is asked"
    if kind != "publish":
        return f"it is {kind!r}, and not 'publish'"
    if statement.publish.HasField("expect_key_offset"):
        return f"it expects a key at offset {statement.publish.expect_key_offset}"
    return ""


# --- what became of one -----------------------------------------------------------------------


def _outcome(
    leading: Leading,
    call: _Outcome,
    request: transactions_pb2.OutcomeRequest,
    _attachment: memoryview,
) -> None:
    call.spawn(_answer_outcome, leading, call, id_from(request.transaction), request.final)


async def _answer_outcome(
    leading: Leading, call: _Outcome, transaction: TransactionId, is_final: bool
) -> None:
    driver = _served(leading).driver
    # A majority, which may be away, is waited for without room: others could read nothing meanwhile
    # (BOUNDS W3). The answer is read again within: what waits for room holds none.
    await driver.outcome(transaction, is_final=is_final)
    async with call.room(MAX_MESSAGE_BYTES):
        outcome = await driver.outcome(transaction, is_final=is_final)
        call.send(
            transactions_pb2.OutcomeResponse(
                state=_STATES[outcome.state],
                results=all_results_to(outcome.results),
                unfinished=outcome.unfinished,
            ),
            end=True,
        )


# --- all of them ------------------------------------------------------------------------------


def _list(
    leading: Leading,
    call: _List,
    request: transactions_pb2.ListTransactionsRequest,
    _attachment: memoryview,
) -> None:
    call.spawn(_answer_list, leading, call, request.limit, _cursor_from(request.after))


async def _answer_list(
    leading: Leading, call: _List, limit: int, after: tuple[bool, tuple[int, int, int]]
) -> None:
    limit = min(limit or _MAX_PAGE, _MAX_PAGE)
    transactions = leading.part(Transactions)
    await leading.controller.confirm_leadership()
    async with call.room(MAX_MESSAGE_BYTES):
        is_driven, key = after
        page: list[_Listed.Transaction] = []
        if is_driven:
            shown = sorted(
                (each for each in transactions.driver.shown() if each.transaction[1:] > key),
                key=lambda each: each.transaction,
            )
            page = [_driven(each) for each in shown[:limit]]
            if len(shown) > limit:
                following = _cursor(True, shown[limit - 1].transaction[1:])
                call.send(_Listed(transactions=page, next=following), end=True)
                return
            key = (0, 0, 0)
        # One more than are told, so as to know whether that is all.
        left = limit - len(page)
        held = await transactions.participant.shown(after_lsn=key[0], limit=left + 1)
        now_ms = leading.controller.log_now_ms()
        away = transactions.away
        page += [_participating(each, now_ms, away) for each in held[:left]]
        following = b""
        if len(held) > left:
            last_lsn = held[left - 1].prepared_lsn if left else key[0]
            following = _cursor(False, (last_lsn, 0, 0))
        call.send(_Listed(transactions=page, next=following), end=True)


_CURSOR: Final = struct.Struct(">?QQQ")


def _cursor(is_driven: bool, key: tuple[int, int, int]) -> bytes:
    return _CURSOR.pack(is_driven, *key)


def _cursor_from(data: bytes) -> tuple[bool, tuple[int, int, int]]:
    """Where a list goes on: among those that are driven here, or those of others."""
    if not data:
        return True, (-1, 0, 0)
    if len(data) != _CURSOR.size:
        raise RequestError("a list cannot go on there", "pass on what the answer before has said")
    is_driven, *key = _CURSOR.unpack(data)
    if max(key) > MAX_NUMBER:
        raise RequestError("a list cannot go on there", "pass on what the answer before has said")
    return is_driven, (key[0], key[1], key[2])


def _driven(shown: Shown) -> transactions_pb2.ListTransactionsResponse.Transaction:
    return _Listed.Transaction(
        transaction=transaction_to(shown.transaction),
        phase=shown.phase,
        age_ms=max(0, round(shown.age_s * 1_000)),
        statements=shown.statements,
        bytes=shown.bytes,
        waits_for=[
            _Listed.Waiting(replica_set=name, reason=reason[:_MAX_REASON])
            for name, reason in shown.waits_for.items()
        ],
        is_driver=True,
    )


_MAX_REASON: Final = 200
"""Characters: a page of a thousand transactions that wait for a few sets each fits into a frame."""


def _participating(
    held: Participation, now_ms: int, away: Mapping[str, str]
) -> transactions_pb2.ListTransactionsResponse.Transaction:
    driver = held.transaction.replica_set
    waits = "it is to note what was done" if held.is_finished else "it has not decided"
    return _Listed.Transaction(
        transaction=transaction_to(held.transaction),
        waits_for=[
            _Listed.Waiting(replica_set=driver, reason=away.get(driver, waits)[:_MAX_REASON])
        ],
        phase="finished" if held.is_finished else "prepared",
        age_ms=max(0, now_ms - held.since_ms),
        statements=held.statements,
        bytes=held.size,
    )


# --- operators --------------------------------------------------------------------------------


def _resolve(
    leading: Leading,
    call: _Resolve,
    request: transactions_pb2.ResolveTransactionRequest,
    _attachment: memoryview,
) -> None:
    if request.act not in _Act.Act.values() or request.act == _Act.UNSPECIFIED:
        raise RequestError(f"unknown act {request.act}", "name one of ResolveTransactionRequest's")
    participant = request.participant
    if request.act == _Act.GIVE_UP:
        is_fit = participant not in ("", leading.replica_set)
    elif request.act == _Act.ROLL_BACK:
        is_fit = not participant
    else:
        is_fit = participant in ("", leading.replica_set)
    if not is_fit:
        raise RequestError(
            f"participant {participant!r} does not fit what {leading.replica_set} is to do",
            "name another replica set to give up, none to roll back, and the one that is asked "
            "to force something there",
        )
    call.spawn(_answer_resolve, leading, call, request, id_from(request.transaction))


async def _answer_resolve(
    leading: Leading,
    call: _Resolve,
    request: transactions_pb2.ResolveTransactionRequest,
    transaction: TransactionId,
) -> None:
    transactions = leading.part(Transactions)
    await leading.controller.confirm_leadership()
    if request.act in (_Act.FORCE_COMMIT, _Act.FORCE_ABORT):
        await transactions.participant.resolve(transaction, commit=request.act == _Act.FORCE_COMMIT)
    else:
        transactions.driver.resolve(transaction, request.participant)
    call.send(common_pb2.Empty(), end=True)


def methods(statements: Statements) -> tuple[Led, ...]:
    """`statements`: those of every feature."""
    return (
        led(
            "Transact",
            transactions_pb2.TransactRequest,
            transactions_pb2.TransactEvent,
            partial(_transact, statements),
        ),
        led("Outcome", transactions_pb2.OutcomeRequest, transactions_pb2.OutcomeResponse, _outcome),
        led(
            "ListTransactions",
            transactions_pb2.ListTransactionsRequest,
            transactions_pb2.ListTransactionsResponse,
            _list,
        ),
        led(
            "ResolveTransaction",
            transactions_pb2.ResolveTransactionRequest,
            common_pb2.Empty,
            _resolve,
        ),
    )
