"""Consumes the input of one pipeline on its leader: trigger records become instances, as many as
`max_parallel` leaves room for, from all partitions in turn, each one once (`following`)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from hadron.model.batch import StampedBatch
from hadron.model.errors import HadronError, NotFoundError
from hadron.model.ids import NO_BALLOT, Ballot
from hadron.model.pipelines import PipelineSpec
from hadron.model.ports import Database
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.partition.controller import Controller
from hadron.pipelines.admission import Admission
from hadron.pipelines.following import Follower, Reach, ballot_before
from hadron.pipelines.matching import matched, packed_keys, untyped
from hadron.pipelines.sources import Gap, RemoteSource
from hadron.serving.catalog import Catalog
from hadron.serving.perseverance import persevere
from hadron.state.pipelines import views
from hadron.state.pipelines.inputs import MoveInput, OpenInput, Triggered, TriggerInstances
from hadron.state.pipelines.views import InputCursor

_log = logging.getLogger(__name__)

_CATCH_UP_S: Final = 10.0
"""Who waits for all of the input to be looked at does not stand still for its trouble."""

_ASK_AGAIN_S: Final = 0.1


@dataclass
class InputPartition:
    """A `Reading` of one partition of the input.

    Attributes:
        stream: the input's id, and what a leader must know of the schema to be asked.
        untyped: records without a type that were passed over, since this leader began.
    """

    item: SchemaObject
    spec: Callable[[], PipelineSpec]
    stream: Callable[[], tuple[int, int]]
    controller: Controller
    admission: Admission
    partition: str
    is_here: bool
    untyped: int = 0

    @property
    def label(self) -> str:
        return self.item.label

    async def is_wanted(self) -> bool:
        return True

    async def cursor(self) -> InputCursor | None:
        def read(db: Database) -> InputCursor | None:
            found = views.cursors(db, self.item.id)
            return next((each for each in found if each.partition == self.partition), None)

        return await self.controller.query(read)

    async def begin(self, source: RemoteSource) -> None:
        offset = await source.start(self.item.id)
        stream_id, _ = self.stream()
        await self.controller.execute(OpenInput(self.item.id, self.partition, stream_id, offset))

    async def take(
        self,
        batches: Sequence[StampedBatch],
        offset: int,
        ballot: Ballot,  # noqa: ARG002
    ) -> tuple[int, Ballot] | None:
        """Make instances of them."""
        async with self.admission.turn:
            room = await self.admission.wait()
            offsets, to_offset = matched(self.spec().triggers, batches, offset, room)
            reached = NO_BALLOT
            if not self.is_here:
                reached = ballot_before(to_offset, batches)
            result: Triggered = await self.controller.execute(
                TriggerInstances(
                    self.item.id,
                    self.partition,
                    offset,
                    to_offset,
                    tuple(offsets),
                    reached,
                    packed_keys(self.spec(), batches, offsets),
                )
            )
        if result.stale:
            return None
        self._count_untyped(batches, offset, to_offset)
        return to_offset, reached

    async def pass_gap(self, offset: int, gap: Gap) -> None:
        await self.controller.execute(
            MoveInput(
                self.item.id, self.partition, offset, gap.next_offset, gap.is_truncated, gap.ballot
            )
        )
        if gap.is_truncated:
            _log.warning(
                "%s: %s has lost records that were looked at, by a recovery or a restored backup: "
                "it goes on at offset %d, instead of %d",
                self.item.label,
                self.partition,
                gap.next_offset,
                offset,
            )

    def _count_untyped(self, batches: Sequence[StampedBatch], offset: int, to_offset: int) -> None:
        """Those from `offset` on, before `to_offset`, that were passed over for want of a type."""
        count = untyped(self.spec().triggers, batches, offset, to_offset)
        if count and not self.untyped:
            _log.warning(
                "%s: records without a type pass by its triggers, which match types (in %s)",
                self.item.label,
                self.partition,
            )
        self.untyped += count


class Consumer:
    """Of one pipeline. `run` must be running.

    Attributes:
        admission: of instances, also of those that others make.
        followers: by partition, of those that it reads.
    """

    def __init__(
        self,
        item: SchemaObject,
        spec: Callable[[], PipelineSpec],
        controller: Controller,
        catalog: Catalog,
        reach: Reach,
    ) -> None:
        self.admission = Admission(item.id, spec, controller, self._look)
        self._item = item
        self._spec = spec
        self._controller = controller
        self._catalog = catalog
        self._reach = reach
        self._inputs: dict[str, InputPartition] = {}
        self.followers: dict[str, Follower] = {}
        self._declared = trio.Event()
        self._looked = trio.Event()

    def wake(self) -> None:
        """Instances ended, or something was declared."""
        self.admission.wake()
        self._declared.set()
        self._declared = trio.Event()
        for each in self.followers.values():
            each.wake()

    @property
    def untyped(self) -> int:
        """Records without a type that were passed over, since this leader began: no trigger
        matches them, and people wonder."""
        return sum(each.untyped for each in self._inputs.values())

    @property
    def lasting_troubles(self) -> list[str]:
        """What people must know: partitions that could not be read for a while."""
        found = (self.followers[name].lasting_trouble for name in sorted(self.followers))
        return [each for each in found if each]

    async def run(self) -> None:
        """Consume every partition that the input has, also those that it gets later."""
        async with trio.open_nursery() as nursery:
            while True:
                declared = self._declared
                for name in sorted(self._partitions() - self.followers.keys()):
                    reading = InputPartition(
                        self._item,
                        self._spec,
                        self.stream,
                        self._controller,
                        self.admission,
                        name,
                        is_here=name == self._reach.home,
                    )
                    follower = Follower(reading, name, self._reach, self._look)
                    self._inputs[name], self.followers[name] = reading, follower
                    label = f"{self._item.label}, input {name}"
                    nursery.start_soon(persevere, label, follower.run, logging.ERROR)
                await declared.wait()

    def _partitions(self) -> set[str]:
        try:
            _, spec = self._catalog.stream(self._item.namespace, self._spec().input)
        except NotFoundError:
            return set()
        assert isinstance(spec, StreamSpec)
        return set(spec.partitions)

    def stream(self) -> tuple[int, int]:
        """The input's id, and what a leader must know of the schema to be asked."""
        item, _ = self._catalog.stream(self._item.namespace, self._spec().input)
        pipeline = self._catalog.by_id(self._item.id)
        return item.id, max(item.metadata_index, pipeline.metadata_index)

    def _look(self) -> None:
        """Something was looked at, or cannot be for want of room."""
        self._looked.set()
        self._looked = trio.Event()

    async def catch_up(self) -> None:
        """Wait until all is looked at that the partitions have by now; but neither for room, nor
        for long: one of them may be away."""
        with trio.move_on_after(_CATCH_UP_S):
            goals = {name: await self._end_of(name) for name in sorted(self._partitions())}
            while not self.admission.is_full and any(
                self.followers[name].offset < goal for name, goal in goals.items()
            ):
                await self._looked.wait()

    async def _end_of(self, partition: str) -> int:
        """Where it ends now; it is waited for, while it cannot be asked."""
        while True:
            follower = self.followers.get(partition)
            if follower is not None and follower.source is not None:
                with contextlib.suppress(HadronError, OSError):
                    return await follower.source.end()
            await trio.sleep(_ASK_AGAIN_S)
