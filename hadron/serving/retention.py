"""Retention's clock: asks, on the leader, for what is due to be dropped, and says whom it overtook.

A task that sleeps until something can be due: the oldest batch of a stream with an age limit gets
too old, or a stream with a size limit grows beyond it. A round looks at the streams that are due,
at no others: thousands of idle ones beside a busy one are not read for it. It drops a slice of
each, so none waits for one that is filled as fast as it is emptied. Between two rounds there is a
pause, unless a slice was not all: a stream under load is over its limits by what is written in that
time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

import trio

from hadron.model.errors import NotFoundError
from hadron.model.schema import Retention, StreamSpec
from hadron.partition.controller import Controller
from hadron.partition.observers import Order
from hadron.serving.catalog import Catalog
from hadron.serving.leading import Part
from hadron.serving.perseverance import Apart, persevere
from hadron.state.events import BatchAppended
from hadron.state.streams import retention
from hadron.state.streams.retention import Trimmed, TrimStream

_log = logging.getLogger(__name__)

PAUSE_S: Final = 0.25
"""Between two rounds at least: batches are dropped in handfuls, not one by one."""

_HELD_BACK_S: Final = 1.0
"""Until what a replica still needs is looked at again."""

_LONGEST_SLEEP_S: Final = 600.0
"""The wall clock may jump; nothing is late by more than this because of it."""

_STEPS_OF_AGE: Final = 100
"""Batches are dropped when they are at most this part of the age limit too old, or a second."""


class RetentionDriver(Part):
    """All streams of a leadership that do not keep everything. `run` must be running.

    A partition that was taken from its stream keeps what it has: how much a limit drops is asked
    where it holds, and nobody asks there (CLUSTER R9).
    """

    def __init__(self, controller: Controller, catalog: Catalog, replica_set: str) -> None:
        self._controller = controller
        self._catalog = catalog
        self._replica_set = replica_set
        self._woken = trio.Event()
        self._due_s: dict[int, float] = {}
        """When each stream with limits is to be looked at, by trio's clock."""
        self._limits_seen: dict[int, Retention] = {}
        """By which limits that was found."""
        self._has_schema_changed = True
        self._has_more = False
        """Whether the round has left something that was due."""
        self._room: dict[int, int] = {}
        """Bytes that may still be appended to a stream before it is looked at again."""
        self._came: dict[int, int] = {}
        """Bytes that were appended to the stream that is looked at, since that began."""
        self._apart = Apart("retention")
        catalog.listen(self._on_schema)
        controller.observers.add(Order.DRIVERS, [BatchAppended], self._on_visible)

    def _wake(self) -> None:
        self._woken.set()

    def _on_schema(self) -> None:
        self._has_schema_changed = True
        self._wake()

    def _on_visible(self, events: Sequence[BatchAppended]) -> None:
        for event in events:
            if event.stream_id in self._came:
                self._came[event.stream_id] += event.size
            if event.stream_id in self._room:
                self._give(event.stream_id, self._room[event.stream_id] - event.size)

    def _give(self, stream_id: int, room: int) -> None:
        self._room[stream_id] = room
        if room < 0:
            self._due_s[stream_id] = 0.0
            self._wake()

    async def run(self) -> None:
        """Drop what is due, for ever."""
        await persevere("retention", self._rounds)

    def _note_limits(self) -> None:
        """The schema is another one: streams whose limits are others by now are due, and of those
        without any nothing is kept."""
        self._has_schema_changed = False
        limited = {stream_id: self._limits(stream_id) for stream_id in self._limited()}
        for stream_id in self._limits_seen.keys() - limited.keys():
            for known in (self._due_s, self._room):
                known.pop(stream_id, None)
            self._apart.forget(_label(stream_id))
        for stream_id, limits in limited.items():
            if self._limits_seen.get(stream_id) != limits:
                self._due_s[stream_id] = 0.0
        self._limits_seen = limited

    async def _rounds(self) -> None:
        while True:
            self._woken = trio.Event()
            sleep_s = await self._round()
            if self._has_more:
                continue
            await trio.sleep(PAUSE_S)
            with trio.move_on_after(sleep_s):
                await self._woken.wait()

    async def _round(self) -> float:
        """Look at the streams that are due; returns in how many seconds the next one is."""
        if self._has_schema_changed:
            self._note_limits()
        self._has_more = False
        begun_s = trio.current_time()
        for stream_id in [each for each, due_s in self._due_s.items() if due_s <= begun_s]:
            self._room.pop(stream_id, None)
            # What comes from here on may make it due at once: that must not be undone below.
            self._due_s[stream_id] = float("inf")
            sleep_s = _HELD_BACK_S
            try:
                sleep_s = await self._apart.do(
                    _label(stream_id), partial(self._trim, stream_id), _HELD_BACK_S
                )
            finally:
                # Also of a look that has failed: the next one is soon.
                due_s = trio.current_time() + min(sleep_s, _LONGEST_SLEEP_S)
                self._due_s[stream_id] = min(self._due_s[stream_id], due_s)
        return max(0.0, min(self._due_s.values(), default=float("inf")) - trio.current_time())

    def _limited(self) -> list[int]:
        return [
            item.id
            for item in self._catalog.all()
            if isinstance(item.spec, StreamSpec)
            and self._replica_set in item.spec.partitions
            and item.spec.retention != Retention()
        ]

    def _limits(self, stream_id: int) -> Retention:
        """As they are now; none of a stream that is gone, or has no partition here any more."""
        try:
            spec = self._catalog.partition(stream_id, self._replica_set).spec
        except NotFoundError:
            return Retention()
        assert isinstance(spec, StreamSpec)
        return spec.retention

    async def _trim(self, stream_id: int) -> float:
        """Drop what is due of one stream, a slice of it, and return in how many seconds it is to be
        looked at again. Each slice goes by the limits that there are by then: whoever has set them
        too low by mistake keeps what is left."""
        limits = self._limits(stream_id)
        if limits == Retention():
            return float("inf")
        now_ms = self._controller.log_now_ms()
        self._came = {stream_id: 0}
        found = await self._controller.read(
            partial(
                retention.due,
                stream_id=stream_id,
                older_than_ms=now_ms - limits.max_age_ms if limits.max_age_ms else 0,
                max_bytes=limits.max_bytes,
                until_lsn=self._controller.droppable_lsn,
            )
        )
        if self._limits(stream_id) != limits:
            # They were raised during the read, and whoever did it has been told that they hold.
            self._has_more = True
            return 0.0
        left_bytes = found.bytes
        if found.first_offset is not None:
            trimmed: Trimmed = await self._controller.execute(
                TrimStream(stream_id, found.first_offset)
            )
            self._tell(stream_id, trimmed)
            if trimmed.batches and trimmed.first_offset < found.first_offset:
                self._has_more = True
                return 0.0
            left_bytes -= trimmed.bytes
        # What came meanwhile nobody has looked at, or somebody has: it counts in any case.
        came = self._came.pop(stream_id)
        if found.oldest_ms is None:
            # Nothing is here to get old: the first batch that comes starts the clock.
            self._give(stream_id, -came)
        elif limits.max_bytes and not found.held_back:
            # A newest batch that is larger than the limit stays until another one comes.
            self._give(stream_id, max(0, limits.max_bytes - left_bytes) - came)
        if found.held_back:
            return _HELD_BACK_S
        if not limits.max_age_ms or found.oldest_ms is None:
            return float("inf")
        step_s = max(1.0, limits.max_age_ms / 1_000 / _STEPS_OF_AGE)
        return max(0.0, (found.oldest_ms + limits.max_age_ms - now_ms) / 1_000) + step_s

    def _tell(self, stream_id: int, trimmed: Trimmed) -> None:
        name = self._catalog.name_of(stream_id)
        _log.debug(
            "stream %s keeps offsets from %d on: %d batches, %d bytes dropped",
            name,
            trimmed.first_offset,
            trimmed.batches,
            trimmed.bytes,
        )
        for item in trimmed.skipped:
            _log.warning(
                "%s %s skipped %d records of stream %s by retention",
                item.kind,
                item.name or self._catalog.name_of(item.id),
                item.records,
                name,
            )


def _label(stream_id: int) -> str:
    return f"stream {stream_id}"
