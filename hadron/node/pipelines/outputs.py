"""Outputs of pipelines' stages that go to other replica sets: a transaction each, which the
pipeline's leader drives for itself (PIPELINES P9).

Safety rule: what a transaction came to is told to who waits for it, and only then; when leading
ends, nobody here knows what became of those that are under way. The tables do.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from hadron.model.errors import HadronError, NotFoundError, NotReadyError
from hadron.model.transactions import TransactionId
from hadron.serving.leading import Leading
from hadron.state.machine import encode
from hadron.state.pipelines.publishing import PublishStages
from hadron.transactions.callers import Caller
from hadron.transactions.claims import HOME
from hadron.transactions.messages import Answer, Block, Commit, Committed, Statement, TakeBlock
from hadron.transactions.part import Transactions
from hadron.wire.messages import transactions_pb2


@dataclass(slots=True)
class _Waiting:
    answer: Answer | HadronError | None = None
    answered: trio.Event = field(default_factory=trio.Event)


class StageOutputs:
    """`pipelines.outputs.Outputs` of one leadership."""

    def __init__(self, leading: Leading) -> None:
        self._leading = leading
        self._caller: Caller | None = None
        self._numbers: list[tuple[TransactionId, int]] = []
        """Blocks: the next transaction of each, and how many are left."""
        self._waiting: dict[TransactionId, _Waiting] = {}

    async def publish(self, command: PublishStages, metadata_index: int, batch: memoryview) -> int:
        transactions = self._leading.part(Transactions)
        if self._caller is None:
            self._caller = transactions.join(self._answer, self._end)
        home, there = self._leading.replica_set, command.partition
        transaction = self._next()
        statement = transactions_pb2.Statement(
            replica_set=there,
            length=len(batch),
            publish=transactions_pb2.Statement.Publish(
                stream_id=command.stream_id, metadata_index=metadata_index
            ),
        )
        locks = self._leading.controller.machine.statement(command).locks(command)
        transactions.claims.claim((transaction, HOME), locks)
        waiting = self._waiting[transaction] = _Waiting()
        statements = (
            Statement(home, encode(command)),
            Statement(there, statement.SerializeToString(), batch),
        )
        # Stages that follow wait for the note.
        self._caller.receive(Commit(transaction, 0, statements, is_noted_at_once=True))
        if transactions.driver.machine.held(transaction) is None:
            transactions.claims.settle((transaction, HOME))
        try:
            await waiting.answered.wait()
        finally:
            self._waiting.pop(transaction, None)
        answer = waiting.answer
        if isinstance(answer, HadronError):
            raise answer
        if not isinstance(answer, Committed):
            assert answer is not None
            assert not isinstance(answer, Block)
            raise answer.error
        (result,) = answer.results[there]
        if result.is_deleted:
            raise NotFoundError(f"the stream of the outputs was deleted on {there} meanwhile")
        return result.base_offset

    def _next(self) -> TransactionId:
        if not self._numbers:
            assert self._caller is not None
            self._caller.receive(TakeBlock())
            if not self._numbers:
                raise NotReadyError("there are no numbers for transactions yet", "ask again")
        transaction, left = self._numbers.pop()
        if left > 1:
            self._numbers.append((transaction._replace(number=transaction.number + 1), left - 1))
        return transaction

    def _answer(self, answer: Answer) -> None:
        if isinstance(answer, Block):
            self._numbers.append((answer.first, answer.size))
            return
        waiting = self._waiting.get(answer.transaction)
        if waiting is not None:
            waiting.answer = answer
            waiting.answered.set()

    def _end(self, reason: HadronError) -> None:
        for waiting in self._waiting.values():
            waiting.answer = waiting.answer or reason
            waiting.answered.set()
