"""Consumes the input of one pipeline on its leader: trigger records become instances, as many as
`max_parallel` leaves room for, from all partitions in turn.

Safety rule: each partition has a cursor in the log of the pipeline's home, and every entry that
moves it says where it was, so whoever else has consumed there meanwhile, here or under another
leader, a record makes one instance (PIPELINES P5).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import trio

from hadron.model.backoff import Backoff
from hadron.model.batch import StampedBatch
from hadron.model.errors import (
    FencedError,
    HadronError,
    NotFoundError,
    PeerError,
    ShuttingDownError,
)
from hadron.model.ids import NO_BALLOT, Ballot
from hadron.model.pipelines import PipelineSpec
from hadron.model.ports import Database, Random
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.partition.controller import Controller
from hadron.pipelines.matching import matched, packed_keys, untyped
from hadron.pipelines.sources import Gap, LocalSource, Others, RemoteSource, Source
from hadron.serving.catalog import Catalog
from hadron.serving.perseverance import persevere
from hadron.serving.visible import VisibleStreams
from hadron.state.pipelines import views as pipeline_views
from hadron.state.pipelines.inputs import MoveInput, OpenInput, Triggered, TriggerInstances
from hadron.state.pipelines.views import InputCursor

_log = logging.getLogger(__name__)

_TRIGGERS_PER_ENTRY: Final = 2_000
"""Instances made by one entry: about 10 ms of the writer's time."""


_LASTING_S: Final = 10.0
"""Trouble that is over by then, as when a leader begins, is nobody's business."""


_CATCH_UP_S: Final = 10.0
"""Who waits for all of the input to be looked at does not stand still for its trouble."""

_ASK_AGAIN_S: Final = 0.1


class Consumer:
    """Of one pipeline. `run` must be running.

    Attributes:
        untyped: records without a type that were passed over, since this leader began: no trigger
            matches them, and people wonder.
        sources: by partition, those that are read.
        troubles: by partition, why it is not.
    """

    def __init__(
        self,
        item: SchemaObject,
        spec: Callable[[], PipelineSpec],
        controller: Controller,
        catalog: Catalog,
        visible: VisibleStreams,
        replica_set: str,
        others: Others | None,
        random: Random,
    ) -> None:
        self.untyped = 0
        self.sources: dict[str, Source] = {}
        self.troubles: dict[str, str] = {}
        self._since: dict[str, float] = {}
        self._item = item
        self._spec = spec
        self._controller = controller
        self._catalog = catalog
        self._visible = visible
        self._home = replica_set
        self._others = others
        self._random = random
        self.turn = trio.Lock()
        """Of all that make instances: it is fair, so each gets its share of the room."""
        self._room_moved = trio.Event()
        self._declared = trio.Event()
        self._positions: dict[str, int] = {}
        self._looked = trio.Event()
        self._is_full = False

    def wake(self) -> None:
        """Instances ended, or something was declared."""
        self._room_moved.set()
        self._declared.set()
        self._declared = trio.Event()

    @property
    def lasting_troubles(self) -> list[str]:
        """What people must know: partitions that could not be read for a while."""
        long_ago = trio.current_time() - _LASTING_S
        return [
            f"{self._item.label} does not read {name}: {trouble}"
            for name, trouble in sorted(self.troubles.items())
            if self._since.get(name, long_ago) < long_ago
        ]

    async def run(self) -> None:
        """Consume every partition that the input has, also those that it gets later."""
        async with trio.open_nursery() as nursery:
            begun: set[str] = set()
            while True:
                declared = self._declared
                found = self._partitions()
                for name in sorted(found - begun):
                    begun.add(name)
                    work = self._consume_here if name == self._home else self._consume_there
                    label = f"{self._item.label}, input {name}"
                    nursery.start_soon(persevere, label, partial(work, name), logging.ERROR)
                await declared.wait()

    def _partitions(self) -> set[str]:
        try:
            _, spec = self._catalog.stream(self._item.namespace, self._spec().input)
        except NotFoundError:
            return set()
        assert isinstance(spec, StreamSpec)
        return set(spec.partitions)

    async def _cursor(self, partition: str) -> InputCursor | None:
        def read(db: Database) -> InputCursor | None:
            found = pipeline_views.cursors(db, self._item.id)
            return next((each for each in found if each.partition == partition), None)

        return await self._controller.query(read)

    # --- partitions -----------------------------------------------------------------------------

    async def _consume_here(self, partition: str) -> None:
        declared = self._declared
        while (cursor := await self._cursor(partition)) is None:
            # Declared, and not adopted yet.
            await declared.wait()
            declared = self._declared
        with LocalSource(self._visible, cursor.stream_id) as source:
            self.sources[partition] = source
            await self._follow(source, cursor)

    async def _consume_there(self, partition: str) -> None:
        backoff = Backoff(self._random)

        async def conversation(source: RemoteSource) -> None:
            cursor = await self._cursor(partition)
            while cursor is None:
                offset = await source.start(self._item.id)
                stream_id, _ = self.stream()
                await self._controller.execute(
                    OpenInput(self._item.id, partition, stream_id, offset)
                )
                cursor = await self._cursor(partition)
            self.sources[partition] = source
            self.troubles.pop(partition, None)
            self._since.pop(partition, None)
            backoff.reset()
            await self._follow(source, cursor)

        while True:
            try:
                if self._others is None:
                    raise PeerError(f"nobody here knows who leads {partition}")
                await self._others.converse(partition, *self.stream(), conversation)
            except (FencedError, ShuttingDownError):
                raise
            except (HadronError, OSError) as error:
                self.troubles[partition] = str(error) or type(error).__name__
                self._since.setdefault(partition, trio.current_time())
                _log.debug("%s cannot read %s: %s", self._item.label, partition, error)
            await trio.sleep(backoff.next_s())

    def stream(self) -> tuple[int, int]:
        """The input's id, and what a leader must know of the schema to be asked."""
        item, _ = self._catalog.stream(self._item.namespace, self._spec().input)
        pipeline = self._catalog.by_id(self._item.id)
        return item.id, max(item.metadata_index, pipeline.metadata_index)

    async def _follow(self, source: Source, cursor: InputCursor) -> None:
        offset, ballot = cursor.next_offset, cursor.ballot
        while True:
            self._note(cursor.partition, offset)
            found = await source.read(offset, ballot)
            if isinstance(found, Gap):
                offset, ballot = await self._pass_gap(cursor.partition, offset, found)
                continue
            while found and found[-1].next_offset > offset:
                following = await self._take(cursor.partition, found, offset)
                is_stale = following is None
                if is_stale:
                    # Somebody else has moved it: the entry that drops records, for one.
                    known = await self._cursor(cursor.partition)
                    assert known is not None
                    offset, ballot = known.next_offset, known.ballot
                    break
                assert following is not None
                offset, ballot = following
                self._note(cursor.partition, offset)

    def _note(self, partition: str, offset: int) -> None:
        """It was looked at so far."""
        self._positions[partition] = offset
        self._looked.set()
        self._looked = trio.Event()

    async def catch_up(self) -> None:
        """Wait until all is looked at that the partitions have by now; but neither for room, nor
        for long: one of them may be away."""
        with trio.move_on_after(_CATCH_UP_S):
            goals = {name: await self._end_of(name) for name in sorted(self._partitions())}
            while not self._is_full and any(
                self._positions.get(name, -1) < goal for name, goal in goals.items()
            ):
                await self._looked.wait()

    async def _end_of(self, partition: str) -> int:
        """Where it ends now; it is waited for, while it cannot be asked."""
        while True:
            source = self.sources.get(partition)
            if source is not None:
                with contextlib.suppress(HadronError, OSError):
                    return await source.end()
            await trio.sleep(_ASK_AGAIN_S)

    async def _pass_gap(self, partition: str, offset: int, gap: Gap) -> tuple[int, Ballot]:
        """What is not there is told, and passed."""
        await self._controller.execute(
            MoveInput(
                self._item.id, partition, offset, gap.next_offset, gap.is_truncated, gap.ballot
            )
        )
        if gap.is_truncated:
            _log.warning(
                "%s: %s has lost records that were looked at, by a recovery or a restored backup: "
                "it goes on at offset %d, instead of %d",
                self._item.label,
                partition,
                gap.next_offset,
                offset,
            )
        known = await self._cursor(partition)
        assert known is not None
        return known.next_offset, known.ballot

    # --- instances ------------------------------------------------------------------------------

    async def _take(
        self, partition: str, batches: Sequence[StampedBatch], offset: int
    ) -> tuple[int, Ballot] | None:
        """Make instances of some of these, from `offset` on; returns the cursor, or None where it
        had moved."""
        async with self.turn:
            room = await self.wait_for_room()
            offsets, to_offset = matched(self._spec().triggers, batches, offset, room)
            ballot = NO_BALLOT
            if partition != self._home:
                (last,) = (b for b in batches if b.base_offset < to_offset <= b.next_offset)
                ballot = Ballot(last.epoch, last.incarnation)
            result: Triggered = await self._controller.execute(
                TriggerInstances(
                    self._item.id,
                    partition,
                    offset,
                    to_offset,
                    tuple(offsets),
                    ballot,
                    packed_keys(self._spec(), batches, offsets),
                )
            )
        if result.stale:
            return None
        self._count_untyped(batches, offset, to_offset)
        return to_offset, ballot

    async def wait_for_room(self) -> int:
        """How many instances may be made; for who has the turn."""
        while True:
            self._room_moved = trio.Event()
            counts = await self._controller.query(
                lambda db: pipeline_views.counts(db, self._item.id)
            )
            room = min(self._spec().max_parallel - counts.live, _TRIGGERS_PER_ENTRY)
            if room > 0:
                return room
            self._is_full = True
            self._looked.set()
            self._looked = trio.Event()
            try:
                await self._room_moved.wait()
            finally:
                self._is_full = False

    def _count_untyped(self, batches: Sequence[StampedBatch], offset: int, to_offset: int) -> None:
        """Those from `offset` on, before `to_offset`, that were passed over for want of a type."""
        count = untyped(self._spec().triggers, batches, offset, to_offset)
        if count and not self.untyped:
            _log.warning(
                "pipeline %s: records without a type pass by its triggers, which match types",
                self._item.label,
            )
        self.untyped += count
