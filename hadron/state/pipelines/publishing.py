"""Outputs of stages that go to partitions of other replica sets.

The home drives a transaction: the batch is an intent there, and `PublishStages` stands in the
decision here. From then on the stage is nobody's: it cannot fail, and is not done for those that
follow it. Once it is noted that the other set has finished, it is done. Safety rule: so whatever
depends on a stage finds its output where the stage says that it is (PIPELINES P9).
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from hadron.model.errors import RequestError
from hadron.model.transactions import DELETED, DONE, StatementResult
from hadron.state.machine import Command, Context
from hadron.state.pipelines import instances, stage_runs, stories
from hadron.state.pipelines.events import InstancesChanged, StagesEnded
from hadron.state.pipelines.tables import STAGE_PUBLISHING, STAGE_RUN, StageStatus, is_here


class PublishStages(Command, frozen=True, array_like=True, tag=45):
    """In a transaction of the pipeline's home: the outputs of these stages are what it publishes to
    another set's partition, in this order; the n-th of these for a set is of the n-th statement
    there."""

    pipeline_id: int
    stage: str
    instance_ids: tuple[int, ...]
    attempts: tuple[int, ...]
    created_ms: tuple[int, ...]
    """As of `CompleteStages`, and so is `version`."""
    version: int
    stream_id: int
    partition: str
    runner: str = ""
    """As of `CompleteStages`, and so is what follows."""
    code_version: str = ""
    took_ms: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        return len(self.instance_ids)


def apply_publish_stages(_context: Context, _command: PublishStages) -> NoReturn:
    raise RequestError("the outputs of stages are published by a transaction", "put it into one")


def begin(context: Context, command: PublishStages) -> StatementResult:
    """It is decided."""
    db, pipeline_id = context.db, command.pipeline_id
    if not is_here(db, pipeline_id) or stage_runs.stale_of(db, command):
        return DELETED
    ids = json.dumps(command.instance_ids)
    db.execute(
        f"UPDATE {STAGE_RUN} SET status = {StageStatus.PUBLISHING}, reason = NULL"
        " WHERE pipeline_id = ? AND stage = ?"
        " AND instance_id IN (SELECT value FROM json_each(?))",
        (pipeline_id, command.stage, ids),
    )
    db.execute(
        f"INSERT INTO {STAGE_PUBLISHING} SELECT ?1, count(*), ?2, ?3, ?4, ?5, ?6"
        f" FROM {STAGE_PUBLISHING} WHERE lsn = ?1",
        (context.lsn, pipeline_id, command.stage, command.stream_id, command.partition, ids),
    )
    took_ms = stories.durations(command, len(command.instance_ids))
    stories.note(context, command, command.instance_ids, command.attempts, took_ms)
    context.emit(StagesEnded(pipeline_id, command.stage, command.instance_ids, by_runner=True))
    return DONE


def finished(
    context: Context, lsn: int, participant: str, results: tuple[StatementResult, ...]
) -> None:
    """Another set has done its part of what was decided by the entry `lsn`."""
    db = context.db
    rows: list[Any] = db.execute(
        f"SELECT position, pipeline_id, stage, stream_id, ids FROM {STAGE_PUBLISHING}"
        " WHERE lsn = ? AND partition = ? ORDER BY position",
        (lsn, participant),
    ).fetchall()
    for index, (position, pipeline_id, stage, stream_id, ids) in enumerate(rows):
        db.execute(
            f"DELETE FROM {STAGE_PUBLISHING} WHERE lsn = ? AND position = ?", (lsn, position)
        )
        if is_here(db, pipeline_id):
            result = results[index] if index < len(results) else DELETED
            if result.is_deleted or result.base_offset < 0:
                _give_up(context, pipeline_id, stage, json.loads(ids))
            else:
                place = stream_id, participant, result.base_offset
                _complete(context, pipeline_id, stage, json.loads(ids), place)
            context.emit(InstancesChanged(pipeline_id))


_ONE = f"UPDATE {STAGE_RUN} SET {{}} WHERE pipeline_id = ? AND stage = ? AND instance_id = ?"
_ONE += f" AND status = {StageStatus.PUBLISHING}"


def _complete(
    context: Context, pipeline_id: int, stage: str, ids: list[int], place: tuple[int, str, int]
) -> None:
    stream_id, partition, base = place
    done = []
    for index, instance_id in enumerate(ids):
        context.db.execute(
            _ONE.format(
                f"status = {StageStatus.DONE}, out_stream_id = ?, out_partition = ?, out_offset = ?"
            ),
            (stream_id, partition, base + index, pipeline_id, stage, instance_id),
        )
        if context.db.changes():
            done.append(instance_id)
    stage_runs.count(context.db, pipeline_id, stage, ready=-len(done), done=len(done))
    going_on = instances.not_cancelled(context.db, pipeline_id, done)
    stage_runs.advance(context, pipeline_id, stage, going_on)


def _give_up(context: Context, pipeline_id: int, stage: str, ids: list[int]) -> None:
    """Nothing was published: what the transaction was to do there is lost."""
    lost = []
    for instance_id in ids:
        context.db.execute(
            _ONE.format(f"status = {StageStatus.FAILED}, attempts = attempts + 1, reason = ?"),
            (
                "its output's stream was deleted, or its transaction given up, before the output "
                "was there",
                pipeline_id,
                stage,
                instance_id,
            ),
        )
        if context.db.changes():
            lost.append(instance_id)
    stage_runs.give_up(context, pipeline_id, stage, lost)
