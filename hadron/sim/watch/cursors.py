"""PROTOCOL D4, PIPELINES P5: whoever goes on in another set's log names the record before: its
ballot, as that log has it, or once had it.

By that alone it is found out later that the log has lost its end. A wrong name shows only when its
holder asks somebody else, or asks again: here it is held against each record where it is logged.
"""

from __future__ import annotations

from typing import Any, Final

from hadron.model.ids import NO_BALLOT, Ballot
from hadron.sim.watch.awaited import Awaited
from hadron.sim.watch.views import Complaints, NodeView
from hadron.state.machine import Command, Context
from hadron.state.pipelines.inputs import MoveInput, TriggerInstances
from hadron.state.pipelines.waits import SignalStages

MOVES: Final = (TriggerInstances, MoveInput, SignalStages)
"""What moves a cursor that may be in another log."""

_INPUT: Final = (
    "SELECT stream_id FROM hadron_pipeline_input WHERE (pipeline_id, partition) = (?, ?)"
)


class Cursors:
    """Every cursor of a pipeline in another set's partition."""

    def __init__(self, complaints: Complaints, awaited: Awaited) -> None:
        self._complaints = complaints
        self._awaited = awaited
        self._logged: dict[tuple[str, int], dict[int, set[Ballot]]] = {}
        """By set and stream: under which ballots each offset was ever logged."""

    def appended(
        self, replica_set: str, stream_id: int, first: int, end: int, ballot: Ballot
    ) -> None:
        """A node has applied records: below the watermark, or what its leader has logged."""
        self._awaited.appended((replica_set, stream_id), first, end)
        offsets = self._logged.setdefault((replica_set, stream_id), {})
        for offset in range(first, end):
            offsets.setdefault(offset, set()).add(ballot)

    def moved(self, view: NodeView, context: Context, command: Command) -> None:
        """An entry has moved a cursor."""
        assert isinstance(command, MOVES)
        if isinstance(command, SignalStages):
            self._awaited.told(view, context, command)
        if command.partition == view.replica_set:
            return
        # Nothing need be there before a gap; of what was read, its batch says it.
        if isinstance(command, SignalStages):
            stream_id, has_read = command.stream_id, bool(command.signals)
        else:
            row: Any = context.db.execute(_INPUT, (command.pipeline_id, command.partition))
            (stream_id,) = row.fetchone()
            has_moved = command.to_offset > command.from_offset
            has_read = isinstance(command, TriggerInstances) and has_moved
        if command.ballot == NO_BALLOT and not has_read:
            return
        self._check(
            f"{view.name} at entry {context.lsn} moves pipeline {command.pipeline_id}",
            command.partition,
            stream_id,
            command.to_offset,
            command.ballot,
        )

    def asks(self, partition: str, stream_id: int, offset: int, after: Ballot) -> None:
        """A node asks for what follows a cursor."""
        if after != NO_BALLOT:
            self._check("a pipeline goes on", partition, stream_id, offset, after)

    def _check(self, who: str, partition: str, stream_id: int, offset: int, ballot: Ballot) -> None:
        logged = self._logged.get((partition, stream_id), {}).get(offset - 1, set())
        if ballot not in logged:
            self._complaints.add(
                "D4 a cursor names the record before it",
                f"{who} to offset {offset} of stream {stream_id} at {partition}, behind a record "
                f"of ballot {ballot}; that was logged under {sorted(logged)}",
            )
