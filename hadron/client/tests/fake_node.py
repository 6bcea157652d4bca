"""A small, honest, in-memory node for the client's tests, on the real wire.

One node leads every partition. It keeps what a real one keeps (batches, producers' sequences,
groups' progress) and can be told to misbehave: cut connections, lose answers, refuse, stall.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from hadron.model.batch import BatchHead, read_head
from hadron.model.errors import (
    HadronError,
    LogTruncatedError,
    NotFoundError,
    OffsetOutOfRangeError,
    SequenceError,
)
from hadron.model.limits import PRODUCER_WINDOW, SUBSCRIPTION_BATCH_MEMORY
from hadron.model.pipelines import PipelineSpec, StageSpec
from hadron.model.record_batch import decode_batch
from hadron.model.schema import StreamSpec, spec_to_json
from hadron.wire.calls import AnyCall, Handler
from hadron.wire.connection import Connection
from hadron.wire.messages import (
    cluster_pb2,
    common_pb2,
    groups_pb2,
    method,
    pipelines_pb2,
    schema_pb2,
    streams_pb2,
)
from hadron.wire.sockets import SocketListener, SocketNetwork


class Partition:
    """One stream partition: the log and what dedupe remembers."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, BatchHead, bytes, int]] = []
        self.first_offset = 0
        self.next_offset = 0
        self.producers: dict[bytes, deque[tuple[int, int, int, int]]] = {}
        self.waiting: list[Callable[[], None]] = []
        self.incarnation = 1
        self.ahead_ms = 0
        """So far its clock is."""
        self.ballots: dict[int, common_pb2.Ballot] = {}

    def append(self, data: bytes) -> streams_pb2.ProduceResponse:
        head = read_head(data)
        known = self.producers.get(head.pid)
        if head.pid:
            for sequence, count, base, stamp in known or ():
                if (sequence, count) == (head.seq, head.n):
                    return streams_pb2.ProduceResponse(
                        base_offset=base, append_ms=stamp, duplicate=True
                    )
            expected = known[-1][0] + known[-1][1] if known else 0
            if head.seq != expected:
                raise SequenceError(f"sequence {head.seq} does not follow, expected {expected}")
        base, stamp = self.next_offset, time.time_ns() // 1_000_000 + self.ahead_ms
        self.batches.append((base, head, data, stamp))
        self.ballots[base] = common_pb2.Ballot(epoch=1, incarnation=self.incarnation)
        self.next_offset += head.n
        if head.pid:
            window = self.producers.setdefault(head.pid, deque(maxlen=PRODUCER_WINDOW))
            window.append((head.seq, head.n, base, stamp))
        waiting, self.waiting = self.waiting, []
        for wake in waiting:
            wake()
        return streams_pb2.ProduceResponse(base_offset=base, append_ms=stamp)

    def info(self, index: int, *, attached: bool = True) -> common_pb2.BatchInfo:
        base, head, data, stamp = self.batches[index]
        return common_pb2.BatchInfo(
            base_offset=base,
            count=head.n,
            append_ms=stamp,
            ballot=self.ballots[base],
            length=len(data) if attached else 0,
        )

    def ballot_before(self, offset: int) -> common_pb2.Ballot | None:
        if not self.first_offset < offset <= self.next_offset:
            return None
        return self.ballots[self.batches[self.index_of(offset - 1)][0]]

    def lose(self, offset: int) -> None:
        """A recovery drops what was appended from the start of a batch on; what is appended next
        is of another ballot."""
        self.batches = [batch for batch in self.batches if batch[0] < offset]
        self.next_offset = offset
        self.incarnation += 1

    def index_of(self, offset: int) -> int:
        low, high = 0, len(self.batches)
        while low < high:
            middle = (low + high) // 2
            base, head, _, _ = self.batches[middle]
            if base + head.n <= offset:
                low = middle + 1
            else:
                high = middle
        return low


class Group:
    """Progress of one group at one partition, and who holds what."""

    def __init__(self, partition: Partition, start: str) -> None:
        self.partition = partition
        starts = {"earliest": partition.first_offset, "latest": partition.next_offset}
        self.next_new = starts[start] if start in starts else int(start)
        self.floor = self.next_new
        self.acked: set[int] = set()
        self.again: list[tuple[int, int, int]] = []
        self.unheld: set[int] = set()
        """Delivered once, held by nobody, and not to be delivered again."""
        self.members: list[Member] = []
        self.deliveries = 0
        self.fence = (1, 0, 0)
        self.skipped = 0

    def reset(self, incarnation: int) -> None:
        """To the first offset, by a leader of that incarnation; nobody is here."""
        self.floor = self.next_new = self.partition.first_offset
        self.acked, self.again, self.unheld = set(), [], set()
        self.fence = 1, incarnation, self.deliveries

    def pump(self) -> None:
        for member in self.members:
            member.pump()

    def ack(self, first: int, last: int) -> None:
        self.acked.update(range(first, last + 1))
        while self.floor in self.acked:
            self.acked.discard(self.floor)
            self.floor += 1

    def ack_late(self, offsets: set[int]) -> bool:
        """Whether nobody held them."""
        waiting = {
            offset for first, last, _ in self.again for offset in range(first, last + 1)
        } | self.unheld
        if not offsets <= waiting:
            return False
        self.unheld -= offsets
        self.again = [
            (offset, offset, attempt)
            for first, last, attempt in self.again
            for offset in range(first, last + 1)
            if offset not in offsets
        ]
        self.ack(min(offsets), max(offsets))
        return True


class Member:
    """One Subscribe call."""

    def __init__(self, node: FakeNode, call: AnyCall) -> None:
        self.node = node
        self.call = call
        self.group: Group | None = None
        self.max_in_flight = 0
        self.batch_size = self.in_batch = 0
        self.held: dict[int, tuple[set[int], int]] = {}
        self.in_flight = 0
        self.memory: OrderedDict[int, None] = OrderedDict()
        call.on_message = self.received
        call.on_end = self.ended
        call.on_writable = self.pump

    def received(self, message: groups_pb2.SubscribeRequest, _: memoryview) -> None:
        kind = message.WhichOneof("kind")
        self.call.consumed(message.ByteSize())
        if kind == "open":
            self.open(message.open)
        elif kind == "ack":
            self.ack(message.ack)
        elif kind == "nack":
            for entry in message.nack.ranges:
                self.release(entry, message.nack)
            assert self.group is not None
            self.node.nacks.append(message.nack)
            self.group.pump()
        elif kind == "heartbeat":
            self.node.heartbeats += 1
            if self.node.answers_heartbeats:
                beat = groups_pb2.SubscribeEvent.Heartbeat()
                self.call.send(groups_pb2.SubscribeEvent(heartbeat=beat))
        elif kind == "flow":
            self.max_in_flight = message.flow.max_in_flight
        elif kind == "extend":
            self.node.extends.append(message.extend)

    def revoke(self, delivery: int, first: int, last: int) -> None:
        """As if the ack deadline of these had passed; nobody else takes them."""
        held, _ = self.held[delivery]
        held -= set(range(first, last + 1))
        self.in_flight -= last - first + 1
        assert self.group is not None
        self.group.unheld.update(range(first, last + 1))
        entry = groups_pb2.Range(delivery=delivery, first_offset=first, last_offset=last)
        revoked = groups_pb2.SubscribeEvent.Revoked(ranges=[entry], reason="ack deadline")
        self.call.send(groups_pb2.SubscribeEvent(revoked=revoked))

    def open(self, opening: groups_pb2.SubscribeRequest.Open) -> None:
        partition = self.node.partition(opening.stream, opening.partition)
        groups = self.node.groups
        key = (opening.stream, opening.partition, opening.group)
        self.node.openings.append(opening)
        if self.node.refuse_members is not None:
            raise self.node.refuse_members
        self.group = groups.setdefault(key, Group(partition, opening.start))
        self.batch_size = opening.batch_size
        self.group.members.append(self)
        self.max_in_flight = opening.max_in_flight
        opened = groups_pb2.SubscribeEvent.Opened(
            floor=self.group.floor,
            options=opening.options,
            ballot=common_pb2.Ballot(epoch=1, incarnation=self.node.incarnation),
            fence=groups_pb2.DeliveryToken(
                ballot=common_pb2.Ballot(
                    epoch=self.group.fence[0], incarnation=self.group.fence[1]
                ),
                delivery=self.group.fence[2],
            ),
            skipped=self.group.skipped,
        )
        self.call.send(groups_pb2.SubscribeEvent(opened=opened))
        self.pump()

    def ack(self, ack: groups_pb2.SubscribeRequest.Ack) -> None:
        assert self.group is not None
        refused = []
        for entry in ack.ranges:
            held, _ = self.held.get(entry.delivery, (set(), 0))
            wanted = set(range(entry.first_offset, entry.last_offset + 1))
            if wanted <= held:
                held -= wanted
                self.in_flight -= len(wanted)
                self.group.ack(entry.first_offset, entry.last_offset)
                if not held:
                    del self.held[entry.delivery]
            elif not (ack.HasField("ballot") and self.group.ack_late(wanted)):
                refused.append(entry)
        self.node.acks_received += 1
        if ack.confirmation:
            acked = groups_pb2.SubscribeEvent.Acked(
                confirmation=ack.confirmation, refused=refused, floor=self.group.floor
            )
            self.call.send(groups_pb2.SubscribeEvent(acked=acked))
        self.pump()

    def release(self, entry: groups_pb2.Range, nack: groups_pb2.SubscribeRequest.Nack) -> None:
        """What is to wait is not delivered again: no test lasts that long."""
        assert self.group is not None
        first, last = entry.first_offset, entry.last_offset
        held, attempt = self.held[entry.delivery]
        held -= set(range(first, last + 1))
        self.in_flight -= last - first + 1
        if nack.delay_ms:
            self.group.unheld.update(range(first, last + 1))
        else:
            self.group.again.append((first, last, attempt + (not nack.unseen)))

    def ended(self, _: HadronError | None) -> None:
        group = self.group
        if group is None or self not in group.members:
            return
        group.members.remove(self)
        for held, attempt in self.held.values():
            group.again.extend((offset, offset, attempt + 1) for offset in sorted(held))
        group.again.sort()
        group.pump()

    def pump(self) -> None:
        group = self.group
        if group is None:
            return
        while self.call.writable and self.in_flight < self.max_in_flight:
            room = self.max_in_flight - self.in_flight
            if self.batch_size:
                room = min(room, self.batch_size - self.in_batch)
            if group.again:
                first, last, attempt = group.again.pop(0)
                if last - first + 1 > room:
                    group.again.insert(0, (first + room, last, attempt))
                    last = first + room - 1
            else:
                first, attempt = group.next_new, 1
                if first >= group.partition.next_offset:
                    group.partition.waiting.append(self.pump)
                    return
                base, head, _, _ = group.partition.batches[group.partition.index_of(first)]
                last = min(base + head.n, first + room) - 1
                group.next_new = last + 1
            self.deliver(group, first, last, attempt)

    def deliver(self, group: Group, first: int, last: int, attempt: int) -> None:
        index = group.partition.index_of(first)
        base, _, data, _ = group.partition.batches[index]
        attach = base not in self.memory
        if attach:
            self.memory[base] = None
            if len(self.memory) > SUBSCRIPTION_BATCH_MEMORY:
                self.memory.popitem(last=False)
        group.deliveries += 1
        self.held[group.deliveries] = (set(range(first, last + 1)), attempt)
        self.in_flight += last - first + 1
        delivery = groups_pb2.SubscribeEvent.Delivery(
            delivery=group.deliveries,
            first_offset=first,
            last_offset=last,
            attempt=attempt,
            batch=group.partition.info(index, attached=attach),
            ends_batch=self._ends_batch(last - first + 1),
        )
        self.call.send(groups_pb2.SubscribeEvent(delivery=delivery), [data] if attach else [])

    def _ends_batch(self, count: int) -> bool:
        self.in_batch += count
        assert self.group is not None
        ends = bool(self.batch_size) and (
            self.in_batch >= self.batch_size
            or (self.group.next_new >= self.group.partition.next_offset and not self.group.again)
        )
        if ends:
            self.in_batch = 0
        return ends


class FakeNode:
    """See the module. `partitions` names replica sets; every stream is `streams`' partitions."""

    def __init__(
        self, *, partitions: tuple[str, ...] = ("local/p0",), streams: tuple[str, ...] = ("s",)
    ) -> None:
        self.cluster = "fake"
        self.owner = ""
        """Of the schema, where it is a set that nobody has heard of."""
        self.partition_names = partitions
        self.objects: dict[tuple[str, str], schema_pb2.SchemaObject] = {}
        for name in streams:
            self._store("Stream", name, StreamSpec(partitions=partitions))
        self._store(
            "Pipeline",
            "pipe",
            PipelineSpec(
                replica_set=partitions[0], input="s", stages=(StageSpec(name="a", run="m:f"),)
            ),
        )
        self.logs: dict[tuple[str, str], Partition] = {}
        self.groups: dict[tuple[str, str, str], Group] = {}
        self.connections: list[Connection] = []
        self.address = ""
        self.produce_calls = 0
        self.acks_received = 0
        self.incarnation = 1
        self.openings: list[groups_pb2.SubscribeRequest.Open] = []
        self.nacks: list[groups_pb2.SubscribeRequest.Nack] = []
        self.extends: list[groups_pb2.SubscribeRequest.Extend] = []
        self.heartbeats = 0
        self.answers_heartbeats = True
        self.refuse_members: HadronError | None = None
        self.completed: list[tuple[pipelines_pb2.CompleteStagesRequest, bytes]] = []
        self.begun: list[int] = []
        """Micro-batches that a runner has said to work on."""
        self.failed: list[pipelines_pb2.FailStagesRequest] = []
        self.retries: list[pipelines_pb2.RetryInstancesRequest] = []
        self.stage_calls: list[tuple[AnyCall, list[int]]] = []
        self.first_leader = self
        self.promoted: FakeNode | None = None
        """Who led in epoch 1, and who leads in epoch 2, as this node says."""
        # Ways to misbehave.
        self.refusals: deque[HadronError | None] = deque()
        """What the next Produce calls are refused with; None lets one through."""
        self.lose_answers = 0
        """So many Produce calls are logged, and the connection is cut instead of answering."""
        self.hold_answers = False
        self._held: list[Callable[[], None]] = []
        self.fetches = 0
        self.fetched_batches = 0
        self.most_fetch_bytes = 16 << 20

    def _store(self, kind: str, name: str, spec: Any) -> schema_pb2.SchemaObject:
        index = len(self.objects) + 1
        entry = schema_pb2.SchemaObject(
            kind=kind,
            namespace="default",
            name=name,
            spec_json=spec_to_json(spec).decode(),
            id=index,
            metadata_index=index,
        )
        self.objects[kind, name] = entry
        return entry

    def partition(self, stream: str, name: str) -> Partition:
        if ("Stream", stream) not in self.objects or name not in self.partition_names:
            raise NotFoundError(f"no partition {stream}/{name}")
        return self.logs.setdefault((stream, name), Partition())

    def values(self, stream: str = "s", name: str | None = None) -> list[bytes]:
        """Every logged value in order, as stored."""
        log = self.partition(stream, name or self.partition_names[0])
        return [
            value for _, _, data, _ in log.batches for value in decode_batch(data).value_bytes()
        ]

    # --- misbehaving ----------------------------------------------------------------------------

    def cut(self) -> None:
        """Drop every connection at once."""
        connections, self.connections = self.connections, []
        for connection in connections:
            connection.close()

    def release_answers(self) -> None:
        self.hold_answers = False
        held, self._held = self._held, []
        for answer in held:
            answer()

    # --- serving --------------------------------------------------------------------------------

    @asynccontextmanager
    async def listen(self, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
        """Serve until the block is left; gives the client's URL."""
        listener = await SocketNetwork().listen(address)
        self.address = listener.address
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._accept, listener, tasks)
            try:
                yield f"hadron://{self.address}"
            finally:
                tasks.cancel_scope.cancel()
                listener.close()
                self.cut()

    async def _accept(self, listener: SocketListener, tasks: anyio.abc.TaskGroup) -> None:
        while True:
            transport = await listener.accept()
            connection = Connection(transport, dialed=False, handlers=self.handlers())
            self.connections.append(connection)
            tasks.start_soon(connection.run)

    def handlers(self) -> dict[int, Handler]:
        names: dict[str, Callable[..., None]] = {
            "Produce": self.on_produce,
            "Fetch": self.on_fetch,
            "Offsets": self.on_offsets,
            "Subscribe": self.on_subscribe,
            "ListGroups": self.on_groups,
            "ApplySchema": self.on_apply,
            "GetObjects": self.on_objects,
            "Topology": self.on_topology,
            "Status": self.on_status,
            "RunStages": self.on_run_stages,
            "CompleteStages": self.on_complete,
            "FailStages": self.on_fail,
            "ListInstances": self.on_instances,
            "PipelineProgress": self.on_progress,
            "RetryInstances": self.on_retry,
        }
        return {method(name).number: handler for name, handler in names.items()}

    def on_produce(
        self, call: AnyCall, request: streams_pb2.ProduceRequest, data: memoryview
    ) -> None:
        self.produce_calls += 1
        if self.refusals:
            refusal = self.refusals.popleft()
            if refusal is not None:
                raise refusal
        log = self.partition(request.stream, request.partition)
        self._check_id(request)
        answer = log.append(bytes(data))
        if self.lose_answers:
            self.lose_answers -= 1
            if not self.lose_answers:
                self.cut()
        elif self.hold_answers:
            self._held.append(lambda: call.send(answer, end=True))
        else:
            call.send(answer, end=True)

    def on_fetch(self, call: AnyCall, request: streams_pb2.FetchRequest, _: memoryview) -> None:
        self.fetches += 1
        log = self.partition(request.stream, request.partition)
        self._check_id(request)
        if request.HasField("after"):
            ballot = log.ballot_before(request.offset)
            if request.offset > log.next_offset or ballot not in (None, request.after):
                raise LogTruncatedError(f"the log lost the record before {request.offset}")
        if not log.first_offset <= request.offset <= log.next_offset:
            raise OffsetOutOfRangeError(f"offset {request.offset} is out of range")
        if request.exists and request.offset == log.next_offset:
            raise OffsetOutOfRangeError(f"the log lost the record at {request.offset}")
        if request.offset == log.next_offset and request.max_wait_ms:
            call.spawn(self._wait_records, call, request, log)
        else:
            self._answer_fetch(call, request, log)

    async def _wait_records(
        self, call: AnyCall, request: streams_pb2.FetchRequest, log: Partition
    ) -> None:
        event = anyio.Event()
        log.waiting.append(event.set)
        with anyio.move_on_after(request.max_wait_ms / 1000):
            await event.wait()
        self._answer_fetch(call, request, log)

    def _answer_fetch(
        self, call: AnyCall, request: streams_pb2.FetchRequest, log: Partition
    ) -> None:
        answer = streams_pb2.FetchResponse(
            first_offset=log.first_offset, next_offset=log.next_offset
        )
        chunks: list[bytes] = []
        size = 0
        for index in range(log.index_of(request.offset), len(log.batches)):
            data = log.batches[index][2]
            if chunks and size + len(data) > min(request.max_bytes, self.most_fetch_bytes):
                break
            answer.batches.append(log.info(index))
            chunks.append(data)
            self.fetched_batches += 1
            size += len(data)
        call.send(answer, chunks, end=True)

    def on_offsets(self, call: AnyCall, request: streams_pb2.OffsetsRequest, _: memoryview) -> None:
        answer = streams_pb2.OffsetsResponse()
        for name in [request.partition] if request.partition else self.partition_names:
            log = self.partition(request.stream, name)
            self._check_id(request)
            later = (base for base, _, _, ms in log.batches if ms >= request.at_ms)
            at = next(later, log.next_offset)
            answer.partitions.add(
                partition=name,
                first_offset=log.first_offset,
                next_offset=log.next_offset,
                at_offset=at if request.at_ms else 0,
                ballot=log.ballot_before(
                    request.before if request.HasField("before") else log.next_offset
                ),
            )
        call.send(answer, end=True)

    def _check_id(
        self,
        request: streams_pb2.ProduceRequest | streams_pb2.FetchRequest | streams_pb2.OffsetsRequest,
    ) -> None:
        if request.stream_id not in (0, self.objects["Stream", request.stream].id):
            raise NotFoundError(f"no stream has the id {request.stream_id}")

    def on_subscribe(
        self, call: AnyCall, request: groups_pb2.SubscribeRequest, attachment: memoryview
    ) -> None:
        Member(self, call).received(request, attachment)

    def on_groups(
        self, call: AnyCall, request: groups_pb2.ListGroupsRequest, _: memoryview
    ) -> None:
        answer = groups_pb2.ListGroupsResponse()
        for (stream, partition, name), group in self.groups.items():
            if request.stream in ("", stream):
                answer.groups.add(
                    namespace="default",
                    stream=stream,
                    partition=partition,
                    group=name,
                    floor=group.floor,
                    next_offset=group.partition.next_offset,
                    members=len(group.members),
                )
        call.send(answer, end=True)

    def on_apply(
        self, call: AnyCall, request: schema_pb2.ApplySchemaRequest, _: memoryview
    ) -> None:
        answer = schema_pb2.ApplySchemaResponse(metadata_index=len(self.objects))
        for entry in request.objects:
            known = self.objects.get((entry.kind, entry.name))
            change = answer.changes.add(action="unchanged" if known else "created")
            if known:
                change.before.CopyFrom(known)
            elif not request.dry_run:
                entry.id = entry.metadata_index = len(self.objects) + 1
                self.objects[entry.kind, entry.name] = entry
            change.after.CopyFrom(known or entry)
        call.send(answer, end=True)

    def on_objects(
        self, call: AnyCall, request: schema_pb2.GetObjectsRequest, _: memoryview
    ) -> None:
        found = [
            entry
            for entry in self.objects.values()
            if request.kind in ("", entry.kind)
            and request.namespace in ("", entry.namespace)
            and request.name in ("", entry.name)
        ]
        answer = schema_pb2.GetObjectsResponse(objects=found, metadata_index=len(self.objects))
        call.send(answer, end=True)

    def on_topology(self, call: AnyCall, _: Any, __: memoryview) -> None:
        promoted, first = self.promoted, self.first_leader.address
        nodes = [
            cluster_pb2.Node(name="n1", role="replica" if promoted else "leader", address=first)
        ]
        if promoted is not None:
            nodes.append(cluster_pb2.Node(name="n2", role="leader", address=promoted.address))
        sets = [
            cluster_pb2.ReplicaSet(name=name, epoch=2 if promoted else 1, nodes=nodes, agreed=True)
            for name in self.partition_names
        ]
        answer = cluster_pb2.TopologyResponse(
            cluster=self.cluster,
            node="n1",
            replica_set=self.partition_names[0],
            replica_sets=sets,
            metadata=self.owner or self.partition_names[0],
        )
        call.send(answer, end=True)

    def on_status(self, call: AnyCall, _: Any, __: memoryview) -> None:
        call.send(cluster_pb2.StatusResponse(node="n1", state="serving"), end=True)

    # --- pipelines ------------------------------------------------------------------------------

    def on_run_stages(
        self, call: AnyCall, request: pipelines_pb2.RunStagesRequest, _: memoryview
    ) -> None:
        credit = [request.credit]
        self.stage_calls.append((call, credit))

        def more(again: pipelines_pb2.RunStagesRequest, _: memoryview) -> None:
            credit[0] += again.credit
            self.begun += again.begun

        call.on_message = more
        call.on_end = lambda _: self.stage_calls.remove((call, credit))

    def invoke(self, instance_id: int) -> None:
        """Hand one ready invocation to the runner."""
        call, credit = self.stage_calls[0]
        assert credit[0] > 0, "the runner gave no credit"
        credit[0] -= 1
        invocation = pipelines_pb2.Invocation(instance_id=instance_id, attempt=1)
        call.send(
            pipelines_pb2.Invocations(
                stage="a", pipeline_id=2, invocations=[invocation], number=instance_id + 100
            )
        )

    def on_complete(
        self, call: AnyCall, request: pipelines_pb2.CompleteStagesRequest, batch: memoryview
    ) -> None:
        self.completed.append((request, bytes(batch)))
        call.send(pipelines_pb2.CompleteStagesResponse(base_offset=7), end=True)

    def on_fail(
        self, call: AnyCall, request: pipelines_pb2.FailStagesRequest, _: memoryview
    ) -> None:
        self.failed.append(request)
        call.send(common_pb2.Empty(), end=True)

    def on_instances(
        self, call: AnyCall, request: pipelines_pb2.ListInstancesRequest, _: memoryview
    ) -> None:
        answer = pipelines_pb2.ListInstancesResponse()
        answer.instances.add(id=request.after_id + 1, status=request.status or "live")
        call.send(answer, end=True)

    def on_retry(
        self, call: AnyCall, request: pipelines_pb2.RetryInstancesRequest, _: memoryview
    ) -> None:
        """Of its failed instances, 1 to 2,500, the slice that is asked for."""
        self.retries.append(request)
        ids = list(request.instance_ids) or range(
            request.after_id + 1, min(request.after_id + 1_000, 2_500) + 1
        )
        call.send(
            pipelines_pb2.RetryInstancesResponse(
                retried=len(ids),
                after_id=ids[-1],
                more=not request.instance_ids and ids[-1] < 2_500,
            ),
            end=True,
        )

    def on_progress(
        self, call: AnyCall, _: pipelines_pb2.PipelineProgressRequest, __: memoryview
    ) -> None:
        answer = pipelines_pb2.PipelineProgressResponse()
        answer.pipelines.add(namespace="default", name="pipe", id=2, instances=3)
        call.send(answer, end=True)
