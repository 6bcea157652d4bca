"""Instances that ended long ago are dropped, with all that they have; counters stay.

Safety rule: only what has ended goes, in slices (PROTOCOL F3), and not before its dead letter is
sent (PIPELINES P12).
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, ClassVar, Final

from hadron.model.ports import Database
from hadron.state.machine import Command, Context, NoChange
from hadron.state.pipelines import definitions, stage_runs, waits
from hadron.state.pipelines.tables import (
    INSTANCE,
    INSTANCE_LETTER,
    STAGE_ATTEMPT,
    STAGE_COUNT,
    STAGE_RETRY,
    STAGE_RUN,
    InstanceStatus,
    is_here,
)
from hadron.state.slices import Dropped

SLICE_INSTANCES: Final = 500
"""Each has a row for each of its stages."""


class DropInstances(Command[Dropped], frozen=True, array_like=True, tag=49):
    """Drop instances that ended before `before_ms`: one slice of them, the oldest. Returns
    `slices.Dropped`; `NoChange` when there are none."""

    uses_reserve: ClassVar[bool] = True

    pipeline_id: int
    before_ms: int


_DUE: Final = (
    f"SELECT instance_id, status, version, ended_ms FROM {INSTANCE} i WHERE pipeline_id = ?"
    f" AND ended_ms < ? AND NOT EXISTS (SELECT 1 FROM {INSTANCE_LETTER} l"
    " WHERE l.pipeline_id = i.pipeline_id AND l.instance_id = i.instance_id)"
    " ORDER BY ended_ms, instance_id LIMIT ?"
)


def apply_drop_instances(context: Context, command: DropInstances) -> Dropped:
    db, pipeline_id = context.db, command.pipeline_id
    rows: list[Any] = []
    if is_here(db, pipeline_id):
        rows = db.execute(_DUE, (pipeline_id, command.before_ms, SLICE_INSTANCES + 1)).fetchall()
    if not rows:
        raise NoChange(Dropped(0, is_done=True))
    going = rows[:SLICE_INSTANCES]
    ids = json.dumps([each for each, *_ in going])
    some = "instance_id IN (SELECT value FROM json_each(?))"
    names = db.execute(
        f"SELECT stage FROM {STAGE_COUNT} WHERE pipeline_id = ? ORDER BY stage", (pipeline_id,)
    ).fetchall()
    for (name,) in names:
        key = pipeline_id, name, ids
        # What is ready of a failed one goes with it; what was done or failed stays counted.
        ((ready,),) = db.execute(
            f"SELECT count(*) FROM {STAGE_RUN} WHERE pipeline_id = ? AND stage = ? AND {some}"
            f" AND status IN ({InstanceStatus.LIVE}, {InstanceStatus.CANCELLED})",
            key,
        ).fetchall()
        stage_runs.count(db, pipeline_id, name, ready=-ready)
        for table in (STAGE_RUN, STAGE_RETRY, STAGE_ATTEMPT):
            db.execute(f"DELETE FROM {table} WHERE pipeline_id = ? AND stage = ? AND {some}", key)
    waits.drop(db, pipeline_id, ids)
    db.execute(f"DELETE FROM {INSTANCE} WHERE pipeline_id = ? AND {some}", (pipeline_id, ids))
    held = Counter(version for _, status, version, _ in going if status == InstanceStatus.FAILED)
    definitions.hold(db, pipeline_id, {version: -count for version, count in held.items()})
    return Dropped(len(going), is_done=len(rows) <= SLICE_INSTANCES)


def oldest_end_ms(db: Database, pipeline_id: int) -> int | None:
    """When the instance ended that is to go next; None where none has ended."""
    rows: list[Any] = db.execute(_DUE, (pipeline_id, (1 << 63) - 1, 1)).fetchall()
    return rows[0][3] if rows else None
