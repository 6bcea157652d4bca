"""The blocking face of `hadron.client.client`, made of it by `make faces`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal

from hadron.client.blocking.bases import ClientBase
from hadron.client.blocking.faces.exchange import SyncExchange
from hadron.client.blocking.faces.producer import SyncProducer
from hadron.client.blocking.faces.serving import SyncServing
from hadron.client.blocking.faces.sink import SyncSink
from hadron.client.blocking.faces.stage import SyncStageInvocations
from hadron.client.blocking.faces.stage_run import SyncStageRun
from hadron.client.blocking.faces.stream import SyncCallStream
from hadron.client.blocking.faces.subscription import SyncSubscription
from hadron.client.blocking.faces.transaction import SyncTransaction
from hadron.client.blocking.reader import SyncReader, batch_reader, record_reader
from hadron.client.client import CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S, connect
from hadron.client.connecting.ports import ClientPorts
from hadron.client.consuming.groups import GroupReset
from hadron.client.consuming.settings import (
    DEFAULT_HEARTBEAT_MISSES,
    DEFAULT_HEARTBEAT_S,
    DEFAULT_MAX_IN_FLIGHT,
    Order,
)
from hadron.client.endpoints.calls import NOTHING
from hadron.client.endpoints.methods import CALL_TIMEOUT_S, STREAM_TIMEOUT_S
from hadron.client.endpoints.serving import (
    DEFAULT_CALLS,
    DRAIN_S,
    SERVER_HEARTBEAT_MISSES,
    SERVER_HEARTBEAT_S,
)
from hadron.client.handling.stage import DEFAULT_INVOCATIONS
from hadron.client.pipelines.stage_run import DEFAULT_CREDIT
from hadron.client.producing.failover import Failover
from hadron.client.producing.new_records import Serializer
from hadron.client.producing.settings import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_DELIVERY_TIMEOUT_S,
    DEFAULT_LINGER_MS,
    DEFAULT_MAX_BUFFER_BYTES,
)
from hadron.client.reading.calls import FETCH_BYTES
from hadron.client.terms.arguments import ObjectName
from hadron.client.terms.results import (
    Applied,
    BatchReceipt,
    EndpointLife,
    Fetched,
    OpenTransaction,
    PartitionOffsets,
    Receipt,
    StagedWrite,
    TransactionOutcome,
)
from hadron.model.documents.reading import Declared
from hadron.model.ids import Ballot
from hadron.model.limits import DEFAULT_MICRO_BATCH
from hadron.model.record import Deserializer, Headers, Record
from hadron.model.record_batch import RecordBatch
from hadron.model.schema import SchemaObject
from hadron.model.sinks import SinkProgress
from hadron.model.transactions import TransactionId
from hadron.wire.messages import cluster_pb2, groups_pb2, pipelines_pb2


class SyncClient(ClientBase):
    """A connection to a cluster; made by `hadron.connect_sync`.

    Use it in a `with` block, or keep it in a module: it connects at its first use (or `open`), and
    is closed by `close` or when the program ends, which flushes its producers for 10 s, or until
    Ctrl-C, and logs what could not be sent. It may be used from several threads, and closed by any.
    Python comes to the end of a program when all its threads have ended but daemons: a thread that
    loops over a subscription for ever is one (`Thread(…, daemon=True)`), or main calls `close`,
    which ends the loop; else the program goes on, as does the thread.

    After `fork()` the child's client and producers connect anew; its subscriptions raise
    `ForkedError`. Every call raises `ClosedError` once it has been closed, `PeerError` when the
    cluster does not answer in time, and `NotFoundError` for names that do not exist.
    """

    def producer(
        self,
        stream: str,
        *,
        acks: Literal["majority", "leader", "all"] = "majority",
        partition: str | None = None,
        region: str | None = None,
        partitioner: Literal["key", "round_robin"] = "key",
        failover: Failover = "unkeyed",
        codec: Literal["none", "zstd"] = "none",
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        linger_ms: float = DEFAULT_LINGER_MS,
        max_buffer_bytes: int = DEFAULT_MAX_BUFFER_BYTES,
        delivery_timeout_s: float = DEFAULT_DELIVERY_TIMEOUT_S,
        value_serializer: Serializer | None = None,
        name: str | None = None,
    ) -> SyncProducer:
        """A producer, for use as `with client.producer(...) as producer`.

        Args:
            acks: what a receipt promises: on the leader's disk, a majority's, or all.
            partition: a replica set's name, for all records, wherever it is.
            region: only partitions whose names begin with it, up to a `/` or `.`, such as
                `aws.us-east-1`: records never leave it.
            partitioner: "key" sends equal keys to one partition (`xxh3_64(key) % partitions`, see
                `producing.partitioner`) and records without one round robin, a batch at a time;
                "round_robin" does so with all.
            failover: what happens to records whose partition is away; what order they keep then,
                `SyncProducer` says. "unkeyed": those without a key go to another one at once, those
                with a key wait. "any": all go, keys out of order too. "none": all wait. These three
                never publish a record twice: one that may be in the log already waits for its
                partition until the delivery timeout, then fails with `OutcomeUnknownError`.
                "duplicate" sends that one elsewhere as well: rather twice than unknown.
            codec: compression of the records' bodies.
            batch_bytes: a batch is complete at this size, 1 MiB at most.
            linger_ms: how long records gather while an earlier batch is under way; a record that
                finds nothing under way leaves at once.
            max_buffer_bytes: unresolved records; beyond it senders wait. Of several partitions
                each may have as much as is left: one that is away holds up its own senders only.
            delivery_timeout_s: after this long without an outcome a record fails.
            value_serializer: called with each value, gives what is sent: bytes, str or anything
                JSON.
            name: of a thread, such as "billing-3", for one process at a time: once this one is
                open, one that was opened before gets `ProducerFencedError`. It has to be claimed
                at all partitions that the producer may use, so opening waits for their leaders.
                Records stay in their partitions, and may have a `sequence`, by which those that an
                earlier process has logged are known: `last_sequence` says where to go on.
        """
        return SyncProducer(
            self._hold,
            lambda client: client.producer(
                stream,
                acks=acks,
                partition=partition,
                region=region,
                partitioner=partitioner,
                failover=failover,
                codec=codec,
                batch_bytes=batch_bytes,
                linger_ms=linger_ms,
                max_buffer_bytes=max_buffer_bytes,
                delivery_timeout_s=delivery_timeout_s,
                value_serializer=value_serializer,
                name=name,
            ),
        )

    def send(
        self,
        stream: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        type: str = "",
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        id: str = "",
        partition: str | None = None,
        timestamp: datetime | None = None,
        expect_offset: int | None = None,
        expect_key_offset: int | None = None,
    ) -> Receipt:
        """Publish one record and wait until a majority has it, by a producer that the client keeps
        for the stream. Arguments and errors are those of `SyncProducer.send`.

        Args:
            expect_offset: log the record at this offset of its partition, or not at all: what has
                come before it is all known.
            expect_key_offset: log it when the latest record with its key is at this offset (-1:
                there is none), or not at all; of a stream declared with `keys: indexed`.

        Raises `OffsetMismatchError`, with `.actual`, when that is not so, and it is not in the log.
        """
        return self._call(
            lambda client: client.send(
                stream,
                value,
                key=key,
                type=type,
                timestamp_ms=timestamp_ms,
                headers=headers,
                id=id,
                partition=partition,
                timestamp=timestamp,
                expect_offset=expect_offset,
                expect_key_offset=expect_key_offset,
            )
        )

    def subscribe(
        self,
        stream: str,
        *,
        group: str,
        start: Literal["earliest", "latest"] | int | datetime = "earliest",
        partitions: str | Sequence[str] | None = None,
        max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
        batch_size: int | None = None,
        batch_wait_s: float = 0.0,
        order: Order | None = None,
        ack_deadline_s: float | None = None,
        max_attempts: int | None = None,
        dead_letter: str | None = None,
        ephemeral: bool | None = None,
        heartbeat_s: float = DEFAULT_HEARTBEAT_S,
        heartbeat_misses: int = DEFAULT_HEARTBEAT_MISSES,
        member: str = "",
        value_deserializer: Deserializer | None = None,
    ) -> SyncSubscription:
        """A member of a group, for use as `with client.subscribe(...) as subscription`.

        A group keeps what it was created with: `order` to `ephemeral` left out mean "as the group
        has it", and given otherwise than it has are refused with a `RequestError`.

        Args:
            start: where a new group begins; a datetime means the first record appended then or
                later, "latest" what is appended from now on, as does a datetime yet to come.
            partitions: which ones to consume, or the one; None is all, also those that are added
                later.
            max_in_flight: records delivered and not acknowledged, per partition, at most.
            batch_size: `batches()` gives up to so many records of a partition at a time.
            batch_wait_s: how long the first record of a batch waits for the others.
            order: "strict" has one record of a partition in flight, "key" one of each key, "none"
                (the default) as many as `max_in_flight`.
            ack_deadline_s: a record that is not acknowledged for so long after its delivery, or
                after `extend`, goes to another member; 0 is no deadline. What the program has not
                been handed is given back before that, and was no attempt, while the client's event
                loop gets its turns.
            max_attempts: after so many deliveries without an acknowledgement a record goes to the
                stream `dead_letter`, which has a partition on the same replica set. One that is
                still at work with the record counts each time that its deadline passes.
            ephemeral: progress is kept in the leader's memory only.
            heartbeat_s: the member says something at least this often; 0 is never.
            heartbeat_misses: after so many intervals of silence its records go to others, and the
                member gives a leader up that is silent for as long.
            member: what it is called in descriptions and errors.
            value_deserializer: called with a record's value when it is touched, as it was sent
                (bytes, str or anything JSON): `.value` is what it gives.

        Heartbeats are sent by the client's own thread, however long a handler takes.
        """
        return SyncSubscription(
            self._hold,
            lambda client: client.subscribe(
                stream,
                group=group,
                start=start,
                partitions=partitions,
                max_in_flight=max_in_flight,
                batch_size=batch_size,
                batch_wait_s=batch_wait_s,
                order=order,
                ack_deadline_s=ack_deadline_s,
                max_attempts=max_attempts,
                dead_letter=dead_letter,
                ephemeral=ephemeral,
                heartbeat_s=heartbeat_s,
                heartbeat_misses=heartbeat_misses,
                member=member,
                value_deserializer=value_deserializer,
            ),
        )

    def create_stream(
        self,
        name: str,
        *,
        partitions: str | Sequence[str] | None = None,
        retention: Mapping[str, str | int] | None = None,
        max_age: str | None = None,
        max_bytes: int | str | None = None,
        description: str = "",
        keys: Literal["", "indexed"] = "",
    ) -> SchemaObject:
        """Declare a stream in the client's namespace; one that is there already is returned.

        Args:
            partitions: the replica sets, by name, on which it has one; None is the cluster's only
                one, and `RequestError` where it has several.
            retention: `{"max_age": "7d", "max_bytes": "10GiB"}`, or one of them; None keeps all.
            max_age, max_bytes: the same, by themselves.
            keys: "indexed" keeps the latest record of each key known, for `latest` and
                `expect_key_offset`.

        Raises `SchemaError` when the cluster refuses it, or has it with other settings.
        """
        return self._call(
            lambda client: client.create_stream(
                name,
                partitions=partitions,
                retention=retention,
                max_age=max_age,
                max_bytes=max_bytes,
                description=description,
                keys=keys,
            )
        )

    def create_endpoint(
        self,
        name: str,
        *,
        replica_set: str | None = None,
        input: Literal["single", "stream"] = "single",
        output: Literal["single", "stream"] = "single",
        idempotent: bool = False,
        hedge_after: str | None = None,
        max_waiting: int | None = None,
        description: str = "",
    ) -> SchemaObject:
        """Declare an endpoint, which `serve` serves and `call` calls, as `create_stream` does a
        stream.

        Args:
            replica_set: whose leader connects callers and servers; None is the cluster's only one.
            input, output: one value each, or a "stream" of as many as there are.
            idempotent: a call may be run twice: it goes elsewhere when its server is lost.
            hedge_after: give an idempotent call to a second server as well after so long: "200ms".
            max_waiting: calls that wait while all servers are busy (1,000); more are refused.
        """
        return self._call(
            lambda client: client.create_endpoint(
                name,
                replica_set=replica_set,
                input=input,
                output=output,
                idempotent=idempotent,
                hedge_after=hedge_after,
                max_waiting=max_waiting,
                description=description,
            )
        )

    def create_exchange(
        self,
        name: str,
        *,
        replica_set: str | None = None,
        from_stream: str | None = None,
        topic: str | None = None,
        to_stream: str | None = None,
        description: str = "",
    ) -> SchemaObject:
        """Declare an exchange, for `exchange(name)`, as `create_stream` does a stream.

        Args:
            replica_set: whose leader knows the subscribers; None is the cluster's only one.
            from_stream: the stream whose records are published on it.
            topic: of these, such as "flying.{type}"; None is their type.
            to_stream: the stream where what is published is logged, with the topic as its type.
        """
        return self._call(
            lambda client: client.create_exchange(
                name,
                replica_set=replica_set,
                from_stream=from_stream,
                topic=topic,
                to_stream=to_stream,
                description=description,
            )
        )

    def apply(
        self, objects: Declared, *, dry_run: bool = False, allow_destructive: bool = False
    ) -> Applied:
        """Declare objects: all of them or, with `SchemaError`, none. Repeated, changes nothing.

        Args:
            objects: YAML text of one or more documents, the `Path` of such a file, a mapping with
                a document's keys, a `SchemaObject`, or several of these.
        """
        return self._call(
            lambda client: client.apply(
                objects, dry_run=dry_run, allow_destructive=allow_destructive
            )
        )

    def delete(
        self,
        names: Sequence[ObjectName] | ObjectName,
        *,
        dry_run: bool = False,
        allow_destructive: bool = False,
    ) -> list[SchemaObject]:
        """Delete an object, given as itself or as (kind, namespace, name), or several: all of them
        or, with `SchemaError`, none. Returns them as they were.

        What has data (a stream its records, a pipeline its instances) takes `allow_destructive`.
        """
        return self._call(
            lambda client: client.delete(
                names, dry_run=dry_run, allow_destructive=allow_destructive
            )
        )

    def objects(self, kind: str = "", namespace: str = "", name: str = "") -> list[SchemaObject]:
        """Declared objects; "" means any. `NotFoundError`: there is no such namespace."""
        return self._call(lambda client: client.objects(kind, namespace, name))

    def stream(self, name: str) -> SchemaObject:
        """The stream called `name` in the client's namespace, looked up once."""
        return self._call(lambda client: client.stream(name))

    def topology(self, address: str | None = None) -> cluster_pb2.TopologyResponse:
        """Replica sets, their nodes and who leads, as some node, or the one at `address`, sees it
        now. While a configuration is being changed nodes differ: the higher epoch is right.
        """
        return self._call(lambda client: client.topology(address))

    def status(self, address: str | None = None) -> cluster_pb2.StatusResponse:
        """How the node at `address` is; None asks any node. One try: raises `PeerError`."""
        return self._call(lambda client: client.status(address))

    def groups(
        self, stream: str = "", *, within_s: float | None = None
    ) -> list[groups_pb2.ListGroupsResponse.Group]:
        """Consumer groups and their progress, per partition; "" is all streams.

        All leaders are asked at once, for `within_s` (None: the client's `request_timeout_s`).
        Raises `IncompleteError`, with the groups of the others, when some did not answer.
        """
        return self._call(lambda client: client.groups(stream, within_s=within_s))

    def describe_group(
        self,
        stream: str,
        group: str,
        *,
        partitions: Sequence[str] = (),
        within_s: float | None = None,
    ) -> list[groups_pb2.DescribeGroupResponse]:
        """A group with its members, per partition (() is all of the stream's that know it).

        Raises `NotFoundError` when no partition knows it, `IncompleteError` as `groups` does.
        """
        return self._call(
            lambda client: client.describe_group(
                stream, group, partitions=partitions, within_s=within_s
            )
        )

    def reset_group(
        self,
        stream: str,
        group: str,
        to: str | int | datetime,
        *,
        partitions: Sequence[str] = (),
        force: bool = False,
        create: bool = False,
        within_s: float | None = None,
    ) -> list[GroupReset]:
        """Move a group's progress at some partitions (() is all that know it).

        Args:
            to: "earliest", "latest", an offset, a datetime or "@" and milliseconds since the
                Unix epoch (the first record appended then or later; "latest" where that is yet to
                come), or -N: so many records before each partition's end.
            force: also while members are connected, who join again; refused then without it.
            create: make the group where a partition does not know it, with the usual options.

        Raises `NotFoundError` when no partition knows it; `IncompleteError` when some (`found`)
        have done it and others have not, or did not say so: it may be repeated.
        """
        return self._call(
            lambda client: client.reset_group(
                stream,
                group,
                to,
                partitions=partitions,
                force=force,
                create=create,
                within_s=within_s,
            )
        )

    def delete_group(
        self,
        stream: str,
        group: str,
        *,
        partitions: Sequence[str] = (),
        force: bool = False,
        within_s: float | None = None,
    ) -> list[str]:
        """Forget a group at some partitions (() is all that know it); returns which.

        With `force` also while members are connected, who fail. Raises as `reset_group` does.
        """
        return self._call(
            lambda client: client.delete_group(
                stream, group, partitions=partitions, force=force, within_s=within_s
            )
        )

    def send_once(
        self, stream: str, values: Sequence[Any], *, key: str, partition: str | None = None
    ) -> list[BatchReceipt]:
        """Publish records that this key is given to, once: sent again under the same key within a
        day, by whatever client, they are not logged again, and the receipts say where they are and
        that they are a `duplicate`. For what nobody can send a second time by mistake: requests of
        programs that do not remember what they have sent.

        Args:
            values: what `send` takes as `value`, few enough for one batch.
            key: any text, such as a random UUID; of each stream by itself.
            partition: where they all go. Without it those with a key of their own go where that
                leads, the others where this one does. Where partitions are added meanwhile,
                records may be logged once more, at the new one.

        Raises `KeyReusedError` when the key was given to other records, naming the partitions, if
        any, that have logged theirs before another one refused, and `OutcomeUnknownError` when
        nobody answers in time: send them again under the same key.
        """
        return self._call(
            lambda client: client.send_once(stream, values, key=key, partition=partition)
        )

    def transaction(
        self,
        *,
        driver: str | None = None,
        partitioner: Literal["key", "round_robin"] = "key",
        region: str | None = None,
        codec: Literal["none", "zstd"] = "none",
        value_serializer: Serializer | None = None,
    ) -> SyncTransaction:
        """Records and acknowledgements at any partitions, all done or none, for use as
        `with client.transaction() as tx`.

        Args:
            driver: the replica set whose leader decides, and knows the outcome; None is that of the
                first statement.
            partitioner, region, codec, value_serializer: as `producer` has them. Records stay
                where they belong: while a partition is away the transaction fails.
        """
        return SyncTransaction(
            self._hold,
            lambda client: client.transaction(
                driver=driver,
                partitioner=partitioner,
                region=region,
                codec=codec,
                value_serializer=value_serializer,
            ),
        )

    def outcome(self, transaction: str | TransactionId) -> TransactionOutcome:
        """What became of a transaction, as its driver's replica set knows for 24 hours: after a
        `CommitUnknownError`, by its `.transaction`. One of this client's that is not decided by
        then never is. Raises `PeerError` while that replica set does not answer.
        """
        return self._call(lambda client: client.outcome(transaction))

    def transactions(
        self, replica_set: str | None = None, *, within_s: float | None = None
    ) -> list[OpenTransaction]:
        """Transactions that are not over, as the leader of a replica set has them, or all leaders
        do: those that it drives, then those that others drive there. Raises `IncompleteError` as
        `groups` does.
        """
        return self._call(lambda client: client.transactions(replica_set, within_s=within_s))

    def resolve_transaction(
        self,
        transaction: str | TransactionId,
        act: Literal["roll_back", "give_up", "force_commit", "force_abort"] = "roll_back",
        *,
        participant: str | None = None,
    ) -> None:
        """An operator's act, for when a replica set is lost for good.

        "roll_back" ends one that is not decided, and is safe. The others may tear a transaction
        (PROTOCOL E4): "give_up" has its driver wait no more for `participant`, "force_commit" and
        "force_abort" end at `participant` what a lost driver has left there. Raises `RequestError`
        where there is nothing to resolve, and where a driver that is to be lost answers.
        """
        self._call(
            lambda client: client.resolve_transaction(transaction, act, participant=participant)
        )

    def sink(self, name: str = "") -> SyncSink:
        """What is written by many threads, and published at once: Spark's `df.write`.

        Args:
            name: of what is written, the same for each run: it keeps how far its query is, so that
                a batch that comes again is known. "" is for what is written once.
        """
        return SyncSink(self._hold, lambda client: client.sink(name))

    def sinks(self) -> list[SinkProgress]:
        """All sinks of the namespace, and how far each is."""
        return self._call(lambda client: client.sinks())

    def staged(self, *, within_s: float | None = None) -> list[StagedWrite]:
        """What threads have staged and nobody has published, at each leader. Raises
        `IncompleteError` as `groups` does.
        """
        return self._call(lambda client: client.staged(within_s=within_s))

    def stage(
        self,
        pipeline: str,
        stage: str,
        *,
        max_in_flight: int = DEFAULT_INVOCATIONS,
        value_serializer: Serializer | None = None,
        value_deserializer: Deserializer | None = None,
        runner: str = "",
        code_version: str = "",
    ) -> SyncStageInvocations:
        """Invocations of a stage with `engine: handler`, which this program runs:
        `for invocation in client.stage("departures", "verdict")`, with
        `invocation.root` and `invocation.outputs`, to be ended by `invocation.complete(...)`
        or `fail`; or `client.stage(...).run(handler)`, many at a time.

        Args:
            max_in_flight: invocations that were handed out and have not ended, at most.
            value_serializer: from what `complete` is given to bytes, str or anything JSON.
            value_deserializer: called with a record's value when it is touched: `.value` is what it
                gives.
            runner: what this program is called in instances' stories; "" is host and process.
            code_version: of the program, for the same place: a release, or a commit.
        """
        return SyncStageInvocations(
            self._hold,
            lambda client: client.stage(
                pipeline,
                stage,
                max_in_flight=max_in_flight,
                value_serializer=value_serializer,
                value_deserializer=value_deserializer,
                runner=runner,
                code_version=code_version,
            ),
        )

    def read(
        self,
        stream: str,
        *,
        partition: str | None = None,
        start: Literal["earliest", "latest"] | int | datetime = "earliest",
        offset: int | Literal["earliest", "latest"] | None = None,
        limit: int | None = None,
        follow: bool = False,
        stream_id: int | None = None,
        value_deserializer: Deserializer | None = None,
    ) -> SyncReader[Record]:
        """Records in order: `for record in client.read(...)`.

        Args:
            partition: None reads all, one after the other, or as records arrive when following;
                what has a leader that is away comes after the others, as far as it can be read.
            start: where to begin; an offset holds for every partition that is read, -2 means the
                last two of each, a datetime the first record appended then or later: who follows
                waits for one that is yet to come.
            offset: `start` by its other name.
            limit: stop after this many records.
            follow: wait for new records instead of ending at the high watermark as of the call;
                also for those of partitions that are added, from their first on; it ends when the
                client is closed.
            stream_id: see `fetch`.
            value_deserializer: see `subscribe`.

        Raises:
            NotFoundError: there is no such stream, or it was deleted while it was read: another
                one that was made under its name is none of this read's.
            OffsetOutOfRangeError: `offset` lies before the first kept record, or after the next.
            CorruptionError: a batch does not match its checksum.
        """
        return record_reader(
            self._hold,
            lambda client: client.read(
                stream,
                partition=partition,
                start=start,
                offset=offset,
                limit=limit,
                follow=follow,
                stream_id=stream_id,
                value_deserializer=value_deserializer,
            ),
        )

    def read_batches(
        self,
        stream: str,
        *,
        partition: str | None = None,
        start: Literal["earliest", "latest"] | int | datetime = "earliest",
        offset: int | Literal["earliest", "latest"] | None = None,
        limit: int | None = None,
        follow: bool = False,
        stream_id: int | None = None,
        value_deserializer: Deserializer | None = None,
    ) -> SyncReader[RecordBatch]:
        """Like `read`, a `RecordBatch` at a time, cut to the records that were asked for."""
        return batch_reader(
            self._hold,
            lambda client: client.read_batches(
                stream,
                partition=partition,
                start=start,
                offset=offset,
                limit=limit,
                follow=follow,
                stream_id=stream_id,
                value_deserializer=value_deserializer,
            ),
        )

    def fetch(
        self,
        stream: str,
        partition: str,
        offset: int,
        *,
        max_bytes: int = FETCH_BYTES,
        max_wait_ms: int = 0,
        stream_id: int | None = None,
        after: Ballot | None = None,
        exists: bool = False,
    ) -> Fetched:
        """Batches as they stand in the partition, from the one that holds `offset` on.

        Args:
            max_bytes: whole batches up to this size, and at least one.
            max_wait_ms: how long to wait when there is nothing at `offset` yet.
            stream_id: of a known stream: `NotFoundError` when it was deleted. None: of the name.
            after: the ballot of the batch with the record before `offset`, as it was read, or as
                `offsets` told it: `LogTruncatedError` where the log has lost that.
            exists: there was a record at `offset`: `OffsetOutOfRangeError` where the log has none.
        """
        return self._call(
            lambda client: client.fetch(
                stream,
                partition,
                offset,
                max_bytes=max_bytes,
                max_wait_ms=max_wait_ms,
                stream_id=stream_id,
                after=after,
                exists=exists,
            )
        )

    def latest(
        self, stream: str, key: bytes | str, *, partition: str | None = None
    ) -> Record | None:
        """The latest record with this key, of a stream declared with `keys: indexed`; None where
        none is kept. It is so when the leader answers; `expect_key_offset` of `send` holds what
        is written then to it.

        Args:
            partition: where to look; None is where the key's records go by themselves.

        Raises `RequestError` for a stream whose keys are not indexed.
        """
        return self._call(lambda client: client.latest(stream, key, partition=partition))

    def offsets(
        self,
        stream: str,
        *,
        partition: str | None = None,
        at_ms: int | datetime | None = None,
        before: int | None = None,
        confirmed: bool = False,
    ) -> list[PartitionOffsets]:
        """How far the stream's partitions reach, the first offset at or after `at_ms`
        (milliseconds since the Unix epoch, or a datetime), and the ballot of the batch with the
        record before offset `before` (None: before the next one). `confirmed` asks a majority
        first: leaders that were deposed, and have not heard so, know less than there is.
        """
        return self._call(
            lambda client: client.offsets(
                stream, partition=partition, at_ms=at_ms, before=before, confirmed=confirmed
            )
        )

    def pipeline_progress(
        self, name: str = "", *, within_s: float | None = None, with_pace: bool = False
    ) -> list[pipelines_pb2.PipelineProgressResponse.Pipeline]:
        """Counts of instances and stages of one pipeline, or of all; with `with_pace` also rates,
        and how long stages take. Raises `IncompleteError` as `groups` does.
        """
        return self._call(
            lambda client: client.pipeline_progress(name, within_s=within_s, with_pace=with_pace)
        )

    def instances(
        self, pipeline: str, *, status: str = "", after_id: int = 0, limit: int = 100
    ) -> list[pipelines_pb2.ListInstancesResponse.Instance]:
        """A pipeline's instances behind `after_id`, by id, `limit` at most; `status` is "", "live",
        "done", "failed" or "cancelled".
        """
        return self._call(
            lambda client: client.instances(pipeline, status=status, after_id=after_id, limit=limit)
        )

    def retry_instances(
        self,
        pipeline: str,
        instance_ids: Sequence[int] | None = None,
        *,
        stage: str = "",
        before_ms: int = 0,
        from_start: bool = False,
        on_progress: Callable[[int], None] | None = None,
    ) -> int:
        """Let failed instances of a pipeline run again; returns how many do.

        What was done of them stays: only the stages that failed run again, with the attempts that
        they are declared to have. It may be repeated: instances that were retried already and have
        not failed again are passed over.

        Args:
            instance_ids: which ones; None is all that have failed and that the rest says. 1,000 at
                a time are one step.
            stage: only those in which this stage has failed.
            before_ms: only those made before then.
            from_start: what was done of them is done again, too: their outputs come once more.
            on_progress: called after each step with how many it were so far.

        Raises `NotFoundError` for a pipeline or an instance that does not exist, `RequestError`
        for one that has not failed; of its step nothing was done then, earlier ones stand.
        """
        return self._call(
            lambda client: client.retry_instances(
                pipeline,
                instance_ids,
                stage=stage,
                before_ms=before_ms,
                from_start=from_start,
                on_progress=on_progress,
            )
        )

    def cancel_instances(
        self,
        pipeline: str,
        instance_ids: Sequence[int] | None = None,
        *,
        status: str = "live",
        stage: str = "",
        before_ms: int = 0,
        on_progress: Callable[[int], None] | None = None,
    ) -> int:
        """End instances that are live or have failed; returns how many were ended. Nothing of them
        runs any more, and what runners still make of them does not count; what is done of them
        stays. It may be repeated: those that have ended otherwise are passed over.

        Args:
            instance_ids: which ones; None is all of the pipeline that the rest says.
            status: "live" or "failed".
            stage: only those that wait for this stage to be run.
            before_ms: only those made before then.
            on_progress: called after each step of 1,000 with how many it were so far.

        Raises `NotFoundError` for a pipeline or an instance that does not exist, `ConflictError`
        when a transaction is about to end a stage of one; of its step nothing was done then.
        """
        return self._call(
            lambda client: client.cancel_instances(
                pipeline,
                instance_ids,
                status=status,
                stage=stage,
                before_ms=before_ms,
                on_progress=on_progress,
            )
        )

    def start_instances(
        self, pipeline: str, stream: str, offsets: Sequence[int], *, partition: str = ""
    ) -> list[int]:
        """Make an instance of each of these records, beside what triggers make, and beyond
        `max_parallel`; returns their ids.

        Args:
            partition: of the stream; "" is the one at the pipeline's own replica set, or, where it
                has none there, its first.

        Raises `NotFoundError` for what does not exist, `RequestError` for a record that the
        pipeline's own replica set does not keep.
        """
        return self._call(
            lambda client: client.start_instances(pipeline, stream, offsets, partition=partition)
        )

    def start_backfill(
        self,
        pipeline: str,
        start: int,
        end: int,
        *,
        partition: str = "",
        per_s: int = 0,
        again: bool = False,
    ) -> int:
        """Make instances of old records of a pipeline's input: of those from offset `start` on,
        before `end`, as far as the pipeline has come by itself; returns the backfill's number. It
        goes on by itself, behind new records; `pipeline_progress` shows how far it is.

        Args:
            partition: of the input; "" is the one at the pipeline's own replica set.
            per_s: instances, at most; 0 is as many as there is room for.
            again: also of records that were looked at before; else each makes one instance.

        Raises `NotFoundError` for a partition that the pipeline does not read, `RequestError` for a
        range that it has not come to.
        """
        return self._call(
            lambda client: client.start_backfill(
                pipeline, start, end, partition=partition, per_s=per_s, again=again
            )
        )

    def control_backfill(self, pipeline: str, number: int, status: str) -> str:
        """Let a backfill be "running", "paused" or "cancelled"; returns what it is then: one that
        is done or cancelled stays so. Raises `NotFoundError` without it.
        """
        return self._call(lambda client: client.control_backfill(pipeline, number, status))

    def signal(self, pipeline: str, instance_id: int, stage: str, value: Any = None) -> bool:
        """Signal a stage of an instance that waits for it (`wait: {signal: true}`), also before its
        turn; returns whether this was the first signal, which counts. It may be repeated:
        where an answer was lost, the first one may have been this. Of an instance that has failed
        it is kept until that is retried.

        Args:
            value: what is said with it, as a producer takes it: the stage's output, where it
                declares one.

        Raises `NotFoundError` for an instance that does not exist yet, or no more, or a stage that
        does not wait; `RequestError` for one that waits for a record, whose time is over, or that
        has no output for a value.
        """
        return self._call(lambda client: client.signal(pipeline, instance_id, stage, value))

    def run_stages(
        self,
        pipeline: str,
        *,
        engine: str = "spark",
        stages: Sequence[str] = (),
        max_batch: int = DEFAULT_MICRO_BATCH,
        credit: int = DEFAULT_CREDIT,
        takes_ahead: bool = False,
        runner: str = "",
    ) -> SyncStageRun:
        """Ready invocations: `with client.run_stages(...) as run`, iterate, `run.grant()`.
        From below; `stage` is what programs are written with.

        Args:
            stages: which ones this runner can run; none means all of `engine`.
            max_batch: invocations per micro-batch, at most.
            credit: micro-batches that come before the first `grant`.
            takes_ahead: the program takes micro-batches before it works on them, and says
                `run.begin(invocations)` when it does; else each begins when it is iterated to.
            runner: what it is called in instances' stories.
        """
        return SyncStageRun(
            self._hold,
            lambda client: client.run_stages(
                pipeline,
                engine=engine,
                stages=stages,
                max_batch=max_batch,
                credit=credit,
                takes_ahead=takes_ahead,
                runner=runner,
            ),
        )

    def complete_stages(
        self,
        pipeline_id: int,
        stage: str,
        instance_ids: Sequence[int],
        attempts: Sequence[int],
        created_ms: Sequence[int],
        batch: bytes | None,
        partition: str = "",
        *,
        version: int = 0,
    ) -> pipelines_pb2.CompleteStagesResponse:
        """Commit outputs and completions together, all or none.

        Args:
            attempts, created_ms: of the invocations, in the order of `instance_ids`.
            batch: one encoded record batch with one output per instance in the same order; None
                for a stage without an output.
            partition: of the outputs; "" is the pipeline's own replica set.
            version: of the invocations. It must be given where instances live that began with other
                outputs of this stage.

        Returns:
            The outputs' base offset; or `stale_instance_ids`, and then nothing was done.
        """
        return self._call(
            lambda client: client.complete_stages(
                pipeline_id,
                stage,
                instance_ids,
                attempts,
                created_ms,
                batch,
                partition,
                version=version,
            )
        )

    def fail_stages(
        self,
        pipeline_id: int,
        stage: str,
        instance_ids: Sequence[int],
        attempts: Sequence[int],
        created_ms: Sequence[int],
        reason: str,
    ) -> None:
        """These attempts failed; the stage's retry policy decides what follows."""
        self._call(
            lambda client: client.fail_stages(
                pipeline_id, stage, instance_ids, attempts, created_ms, reason
            )
        )

    def call(
        self,
        endpoint: str,
        value: Any = None,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        region: str = "",
        headers: Mapping[str, str] | None = None,
        answer_type: Any = None,
    ) -> Any:
        """Call an endpoint with a value, bytes, str or anything JSON, and return its answer.

        Within a handler, a call takes over what is left of the time of the call that it serves, and
        its `traceparent` and `tracestate`. Headers of the answer are told by `call_stream`, which
        calls such an endpoint as well: `with client.call_stream("quote", value) as call`, and
        `call.headers` behind `call.result()`.

        Args:
            timeout_s: after so long without an answer nobody works on it any more.
            region: servers whose region begins with it, up to a `/` or `.`, come first.
            headers: small texts by name, for the handler.
            answer_type: what the answer is made into: a dataclass, a `msgspec.Struct`, a model of
                pydantic, or plain types; None leaves it as it was sent.

        Raises:
            CallFailedError: the handler has raised an error; `.type` is its type.
            NoServerError: nobody serves the endpoint; it was not run.
            OverloadedError: all servers are busy, and too many wait; it was not run.
            DeadlineExceededError: no answer within `timeout_s`.
            CallUnknownError: a server or a leader was lost with it; it may have run. (Where the
                endpoint is declared `idempotent` it was given to others before.)
        """
        return self._call(
            lambda client: client.call(
                endpoint,
                value,
                timeout_s=timeout_s,
                region=region,
                headers=headers,
                answer_type=answer_type,
            )
        )

    def call_stream(
        self,
        endpoint: str,
        value: Any = NOTHING,
        *,
        timeout_s: float = STREAM_TIMEOUT_S,
        region: str = "",
        headers: Mapping[str, str] | None = None,
        answer_type: Any = None,
    ) -> SyncCallStream:
        """Call an endpoint whose input or answer is a stream, or whose answer's `headers` matter:
        `with client.call_stream("sum") as call`, and in it `call.send(1)`,
        `call.result()`, or `for value in call`.

        Args:
            value: of an endpoint that takes one value; else the input is what is sent.
            timeout_s: until all of the answer has come.

        The others, and errors, are those of `call`.
        """
        return SyncCallStream(
            self._hold,
            lambda client: client.call_stream(
                endpoint,
                value,
                timeout_s=timeout_s,
                region=region,
                headers=headers,
                answer_type=answer_type,
            ),
        )

    def serve(
        self,
        endpoint: str,
        handler: Callable[..., Any],
        *,
        max_in_flight: int = DEFAULT_CALLS,
        region: str = "",
        name: str = "",
        heartbeat_s: float = SERVER_HEARTBEAT_S,
        heartbeat_misses: int = SERVER_HEARTBEAT_MISSES,
        drain_s: float = DRAIN_S,
    ) -> SyncServing:
        """Serve an endpoint: `with client.serve("quote", handler) as serving`, and, if the
        program does nothing else, `serving.wait()` in it.

        `handler(value)`, or `handler(value, call)` with an `IncomingCall`, gets the value, decoded
        into what it is annotated with, or an iterator of values where the input is a stream; it
        returns the answer, or yields it where that is a stream. A coroutine function runs in the
        event loop, any other one in a thread. What it raises goes to the caller, by type and text;
        the traceback goes to the log here. A `CallFailedError` goes as it is.

        Args:
            max_in_flight: calls that this server has at a time; others go elsewhere, or wait.
            region: where it is, for callers that prefer one.
            name: what it is called in descriptions and errors; "" is host and process.
            heartbeat_s: it says something at least this often; 0 is never.
            heartbeat_misses: after so many intervals of silence its callers are told that it is
                lost.
            drain_s: when the block is left, calls that are under way have so long to end.
        """
        return SyncServing(
            self._hold,
            lambda client: client.serve(
                endpoint,
                handler,
                max_in_flight=max_in_flight,
                region=region,
                name=name,
                heartbeat_s=heartbeat_s,
                heartbeat_misses=heartbeat_misses,
                drain_s=drain_s,
            ),
        )

    def endpoints(self, endpoint: str = "", *, within_s: float | None = None) -> list[EndpointLife]:
        """The endpoints of the namespace, or one of them, with the servers that are there now."""
        return self._call(lambda client: client.endpoints(endpoint, within_s=within_s))

    def exchange(self, name: str) -> SyncExchange:
        """The exchange called `name`, in the client's namespace, to publish on and to subscribe to.
        Nothing is asked of the cluster yet.
        """
        return SyncExchange(self._hold, lambda client: client.exchange(name))


def connect_sync(
    url: str | None = None,
    *,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    request_timeout_s: float = REQUEST_TIMEOUT_S,
    ports: ClientPorts | None = None,
) -> SyncClient:
    """A blocking client, for `with hadron.connect_sync() as client` or for use as it is, such as
    in a module; `SyncClient` tells of its life.

    Args:
        url: `hadron://[token@]host1,host2[/namespace][?cluster=NAME]`; any nodes of the cluster.
            With `grpc://`, their doors for gRPC, where nothing else gets through (the extra
            `grpc`). None looks it up as commands do: `HADRON_URL`, the context of `HADRON_CONTEXT`
            or the current one, the cluster in this directory, `hadron://127.0.0.1:7000`.
        connect_timeout_s: how long opening it tries to reach a node.
        request_timeout_s: how long one question is retried.
        ports: clock, randomness and network, for tests.

    Raises `RequestError` for a malformed URL; opening raises `PeerError` when nobody answers.
    """
    return SyncClient(
        partial(
            connect,
            url,
            connect_timeout_s=connect_timeout_s,
            request_timeout_s=request_timeout_s,
            ports=ports,
        )
    )
