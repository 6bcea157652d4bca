"""The client: one object per cluster, from which producers, readers and members are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

from hadron.client.connecting.background import Background
from hadron.client.connecting.contexts import find_server
from hadron.client.connecting.nodes import Nodes
from hadron.client.connecting.ports import ClientPorts, ports_of
from hadron.client.connecting.session import Session
from hadron.client.connecting.url import Endpoint, endpoint_of
from hadron.client.consuming.assembly import open_subscription
from hadron.client.consuming.groups import GroupCalls, GroupReset
from hadron.client.consuming.settings import (
    DEFAULT_HEARTBEAT_MISSES,
    DEFAULT_HEARTBEAT_S,
    DEFAULT_MAX_IN_FLIGHT,
    MemberSettings,
    Order,
)
from hadron.client.consuming.subscription import Subscription
from hadron.client.endpoints.methods import EndpointMethods
from hadron.client.exchanges.methods import ExchangeMethods
from hadron.client.handling.methods import HandlingMethods
from hadron.client.pipelines.calls import PipelineCalls
from hadron.client.pipelines.methods import PipelineMethods
from hadron.client.producing.assembly import open_producer
from hadron.client.producing.failover import Failover
from hadron.client.producing.new_records import Serializer
from hadron.client.producing.once import OnceCalls, OnceMethods
from hadron.client.producing.producer import Producer
from hadron.client.producing.settings import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_DELIVERY_TIMEOUT_S,
    DEFAULT_LINGER_MS,
    DEFAULT_MAX_BUFFER_BYTES,
    ProducerSettings,
)
from hadron.client.producing.standing import StandingProducers
from hadron.client.reading.calls import ReadCalls
from hadron.client.reading.methods import ReadMethods
from hadron.client.schema.catalog import Catalog
from hadron.client.schema.declarations import Declarations
from hadron.client.sinks.offered import SinkMethods
from hadron.client.terms.arguments import ObjectName, names_of, retention_of, seconds_of, text_of
from hadron.client.terms.opening import AsyncOnly, EnteredOnce, Opening
from hadron.client.terms.results import Applied, Receipt
from hadron.client.transactions.offered import TransactionMethods
from hadron.model.documents.reading import Declared
from hadron.model.record import Deserializer, Headers
from hadron.model.schema import SchemaObject
from hadron.wire.messages import cluster_pb2, groups_pb2

CONNECT_TIMEOUT_S: Final = 10.0
"""A node needs a second or two to start; a mistyped address should not take a minute."""

REQUEST_TIMEOUT_S: Final = 30.0
"""For one question, with all its retries: longer than a leader's restart."""


class Client(
    OnceMethods,
    TransactionMethods,
    SinkMethods,
    HandlingMethods,
    ReadMethods,
    PipelineMethods,
    EndpointMethods,
    ExchangeMethods,
    EnteredOnce,
    AsyncOnly,
):
    """A connection to a cluster; use it as `async with hadron.connect(url) as client`.

    Belongs to the event loop it was opened in. Every call raises `ClosedError` before the block
    was entered and once it has been left, `PeerError` when the cluster does not answer in time, and
    `NotFoundError` for names that do not exist.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        delivery_timeout_s: float = DEFAULT_DELIVERY_TIMEOUT_S,  # of what `publish` sends
        ports: ClientPorts | None = None,
    ) -> None:
        self.namespace = endpoint.namespace
        self._connect_timeout_s = seconds_of("connect_timeout_s", connect_timeout_s, 0)
        self._background = Background()
        self._session = Session(
            endpoint, ports or ClientPorts(), self._background, request_timeout_s=request_timeout_s
        )
        self._background.on_crash = self._session.close
        self._nodes = Nodes(self._session, self._connect_timeout_s)
        self._catalog = Catalog(self._session)
        self._declarations = Declarations(self._session, self._catalog)
        self._reading = ReadCalls(self._session, self._catalog)
        self._standing = StandingProducers(self._session, self._catalog, delivery_timeout_s)
        self._once = OnceCalls(self._session, self._catalog, self._reading)
        self._pipelines = PipelineCalls(self._session, self._catalog)
        self._groups = GroupCalls(self._session, self._catalog)
        self._transactions = self._make_transactions(self._session, self._catalog)

    def __repr__(self) -> str:
        return f"<Client of {self._session}>"

    async def __aenter__(self) -> Client:
        self._enter("client")
        await self._background.__aenter__()
        try:
            await self._session.start(self._connect_timeout_s)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._session.close()
        await self._background.__aexit__()

    async def close(self) -> None:
        """Close every connection; a second time does nothing. Loops over subscriptions and over
        streams that are followed end; what else is under way fails with `ClosedError`."""
        self._session.close()

    # --- producing ------------------------------------------------------------------------------

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
    ) -> Opening[Producer]:
        """A producer, for use as `async with client.producer(...) as producer`.

        Args:
            acks: what a receipt promises: on the leader's disk, a majority's, or all.
            partition: a replica set's name, for all records, wherever it is.
            region: only partitions whose names begin with it, up to a `/` or `.`, such as
                `aws.us-east-1`: records never leave it.
            partitioner: "key" sends equal keys to one partition (`xxh3_64(key) % partitions`, see
                `producing.partitioner`) and records without one round robin, a batch at a time;
                "round_robin" does so with all.
            failover: what happens to records whose partition is away; what order they keep then,
                `Producer` says. "unkeyed": those without a key go to another one at once, those
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
            name: of a task, such as "billing-3", for one process at a time: once this one is open,
                one that was opened before gets `ProducerFencedError`. It has to be claimed at all
                partitions that the producer may use, so opening waits for their leaders. Records
                stay in their partitions, and may have a `sequence`, by which those that an earlier
                process has logged are known: `last_sequence` says where to go on.
        """
        settings = ProducerSettings(
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
        ).checked()
        stream = text_of("stream", stream)
        return Opening(
            lambda: open_producer(self._session, self._catalog, stream, settings),
            "producer",
            "producer",
            f"of {stream!r}",
        )

    async def send(
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
        for the stream. Arguments and errors are those of `Producer.send`.

        Args:
            expect_offset: log the record at this offset of its partition, or not at all: what has
                come before it is all known.
            expect_key_offset: log it when the latest record with its key is at this offset (-1:
                there is none), or not at all; of a stream declared with `keys: indexed`.

        Raises `OffsetMismatchError`, with `.actual`, when that is not so, and it is not in the log.
        """
        return await self._standing.send(
            text_of("stream", stream),
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

    # --- consuming ------------------------------------------------------------------------------

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
    ) -> Opening[Subscription]:
        """A member of a group, for use as `async with client.subscribe(...) as subscription`.

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
        """
        settings = MemberSettings(
            group=group,
            start=start,
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
        ).checked()
        stream = text_of("stream", stream)
        wanted = names_of("partitions", partitions)
        return Opening(
            lambda: open_subscription(self._transactions, stream, wanted, settings),
            "subscription",
            "subscribe",
            f"to {stream!r}, group {group!r}",
        )

    # --- schema ---------------------------------------------------------------------------------

    async def create_stream(
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
        fields = {
            "partitions": partitions,
            "retention": retention_of(retention, max_age, max_bytes),
            "description": description,
            "keys": keys,
        }
        return await self._declarations.create("Stream", name, fields, where="partitions")

    async def create_endpoint(
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
        fields = {
            "replica_set": replica_set,
            "input": input,
            "output": output,
            "idempotent": idempotent,
            "hedge_after": hedge_after,
            "max_waiting": max_waiting,
            "description": description,
        }
        return await self._declarations.create("Endpoint", name, fields, where="replica_set")

    async def create_exchange(
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
        fields = {
            "replica_set": replica_set,
            "from_stream": from_stream,
            "topic": topic,
            "to_stream": to_stream,
            "description": description,
        }
        return await self._declarations.create("Exchange", name, fields, where="replica_set")

    async def apply(
        self, objects: Declared, *, dry_run: bool = False, allow_destructive: bool = False
    ) -> Applied:
        """Declare objects: all of them or, with `SchemaError`, none. Repeated, changes nothing.

        Args:
            objects: YAML text of one or more documents, the `Path` of such a file, a mapping with
                a document's keys, a `SchemaObject`, or several of these.
        """
        return await self._declarations.apply(
            objects, dry_run=dry_run, allow_destructive=allow_destructive
        )

    async def delete(
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
        return await self._declarations.delete(
            names, dry_run=dry_run, allow_destructive=allow_destructive
        )

    async def objects(
        self, kind: str = "", namespace: str = "", name: str = ""
    ) -> list[SchemaObject]:
        """Declared objects; "" means any. `NotFoundError`: there is no such namespace."""
        return await self._declarations.find(kind, namespace, name)

    async def stream(self, name: str) -> SchemaObject:
        """The stream called `name` in the client's namespace, looked up once."""
        return await self._catalog.stream(name)

    # --- the cluster ----------------------------------------------------------------------------

    async def topology(self, address: str | None = None) -> cluster_pb2.TopologyResponse:
        """Replica sets, their nodes and who leads, as some node, or the one at `address`, sees it
        now. While a configuration is being changed nodes differ: the higher epoch is right."""
        return await self._nodes.topology(address)

    async def status(self, address: str | None = None) -> cluster_pb2.StatusResponse:
        """How the node at `address` is; None asks any node. One try: raises `PeerError`."""
        return await self._nodes.status(address)

    async def groups(
        self, stream: str = "", *, within_s: float | None = None
    ) -> list[groups_pb2.ListGroupsResponse.Group]:
        """Consumer groups and their progress, per partition; "" is all streams.

        All leaders are asked at once, for `within_s` (None: the client's `request_timeout_s`).
        Raises `IncompleteError`, with the groups of the others, when some did not answer.
        """
        return await self._groups.listing(stream, within_s)

    async def describe_group(
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
        return await self._groups.describe(stream, group, partitions, within_s)

    async def reset_group(
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
        return await self._groups.reset(
            stream, group, to, partitions, within_s, force=force, create=create
        )

    async def delete_group(
        self,
        stream: str,
        group: str,
        *,
        partitions: Sequence[str] = (),
        force: bool = False,
        within_s: float | None = None,
    ) -> list[str]:
        """Forget a group at some partitions (() is all that know it); returns which.

        With `force` also while members are connected, who fail. Raises as `reset_group` does."""
        return await self._groups.delete(stream, group, partitions, within_s, force=force)


def nodes_of(client: Client) -> Nodes:
    """For commands and nodes, which ask single nodes for more than programs do."""
    return client._nodes


def connect(
    url: str | None = None,
    *,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    request_timeout_s: float = REQUEST_TIMEOUT_S,
    ports: ClientPorts | None = None,
) -> Client:
    """A client, for use as `async with hadron.connect(url) as client`, under trio or asyncio.

    Args:
        url: `hadron://[token@]host1,host2[/namespace][?cluster=NAME]`; any nodes of the cluster.
            With `grpc://`, their doors for gRPC, where nothing else gets through (the extra
            `grpc`). None looks it up as commands do: `HADRON_URL`, the context of `HADRON_CONTEXT`
            or the current one, the cluster in this directory, `hadron://127.0.0.1:7000`.
        connect_timeout_s: how long entering the block tries to reach a node.
        request_timeout_s: how long one question is retried.
        ports: clock, randomness and network, for tests.

    Raises `RequestError` for a malformed URL; entering raises `PeerError` when nobody answers.
    """
    endpoint = endpoint_of(find_server(url))
    return Client(
        endpoint,
        connect_timeout_s=connect_timeout_s,
        request_timeout_s=request_timeout_s,
        ports=ports or ports_of(endpoint),
    )
