"""Runs one pipeline on the leader: its consumer and its dispatcher, a task each.

The consumer turns trigger records into instances, as many as `max_parallel` leaves room for. The
dispatcher hands ready stages to runners in micro-batches: what becomes ready while a runner works
goes into its next batch, so batches grow with the load and nobody waits on a timer.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from typing import Final

import trio

from hadron.model.batch import StampedBatch, judge_batch, matching_indexes, read_head
from hadron.model.errors import HadronError, NotFoundError, RequestError
from hadron.model.limits import MAX_MESSAGE_BYTES, MAX_MICRO_BATCH
from hadron.model.pipelines import PipelineSpec, StageSpec, matches_type
from hadron.model.ports import Clock, Database
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.model.transactions import STAGES, Lock, TransactionId
from hadron.partition.controller import Controller
from hadron.partition.observers import Order
from hadron.pipelines.dispatch import Dispatch
from hadron.pipelines.runners import Ended, RunnerSession, RunnerSink
from hadron.serving.catalog import Catalog
from hadron.serving.leading import Part
from hadron.serving.lock_table import LockTable
from hadron.serving.perseverance import persevere
from hadron.serving.visible import VisibleStreams
from hadron.state import pipeline_views
from hadron.state.pipeline_events import InstancesChanged, StagesEnded
from hadron.state.pipeline_retries import Retried, RetryInstances
from hadron.state.pipeline_views import InputCursor, ReadyStage
from hadron.state.pipelines import (
    Completed,
    CompleteStages,
    FailStages,
    Triggered,
    TriggerInstances,
    stages_of,
)

_log = logging.getLogger(__name__)

_READ_BYTES: Final = 1 << 20
_TRIGGERS_PER_ENTRY: Final = 2_000
"""Instances made by one entry: about 10 ms of the writer's time."""

MAX_RETRIES: Final = 1_000
"""Instances retried by one entry: some 10 ms of the writer's time."""

_REASON_CHARACTERS: Final = 2_000
"""Kept of why attempts failed: it stands in the log, and in a row of each instance."""

_INVOCATIONS_BYTES: Final = MAX_MESSAGE_BYTES // 2
"""One message to a runner. Invocations name streams and partitions, so many of them with long names
would not fit into a frame."""


class PipelineDriver:
    """One pipeline. `run` must be running."""

    def __init__(
        self,
        item: SchemaObject,
        controller: Controller,
        catalog: Catalog,
        visible: VisibleStreams,
        clock: Clock,
        locks: LockTable,
    ) -> None:
        self.item = item
        self.dispatch = Dispatch()
        self._locks = locks
        for transaction, lock in locks.of_owner(STAGES, item.id):
            self.dispatch.take(lock.name, transaction, _ids(lock))
        self.untyped = 0
        """Records without a type that were passed over, since this leader began: no trigger matches
        them, and people wonder."""
        self._controller = controller
        self._catalog = catalog
        self._visible = visible
        self._clock = clock
        self._sessions: dict[int, RunnerSession] = {}
        self._input_moved = trio.Event()
        self._stages_moved = trio.Event()

    @property
    def spec(self) -> PipelineSpec:
        spec = self._catalog.by_id(self.item.id).spec
        assert isinstance(spec, PipelineSpec)
        return spec

    async def run(self) -> None:
        """Consume and dispatch until cancelled."""
        async with trio.open_nursery() as nursery:
            for work in (self._consume, self._dispatch_loop):
                nursery.start_soon(persevere, self.item.label, work, logging.ERROR)

    def wake(self) -> None:
        """Something changed: instances ended, stages became ready, a runner came."""
        self._input_moved.set()
        self._stages_moved.set()

    # --- the consumer ---------------------------------------------------------------------------

    async def _consume(self) -> None:
        """Consume the partition of the input that lives here: a pipeline has one cursor."""
        while (cursor := await self._controller.query(self._cursor)) is None:
            # Declared, and not adopted yet.
            await self._input_moved.wait()
            self._input_moved = trio.Event()
        unwatch = self._visible.watch(cursor.stream_id, lambda: self._input_moved.set())
        try:
            offset = cursor.next_offset
            while True:
                following = await self._consume_some(cursor, offset)
                if following == offset:
                    await self._input_moved.wait()
                    self._input_moved = trio.Event()
                offset = following
        finally:
            unwatch()

    def _cursor(self, db: Database) -> InputCursor | None:
        found = pipeline_views.cursors(db)
        return next((each for each in found if each.pipeline_id == self.item.id), None)

    async def _consume_some(self, cursor: InputCursor, offset: int) -> int:
        """Consume from `offset` what there is room for; returns the new cursor."""
        counts = await self._controller.query(lambda db: pipeline_views.counts(db, self.item.id))
        room = min(self.spec.max_parallel - counts.live, _TRIGGERS_PER_ENTRY)
        if room <= 0:
            return offset
        # The entry that drops records moves the cursor over them.
        offset = max(offset, self._visible.bounds(cursor.stream_id).first_offset)
        batches = await self._visible.read(cursor.stream_id, offset, _READ_BYTES)
        if not batches:
            return offset
        offsets, to_offset = self._match(batches, offset, room)
        untyped = self._untyped(batches, offset, to_offset)
        result: Triggered = await self._controller.execute(
            TriggerInstances(self.item.id, cursor.partition, offset, to_offset, tuple(offsets))
        )
        if untyped and not result.stale:
            if not self.untyped:
                _log.warning(
                    "pipeline %s: records without a type pass by its triggers, which match types",
                    self.item.label,
                )
            self.untyped += untyped
        return result.next_offset

    def _match(
        self, batches: Sequence[StampedBatch], offset: int, room: int
    ) -> tuple[list[int], int]:
        """Offsets of matching records, `room` at most, and how far was looked."""
        triggers = self.spec.triggers
        offsets: list[int] = []
        for batch in batches:
            head = read_head(batch.data)
            for index in matching_indexes(head, lambda name: matches_type(triggers, name)):
                at = batch.base_offset + index
                if at < offset:
                    continue
                if len(offsets) == room:
                    return offsets, at
                offsets.append(at)
        return offsets, batches[-1].next_offset

    def _untyped(self, batches: Sequence[StampedBatch], offset: int, to_offset: int) -> int:
        """How many records from `offset` on, before `to_offset`, are passed over for want of a
        type."""
        if matches_type(self.spec.triggers, ""):
            return 0
        return sum(
            offset <= batch.base_offset + index < to_offset
            for batch in batches
            for index in matching_indexes(read_head(batch.data), lambda name: not name)
        )

    # --- the dispatcher -------------------------------------------------------------------------

    def join(
        self, sink: RunnerSink, engine: str, stages: Collection[str], max_batch: int, credit: int
    ) -> RunnerSession:
        """A runner came, for the `stages` of an engine, or for all of that engine when it names
        none.

        Args:
            max_batch: invocations at a time; 0 for as many as there may be.
            credit: how many messages it takes.

        Raises `NotFoundError` for a stage that does not exist.
        """
        names = {stage.name for stage in self.spec.stages if stage.engine == engine}
        unknown = set(stages) - names
        if unknown:
            raise NotFoundError(
                f"pipeline {self.item.name!r} has no stage {', '.join(sorted(unknown))} with "
                f"engine {engine!r}",
                f"it has: {', '.join(sorted(names)) or 'none'}",
            )
        at_most = min(max_batch or MAX_MICRO_BATCH, MAX_MICRO_BATCH)
        runner = self.dispatch.join(engine, stages, at_most, credit, lambda: sink.writable)
        sink.on_writable = lambda: self._stages_moved.set()
        session = RunnerSession(runner, sink)
        self._sessions[runner.number] = session
        self._stages_moved.set()
        return session

    def grant(self, session: RunnerSession, credit: int) -> None:
        session.runner.credit += credit
        self._stages_moved.set()

    def leave(self, session: RunnerSession) -> None:
        if self._sessions.pop(session.runner.number, None) is not None:
            self.dispatch.leave(session.runner.number)
            self._stages_moved.set()

    def stop(self, reason: HadronError) -> None:
        for session in list(self._sessions.values()):
            session.sink.fail(reason)
        self._sessions.clear()

    async def _dispatch_loop(self) -> None:
        while True:
            moved = self._stages_moved
            self.dispatch.expire(trio.current_time())
            due_s = None
            for stage in self.spec.stages:
                stage_due_s = await self._dispatch_stage(stage)
                if stage_due_s is not None:
                    due_s = stage_due_s if due_s is None else min(due_s, stage_due_s)
            deadline = self.dispatch.next_deadline()
            if deadline is not None:
                expires_s = deadline - trio.current_time()
                due_s = expires_s if due_s is None else min(due_s, expires_s)
            with trio.move_on_after(max(due_s, 0.001) if due_s is not None else float("inf")):
                await moved.wait()
            if moved.is_set():
                self._stages_moved = trio.Event()

    async def _dispatch_stage(self, stage: StageSpec) -> float | None:
        """Hand out what is ready; returns in how many seconds something delayed becomes ready."""
        while (runner := self.dispatch.runner_for(stage.name, stage.engine)) is not None:
            now_ms = self._clock.now_ms()

            def read(
                db: Database, now_ms: int = now_ms, limit: int = runner.max_batch
            ) -> tuple[list[ReadyStage], int | None]:
                ready = pipeline_views.ready_stages(
                    db,
                    self.item.id,
                    stage.name,
                    stage.dependencies,
                    now_ms=now_ms,
                    limit=limit,
                    except_ids=self.dispatch.assigned(stage.name),
                )
                due = pipeline_views.next_ready_ms(db, self.item.id, stage.name, now_ms)
                return ready, due

            ready, due_ms = await self._controller.query(read)
            if not ready:
                return None if due_ms is None else max(due_ms - now_ms, 1) / 1000
            session = self._sessions.get(runner.number)
            if session is None:
                continue
            draft = session.sink.draft(stage.name, ready)
            while draft.size > _INVOCATIONS_BYTES and len(ready) > 1:
                ready = ready[: len(ready) // 2]
                draft = session.sink.draft(stage.name, ready)
            deadline = trio.current_time() + stage.timeout_ms / 1000
            self.dispatch.assign(runner, stage.name, [r.instance_id for r in ready], deadline)
            draft.send()
        return None

    # --- completions ----------------------------------------------------------------------------

    async def complete(self, ended: Ended, outputs: memoryview, partition: str = "") -> Completed:
        """Publish outputs and complete their stages in one entry. Raises what `completion` does."""
        command = self.completion(ended, outputs, partition)
        self._check_free(command)
        result: Completed = await self._controller.execute(command, outputs)
        return result

    def completion(self, ended: Ended, outputs: memoryview, partition: str = "") -> CompleteStages:
        """What is logged of it. Raises `RequestError` when the batch of `outputs` does not fit the
        stage's declaration, or is to go to another `partition` than the pipeline's own ("")."""
        stage = self._stage(ended.stage)
        ended.check()
        own = self.spec.replica_set
        out_stream_id = 0
        if stage.output is not None:
            wanted = partition or stage.output.partition or own
            target, spec = self._catalog.stream(self.item.namespace, stage.output.stream)
            assert isinstance(spec, StreamSpec)
            if wanted != own:
                raise RequestError(
                    f"the output of stage {stage.name!r} goes to partition {wanted!r}, this "
                    f"pipeline lives on {own!r}",
                    "outputs stay on the pipeline's own replica set",
                )
            head = judge_batch(outputs)
            if head.n != len(ended.instance_ids):
                raise RequestError(
                    f"{len(ended.instance_ids)} instances are completed with {head.n} outputs"
                )
            out_stream_id = target.id
        elif len(outputs):
            raise RequestError(f"stage {stage.name!r} declares no output, but outputs were sent")
        return CompleteStages(
            self.item.id,
            stage.name,
            ended.instance_ids,
            ended.attempts,
            out_stream_id,
            len(outputs),
            ended.created_ms,
        )

    async def fail(self, ended: Ended, reason: str) -> Completed:
        """These attempts failed. Raises what `failure` does."""
        command = self.failure(ended, reason)
        self._check_free(command)
        result: Completed = await self._controller.execute(command)
        return result

    def failure(self, ended: Ended, reason: str) -> FailStages:
        """What is logged of it. Raises `RequestError`."""
        stage = self._stage(ended.stage)
        ended.check()
        return FailStages(
            self.item.id,
            stage.name,
            ended.instance_ids,
            ended.attempts,
            reason[:_REASON_CHARACTERS],
            ended.created_ms,
        )

    def _check_free(self, command: CompleteStages | FailStages) -> None:
        """Raises `ConflictError` for what a transaction ends, also one that is in no table yet."""
        if self._locks.held(STAGES, self.item.id, command.stage):
            self._locks.check_free(stages_of(command))

    # --- transactions ---------------------------------------------------------------------------

    def take(self, transaction: TransactionId, lock: Lock) -> None:
        """The transaction ends these attempts, and is not over."""
        self.dispatch.take(lock.name, transaction, _ids(lock))

    def untake(self, transaction: TransactionId, lock: Lock) -> None:
        """It was rolled back, or has ended them."""
        timeouts = [stage.timeout_ms for stage in self.spec.stages if stage.name == lock.name]
        deadline = trio.current_time() + (timeouts[0] if timeouts else 0) / 1_000
        self.dispatch.untake(lock.name, transaction, _ids(lock), deadline)
        self._stages_moved.set()

    async def retry(self, ids: tuple[int, ...], after_id: int = 0) -> tuple[Retried, int, bool]:
        """Let failed instances run again: these, or without any the failed ones behind `after_id`,
        as many as one entry takes; returns what was done, the instance to go on behind, and whether
        failed ones follow.

        Raises `NotFoundError` and `RequestError` as `RetryInstances` does.
        """
        if len(ids) > MAX_RETRIES:
            raise RequestError(f"{len(ids)} instances are more than {MAX_RETRIES} at a time")
        more = False
        if not ids:
            found = await self._controller.query(
                lambda db: pipeline_views.failed_ids(
                    db, self.item.id, after_id=after_id, limit=MAX_RETRIES + 1
                )
            )
            ids, more = tuple(found[:MAX_RETRIES]), len(found) > MAX_RETRIES
        if not ids:
            return Retried(0, 0), after_id, False
        result: Retried = await self._controller.execute(RetryInstances(self.item.id, ids))
        return result, max(ids), more

    def _stage(self, name: str) -> StageSpec:
        for stage in self.spec.stages:
            if stage.name == name:
                return stage
        raise NotFoundError(
            f"pipeline {self.item.name!r} has no stage {name!r}",
            f"it has: {', '.join(stage.name for stage in self.spec.stages)}",
        )


def _ids(lock: Lock) -> Iterator[int]:
    for first, last in lock.ranges:
        yield from range(first, last + 1)


class Pipelines(Part):
    """All pipelines of a leadership."""

    def __init__(
        self,
        controller: Controller,
        catalog: Catalog,
        visible: VisibleStreams,
        clock: Clock,
        replica_set: str,
        locks: LockTable,
    ) -> None:
        self._locks = locks
        self._controller = controller
        self._catalog = catalog
        self._visible = visible
        self._clock = clock
        self._replica_set = replica_set
        self._drivers: dict[int, PipelineDriver] = {}
        self._scopes: dict[int, trio.CancelScope] = {}
        self._changed = trio.Event()
        catalog.listen(self._on_catalog)
        locks.listen(STAGES, self._taken, self._freed)
        controller.observers.add(Order.DRIVERS, [InstancesChanged, StagesEnded], self._on_visible)

    async def run(self) -> None:
        """Serve every pipeline that lives here, also those declared while running."""
        async with trio.open_nursery() as nursery:
            while True:
                self._changed = trio.Event()
                for item in self._catalog.all():
                    spec = item.spec
                    if isinstance(spec, PipelineSpec) and spec.replica_set == self._replica_set:
                        known = self._drivers.get(item.id)
                        if known is None:
                            driver = PipelineDriver(
                                item,
                                self._controller,
                                self._catalog,
                                self._visible,
                                self._clock,
                                self._locks,
                            )
                            self._drivers[item.id] = driver
                            nursery.start_soon(self._run, driver)
                        else:
                            known.wake()
                await self._changed.wait()

    async def _run(self, driver: PipelineDriver) -> None:
        if self._drivers.get(driver.item.id) is not driver:
            return
        with trio.CancelScope() as scope:
            self._scopes[driver.item.id] = scope
            await driver.run()

    def _on_catalog(self) -> None:
        """Nothing runs any more for pipelines that were deleted; changed ones may have another
        stage for those who run all."""
        self._changed.set()
        for each in self._drivers.values():
            each.wake()
        known = {item.id for item in self._catalog.all()}
        for pipeline_id in [each for each in self._drivers if each not in known]:
            driver = self._drivers.pop(pipeline_id)
            driver.stop(NotFoundError(f"{driver.item.label} was deleted"))
            if (scope := self._scopes.pop(pipeline_id, None)) is not None:
                scope.cancel()

    def _on_visible(self, events: Sequence[InstancesChanged | StagesEnded]) -> None:
        """Only what concerns a pipeline wakes it."""
        moved: dict[PipelineDriver, None] = {}
        for event in events:
            driver = self._drivers.get(event.pipeline_id)
            if driver is not None:
                if isinstance(event, StagesEnded):
                    driver.dispatch.settle(event.stage, event.instance_ids)
                moved[driver] = None
        for driver in moved:
            driver.wake()

    def _taken(self, transaction: TransactionId, lock: Lock) -> None:
        driver = self._drivers.get(lock.owner_id)
        if driver is not None:
            driver.take(transaction, lock)

    def _freed(self, transaction: TransactionId, lock: Lock) -> None:
        driver = self._drivers.get(lock.owner_id)
        if driver is not None:
            driver.untake(transaction, lock)

    def driver(self, pipeline_id: int) -> PipelineDriver:
        """Raises `NotFoundError`."""
        driver = self._drivers.get(pipeline_id)
        if driver is None:
            item = self._catalog.by_id(pipeline_id)
            raise NotFoundError(f"{item.label} does not live on {self._replica_set}")
        return driver

    def stop(self, reason: HadronError) -> None:
        for driver in self._drivers.values():
            driver.stop(reason)
