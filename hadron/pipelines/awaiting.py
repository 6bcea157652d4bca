"""Looks for the records that stages wait for, on their pipeline's leader: partition by partition,
wherever they are (`following`), and by the hash of each record's key.

A record is looked at after all of the input that was there when it was read: so what comes right
behind its trigger finds an instance that waits for it (PIPELINES P14).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import trio

from hadron.model.batch import StampedBatch, key_hashes, matching_indexes, read_head
from hadron.model.errors import NotFoundError
from hadron.model.ids import Ballot
from hadron.model.pipelines import matches_type
from hadron.model.ports import Database
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.partition.controller import Controller
from hadron.pipelines.following import Follower, Reach, ballot_before
from hadron.pipelines.sources import Gap, RemoteSource
from hadron.serving.catalog import Catalog
from hadron.serving.perseverance import persevere
from hadron.state.pipelines import definitions, wait_inputs, waiting
from hadron.state.pipelines.wait_inputs import Moved, OpenWait, WaitCursor
from hadron.state.pipelines.waiting import Waiting
from hadron.state.pipelines.waits import Signal, SignalStages
from hadron.state.streams.keys import signed

_log = logging.getLogger(__name__)

SIGNALS_PER_ENTRY: Final = 2_000
"""As of triggers: each may make other stages ready."""


class Place(NamedTuple):
    """A partition of an awaited stream."""

    stream_id: int
    partition: str


class _Found(NamedTuple):
    """Whom to tell of what was read.

    Attributes:
        to_offset: everything before is told by it.
    """

    signals: tuple[Signal, ...]
    to_offset: int


@dataclass(frozen=True)
class AwaitedPartition:
    """A `Reading` of one partition of a stream that stages wait for.

    Attributes:
        catch_up: returns when the input is looked at that is known of.
    """

    pipeline: SchemaObject
    item: SchemaObject
    place: Place
    controller: Controller
    catalog: Catalog
    catch_up: Callable[[], Awaitable[None]]
    is_here: bool

    @property
    def label(self) -> str:
        return f"{self.pipeline.label} waits for records of {self.item.name}, and"

    def stream(self) -> tuple[int, int] | None:
        try:
            self.catalog.by_id(self.item.id)
        except NotFoundError:
            # It was deleted; another one of its name is looked at by itself.
            return None
        pipeline = self.catalog.by_id(self.pipeline.id)
        return self.item.id, max(self.item.metadata_index, pipeline.metadata_index)

    async def is_wanted(self) -> bool:
        return self.item.name in await self.controller.query(
            partial(wait_inputs.all_awaited, pipeline_id=self.pipeline.id)
        )

    async def cursor(self) -> WaitCursor | None:
        def read(db: Database) -> WaitCursor | None:
            for each in wait_inputs.cursors(db, self.pipeline.id):
                if (each.stream_id, each.partition) == self.place:
                    return each
            return None

        return await self.controller.query(read)

    async def begin(self, source: RemoteSource) -> None:
        offset = await source.start(self.pipeline.id, awaited=self.item.id)
        await self.controller.execute(OpenWait(self.pipeline.id, *self.place, offset))

    async def take(
        self, batches: Sequence[StampedBatch], offset: int, ballot: Ballot
    ) -> tuple[int, Ballot] | None:
        """Tell those who wait for them."""
        await self.catch_up()
        found = await self.controller.query(
            partial(_whom_to_tell, self.pipeline.id, self.place, batches, offset)
        )
        if not self.is_here and found.to_offset > offset:
            ballot = ballot_before(found.to_offset, batches)
        moved: Moved = await self.controller.execute(
            SignalStages(
                self.pipeline.id, *self.place, offset, found.to_offset, found.signals, ballot
            )
        )
        return None if moved.stale else (found.to_offset, ballot)

    async def pass_gap(self, offset: int, gap: Gap) -> None:
        _log.warning(
            "%s waits for records of %s: %s %s: it goes on at offset %d, instead of %d",
            self.pipeline.label,
            self.item.name,
            self.place.partition,
            "has lost records that were looked at, by a recovery or a restored backup"
            if gap.is_truncated
            else "has dropped records that were not looked at, by retention",
            gap.next_offset,
            offset,
        )
        await self.controller.execute(
            SignalStages(
                self.pipeline.id,
                *self.place,
                offset,
                gap.next_offset,
                (),
                gap.ballot,
                gap.is_truncated,
            )
        )


class Awaiting:
    """Of one pipeline. `run` must be running.

    Args:
        catch_up: returns when the input is looked at that is known of.
    """

    def __init__(
        self,
        item: SchemaObject,
        controller: Controller,
        catalog: Catalog,
        reach: Reach,
        catch_up: Callable[[], Awaitable[None]],
    ) -> None:
        self._item = item
        self._controller = controller
        self._catalog = catalog
        self._reach = reach
        self._catch_up = catch_up
        self._declared = trio.Event()
        self._followers: dict[Place, Follower] = {}

    def wake(self) -> None:
        """Something was declared."""
        self._declared.set()
        self._declared = trio.Event()
        for each in self._followers.values():
            each.wake()

    @property
    def lasting_troubles(self) -> list[str]:
        """What people must know: partitions that could not be read for a while."""
        found = (self._followers[place].lasting_trouble for place in sorted(self._followers))
        return [each for each in found if each]

    async def run(self) -> None:
        """Look at every partition of all that is awaited, also at what comes later."""
        async with trio.open_nursery() as nursery:
            # In here trouble would come in a group.
            await persevere(f"{self._item.label}, waits", partial(self._begin_all, nursery))

    async def _begin_all(self, nursery: trio.Nursery) -> None:
        while True:
            declared = self._declared
            for item, partition in await self._partitions():
                place = Place(item.id, partition)
                if place in self._followers:
                    continue
                reading = AwaitedPartition(
                    self._item,
                    item,
                    place,
                    self._controller,
                    self._catalog,
                    self._catch_up,
                    is_here=partition == self._reach.home,
                )
                follower = self._followers[place] = Follower(reading, partition, self._reach)
                label = f"{self._item.label}, awaited {item.name} on {partition}"
                nursery.start_soon(persevere, label, follower.run, logging.ERROR)
            await declared.wait()

    async def _partitions(self) -> list[tuple[SchemaObject, str]]:
        """Of all streams that some instance may wait for."""
        try:
            names = await self._controller.query(
                partial(wait_inputs.all_awaited, pipeline_id=self._item.id)
            )
        except NotFoundError:
            return []
        found = []
        for name in sorted(names):
            try:
                item, spec = self._catalog.stream(self._item.namespace, name)
            except NotFoundError:
                continue
            assert isinstance(spec, StreamSpec)
            found += [(item, partition) for partition in spec.partitions]
        return found


def _whom_to_tell(
    pipeline_id: int, place: Place, batches: Sequence[StampedBatch], offset: int, db: Database
) -> _Found:
    """The first ones who wait for what was read from `offset` on, as many as an entry takes."""
    records = _by_hash(batches, offset)
    types = {
        (version, stage.name): stage.wait.types
        for version, stages in definitions.all_stages(db, pipeline_id).items()
        for stage in stages
        if stage.wait is not None
    }
    fitting: dict[tuple[str, ...], frozenset[int]] = {}
    signals: list[Signal] = []
    for each in waiting.waiting_for(db, pipeline_id, place.stream_id, list(records)):
        patterns = types.get((each.version, each.stage), ())
        if patterns not in fitting:
            fitting[patterns] = _fitting(batches, patterns)
        at = _first(records[each.key_hash], each, place, fitting[patterns])
        if at is None:
            continue
        signals.append(Signal(each.instance_id, each.stage, at))
        if len(signals) == SIGNALS_PER_ENTRY:
            # Others wait for a record with this key, and for those with keys that come later.
            return _Found(tuple(signals), records[each.key_hash][0])
    return _Found(tuple(signals), batches[-1].next_offset)


def _by_hash(batches: Sequence[StampedBatch], offset: int) -> Mapping[int, list[int]]:
    """Offsets from `offset` on by the hash of the key (signed), in the order of the first ones;
    without those that have none."""
    found: dict[int, list[int]] = {}
    for batch in batches:
        for index, key_hash in enumerate(key_hashes(batch.data)):
            at = batch.base_offset + index
            if key_hash and at >= offset:
                found.setdefault(signed(key_hash), []).append(at)
    return found


def _fitting(batches: Sequence[StampedBatch], patterns: tuple[str, ...]) -> frozenset[int]:
    """Offsets of records whose types match; () matches all."""
    return frozenset(
        batch.base_offset + index
        for batch in batches
        for index in matching_indexes(
            read_head(batch.data), lambda name: matches_type(patterns, name)
        )
    )


def _first(
    offsets: Sequence[int], waiting: Waiting, place: Place, fitting: frozenset[int]
) -> int | None:
    """Of records with its key; what triggered it, or came before that, is nothing it waits for."""
    is_own = waiting.root[:2] == place
    after = waiting.root[2] if is_own else -1
    return next((at for at in offsets if at > after and at in fitting), None)
