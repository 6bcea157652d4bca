"""The call that a stage runner has open, as whatever hands out stages sees it.

A runner that asks for it gets the records, too, that its invocations name: batches as they are
stored, which this leader has in memory. The rest the runner fetches from where it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from hadron.model.batch import StampedBatch
from hadron.model.errors import HadronError, NotFoundError
from hadron.model.pipelines import StageSpec
from hadron.pipelines.assignments import Runner
from hadron.server.pipelines.stories import ref_of
from hadron.server.streams import batch_info
from hadron.serving.catalog import Catalog
from hadron.serving.visible import VisibleStreams
from hadron.state.pipelines import views
from hadron.wire.calls import Call
from hadron.wire.messages import pipelines_pb2

_MAX_RECORD_BYTES: Final = 1 << 20
"""Of records that come with a micro-batch."""

_BYTES_EACH: Final = 16 << 10
"""Of them, for each invocation."""

_LONGEST_NUMBER: Final = (1 << 64) - 1
"""Of a micro-batch."""

RunnerCall: TypeAlias = Call[pipelines_pb2.RunStagesRequest, pipelines_pb2.Invocations]


class _Draft:
    """`pipelines.runners.Draft`: a message that goes on a runner's call, and what holds the records
    that it names."""

    def __init__(
        self,
        call: RunnerCall,
        message: pipelines_pb2.Invocations,
        find: Callable[[], Sequence[tuple[str, int, StampedBatch]]],
    ) -> None:
        self._call = call
        self._message = message
        self._find = find
        self.size = message.ByteSize()

    def send(self, number: int) -> None:
        self._message.number = number
        found = self._find()
        for partition, stream_id, batch in found:
            self._message.batches.add(
                stream_id=stream_id, partition=partition, info=batch_info(batch)
            )
        self._call.send(self._message, [batch.data for _, _, batch in found])


class CallSink:
    """`pipelines.runners.RunnerSink`: a runner is told on its call."""

    def __init__(
        self,
        call: RunnerCall,
        catalog: Catalog,
        pipeline_id: int,
        visible: VisibleStreams | None = None,
        replica_set: str = "",
        record_bytes: int = 0,
    ) -> None:
        """`record_bytes`: what `visible` has in memory of records at this `replica_set` goes with
        the invocations that name them, so much at a time."""
        self._call = call
        self._catalog = catalog
        self._pipeline_id = pipeline_id
        self._visible = visible
        self._replica_set = replica_set
        self._record_bytes = min(record_bytes, _MAX_RECORD_BYTES)

    @property
    def on_writable(self) -> Callable[[], None]:
        return self._call.on_writable

    @on_writable.setter
    def on_writable(self, told: Callable[[], None]) -> None:
        self._call.on_writable = told

    @property
    def writable(self) -> bool:
        return self._call.writable

    def draft(
        self, runner: Runner, stage: StageSpec, version: int, ready: Sequence[views.ReadyStage]
    ) -> _Draft:
        message = pipelines_pb2.Invocations(
            stage=stage.name,
            pipeline_id=self._pipeline_id,
            version=version,
            spec=msgspec.json.encode(stage).decode(),
            runner=runner.name,
            code_version=runner.code_of(stage.name, stage.run),
            # Room for one.
            number=_LONGEST_NUMBER,
            invocations=[
                pipelines_pb2.Invocation(
                    instance_id=item.instance_id,
                    attempt=item.attempt,
                    attempts_before=item.attempts_before,
                    created_ms=item.created_ms,
                    failed_stage=item.failed_stage,
                    failure=item.failure,
                    root=ref_of(self._catalog, item.root),
                    dependencies=[ref_of(self._catalog, each) for each in item.dependencies],
                )
                for item in ready
            ],
        )
        return _Draft(self._call, message, lambda: self._records(ready))

    def _records(self, ready: Sequence[views.ReadyStage]) -> list[tuple[str, int, StampedBatch]]:
        """Batches that hold records of these invocations. A large one for a few of them is left
        out: its runner, who fetches it, keeps it for the next ones."""
        visible, own = self._visible, self._replica_set
        room = min(self._record_bytes, _BYTES_EACH * len(ready))
        found: list[tuple[str, int, StampedBatch]] = []
        latest: dict[int, StampedBatch] = {}
        for each in ready:
            for ref in (each.root, *each.dependencies):
                known = latest.get(ref.stream_id)
                if visible is None or not room or ref.partition != own:
                    continue
                if known is not None and known.base_offset <= ref.offset < known.next_offset:
                    continue
                with contextlib.suppress(NotFoundError):
                    for batch in visible.recent(ref.stream_id, ref.offset, 1) or ():
                        latest[ref.stream_id] = batch
                        if len(batch.data) <= room:
                            room -= len(batch.data)
                            found.append((own, ref.stream_id, batch))
        return found

    def fail(self, error: HadronError) -> None:
        self._call.fail(error)
