"""A client of transactions for tests of whole nodes: it speaks what is on the wire, and no more."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from typing import Any

import pytest
import trio

from hadron.model.batch_building import BatchBuilder
from hadron.model.errors import HadronError, NotFoundError, NotReadyError
from hadron.model.record import NewRecord
from hadron.model.transactions import TransactionId
from hadron.node.replica_set import ReplicaSetConfig
from hadron.partition.controller import Controller
from hadron.partition.submission import Done
from hadron.state.machine import Command
from hadron.storage.database import open_reader
from hadron.testing.nodes import Cluster, Nodes
from hadron.wire.connection import Connection
from hadron.wire.messages import (
    common_pb2,
    error_from_message,
    groups_pb2,
    method,
    pipelines_pb2,
    transaction_to,
    transactions_pb2,
)

TRANSACT, OUTCOME = method("Transact"), method("Outcome")
SUBSCRIBE, DESCRIBE = method("Subscribe"), method("DescribeGroup")
LIST, RESOLVE = method("ListTransactions"), method("ResolveTransaction")

End = transactions_pb2.TransactRequest
State = transactions_pb2.OutcomeResponse
Act = transactions_pb2.ResolveTransactionRequest
Statement = transactions_pb2.Statement
Answer = transactions_pb2.TransactEvent.Answer

Stated = tuple[transactions_pb2.Statement, bytes]
"""A statement with its batch."""


def publish(replica_set: str, stream_id: int, *values: bytes, key: str | None = None) -> Stated:
    builder = BatchBuilder()
    for value in values:
        builder.add(NewRecord(value, key=key), 1)
    batch = builder.build()
    return (
        Statement(
            replica_set=replica_set,
            length=len(batch),
            publish=Statement.Publish(stream_id=stream_id),
        ),
        batch,
    )


def acknowledge(
    replica_set: str, stream_id: int, ballot: common_pb2.Ballot, *ranges: groups_pb2.Range
) -> Stated:
    statement = Statement.Acknowledge(stream_id=stream_id, group="g", ranges=ranges, ballot=ballot)
    return Statement(replica_set=replica_set, acknowledge=statement), b""


def complete(replica_set: str, invocations: pipelines_pb2.Invocations) -> Stated:
    request = pipelines_pb2.CompleteStagesRequest(
        pipeline_id=invocations.pipeline_id,
        stage=invocations.stage,
        instance_ids=[each.instance_id for each in invocations.invocations],
        attempts=[each.attempt for each in invocations.invocations],
        created_ms=[each.created_ms for each in invocations.invocations],
    )
    return Statement(replica_set=replica_set, complete=request), b""


def fail(replica_set: str, invocations: pipelines_pb2.Invocations) -> Stated:
    request = pipelines_pb2.FailStagesRequest(
        pipeline_id=invocations.pipeline_id,
        stage=invocations.stage,
        instance_ids=[each.instance_id for each in invocations.invocations],
        attempts=[each.attempt for each in invocations.invocations],
        created_ms=[each.created_ms for each in invocations.invocations],
        reason="bad input",
    )
    return Statement(replica_set=replica_set, fail=request), b""


class RawClient:
    """One call to a driver; each transaction has a number of its block."""

    def __init__(self, connection: Connection) -> None:
        self.block = transactions_pb2.TransactEvent.Block()
        self.answers: dict[int, Answer] = {}
        """By number; of each kind one says how it ended."""
        self.ended: HadronError | None = None
        self.is_over = False
        self._changed = trio.Event()
        self._next = 0
        self.call = connection.call(
            TRANSACT,
            transactions_pb2.TransactRequest(),
            on_message=self._hear,
            on_end=self._end,
            end=False,
        )

    def _hear(self, event: transactions_pb2.TransactEvent, _attachment: memoryview) -> None:
        for answer in event.answers:
            if answer.HasField("block"):
                self.block = answer.block
                self._next = answer.block.first_number
            else:
                of = getattr(answer, answer.WhichOneof("kind") or "")
                self.answers[of.number] = answer
        self._wake()

    def _end(self, error: HadronError | None) -> None:
        self.is_over, self.ended = True, error
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def number(self) -> int:
        """A number for a transaction."""
        while not self.block.size and not self.is_over:
            await self._changed.wait()
        number, self._next = self._next, self._next + 1
        return number

    def id(self, number: int) -> TransactionId:
        ballot = self.block.ballot
        return TransactionId(self.block.replica_set, ballot.epoch, ballot.incarnation, number)

    def say(
        self,
        number: int,
        *stated: Stated,
        first: int = 0,
        end: Any = End.OPEN,
        records: Sequence[int] = (),
    ) -> None:
        """`records`: of transactions from this one on, which share the statement."""
        part = End.Part(
            number=number,
            first=first,
            statements=[each for each, _ in stated],
            end=end,
            records=records,
        )
        self.call.send(
            transactions_pb2.TransactRequest(parts=[part]), [batch for _, batch in stated if batch]
        )

    def has_heard(self, number: int) -> bool:
        """How it ended, or that the call has."""
        return number in self.answers or self.is_over

    async def answer(self, number: int) -> Answer:
        """How it ended; raises what ended the call before."""
        while number not in self.answers:
            if self.is_over:
                raise self.ended or AssertionError("the call has ended")
            await self._changed.wait()
        return self.answers[number]

    async def commit(self, *stated: Stated) -> dict[str, list[int]]:
        """A whole transaction; returns base offsets by replica set. Raises what rolled it back."""
        number = await self.number()
        self.say(number, *stated, end=End.COMMIT)
        return committed(await self.answer(number))


def committed(answer: Answer) -> dict[str, list[int]]:
    """Base offsets of a committed transaction, -1 for none. Raises what ended it else."""
    kind = answer.WhichOneof("kind")
    if kind == "committed":
        return {
            each.replica_set: [
                result.base_offset if result.HasField("base_offset") else -1
                for result in each.results
            ]
            for each in answer.committed.results
        }
    raise error_from_message(getattr(answer, kind or "").error)


@asynccontextmanager
async def driving(cluster: Cluster, home: str, node: str = "n1") -> AsyncIterator[RawClient]:
    async with cluster[home].connection(node) as connection:
        yield RawClient(connection)


async def outcome(
    cluster: Cluster,
    transaction: TransactionId,
    *,
    final: bool = True,
    connection: Connection | None = None,
) -> transactions_pb2.OutcomeResponse:
    """As its driver tells it, or who is at the other end of `connection`."""
    if connection is None:
        async with cluster[transaction.replica_set].connection("n1") as own:
            return await outcome(cluster, transaction, final=final, connection=own)
    request = transactions_pb2.OutcomeRequest(transaction=transaction_to(transaction), final=final)
    answer, _ = await connection.request(OUTCOME, request, timeout_s=30)
    assert isinstance(answer, transactions_pb2.OutcomeResponse)
    return answer


async def listed(
    cluster: Cluster, replica_set: str, *, limit: int = 0
) -> list[transactions_pb2.ListTransactionsResponse.Transaction]:
    """All pages."""
    found: list[Any] = []
    after = b""
    async with cluster[replica_set].connection("n1") as connection:
        while True:
            request = transactions_pb2.ListTransactionsRequest(limit=limit, after=after)
            page, _ = await connection.request(LIST, request, timeout_s=60)
            found += page.transactions
            after = page.next
            if not after:
                return found


async def resolve(
    cluster: Cluster, replica_set: str, transaction: TransactionId, act: Any, participant: str = ""
) -> None:
    request = Act(transaction=transaction_to(transaction), act=act, participant=participant)
    async with cluster[replica_set].connection("n1") as connection:
        await connection.request(RESOLVE, request, timeout_s=60)


def rows(cluster: Cluster, replica_set: str, table: str, *, node: str = "n1") -> int:
    """Of a table on a node's disk."""
    with closing(open_reader(cluster[replica_set].data(node) / "hadron.db")) as database:
        (count,) = database.execute(f"SELECT count(*) FROM hadron_{table}").fetchone() or (0,)
    return int(count)


class RawMember:
    """A member of group "g" that takes one record at a time."""

    def __init__(self, replica_set: str, stream_id: int, connection: Connection) -> None:
        self.ballot = common_pb2.Ballot()
        self._replica_set = replica_set
        self._stream_id = stream_id
        self._deliveries: deque[groups_pb2.Range] = deque()
        self._acked: groups_pb2.SubscribeEvent.Acked | None = None
        self._error: Exception | None = None
        self._came = trio.Event()
        opening = groups_pb2.SubscribeRequest.Open(
            stream_id=stream_id, group="g", start="earliest", max_in_flight=1
        )
        self.call = connection.call(
            SUBSCRIBE,
            groups_pb2.SubscribeRequest(open=opening),
            on_message=self._hear,
            on_end=self._end,
            end=False,
        )

    def _end(self, error: HadronError | None) -> None:
        self._error = error or AssertionError("the call has ended")
        self._came.set()

    async def _more(self) -> None:
        self._came = trio.Event()
        if self._error is not None:
            raise self._error
        await self._came.wait()

    def _hear(self, event: groups_pb2.SubscribeEvent, _attachment: memoryview) -> None:
        if event.HasField("opened"):
            self.ballot = event.opened.ballot
        elif event.HasField("delivery"):
            of = event.delivery
            self._deliveries.append(
                groups_pb2.Range(
                    delivery=of.delivery, first_offset=of.first_offset, last_offset=of.last_offset
                )
            )
        elif event.HasField("acked"):
            self._acked = event.acked
        self._came.set()

    def acknowledge(self, *ranges: groups_pb2.Range) -> None:
        ack = groups_pb2.SubscribeRequest.Ack(ranges=ranges, confirmation=1)
        self.call.send(groups_pb2.SubscribeRequest(ack=ack))

    async def refused(self) -> list[groups_pb2.Range]:
        """Of what it has acknowledged."""
        while self._acked is None:
            await self._more()
        acked, self._acked = self._acked, None
        return list(acked.refused)

    async def delivery(self) -> groups_pb2.Range:
        while not self._deliveries:
            await self._more()
        return self._deliveries.popleft()

    async def floor(self, cluster: Cluster) -> int:
        request = groups_pb2.DescribeGroupRequest(stream_id=self._stream_id, group="g")
        async with cluster[self._replica_set].connection("n1") as connection:
            answer, _ = await connection.request(DESCRIBE, request)
        return int(answer.group.floor)


@asynccontextmanager
async def subscribed(
    cluster: Cluster, replica_set: str, stream_id: int
) -> AsyncIterator[RawMember]:
    async with cluster[replica_set].connection("n1") as connection:
        yield RawMember(replica_set, stream_id, connection)


class RawRunner:
    """A stage runner that takes one micro-batch."""

    def __init__(self, connection: Connection, pipeline: str) -> None:
        self._connection = connection
        self._pipeline = pipeline
        self._invocations: list[pipelines_pb2.Invocations] = []
        self._came = trio.Event()
        self._open()

    def _open(self) -> None:
        self._connection.call(
            method("RunStages"),
            pipelines_pb2.RunStagesRequest(
                pipeline=self._pipeline, engine="handler", credit=1, runner="host/7"
            ),
            on_message=self._hear,
            on_end=self._end,
            end=False,
        )

    def _end(self, error: HadronError | None) -> None:
        """The leader does not know the pipeline yet, or does not serve it yet."""
        if isinstance(error, NotFoundError | NotReadyError):
            self._open()

    def _hear(self, message: pipelines_pb2.Invocations, _attachment: memoryview) -> None:
        self._invocations.append(message)
        self._came.set()

    async def invocations(self) -> pipelines_pb2.Invocations:
        await self._came.wait()
        return self._invocations[0]


def led_by(config: ReplicaSetConfig, leader: str, *, epoch: int) -> ReplicaSetConfig:
    """The next configuration, with another leader."""
    nodes = tuple(
        replace(each, role="leader" if each.name == leader else "replica") for each in config.nodes
    )
    return replace(config, nodes=nodes, epoch=epoch)


class Breaker:
    """Lets something happen when a leader logs a command, once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._at: dict[type[Command], Callable[[Any, Done], Done | None]] = {}
        self._crashed = trio.Event()
        submit = Controller.submit

        def submit_or_break(
            controller: Controller,
            command: Command,
            body: bytes | memoryview = b"",
            *,
            acks: int = 0,
            done: Done,
        ) -> None:
            act = self._at.pop(type(command), None)
            heard = done if act is None else act(command, done)
            if heard is not None:
                submit(controller, command, body, acks=acks, done=heard)

        monkeypatch.setattr(Controller, "submit", submit_or_break)

    def call(self, at: type[Command], act: Callable[[], None]) -> None:
        """Call `act` when such a command is committed, before anybody hears of that."""

        def wrapped(_command: Any, done: Done) -> Done:
            def heard(result: Any, error: HadronError | None) -> None:
                act()
                done(result, error)

            return heard

        self._at[at] = wrapped

    def crash(self, nodes: Nodes, name: str, *, at: type[Command], is_logged: bool) -> None:
        """Crash a node when it logs such a command: before that, or once it is committed and nobody
        has heard of it."""

        def crash() -> None:
            nodes.stop_now(name)
            trio.lowlevel.spawn_system_task(self._wait_crashed, nodes, name)

        def wrapped(_command: Any, _done: Done) -> Done | None:
            if not is_logged:
                crash()
                return None
            return lambda _result, _error: crash()

        self._at[at] = wrapped

    async def _wait_crashed(self, nodes: Nodes, name: str) -> None:
        await nodes.crash(name)
        self._crashed.set()

    async def crashed(self) -> None:
        with trio.fail_after(120):
            await self._crashed.wait()


async def eventually(what: str, look: Callable[[], Awaitable[bool]]) -> None:
    with trio.move_on_after(120):
        while not await look():  # noqa: ASYNC110 - what is looked at sets no event
            await trio.sleep(0.02)
        return
    raise AssertionError(f"not {what}")


def all_over(cluster: Cluster, sets: Sequence[str]) -> bool:
    """Nothing of any transaction is left but what drivers remember."""
    return all(
        rows(cluster, name, table) == 0
        for name in sets
        for table in ("intent", "participation", "lock")
    )
