"""Pipelines on their leader: each consumes its input, hands out its stages, and takes what runners
hand in; and all of them together, as a part of the leadership."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import trio

from hadron.model.batch import NO_SEQUENCE, judge_batch
from hadron.model.batch_building import encode_values
from hadron.model.errors import (
    HadronError,
    NotFoundError,
    NotReadyError,
    RequestError,
    StaleCompletionError,
)
from hadron.model.pipelines import PipelineSpec
from hadron.model.ports import Clock, Database, Random
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.model.transactions import STAGES, Lock, TransactionId
from hadron.partition.controller import Controller
from hadron.partition.observers import Order
from hadron.pipelines.awaiting import Awaiting
from hadron.pipelines.backfilling import Backfilling
from hadron.pipelines.completions import Completions, Elsewhere
from hadron.pipelines.consumer import Consumer
from hadron.pipelines.dispatcher import Dispatcher
from hadron.pipelines.expiring import Expiring
from hadron.pipelines.following import Reach
from hadron.pipelines.forgetting import Forgetting
from hadron.pipelines.keys import TriggerKeys
from hadron.pipelines.letters import Letters
from hadron.pipelines.matching import packed
from hadron.pipelines.outputs import Outputs
from hadron.pipelines.runners import Ended
from hadron.pipelines.sources import Others
from hadron.serving.catalog import Catalog
from hadron.serving.leading import Part
from hadron.serving.lock_table import LockTable
from hadron.serving.perseverance import persevere
from hadron.serving.visible import VisibleStreams
from hadron.state.pipelines import definitions, retries, waits
from hadron.state.pipelines import views as pipeline_views
from hadron.state.pipelines.backfills import Backfill, ControlBackfill, StartBackfill
from hadron.state.pipelines.cancellations import CancelInstances, Cancelled, Started, StartInstances
from hadron.state.pipelines.events import InstancesChanged, StagesEnded
from hadron.state.pipelines.publishing import PublishStages
from hadron.state.pipelines.retries import Retried, RetryInstances
from hadron.state.pipelines.stage_runs import (
    Attempts,
    Completed,
    CompleteStages,
    stages_of,
    stale_of,
)
from hadron.state.pipelines.views import Chosen, OutputRef
from hadron.state.pipelines.wait_inputs import awaits
from hadron.state.pipelines.waits import SignalInstance, Signalled
from hadron.state.streams.producers import Appended

MAX_RETRIES: Final = 1_000
"""Instances started, retried or cancelled by one entry: some 10 ms of the writer's time."""

REQUEST_BYTES: Final = 16


class PipelineDriver:
    """One pipeline. `run` must be running."""

    def __init__(
        self,
        item: SchemaObject,
        controller: Controller,
        catalog: Catalog,
        visible: VisibleStreams,
        clock: Clock,
        replica_set: str,
        locks: LockTable,
        others: Others | None,
        outputs: Outputs | None,
        random: Random,
    ) -> None:
        self.item = item
        self._outputs = outputs
        self._locks = locks
        self._controller = controller
        self._catalog = catalog
        self._visible = visible
        self._trigger_keys = TriggerKeys(replica_set, catalog, visible, others)
        self._clock = clock
        reach = Reach(replica_set, visible, others, random)
        self.consumer = Consumer(item, lambda: self.spec, controller, catalog, reach)
        self.backfilling = Backfilling(
            item.id,
            lambda: self.spec,
            self.consumer.stream,
            controller,
            visible,
            others,
            self.consumer.admission,
        )
        self.dispatcher = Dispatcher(item, controller)
        self.letters = Letters(item, lambda: self.spec, controller, catalog, clock)
        self.awaiting = Awaiting(item, controller, catalog, reach, self.consumer.catch_up)
        self._expiring = Expiring(item.id, controller)
        self._forgetting = Forgetting(item.id, lambda: self.spec, controller)
        self.completions = Completions(item, catalog, lambda: self.dispatcher.definitions)
        for transaction, lock in locks.of_owner(STAGES, item.id):
            self.dispatcher.take(transaction, lock)

    @property
    def spec(self) -> PipelineSpec:
        spec = self._catalog.by_id(self.item.id).spec
        assert isinstance(spec, PipelineSpec)
        return spec

    async def run(self) -> None:
        """Consume and dispatch until cancelled."""
        async with trio.open_nursery() as nursery:
            for work in (
                self.consumer.run,
                self.dispatcher.run,
                self.letters.run,
                self.backfilling.run,
                self.awaiting.run,
                self._expiring.run,
                self._forgetting.run,
            ):
                nursery.start_soon(persevere, self.item.label, work, logging.ERROR)

    def wake(self) -> None:
        """Something changed: instances ended, stages became ready, another declaration."""
        self.consumer.wake()
        self.dispatcher.wake()
        self.letters.wake()
        self.backfilling.wake()
        known = [*self.dispatcher.definitions.values(), self.spec.stages]
        if any(stage.wait is not None for stages in known for stage in stages):
            self._expiring.wake()

    def declared(self) -> None:
        """It was declared anew, or a stream was."""
        self.wake()
        self.awaiting.wake()

    # --- completions ----------------------------------------------------------------------------

    async def complete(self, ended: Ended, outputs: memoryview, partition: str = "") -> Completed:
        """Publish outputs and complete their stages: in one entry, or where they go to another set
        by a transaction (PIPELINES P9). Raises what `Completions.ending` and `Outputs.publish`
        do."""
        await self._know_definitions()
        ended, own = self._told(ended), self.spec.replica_set
        command = self.completions.ending(ended, outputs, own, partition)
        if isinstance(command, Elsewhere):
            return await self._publish(*command, outputs)
        self._check_free(command)
        return await self._known(await self._controller.execute(command, outputs))

    async def _publish(
        self, command: PublishStages, metadata_index: int, outputs: memoryview
    ) -> Completed:
        assert self._outputs is not None
        while True:
            self._check_free(command)
            if stale := await self._controller.query(partial(stale_of, command=command)):
                # Nothing is logged: an attempt that a successor waits for is stale to who led.
                await self._controller.confirm_leadership()
                return Completed(None, stale)
            try:
                base = await self._outputs.publish(command, metadata_index, outputs)
            except StaleCompletionError:
                # Meanwhile; who it is of is in the tables.
                continue
            return Completed(Appended(base, len(command.instance_ids), 0, NO_SEQUENCE))

    def completion(self, ended: Ended, outputs: memoryview, partition: str = "") -> CompleteStages:
        """What is logged of it. Raises what `Completions.completion` does."""
        return self.completions.completion(ended, outputs, self.spec.replica_set, partition)

    async def fail(self, ended: Ended, reason: str) -> Completed:
        """These attempts failed. Raises what `Completions.failure` does."""
        await self._know_definitions()
        command = self.completions.failure(self._told(ended), reason)
        self._check_free(command)
        return await self._known(await self._controller.execute(command))

    def _told(self, ended: Ended) -> Ended:
        """With who ran them, with what code, and how long, as this leader knows best: of a
        micro-batch, which one runner has. Raises as `Ended.check` does."""
        ended.check()
        work = self.dispatcher.work_on(ended.stage, ended.instance_ids[0])
        took_ms = ended.took_ms
        if not took_ms and work.took_s is not None:
            took_ms = (int(work.took_s * 1_000),)
        return replace(ended, took_ms=took_ms, runner=work.runner, code_version=work.code_version)

    async def _known(self, result: Completed) -> Completed:
        """Where nothing is logged, a leader that was deposed would not notice."""
        if result.stale:
            await self._controller.confirm_leadership()
        return result

    async def _know_definitions(self) -> None:
        """A new leader's dispatcher may not have looked yet."""
        if not self.dispatcher.definitions:
            self.dispatcher.definitions = await self._controller.query(
                partial(definitions.all_stages, pipeline_id=self.item.id)
            )

    def _check_free(self, command: Attempts) -> None:
        """Raises `ConflictError` for what a transaction ends, also one that is in no table yet."""
        if self._locks.held(STAGES, self.item.id, command.stage):
            self._locks.check_free(stages_of(command))

    # --- by hand --------------------------------------------------------------------------------

    async def start(
        self, stream: str, partition: str, offsets: tuple[int, ...], request: bytes
    ) -> Started:
        """Make instances of these records. Raises `NotFoundError` for a partition that is not
        there, `RequestError` for offsets that the one here does not keep."""
        if not 1 <= len(offsets) <= MAX_RETRIES or len(request) != REQUEST_BYTES:
            raise RequestError(
                f"{len(offsets)} records are started under a request of {len(request)} bytes",
                f"start 1 to {MAX_RETRIES} records at a time, under {REQUEST_BYTES} random bytes",
            )
        item, spec = self._catalog.stream(self.item.namespace, stream)
        assert isinstance(spec, StreamSpec)
        own = self.spec.replica_set
        partition = partition or (own if own in spec.partitions else spec.partitions[0])
        if partition not in spec.partitions:
            raise NotFoundError(
                f"{item.label} has no partition {partition!r}",
                f"it has: {', '.join(spec.partitions)}",
            )
        if partition == own:
            first, following = self._visible.bounds(item.id)
            if wrong := [each for each in offsets if not first <= each < following]:
                raise RequestError(
                    f"offset {wrong[0]} of {item.label} is not there",
                    f"{partition} has {first} to {following - 1}",
                )
        keys = await self._keys(item.id, partition, offsets)
        started: Started = await self._controller.execute(
            StartInstances(self.item.id, item.id, partition, offsets, request, keys)
        )
        return started

    async def _keys(self, stream_id: int, partition: str, offsets: tuple[int, ...]) -> bytes:
        """Of these records, where stages wait for others with the same ones."""
        if not awaits(self.spec.stages):
            return b""
        records = [OutputRef(stream_id, partition, offset) for offset in offsets]
        found = await self._trigger_keys.of(records)
        for each in records:
            if each not in found:
                raise RequestError(
                    f"offset {each.offset} of {self._catalog.by_id(stream_id).label} is not there, "
                    f"on {partition}",
                    "a stage waits for a record with its key: start what is there",
                )
        return packed(found[each] for each in records)

    async def _keys_again(self, ids: tuple[int, ...]) -> bytes:
        """Of the triggers of instances that are retried, where stages wait for others with the same
        keys, which nobody had asked for; of what is gone none is known."""

        def read(db: Database) -> dict[int, OutputRef]:
            needed = retries.needed_keys(db, self.item.id, ids)
            return pipeline_views.roots(db, self.item.id, needed)

        roots = await self._controller.query(read)
        if not roots:
            return b""
        found = await self._trigger_keys.of(roots.values())
        return packed(found.get(roots[each], 0) if each in roots else 0 for each in ids)

    async def signal(self, instance_id: int, stage: str, value: memoryview) -> Signalled:
        """Somebody signals a stage that waits for it, and says `value`: a batch of one record, or
        nothing. Raises `NotFoundError` and `RequestError` as `SignalInstance` does, `RequestError`
        for a value that the stage has no output for."""
        if len(value) and judge_batch(value).n != 1:
            raise RequestError("a signal has one value")
        await self._know_definitions()
        version = await self._controller.query(
            lambda db: pipeline_views.version_of(db, self.item.id, instance_id)
        )
        known = self.dispatcher.definitions.get(version, self.spec.stages)
        output = next((each.output for each in known if each.name == stage), None)
        if len(value) and output is None:
            # Of a stage that waits for nobody, or is not there, that is said instead.
            await self._controller.query(
                lambda db: waits.awaited_signal(db, self.item.id, instance_id, stage)
            )
            raise RequestError(
                f"stage {stage!r} has no output, so what is said with a signal goes nowhere",
                "declare one (output: {stream: NAME}), or send the signal alone",
            )
        out_stream_id = 0
        if output is not None:
            own = self.spec.replica_set
            item, spec = self._catalog.stream(self.item.namespace, output.stream)
            assert isinstance(spec, StreamSpec)
            if own not in spec.partitions:
                raise NotFoundError(f"{item.label} has no partition {own!r}")
            out_stream_id = item.id
            if not len(value):
                value = memoryview(encode_values([b""], self._clock.now_ms()))
        command = SignalInstance(self.item.id, instance_id, stage, out_stream_id, len(value))
        done: Signalled = await self._controller.execute(command, value)
        if done.again:
            # Nothing is logged: a leader that was deposed would not notice.
            await self._controller.confirm_leadership()
        return done

    async def cancel(
        self, ids: tuple[int, ...], chosen: Chosen, after_id: int = 0
    ) -> tuple[Cancelled, int, bool]:
        """End instances: these, or without any the chosen ones behind `after_id`, as many as one
        entry takes; returns what was done, the instance to go on behind, and whether others follow.

        Raises `NotFoundError` and `ConflictError` as `CancelInstances` does.
        """
        ids, more = await self._slice(ids, chosen, after_id)
        if not ids:
            return Cancelled(0, 0), after_id, False
        result: Cancelled = await self._controller.execute(CancelInstances(self.item.id, ids))
        return result, max(ids), more

    async def retry(
        self, ids: tuple[int, ...], chosen: Chosen, after_id: int = 0, *, from_start: bool = False
    ) -> tuple[Retried, int, bool]:
        """Let failed instances run again: these, or without any the chosen ones behind `after_id`,
        as many as one entry takes; returns what was done, the instance to go on behind, and whether
        others follow.

        Raises `NotFoundError`, `RequestError` and `ConflictError` as `RetryInstances` does, and
        what `TriggerKeys.of` does.
        """
        ids, more = await self._slice(ids, chosen, after_id)
        if not ids:
            return Retried(0, 0), after_id, False
        keys = await self._keys_again(ids)
        command = RetryInstances(self.item.id, ids, from_start, keys)
        result: Retried = await self._controller.execute(command)
        return result, max(ids), more

    async def backfill(self, command: StartBackfill) -> Backfill:
        """Begin to make instances of old records. Raises what `StartBackfill` does."""
        if len(command.request) != REQUEST_BYTES:
            raise RequestError(f"a request has {REQUEST_BYTES} random bytes")
        found: Backfill = await self._controller.execute(command)
        return found

    async def control_backfill(self, number: int, status: int) -> int:
        """Let it run, pause or end; returns what it does then. Raises `NotFoundError`."""
        done: int = await self._controller.execute(ControlBackfill(self.item.id, number, status))
        return done

    async def _slice(
        self, ids: tuple[int, ...], chosen: Chosen, after_id: int
    ) -> tuple[tuple[int, ...], bool]:
        """Which instances one entry is about, and whether others follow."""
        if len(ids) > MAX_RETRIES:
            raise RequestError(f"{len(ids)} instances are more than {MAX_RETRIES} at a time")
        if ids:
            return ids, False
        found = await self._controller.query(
            lambda db: pipeline_views.ids_of(
                db, self.item.id, chosen, after_id=after_id, limit=MAX_RETRIES + 1
            )
        )
        return tuple(found[:MAX_RETRIES]), len(found) > MAX_RETRIES


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
        random: Random,
        others: Others | None = None,
        outputs: Outputs | None = None,
    ) -> None:
        """`others`: the leaders of other sets, `outputs`: what goes there; None without any."""
        self._outputs = outputs
        self._locks = locks
        self._others = others
        self._random = random
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
                                self._replica_set,
                                self._locks,
                                self._others,
                                self._outputs,
                                self._random,
                            )
                            self._drivers[item.id] = driver
                            nursery.start_soon(self._run, driver)
                        else:
                            known.declared()
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
        known = {item.id for item in self._catalog.all()}
        for each in self._drivers.values():
            if each.item.id in known:
                each.declared()
        for pipeline_id in [each for each in self._drivers if each not in known]:
            driver = self._drivers.pop(pipeline_id)
            driver.dispatcher.stop(NotFoundError(f"{driver.item.label} was deleted"))
            if (scope := self._scopes.pop(pipeline_id, None)) is not None:
                scope.cancel()

    def _on_visible(self, events: Sequence[InstancesChanged | StagesEnded]) -> None:
        """Only what concerns a pipeline wakes it."""
        moved: dict[PipelineDriver, None] = {}
        for event in events:
            driver = self._drivers.get(event.pipeline_id)
            if driver is not None:
                if isinstance(event, StagesEnded):
                    driver.dispatcher.settle(event.stage, event.instance_ids, event.by_runner)
                moved[driver] = None
        for driver in moved:
            driver.wake()

    def _taken(self, transaction: TransactionId, lock: Lock) -> None:
        driver = self._drivers.get(lock.owner_id)
        if driver is not None:
            driver.dispatcher.take(transaction, lock)

    def _freed(self, transaction: TransactionId, lock: Lock) -> None:
        driver = self._drivers.get(lock.owner_id)
        if driver is not None:
            driver.dispatcher.untake(transaction, lock)

    @property
    def troubles(self) -> list[str]:
        drivers = self._drivers.values()
        return [
            each
            for driver in drivers
            for part in (driver.consumer, driver.awaiting)
            for each in part.lasting_troubles
        ]

    def driver(self, pipeline_id: int) -> PipelineDriver:
        """Raises `NotFoundError`, `NotReadyError` while leading has just begun."""
        driver = self._drivers.get(pipeline_id)
        if driver is None:
            item = self._catalog.by_id(pipeline_id)
            spec = item.spec
            if isinstance(spec, PipelineSpec) and spec.replica_set == self._replica_set:
                raise NotReadyError(f"{item.label} is not served here yet", "ask again")
            raise NotFoundError(f"{item.label} does not live on {self._replica_set}")
        return driver

    def stop(self, reason: HadronError) -> None:
        for driver in self._drivers.values():
            driver.dispatcher.stop(reason)
