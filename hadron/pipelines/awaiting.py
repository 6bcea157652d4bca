"""Looks for the records that stages wait for, on their pipeline's leader: partition by partition,
wherever they are, and by the hash of each record's key.

A record is looked at after all of the input that was there when it was read: so what comes right
behind its trigger finds an instance that waits for it. Safety rule: as with inputs, each partition
has a cursor in the log of the pipeline's home, and every entry says where it was (PIPELINES P14).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import trio

from hadron.model.backoff import Backoff
from hadron.model.batch import StampedBatch, key_hashes, matching_indexes, read_head
from hadron.model.errors import (
    FencedError,
    HadronError,
    NotFoundError,
    PeerError,
    ShuttingDownError,
)
from hadron.model.ids import Ballot
from hadron.model.pipelines import matches_type
from hadron.model.ports import Database, Random
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.partition.controller import Controller
from hadron.pipelines.sources import Gap, LocalSource, Others, RemoteSource, Source
from hadron.serving.catalog import Catalog
from hadron.serving.perseverance import persevere
from hadron.serving.visible import VisibleStreams
from hadron.state.pipelines import definitions, wait_inputs, waits
from hadron.state.pipelines.wait_inputs import Moved, OpenWait, WaitCursor
from hadron.state.pipelines.waits import Signal, SignalStages, Waiting
from hadron.state.streams.keys import signed

_log = logging.getLogger(__name__)

SIGNALS_PER_ENTRY: Final = 2_000
"""As of triggers: each may make other stages ready."""

_LASTING_S: Final = 10.0
"""As of inputs: trouble that is over by then is nobody's business."""

_Place = tuple[str, str]
"""Stream and partition, by name."""


class _Found(NamedTuple):
    """Whom to tell of what was read.

    Attributes:
        to_offset: everything before is told by it.
    """

    signals: tuple[Signal, ...]
    to_offset: int


class Awaiting:
    """Of one pipeline. `run` must be running.

    Args:
        catch_up: returns when the input is looked at that is known of.

    Attributes:
        troubles: by stream and partition, why it is not read.
    """

    def __init__(
        self,
        item: SchemaObject,
        controller: Controller,
        catalog: Catalog,
        visible: VisibleStreams,
        replica_set: str,
        others: Others | None,
        random: Random,
        catch_up: Callable[[], Awaitable[None]],
    ) -> None:
        self.troubles: dict[_Place, str] = {}
        self._since: dict[_Place, float] = {}
        self._item = item
        self._controller = controller
        self._catalog = catalog
        self._visible = visible
        self._home = replica_set
        self._others = others
        self._random = random
        self._catch_up = catch_up
        self._declared = trio.Event()
        self._begun: set[tuple[int, str]] = set()

    def wake(self) -> None:
        """Something was declared."""
        self._declared.set()
        self._declared = trio.Event()

    @property
    def lasting_troubles(self) -> list[str]:
        long_ago = trio.current_time() - _LASTING_S
        return [
            f"{self._item.label} waits for records of {stream}, and does not read {partition}: "
            f"{trouble}"
            for (stream, partition), trouble in sorted(self.troubles.items())
            if self._since.get((stream, partition), long_ago) < long_ago
        ]

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            # In here trouble would come in a group.
            await persevere(f"{self._item.label}, waits", partial(self._begin_all, nursery))

    async def _begin_all(self, nursery: trio.Nursery) -> None:
        while True:
            declared = self._declared
            for item, partition in await self._partitions():
                if (item.id, partition) in self._begun:
                    continue
                self._begun.add((item.id, partition))
                work = self._look_here if partition == self._home else self._look_there
                label = f"{self._item.label}, awaited {item.name} on {partition}"
                nursery.start_soon(persevere, label, partial(work, item, partition), logging.ERROR)
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

    async def _is_awaited(self, item: SchemaObject) -> bool:
        return item.name in await self._controller.query(
            partial(wait_inputs.all_awaited, pipeline_id=self._item.id)
        )

    def _is_another(self, item: SchemaObject) -> bool:
        """Whether it was deleted, and another stream has its name, which is looked at by itself."""
        try:
            return self._catalog.stream(item.namespace, item.name)[0].id != item.id
        except NotFoundError:
            return False

    async def _cursor(self, stream_id: int, partition: str) -> WaitCursor | None:
        def read(db: Database) -> WaitCursor | None:
            for each in wait_inputs.cursors(db, self._item.id):
                if (each.stream_id, each.partition) == (stream_id, partition):
                    return each
            return None

        return await self._controller.query(read)

    # --- partitions -----------------------------------------------------------------------------

    async def _look_here(self, item: SchemaObject, partition: str) -> None:
        while True:
            declared = self._declared
            cursor = await self._cursor(item.id, partition)
            if cursor is None:
                # Declared, and not adopted yet; or awaited no more.
                await declared.wait()
                continue
            with LocalSource(self._visible, item.id) as source:
                await self._follow_while_awaited(source, cursor)

    async def _look_there(self, item: SchemaObject, partition: str) -> None:
        backoff, place = Backoff(self._random), (item.name, partition)

        async def conversation(source: RemoteSource) -> None:
            cursor = await self._cursor(item.id, partition)
            while cursor is None:
                offset = await source.start(self._item.id, awaited=item.id)
                await self._controller.execute(OpenWait(self._item.id, item.id, partition, offset))
                cursor = await self._cursor(item.id, partition)
            self.troubles.pop(place, None)
            self._since.pop(place, None)
            backoff.reset()
            await self._follow_while_awaited(source, cursor)

        while True:
            declared = self._declared
            is_another = self._is_another(item)
            if is_another or not await self._is_awaited(item):
                self.troubles.pop(place, None)
                self._since.pop(place, None)
                if is_another:
                    return
                await declared.wait()
                continue
            try:
                if self._others is None:
                    raise PeerError(f"nobody here knows who leads {partition}")
                pipeline = self._catalog.by_id(self._item.id)
                index = max(item.metadata_index, pipeline.metadata_index)
                await self._others.converse(partition, item.id, index, conversation)
            except (FencedError, ShuttingDownError):
                raise
            except (HadronError, OSError) as error:
                self.troubles[place] = str(error) or type(error).__name__
                self._since.setdefault(place, trio.current_time())
                _log.debug("%s cannot read %s: %s", self._item.label, partition, error)
            await trio.sleep(backoff.next_s())

    async def _follow_while_awaited(self, source: Source, cursor: WaitCursor) -> None:
        """Returns once there is no cursor any more: nothing waits for these records."""
        try:
            await self._follow(source, cursor)
        except NotFoundError:
            if await self._cursor(cursor.stream_id, cursor.partition) is not None:
                raise

    async def _follow(self, source: Source, cursor: WaitCursor) -> None:
        offset, ballot = cursor.next_offset, cursor.ballot
        while True:
            found = await source.read(offset, ballot)
            if isinstance(found, Gap):
                moved = await self._pass_gap(cursor, offset, found)
                offset, ballot = (
                    (found.next_offset, found.ballot) if moved else await self._at(cursor)
                )
                continue
            await self._catch_up()
            while found and found[-1].next_offset > offset:
                following = await self._tell(cursor, found, offset, ballot)
                if following is None:
                    # Somebody else has moved it: the entry that drops records, for one.
                    offset, ballot = await self._at(cursor)
                    break
                offset, ballot = following

    async def _at(self, cursor: WaitCursor) -> tuple[int, Ballot]:
        known = await self._cursor(cursor.stream_id, cursor.partition)
        if known is None:
            raise NotFoundError(f"{self._item.label} waits for no records of it any more")
        return known.next_offset, known.ballot

    async def _pass_gap(self, cursor: WaitCursor, offset: int, gap: Gap) -> bool:
        """What is not there is told, and passed; false where the cursor had moved."""
        _log.warning(
            "%s waits for records of stream %d: %s %s: it goes on at offset %d, instead of %d",
            self._item.label,
            cursor.stream_id,
            cursor.partition,
            "has lost records that were looked at, by a recovery or a restored backup"
            if gap.is_truncated
            else "has dropped records that were not looked at, by retention",
            gap.next_offset,
            offset,
        )
        moved: Moved = await self._controller.execute(
            SignalStages(
                self._item.id,
                cursor.stream_id,
                cursor.partition,
                offset,
                gap.next_offset,
                (),
                gap.ballot,
                gap.is_truncated,
            )
        )
        return not moved.stale

    # --- records --------------------------------------------------------------------------------

    async def _tell(
        self, cursor: WaitCursor, batches: Sequence[StampedBatch], offset: int, ballot: Ballot
    ) -> tuple[int, Ballot] | None:
        """Tell those who wait for these, from `offset` on, which is behind what has this ballot;
        returns the cursor, or None where it had moved."""
        found = await self._controller.query(
            partial(_whom_to_tell, self._item.id, cursor, batches, offset)
        )
        if cursor.partition != self._home and found.to_offset > offset:
            at = found.to_offset
            (last,) = (b for b in batches if b.base_offset < at <= b.next_offset)
            ballot = Ballot(last.epoch, last.incarnation)
        moved: Moved = await self._controller.execute(
            SignalStages(
                self._item.id,
                cursor.stream_id,
                cursor.partition,
                offset,
                found.to_offset,
                found.signals,
                ballot,
            )
        )
        return None if moved.stale else (found.to_offset, ballot)


def _whom_to_tell(
    pipeline_id: int, cursor: WaitCursor, batches: Sequence[StampedBatch], offset: int, db: Database
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
    for each in waits.waiting_for(db, pipeline_id, cursor.stream_id, list(records)):
        patterns = types.get((each.version, each.stage), ())
        if patterns not in fitting:
            fitting[patterns] = _fitting(batches, patterns)
        at = _first(records[each.key_hash], each, cursor, fitting[patterns])
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
    offsets: Sequence[int], waiting: Waiting, cursor: WaitCursor, fitting: frozenset[int]
) -> int | None:
    """Of records with its key; what triggered it, or came before that, is nothing it waits for."""
    is_own = waiting.root[:2] == (cursor.stream_id, cursor.partition)
    after = waiting.root[2] if is_own else -1
    return next((at for at in offsets if at > after and at in fitting), None)
