"""The blocking client: the async one on an event loop in a thread of its own.

The same names; context managers become `with`, async iterators become iterators. What crosses
threads costs about 100 µs a hop, so records, deliveries and acks cross in groups.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Generic, Literal, NoReturn, TypeVar

from hadron.client import producing, reading, stages, subscribing
from hadron.client.client import CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S, Client, connect
from hadron.client.failover import Failover
from hadron.client.groups import GroupReset
from hadron.client.holding import Hold, Lazy
from hadron.client.opening import Opening
from hadron.client.portal import Portal
from hadron.client.ports import ClientPorts
from hadron.client.producer import Producer
from hadron.client.publishing import Ending, after_block
from hadron.client.reader import Span, SpanReader
from hadron.client.records import Serializer
from hadron.client.results import Applied, Fetched, PartitionOffsets
from hadron.client.slicing import slice_batch
from hadron.client.stages import StageRun
from hadron.client.subscription import Subscription
from hadron.client.sync_consumer import SyncSubscription
from hadron.client.sync_producer import SyncProducer
from hadron.model.batch import RecordBatch
from hadron.model.documents.reading import Declared
from hadron.model.errors import ClosedError, ForkedError, RequestError
from hadron.model.ids import Ballot
from hadron.model.record import Deserializer, Record
from hadron.model.schema import SchemaObject
from hadron.wire.messages import cluster_pb2, groups_pb2, pipelines_pb2

T = TypeVar("T")


class _Invocations:
    """What is open of a blocking stage run."""

    def __init__(self, portal: Portal, run: StageRun) -> None:
        self._portal = portal
        self._run = run

    def grant(self, count: int) -> None:
        self._portal.call(self._run.grant, count)

    def next(self) -> pipelines_pb2.Invocations | None:
        try:
            return self._portal.call(self._next)  # type: ignore[no-any-return]
        except ForkedError:
            raise
        except ClosedError:
            return None

    async def _next(self) -> pipelines_pb2.Invocations | None:
        async for invocations in self._run:
            return invocations
        return None

    def __str__(self) -> str:
        return str(self._run)

    def finish(self, _ending: Ending) -> None:
        with suppress(ClosedError):
            self._portal.call(self._run.__aexit__, None, None, None)

    def forked(self) -> None:
        """In a child process: the calls refuse by themselves."""


class SyncStageRun:
    """Ready invocations of a pipeline; iterate it, and `grant` when a micro-batch is done. The
    loop ends when the run or the client is closed, by whatever thread."""

    def __init__(
        self, hold: Hold, opening: Callable[[Client], Opening[StageRun]], about: str
    ) -> None:
        async def make(portal: Portal, client: Client) -> _Invocations:
            return _Invocations(portal, await opening(client).__aenter__())

        self._lazy = Lazy(hold, "run", about, make, survives_fork=False)

    def __repr__(self) -> str:
        return f"<SyncStageRun {self._lazy}>"

    def grant(self, count: int = 1) -> None:
        """Ask for `count` more micro-batches."""
        self._lazy.get().grant(count)

    def close(self) -> None:
        """Take no more; what waits here goes to other runners."""
        self._lazy.close()

    def __iter__(self) -> SyncStageRun:
        return self

    def __next__(self) -> pipelines_pb2.Invocations:
        run = None if self._lazy.is_closed else self._lazy.get()
        invocations = run.next() if run is not None else None
        if invocations is None:
            raise StopIteration
        return invocations

    def __enter__(self) -> SyncStageRun:
        self._lazy.get()
        return self

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        self._lazy.leave(error)


class SyncReader(Generic[T]):
    """An iterator over what a read gives; `close` ends it, from any thread. After an error, also
    Ctrl-C, it goes on where it was."""

    def __init__(
        self, portal: Portal, spans: SpanReader, follow: bool,
        items: Callable[[Span], Iterable[T]],
    ) -> None:
        self._portal = portal
        self._spans = spans
        self._follow = follow
        self._read_from = items
        self._items: Iterator[T] = iter(())

    def __repr__(self) -> str:
        return f"<SyncReader of {self._spans}>"

    def _next_span(self) -> Span | None:
        try:
            return self._portal.call(self._spans.next_span)  # type: ignore[no-any-return]
        except ForkedError:
            raise
        except ClosedError:
            # What never ends by itself ends when the client is closed.
            if self._follow:
                return None
            raise

    def __iter__(self) -> SyncReader[T]:
        return self

    def __next__(self) -> T:
        # Not a generator, which Ctrl-C ends for good: the next call would be a normal end.
        for item in self._items:
            return item
        span = self._next_span()
        if span is None:
            raise StopIteration
        self._items = iter(self._read_from(span))
        return next(self._items)

    def __enter__(self) -> SyncReader[T]:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading; not needed when a loop is just left."""
        self._items = iter(())
        with suppress(ClosedError):
            self._portal.call(self._spans.close)


class SyncClient:
    """A connection to a cluster; made by `hadron.connect_sync`.

    Use it in a `with` block, or keep it in a module: it connects at its first use (or `open`), and
    is closed by `close` or when the program ends, which flushes its producers for 10 s, or until
    Ctrl-C, and logs what could not be sent. It may be used from several threads, and closed by any.
    After `fork()` the child's client and producers connect anew; its subscriptions raise
    `ForkedError`. Arguments, answers and errors are those of the methods of the same names of
    `hadron.client.Client`.
    """

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._hold = Hold(connect)
        self.namespace = self._hold.template.namespace

    def __repr__(self) -> str:
        return f"<SyncClient of {self._hold}>"

    def open(self) -> SyncClient:
        """Connect now, also after `close`. Raises `PeerError` when nobody answers."""
        self._hold.open()
        return self

    def close(self, timeout_s: float | None = None) -> None:
        """Close what is open of it (producers flush, for `timeout_s` at most), then the client; a
        second time does nothing. A signal's handler may call it, and Ctrl-C ends it: what was not
        sent is logged then. Loops over subscriptions and over streams that are followed end;
        what else other threads wait for raises `ClosedError`.

        Raises the first failure to publish that nobody has seen.
        """
        self._hold.close(Ending(timeout_s))

    def __enter__(self) -> SyncClient:
        return self.open()

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        self._hold.close(after_block(error))

    async def __aenter__(self) -> NoReturn:
        raise RequestError(
            "`async with` does not open a blocking client",
            "write `with`, or take the other one: `async with hadron.connect(...)`",
        )

    async def __aexit__(self, *exc_info: object) -> None:
        """Never reached; without it Python speaks of this method only."""

    # --- producing and consuming ----------------------------------------------------------------

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
        batch_bytes: int = producing.DEFAULT_BATCH_BYTES,
        linger_ms: float = producing.DEFAULT_LINGER_MS,
        max_buffer_bytes: int = producing.DEFAULT_MAX_BUFFER_BYTES,
        delivery_timeout_s: float = producing.DEFAULT_DELIVERY_TIMEOUT_S,
        value_serializer: Serializer | None = None,
    ) -> SyncProducer:
        """A producer, for `with client.producer(...) as producer` or for use as it is; see
        `Client.producer`."""

        def opening(client: Client) -> Opening[Producer]:
            return client.producer(
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
            )

        # What cannot be is refused here, and not at the first use.
        about = opening(self._hold.template).about
        return SyncProducer(self._hold, opening, about)

    def subscribe(
        self,
        stream: str,
        *,
        group: str,
        start: Literal["earliest", "latest"] | int | datetime = "earliest",
        partitions: str | Sequence[str] | None = None,
        max_in_flight: int = subscribing.DEFAULT_MAX_IN_FLIGHT,
        batch_size: int | None = None,
        batch_wait_s: float = 0.0,
        order: subscribing.Order | None = None,
        ack_deadline_s: float | None = None,
        max_attempts: int | None = None,
        dead_letter: str | None = None,
        ephemeral: bool | None = None,
        heartbeat_s: float = subscribing.DEFAULT_HEARTBEAT_S,
        heartbeat_misses: int = subscribing.DEFAULT_HEARTBEAT_MISSES,
        member: str = "",
        value_deserializer: Deserializer | None = None,
    ) -> SyncSubscription:
        """A member of a group, for `with client.subscribe(...) as subscription` or for use as it
        is; see `Client.subscribe`.

        Heartbeats are sent by the client's own thread, however long a handler takes.
        """

        def opening(client: Client) -> Opening[Subscription]:
            return client.subscribe(
                stream, group=group, start=start, partitions=partitions,
                max_in_flight=max_in_flight, batch_size=batch_size, batch_wait_s=batch_wait_s,
                order=order, ack_deadline_s=ack_deadline_s, max_attempts=max_attempts,
                dead_letter=dead_letter, ephemeral=ephemeral, heartbeat_s=heartbeat_s,
                heartbeat_misses=heartbeat_misses, member=member,
                value_deserializer=value_deserializer,
            )

        about = opening(self._hold.template).about
        return SyncSubscription(self._hold, opening, about)

    # --- reading --------------------------------------------------------------------------------

    def read(
        self,
        stream: str,
        *,
        partition: str | None = None,
        start: Literal["earliest", "latest"] | int | datetime = "earliest",
        offset: int | Literal["earliest", "latest"] | None = None,
        limit: int | None = None,
        follow: bool = False,
        value_deserializer: Deserializer | None = None,
    ) -> SyncReader[Record]:
        """Records in order; see `Client.read`."""
        portal, client = self._hold.get()
        reader = client.read(
            stream, partition=partition, start=start, offset=offset, limit=limit, follow=follow,
            value_deserializer=value_deserializer,
        )
        return SyncReader(
            portal, reader.spans, follow, lambda span: span.batch.records(span.start, span.stop)
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
        value_deserializer: Deserializer | None = None,
    ) -> SyncReader[RecordBatch]:
        """Like `read`, a batch at a time; see `Client.read_batches`."""
        portal, client = self._hold.get()
        reader = client.read(
            stream, partition=partition, start=start, offset=offset, limit=limit, follow=follow,
            value_deserializer=value_deserializer,
        )
        return SyncReader(
            portal, reader.spans, follow,
            lambda span: (slice_batch(span.batch, span.start, span.stop),),
        )

    def fetch(
        self,
        stream: str,
        partition: str,
        offset: int,
        *,
        max_bytes: int = reading.FETCH_BYTES,
        max_wait_ms: int = 0,
        stream_id: int | None = None,
        after: Ballot | None = None,
    ) -> Fetched:
        """See `Client.fetch`."""
        return self._call(
            lambda client: client.fetch(
                stream, partition, offset, max_bytes=max_bytes,
                max_wait_ms=max_wait_ms, stream_id=stream_id, after=after,
            )
        )

    def offsets(
        self, stream: str, *, partition: str | None = None, at_ms: int | datetime | None = None,
        before: int | None = None,
    ) -> list[PartitionOffsets]:
        """See `Client.offsets`."""
        return self._call(
            lambda client: client.offsets(stream, partition=partition, at_ms=at_ms, before=before)
        )

    # --- schema and cluster ---------------------------------------------------------------------

    def create_stream(
        self,
        name: str,
        *,
        partitions: str | Sequence[str] | None = None,
        retention: Mapping[str, str] | None = None,
        description: str = "",
    ) -> SchemaObject:
        """See `Client.create_stream`."""
        return self._call(
            lambda client: client.create_stream(
                name, partitions=partitions, retention=retention, description=description
            )
        )

    def apply(
        self,
        objects: Declared,
        *,
        dry_run: bool = False,
        allow_destructive: bool = False,
    ) -> Applied:
        """See `Client.apply`."""
        return self._call(
            lambda client: client.apply(
                objects, dry_run=dry_run, allow_destructive=allow_destructive
            )
        )

    def delete(
        self,
        names: Sequence[tuple[str, str, str]],
        *,
        dry_run: bool = False,
        allow_destructive: bool = False,
    ) -> list[SchemaObject]:
        """See `Client.delete`."""
        return self._call(
            lambda client: client.delete(
                names, dry_run=dry_run, allow_destructive=allow_destructive
            )
        )

    def objects(self, kind: str = "", namespace: str = "", name: str = "") -> list[SchemaObject]:
        """See `Client.objects`."""
        return self._call(lambda client: client.objects(kind, namespace, name))

    def stream(self, name: str) -> SchemaObject:
        """See `Client.stream`."""
        return self._call(lambda client: client.stream(name))

    def topology(self, address: str | None = None) -> cluster_pb2.TopologyResponse:
        """See `Client.topology`."""
        return self._call(lambda client: client.topology(address))

    def status(self, address: str | None = None) -> cluster_pb2.StatusResponse:
        """See `Client.status`."""
        return self._call(lambda client: client.status(address))

    def groups(
        self, stream: str = "", *, within_s: float | None = None
    ) -> list[groups_pb2.ListGroupsResponse.Group]:
        """See `Client.groups`."""
        return self._call(lambda client: client.groups(stream, within_s=within_s))

    def describe_group(
        self, stream: str, group: str, *, partitions: Sequence[str] = (),
        within_s: float | None = None,
    ) -> list[groups_pb2.DescribeGroupResponse]:
        """See `Client.describe_group`."""
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
        within_s: float | None = None,
    ) -> list[GroupReset]:
        """See `Client.reset_group`."""
        return self._call(
            lambda client: client.reset_group(
                stream, group, to, partitions=partitions, force=force, within_s=within_s
            )
        )

    def delete_group(
        self, stream: str, group: str, *, partitions: Sequence[str] = (), force: bool = False,
        within_s: float | None = None,
    ) -> list[str]:
        """See `Client.delete_group`."""
        return self._call(
            lambda client: client.delete_group(
                stream, group, partitions=partitions, force=force, within_s=within_s
            )
        )

    # --- pipelines ------------------------------------------------------------------------------

    def pipeline_progress(
        self, name: str = "", *, within_s: float | None = None
    ) -> list[pipelines_pb2.PipelineProgressResponse.Pipeline]:
        """See `Client.pipeline_progress`."""
        return self._call(lambda client: client.pipeline_progress(name, within_s=within_s))

    def instances(
        self, pipeline: str, *, status: str = "", after_id: int = 0, limit: int = 100
    ) -> list[pipelines_pb2.ListInstancesResponse.Instance]:
        """See `Client.instances`."""
        return self._call(
            lambda client: client.instances(pipeline, status=status, after_id=after_id, limit=limit)
        )

    def retry_instances(
        self,
        pipeline: str,
        instance_ids: Sequence[int] | None = None,
        *,
        on_progress: Callable[[int], None] | None = None,
    ) -> int:
        """See `Client.retry_instances`."""
        return self._call(
            lambda client: client.retry_instances(
                pipeline, instance_ids, on_progress=on_progress
            )
        )

    def run_stages(
        self,
        pipeline: str,
        *,
        engine: str = "spark",
        stages: Sequence[str] = (),
        max_batch: int = stages.DEFAULT_MAX_BATCH,
        credit: int = stages.DEFAULT_CREDIT,
    ) -> SyncStageRun:
        """`with client.run_stages(...) as run`; see `Client.run_stages`."""

        def opening(client: Client) -> Opening[StageRun]:
            return client.run_stages(
                pipeline, engine=engine, stages=stages, max_batch=max_batch, credit=credit
            )

        about = opening(self._hold.template).about
        return SyncStageRun(self._hold, opening, about)

    def complete_stages(
        self,
        pipeline_id: int,
        stage: str,
        instance_ids: Sequence[int],
        attempts: Sequence[int],
        created_ms: Sequence[int],
        batch: bytes | None,
        partition: str = "",
    ) -> pipelines_pb2.CompleteStagesResponse:
        """See `Client.complete_stages`."""
        return self._call(
            lambda client: client.complete_stages(
                pipeline_id, stage, instance_ids, attempts, created_ms, batch, partition
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
        """See `Client.fail_stages`."""
        self._call(
            lambda client: client.fail_stages(
                pipeline_id, stage, instance_ids, attempts, created_ms, reason
            )
        )

    def _call(self, function: Callable[[Client], Awaitable[T]]) -> T:
        portal, client = self._hold.get()
        return portal.call(function, client)  # type: ignore[no-any-return]


def connect_sync(
    url: str | None = None,
    *,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    request_timeout_s: float = REQUEST_TIMEOUT_S,
    ports: ClientPorts | None = None,
) -> SyncClient:
    """A blocking client, for `with hadron.connect_sync() as client` or for use as it is, such as in
    a module; see `connect` for the arguments, and `SyncClient` for its life."""
    return SyncClient(
        partial(
            connect,
            url,
            connect_timeout_s=connect_timeout_s,
            request_timeout_s=request_timeout_s,
            ports=ports,
        )
    )
