"""What each stage of each instance has done.

Safety rule: publishing a stage's outputs and marking the stage done is one entry, guarded by the
attempt, so an output is published once, whoever runs the stage how often; where outputs go to
another set, it is two, and one transaction (`publishing`). That a runner is at work on a stage is
volatile and not here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar, Protocol

import msgspec

from hadron.model.pipelines import StageSpec, branch_of, branches_of
from hadron.model.ports import Database
from hadron.model.ranges import runs
from hadron.model.transactions import STAGES, Lock
from hadron.state.machine import BatchShape, Command, Context, NoChange
from hadron.state.pipelines import branches, definitions, instances, stories, waits
from hadron.state.pipelines import letters as instance_letters
from hadron.state.pipelines.events import StagesEnded
from hadron.state.pipelines.tables import (
    INSTANCE,
    STAGE_COUNT,
    STAGE_RETRY,
    STAGE_RUN,
    STAGE_WAIT,
    InstanceStatus,
    StageStatus,
    is_here,
)
from hadron.state.streams import partitions as streams
from hadron.state.streams.producers import Appended
from hadron.state.transactions import locks


class CompleteStages(Command["Completed"], frozen=True, array_like=True, tag=7):
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
    version: int = 0
    """Of the definition that all of them go by: it says where outputs go. 0: not compared."""
    runner: str = ""
    """Who ran them, for people, and so is what follows."""
    code_version: str = ""
    took_ms: tuple[int, ...] = ()
    """Each, or all of them; empty where nobody knows."""

    @property
    def rows(self) -> int:
        return len(self.instance_ids)

    @property
    def batches(self) -> tuple[BatchShape, ...]:
        return (BatchShape(len(self.instance_ids), self.size),) if self.out_stream_id else ()


class FailStages(Command["Completed"], frozen=True, array_like=True, tag=8):
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
    is_final: bool = False
    """No other attempt follows."""
    runner: str = ""
    """As of `CompleteStages`, and so is what follows."""
    code_version: str = ""
    took_ms: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        return len(self.instance_ids)


class Completed(msgspec.Struct, frozen=True):
    """When `stale` is not empty nothing was done: these did not wait for this attempt."""

    appended: Appended | None
    stale: tuple[int, ...] = ()


class Attempts(Protocol):
    """A command that ends attempts at a stage."""

    @property
    def pipeline_id(self) -> int: ...
    @property
    def stage(self) -> str: ...
    @property
    def instance_ids(self) -> tuple[int, ...]: ...
    @property
    def attempts(self) -> tuple[int, ...]: ...
    @property
    def created_ms(self) -> tuple[int, ...]: ...


def stages_of(command: Attempts) -> Lock:
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
        f"UPDATE {STAGE_RUN} SET status = {StageStatus.DONE}, out_stream_id = ?,"
        " out_partition = ?, out_offset = ?,"
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
    stories.note(context, command, ids, command.attempts, stories.durations(command, len(ids)))
    count(db, pipeline_id, command.stage, ready=-len(ids), done=len(ids))
    advance(context, pipeline_id, command.stage, ids)
    context.emit(StagesEnded(pipeline_id, command.stage, ids, by_runner=True))
    return Completed(appended)


def stale_of(db: Database, command: Attempts) -> tuple[int, ...]:
    """Those whose stage does not wait for just this attempt of this instance; doubled ids are
    stale. *(A set is restored, and makes other instances: a runner from before completes theirs.)*
    """
    ids = command.instance_ids
    created_ms = command.created_ms or (None,) * len(ids)
    version = 0 if isinstance(command, FailStages) else getattr(command, "version", 0)
    waiting = {
        instance_id: (attempt, made_ms if command.created_ms else None)
        for instance_id, attempt, made_ms in db.execute(
            "SELECT r.instance_id, r.attempts + 1, i.created_ms"
            f" FROM {STAGE_RUN} r JOIN {INSTANCE} i USING (pipeline_id, instance_id)"
            f" WHERE r.pipeline_id = ?1 AND r.stage = ?2 AND r.status = {StageStatus.READY}"
            " AND r.instance_id IN (SELECT value FROM json_each(?3)) AND ?4 IN (0, r.version)"
            # What waits is nobody's to end.
            f" AND NOT EXISTS (SELECT 1 FROM {STAGE_WAIT} w WHERE w.pipeline_id = ?1"
            " AND w.instance_id = r.instance_id AND w.stage = ?2)",
            (command.pipeline_id, command.stage, json.dumps(ids), version),
        )
    }
    return tuple(
        instance_id
        for instance_id, *attempt in zip(ids, command.attempts, created_ms, strict=True)
        if waiting.pop(instance_id, None) != tuple(attempt)
    )


def advance(context: Context, pipeline_id: int, stage: str, ids: Sequence[int]) -> None:
    """Make the stages ready that waited for `stage`, and end the instances that have no more."""
    declared = definitions.all_stages(context.db, pipeline_id)
    on_failure = definitions.on_failure(context.db, pipeline_id)
    for version, some in definitions.by_version(context.db, pipeline_id, ids).items():
        if stage != on_failure[version]:
            stages = [each for each in declared[version] if each.name != on_failure[version]]
            _advance_some(context, pipeline_id, version, stages, stage, some)


def _advance_some(
    context: Context,
    pipeline_id: int,
    version: int,
    stages: Sequence[StageSpec],
    ended: str,
    ids: Sequence[int],
) -> None:
    going_on: set[int] = set()
    others = branches_of(stages)
    for following in stages:
        before = sorted({*following.dependencies, *following.after})
        if ended not in before or following.name in others:
            continue
        ready = ids if before == [ended] else with_all(context.db, pipeline_id, before, ids)
        # Fewer are made ready when a retry has put `ended` before one that has begun.
        if make_ready(context, pipeline_id, version, following, ready) == len(ready):
            going_on.update(ready)
    left = [instance_id for instance_id in ids if instance_id not in going_on]
    names = sorted(stage.name for stage in stages)
    done = left if names == [ended] else with_all(context.db, pipeline_id, names, left)
    instances.end(context, pipeline_id, done, InstanceStatus.DONE)


def catch_up(
    context: Context,
    pipeline_id: int,
    version: int,
    stages: Sequence[StageSpec],
    ids: Sequence[int],
) -> None:
    """Make ready what may run of live instances that have got another definition: what a stage
    waits for may have happened before, and nothing else would ever look again."""
    db, others = context.db, branches_of(stages)
    for stage in stages:
        gone = with_all(db, pipeline_id, [stage.name], ids, "(5, 6)")
        branches.pass_by(context, pipeline_id, version, stages, stage.name, gone)
        for each in stages:
            if each.name == branch_of(stage):
                late = with_all(db, pipeline_id, [stage.name], ids, "(6)")
                make_ready(context, pipeline_id, version, each, late)
                decided = with_all(db, pipeline_id, [stage.name], ids, "(2, 5)")
                branches.skip(context, pipeline_id, version, stages, each, decided)
    for stage in stages:
        if stage.name not in others:
            before = sorted({*stage.dependencies, *stage.after})
            ready = with_all(db, pipeline_id, before, ids)
            make_ready(context, pipeline_id, version, stage, ready)
    names = sorted(stage.name for stage in stages)
    done = with_all(db, pipeline_id, names, ids)
    instances.end(context, pipeline_id, done, InstanceStatus.DONE)


def with_all(
    db: Database,
    pipeline_id: int,
    stages: Sequence[str],
    ids: Sequence[int],
    statuses: str = "(2, 5, 6)",
) -> list[int]:
    """Those of `ids` for which all of `stages` are done, or passed by, in their order."""
    if not ids:
        return []
    rows = db.execute(
        f"SELECT j.value FROM json_each(?) j WHERE (SELECT count(*) FROM {STAGE_RUN} s"
        " WHERE s.pipeline_id = ? AND s.stage IN (SELECT value FROM json_each(?))"
        f" AND s.instance_id = j.value AND s.status IN {statuses}) = ? ORDER BY j.key",
        (json.dumps(list(ids)), pipeline_id, json.dumps(stages), len(stages)),
    ).fetchall()
    return [row[0] for row in rows]


def make_ready(
    context: Context, pipeline_id: int, version: int, stage: StageSpec, ids: Sequence[int]
) -> int:
    """Let a stage of these instances run, unless it has begun; returns of how many."""
    if not ids:
        return 0
    context.db.execute(
        f"INSERT INTO {STAGE_RUN} SELECT ?, ?, value, ?, 1, ?, 0, NULL, NULL, NULL, NULL"
        " FROM json_each(?) WHERE true ON CONFLICT DO UPDATE"
        f" SET status = {StageStatus.READY}, ready_ms = excluded.ready_ms"
        f" WHERE status = {StageStatus.WAITING}",
        (pipeline_id, stage.name, version, context.now_ms + stage.delay_ms, json.dumps(list(ids))),
    )
    made = context.db.changes()
    count(context.db, pipeline_id, stage.name, ready=made)
    if stage.wait is not None:
        waits.begin(context, pipeline_id, stage, ids)
    return made


def count(
    db: Database, pipeline_id: int, stage: str, *, ready: int = 0, done: int = 0, failed: int = 0
) -> None:
    """So many more instances have a stage in each of these states."""
    db.execute(
        f"INSERT INTO {STAGE_COUNT} VALUES(?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
        " ready = ready + excluded.ready, done = done + excluded.done,"
        " failed = failed + excluded.failed",
        (pipeline_id, stage, ready, done, failed),
    )


def apply_fail_stages(context: Context, command: FailStages) -> Completed:
    """Raises `ConflictError` when a transaction holds one of the stages."""
    locks.check_free(context, stages_of(command))
    return fail(context, command)


def fail(context: Context, command: FailStages) -> Completed:
    """The same for whoever has the stages."""
    db, pipeline_id = context.db, command.pipeline_id
    stale = set(stale_of(db, command))
    attempts = {
        instance_id: attempt
        for instance_id, attempt in zip(command.instance_ids, command.attempts, strict=True)
        if instance_id not in stale
    }
    if not attempts or not is_here(db, pipeline_id):
        raise NoChange(Completed(None, command.instance_ids))
    declared = definitions.all_stages(db, pipeline_id)
    all_ms = stories.durations(command, len(command.instance_ids))
    took_ms = dict(zip(command.instance_ids, all_ms, strict=True))
    some_ms = [took_ms[each] for each in attempts]
    stories.note(context, command, [*attempts], [*attempts.values()], some_ms, command.reason)
    given_up: list[int] = []
    for version, ids in definitions.by_version(db, pipeline_id, list(attempts)).items():
        (stage,) = (each for each in declared[version] if each.name == command.stage)
        some = {each: attempts[each] for each in ids}
        given_up += _fail_some(context, command, stage, some)
    give_up(context, pipeline_id, command.stage, given_up)
    # A leader that gives up an instance names no runner.
    by_runner = bool(command.runner) or not command.is_final
    context.emit(StagesEnded(pipeline_id, command.stage, tuple(attempts), by_runner=by_runner))
    return Completed(None, tuple(sorted(stale)))


def _fail_some(
    context: Context, command: FailStages, stage: StageSpec, attempts: dict[int, int]
) -> list[int]:
    """Returns those for which that was the last attempt."""
    db, pipeline_id = context.db, command.pipeline_id
    before = _attempts_before(db, pipeline_id, command.stage, list(attempts))
    given_up: list[int] = []
    for instance_id, attempt in attempts.items():
        counted = attempt - before.get(instance_id, 0)
        last = counted >= stage.retry.max_attempts or command.is_final
        if last:
            given_up.append(instance_id)
        db.execute(
            f"UPDATE {STAGE_RUN} SET status = ?, attempts = ?, ready_ms = ?, reason = ?"
            " WHERE pipeline_id = ? AND stage = ? AND instance_id = ?",
            (
                StageStatus.FAILED if last else StageStatus.READY,
                attempt,
                context.now_ms + stage.retry.pause_ms(counted, instance_id),
                command.reason,
                pipeline_id,
                command.stage,
                instance_id,
            ),
        )
    return given_up


def give_up(context: Context, pipeline_id: int, stage: str, ids: Sequence[int]) -> None:
    """A stage of these instances, which was ready or publishing, has failed for good, and so have
    they; what is declared for that runs. A cancelled one stays so, and tells nobody."""
    if not ids:
        return
    db = context.db
    count(db, pipeline_id, stage, ready=-len(ids), failed=len(ids))
    ended = instances.end(context, pipeline_id, ids, InstanceStatus.FAILED)
    instance_letters.note(context, pipeline_id, stage, ended)
    declared = definitions.all_stages(db, pipeline_id)
    on_failure = definitions.on_failure(db, pipeline_id)
    going_on = instances.not_cancelled(db, pipeline_id, ids)
    for version, some in definitions.by_version(db, pipeline_id, going_on).items():
        for following in declared[version]:
            if following.name == on_failure[version] != stage:
                make_ready(context, pipeline_id, version, following, some)


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
