"""An in-memory stand-in for the async client: streams, and one pipeline's ready invocations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio

from hadron.client.terms.results import Fetched, PartitionOffsets
from hadron.model.batch import StampedBatch
from hadron.model.batch_building import BatchBuilder
from hadron.model.errors import HadronError, OffsetOutOfRangeError
from hadron.model.ids import Ballot
from hadron.model.pipelines import Output, PipelineSpec, StageSpec
from hadron.model.record import NewRecord, Record
from hadron.model.record_batch import decode_batch
from hadron.model.schema import SchemaObject
from hadron.wire.messages import pipelines_pb2

PARTITION = "local/p0"
PIPELINE_ID = 7
VERSION = 3


def build(records: Sequence[NewRecord]) -> bytes:
    """One batch of these records."""
    builder = BatchBuilder()
    for record in records:
        builder.add(record, 1_000)
    return builder.build()


class FakePartition:
    """The batches of one partition, as a node keeps them."""

    def __init__(self) -> None:
        self.batches: list[StampedBatch] = []
        self.first_offset = 0
        self.ballot = Ballot(1, 1)

    @property
    def next_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    def append(self, data: bytes) -> int:
        """Stamp a batch; returns its base offset."""
        base = self.next_offset
        count = decode_batch(data).count
        self.batches.append(StampedBatch(base, count, 1_000, *self.ballot, data))
        return base

    def trim(self, first_offset: int) -> None:
        """Forget the batches before an offset."""
        self.first_offset = first_offset

    def lose(self, from_offset: int) -> None:
        """Forget the batches from an offset on, as a restored backup does."""
        self.batches = [each for each in self.batches if each.base_offset < from_offset]
        self.ballot = self.ballot.recovered()

    def ballot_before(self, offset: int) -> Ballot | None:
        if not self.first_offset < offset <= self.next_offset:
            return None
        found = next(each for each in self.batches if each.next_offset >= offset)
        return Ballot(found.epoch, found.incarnation)

    def fetch(self, offset: int, max_bytes: int, *, exists: bool = False) -> Fetched:
        if not self.first_offset <= offset <= self.next_offset - exists:
            raise OffsetOutOfRangeError(f"offset {offset} is out of range")
        taken: list[StampedBatch] = []
        size = 0
        for batch in self.batches:
            if batch.next_offset > offset and (not taken or size + len(batch.data) <= max_bytes):
                taken.append(batch)
                size += len(batch.data)
        return Fetched(taken, self.first_offset, self.next_offset)

    def records(self) -> list[Record]:
        """Everything in it, decoded."""
        found: list[Record] = []
        for batch in self.batches:
            found += decode_batch(batch.data, base_offset=batch.base_offset).records()
        return found


class FakeClient:
    """The methods that the stage runner calls, over lists."""

    namespace = "default"

    def __init__(self, stages: Sequence[StageSpec]) -> None:
        self.spec = PipelineSpec(replica_set=PARTITION, input="in", stages=tuple(stages))
        self.partitions: dict[tuple[str, str], FakePartition] = {("in", PARTITION): FakePartition()}
        self.outputs: dict[tuple[str, int], tuple[str, str, int]] = {}
        self.failures: dict[tuple[str, int], str] = {}
        self.completed_without_output: set[tuple[str, int]] = set()
        self.stale: set[int] = set()
        self.granted = 0
        self._calls_lost = 0
        self.fetches = 0
        self.asked = 0
        self.gone: dict[tuple[str, str], HadronError] = {}
        """What is said of a partition, whenever it is asked for records."""
        self.troubles: dict[str, list[HadronError]] = {}
        self.on_complete: Callable[[], None] = lambda: None
        self.credit = 0
        self.handed_out: list[Any] = []
        self.begun: list[int] = []
        """Numbers of micro-batches that a runner has said to work on."""
        self._more_credit = trio.Event()
        self._send, self._receive = trio.open_memory_channel[Any](100)

    # --- arranging ------------------------------------------------------------------------------

    def publish(self, records: Sequence[NewRecord], stream: str = "in") -> None:
        partition = self.partitions.setdefault((stream, PARTITION), FakePartition())
        partition.append(build(records))

    def invoke(
        self,
        stage: str,
        offsets: Sequence[int],
        first_id: int = 1,
        *,
        attempt: int = 1,
        before: int = 0,
        failed: tuple[str, str] = ("", ""),
        streams: Mapping[int, str] | None = None,
        partitions: Mapping[int, str] | None = None,
    ) -> None:
        """Make one micro-batch: instance first_id + i has root offset `offsets[i]`, in the stream
        and the partition that are said for i, and was given up at a stage for a reason, if
        `failed`."""
        declared = next((each for each in self.spec.stages if each.name == stage), None)
        message = pipelines_pb2.Invocations(
            stage=stage,
            pipeline_id=PIPELINE_ID,
            version=VERSION,
            spec=msgspec.json.encode(declared).decode() if declared else "",
        )
        for index, offset in enumerate(offsets):
            instance = first_id + index
            invocation = message.invocations.add(
                instance_id=instance, attempt=attempt, attempts_before=before
            )
            invocation.failed_stage, invocation.failure = failed
            invocation.root.stream = (streams or {}).get(index, "in")
            invocation.root.partition = (partitions or {}).get(index, PARTITION)
            invocation.root.offset = offset
            for name in declared.dependencies if declared else ():
                stream, partition, output = self.outputs[name, instance]
                invocation.dependencies.add(stream=stream, partition=partition, offset=output)
        self._send.send_nowait(message)

    def fail_calls(self, method: str, *errors: HadronError) -> None:
        """Let the next calls of `method` fail, one error each."""
        self.troubles.setdefault(method, []).extend(errors)

    def output(self, stage: str, instance: int) -> Record:
        """The stored output of an instance."""
        stream, partition, offset = self.outputs[stage, instance]
        return self.partitions[stream, partition].records()[offset]

    # --- the client's methods -------------------------------------------------------------------

    def _trouble(self, method: str) -> None:
        if self.troubles.get(method):
            raise self.troubles[method].pop(0)

    async def objects(
        self, kind: str = "", namespace: str = "", name: str = ""
    ) -> list[SchemaObject]:
        del namespace
        await trio.lowlevel.checkpoint()
        return [SchemaObject(kind=kind, name=name, spec=self.spec, id=PIPELINE_ID)]

    async def fetch(
        self,
        stream: str,
        partition: str,
        offset: int,
        max_bytes: int = 4 << 20,
        max_wait_ms: int = 0,
        stream_id: int | None = None,
        exists: bool = False,
    ) -> Fetched:
        del max_wait_ms, stream_id
        await trio.lowlevel.checkpoint()
        self._trouble("fetch")
        if error := self.gone.get((stream, partition)):
            raise error
        self.fetches += 1
        return self.partitions[stream, partition].fetch(offset, max_bytes, exists=exists)

    async def offsets(
        self,
        stream: str,
        *,
        partition: str | None = None,
        before: int | None = None,
        confirmed: bool = False,
    ) -> list[PartitionOffsets]:
        assert confirmed or before is not None, "a leader that was deposed knows other bounds"
        await trio.lowlevel.checkpoint()
        self._trouble("offsets")
        self.asked += 1
        return [
            PartitionOffsets(
                name,
                each.first_offset,
                each.next_offset,
                ballot=each.ballot_before(each.next_offset if before is None else before),
            )
            for (of, name), each in self.partitions.items()
            if of == stream and partition in (None, name)
        ]

    @asynccontextmanager
    async def run_stages(self, pipeline: str, **settings: Any) -> AsyncIterator[FakeClient]:
        """A call for work; what it leaves undone is there for the next one, as on a leader."""
        del pipeline
        await trio.lowlevel.checkpoint()
        self.credit = settings["credit"]
        self.handed_out = []
        try:
            yield self
        finally:
            for message in self.handed_out:
                if any(
                    self._is_open(message.stage, each.instance_id) for each in message.invocations
                ):
                    self._send.send_nowait(message)

    def begin(self, invocations: Any, code_version: str = "") -> None:
        del code_version
        self.begun.append(invocations.number)

    def _is_open(self, stage: str, instance: int) -> bool:
        place = stage, instance
        return instance not in self.stale and not (
            place in self.outputs
            or place in self.failures
            or place in self.completed_without_output
        )

    def __aiter__(self) -> FakeClient:
        return self

    async def __anext__(self) -> Any:
        self._trouble("run_stages")
        while not self.credit:
            await self._more_credit.wait()
        message = await self._receive.receive()
        self.credit -= 1
        self.handed_out.append(message)
        return message

    def grant(self, credit: int) -> None:
        self.granted += credit
        self.credit += credit
        self._more_credit.set()
        self._more_credit = trio.Event()

    async def complete_stages(
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
        assert version in (0, VERSION)
        await trio.lowlevel.checkpoint()
        self._trouble("complete_stages")
        assert pipeline_id == PIPELINE_ID
        assert len(instance_ids) == len(attempts) == len(created_ms)
        stale = [each for each in instance_ids if each in self.stale]
        if stale:
            return pipelines_pb2.CompleteStagesResponse(stale_instance_ids=stale)
        declared = next(each for each in self.spec.stages if each.name == stage)
        base = 0
        if declared.output is None:
            assert batch is None
            self.completed_without_output |= {(stage, each) for each in instance_ids}
        else:
            assert batch is not None
            assert decode_batch(batch).count == len(instance_ids)
            base = self._store(declared.output, stage, instance_ids, batch, partition)
        self.stale |= set(instance_ids) & self.stale
        self.on_complete()
        return pipelines_pb2.CompleteStagesResponse(base_offset=base)

    def _store(
        self, output: Output, stage: str, instance_ids: Sequence[int], batch: bytes, partition: str
    ) -> int:
        place = (output.stream, partition or PARTITION)
        base = self.partitions.setdefault(place, FakePartition()).append(batch)
        for index, instance in enumerate(instance_ids):
            assert (stage, instance) not in self.outputs, "completed twice"
            self.outputs[stage, instance] = (*place, base + index)
        return base

    async def fail_stages(
        self,
        pipeline_id: int,
        stage: str,
        instance_ids: Sequence[int],
        attempts: Sequence[int],
        created_ms: Sequence[int],
        reason: str,
    ) -> None:
        await trio.lowlevel.checkpoint()
        assert pipeline_id == PIPELINE_ID
        assert len(instance_ids) == len(attempts) == len(created_ms)
        for instance in instance_ids:
            self.failures[stage, instance] = reason
        self.on_complete()

    @asynccontextmanager
    async def connect(self, url: str) -> AsyncIterator[FakeClient]:
        """In place of `hadron.connect`."""
        del url
        await trio.lowlevel.checkpoint()
        yield self
