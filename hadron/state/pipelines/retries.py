"""Failed instances of pipelines that run again.

What was done of them stays; how often they had failed counts no more. They go on with the
definition of now. Safety rule: numbers of attempts go on, so that what an earlier attempt still
sends is told apart (PROTOCOL E3).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from hadron.model.errors import ConflictError, NotFoundError, RequestError
from hadron.model.pipelines import StageSpec, branches_of, place_of
from hadron.model.ports import Database
from hadron.model.ranges import runs
from hadron.model.transactions import STAGES, Lock
from hadron.state.machine import Command, Context, NoChange
from hadron.state.names import label_of
from hadron.state.pipelines import definitions, stage_runs, wait_inputs, waits
from hadron.state.pipelines.events import InstancesChanged, StagesEnded
from hadron.state.pipelines.tables import (
    INSTANCE,
    PIPELINE,
    STAGE_COUNT,
    STAGE_RETRY,
    STAGE_RUN,
    InstanceStatus,
    StageStatus,
    is_here,
)
from hadron.state.schema import SCHEMA_OBJECT
from hadron.state.streams.keys import hashes_of
from hadron.state.transactions import locks

_WHICH: Final = "pipeline_id = ? AND stage = ? AND instance_id IN (SELECT value FROM json_each(?))"


class RetryInstances(Command["Retried"], frozen=True, array_like=True, tag=23):
    """Failed instances are live again: their failed stages are ready, with attempts that begin
    anew; what was done of them stays. Instances that were retried before, and have not failed
    again, are passed over, so that it may be repeated."""

    pipeline_id: int
    instance_ids: tuple[int, ...]
    from_start: bool = False
    """What was done of them is done again, too."""
    key_hashes: bytes = b""
    """Of the triggers of `instance_ids`, as of `TriggerInstances`; 0 for one that is gone, too.
    Empty where nothing is awaited by them, or all are known."""


class Retried(msgspec.Struct, frozen=True):
    """`again`: of how many instances a retry was under way, or done, already."""

    retried: int
    again: int


def apply_retry_instances(context: Context, command: RetryInstances) -> Retried:
    """Raises `NotFoundError` for a pipeline or an instance that is not here, `RequestError` when
    one of the instances has not failed, `ConflictError` when a transaction ends a stage of one, or
    without keys that it needs; then nothing was done."""
    db, pipeline_id = context.db, command.pipeline_id
    failed, again = _failed_of(db, pipeline_id, sorted(set(command.instance_ids)))
    if not failed:
        raise NoChange(Retried(0, again))
    if not command.key_hashes and needed_keys(db, pipeline_id, failed):
        raise ConflictError(
            f"{label_of(db, pipeline_id)} has begun to wait for records a moment ago", "try again"
        )
    keys = dict(zip(command.instance_ids, hashes_of(command.key_hashes), strict=False))
    declared = definitions.all_stages(db, pipeline_id)
    version = max(declared)
    on_failure = definitions.on_failure(db, pipeline_id)
    versions = definitions.by_version(db, pipeline_id, failed)
    ranges = tuple(runs(failed))
    names = db.execute(
        f"SELECT stage FROM {STAGE_COUNT} WHERE pipeline_id = ? ORDER BY stage", (pipeline_id,)
    ).fetchall()
    for (name,) in names:
        locks.check_free(context, Lock(STAGES, pipeline_id, name, ranges))
        for before, some in versions.items():
            # What ran because they were given up runs again when they are given up again.
            if command.from_start or name in (on_failure[before], on_failure[version]):
                _undo(context, pipeline_id, version, name, some)
                continue
            _begin_anew(context, pipeline_id, name, some)
            change = _Change(version, declared[before], declared[version])
            _move(context, pipeline_id, name, change, some)
    stages = [each for each in declared[version] if each.name != on_failure[version]]
    _hold_back(context, pipeline_id, stages, failed)
    definitions.hold(db, pipeline_id, {version: len(failed)})
    db.execute(
        f"UPDATE {INSTANCE} SET status = {InstanceStatus.LIVE}, ended_ms = NULL, version = ?"
        " WHERE pipeline_id = ?"
        " AND instance_id IN (SELECT value FROM json_each(?))",
        (version, pipeline_id, json.dumps(failed)),
    )
    definitions.hold(db, pipeline_id, {each: -len(some) for each, some in versions.items()})
    db.execute(
        f"UPDATE {PIPELINE} SET live = live + ?1, failed = failed - ?1 WHERE pipeline_id = ?2",
        (len(failed), pipeline_id),
    )
    waits.rearm(context, pipeline_id, stages, failed, keys)
    stage_runs.catch_up(context, pipeline_id, version, stages, failed)
    context.emit(InstancesChanged(pipeline_id))
    return Retried(len(failed), again)


def needed_keys(db: Database, pipeline_id: int, ids: Sequence[int]) -> list[int]:
    """Those of these instances that may have to wait for records by keys that nobody knows yet: of
    stages that were declared after they began."""
    if not wait_inputs.awaits(definitions.present(db, pipeline_id)):
        return []
    return waits.without_keys(db, pipeline_id, ids)


def of_these(db: Database, pipeline_id: int, ids: Sequence[int]) -> set[int]:
    """Those of these instances that were ever retried."""
    if not ids:
        return set()
    rows: list[Any] = db.execute(
        f"SELECT r.instance_id FROM {STAGE_COUNT} c CROSS JOIN {STAGE_RETRY} r"
        " ON r.pipeline_id = c.pipeline_id AND r.stage = c.stage WHERE c.pipeline_id = ?"
        " AND r.instance_id IN (SELECT value FROM json_each(?))",
        (pipeline_id, json.dumps(list(ids))),
    ).fetchall()
    return {each for (each,) in rows}


def _begin_anew(context: Context, pipeline_id: int, name: str, ids: Sequence[int]) -> None:
    """A stage that was given up is ready; what it has failed counts no more."""
    db = context.db
    rows: list[Any] = db.execute(
        f"UPDATE {STAGE_RUN} SET status = {StageStatus.READY}, ready_ms = ?, reason = NULL"
        f" WHERE {_WHICH} AND status = {StageStatus.FAILED} RETURNING instance_id",
        (context.now_ms, pipeline_id, name, json.dumps(ids)),
    ).fetchall()
    _count_anew(db, pipeline_id, name, [each for (each,) in rows])
    stage_runs.count(db, pipeline_id, name, ready=len(rows), failed=-len(rows))


def _count_anew(db: Database, pipeline_id: int, name: str, ids: Sequence[int]) -> None:
    """The attempts of these count no more: each has all of them, under numbers that go on."""
    db.execute(
        f"INSERT INTO {STAGE_RETRY} SELECT pipeline_id, stage, instance_id, attempts"
        f" FROM {STAGE_RUN} WHERE {_WHICH}"
        " ON CONFLICT DO UPDATE SET attempts_before = excluded.attempts_before",
        (pipeline_id, name, json.dumps(ids)),
    )


def _wait_again(db: Database, pipeline_id: int, name: str, ids: Sequence[int], if_: str) -> int:
    """A stage of these instances waits once more, where `if_` holds; returns of how many. An
    attempt that may be under way is over: its number is not used again, and is not counted."""
    rows: list[Any] = db.execute(
        f"UPDATE {STAGE_RUN} SET status = {StageStatus.WAITING}, attempts = attempts + 1"
        f" WHERE {_WHICH} AND {if_} RETURNING instance_id",
        (pipeline_id, name, json.dumps(ids)),
    ).fetchall()
    _count_anew(db, pipeline_id, name, [each for (each,) in rows])
    return len(rows)


def _undo(context: Context, pipeline_id: int, version: int, name: str, ids: Sequence[int]) -> None:
    """A stage waits as at the beginning. Its attempts count no more, and their numbers are not used
    again."""
    db, key = context.db, (pipeline_id, name, json.dumps(ids))
    rows: list[Any] = db.execute(
        f"SELECT status, count(*) FROM {STAGE_RUN} WHERE {_WHICH} GROUP BY status", key
    ).fetchall()
    found = dict(rows)
    if found.get(StageStatus.PUBLISHING):
        raise ConflictError(
            f"stage {name!r} of {found[StageStatus.PUBLISHING]} instances has an output that is on "
            "its way to another replica set",
            "try again when it is there",
        )
    db.execute(
        f"UPDATE {STAGE_RUN} SET version = ?,"
        f" attempts = attempts + (status IN ({StageStatus.READY}, {StageStatus.DONE})),"
        f" status = {StageStatus.WAITING},"
        " out_stream_id = NULL, out_partition = NULL, out_offset = NULL, reason = NULL"
        f" WHERE {_WHICH}",
        (version, *key),
    )
    _count_anew(db, pipeline_id, name, ids)
    stage_runs.count(
        db,
        pipeline_id,
        name,
        ready=-found.get(StageStatus.READY, 0),
        done=-found.get(StageStatus.DONE, 0),
        failed=-found.get(StageStatus.FAILED, 0),
    )
    if found.get(StageStatus.READY):
        context.emit(StagesEnded(pipeline_id, name, tuple(ids), by_runner=False))


class _Change(NamedTuple):
    """Of the definition of some instances."""

    version: int
    before: Sequence[StageSpec]
    after: Sequence[StageSpec]

    def of(self, name: str) -> tuple[StageSpec | None, StageSpec | None]:
        """A stage before, and after."""
        before, after = (
            {each.name: each for each in stages} for stages in (self.before, self.after)
        )
        return before.get(name), after.get(name)


def _move(
    context: Context, pipeline_id: int, name: str, change: _Change, ids: Sequence[int]
) -> None:
    """A stage of these instances belongs to another definition. Where it has another place there,
    or none, it waits; where it was done without an output, and has one now, it runs again."""
    db = context.db
    before, after = change.of(name)
    if before is None or after is None or place_of(before) != place_of(after):
        moved = _wait_again(db, pipeline_id, name, ids, f"status = {StageStatus.READY}")
        stage_runs.count(db, pipeline_id, name, ready=-moved)
    if after is not None and after.output is not None:
        if_ = f"status = {StageStatus.DONE} AND out_stream_id IS NULL"
        again = _wait_again(db, pipeline_id, name, ids, if_)
        stage_runs.count(db, pipeline_id, name, done=-again)
    db.execute(
        f"UPDATE {STAGE_RUN} SET version = ? WHERE {_WHICH}",
        (change.version, pipeline_id, name, json.dumps(ids)),
    )


def _hold_back(
    context: Context, pipeline_id: int, stages: Sequence[StageSpec], ids: Sequence[int]
) -> None:
    """What is to run behind a stage that runs again, or that is new, waits for it.

    *(Stage b, after a, has failed; a gets an output now, so it runs again: both would run at the
    same time.)*
    """
    db, others = context.db, branches_of(stages)
    for stage in stages:
        before = sorted({*stage.dependencies, *stage.after})
        if not before or stage.name in others:
            continue
        early = sorted(set(ids) - set(stage_runs.with_all(db, pipeline_id, before, ids)))
        held = _wait_again(db, pipeline_id, stage.name, early, f"status = {StageStatus.READY}")
        stage_runs.count(db, pipeline_id, stage.name, ready=-held)


def _failed_of(
    db: Database, pipeline_id: int, instance_ids: Sequence[int]
) -> tuple[list[int], int]:
    """Those that have failed, and how many of the others were retried before."""
    if not is_here(db, pipeline_id):
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
    others = [each for each in instance_ids if statuses[each] != InstanceStatus.FAILED]
    retried = of_these(db, pipeline_id, others)
    refused = [each for each in others if each not in retried]
    if refused:
        status = {InstanceStatus.DONE: "done", InstanceStatus.CANCELLED: "cancelled"}.get(
            statuses[refused[0]], "live"
        )
        raise RequestError(
            f"instance {_listed(refused)} of pipeline {_name(db, pipeline_id)!r} has not failed: "
            f"it is {status}",
            "only failed instances run again; leave the others out",
        )
    return [each for each in instance_ids if statuses[each] == InstanceStatus.FAILED], len(others)


def _listed(ids: Sequence[int]) -> str:
    return f"{ids[0]} (and {len(ids) - 1} more)" if len(ids) > 1 else str(ids[0])


def _name(db: Database, pipeline_id: int) -> str:
    row = db.execute(f"SELECT name FROM {SCHEMA_OBJECT} WHERE id = ?", (pipeline_id,)).fetchone()
    return str(row[0] if row is not None else pipeline_id)
