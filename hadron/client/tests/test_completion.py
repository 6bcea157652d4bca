"""What completion shows of every class that users meet: what they may use, and nothing else."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable
from typing import Any

import hadron
from hadron.client import (
    Applied,
    BatchReader,
    BatchReceipt,
    CallStream,
    Change,
    Client,
    DeliveryBatch,
    Dispatched,
    Endpoint,
    EndpointLife,
    EndpointServer,
    Exchange,
    Fetched,
    IncomingCall,
    Message,
    Messages,
    OpenTransaction,
    PartitionOffsets,
    Pending,
    Published,
    PublishedMany,
    Receipt,
    RecordReader,
    Serving,
    Step,
    TransactionOutcome,
)
from hadron.client.blocking.faces.deliveries import SyncDeliveryBatch
from hadron.client.blocking.faces.exchange import SyncExchange
from hadron.client.blocking.faces.messages import SyncMessages
from hadron.client.blocking.faces.sink import SyncSink
from hadron.client.blocking.faces.stage import SyncStageInvocations
from hadron.client.blocking.faces.stage_run import SyncStageRun
from hadron.client.blocking.faces.steps import SyncStep
from hadron.client.blocking.intake import SyncDeliveryBatches, SyncSteps
from hadron.client.blocking.outbox import SyncPending
from hadron.client.blocking.reader import SyncReader
from hadron.client.consuming.groups import GroupReset
from hadron.client.consuming.steps import Steps
from hadron.client.consuming.subscription import DeliveryBatches
from hadron.client.handling.stage import StageInvocations, StageOpening
from hadron.client.pipelines.stage_run import StageRun
from hadron.client.sinks.sink import Sink
from hadron.client.terms.opening import Opening
from hadron.client.tests.support import both, served

CLIENT = {
    "apply",
    "call",
    "call_stream",
    "cancel_instances",
    "close",
    "complete_stages",
    "control_backfill",
    "create_endpoint",
    "create_exchange",
    "create_stream",
    "delete",
    "delete_group",
    "describe_group",
    "endpoints",
    "exchange",
    "fail_stages",
    "fetch",
    "groups",
    "instances",
    "latest",
    "objects",
    "offsets",
    "outcome",
    "pipeline_progress",
    "producer",
    "read",
    "read_batches",
    "reset_group",
    "resolve_transaction",
    "retry_instances",
    "run_stages",
    "send",
    "send_once",
    "serve",
    "signal",
    "sink",
    "sinks",
    "stage",
    "staged",
    "start_backfill",
    "start_instances",
    "status",
    "stream",
    "subscribe",
    "topology",
    "transaction",
    "transactions",
}
PRODUCER = {"close", "flush", "last_sequence", "last_sequences", "send", "send_many", "send_soon"}
SUBSCRIPTION = {"batches", "close", "flush", "poll", "poll_batch", "transactions"}
WORK = {"ack", "commit", "publish", "publish_many", "receipts", "rollback"}
INVOCATION = {
    "attempt",
    "complete",
    "fail",
    "failed_stage",
    "failure",
    "instance_id",
    "is_ended",
    "is_late",
    "outputs",
    "root",
    "stage",
}
DELIVERY = {
    "ack",
    "attempt",
    "damage",
    "extend",
    "headers",
    "id",
    "key",
    "nack",
    "offset",
    "partition",
    "raw",
    "record",
    "stream",
    "timestamp",
    "timestamp_ms",
    "type",
    "value",
}
RECORD = {
    "content_type",
    "damage",
    "encoding",
    "headers",
    "id",
    "key",
    "offset",
    "partition",
    "raw",
    "stream",
    "timestamp",
    "timestamp_ms",
    "type",
    "value",
    "value_bytes",
}
MESSAGE = {
    "content_type",
    "damage",
    "headers",
    "interrupted",
    "key",
    "missed",
    "raw",
    "timestamp",
    "timestamp_ms",
    "topic",
    "type",
    "value",
    "value_bytes",
}
INCOMING = {"answer_headers", "attempt", "caller", "endpoint", "headers", "is_cancelled", "left_s"}
BATCH = {"ack", "attempt", "extend", "first_offset", "nack", "partition", "records"}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def offered() -> set[type]:
    """Every class that a user of a client meets by name: what there is to import, and what calls
    of these return."""
    found = {
        kind
        for module in (hadron, hadron.client)
        for name in module.__all__
        if isinstance(kind := getattr(module, name), type) and not name.endswith("Error")
    }
    return (
        found
        | {DeliveryBatches, GroupReset, Opening, SyncDeliveryBatch, SyncDeliveryBatches}
        | {StageRun, SyncPending, SyncReader, SyncStageRun}
        | {StageInvocations, StageOpening, SyncStageInvocations}
        | {Sink, SyncSink}
        | {SyncExchange, SyncMessages}
        | {Steps, SyncStep, SyncSteps}
    )


def test_completion_shows_what_may_be_called() -> None:
    expected: list[tuple[Iterable[type], set[str]]] = [
        ([Client], CLIENT),
        ([hadron.SyncClient], CLIENT | {"open"}),
        ([hadron.Producer, hadron.SyncProducer], PRODUCER),
        ([hadron.Subscription, hadron.SyncSubscription], SUBSCRIPTION),
        ([hadron.Delivery, hadron.SyncDelivery], DELIVERY),
        ([DeliveryBatch, SyncDeliveryBatch], BATCH),
        ([DeliveryBatches, SyncDeliveryBatches, Opening], set()),
        ([Pending, SyncPending], {"is_done", "wait"}),
        ([RecordReader, BatchReader], {"aclose"}),
        ([SyncReader], {"close"}),
        ([StageRun], {"begin", "grant"}),
        ([SyncStageRun], {"begin", "close", "grant"}),
        ([StageOpening], {"run"}),
        ([StageInvocations, SyncStageInvocations], {"close", "run"}),
        ([hadron.StageInvocation, hadron.SyncStageInvocation], INVOCATION),
        ([Exchange, SyncExchange], {"describe", "publish", "publish_many", "subscribe"}),
        ([Message], MESSAGE),
        ([Messages], {"interruptions", "missed"}),
        ([SyncMessages], {"close", "interruptions", "missed"}),
        ([CallStream], {"close", "end", "headers", "result", "send"}),
        ([Serving], {"close", "drain", "wait"}),
        ([IncomingCall], INCOMING),
        ([Sink, SyncSink], {"give_up", "is_published", "progress", "publish", "stage"}),
        (
            [hadron.Transaction, hadron.SyncTransaction],
            WORK | {"begin", "complete", "fail", "id", "state"},
        ),
        ([Step, SyncStep], WORK | {"partition"}),
        ([Steps, SyncSteps], set()),
        ([Published], {"receipt"}),
        ([PublishedMany], {"receipts"}),
        ([Receipt], fields(Receipt) | {"id"}),
        ([TransactionOutcome], fields(TransactionOutcome) | {"is_committed"}),
        ([hadron.Record], RECORD),
        ([BatchReceipt], fields(BatchReceipt) | {"next_offset"}),
        *(([kind], fields(kind)) for kind in VALUES),
    ]
    assert {kind: public(kind) for kind in offered()} == {
        kind: names for kinds, names in expected for kind in kinds
    }


VALUES = (
    Applied,
    Change,
    Dispatched,
    Endpoint,
    EndpointLife,
    EndpointServer,
    Fetched,
    GroupReset,
    OpenTransaction,
    PartitionOffsets,
    hadron.CloudEvent,
    hadron.NewRecord,
)


def fields(kind: Any) -> set[str]:
    if dataclasses.is_dataclass(kind):
        return {each.name for each in dataclasses.fields(kind)}
    return set(kind.__struct_fields__)


@both
async def test_instances_show_no_more_than_their_classes() -> None:
    def shown(thing: Any) -> set[str]:
        return {name for name in getattr(thing, "__dict__", {}) if not name.startswith("_")}

    blocking = hadron.connect_sync("hadron://127.0.0.1:1")
    assert shown(blocking) == {"namespace"}
    assert shown(blocking.producer("s")) == set()
    assert shown(blocking.subscribe("s", group="g")) == set()
    assert shown(blocking.run_stages("p")) == set()
    assert shown(blocking.transaction()) == set()
    async with served() as (_, client):
        assert shown(client) == {"namespace"}
        assert shown(client.run_stages("p")) == shown(client.read("s")) == set()
        async with client.producer("s") as producer, client.subscribe("s", group="g") as members:
            for thing in (producer, members, members.batches(), await producer.send_soon(b"x")):
                assert shown(thing) == set(), thing
            delivery = await members.poll()
            assert shown(delivery) == set()


def test_both_clients_offer_the_same() -> None:
    only_async, only_sync = public(Client), public(hadron.SyncClient)
    assert only_async - only_sync == set()
    # An async client is opened by its block: its tasks belong to that.
    assert only_sync - only_async == {"open"}
    for name in only_async & only_sync - {"close"}:
        one = inspect.signature(getattr(Client, name)).parameters
        other = inspect.signature(getattr(hadron.SyncClient, name)).parameters
        assert list(one.values()) == list(other.values()), name
    for one_kind, other_kind in (
        (hadron.Producer, hadron.SyncProducer),
        (hadron.Subscription, hadron.SyncSubscription),
        (hadron.Delivery, hadron.SyncDelivery),
        (DeliveryBatch, SyncDeliveryBatch),
        (hadron.Transaction, hadron.SyncTransaction),
        (Step, SyncStep),
    ):
        for name in public(one_kind):
            if callable(getattr(one_kind, name)):
                one = inspect.signature(getattr(one_kind, name)).parameters
                other = inspect.signature(getattr(other_kind, name)).parameters
                assert list(one.values()) == list(other.values()), (one_kind, name)
