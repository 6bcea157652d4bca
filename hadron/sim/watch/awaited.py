"""PIPELINES P14: a record that stages wait for is looked at behind all of the input that was there
when it was published, so whoever published its trigger before finds that it was awaited.

When each record was there is known here of all sets; a pipeline's cursors say what it had looked at
when it told of one.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Final
from weakref import WeakKeyDictionary

import trio

from hadron.partition.controller import Controller
from hadron.sim.watch.views import Complaints, NodeView
from hadron.state.machine import Context
from hadron.state.pipelines.waits import SignalStages

_PATIENCE_S: Final = 10.0
"""A partition of the input that is away for longer is not waited for."""

_EXCUSED_S: Final = 15.0
"""For so long a consumer may pass what it did not wait for: what it has read by then is told."""

_INPUTS: Final = (
    "SELECT partition, stream_id, next_offset FROM hadron_pipeline_input WHERE pipeline_id = ?"
)

_Place = tuple[str, int]
"""A replica set, and the id of a stream."""


class Awaited:
    """Every record that a pipeline waits for, on whichever set."""

    def __init__(self, complaints: Complaints) -> None:
        self._complaints = complaints
        self._logged: dict[_Place, dict[int, float]] = {}
        """When each offset was logged first."""
        self._visible: dict[_Place, tuple[list[float], list[int]]] = {}
        """When each partition has ended where, to whom its leader shows it."""
        self._excused: WeakKeyDictionary[Controller, dict[int, float]] = WeakKeyDictionary()

    def appended(self, place: _Place, first: int, end: int) -> None:
        """A node has logged records, or has applied them."""
        offsets, now = self._logged.setdefault(place, {}), trio.current_time()
        for offset in range(first, end):
            offsets.setdefault(offset, now)

    def shown(self, place: _Place, end: int) -> None:
        """A leader shows a partition up to here."""
        times, ends = self._visible.setdefault(place, ([], []))
        if ends and end <= ends[-1]:
            # Another leader shows it too; or the set has lost its end.
            return
        times.append(trio.current_time())
        ends.append(end)

    def forget(self, replica_set: str) -> None:
        """An operator takes what there is: what was shown may be gone."""
        for place in [each for each in self._visible if each[0] == replica_set]:
            del self._visible[place]

    def caught_up(
        self, controller: Controller, pipeline_id: int, began_s: float, *, is_full: bool
    ) -> None:
        """A leader has waited until its input was looked at, or no longer: for want of room, or
        because a partition was away."""
        now = trio.current_time()
        if is_full or now - began_s >= _PATIENCE_S:
            self._excused.setdefault(controller, {})[pipeline_id] = now

    def told(self, view: NodeView, context: Context, command: SignalStages) -> None:
        """A leader has told of records, or has found that nobody waits for them."""
        is_gap = command.partition != view.replica_set and not any(command.ballot)
        if command.is_truncated or is_gap or view.controller is None:
            return
        excused_s = self._excused.get(view.controller, {}).get(command.pipeline_id)
        if excused_s is not None and trio.current_time() - excused_s < _EXCUSED_S:
            return
        logged = self._logged.get((command.partition, command.stream_id), {})
        offsets = range(command.from_offset, command.to_offset)
        times = [logged[each] for each in offsets if each in logged]
        if not times:
            return
        rows: Any = context.db.execute(_INPUTS, (command.pipeline_id,))
        for partition, stream_id, looked_at in rows:
            end = self._end(partition, stream_id, max(times))
            if looked_at < end:
                self._complaints.add(
                    "E3 what is awaited is looked at behind the input",
                    f"{view.name} at entry {context.lsn} has looked at offsets "
                    f"{command.from_offset} to {command.to_offset - 1} of stream "
                    f"{command.stream_id} at {command.partition} for pipeline "
                    f"{command.pipeline_id}, and at its input at {partition} up to {looked_at}; "
                    f"{end} was there before",
                )

    def _end(self, partition: str, stream_id: int, before_s: float) -> int:
        """What was there for all to see, before that moment."""
        times, ends = self._visible.get((partition, stream_id), ([], []))
        place = bisect_left(times, before_s)
        return ends[place - 1] if place else 0
