"""A fake node that drives transactions as well, in memory, and can be told to misbehave."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from hadron.client.tests.fake_node import FakeNode
from hadron.model.errors import HadronError, RequestError
from hadron.wire.calls import AnyCall, Handler
from hadron.wire.messages import (
    check_count,
    common_pb2,
    error_to_message,
    items_of,
    method,
    transactions_pb2,
)

BLOCK = 1 << 20

Part = transactions_pb2.TransactRequest.Part
Event = transactions_pb2.TransactEvent
State = transactions_pb2.OutcomeResponse


class Held:
    """A transaction's statements, with their batches."""

    def __init__(self, call: AnyCall) -> None:
        self.call = call
        self.statements: list[tuple[transactions_pb2.Statement, bytes]] = []
        self.records: list[int] = []
        """Of several that share a statement."""


class FakeDriver(FakeNode):
    """Drives for all of its replica sets."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.block_size = BLOCK
        self.used_up = 0
        """Numbers of the first block that are not given."""
        self.blocks = 0
        self.calls: list[AnyCall] = []
        self.messages = 0
        self.open: dict[int, Held] = {}
        self.outcomes: dict[int, list[transactions_pb2.ReplicaSetResults] | None] = {}
        """Of those that are over; None was rolled back."""
        self.asked: list[tuple[int, bool]] = []
        self.resolved: list[transactions_pb2.ResolveTransactionRequest] = []
        # Ways to misbehave.
        self.refusals: deque[HadronError | None] = deque()
        """What the next commits are refused with; None lets one through."""
        self.cut_before = self.cut_after = 0
        """So many commits end with the connection, not done or done."""
        self.unknown = 0
        """So many are done, and the client is told that nobody knows."""
        self.hold = False
        self.waiting: list[Callable[[], None]] = []
        self.undecided = 0
        """So many questions for an outcome are answered with OPEN."""
        self.unfinished: list[str] = []

    def handlers(self) -> dict[int, Handler]:
        more: dict[str, Callable[..., None]] = {
            "Transact": self.on_transact,
            "Outcome": self.on_outcome,
            "ListTransactions": self.on_list,
            "ResolveTransaction": self.on_resolve,
        }
        return super().handlers() | {method(name).number: each for name, each in more.items()}

    # --- the call -------------------------------------------------------------------------------

    def on_transact(self, call: AnyCall, request: Any, data: memoryview) -> None:
        self.calls.append(call)
        call.on_message = lambda message, more: self.said(call, message, more)
        call.on_end = lambda _: self.ended(call)
        self.give_block(call)
        self.said(call, request, data)

    def give_block(self, call: AnyCall) -> None:
        self.blocks += 1
        used_up = self.used_up if self.blocks == 1 else 0
        block = Event.Block(
            replica_set=self.partition_names[0],
            ballot=common_pb2.Ballot(epoch=1, incarnation=self.incarnation),
            first_number=(self.blocks << 20) + used_up,
            size=self.block_size - used_up,
        )
        self.tell(call, Event.Answer(block=block))

    def tell(self, call: AnyCall, *answers: transactions_pb2.TransactEvent.Answer) -> None:
        call.send(Event(answers=answers))

    def said(self, call: AnyCall, message: Any, data: memoryview) -> None:
        call.consumed(message.ByteSize() + len(data))
        self.messages += 1
        check_count("transactions and statements", sum(map(items_of, message.parts)))
        if message.take_block:
            self.give_block(call)
        start = 0
        for part in message.parts:
            held = self.open.get(part.number)
            if held is None and part.number in self.outcomes:
                self.tell(call, Event.Answer(unfit=Event.Unfit(number=part.number)))
                continue
            if held is None:
                held = self.open[part.number] = Held(call)
            assert held.call is call
            assert part.first == len(held.statements)
            held.records = list(part.records)
            assert part.number >> 20 == (part.number + max(len(part.records), 1) - 1) >> 20
            for each in part.statements:
                held.statements.append((each, bytes(data[start : start + each.length])))
                start += each.length
            if part.end == transactions_pb2.TransactRequest.ROLLBACK:
                self.roll_back(part.number, RequestError("its client has rolled it back"))
            elif part.end == transactions_pb2.TransactRequest.COMMIT:
                if self.hold:
                    self.waiting.append(partial(self.commit, part.number))
                else:
                    self.commit(part.number)
                    if call not in self.calls:
                        return

    def ended(self, call: AnyCall) -> None:
        if call in self.calls:
            self.calls.remove(call)
        for number, held in list(self.open.items()):
            if held.call is call:
                del self.open[number]
                self.outcomes[number] = None

    def release(self) -> None:
        self.hold = False
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            each()

    # --- ends -----------------------------------------------------------------------------------

    def roll_back(self, number: int, error: HadronError) -> None:
        held = self.open.pop(number)
        for each in range(number, number + (len(held.records) or 1)):
            self.outcomes[each] = None
            rolled_back = Event.RolledBack(number=each, error=error_to_message(error))
            self.tell(held.call, Event.Answer(rolled_back=rolled_back))

    def commit(self, number: int) -> None:
        if number not in self.open:
            return
        if self.refusals and (refusal := self.refusals.popleft()) is not None:
            self.roll_back(number, refusal)
            return
        if self.cut_before:
            self.cut_before -= 1
            self.cut()
            return
        if not self.are_held(self.open[number]):
            self.roll_back(number, RequestError("others have got the records meanwhile"))
            return
        held = self.open.pop(number)
        results = self.do(held)
        self.outcomes.update(self.outcomes_of(number, held.records, results))
        if self.cut_after:
            self.cut_after -= 1
            self.cut()
        elif self.unknown:
            self.unknown -= 1
            error = error_to_message(RequestError("this leadership has ended"))
            for each in range(number, number + (len(held.records) or 1)):
                unknown = Event.CommitUnknown(number=each, error=error)
                self.tell(held.call, Event.Answer(commit_unknown=unknown))
        else:
            together = len(held.records)
            committed = Event.Committed(number=number, results=results, transactions=together)
            self.tell(held.call, Event.Answer(committed=committed))

    def outcomes_of(
        self, number: int, records: list[int], results: list[transactions_pb2.ReplicaSetResults]
    ) -> dict[int, list[transactions_pb2.ReplicaSetResults] | None]:
        if not records:
            return {number: results}
        found: dict[int, list[transactions_pb2.ReplicaSetResults] | None] = {}
        of_all = results[0].results[0]
        base = of_all.base_offset
        for each, count in enumerate(records, number):
            own = transactions_pb2.StatementResult(
                base_offset=base, count=count, append_ms=of_all.append_ms
            )
            name = results[0].replica_set
            found[each] = [transactions_pb2.ReplicaSetResults(replica_set=name, results=[own])]
            base += count
        return found

    def do(self, held: Held) -> list[transactions_pb2.ReplicaSetResults]:
        results: dict[str, list[transactions_pb2.StatementResult]] = {}
        streams = {each.id: name for (kind, name), each in self.objects.items() if kind == "Stream"}
        for statement, batch in held.statements:
            result = transactions_pb2.StatementResult()
            if statement.WhichOneof("kind") == "publish":
                stream = streams[statement.publish.stream_id]
                answer = self.partition(stream, statement.replica_set).append(batch)
                result.base_offset, result.append_ms = answer.base_offset, answer.append_ms
            else:
                self.acknowledge(statement, streams[statement.acknowledge.stream_id])
            results.setdefault(statement.replica_set, []).append(result)
        return [
            transactions_pb2.ReplicaSetResults(replica_set=name, results=of_set)
            for name, of_set in results.items()
        ]

    def are_held(self, held: Held) -> bool:
        """Whether members have all that is to be acknowledged."""
        streams = {each.id: name for (kind, name), each in self.objects.items() if kind == "Stream"}
        for statement, _ in held.statements:
            said = statement.acknowledge
            for entry in said.ranges:
                group = self.groups[streams[said.stream_id], statement.replica_set, said.group]
                wanted = set(range(entry.first_offset, entry.last_offset + 1))
                if not any(
                    wanted <= member.held.get(entry.delivery, (set(), 0))[0]
                    for member in group.members
                ):
                    return False
        return True

    def acknowledge(self, statement: transactions_pb2.Statement, stream: str) -> None:
        said = statement.acknowledge
        group = self.groups[stream, statement.replica_set, said.group]
        for entry in said.ranges:
            offsets = set(range(entry.first_offset, entry.last_offset + 1))
            for member in group.members:
                held, _ = member.held.get(entry.delivery, (set(), 0))
                if offsets <= held:
                    held -= offsets
                    member.in_flight -= len(offsets)
            group.ack(entry.first_offset, entry.last_offset)
        group.pump()

    # --- asking ---------------------------------------------------------------------------------

    def on_outcome(self, call: AnyCall, request: Any, _: memoryview) -> None:
        number = request.transaction.number
        self.asked.append((number, request.final))
        if self.undecided:
            self.undecided -= 1
            answer = State(state=State.OPEN)
        elif number in self.open and not request.final:
            answer = State(state=State.OPEN)
        elif (results := self.outcomes.get(number)) is not None:
            finished = [each for each in results if each.replica_set not in self.unfinished]
            answer = State(state=State.COMMITTED, results=finished, unfinished=self.unfinished)
        else:
            answer = State(state=State.ABORTED)
        call.send(answer, end=True)

    def on_list(self, call: AnyCall, request: Any, _: memoryview) -> None:
        # Pages of one.
        numbers = sorted(n for n in self.open if n > int(request.after or b"0"))
        answer = transactions_pb2.ListTransactionsResponse()
        for number in numbers[:1]:
            answer.transactions.add(
                transaction=transactions_pb2.TransactionId(
                    replica_set=self.partition_names[0],
                    ballot=common_pb2.Ballot(epoch=1, incarnation=self.incarnation),
                    number=number,
                ),
                phase="open",
                age_ms=1_500,
                statements=len(self.open[number].statements),
                is_driver=True,
            )
            if numbers[1:]:
                answer.next = b"%d" % number
        call.send(answer, end=True)

    def on_resolve(self, call: AnyCall, request: Any, _: memoryview) -> None:
        self.resolved.append(request)
        call.send(common_pb2.Empty(), end=True)
