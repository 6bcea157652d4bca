"""Stages that do not run: those of the way that an instance does not take.

A stage that waits has two ways on: what follows it, and the stage that runs when it has waited for
too long. One of them is skipped. A stage is skipped, too, when an output that it depends on will
never be there, or when all that it follows is skipped. Safety rule: to whatever only comes `after`
it, a skipped stage is as good as a done one, so each instance ends (PIPELINES P14).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from hadron.model.pipelines import StageSpec, branch_of, branches_of
from hadron.state.machine import Context
from hadron.state.pipelines import stage_runs
from hadron.state.pipelines.tables import STAGE_RUN, STAGE_WAIT, StageStatus, WaitStatus


def skip(
    context: Context,
    pipeline_id: int,
    version: int,
    stages: Sequence[StageSpec],
    stage: StageSpec,
    ids: Sequence[int],
) -> None:
    """A stage of these instances does not run, unless it has begun; nor does what depends on it.

    `stages`: all of the definition, without the one for what is given up.
    """
    rows = context.db.execute(
        f"INSERT INTO {STAGE_RUN} SELECT ?, ?, value, ?, 5, ?, 0, NULL, NULL, NULL, NULL"
        " FROM json_each(?) WHERE true ON CONFLICT DO UPDATE SET"
        f" status = {StageStatus.SKIPPED}, reason = NULL"
        f" WHERE status = {StageStatus.WAITING} RETURNING instance_id",
        (pipeline_id, stage.name, version, context.now_ms, json.dumps(list(ids))),
    ).fetchall()
    skipped = sorted(instance_id for (instance_id,) in rows)
    if not skipped:
        return
    if stage.wait is not None:
        context.db.execute(
            f"UPDATE {STAGE_WAIT} SET status = {WaitStatus.OVER}, due_ms = NULL"
            " WHERE pipeline_id = ?"
            " AND instance_id IN (SELECT value FROM json_each(?)) AND stage = ?"
            f" AND status = {WaitStatus.ARMED}",
            (pipeline_id, json.dumps(skipped), stage.name),
        )
    for each in stages:
        if each.name == branch_of(stage):
            skip(context, pipeline_id, version, stages, each, skipped)
    pass_by(context, pipeline_id, version, stages, stage.name, skipped)


def pass_by(
    context: Context,
    pipeline_id: int,
    version: int,
    stages: Sequence[StageSpec],
    ended: str,
    ids: Sequence[int],
) -> None:
    """A stage of these instances was skipped, or has waited for too long: go on behind it."""
    branches = branches_of(stages)
    for following in stages:
        before = sorted({*following.dependencies, *following.after})
        if ended not in before or following.name in branches:
            continue
        gone = list(ids)
        if ended not in following.dependencies:
            gone = stage_runs.with_all(context.db, pipeline_id, before, ids, "(5, 6)")
        skip(context, pipeline_id, version, stages, following, gone)
        left = [each for each in ids if each not in set(gone)]
        ready = stage_runs.with_all(context.db, pipeline_id, before, left)
        stage_runs.make_ready(context, pipeline_id, version, following, ready)
