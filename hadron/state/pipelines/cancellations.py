"""Instances that people start, and that they end.

Safety rules: an instance that was cancelled stays so: whatever of it is at runners is stale from
then on. And a start that is asked for twice under the same request is done once (PIPELINES P10).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import msgspec

from hadron.model.errors import ConflictError, NotFoundError
from hadron.model.ports import Database
from hadron.model.ranges import runs
from hadron.model.transactions import STAGES, Lock
from hadron.state.machine import Command, Context, NoChange
from hadron.state.names import label_of
from hadron.state.pipelines import definitions, instances, stage_runs, waits
from hadron.state.pipelines.events import InstancesChanged, StagesEnded
from hadron.state.pipelines.tables import (
    INSTANCE,
    PIPELINE,
    STAGE_COUNT,
    STAGE_RUN,
    START_REQUEST,
    InstanceStatus,
    StageStatus,
    is_here,
)
from hadron.state.transactions import locks

KEPT_REQUESTS: Final = 1_000
"""Of a pipeline: who has lost its answer asks again at once."""


class StartInstances(Command["Started"], frozen=True, array_like=True, tag=46):
    """Make an instance of each of these records, beside what triggers make. Asked again under the
    same `request`: `NoChange`."""

    pipeline_id: int
    stream_id: int
    partition: str
    offsets: tuple[int, ...]
    request: bytes
    key_hashes: bytes = b""
    """As of `TriggerInstances`."""


class CancelInstances(Command["Cancelled"], frozen=True, array_like=True, tag=47):
    """End instances that are live or have failed. Those that have ended otherwise are passed over,
    so that it may be repeated."""

    uses_reserve: ClassVar[bool] = True

    pipeline_id: int
    instance_ids: tuple[int, ...]


class Started(msgspec.Struct, frozen=True):
    """Their ids are `count` from `first_id` on."""

    first_id: int
    count: int


class Cancelled(msgspec.Struct, frozen=True):
    """`others`: had ended before."""

    cancelled: int
    others: int


def apply_start_instances(context: Context, command: StartInstances) -> Started:
    """Raises `NotFoundError` without the pipeline, `ConflictError` without keys that it needs."""
    db, pipeline_id = context.db, command.pipeline_id
    row = db.execute(
        f"SELECT first_id, count FROM {START_REQUEST} WHERE pipeline_id = ? AND request = ?",
        (pipeline_id, command.request),
    ).fetchone()
    if row is not None:
        raise NoChange(Started(*row))
    if waits.lacks_keys(db, pipeline_id, command.key_hashes):
        raise ConflictError(
            f"{label_of(db, pipeline_id)} has begun to wait for records a moment ago", "try again"
        )
    first_id = instances.make(
        context,
        pipeline_id,
        command.stream_id,
        command.partition,
        command.offsets,
        command.key_hashes,
    )
    started = Started(first_id, len(command.offsets))
    db.execute(
        f"INSERT INTO {START_REQUEST} VALUES(?, ?, ?, ?)",
        (pipeline_id, command.request, first_id, started.count),
    )
    db.execute(
        f"DELETE FROM {START_REQUEST} WHERE pipeline_id = ?1 AND first_id <"
        f" (SELECT min(first_id) FROM (SELECT first_id FROM {START_REQUEST} WHERE pipeline_id = ?1"
        " ORDER BY first_id DESC LIMIT ?2))",
        (pipeline_id, KEPT_REQUESTS),
    )
    context.emit(InstancesChanged(pipeline_id))
    return started


def apply_cancel_instances(context: Context, command: CancelInstances) -> Cancelled:
    """Raises `NotFoundError` for a pipeline or an instance that is not here, `ConflictError` when a
    transaction ends a stage of one; then nothing was done."""
    db, pipeline_id = context.db, command.pipeline_id
    ids = sorted(set(command.instance_ids))
    statuses = _statuses(db, pipeline_id, ids)
    ending = [
        each for each in ids if statuses[each][0] in (InstanceStatus.LIVE, InstanceStatus.FAILED)
    ]
    if not ending:
        raise NoChange(Cancelled(0, len(ids)))
    names = db.execute(
        f"SELECT stage FROM {STAGE_COUNT} WHERE pipeline_id = ? ORDER BY stage", (pipeline_id,)
    ).fetchall()
    for (name,) in names:
        locks.check_free(context, Lock(STAGES, pipeline_id, name, tuple(runs(ending))))
        # An attempt that may be under way is over: its number is not used again.
        db.execute(
            f"UPDATE {STAGE_RUN} SET status = {StageStatus.WAITING}, attempts = attempts + 1"
            f" WHERE pipeline_id = ? AND stage = ? AND status = {StageStatus.READY}"
            " AND instance_id IN (SELECT value FROM json_each(?))",
            (pipeline_id, name, json.dumps(ending)),
        )
        if stopped := db.changes():
            stage_runs.count(db, pipeline_id, name, ready=-stopped)
            context.emit(StagesEnded(pipeline_id, name, tuple(ending), by_runner=False))
    waits.disarm(db, pipeline_id, ending)
    db.execute(
        f"UPDATE {INSTANCE} SET status = ?, ended_ms = ? WHERE pipeline_id = ?"
        " AND instance_id IN (SELECT value FROM json_each(?))",
        (InstanceStatus.CANCELLED, context.now_ms, pipeline_id, json.dumps(ending)),
    )
    were = Counter(statuses[each][0] for each in ending)
    db.execute(
        f"UPDATE {PIPELINE} SET live = live - ?, failed = failed - ?, cancelled = cancelled + ?"
        " WHERE pipeline_id = ?",
        (were[1], were[3], len(ending), pipeline_id),
    )
    held = Counter(statuses[each][1] for each in ending)
    definitions.hold(db, pipeline_id, {version: -count for version, count in held.items()})
    context.emit(InstancesChanged(pipeline_id))
    return Cancelled(len(ending), len(ids) - len(ending))


def _statuses(db: Database, pipeline_id: int, ids: Sequence[int]) -> dict[int, tuple[int, int]]:
    """(status, version) of each instance."""
    if not is_here(db, pipeline_id):
        raise NotFoundError(f"{label_of(db, pipeline_id)} does not live here")
    rows: Any = db.execute(
        f"SELECT instance_id, status, version FROM {INSTANCE} WHERE pipeline_id = ?"
        " AND instance_id IN (SELECT value FROM json_each(?))",
        (pipeline_id, json.dumps(ids)),
    )
    found = {instance_id: (status, version) for instance_id, status, version in rows}
    unknown = [each for each in ids if each not in found]
    if unknown:
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        raise NotFoundError(f"{label_of(db, pipeline_id)} has no instance {unknown[0]}{more}")
    return found
