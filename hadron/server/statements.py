"""What stands in a transaction, from the wire to what is logged of it: each statement passes the
checks of the plain call that does the same alone, at the leader of the replica set that it is of.

Safety rule: the same statement becomes the same command however often it comes, and with nobody in
between: what is sent again is known by its bytes (PROTOCOL E2).
"""

from __future__ import annotations

from hadron.delivery.groups import Groups
from hadron.delivery.port import check_ranges
from hadron.model.errors import RequestError
from hadron.model.ranges import melted
from hadron.model.transactions import TransactionId
from hadron.pipelines.driver import Pipelines
from hadron.server.groups.messages import ranges_of
from hadron.server.pipelines.calls import ended_of
from hadron.server.sinks import advance_of, publication_of
from hadron.server.streams import append_of
from hadron.serving.leading import Leading
from hadron.state.groups.progress import AckRecords
from hadron.state.machine import Command, encode
from hadron.transactions.claims import Claim
from hadron.transactions.part import Transactions
from hadron.wire.messages import ballot_from, streams_pb2, transactions_pb2


def read(
    leading: Leading, claim: Claim, statement: transactions_pb2.Statement, batch: memoryview
) -> bytes:
    """What is logged of a statement of this replica set. From here on nobody else ends what it ends
    (`Transactions.claims`).

    Raises what refuses the plain call, `ConflictError` for what another transaction ends, and
    `RequestError` for what is no statement.
    """
    command = _command(leading, claim[0], statement, batch)
    locks = leading.controller.machine.statement(command).locks(command)
    if locks:
        leading.part(Transactions).claims.claim(claim, locks)
    return encode(command)


def _command(
    leading: Leading,
    transaction: TransactionId,
    statement: transactions_pb2.Statement,
    batch: memoryview,
) -> Command:
    kind = statement.WhichOneof("kind")
    if kind == "publish":
        publish = statement.publish
        item = leading.partition("", "", "", publish.stream_id or _NONE, publish.metadata_index)
        if not publish.HasField("expect_key_offset"):
            return append_of(item, batch)
        condition = streams_pb2.ProduceRequest(expect_key_offset=publish.expect_key_offset)
        return append_of(item, batch, condition)
    if kind == "complete":
        completing = leading.part(Pipelines).driver(statement.complete.pipeline_id)
        complete = statement.complete
        return completing.completion(ended_of(complete), batch, complete.partition)
    if len(batch):
        raise RequestError(f"a batch of {len(batch)} bytes comes with a statement that has none")
    if kind == "fail":
        failing = leading.part(Pipelines).driver(statement.fail.pipeline_id)
        return failing.completions.failure(ended_of(statement.fail), statement.fail.reason)
    if kind == "publish_staged":
        return publication_of(leading, statement.publish_staged)
    if kind == "advance_sink":
        return advance_of(statement.advance_sink)
    if kind == "acknowledge":
        return _acknowledgement(leading, transaction, statement.acknowledge)
    raise RequestError(
        "a statement says nothing that this version of Hadron knows",
        "a transaction publishes, acknowledges, completes or fails stages, advances sinks",
    )


_NONE = (1 << 63) - 1
"""The id of nothing: 0 would mean that a name counts."""


def _acknowledgement(
    leading: Leading,
    transaction: TransactionId,
    acknowledge: transactions_pb2.Statement.Acknowledge,
) -> AckRecords:
    item = leading.partition("", "", "", acknowledge.stream_id or _NONE, acknowledge.metadata_index)
    held = ranges_of(acknowledge.ranges)
    check_ranges(held)
    if not held:
        raise RequestError("an acknowledgement names no records")
    group_id = leading.part(Groups).check_held(
        transaction, item.id, acknowledge.group, ballot_from(acknowledge.ballot), held
    )
    ranges = melted([(first, last) for _, first, last in held])
    return AckRecords(group_id, tuple(ranges))
