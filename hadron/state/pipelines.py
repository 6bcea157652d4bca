"""Pipelines: cursors on their input, instances, and what each stage of each instance has done.

Safety rules, each one entry in the log: consuming trigger records and creating their instances is
one step, guarded by the cursor, so a record makes one instance, ever; publishing a stage's outputs
and marking the stage done is one step, guarded by the attempt, so an output is published once,
whoever runs the stage how often. That a runner is at work on a stage is volatile and not here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec

from hadron.model.errors import NotFoundError, SchemaError
from hadron.model.kinds import spec_from_json
from hadron.model.pipelines import PipelineSpec, StageSpec
from hadron.model.ports import Database
from hadron.model.ranges import runs
from hadron.model.schema import SchemaObject
from hadron.model.tables import PREFIX
from hadron.model.transactions import STAGES, Lock
from hadron.model.units import parse_time_ms
from hadron.state import locks, schema, skips, slices, streams
from hadron.state.machine import BatchShape, Command, Context, Feature, NoChange
from hadron.state.names import label_of
from hadron.state.pipeline_events import InstancesChanged, StagesEnded
from hadron.state.producers import Appended
from hadron.state.schema import SCHEMA_OBJECT

PIPELINE: Final = PREFIX + "pipeline"
PIPELINE_INPUT: Final = PREFIX + "pipeline_input"
INSTANCE: Final = PREFIX + "instance"
STAGE_RUN: Final = PREFIX + "stage_run"
STAGE_RETRY: Final = PREFIX + "stage_retry"
STAGE_COUNT: Final = PREFIX + "stage_count"

_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {PIPELINE}(
    pipeline_id INTEGER PRIMARY KEY,
    next_instance INTEGER NOT NULL,
    live INTEGER NOT NULL, done INTEGER NOT NULL, failed INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS {PIPELINE_INPUT}(
    pipeline_id INTEGER NOT NULL,
    partition TEXT NOT NULL,
    stream_id INTEGER NOT NULL,
    next_offset INTEGER NOT NULL,       -- everything below has been looked at
    PRIMARY KEY (pipeline_id, partition)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {INSTANCE}(
    pipeline_id INTEGER NOT NULL,
    instance_id INTEGER NOT NULL,
    status INTEGER NOT NULL,            -- 1 live, 2 done, 3 failed
    stream_id INTEGER NOT NULL, partition TEXT NOT NULL, offset INTEGER NOT NULL,   -- the trigger
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (pipeline_id, instance_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {INSTANCE}_failed ON {INSTANCE}(pipeline_id, instance_id)
    WHERE status = 3;
CREATE TABLE IF NOT EXISTS {STAGE_RUN}(
    pipeline_id INTEGER NOT NULL,
    stage TEXT NOT NULL,
    instance_id INTEGER NOT NULL,
    status INTEGER NOT NULL,            -- 1 ready, 2 done, 3 failed; no row while it waits
    ready_ms INTEGER NOT NULL,          -- not before
    attempts INTEGER NOT NULL,          -- that ended in failure, ever: numbers are not used again
    out_stream_id INTEGER, out_partition TEXT, out_offset INTEGER,
    reason TEXT,
    PRIMARY KEY (pipeline_id, stage, instance_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {STAGE_RUN}_ready ON {STAGE_RUN}(
    pipeline_id, stage, ready_ms, instance_id
) WHERE status = 1;
CREATE TABLE IF NOT EXISTS {STAGE_RETRY}(
    pipeline_id INTEGER NOT NULL,
    stage TEXT NOT NULL,
    instance_id INTEGER NOT NULL,
    attempts_before INTEGER NOT NULL,   -- failed attempts that count no more
    PRIMARY KEY (pipeline_id, stage, instance_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {STAGE_COUNT}(
    pipeline_id INTEGER NOT NULL,
    stage TEXT NOT NULL,
    ready INTEGER NOT NULL, done INTEGER NOT NULL, failed INTEGER NOT NULL,
    PRIMARY KEY (pipeline_id, stage)
) STRICT, WITHOUT ROWID;
"""

_LEFT: Final = tuple(
    slices.Owned(table, f"pipeline_id, {rest}", "pipeline_id = ?")
    for table, rest in (
        (STAGE_RUN, "stage, instance_id"),
        (STAGE_RETRY, "stage, instance_id"),
        (INSTANCE, "instance_id"),
        (STAGE_COUNT, "stage"),
        (PIPELINE_INPUT, "partition"),
    )
)
"""What a pipeline has besides its own row."""

LIVE: Final = 1
READY: Final = 1
DONE: Final = 2
FAILED: Final = 3


class TriggerInstances(Command, frozen=True, array_like=True, tag=6):
    """Move the cursor of one input partition from `from_offset` to `to_offset`, and make an
    instance of each record in `offsets`."""

    pipeline_id: int
    partition: str
    from_offset: int
    to_offset: int
    offsets: tuple[int, ...]


class CompleteStages(Command, frozen=True, array_like=True, tag=7):
    """Stages are done; the entry's body, when there is one, holds their outputs in order."""

    is_joinable: ClassVar[bool] = True

    pipeline_id: int
    stage: str
    instance_ids: tuple[int, ...]
    attempts: tuple[int, ...]
    """The number of the attempt that completed, from 1, for each instance."""
    out_stream_id: int
    """0 when the stage has no output."""
    size: int
    """Bytes of the body."""
    created_ms: tuple[int, ...] = ()
    """When each instance was made: one that was made at another time is another instance. Empty:
    not compared."""

    @property
    def batches(self) -> tuple[BatchShape, ...]:
        return (BatchShape(len(self.instance_ids), self.size),) if self.out_stream_id else ()


class FailStages(Command, frozen=True, array_like=True, tag=8):
    """An attempt failed; the stage is tried again later, or is given up."""

    is_joinable: ClassVar[bool] = True
    uses_reserve: ClassVar[bool] = True

    pipeline_id: int
    stage: str
    instance_ids: tuple[int, ...]
    attempts: tuple[int, ...]
    reason: str
    created_ms: tuple[int, ...] = ()
    """As of `CompleteStages`."""


class Triggered(msgspec.Struct, frozen=True):
    """`stale`: the cursor had moved, nothing was done."""

    next_offset: int
    created: int
    stale: bool = False


class Completed(msgspec.Struct, frozen=True):
    """When `stale` is not empty nothing was done: these did not wait for this attempt."""

    appended: Appended | None
    stale: tuple[int, ...] = ()


def _adopt(context: Context, item: SchemaObject) -> None:
    """Make the tables of a new or changed pipeline; a cursor that exists is left alone.

    Raises `SchemaError` when a known pipeline is to read another stream.
    """
    db, pipeline_id, spec = context.db, item.id, item.spec
    assert isinstance(spec, PipelineSpec)
    source = schema.find(db, "Stream", item.namespace, spec.input)
    if not context.is_here(spec.replica_set) or source is None:
        return
    stream_id = source.id
    known = input_of(db, pipeline_id)
    if known is not None and known != stream_id:
        raise SchemaError(
            f"{label_of(db, pipeline_id)} has consumed another stream, its instances belong to "
            "that",
            "declare a pipeline with another name for the new input",
        )
    db.execute(
        f"INSERT INTO {PIPELINE} VALUES(?, 1, 0, 0, 0) ON CONFLICT DO NOTHING", (pipeline_id,)
    )
    for stage in spec.stages:
        db.execute(
            f"INSERT INTO {STAGE_COUNT} VALUES(?, ?, 0, 0, 0) ON CONFLICT DO NOTHING",
            (pipeline_id, stage.name),
        )
    db.execute(
        f"INSERT INTO {PIPELINE_INPUT} VALUES(?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (pipeline_id, context.replica_set, stream_id, _start(db, stream_id, spec.start)),
    )
    if known is not None:
        live = db.execute(
            f"SELECT instance_id FROM {INSTANCE} WHERE pipeline_id = ? AND status = 1"
            " ORDER BY instance_id",
            (pipeline_id,),
        ).fetchall()
        catch_up(context, pipeline_id, spec, [each for (each,) in live])


def input_of(db: Database, pipeline_id: int) -> int | None:
    """The stream that a pipeline here consumes; None before it was adopted."""
    row = db.execute(
        f"SELECT stream_id FROM {PIPELINE_INPUT} WHERE pipeline_id = ?", (pipeline_id,)
    ).fetchone()
    return None if row is None else row[0]


def catch_up(context: Context, pipeline_id: int, spec: PipelineSpec, ids: Sequence[int]) -> None:
    """Bring live instances in step with the declared stages: what a stage waits for may have
    happened before it was declared, and nothing else would ever look again."""
    for stage in spec.stages:
        before = sorted({*stage.dependencies, *stage.after})
        ready = _with_all_done(context.db, pipeline_id, before, ids)
        _make_ready(context, pipeline_id, stage, ready)
    names = sorted(stage.name for stage in spec.stages)
    _end(context.db, pipeline_id, _with_all_done(context.db, pipeline_id, names, ids), DONE)


def _start(db: Database, stream_id: int, start: str) -> int:
    limits = streams.bounds(db, stream_id)
    if start == "earliest":
        return limits.first_offset
    if start == "latest":
        return limits.next_offset
    if start.isdigit():
        return min(max(int(start), limits.first_offset), limits.next_offset)
    return streams.offset_at(db, stream_id, parse_time_ms(start))


def _skip_below(context: Context, stream_id: int, first_offset: int) -> None:
    """Move the cursors of pipelines over input that retention drops, and count what they had not
    looked at."""
    rows = context.db.execute(
        f"SELECT pipeline_id, next_offset FROM {PIPELINE_INPUT} WHERE stream_id = ?"
        f" AND partition = ?"
        " AND next_offset < ? ORDER BY pipeline_id",
        (stream_id, context.replica_set, first_offset),
    ).fetchall()
    context.db.execute(
        f"UPDATE {PIPELINE_INPUT} SET next_offset = ? WHERE stream_id = ? AND partition = ?"
        " AND next_offset < ?",
        (first_offset, stream_id, context.replica_set, first_offset),
    )
    for pipeline_id, cursor in rows:
        skips.note(context, "pipeline", pipeline_id, first_offset - cursor)


def _close(context: Context, pipeline_id: int) -> bool:
    """Nothing of a deleted pipeline runs any more."""
    skips.forget(context.db, "pipeline", pipeline_id)
    context.db.execute(f"DELETE FROM {PIPELINE} WHERE pipeline_id = ?", (pipeline_id,))
    return context.db.changes() > 0


def _drop_some(context: Context, pipeline_id: int, portion: slices.Portion) -> slices.Dropped:
    """Of what a deleted pipeline has left."""
    rows = slices.delete_some(context.db, _LEFT, pipeline_id, portion.rows)
    return slices.Dropped(rows, is_done=rows < portion.rows)


def apply_trigger_instances(context: Context, command: TriggerInstances) -> Triggered:
    db = context.db
    row = db.execute(
        f"SELECT next_offset, stream_id FROM {PIPELINE_INPUT} WHERE pipeline_id = ?"
        f" AND partition = ?",
        (command.pipeline_id, command.partition),
    ).fetchone()
    if row is None:
        raise NotFoundError(
            f"{label_of(db, command.pipeline_id)} does not read {command.partition}"
        )
    if row[0] != command.from_offset:
        raise NoChange(Triggered(row[0], 0, stale=True))
    db.execute(
        f"UPDATE {PIPELINE_INPUT} SET next_offset = ? WHERE pipeline_id = ? AND partition = ?",
        (command.to_offset, command.pipeline_id, command.partition),
    )
    count = len(command.offsets)
    if count:
        first = _take_instance_ids(db, command.pipeline_id, count)
        ids = range(first, first + count)
        db.executemany(
            f"INSERT INTO {INSTANCE} VALUES(?, ?, 1, ?, ?, ?, ?)",
            [
                (
                    command.pipeline_id,
                    instance_id,
                    row[1],
                    command.partition,
                    offset,
                    context.now_ms,
                )
                for instance_id, offset in zip(ids, command.offsets, strict=True)
            ],
        )
        for stage in spec_of(db, command.pipeline_id).stages:
            if not stage.dependencies and not stage.after:
                _make_ready(context, command.pipeline_id, stage, ids)
    context.emit(InstancesChanged(command.pipeline_id))
    return Triggered(command.to_offset, count)


def _take_instance_ids(db: Database, pipeline_id: int, count: int) -> int:
    row = db.execute(
        f"UPDATE {PIPELINE} SET next_instance = next_instance + ?, live = live + ?"
        " WHERE pipeline_id = ? RETURNING next_instance",
        (count, count, pipeline_id),
    ).fetchone()
    if row is None:
        raise NotFoundError(f"{label_of(db, pipeline_id)} does not live here")
    first: int = row[0] - count
    return first


def stages_of(command: CompleteStages | FailStages) -> Lock:
    """What it ends."""
    ids = tuple(runs(sorted(set(command.instance_ids))))
    return Lock(STAGES, command.pipeline_id, command.stage, ids)


def apply_complete_stages(context: Context, command: CompleteStages) -> Completed:
    """Raises `ConflictError` when a transaction holds one of the stages."""
    locks.check_free(context, stages_of(command))
    return complete(context, command)


def complete(context: Context, command: CompleteStages) -> Completed:
    """The same for whoever has the stages."""
    db, pipeline_id = context.db, command.pipeline_id
    stale = stale_of(db, command)
    if stale:
        raise NoChange(Completed(None, stale))
    ids = command.instance_ids
    appended = None
    if command.out_stream_id:
        appended = streams.append(context, command.out_stream_id, len(ids), command.size)
    base = appended.base_offset if appended is not None else None
    db.executemany(
        f"UPDATE {STAGE_RUN} SET status = 2, out_stream_id = ?, out_partition = ?, out_offset = ?,"
        " reason = NULL WHERE pipeline_id = ? AND stage = ? AND instance_id = ?",
        [
            (
                command.out_stream_id or None,
                context.replica_set if base is not None else None,
                base + index if base is not None else None,
                pipeline_id,
                command.stage,
                instance_id,
            )
            for index, instance_id in enumerate(ids)
        ],
    )
    count_stages(db, pipeline_id, command.stage, ready=-len(ids), done=len(ids))
    _advance(context, pipeline_id, command.stage, ids)
    context.emit(StagesEnded(pipeline_id, command.stage, ids))
    return Completed(appended)


def stale_of(db: Database, command: CompleteStages | FailStages) -> tuple[int, ...]:
    """Those whose stage does not wait for just this attempt of this instance; doubled ids are
    stale. *(A set is restored, and makes other instances: a runner from before completes theirs.)*
    """
    ids = command.instance_ids
    created_ms = command.created_ms or (None,) * len(ids)
    waiting = {
        instance_id: (attempt, made_ms if command.created_ms else None)
        for instance_id, attempt, made_ms in db.execute(
            "SELECT r.instance_id, r.attempts + 1, i.created_ms"
            f" FROM {STAGE_RUN} r JOIN {INSTANCE} i USING (pipeline_id, instance_id)"
            " WHERE r.pipeline_id = ? AND r.stage = ? AND r.status = 1"
            " AND r.instance_id IN (SELECT value FROM json_each(?))",
            (command.pipeline_id, command.stage, json.dumps(ids)),
        )
    }
    return tuple(
        instance_id
        for instance_id, *attempt in zip(ids, command.attempts, created_ms, strict=True)
        if waiting.pop(instance_id, None) != tuple(attempt)
    )


def _advance(context: Context, pipeline_id: int, stage: str, ids: Sequence[int]) -> None:
    """Make the stages ready that waited for `stage`, and end the instances that have no more."""
    stages = spec_of(context.db, pipeline_id).stages
    going_on: set[int] = set()
    for following in stages:
        before = sorted({*following.dependencies, *following.after})
        if stage not in before:
            continue
        ready = ids if before == [stage] else _with_all_done(context.db, pipeline_id, before, ids)
        # Fewer were made ready when a changed pipeline puts `stage` before one that has begun.
        if _make_ready(context, pipeline_id, following, ready) == len(ready):
            going_on.update(ready)
    left = [instance_id for instance_id in ids if instance_id not in going_on]
    names = sorted(item.name for item in stages)
    ended = left if names == [stage] else _with_all_done(context.db, pipeline_id, names, left)
    _end(context.db, pipeline_id, ended, DONE)


def _with_all_done(
    db: Database, pipeline_id: int, stages: Sequence[str], ids: Sequence[int]
) -> list[int]:
    """Those of `ids` for which all of `stages` are done, in their order."""
    if not ids:
        return []
    rows = db.execute(
        f"SELECT j.value FROM json_each(?) j WHERE (SELECT count(*) FROM {STAGE_RUN} s"
        " WHERE s.pipeline_id = ? AND s.stage IN (SELECT value FROM json_each(?))"
        " AND s.instance_id = j.value AND s.status = 2) = ? ORDER BY j.key",
        (json.dumps(list(ids)), pipeline_id, json.dumps(stages), len(stages)),
    ).fetchall()
    return [row[0] for row in rows]


def _make_ready(context: Context, pipeline_id: int, stage: StageSpec, ids: Sequence[int]) -> int:
    """Let a stage of these instances run, unless it has begun; returns of how many."""
    if not ids:
        return 0
    context.db.execute(
        f"INSERT INTO {STAGE_RUN} SELECT ?, ?, value, 1, ?, 0, NULL, NULL, NULL, NULL"
        " FROM json_each(?) WHERE true ON CONFLICT DO NOTHING",
        (pipeline_id, stage.name, context.now_ms + stage.delay_ms, json.dumps(list(ids))),
    )
    made = context.db.changes()
    count_stages(context.db, pipeline_id, stage.name, ready=made)
    return made


def count_stages(
    db: Database, pipeline_id: int, stage: str, *, ready: int = 0, done: int = 0, failed: int = 0
) -> None:
    """So many more instances have a stage in each of these states."""
    db.execute(
        f"UPDATE {STAGE_COUNT} SET ready = ready + ?, done = done + ?, failed = failed + ?"
        " WHERE pipeline_id = ? AND stage = ?",
        (ready, done, failed, pipeline_id, stage),
    )


def _end(db: Database, pipeline_id: int, ids: Sequence[int], status: int) -> None:
    """Live instances become done or failed; one that has ended before keeps how it ended."""
    if not ids:
        return
    ended = 0
    for instance_id in ids:
        db.execute(
            f"UPDATE {INSTANCE} SET status = ? WHERE pipeline_id = ? AND instance_id = ?"
            " AND status = 1",
            (status, pipeline_id, instance_id),
        )
        ended += db.changes()
    column = "done" if status == DONE else "failed"
    db.execute(
        f"UPDATE {PIPELINE} SET live = live - ?, {column} = {column} + ? WHERE pipeline_id = ?",
        (ended, ended, pipeline_id),
    )


def apply_fail_stages(context: Context, command: FailStages) -> Completed:
    """Raises `ConflictError` when a transaction holds one of the stages."""
    locks.check_free(context, stages_of(command))
    return fail(context, command)


def fail(context: Context, command: FailStages) -> Completed:
    """The same for whoever has the stages."""
    db, pipeline_id = context.db, command.pipeline_id
    stale = set(stale_of(db, command))
    failed = [
        (instance_id, attempt)
        for instance_id, attempt in zip(command.instance_ids, command.attempts, strict=True)
        if instance_id not in stale
    ]
    stage = next(
        (item for item in spec_of(db, pipeline_id).stages if item.name == command.stage), None
    )
    if stage is None or not failed:
        raise NoChange(Completed(None, command.instance_ids))
    before = _attempts_before(db, pipeline_id, command.stage, [each for each, _ in failed])
    given_up: list[int] = []
    for instance_id, attempt in failed:
        counted = attempt - before.get(instance_id, 0)
        last = counted >= stage.retry.max_attempts
        if last:
            given_up.append(instance_id)
        db.execute(
            f"UPDATE {STAGE_RUN} SET status = ?, attempts = ?, ready_ms = ?, reason = ?"
            " WHERE pipeline_id = ? AND stage = ? AND instance_id = ?",
            (
                FAILED if last else READY,
                attempt,
                context.now_ms + stage.retry.pause_ms(counted),
                command.reason,
                pipeline_id,
                command.stage,
                instance_id,
            ),
        )
    count_stages(db, pipeline_id, command.stage, ready=-len(given_up), failed=len(given_up))
    _end(db, pipeline_id, given_up, FAILED)
    context.emit(
        StagesEnded(pipeline_id, command.stage, tuple(instance_id for instance_id, _ in failed))
    )
    return Completed(None, tuple(sorted(stale)))


def _attempts_before(
    db: Database, pipeline_id: int, stage: str, ids: Sequence[int]
) -> dict[int, int]:
    """How many failed attempts of these instances count no more; those with none are left out."""
    return dict(
        db.execute(
            f"SELECT instance_id, attempts_before FROM {STAGE_RETRY} WHERE pipeline_id = ?"
            " AND stage = ? AND instance_id IN (SELECT value FROM json_each(?))",
            (pipeline_id, stage, json.dumps(ids)),
        ).fetchall()
    )


def is_here(db: Database, pipeline_id: int) -> bool:
    """Whether a pipeline runs on this replica set, and was not deleted."""
    row = db.execute(f"SELECT 1 FROM {PIPELINE} WHERE pipeline_id = ?", (pipeline_id,)).fetchone()
    return row is not None


def spec_of(db: Database, pipeline_id: int) -> PipelineSpec:
    """As it is declared. Raises `NotFoundError`."""
    row = db.execute(f"SELECT spec FROM {SCHEMA_OBJECT} WHERE id = ?", (pipeline_id,)).fetchone()
    if row is None:
        raise NotFoundError(f"{label_of(db, pipeline_id)} does not exist")
    spec = spec_from_json("Pipeline", row[0])
    assert isinstance(spec, PipelineSpec)
    return spec


FEATURE: Final = Feature(
    name="pipelines",
    tables=_TABLES,
    commands={
        TriggerInstances: apply_trigger_instances,
        CompleteStages: apply_complete_stages,
        FailStages: apply_fail_stages,
    },
    declared={"Pipeline": _adopt},
    deleted={"Pipeline": _close},
    leftovers={"Pipeline": _drop_some},
    trimmed=_skip_below,
)
