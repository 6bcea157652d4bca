"""PROTOCOL E3, PIPELINES P6: a live instance has a stage that may run, at once or later; nothing
else would ever look at it again."""

from __future__ import annotations

from typing import Any, Final

from hadron.sim.watch.views import Complaints, NodeView
from hadron.state.machine import Context

_IDLE: Final = (
    "SELECT i.pipeline_id, i.instance_id FROM hadron_pipeline p"
    " JOIN hadron_instance i ON i.pipeline_id = p.pipeline_id"
    " WHERE p.pipeline_id = ifnull(?, p.pipeline_id) AND i.status = 1 AND NOT EXISTS"
    " (SELECT 1 FROM hadron_stage_count c JOIN hadron_stage_run r"
    " ON r.pipeline_id = i.pipeline_id AND r.stage = c.stage AND r.instance_id = i.instance_id"
    " WHERE c.pipeline_id = i.pipeline_id AND r.status IN (1, 4))"
    " LIMIT 1"
)


class Instances:
    """Of every pipeline that is not deleted."""

    def __init__(self, complaints: Complaints) -> None:
        self._complaints = complaints

    def moved(self, view: NodeView, context: Context, pipeline_id: int | None) -> None:
        """An entry has changed instances of a pipeline, or pipelines."""
        row: Any = context.db.execute(_IDLE, (pipeline_id,)).fetchone()
        if row is not None:
            self._complaints.add(
                "E3 a live instance has a stage that may run",
                f"{view.name} at entry {context.lsn}: instance {row[1]} of pipeline {row[0]} is "
                "live, and none of its stages is ready",
            )
