"""Runs the backfills of one pipeline on its leader: instances of old records, behind those of new
ones, as fast as each may (PIPELINES P13). Each step is an entry that says where the backfill stood,
so the next leader goes on where this one was."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import trio

from hadron.model.batch import StampedBatch
from hadron.model.errors import FencedError, HadronError, PeerError, ShuttingDownError
from hadron.model.ids import NO_BALLOT
from hadron.model.pipelines import PipelineSpec
from hadron.partition.controller import Controller
from hadron.pipelines.admission import Admission
from hadron.pipelines.matching import matched, packed_keys
from hadron.pipelines.sources import READ_BYTES, Gap, Others, RemoteSource
from hadron.serving.perseverance import persevere
from hadron.serving.visible import VisibleStreams
from hadron.state.pipelines import backfills
from hadron.state.pipelines.backfills import Backfill, StepBackfill, Stepped
from hadron.state.pipelines.tables import BackfillStatus

_log = logging.getLogger(__name__)

_PAUSE_S: Final = 1.0
"""After a set that could not be read."""


class Backfilling:
    """Of one pipeline. `run` must be running.

    Args:
        stream: the input's id, and what a leader must know of the schema.
    """

    def __init__(
        self,
        pipeline_id: int,
        spec: Callable[[], PipelineSpec],
        stream: Callable[[], tuple[int, int]],
        controller: Controller,
        visible: VisibleStreams,
        others: Others | None,
        admission: Admission,
    ) -> None:
        self._id = pipeline_id
        self._spec = spec
        self._stream = stream
        self._controller = controller
        self._visible = visible
        self._others = others
        self._admission = admission
        self._moved = trio.Event()

    def wake(self) -> None:
        """One was started, or goes on."""
        self._moved.set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            # In here trouble would come in a group.
            await persevere("backfills", partial(self._begin_all, nursery))

    async def _begin_all(self, nursery: trio.Nursery) -> None:
        at_work: set[int] = set()
        while True:
            self._moved = trio.Event()
            for each in await self._running():
                if each.number not in at_work:
                    at_work.add(each.number)
                    nursery.start_soon(self._fill, each, at_work)
            await self._moved.wait()

    async def _running(self) -> list[Backfill]:
        found = await self._controller.query(partial(backfills.backfills, pipeline_id=self._id))
        return [each for each in found if each.status == BackfillStatus.RUNNING]

    async def _fill(self, backfill: Backfill, at_work: set[int]) -> None:
        """Step after step, until it does not run any more."""
        try:
            offset: int | None = backfill.next_offset
            while offset is not None and offset < backfill.to_offset:
                before = offset
                try:
                    offset = await self._fill_some(backfill, offset)
                except (FencedError, ShuttingDownError):
                    return
                except (HadronError, OSError) as error:
                    _log.info("backfill %d of pipeline %d: %s", backfill.number, self._id, error)
                if offset == before:
                    await trio.sleep(_PAUSE_S)
        finally:
            at_work.discard(backfill.number)
            # It may have been let go on meanwhile.
            self._moved.set()

    async def _fill_some(self, backfill: Backfill, offset: int) -> int | None:
        """Read on from `offset`; returns where it stands then, or None when it does not run."""
        spec, (stream_id, index) = self._spec(), self._stream()
        if backfill.partition == spec.replica_set:
            first = self._visible.bounds(stream_id).first_offset
            if offset < first:
                return await self._step(backfill, offset, min(first, backfill.to_offset), [])
            found = await self._visible.read(stream_id, offset, READ_BYTES)
            return await self._take(backfill, offset, found)
        if self._others is None:
            raise PeerError(f"nobody here knows who leads {backfill.partition}")
        stood: list[int | None] = []

        async def conversation(source: RemoteSource) -> None:
            there = await source.read(offset, NO_BALLOT)
            if isinstance(there, Gap):
                end = min(there.next_offset, backfill.to_offset)
                if end > offset:
                    stood.append(await self._step(backfill, offset, end, []))
                else:
                    # Its end was lost: whoever consumes the input says so, and cancels this.
                    stood.append(offset)
            else:
                stood.append(await self._take(backfill, offset, there))

        await self._others.converse(backfill.partition, stream_id, index, conversation)
        return stood[0]

    async def _take(
        self, backfill: Backfill, offset: int, batches: Sequence[StampedBatch]
    ) -> int | None:
        """Make instances of what was read, as many at a time as may be."""
        end = min(batches[-1].next_offset, backfill.to_offset) if batches else offset
        at: int | None = offset
        while at is not None and at < end:
            async with self._admission.turn:
                room = await self._admission.wait()
                if backfill.per_s:
                    room = min(room, backfill.per_s)
                offsets, to_offset = matched(self._spec().triggers, batches, at, room)
                kept = [each for each in offsets if each < end]
                keys = packed_keys(self._spec(), batches, kept)
                following = await self._step(backfill, at, min(to_offset, end), kept, keys)
            at = following
            if backfill.per_s:
                await trio.sleep(len(kept) / backfill.per_s)
        return at

    async def _step(
        self,
        backfill: Backfill,
        offset: int,
        to_offset: int,
        offsets: Sequence[int],
        key_hashes: bytes = b"",
    ) -> int | None:
        command = StepBackfill(
            self._id, backfill.number, offset, to_offset, tuple(offsets), key_hashes
        )
        result: Stepped = await self._controller.execute(command)
        return None if result.stale else result.next_offset
