"""Failed instances of pipelines that run again.

What was done of them stays; how often they had failed counts no more. Safety rule: numbers of
attempts go on, so that what an earlier attempt still sends is told apart (PROTOCOL E3).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import msgspec

from hadron.model.errors import NotFoundError, RequestError
from hadron.model.ports import Database
from hadron.state import pipelines
from hadron.state.machine import Command, Context, Feature, NoChange
from hadron.state.pipeline_events import InstancesChanged
from hadron.state.pipelines import (
    DONE,
    FAILED,
    INSTANCE,
    PIPELINE,
    STAGE_COUNT,
    STAGE_RETRY,
    STAGE_RUN,
)
from hadron.state.schema import SCHEMA_OBJECT


class RetryInstances(Command, frozen=True, array_like=True, tag=23):
    """Failed instances are live again: their failed stages are ready, with attempts that begin
    anew; what was done of them stays. Instances that were retried before, and have not failed
    again, are passed over, so that it may be repeated."""

    pipeline_id: int
    instance_ids: tuple[int, ...]


class Retried(msgspec.Struct, frozen=True):
    """`again`: of how many instances a retry was under way, or done, already."""

    retried: int
    again: int


def apply_retry_instances(context: Context, command: RetryInstances) -> Retried:
    """Raises `NotFoundError` for a pipeline or an instance that is not here, `RequestError` when
    one of the instances has not failed; then nothing was done."""
    db, pipeline_id = context.db, command.pipeline_id
    failed, again = _failed_of(db, pipeline_id, sorted(set(command.instance_ids)))
    if not failed:
        raise NoChange(Retried(0, again))
    ids = json.dumps(failed)
    names = db.execute(
        f"SELECT stage FROM {STAGE_COUNT} WHERE pipeline_id = ? ORDER BY stage", (pipeline_id,)
    ).fetchall()
    for (name,) in names:
        db.execute(
            f"INSERT INTO {STAGE_RETRY} SELECT pipeline_id, stage, instance_id, attempts"
            f" FROM {STAGE_RUN} WHERE pipeline_id = ? AND stage = ? AND status = 3"
            " AND instance_id IN (SELECT value FROM json_each(?))"
            " ON CONFLICT DO UPDATE SET attempts_before = excluded.attempts_before",
            (pipeline_id, name, ids),
        )
        db.execute(
            f"UPDATE {STAGE_RUN} SET status = 1, ready_ms = ?, reason = NULL WHERE pipeline_id = ?"
            " AND stage = ? AND status = 3 AND instance_id IN (SELECT value FROM json_each(?))",
            (context.now_ms, pipeline_id, name, ids),
        )
        moved = db.changes()
        pipelines.count_stages(db, pipeline_id, name, ready=moved, failed=-moved)
    db.execute(
        f"UPDATE {INSTANCE} SET status = 1 WHERE pipeline_id = ?"
        " AND instance_id IN (SELECT value FROM json_each(?))",
        (pipeline_id, ids),
    )
    db.execute(
        f"UPDATE {PIPELINE} SET live = live + ?1, failed = failed - ?1 WHERE pipeline_id = ?2",
        (len(failed), pipeline_id),
    )
    pipelines.catch_up(context, pipeline_id, pipelines.spec_of(db, pipeline_id), failed)
    context.emit(InstancesChanged(pipeline_id))
    return Retried(len(failed), again)


def _failed_of(
    db: Database, pipeline_id: int, instance_ids: Sequence[int]
) -> tuple[list[int], int]:
    """Those that have failed, and how many of the others were retried before."""
    if not pipelines.is_here(db, pipeline_id):
        raise NotFoundError(f"pipeline {pipeline_id} does not live here")
    ids = json.dumps(instance_ids)
    statuses = dict(
        db.execute(
            f"SELECT instance_id, status FROM {INSTANCE} WHERE pipeline_id = ?"
            " AND instance_id IN (SELECT value FROM json_each(?))",
            (pipeline_id, ids),
        ).fetchall()
    )
    unknown = [each for each in instance_ids if each not in statuses]
    if unknown:
        raise NotFoundError(
            f"pipeline {_name(db, pipeline_id)!r} has no instance {_listed(unknown)}",
            f"`hadron pipeline instances {_name(db, pipeline_id)} --status failed` lists "
            "those that may run again",
        )
    others = [each for each in instance_ids if statuses[each] != FAILED]
    retried = {
        each
        for (each,) in db.execute(
            f"SELECT r.instance_id FROM {STAGE_COUNT} c CROSS JOIN {STAGE_RETRY} r"
            " ON r.pipeline_id = c.pipeline_id AND r.stage = c.stage WHERE c.pipeline_id = ?"
            " AND r.instance_id IN (SELECT value FROM json_each(?))",
            (pipeline_id, json.dumps(others)),
        )
    }
    refused = [each for each in others if each not in retried]
    if refused:
        status = "done" if statuses[refused[0]] == DONE else "live"
        raise RequestError(
            f"instance {_listed(refused)} of pipeline {_name(db, pipeline_id)!r} has not failed: "
            f"it is {status}",
            "only failed instances run again; leave the others out",
        )
    return [each for each in instance_ids if statuses[each] == FAILED], len(others)


def _listed(ids: Sequence[int]) -> str:
    return f"{ids[0]} (and {len(ids) - 1} more)" if len(ids) > 1 else str(ids[0])


def _name(db: Database, pipeline_id: int) -> str:
    row = db.execute(f"SELECT name FROM {SCHEMA_OBJECT} WHERE id = ?", (pipeline_id,)).fetchone()
    return str(row[0] if row is not None else pipeline_id)


FEATURE: Final = Feature(name="pipeline retries", commands={RetryInstances: apply_retry_instances})
