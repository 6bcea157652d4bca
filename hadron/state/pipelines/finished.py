"""Instances that ended long ago are dropped, with all that they have; counters stay.

Safety rule: only what has ended goes, in slices (PROTOCOL F3), and not before its dead letter is
sent and nothing of it is to run any more (PIPELINES P12).
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, ClassVar, Final

from hadron.model.ports import Database
from hadron.state.machine import Command, Context, NoChange
from hadron.state.pipelines import definitions, waits
from hadron.state.pipelines.tables import (
    INSTANCE,
    INSTANCE_LETTER,
    STAGE_ATTEMPT,
    STAGE_COUNT,
    STAGE_RETRY,
    STAGE_RUN,
    InstanceStatus,
    StageStatus,
    is_here,
)
from hadron.state.slices import Dropped

SLICE_INSTANCES: Final = 500
"""Each has a row for each of its stages."""


class DropInstances(Command[Dropped], frozen=True, array_like=True, tag=49):
    """Drop instances that ended before `before_ms`: one slice of them, the oldest. Returns
    `slices.Dropped`; `NoChange` when there are none.

    What has a letter to send, or a stage that is ready or publishing, which a transaction may be
    about to end, counts as ended now: it is kept once more, and each slice is short however many of
    those there are."""

    uses_reserve: ClassVar[bool] = True

    pipeline_id: int
    before_ms: int


_DUE: Final = (
    f"SELECT instance_id, status, version FROM {INSTANCE} WHERE pipeline_id = ?"
    " AND ended_ms < ? ORDER BY ended_ms, instance_id LIMIT ?"
)
_HELD: Final = (
    "SELECT j.value FROM json_each(?1) j"
    f" WHERE EXISTS (SELECT 1 FROM {INSTANCE_LETTER} l WHERE l.pipeline_id = ?2"
    " AND l.instance_id = j.value)"
    f" OR EXISTS (SELECT 1 FROM {STAGE_COUNT} c CROSS JOIN {STAGE_RUN} r"
    " ON r.pipeline_id = ?2 AND r.stage = c.stage AND r.instance_id = j.value"
    f" WHERE c.pipeline_id = ?2 AND r.status IN ({StageStatus.READY}, {StageStatus.PUBLISHING}))"
)


def apply_drop_instances(context: Context, command: DropInstances) -> Dropped:
    db, pipeline_id = context.db, command.pipeline_id
    rows: list[Any] = []
    if is_here(db, pipeline_id):
        rows = db.execute(_DUE, (pipeline_id, command.before_ms, SLICE_INSTANCES + 1)).fetchall()
    if not rows:
        raise NoChange(Dropped(0, is_done=True))
    due = rows[:SLICE_INSTANCES]
    held = {
        each for (each,) in db.execute(_HELD, (json.dumps([row[0] for row in due]), pipeline_id))
    }
    some = "instance_id IN (SELECT value FROM json_each(?))"
    db.execute(
        f"UPDATE {INSTANCE} SET ended_ms = ? WHERE pipeline_id = ? AND {some}",
        (context.now_ms, pipeline_id, json.dumps(sorted(held))),
    )
    going = [row for row in due if row[0] not in held]
    ids = json.dumps([each for each, *_ in going])
    names = db.execute(
        f"SELECT stage FROM {STAGE_COUNT} WHERE pipeline_id = ? ORDER BY stage", (pipeline_id,)
    ).fetchall()
    # What was done or failed stays counted.
    for (name,) in names:
        for table in (STAGE_RUN, STAGE_RETRY, STAGE_ATTEMPT):
            db.execute(
                f"DELETE FROM {table} WHERE pipeline_id = ? AND stage = ? AND {some}",
                (pipeline_id, name, ids),
            )
    waits.drop(db, pipeline_id, ids)
    db.execute(f"DELETE FROM {INSTANCE} WHERE pipeline_id = ? AND {some}", (pipeline_id, ids))
    failed = Counter(version for _, status, version in going if status == InstanceStatus.FAILED)
    definitions.hold(db, pipeline_id, {version: -count for version, count in failed.items()})
    return Dropped(len(going), is_done=len(rows) <= SLICE_INSTANCES)


def oldest_end_ms(db: Database, pipeline_id: int) -> int | None:
    """When the instance ended that is to go next; None where none has ended."""
    row: Any = db.execute(
        f"SELECT min(ended_ms) FROM {INSTANCE} WHERE pipeline_id = ? AND ended_ms IS NOT NULL",
        (pipeline_id,),
    ).fetchone()
    return None if row is None else row[0]
